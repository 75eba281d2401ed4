from __future__ import annotations

import math
import threading

import pytest
import torch

from relax_core.algorithms.normalisation import normalise_tokens, whiten

ONES_4 = torch.ones(4, 1, dtype=torch.bool)


def column(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def test_population_spread() -> None:
    # mean 3/4; squares 1/16 * 3 + 9/16 = 12/16; / 4 = 3/16; sqrt = 0.433: 0.25 / 0.433 = 0.577, -0.75 / 0.433 = -1.732
    got = normalise_tokens(column(1, 0, 1, 1), ONES_4)
    assert got.squeeze(1).tolist() == pytest.approx([3**-0.5, -(3**0.5), 3**-0.5, 3**-0.5], rel=1e-12)


def test_whitening_uses_the_sample_spread() -> None:
    # the same squares / 3 = 1/4; sqrt(1/4 + 1e-8) = 0.50000001
    got = whiten(column(1, 0, 1, 1), ONES_4)
    assert got.squeeze(1).tolist() == pytest.approx([0.5, -1.5, 0.5, 0.5], rel=3e-8)


def test_floors() -> None:
    mask = torch.ones(2, 1, dtype=torch.bool)
    # +-5e-5: variance 2.5e-9 (ddof 0) is below 1e-8, so 5e-5 / 1e-4 = 0.5
    assert normalise_tokens(column(5e-5, -5e-5), mask).squeeze(1).tolist() == pytest.approx([0.5, -0.5], rel=1e-12)
    # +-5e-5: variance 5e-9 (ddof 1) plus 1e-8, so 5e-5 / sqrt(1.5e-8)
    want = 5e-5 / math.sqrt(1.5e-8)
    assert whiten(column(5e-5, -5e-5), mask).squeeze(1).tolist() == pytest.approx([want, -want], rel=1e-12)


@pytest.mark.parametrize("function", [normalise_tokens, whiten])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.7, 1000.7, 1e8 / 3])
def test_a_constant_becomes_exactly_zero(function, dtype: torch.dtype, value: float) -> None:  # type: ignore[no-untyped-def]
    x = torch.full((7, 3), value, dtype=dtype)
    mask = torch.ones(7, 3, dtype=torch.bool)
    mask[0, 0], x[0, 0] = False, math.nan
    assert not function(x, mask).any()


@pytest.mark.parametrize("function", [normalise_tokens, whiten])
def test_one_token_or_none_becomes_zero(function) -> None:  # type: ignore[no-untyped-def]
    mask = torch.zeros(2, 2, dtype=torch.bool)
    assert not function(torch.full((2, 2), math.nan), mask).any()
    mask[1, 0] = True
    assert not function(torch.full((2, 2), 5.0), mask).any()


@pytest.mark.parametrize("function", [normalise_tokens, whiten])
def test_mean_is_zero_spread_is_one_and_padding_is_zero(function) -> None:  # type: ignore[no-untyped-def]
    gen = torch.Generator().manual_seed(0)
    x = 3 + 2 * torch.randn(20, 15, dtype=torch.float64, generator=gen)
    mask = torch.rand(20, 15, generator=gen) > 0.4
    got = function(torch.where(mask, x, math.inf), mask)
    assert not got[~mask].any()
    assert got[mask].mean().item() == pytest.approx(0, abs=1e-12)
    assert got[mask].std(unbiased=function is whiten).item() == pytest.approx(1, abs=1e-7)


class Ranks:
    """`across` for n threads: every rank waits for the others, as a collective does."""

    def __init__(self, n: int) -> None:
        self.slots: list[torch.Tensor | None] = [None] * n
        self.barrier = threading.Barrier(n)

    def across(self, rank: int):  # type: ignore[no-untyped-def]
        def combine(x: torch.Tensor, op: str) -> torch.Tensor:
            self.slots[rank] = x
            self.barrier.wait()
            stacked = torch.stack([s for s in self.slots if s is not None])
            self.barrier.wait()
            return stacked.sum(0) if op == "sum" else stacked.amax(0)

        return combine


@pytest.mark.parametrize("function", [normalise_tokens, whiten])
@pytest.mark.parametrize("constant", [False, True])
def test_ranks_add_up_to_one(function, constant: bool) -> None:  # type: ignore[no-untyped-def]
    gen = torch.Generator().manual_seed(1)
    x = torch.full((6, 4), 0.1, dtype=torch.float64) if constant else torch.randn(6, 4, generator=gen).double()
    mask = torch.rand(6, 4, generator=gen) > 0.3
    mask[4:] = False  # the last rank has no valid token
    ranks, got = Ranks(3), [torch.empty(0)] * 3

    def run(rank: int) -> None:
        rows = slice(2 * rank, 2 * rank + 2)
        got[rank] = function(x[rows], mask[rows], across=ranks.across(rank))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(torch.cat(got), function(x, mask), rtol=1e-13, atol=1e-13)
    assert not constant or not torch.cat(got).any()
