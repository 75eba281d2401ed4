"""The trainer: one optimizer step per batch, log-probs, weights out. One per process (see `runtime`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from relax_core.algorithms.logprobs import log_probs, log_probs_and_entropy
from relax_core.algorithms.objective import Objective, Totals, loss_and_metrics
from relax_core.errors import UserError
from relax_core.training import architecture, hf_weights, runtime
from relax_core.training.packing import Packing, pack
from relax_core.training.types import DTYPES, LR_DECAY_STYLES, Floats, Ids, OptimizerSpec, TrainBatch, TrainerSpec

if TYPE_CHECKING:
    from relax_core.training.policy import LossFunction, Policy, Shares

log = logging.getLogger(__name__)


class MegatronTrainer:
    """A policy that learns, in this process.

    model_folder: a Hugging Face folder (config.json, safetensors, tokenizer). The first trainer of a process fixes its thread
    count and starts its process group; on a machine without CUDA it also puts the stand-ins of `cpu_shim` in place, which
    change torch for the whole process.
    """

    def __init__(self, model_folder: Path, spec: TrainerSpec) -> None:
        _refuse_broken(
            _process_rules(spec.micro_batch_size, spec.dtype, spec.threads) + _optimizer_rules(spec.optimizer)
        )
        self.spec = spec
        self.folder = model_folder
        runtime.start(threads=spec.threads, seed=spec.seed)
        self.policy = _load(model_folder, spec.dtype, spec.optimizer)

    def update(self, batch: TrainBatch, objective: Objective, temperature: float) -> dict[str, float]:
        """One optimizer step over the whole batch; the metrics of train/.

        Beside those of `loss_and_metrics`: grad_norm (before clipping), lr, tokens (valid ones), skipped_step (1: nothing
        was updated, neither weights nor optimizer nor schedule, because no token was valid or a gradient was not finite) and
        nonfinite_gradients (number of parameters with such a gradient, which a warning names).
        """
        assert self.policy.optimizer is not None
        responses = _Responses(batch, self.policy.device)
        totals = Totals(len(batch.response_ids), responses.tokens)
        micro_batches = list(self._micro_batches(responses, objective, totals, temperature))
        if not micro_batches:
            return {**_nothing(objective, totals), "lr": self.policy.optimizer.lr}
        shares = self.policy.backward(micro_batches)
        norm, updated = self.policy.optimizer.step()
        bad = [] if updated else self.policy.bad_gradients()
        if bad:
            log.warning("no update: the gradient of %s is not finite", ", ".join(bad))
        return {
            **{name: float(sum(share[name] for share in shares)) for name in shares[0]},
            "grad_norm": norm,
            "lr": self.policy.optimizer.lr,
            "tokens": float(totals.tokens),
            "skipped_step": float(not updated),
            "nonfinite_gradients": float(len(bad)),
        }

    def _micro_batches(
        self, responses: _Responses, objective: Objective, totals: Totals, temperature: float
    ) -> Iterator[tuple[Packing, LossFunction]]:
        for start in range(0, totals.responses, self.spec.micro_batch_size):
            part = slice(start, start + self.spec.micro_batch_size)
            packing = responses.pack(part)
            if packing is not None:
                yield packing, _Loss(objective, totals, temperature, packing, responses.tensors(part))

    def log_probs(self, prompt_ids: Sequence[Ids], response_ids: Sequence[Ids], temperature: float) -> list[np.ndarray]:
        """Per response the log-probs of its tokens, of the full softmax of logits / temperature: float32, nats."""
        return _log_probs(self.policy, prompt_ids, response_ids, temperature, self.spec.micro_batch_size)

    def weights(self) -> dict[str, Tensor]:
        """The weights by Hugging Face name, on the CPU, as tensors of their own: later updates do not change them."""
        return self.policy.weights()

    def digest(self) -> str:
        """sha256 over names, shapes, dtypes and bytes of the weights."""
        return hf_weights.digest(self.weights())

    def save(self, folder: Path) -> None:
        """Weights, optimizer, schedule and random states into `folder`, in Megatron's distributed format."""
        from relax_core.training import sharded

        sharded.save(folder, self.policy)

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote; the updates that follow are those of the trainer that saved, bit for bit."""
        from relax_core.training import sharded

        sharded.load(folder, self.policy)

    def save_hf(self, folder: Path) -> None:
        """Write a Hugging Face folder: the weights, and everything else as the base model has it."""
        hf_weights.write(folder, self.weights(), self.folder)


class FrozenPolicy:
    """A policy that only gives log-probs: the reference of a KL. In the process of a trainer, or alone."""

    def __init__(self, model_folder: Path, *, micro_batch_size: int, dtype: str, threads: int, seed: int) -> None:
        _refuse_broken(_process_rules(micro_batch_size, dtype, threads))
        self.micro_batch_size = micro_batch_size
        runtime.start(threads=threads, seed=seed)
        self.policy = _load(model_folder, dtype, None)

    def log_probs(self, prompt_ids: Sequence[Ids], response_ids: Sequence[Ids], temperature: float) -> list[np.ndarray]:
        """As `MegatronTrainer.log_probs`."""
        return _log_probs(self.policy, prompt_ids, response_ids, temperature, self.micro_batch_size)


def _load(folder: Path, dtype: str, optimizer: OptimizerSpec | None) -> Policy:
    from relax_core.training.policy import Policy  # Megatron must not be imported before runtime.start

    return Policy(architecture.read(folder), hf_weights.read(folder), dtype=getattr(torch, dtype), optimizer=optimizer)


Rules = list[tuple[bool, str]]


def _process_rules(micro_batch_size: int, dtype: str, threads: int) -> Rules:
    return [
        (micro_batch_size >= 1, f"micro_batch_size is {micro_batch_size}: it must be at least 1"),
        (dtype in DTYPES, f"dtype is {dtype!r}: it must be one of {', '.join(DTYPES)}"),
        (threads >= 1, f"threads is {threads}: it must be at least 1"),
    ]


def _optimizer_rules(o: OptimizerSpec) -> Rules:
    styles = ", ".join(LR_DECAY_STYLES)
    return [
        (o.lr_decay_style in LR_DECAY_STYLES, f"lr_decay_style is {o.lr_decay_style!r}: it must be one of {styles}"),
        (0 <= o.min_lr <= o.lr, f"min_lr is {o.min_lr}: it must be at least 0 and at most lr, {o.lr}"),
        (o.lr_warmup_iters >= 0, f"lr_warmup_iters is {o.lr_warmup_iters}: it must be at least 0"),
        (o.total_steps >= 1, f"total_steps is {o.total_steps}: it must be at least 1"),
        (o.weight_decay >= 0, f"weight_decay is {o.weight_decay}: it must be at least 0"),
        (o.clip_grad >= 0, f"clip_grad is {o.clip_grad}: it must be at least 0 (0 is off)"),
    ]


def _refuse_broken(rules: Rules) -> None:
    """UserError with the message of every rule that does not hold."""
    if broken := [message for holds, message in rules if not holds]:
        raise UserError("\n".join(broken))


class _Responses:
    """A batch as arrays: ids as they are, everything per token as [B, T] with T the longest response."""

    def __init__(self, batch: TrainBatch, device: torch.device) -> None:
        self.device = device
        self.prompts = [np.asarray(ids, dtype=np.int64) for ids in batch.prompt_ids]
        self.responses = [np.asarray(ids, dtype=np.int64) for ids in batch.response_ids]
        self.masks = [np.asarray(mask, dtype=bool) for mask in batch.masks]
        self.tokens = int(sum(mask.sum() for mask in self.masks))
        self._values = {
            "advantages": batch.advantages,
            "rollout_logprobs": batch.rollout_log_probs,
            "old_logprobs": batch.old_log_probs,
            "ref_logprobs": batch.ref_log_probs,
        }
        self._check()

    def _check(self) -> None:
        given = {
            "response_ids": self.responses,
            "masks": self.masks,
            **{k: v for k, v in self._values.items() if v is not None},
        }
        for name, rows in given.items():
            if len(rows) != len(self.prompts):
                raise UserError(f"{name} has {len(rows)} entries for {len(self.prompts)} prompts: one per response")
            for i, (row, response) in enumerate(zip(rows, self.responses, strict=True)):
                if len(row) != len(response):
                    raise UserError(f"{name}[{i}] has {len(row)} values for {len(response)} response tokens")
        for i, prompt in enumerate(self.prompts):
            if len(prompt) == 0:
                raise UserError(f"prompt_ids[{i}] is empty: the first response token needs something before it")

    def pack(self, part: slice) -> Packing | None:
        return pack(self.prompts[part], self.responses[part], self.masks[part], self.device)

    def tensors(self, part: slice) -> dict[str, Tensor]:
        """mask (bool) and the values of the responses of a part, [B, T], 0 where a response has ended."""
        length = max(len(response) for response in self.responses[part])
        out = {"mask": _rectangle(self.masks[part], length, np.bool_)}
        for name, rows in self._values.items():
            if rows is not None:
                out[name] = _rectangle(rows[part], length, np.float32)
        return {name: torch.from_numpy(x).to(self.device) for name, x in out.items()}


def _rectangle(rows: Sequence[Floats], length: int, dtype: Any) -> np.ndarray:
    out = np.zeros((len(rows), length), dtype=dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


@dataclass(frozen=True, slots=True)
class _Loss:
    """Logits [M, V] of a micro-batch -> its shares of the loss and the metrics."""

    objective: Objective
    totals: Totals
    temperature: float
    packing: Packing
    tensors: dict[str, Tensor]

    def __call__(self, logits: Tensor) -> Shares:
        packing = self.packing
        if self.objective.entropy_coef != 0:
            flat, entropy = log_probs_and_entropy(logits, packing.targets, self.temperature)
            extra = {"entropy": self._place(entropy)}
        else:  # an entropy that nobody asked for would cost another pass over the logits
            flat, extra = log_probs(logits, packing.targets, self.temperature), {}
        return loss_and_metrics(self.objective, self.totals, logprobs=self._place(flat), **self.tensors, **extra)

    def _place(self, flat: Tensor) -> Tensor:
        """[M] at its places in [B, T]."""
        out = flat.new_zeros(self.tensors["mask"].shape)
        return out.index_put((self.packing.rows, self.packing.columns), flat)


def _nothing(objective: Objective, totals: Totals) -> dict[str, float]:
    """The metrics of a step without a valid token: every reduced value is 0."""
    mask = torch.zeros((1, 1), dtype=torch.bool)
    zero = torch.zeros((1, 1))
    _, metrics = loss_and_metrics(
        objective,
        totals,
        logprobs=zero,
        mask=mask,
        advantages=zero,
        rollout_logprobs=zero,
        ref_logprobs=zero if objective.use_kl_loss else None,
        entropy=zero if objective.entropy_coef != 0 else None,
    )
    log.warning("no update: none of the %d responses has a valid token", totals.responses)
    extra = {"grad_norm": 0.0, "tokens": 0.0, "skipped_step": 1.0, "nonfinite_gradients": 0.0}
    return {**{name: float(x) for name, x in metrics.items()}, **extra}


def _log_probs(
    policy: Policy,
    prompt_ids: Sequence[Ids],
    response_ids: Sequence[Ids],
    temperature: float,
    micro_batch_size: int,
) -> list[np.ndarray]:
    prompts = [np.asarray(ids, dtype=np.int64) for ids in prompt_ids]
    responses = [np.asarray(ids, dtype=np.int64) for ids in response_ids]
    out: list[np.ndarray] = []
    for start in range(0, len(responses), micro_batch_size):
        part = slice(start, start + micro_batch_size)
        wanted = [np.ones(len(response), dtype=bool) for response in responses[part]]
        packing = pack(prompts[part], responses[part], wanted, policy.device)
        if packing is None:  # all of them are empty
            out += [np.zeros(0, dtype=np.float32) for _ in wanted]
            continue
        flat = log_probs(policy.logits(packing), packing.targets, temperature).cpu().numpy()
        placed = np.zeros((len(wanted), max(map(len, wanted))), dtype=np.float32)
        placed[packing.rows.cpu().numpy(), packing.columns.cpu().numpy()] = flat
        out += [row[: len(w)] for row, w in zip(placed, wanted, strict=True)]
    return out
