"""Golden cases against this package: how far is what it computes from the right values?

A case is a mapping with `config`, `batch` and `expect`, as described in tests/parity/golden/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from relax_core.algorithms.advantages import compute_advantages, group_index
from relax_core.algorithms.objective import (
    Totals,
    loss_and_metrics,
    objective_of,
    policy_loss_per_token,
    value_loss_and_metrics,
)

BOUNDS: Mapping[torch.dtype, float] = {torch.float64: 1e-9, torch.float32: 1e-5}
"""The largest allowed difference, per dtype of the inputs."""

_TENSORS = ("logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs", "entropy", "values", "new_values")
_POISONS = (float("nan"), float("inf"), float("-inf"))


def differences(case: Mapping[str, Any], *, dtype: torch.dtype, poisoned: bool = False) -> dict[str, float]:
    """For each expected quantity the largest |got - want| / max(1, |want|); NaN where something is not a number.

    dtype: what all inputs are cast to first. poisoned: every slot outside the mask holds NaN, inf or -inf.
    """
    got = compute(case, dtype=dtype, poisoned=poisoned)
    return {name: _difference(got[name], want) for name, want in case["expect"].items()}


def compute(case: Mapping[str, Any], *, dtype: torch.dtype, poisoned: bool = False) -> dict[str, Tensor]:
    """All quantities of a case under the names of its `expect`."""
    config, batch = case["config"], case["batch"]
    mask = torch.tensor(batch["mask"], dtype=torch.bool)
    x = {name: torch.tensor(batch[name], dtype=dtype) for name in _TENSORS if name in batch}
    if poisoned:
        x = {name: _poison(values, mask) for name, values in x.items()}
    totals = Totals(responses=mask.shape[0], tokens=int(mask.sum()))

    stage = compute_advantages(
        config["estimator"],
        rewards=torch.tensor(batch["rewards"], dtype=dtype),
        groups=group_index(batch["group_ids"]),
        mask=mask,
        normalize_advantages=config["normalize_advantages"],
        std_normalization=config["std_normalization"],
        kl_coef=config["kl_coef"],
        gamma=config["gamma"],
        lambd=config["lambd"],
        old_logprobs=x["old_logprobs"],
        ref_logprobs=x["ref_logprobs"],
        values=x.get("values"),
    )
    got = {"advantages": stage.advantages}

    objective = objective_of(config["estimator"], config, max_response_len=config["max_response_len"])
    logprobs = x["logprobs"].requires_grad_()
    inputs: dict[str, Any] = {
        "logprobs": logprobs,
        "advantages": stage.advantages,
        "mask": mask,
        "old_logprobs": x["old_logprobs"],
        "ref_logprobs": x["ref_logprobs"],
        "rollout_logprobs": x["rollout_logprobs"],
        "entropy": x.get("entropy"),
    }
    got["policy_loss_per_token"] = policy_loss_per_token(objective, **inputs).detach()
    loss, metrics = loss_and_metrics(objective, totals, **inputs)
    got |= metrics
    (got["grad_logprobs"],) = torch.autograd.grad(loss, logprobs)

    if stage.returns is not None:
        new_values = x["new_values"].requires_grad_()
        value_loss, value_metrics = value_loss_and_metrics(
            totals,
            values=new_values,
            old_values=x["values"],
            returns=stage.returns,
            mask=mask,
            value_clip=config["value_clip"],
            reduction=config["reduction"],
            max_response_len=config["max_response_len"],
        )
        got["returns"] = stage.returns
        got["value_loss"] = value_metrics["critic-value_loss"]
        got["value_clipfrac"] = value_metrics["critic-value_clipfrac"]
        (got["grad_values"],) = torch.autograd.grad(value_loss, new_values)
    return got


def _poison(values: Tensor, mask: Tensor) -> Tensor:
    """values with NaN, inf and -inf in turn in the slots outside the mask."""
    poison = torch.tensor(_POISONS, dtype=values.dtype)[torch.arange(values.numel()) % len(_POISONS)]
    return torch.where(mask, values, poison.view_as(values))


def _difference(got: Tensor, want: Any) -> float:
    right = torch.tensor(want, dtype=torch.float64)
    scaled = (got.to(torch.float64) - right).abs() / right.abs().clamp(min=1)
    return float(scaled.max()) if scaled.numel() else 0.0
