from __future__ import annotations

import math

import pytest
import torch

from relax_core.algorithms.reduction import reduce
from relax_core.algorithms.table import REDUCTIONS

X = torch.tensor([[1.0, 2, math.nan], [6, math.inf, math.nan], [math.nan] * 3], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()


@pytest.mark.parametrize(
    ("reduction", "want"),
    [
        ("response_mean", 2.5),  # ((1 + 2) / 2 + 6 / 1 + 0) / 3
        ("token_mean", 3.0),  # (1 + 2 + 6) / 3 tokens
        ("constant", 0.3),  # 9 / (3 responses * 10)
    ],
)
def test_literals(reduction: str, want: float) -> None:
    got = reduce(X, MASK, reduction=reduction, responses=3, tokens=3, max_response_len=10)
    assert got.item() == pytest.approx(want, rel=1e-15)
    assert got.dtype == torch.float64


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_valid_token_gives_zero_with_a_zero_gradient(reduction: str) -> None:
    x = torch.full((2, 3), math.nan, requires_grad=True)
    got = reduce(x, torch.zeros(2, 3).bool(), reduction=reduction, responses=2, tokens=0, max_response_len=3)
    got.backward()
    assert got.item() == 0
    assert x.grad is not None and not x.grad.any()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_part_without_rows_is_zero(reduction: str) -> None:
    got = reduce(
        torch.zeros(0, 3), torch.zeros(0, 3).bool(), reduction=reduction, responses=4, tokens=9, max_response_len=3
    )
    assert got.item() == 0


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_bool_values_are_shares(reduction: str) -> None:
    got = reduce(
        torch.ones(2, 2).bool(), torch.ones(2, 2).bool(), reduction=reduction, responses=2, tokens=4, max_response_len=2
    )
    assert got.item() == 1


def test_errors() -> None:
    with pytest.raises(ValueError, match="reduction is 'mean': it must be one of response_mean, token_mean, constant"):
        reduce(X, MASK, reduction="mean", responses=3, tokens=3)
    for limit in (None, 0):
        with pytest.raises(ValueError, match=f"max_response_len is {limit}"):
            reduce(X, MASK, reduction="constant", responses=3, tokens=3, max_response_len=limit)
