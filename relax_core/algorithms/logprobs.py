"""Log-probs and entropy of the full softmax of logits / temperature, the same for the trainer and the engine."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_core.algorithms.masking import at_least_float32


def log_probs_and_entropy(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(log-prob of each target, entropy of each distribution) in nats, both in the shape of `targets`.

    logits [..., V], -inf for a token that cannot be drawn; targets [...] int64; temperature > 0. At least float32,
    whatever the dtype of the logits, which are not overwritten. ValueError: a temperature that is not above 0 (greedy
    replies are scored at temperature 1).
    """
    log_p = _log_softmax(logits, temperature)
    # 0 log 0 = 0; selected before the product, so that the gradient is finite too.
    entropy = -(log_p.exp() * torch.where(log_p > -torch.inf, log_p, 0.0)).sum(-1)
    return _gather(log_p, targets), entropy


def log_probs(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """The first result of `log_probs_and_entropy` alone, for log-probs that need no entropy."""
    return _gather(_log_softmax(logits, temperature), targets)


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}: it must be above 0; score greedy replies at temperature 1")
    return torch.log_softmax(at_least_float32(logits) / temperature, dim=-1)


def _gather(log_p: Tensor, targets: Tensor) -> Tensor:
    return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
