"""Real public bug reports as small inputs with the values worked out by hand (S-10 to S-19)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from relax_core.algorithms import losses
from relax_core.algorithms.advantages import compute_advantages, gae, group_index
from relax_core.algorithms.masking import masked_mean
from relax_core.algorithms.objective import Totals, loss_and_metrics, objective_of
from relax_core.algorithms.reduction import reduce
from relax_core.algorithms.table import default

NAN, INF = math.nan, math.inf


def f64(*rows: Any) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def advantages(estimator: str, rewards: list[float], ids: list[str], **settings: Any) -> list[float]:
    """Of replies of one token each."""
    stage = compute_advantages(
        estimator,
        rewards=f64(*rewards),
        groups=group_index(ids),
        mask=torch.ones(len(rewards), 1).bool(),
        normalize_advantages=default(estimator, "normalize_advantages"),
        **settings,
    )
    return stage.advantages.squeeze(1).tolist()


def test_s10_leave_one_out_is_not_divided_by_a_zero_spread() -> None:
    rewards, ids = [0.0, 1, 0, 0, 0], list("aaaaa")
    # 0 - 1/4; 1 - 0
    assert advantages("rloo", rewards, ids) == pytest.approx([-0.25, 1, -0.25, -0.25, -0.25])
    # mean 0.2, squares 0.64 + 4 * 0.04 = 0.8, / 4 = 0.2 (n - 1): 0.8 / 0.4472, -0.2 / 0.4472
    want = [-0.4472, 1.7889, -0.4472, -0.4472, -0.4472]
    assert advantages("grpo", rewards, ids) == pytest.approx(want, abs=1e-4)


def test_s11_a_group_of_one_has_no_signal() -> None:
    # alone: 0. b: 1 - 0 and 0 - 1; grpo: +-0.5 / sqrt(0.5)
    assert advantages("rloo", [1.0, 1, 0], ["a", "b", "b"]) == [0, 1, -1]
    assert advantages("grpo", [1.0, 1, 0], ["a", "b", "b"]) == pytest.approx([0, 0.7071, -0.7071], abs=1e-4)
    for estimator in ("rloo", "grpo"):
        assert advantages(estimator, [1.0, 0, 1], ["a", "b", "c"]) == [0, 0, 0]


def test_s12_micro_batches_are_weighed_by_their_tokens() -> None:
    # (10 * 0.6 + 90 * 0.2 + 0) / 100 = 0.24; the mean of the means would be 0.40
    sizes, values = (10, 90, 0), (0.6, 0.2, 5.0)
    inputs = [
        torch.full((1, max(1, n)), v, dtype=torch.float64, requires_grad=True)
        for n, v in zip(sizes, values, strict=True)
    ]
    shares = [
        reduce(x, torch.full(x.shape, n > 0), reduction="token_mean", responses=3, tokens=100)
        for x, n in zip(inputs, sizes, strict=True)
    ]
    assert [s.item() for s in shares] == pytest.approx([0.06, 0.18, 0])
    total = torch.stack(shares).sum()
    assert total.item() == pytest.approx(0.24)
    total.backward()
    for x, n in zip(inputs, sizes, strict=True):
        assert x.grad is not None
        assert x.grad.eq(0.01 if n else 0.0).all()


def test_s13_the_sequence_ratio_counts_once_per_response() -> None:
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1] * 6]).bool()
    lp = torch.zeros(2, 6, dtype=torch.float64)
    loss, _ = loss_and_metrics(
        objective_of("gspo", {}),
        Totals(responses=2, tokens=8),
        logprobs=lp,
        old_logprobs=lp,
        advantages=f64([1.0] * 6, [-1.0] * 6),
        mask=mask,
    )
    assert loss.item() == 0  # (-1 + 1) / 2; as a token mean it would be (-2 + 6) / 8
    ratio = losses.sequence_log_ratio(f64([0.2, 0, 0, 0.2]), torch.ones(1, 4).bool()).exp()
    assert ratio.flatten().tolist() == pytest.approx([1.1052] * 4, abs=1e-4)


def test_s14_cispo_keeps_the_gradient_of_a_clipped_token() -> None:
    for old, weight in ((-1.5, 1.28), (-1.0, 1.0)):  # ratio e^0.5 = 1.6487, and 1
        lp = f64(-1.0).requires_grad_()
        got = losses.cispo(lp, lp - old, f64(2.0), eps_clip=1.0, eps_clip_high=0.28)
        assert got.loss.item() == pytest.approx(2 * weight)
        assert torch.autograd.grad(got.loss.sum(), lp)[0].item() == pytest.approx(-2 * weight)


def test_s15_nan_in_a_masked_slot_does_not_leak() -> None:
    x = f64(0.1, NAN, INF).requires_grad_()
    mean = masked_mean(x, torch.tensor([True, False, False]), dim=0)
    mean.backward()
    assert mean.item() == pytest.approx(0.1)
    assert x.grad is not None and x.grad.tolist() == [1, 0, 0]
    y = f64(0.3, 0.4).requires_grad_()
    empty = masked_mean(y, torch.tensor([False, False]), dim=0)
    empty.backward()
    assert empty.item() == 0
    assert y.grad is not None and y.grad.tolist() == [0, 0]


@pytest.mark.parametrize("padding", [50.0, -1e30, NAN, INF])
def test_s16_the_value_of_a_padding_slot_does_not_leak(padding: float) -> None:
    # delta: 0 + 1 - 0.5 = 0.5; 2 + 0 - 1 = 1. A: 1; 0.5 + 0.9 = 1.4
    mask = torch.tensor([[1, 1, 0]]).bool()
    got = gae(f64([0, 2, padding]), f64([0.5, 1.0, padding]), mask, gamma=1.0, lambd=0.9)
    assert got.advantages.tolist() == [pytest.approx([1.4, 1.0, 0])]
    assert got.returns.tolist() == [pytest.approx([1.9, 2.0, 0])]


def test_s17_truncated_tokens_leave_the_divisor_too() -> None:
    mask = torch.ones(5, 8).bool()
    mask[4] = False  # 40 tokens, 8 of them in a masked reply: 32 / 32
    got = reduce(torch.ones(5, 8), mask, reduction="token_mean", responses=5, tokens=int(mask.sum()))
    assert got.item() == 1
    nothing = torch.zeros(5, 8).bool()
    assert reduce(torch.ones(5, 8), nothing, reduction="token_mean", responses=5, tokens=0).item() == 0


def test_s18_the_dual_clip_is_only_for_negative_advantages() -> None:
    log_ratio = f64(*(math.log(r) for r in (5, 10, 2, 0.5)))
    got = losses.ppo_clip(log_ratio, f64(1, -1, -1, -1), eps_clip=0.2, eps_clip_high=0.2, eps_clip_c=3.0)
    assert got.loss.tolist() == pytest.approx([-1.2, 3, 2, 0.8])


def test_s19_reinforce_plus_plus_is_not_computed_per_group() -> None:
    rewards, ids = [1.0, 0, 1, 1], ["a", "a", "b", "b"]
    # whole batch: mean 3/4, population spread 0.4330
    assert advantages("reinforce_plus_plus", rewards, ids) == pytest.approx([0.577, -1.732, 0.577, 0.577], abs=1e-3)
    # group mean first: 0.5, -0.5, 0, 0; spread sqrt(0.5 / 4)
    got = advantages("reinforce_plus_plus_baseline", rewards, ids)
    assert got == pytest.approx([1.414, -1.414, 0, 0], abs=1e-3)
    assert advantages("grpo", rewards, ids) == pytest.approx([0.707, -0.707, 0, 0], abs=1e-3)
    for estimator in ("reinforce_plus_plus", "reinforce_plus_plus_baseline", "grpo"):
        assert advantages(estimator, [1.0] * 4, ids) == [0] * 4
