"""What the tests of this folder run inside the spawned process, and the batch that both sides use."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from relax_core.algorithms.objective import objective_of
from relax_core.training.trainer import FrozenPolicy, MegatronTrainer
from relax_core.training.types import OptimizerSpec, TrainBatch, TrainerSpec

OPTIMIZER = OptimizerSpec(
    lr=1e-2,
    min_lr=1e-3,
    lr_warmup_iters=2,
    lr_decay_style="cosine",
    total_steps=10,
    weight_decay=0.1,
    adam_beta1=0.9,
    adam_beta2=0.95,
    adam_eps=1e-4,
    clip_grad=1.0,
)
SPEC = TrainerSpec(optimizer=OPTIMIZER, micro_batch_size=7, threads=1, seed=1)


def make_batch(seed: int = 0) -> TrainBatch:
    """Five prompts with 1 to 5 responses each, 12 in all: shared and unshared prompts, holes, an empty and a masked one."""
    rng = np.random.default_rng(seed)
    prompts, responses, masks = [], [], []
    for group, size in enumerate((3, 1, 5, 2, 1)):
        prompt = rng.integers(0, 37, rng.integers(1, 9))
        for sample in range(size):
            length = 0 if (group, sample) == (2, 1) else int(rng.integers(1, 8))
            mask = rng.random(length) < 0.8
            if (group, sample) == (3, 0):
                mask[:] = False
            prompts.append(prompt)
            responses.append(rng.integers(0, 37, length))
            masks.append(mask)

    def values() -> list[np.ndarray]:
        return [np.where(mask, -2 + rng.normal(size=len(mask)), np.nan) for mask in masks]

    return TrainBatch(
        prompt_ids=prompts,
        response_ids=responses,
        masks=masks,
        advantages=values(),
        rollout_log_probs=values(),
        old_log_probs=values(),
        ref_log_probs=values(),
    )


def rloo_batch(seed: int = 0) -> TrainBatch:
    return replace(make_batch(seed), old_log_probs=None, ref_log_probs=None)


def log_probs(folder: Path, batch: TrainBatch, temperature: float, spec: TrainerSpec = SPEC) -> list[np.ndarray]:
    return MegatronTrainer(folder, spec).log_probs(batch.prompt_ids, batch.response_ids, temperature)


def frozen_log_probs(folder: Path, batch: TrainBatch, temperature: float) -> list[np.ndarray]:
    policy = FrozenPolicy(folder, micro_batch_size=7, dtype="float32", threads=1, seed=1)
    return policy.log_probs(batch.prompt_ids, batch.response_ids, temperature)


def log_probs_flash(folder: Path, batch: TrainBatch) -> list[np.ndarray]:
    """With torch's flash kernel, which longer sequences take."""
    trainer = MegatronTrainer(folder, SPEC)
    from relax_core.training import layers

    short = layers.SHORT
    layers.SHORT = 0
    try:
        return trainer.log_probs(batch.prompt_ids, batch.response_ids, 1.0)
    finally:
        layers.SHORT = short


def round_trip(folder: Path) -> dict[str, Any]:
    trainer = MegatronTrainer(folder, SPEC)
    return {name: weight.numpy() for name, weight in trainer.weights().items()}


def train(
    folder: Path,
    batches: list[TrainBatch],
    estimator: str,
    settings: dict[str, Any],
    temperature: float,
    spec: TrainerSpec = SPEC,
) -> tuple[list[dict[str, float]], dict[str, Any], str]:
    """Metrics of each update, the weights after the last (float32), their digest."""
    trainer = MegatronTrainer(folder, spec)
    objective = objective_of(estimator, settings, max_response_len=8)
    metrics = [trainer.update(batch, objective, temperature) for batch in batches]
    return metrics, {name: w.float().numpy() for name, w in trainer.weights().items()}, trainer.digest()


def learning_rates(folder: Path, spec: TrainerSpec, steps: int) -> list[float]:
    trainer = MegatronTrainer(folder, spec)
    objective, batch = objective_of("rloo", {}), rloo_batch()
    return [trainer.update(batch, objective, 1.0)["lr"] for _ in range(steps)]


def weight_decays(folder: Path) -> dict[str, float]:
    """Weight decay per Megatron parameter, as the optimizer has it after an update."""
    trainer = MegatronTrainer(folder, SPEC)
    trainer.update(rloo_batch(), objective_of("rloo", {}), 1.0)
    names = {id(p): name for name, p in trainer.policy.bare.named_parameters()}
    groups = trainer.policy.optimizer.megatron.param_groups
    return {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}


def skipped(folder: Path, batch: TrainBatch) -> dict[str, Any]:
    """An update, one with `batch` that must change nothing, another update; and the same two without it."""
    objective = objective_of("rloo", {})
    with_it, without = MegatronTrainer(folder, SPEC), MegatronTrainer(folder, SPEC)
    for trainer in (with_it, without):
        trainer.update(rloo_batch(), objective, 1.0)
    before = with_it.digest()
    metrics = with_it.update(batch, objective, 1.0)
    after = with_it.digest()
    last = [trainer.update(rloo_batch(1), objective, 1.0) for trainer in (with_it, without)]
    return {
        "metrics": metrics,
        "unchanged": before == after,
        "last": last,
        "digests": (with_it.digest(), without.digest()),
    }


def save_and_continue(folder: Path, root: Path, spec: TrainerSpec = SPEC) -> dict[str, Any]:
    """Two updates, a save, two more; and the same two by another trainer that loaded."""
    from relax_core.training import checkpoint

    objective = objective_of("rloo", {})
    first = MegatronTrainer(folder, spec)
    for seed in (0, 1):
        first.update(rloo_batch(seed), objective, 1.0)
    where = checkpoint.folder_of(root, 2)
    checkpoint.write_checkpoint(where, first, {"step": 2, "digest": first.digest(), "cursor": [3, 4]})
    saved = first.digest()
    second = MegatronTrainer(folder, spec)
    second.update(rloo_batch(5), objective, 1.0)  # loading replaces whatever a trainer has been through
    second.load(where / "trainer")
    loaded = second.digest()
    losses = [[t.update(rloo_batch(seed), objective, 1.0)["loss"] for seed in (2, 3)] for t in (first, second)]
    return {"saved": saved, "loaded": loaded, "losses": losses, "digests": (first.digest(), second.digest())}


def shim_state() -> dict[str, bool]:
    import torch

    from relax_core.training import cpu_shim

    return {
        "installed": cpu_shim.installed(),
        "compiles": torch.compile.__module__ == "torch",
        "transformers": "transformers" in sys.modules,
    }


def thread_conflict(folder: Path) -> str:
    from relax_core.errors import RunError

    try:
        MegatronTrainer(folder, replace(SPEC, threads=2))
    except RunError as error:
        return str(error)
    return "no error"


def spec_error(folder: Path, **changes: Any) -> str:
    from relax_core.errors import UserError

    optimizer = replace(OPTIMIZER, **{k: v for k, v in changes.items() if hasattr(OPTIMIZER, k)})
    trainer = {k: v for k, v in changes.items() if not hasattr(OPTIMIZER, k)}
    try:
        MegatronTrainer(folder, replace(SPEC, optimizer=optimizer, **trainer))
    except UserError as error:
        return str(error)
    return "no error"
