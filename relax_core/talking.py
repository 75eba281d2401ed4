"""Talk to a policy: of a run, or of any Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relax_core.errors import UserError
from relax_core.refs import RunRef
from relax_core.rollout.types import Request, Sampling


def sample(policy: str, prompt: str, *, n: int, temperature: float, max_tokens: int, seed: int) -> list[dict[str, Any]]:
    """`n` replies of a policy to a prompt, each with its status. UserError: there is no such policy."""
    from transformers import AutoTokenizer

    from relax_core.rollout.prompts import decode, render
    from relax_core.rollout.seeds import sample_seed
    from relax_core.rollout.transformers_engine import TransformersEngine

    folder, template, arguments = find(policy)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    before, _, after = template.partition("{question}")
    ids = tuple(render(tokenizer, f"{before}{prompt}{after}", arguments))
    engine = TransformersEngine(threads=1)
    engine.load(folder, 0)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    requests = [
        Request(
            row=prompt, group=prompt, index=i, prompt_ids=ids, seed=sample_seed(seed, 0, prompt, i), sampling=sampling
        )
        for i in range(n)
    ]
    found = sorted(engine.generate(requests), key=lambda s: s.index)
    return [{"text": decode(tokenizer, s.ids), "status": s.status.value, "tokens": len(s.ids)} for s in found]


def find(policy: str) -> tuple[Path, str, dict[str, Any]]:
    """The folder of a policy, its prompt template, and the arguments of its chat template."""
    if (Path(policy) / "config.json").is_file():
        return Path(policy), "{question}", {}
    from relax_core.cluster.run import open_run
    from relax_core.training import checkpoint

    name, _, step = policy.partition("@")
    run = open_run(RunRef(id=name))
    saved = {0: run.base_folder} | {s: folder / "hf" for s, folder in checkpoint.complete_checkpoints(run.checkpoints)}
    wanted = int(step) if step.isdigit() else max(saved)
    if wanted not in saved:
        raise UserError(
            f"{policy}: run {name} has no stored policy after step {step}; stored are "
            f"{', '.join(map(str, sorted(saved)))} (0: the base model)"
        )
    return saved[wanted], run.config.data.prompt_template, run.config.rollout.chat_template
