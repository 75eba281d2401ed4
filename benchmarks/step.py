"""How long a step takes, as a ratio to a bare torch loop that does the same work, in one run.

    python benchmarks/step.py            # prints the table; --json for machines

Both train the warmed-up model `tiny` on the prompts of recipes/tiny.yaml: generation, scoring, advantages, update and weight
hand-over of 16 prompts x 8 responses. The bare loop (bare_loop.py) is one process. The product is the real thing: ledger, Ray
actors, Megatron-Core. They take turns, block by block, so that both meet the same machine; medians are compared.

Also printed: what a Flyte stage costs locally beyond its body, and the peak of the memory of all processes together (PSS).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROUNDS = 6
STEPS_PER_ROUND = 8
WARM = 3
FLYTE_CALLS = 20


class Memory(threading.Thread):
    """The highest sum of the proportional set sizes of this process and all its descendants, sampled."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.done = threading.Event()

    def run(self) -> None:
        import psutil

        me = psutil.Process()
        while not self.done.wait(1.0):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except psutil.NoSuchProcess:
                    continue
            self.peak = max(self.peak, total)


def bare_steps(run: object) -> Iterator[float]:
    """Seconds of one bare step after another."""
    import bare_loop
    import torch
    from transformers import AutoModelForCausalLM

    from relax_core.cluster.run import Run
    from relax_core.rewards.grading import grade_fast

    assert isinstance(run, Run)
    config, prompts = run.config, run.prompts
    torch.set_num_threads(config.resources.threads)
    model = AutoModelForCausalLM.from_pretrained(run.base_folder, attn_implementation="eager", dtype=torch.float32)
    o = config.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=o.lr,
        betas=(o.adam_beta1, o.adam_beta2),
        eps=o.adam_eps,
        weight_decay=o.weight_decay,
        fused=True,
    )
    generator = torch.Generator().manual_seed(0)
    step = 0
    while True:
        step += 1
        rows = prompts.of_step(step)
        ids = [prompts.ids(row) for row in rows]

        def reward(prompt: int, response: list[int], rows: object = rows) -> float:
            grade = grade_fast(rows[prompt].answer, prompts.text(response))  # type: ignore[index]
            return float(grade.score or 0.0) if grade else 0.0

        start = time.perf_counter()
        bare_loop.step(
            model, optimizer, ids, config.rollout.n_samples_per_prompt, reward, max_tokens=config.rollout.max_response_len,
            eos=prompts.tokenizer.eos_token_id, pad=prompts.tokenizer.pad_token_id, generator=generator, clip_grad=o.clip_grad,
        )  # fmt: skip
        yield time.perf_counter() - start


def product_steps(run: object) -> Iterator[float]:
    """Seconds of one step of the product after another: the stages as a node calls them, ledger included."""
    from relax_core.cluster import stages
    from relax_core.cluster.run import Run

    assert isinstance(run, Run)
    policy = run.base_policy
    while True:
        start = time.perf_counter()
        policy = stages.update(stages.advantages(stages.rollout(policy)))
        yield time.perf_counter() - start


def flyte_overhead(run: object) -> float:
    """Seconds that a Flyte stage costs locally beyond its body: a stage that is done, called through Flyte and directly."""
    from relax_core.cluster import nodes
    from relax_core.cluster.run import Run
    from tasks import steps

    assert isinstance(run, Run)

    direct, flyte = [], []
    for _ in range(FLYTE_CALLS):
        start = time.perf_counter()
        nodes.rollout(run.base_policy)
        direct.append(time.perf_counter() - start)
        start = time.perf_counter()
        steps.rollout(policy=run.base_policy)
        flyte.append(time.perf_counter() - start)
    return statistics.median(flyte) - statistics.median(direct)


def measure() -> dict[str, float]:
    from relax_core import plan
    from relax_core.cluster import nodes, opening
    from relax_core.cluster.run import open_run
    from relax_core.data import prepare as data
    from relax_core.models import base
    from relax_core.refs import RunRef

    memory = Memory()
    memory.start()
    steps = WARM + ROUNDS * STEPS_PER_ROUND
    settings = {
        "rollout.num_rollout": steps + 1,
        "evaluation.eval_interval": 0,
        "checkpoint.save_interval": 10_000,
        "tracking.uri": "none",
    }
    made = plan.make("rloo", "tiny", settings)
    start = opening.open_run(made.run, data.prepare(made.data), base.prepare(made.base, made.base_source))
    run = open_run(RunRef(id=start.run))
    nodes.warm(run, start)
    bare, product = bare_steps(run), product_steps(run)
    for _ in range(WARM):
        next(bare), next(product)
    seconds: dict[str, list[float]] = {"bare": [], "product": []}
    for _ in range(ROUNDS):
        seconds["bare"] += [next(bare) for _ in range(STEPS_PER_ROUND)]
        seconds["product"] += [next(product) for _ in range(STEPS_PER_ROUND)]
    overhead = flyte_overhead(run)
    memory.done.set()
    memory.join()
    stages = {name: statistics.median([t[name] for t in run.ledger.timings() if name in t and t["step"] > WARM])
              for name in ("generate", "score", "weight_sync", "advantages", "train", "update")}  # fmt: skip
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "bare_step_seconds": medians["bare"],
        "product_step_seconds": medians["product"],
        "ratio": medians["product"] / medians["bare"],
        **{f"product_{name}_seconds": value for name, value in stages.items()},
        "flyte_stage_overhead_seconds": overhead,
        "peak_pss_gigabytes": memory.peak / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    arguments = parser.parse_args()
    from relax_core import paths

    paths.temporary().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.temporary(), prefix="benchmark-") as folder:
        os.environ["RELAX_ARTIFACTS"] = str(Path(folder))
        result = measure()
        from relax_core import cleanup

        cleanup.finish()
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        print(f"{name:34} {value:.4f}")


if __name__ == "__main__":
    main()
