from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms.masking import (
    masked_count,
    masked_mean,
    masked_min,
    masked_sum,
    masked_var,
    select,
)

NAN, INF = math.nan, math.inf
X = torch.tensor([[1.0, NAN, 4.0], [INF, -2.0, -INF], [NAN, NAN, NAN]])
MASK = torch.tensor([[True, False, True], [False, True, False], [False, False, False]])


def test_values_outside_the_mask_are_never_looked_at() -> None:
    assert select(X, MASK).tolist() == [[1, 0, 4], [0, -2, 0], [0, 0, 0]]
    assert masked_sum(X, MASK, dim=1).tolist() == [5, -2, 0]
    assert masked_sum(X, MASK, dim=None).item() == 3
    assert masked_count(MASK, dim=1).tolist() == [2, 1, 0]
    assert masked_mean(X, MASK, dim=1).tolist() == [2.5, -2, 0]  # an empty mask gives 0
    assert masked_mean(X, MASK, dim=None).item() == 1  # (1 + 4 - 2) / 3
    assert masked_min(X, MASK).item() == -2
    assert masked_min(X, torch.zeros_like(MASK)).item() == INF


def test_variance() -> None:
    # around 1: 0, 9, 9 -> 18 / 3 and 18 / 2
    assert masked_var(X, MASK, dim=None, ddof=0).item() == 6
    assert masked_var(X, MASK, dim=None, ddof=1).item() == 9
    # around 2.5: 2.25 + 2.25 = 4.5; one value or none has variance 0, also with ddof 1
    assert masked_var(X, MASK, dim=1, ddof=1).tolist() == [4.5, 0, 0]


def test_variance_keeps_its_digits_on_a_large_offset() -> None:
    x = torch.tensor([1e6 + 0.25, 1e6 - 0.25])  # both exact in float32; in one pass the spread drowns in 1e12
    assert masked_var(x, torch.ones(2, dtype=torch.bool), dim=None, ddof=0).item() == 0.0625


def test_gradient_of_a_masked_slot_is_exactly_zero() -> None:
    x = X.clone().requires_grad_()
    masked_mean(x.square(), MASK, dim=1).sum().backward()
    # d/dx of x^2 / 2 in row 0, of x^2 in row 1; NaN slots: grad 2 x * 0 would be NaN if x^2 were multiplied
    assert x.grad is not None
    assert x.grad[MASK].tolist() == [1, 4, -4]


def test_gradient_stops_before_what_made_the_masked_value() -> None:
    x = torch.tensor([2.0, 0.0], requires_grad=True)
    clean = select(x, torch.tensor([True, False]))
    masked_sum(1 / (clean + 1), torch.tensor([True, False]), dim=None).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [pytest.approx(-1 / 9), 0]


def test_sums_accumulate_in_float64() -> None:
    x = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24)])  # float32 loses each 1 beside 2^24
    assert masked_sum(x, torch.ones(4, dtype=torch.bool), dim=None).item() == 2
    assert masked_sum(x, torch.ones(4, dtype=torch.bool), dim=None).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.bool])
def test_at_least_float32(dtype: torch.dtype) -> None:
    assert select(torch.ones(2, dtype=dtype), torch.tensor([True, False])).dtype == torch.float32
    assert select(torch.ones(1, dtype=torch.float64), torch.tensor([True])).dtype == torch.float64


@settings(deadline=None)
@given(
    rows=st.lists(
        st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), min_size=3, max_size=3), min_size=1, max_size=5
    )
)
def test_masking_equals_deleting(rows: list[list[tuple[float, bool]]]) -> None:
    x = torch.tensor([[v for v, _ in row] for row in rows], dtype=torch.float64)
    mask = torch.tensor([[m for _, m in row] for row in rows])
    poisoned = torch.where(mask, x, NAN)
    for i in range(len(rows)):
        kept = x[i][mask[i]]
        want = kept.mean().item() if kept.numel() else 0.0
        assert masked_mean(poisoned, mask, dim=1)[i].item() == pytest.approx(want, rel=1e-12, abs=1e-9)
