"""Recursions over time without a loop over time steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def discounted_suffix_sum(x_BT: Tensor, discount: float) -> Tensor:
    """y[i, t] = x[i, t] + discount * y[i, t + 1], with y = 0 after the last slot: [B, T], float64.

    discount in [0, 1]. Two levels of chunks of about sqrt(T) slots, each level one product with a triangular matrix of
    powers of the discount: B T sqrt(T) multiplications, and no power is ever divided by, so nothing overflows.
    """
    B, T = x_BT.shape
    x_BT = x_BT.to(torch.float64)
    if T == 0:
        return x_BT
    C = math.isqrt(T - 1) + 1  # chunk length; K = ceil(T / C) chunks
    K = -(-T // C)
    padded = torch.nn.functional.pad(x_BT, (0, K * C - T))
    within_BKC = (padded.view(B * K, C) @ _suffix_powers(C, discount, x_BT)).view(B, K, C)
    # What arrives from the right of chunk k: the sums at the heads of the later chunks, discounted over whole chunks.
    heads_BK = within_BKC[:, :, 0]
    carry_BK = torch.nn.functional.pad(heads_BK[:, 1:] @ _suffix_powers(K, discount**C, x_BT)[1:, 1:], (0, 1))
    decay_C = _powers(C, discount, x_BT).flip(0) * discount  # slot c is C - c steps before the next chunk's head
    y_BKC = within_BKC + carry_BK.unsqueeze(2) * decay_C
    return y_BKC.reshape(B, K * C)[:, :T]


def _powers(n: int, base: float, like: Tensor) -> Tensor:
    """[1, base, base^2, ...]: n values, 0^0 = 1."""
    return torch.pow(torch.full((), base, dtype=like.dtype, device=like.device), torch.arange(n, device=like.device))


def _suffix_powers(n: int, base: float, like: Tensor) -> Tensor:
    """M[s, t] = base^(s - t) for s >= t, else 0, so that (x @ M)[t] = sum over s >= t of base^(s - t) x[s]."""
    steps = torch.arange(n, device=like.device)
    exponent = steps.unsqueeze(1) - steps.unsqueeze(0)
    return torch.where(exponent >= 0, _powers(n, base, like)[exponent.clamp(min=0)], 0.0)
