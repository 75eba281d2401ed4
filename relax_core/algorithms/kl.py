"""KL estimators per token on d = lp - lp_ref, each with finite values and gradients for every finite d.

Source: J. Schulman, "Approximating KL divergence" (2020), samples drawn from the current policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

EXPONENT_LIMIT = 20.0
"""Exponents of log-prob differences stop here (e^20 = 4.9e8): beyond it the value stays and the gradient is 0."""

LOW_VAR_BOUND = 10.0


def bounded_exp(x: Tensor) -> Tensor:
    """exp(min(x, 20)); the gradient is 0 above 20."""
    return x.clamp(max=EXPONENT_LIMIT).exp()


def k1(d: Tensor) -> Tensor:
    """d: unbiased, of any sign. As a loss its expected gradient is zero."""
    return d


def k2(d: Tensor) -> Tensor:
    """d^2 / 2: biased, never negative."""
    return d.square() / 2


def k3(d: Tensor) -> Tensor:
    """exp(-d) - 1 + d: unbiased, never negative. d below -20 is taken as -20."""
    d = d.clamp(min=-EXPONENT_LIMIT)
    return torch.expm1(-d) + d


def _unbounded(kl: Tensor) -> Tensor:
    return kl


def _low_var(kl: Tensor) -> Tensor:
    return kl.clamp(-LOW_VAR_BOUND, LOW_VAR_BOUND)


_ESTIMATORS: Mapping[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "k1": (k1, _unbounded),
    "k2": (k2, _unbounded),
    "k3": (k3, _unbounded),
    "low_var_kl": (k3, _low_var),
}


def kl_estimate(kl_type: str, logprobs: Tensor, ref_logprobs: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """The estimator named `kl_type` per token, in the shape of `logprobs`.

    weight: the importance weight exp(lp - lp_old) of the unbiased form, not detached; the bound of low_var_kl comes
    after it. ValueError: an unknown name.
    """
    if kl_type not in _ESTIMATORS:
        raise ValueError(f"kl_loss_type is {kl_type!r}: it must be one of {', '.join(_ESTIMATORS)}")
    estimator, bound = _ESTIMATORS[kl_type]
    kl = estimator(logprobs - ref_logprobs)
    return bound(kl if weight is None else weight * kl)
