"""The only place where masks meet sums. Values outside a mask are never looked at: a NaN or inf there changes nothing.

A mask is a bool tensor, True where a token counts. Slots are selected, not multiplied (0 * NaN is NaN), which also
makes the gradient of a masked slot exactly 0. Sums accumulate and return float64, so that they do not depend on padding
or on how a batch is cut. `dim` has no default: None is everything.
"""

from __future__ import annotations

import torch
from torch import Tensor


def select(x: Tensor, mask: Tensor) -> Tensor:
    """x where the mask is True, 0 elsewhere, in at least float32 (bfloat16 and float16 become float32)."""
    return torch.where(mask, at_least_float32(x), 0.0)


def at_least_float32(x: Tensor) -> Tensor:
    """x itself if it is float32 or float64, else x as float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def masked_sum(x: Tensor, mask: Tensor, *, dim: int | None) -> Tensor:
    """Sum of the selected values (of bool x: their number), float64. An empty mask gives 0."""
    if x.dtype == torch.bool:
        return (x & mask).sum(dim).to(torch.float64)
    return select(x, mask).sum(dim, dtype=torch.float64)


def masked_count(mask: Tensor, *, dim: int | None) -> Tensor:
    """Number of True slots, int64."""
    return mask.sum(dim)


def masked_mean(x: Tensor, mask: Tensor, *, dim: int | None) -> Tensor:
    """Mean of the selected values, float64. An empty mask gives 0."""
    return masked_sum(x, mask, dim=dim) / masked_count(mask, dim=dim).clamp(min=1)


def masked_var(x: Tensor, mask: Tensor, *, dim: int | None, ddof: int) -> Tensor:
    """Variance of the selected values in two passes, float64, over max(1, count - ddof). An empty mask gives 0."""
    mean = masked_mean(x, mask, dim=dim)
    centred = x.to(torch.float64) - (mean if dim is None else mean.unsqueeze(dim))
    return masked_sum(centred.square(), mask, dim=dim) / (masked_count(mask, dim=dim) - ddof).clamp(min=1)


def masked_min(x: Tensor, mask: Tensor) -> Tensor:
    """The smallest selected value of all, in the dtype of x. An empty mask gives inf."""
    chosen = torch.where(mask, x, torch.inf)
    return chosen.amin() if chosen.numel() else chosen.new_full((), torch.inf)
