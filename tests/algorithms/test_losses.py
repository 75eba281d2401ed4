from __future__ import annotations

import math

import pytest
import torch

from relax_core.algorithms import losses

E20 = math.exp(20)


def f64(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def gradient(loss: torch.Tensor, x: torch.Tensor) -> list[float]:
    return torch.autograd.grad(loss.sum(), x)[0].tolist()


# --- reinforce


def test_reinforce() -> None:
    lp = f64(-1, -2, grad=True)
    got = losses.reinforce(lp, f64(2, -3))
    assert got.loss.tolist() == [2, -6]  # -2 * -1, 3 * -2
    assert gradient(got.loss, lp) == [-2, 3]
    assert not got.clipped.any()


# --- ppo


CLIP = {"eps_clip": 0.2, "eps_clip_high": 0.2, "eps_clip_c": None}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope", "clipped"),
    [
        (1.1, 1, -1.1, -1.1, False),  # inside the band: -rho A, d/d log rho = -rho A
        (1.5, 1, -1.2, 0.0, True),  # the clip takes away the gain
        (0.5, 1, -0.5, -0.5, False),  # a worse ratio stays as it is
        (1.5, -1, 1.5, 1.5, False),
        (0.5, -1, 0.8, 0.0, True),
        (1.5, 0, 0.0, 0.0, False),
    ],
)
def test_ppo_clip(ratio: float, advantage: float, loss: float, slope: float, clipped: bool) -> None:
    log_ratio = f64(math.log(ratio), grad=True)
    got = losses.ppo_clip(log_ratio, f64(advantage), **CLIP)
    assert got.loss.item() == pytest.approx(loss, rel=1e-14)
    assert gradient(got.loss, log_ratio) == [pytest.approx(slope, rel=1e-14)]
    assert got.clipped.tolist() == [clipped]


def test_clip_higher_moves_only_the_upper_side() -> None:
    log_ratio = f64(*(math.log(r) for r in (1.25, 1.5, 0.5)))
    got = losses.ppo_clip(log_ratio, f64(1, 1, -1), eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=None)
    assert got.loss.tolist() == pytest.approx([-1.25, -1.28, 0.8])
    assert got.clipped.tolist() == [False, True, True]


def test_dual_clip_holds_inside_the_band_too_and_has_no_gradient() -> None:
    # A = -1, c = 1.05: rho 1.1 costs 1.1 without the bound, 1.05 with it; rho 1.02 stays; A = 1 is not touched
    log_ratio = f64(*(math.log(r) for r in (1.1, 1.02, 1.1)), grad=True)
    got = losses.ppo_clip(log_ratio, f64(-1, -1, 1), eps_clip=0.2, eps_clip_high=0.2, eps_clip_c=1.05)
    assert got.loss.tolist() == pytest.approx([1.05, 1.02, -1.1])
    assert gradient(got.loss, log_ratio) == pytest.approx([0, 1.02, -1.1])
    assert not got.clipped.any()


def test_equal_bounds_equal_the_symmetric_form_and_wide_ones_the_plain_ratio() -> None:
    gen = torch.Generator().manual_seed(0)
    log_ratio = torch.randn(200, dtype=torch.float64, generator=gen)
    advantages = torch.randn(200, dtype=torch.float64, generator=gen)
    rho = log_ratio.exp()
    symmetric = -torch.minimum(rho * advantages, rho.clamp(0.8, 1.2) * advantages)
    torch.testing.assert_close(losses.ppo_clip(log_ratio, advantages, **CLIP).loss, symmetric)
    wide = losses.ppo_clip(log_ratio, advantages, eps_clip=1e9, eps_clip_high=1e9, eps_clip_c=None)
    torch.testing.assert_close(wide.loss, -rho * advantages)
    assert not wide.clipped.any()


def test_ratio_one_has_the_gradient_of_reinforce() -> None:
    advantages = f64(1, -2, 0.5)
    want = (-advantages).tolist()
    for function in (
        lambda x: losses.ppo_clip(x, advantages, **CLIP).loss,
        lambda x: losses.sapo(x, advantages, tau_pos=1.0, tau_neg=1.05).loss,
        lambda x: losses.cispo(x, x, advantages, eps_clip=0.2, eps_clip_high=0.2).loss,
    ):
        log_ratio = f64(0, 0, 0, grad=True)
        assert gradient(function(log_ratio), log_ratio) == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_ratio", [-1e4, -25.0, 25.0, 1e4])
def test_far_ratios_are_finite(log_ratio: float, dtype: torch.dtype) -> None:
    x = torch.tensor([log_ratio, log_ratio], dtype=dtype, requires_grad=True)
    a = torch.tensor([1.0, -1], dtype=dtype)
    for got in (
        losses.ppo_clip(x, a, **CLIP),
        losses.sapo(x, a, tau_pos=1.0, tau_neg=1.05),
        losses.cispo(x, x, a, eps_clip=0.2, eps_clip_high=0.2),
    ):
        assert got.loss.isfinite().all()
        assert all(math.isfinite(g) for g in gradient(got.loss, x))


def test_the_exponent_stops_at_20_with_gradient_0() -> None:
    log_ratio = f64(20.5, grad=True)
    got = losses.ppo_clip(log_ratio, f64(-1), **CLIP)
    assert got.loss.item() == pytest.approx(E20)
    assert gradient(got.loss, log_ratio) == [0]


# --- gspo


def test_sequence_log_ratio() -> None:
    x = torch.tensor([[0.2, 0.0, 0.4, math.nan], [math.inf, 1.0, 1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]]).bool()
    got = losses.sequence_log_ratio(x, mask)
    assert got[0].tolist() == pytest.approx([0.2] * 4)  # 0.6 / 3
    assert got[1].tolist() == [0] * 4  # nothing valid
    weights = torch.tensor([[3.0, 0, 6, 0], [1, 1, 1, 1]], dtype=torch.float64)
    (grad,) = torch.autograd.grad((weights * got).sum(), x)
    assert grad[0].tolist() == pytest.approx([3, 3, 3, 0])  # 9 / 3 to each valid token
    assert grad[1].tolist() == [0] * 4


# --- cispo


def test_cispo_clips_both_sides_whatever_the_sign_and_keeps_the_gradient() -> None:
    ratios = (2.0, 2.0, 0.5, 0.5, 1.0)
    lp = f64(*(math.log(r) - 1 for r in ratios), grad=True)
    old = f64(-1, -1, -1, -1, -1)
    advantages = f64(1, -1, 1, -1, 3)
    got = losses.cispo(lp, lp - old, advantages, eps_clip=0.2, eps_clip_high=0.3)
    want = [-1.3, 1.3, -0.8, 0.8, -3]
    assert gradient(got.loss, lp) == pytest.approx(want)
    assert got.loss.tolist() == pytest.approx([w * x for w, x in zip(want, lp.tolist(), strict=True)])
    assert got.clipped.tolist() == [True, True, True, True, False]


# --- sapo


def test_sapo_literals() -> None:
    # rho 2, A 1, tau 1: -4 sigmoid(1); slope 4 p (1 - p) = 0.786 < 0.9
    # rho 1, A -1, tau 0.5: +8 sigmoid(0) = 4; slope 1
    p = 1 / (1 + math.exp(-1))
    log_ratio = f64(math.log(2), 0, grad=True)
    got = losses.sapo(log_ratio, f64(1, -1), tau_pos=1.0, tau_neg=0.5)
    assert got.loss.tolist() == pytest.approx([-4 * p, 4])
    assert got.clipped.tolist() == [True, False]
    assert gradient(got.loss, log_ratio) == pytest.approx([-4 * p * (1 - p) * 2, 1])


def test_sapo_zero_advantage_is_zero_and_uses_no_float32_temperature() -> None:
    assert losses.sapo(f64(0.3), f64(0), tau_pos=1.0, tau_neg=1.05).loss.item() == 0
    p = 1 / (1 + math.exp(-1.05 * (math.exp(0.3) - 1)))
    got = losses.sapo(f64(0.3), f64(-1), tau_pos=1.0, tau_neg=1.05).loss.item()
    assert got == pytest.approx(4 / 1.05 * p, rel=1e-14)  # 1.05 in float32 is off by 4.5e-8


# --- tis


def test_tis_weight() -> None:
    old = f64(*(math.log(r) for r in (0.1, 1.5, 3.0)), grad=True)
    got = losses.tis_weight(old, f64(0, 0, 0), low=0.5, high=2.0)
    assert got.weight.tolist() == pytest.approx([0.5, 1.5, 2])
    assert got.ratio.tolist() == pytest.approx([0.1, 1.5, 3])
    assert got.clipped.tolist() == [True, False, True]
    assert not got.weight.requires_grad and not got.ratio.requires_grad
    assert losses.tis_weight(f64(1e4), f64(0), low=0, high=1e12).ratio.item() == pytest.approx(E20)


# --- critic


@pytest.mark.parametrize(
    ("value", "loss", "slope", "clipped"),
    [
        # old value 1, return 2, band 0.2
        (1.1, 0.81, -1.8, False),  # inside: 0.9^2 both ways, 2 * -0.9
        (1.5, 0.64, 0.0, True),  # towards R past the band: (1.2 - 2)^2 is larger than 0.5^2
        (0.5, 2.25, -3.0, True),  # away from R: 1.5^2 is larger than (0.8 - 2)^2
    ],
)
def test_clipped_value_loss(value: float, loss: float, slope: float, clipped: bool) -> None:
    v = f64(value, grad=True)
    got = losses.clipped_value_loss(v, f64(1), f64(2), value_clip=0.2)
    assert got.loss.item() == pytest.approx(loss)
    assert gradient(got.loss, v) == [pytest.approx(slope)]
    assert got.clipped.tolist() == [clipped]
