from __future__ import annotations

import math

import pytest
import torch

from relax_core.algorithms.kl import bounded_exp, k1, k2, k3, kl_estimate
from relax_core.algorithms.table import KL_TYPES


def value_and_gradient(kl_type: str, d: float, dtype: torch.dtype = torch.float64) -> tuple[float, float]:
    lp = torch.tensor([d], dtype=dtype, requires_grad=True)
    kl = kl_estimate(kl_type, lp, torch.zeros(1, dtype=dtype))
    kl.sum().backward()
    assert lp.grad is not None
    return kl.item(), lp.grad.item()


@pytest.mark.parametrize(
    ("kl_type", "d", "value", "gradient"),
    [
        ("k1", -0.5, -0.5, 1.0),
        ("k2", -0.5, 0.125, -0.5),
        ("k3", -0.5, math.exp(0.5) - 1.5, 1 - math.exp(0.5)),  # e^-d - 1 + d, 1 - e^-d
        ("k3", 0.5, math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)),
        ("k3", 0.0, 0.0, 0.0),
        ("low_var_kl", 0.5, math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)),
        ("low_var_kl", -3.0, 10.0, 0.0),  # e^3 - 4 = 16.1, cut to 10
        ("low_var_kl", 12.0, 10.0, 0.0),  # e^-12 + 11
        ("k3", -21.0, math.exp(20) - 21, 0.0),  # taken as d = -20
        ("k3", 1e4, 1e4 - 1, 1.0),
        ("k2", -1e4, 5e7, -1e4),
    ],
)
def test_literals(kl_type: str, d: float, value: float, gradient: float) -> None:
    got = value_and_gradient(kl_type, d)
    assert got == (pytest.approx(value, rel=1e-12), pytest.approx(gradient, rel=1e-12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [-1e4, -100.0, -20.0, -1e-8, 0.0, 1e-8, 20.0, 100.0, 1e4])
@pytest.mark.parametrize("kl_type", KL_TYPES)
def test_finite_for_every_finite_input(kl_type: str, d: float, dtype: torch.dtype) -> None:
    assert all(math.isfinite(x) for x in value_and_gradient(kl_type, d, dtype))


def test_k3_keeps_small_values_in_float32() -> None:
    # d = 1e-3: k3 = d^2 / 2 - d^3 / 6 = 4.9983e-7; exp(-d) - 1 + d loses it to rounding at 6e-8
    assert k3(torch.tensor(1e-3)).item() == pytest.approx(4.9983e-7, rel=2e-4)


def test_k2_and_k3_are_never_negative_and_k1_and_k3_have_the_mean_of_the_kl() -> None:
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    d = p.log() - q.log()
    kl = (p * d).sum().item()
    assert (p * k1(d)).sum().item() == pytest.approx(kl, rel=1e-12)
    assert (p * k3(d)).sum().item() == pytest.approx(kl, rel=1e-12)
    assert (k2(d) >= 0).all() and (k3(d) >= 0).all()


def test_the_bound_comes_after_the_weight() -> None:
    lp = torch.tensor([-3.0], dtype=torch.float64)  # k3 = e^3 - 4 = 16.09
    weight = torch.tensor([0.5], dtype=torch.float64)
    # 0.5 * 16.09 = 8.04 stays below 10; cut first it would be 5
    assert kl_estimate("low_var_kl", lp, lp * 0, weight=weight).item() == pytest.approx((math.exp(3) - 4) / 2)


def test_bounded_exp() -> None:
    x = torch.tensor([1.0, 20, 20.5, 1e4], dtype=torch.float64, requires_grad=True)
    y = bounded_exp(x)
    y.sum().backward()
    e20 = math.exp(20)
    assert y.tolist() == pytest.approx([math.e, e20, e20, e20])
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([math.e, e20, 0, 0])


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match="kl_loss_type is 'k4': it must be one of k1, k2, k3, low_var_kl"):
        kl_estimate("k4", torch.zeros(1), torch.zeros(1))
