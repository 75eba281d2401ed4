from __future__ import annotations

import pytest
import torch

from relax_core.algorithms.scan import discounted_suffix_sum


def by_hand(x: torch.Tensor, discount: float) -> torch.Tensor:
    """The recursion as it is written down, slot by slot."""
    out = torch.zeros(x.shape[0], x.shape[1] + 1, dtype=torch.float64)
    for t in reversed(range(x.shape[1])):
        out[:, t] = x[:, t] + discount * out[:, t + 1]
    return out[:, :-1]


def test_literal() -> None:
    # 4; 3 + 4/2 = 5; 2 + 5/2 = 4.5; 1 + 4.5/2 = 3.25; 0 + 3.25/2 = 1.625
    x = torch.tensor([[0.0, 1, 2, 3, 4]])
    assert discounted_suffix_sum(x, 0.5).tolist() == [[1.625, 3.25, 4.5, 5, 4]]


@pytest.mark.parametrize("discount", [0.0, 0.3, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("T", [1, 2, 3, 4, 5, 9, 10, 16, 17, 100, 257])
def test_equals_the_recursion_at_every_length(T: int, discount: float) -> None:
    x = torch.randn(3, T, dtype=torch.float64, generator=torch.Generator().manual_seed(T))
    torch.testing.assert_close(discounted_suffix_sum(x, discount), by_hand(x, discount), rtol=1e-12, atol=1e-12)


def test_discount_1_and_0() -> None:
    x = torch.arange(1.0, 8).unsqueeze(0)
    assert discounted_suffix_sum(x, 1.0).tolist() == [[28, 27, 25, 22, 18, 13, 7]]
    assert discounted_suffix_sum(x, 0.0).tolist() == x.tolist()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing(shape: tuple[int, int]) -> None:
    assert discounted_suffix_sum(torch.zeros(shape), 0.9).shape == shape


def test_input_stays() -> None:
    x = torch.ones(2, 5, dtype=torch.float64)
    discounted_suffix_sum(x, 0.5)
    assert x.eq(1).all()
