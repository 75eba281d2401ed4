"""Normalisation of advantages over all valid tokens, in two passes in float64.

Where the tokens lie on several ranks, `across` combines a float64 tensor over them, in place of a collective that this
module must not know: `across(x, "sum")` and `across(x, "max")`, elementwise. A rank without a valid token takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from relax_core.algorithms.masking import masked_count, masked_min, masked_sum, select

Across = Callable[[Tensor, Literal["sum", "max"]], Tensor]

VARIANCE_FLOOR = 1e-8


def one_rank(x: Tensor, op: Literal["sum", "max"]) -> Tensor:
    """`across` where all tokens are here."""
    return x


class _Centred(NamedTuple):
    """x - mean over all ranks, 0 outside the mask; the sum of its squares and the number of tokens, over all ranks."""

    values: Tensor
    squares: Tensor
    tokens: Tensor


def _centre(x_BT: Tensor, mask_BT: Tensor, across: Across) -> _Centred:
    # Measured from the smallest value: a constant becomes exactly 0, and a large offset costs no digits.
    x_BT = x_BT.to(torch.float64)
    shifted_BT = x_BT + across(-masked_min(x_BT, mask_BT), "max")
    here = torch.stack([masked_sum(shifted_BT, mask_BT, dim=None), masked_count(mask_BT, dim=None).to(torch.float64)])
    total, tokens = across(here, "sum").unbind()
    values = select(shifted_BT - total / tokens.clamp(min=1), mask_BT)
    return _Centred(values, across(values.square().sum(), "sum"), tokens)


def normalise_tokens(x_BT: Tensor, mask_BT: Tensor, *, across: Across = one_rank) -> Tensor:
    """(x - mean) / sqrt(max(var, 1e-8)), ddof 0, 0 outside the mask: [B, T], float64.

    Source: REINFORCE++, arXiv 2501.03262.
    """
    centred = _centre(x_BT, mask_BT, across)
    var = centred.squares / centred.tokens.clamp(min=1)
    return centred.values / var.clamp(min=VARIANCE_FLOOR).sqrt()


def whiten(x_BT: Tensor, mask_BT: Tensor, *, across: Across = one_rank) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8), ddof 1, 0 outside the mask: [B, T], float64."""
    centred = _centre(x_BT, mask_BT, across)
    var = centred.squares / (centred.tokens - 1).clamp(min=1)
    return centred.values / (var + VARIANCE_FLOOR).sqrt()


NORMALISATIONS: Mapping[str, Callable[..., Tensor]] = {"tokens": normalise_tokens, "whiten": whiten}
"""By the name that the table of algorithms uses."""
