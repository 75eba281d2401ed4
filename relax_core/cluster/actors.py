"""The roles of a run as Ray actors: the trainer and the engine. Each is named after its run.

The classes are plain; `roles` turns them into actors. Torch, Megatron and transformers are imported in the actors' own
processes only: the CPU shim of the trainer must never reach another process.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_core.refs import PolicyRef
from relax_core.rollout.types import Request, Sample

if TYPE_CHECKING:
    import torch

    from relax_core.algorithms.objective import Objective
    from relax_core.training.types import TrainBatch, TrainerSpec


class Trainer:
    """Megatron-Core with the policy of a run, at one step."""

    def __init__(self, base: PolicyRef, folder: str, spec: TrainerSpec, reference: str | None) -> None:
        from relax_core.training.trainer import FrozenPolicy, MegatronTrainer

        self._trainer = MegatronTrainer(Path(folder), spec)
        self._reference: FrozenPolicy | None = None
        if reference:
            self._reference = FrozenPolicy(
                Path(reference),
                micro_batch_size=spec.micro_batch_size,
                dtype=spec.dtype,
                threads=spec.threads,
                seed=spec.seed,
            )
        self._at = base.model_copy(update={"digest": self._trainer.digest()})

    def at(self) -> PolicyRef:
        """The policy that this actor holds."""
        return self._at

    def update(self, step: int, batch: TrainBatch, objective: Objective, temperature: float) -> dict[str, Any]:
        """One optimizer step: policy step - 1 becomes `step`. Metrics, the digest of the weights and the seconds it took."""
        start = time.perf_counter()
        if self._reference is not None:
            log_probs = self._reference.log_probs(batch.prompt_ids, batch.response_ids, temperature)
            batch = dataclasses.replace(batch, ref_log_probs=log_probs)
        metrics = self._trainer.update(batch, objective, temperature)
        seconds = time.perf_counter() - start
        self._at = self._at.model_copy(update={"step": step, "digest": self._trainer.digest()})
        return {"metrics": metrics, "weights": self._at.digest, "seconds": seconds}

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The weights by Hugging Face name, for an engine."""
        return self._trainer.weights()

    def load(self, folder: str, policy: PolicyRef) -> None:
        """Go to a checkpoint."""
        from relax_core.training import checkpoint

        checkpoint.read_state(Path(folder))  # whole, or IntegrityError
        self._trainer.load(Path(folder) / "trainer")
        self._at = policy.model_copy(update={"digest": self._trainer.digest()})

    def save(self, folder: str, state: Mapping[str, Any]) -> None:
        """Write a complete checkpoint."""
        from relax_core.training import checkpoint

        checkpoint.write_checkpoint(Path(folder), self._trainer, state)


class Engine:
    """The transformers engine with the policy of a run, at one step."""

    def __init__(self, policy: PolicyRef, folder: str, threads: int, max_running: int) -> None:
        from relax_core.rollout.transformers_engine import TransformersEngine

        self._engine = TransformersEngine(threads=threads, max_batch=max_running)
        self._run = policy.run
        self.load(folder, policy.step)

    def at(self) -> PolicyRef:
        return self._at

    def load(self, folder: str, step: int) -> None:
        """Take the weights of a Hugging Face folder."""
        from relax_core.training import hf_weights

        self._engine.load(Path(folder), step)
        self._at = PolicyRef(run=self._run, step=step, digest=hf_weights.digest(self._engine.weights()))

    def update_weights(self, step: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Take the weights that a trainer hands over."""
        from relax_core.training import hf_weights

        self._engine.update_weights(step, weights)
        self._at = PolicyRef(run=self._run, step=step, digest=hf_weights.digest(self._engine.weights()))

    def generate(self, requests: Sequence[Request]) -> tuple[list[Sample], float]:
        """Samples in the order of the requests, and the seconds it took."""
        start = time.perf_counter()
        found = {(s.row, s.group, s.index): s for s in self._engine.generate(requests)}
        return [found[r.row, r.group, r.index] for r in requests], time.perf_counter() - start
