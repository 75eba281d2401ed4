"""The composition: which inputs are needed, which metrics are reported, where gradients flow and how parts add up."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from relax_core.algorithms.objective import (
    Objective,
    Totals,
    loss_and_metrics,
    objective_of,
    policy_loss_per_token,
    value_loss_and_metrics,
)
from relax_core.algorithms.table import ALGORITHMS, REDUCTIONS

EVERYTHING: dict[str, Any] = {
    "eps_clip_high": 0.28,
    "entropy_coef": 0.01,
    "use_kl_loss": True,
    "kl_loss_coef": 0.1,
    "kl_loss_type": "k3",
    "use_unbiased_kl": True,
    "use_tis": True,
}
B, T = 7, 6


def objective(estimator: str = "grpo", **settings: Any) -> Objective:
    return objective_of(estimator, settings, max_response_len=T + 2)


def batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Seven responses, one of them empty, holes in others, NaN and inf in the masked slots."""
    gen = torch.Generator().manual_seed(seed)
    mask = torch.rand(B, T, generator=gen) > 0.3
    mask[3] = False
    lp = -3 * torch.rand(B, T, dtype=torch.float64, generator=gen)

    def near(spread: float) -> torch.Tensor:
        x = lp + spread * torch.randn(B, T, dtype=torch.float64, generator=gen)
        return torch.where(mask, x, math.inf).to(dtype)

    return {
        "logprobs": torch.where(mask, lp, math.nan).to(dtype),
        "old_logprobs": near(0.3),
        "ref_logprobs": near(0.5),
        "rollout_logprobs": near(0.4),
        "advantages": torch.randn(B, T, dtype=torch.float64, generator=gen).to(dtype),
        "entropy": torch.rand(B, T, dtype=torch.float64, generator=gen).to(dtype),
        "mask": mask,
    }


def totals_of(mask: torch.Tensor) -> Totals:
    return Totals(responses=mask.shape[0], tokens=int(mask.sum()))


def run(obj: Objective, inputs: dict[str, Any], totals: Totals | None = None):  # type: ignore[no-untyped-def]
    """(loss, metrics, gradient in logprobs)"""
    lp = inputs["logprobs"].detach().clone().requires_grad_()
    loss, metrics = loss_and_metrics(obj, totals or totals_of(inputs["mask"]), **{**inputs, "logprobs": lp})
    loss.backward()
    return loss.detach(), metrics, lp.grad


# --- inputs


def test_objective_of_takes_the_defaults_of_the_estimator() -> None:
    got = objective_of("rloo", {})
    assert (got.policy_loss, got.reduction, got.max_response_len) == ("reinforce", "token_mean", None)
    got = objective_of("grpo", {"eps_clip": 0.3, "gamma": 0.5, "reduction": "constant"}, max_response_len=9)
    assert (got.eps_clip, got.eps_clip_high, got.reduction, got.max_response_len) == (0.3, 0.3, "constant", 9)
    assert objective_of("sapo", {"eps_clip_high": 0.4}).eps_clip_high == 0.4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reduction": "mean"}, "reduction is 'mean': it must be one of response_mean"),
        ({"kl_loss_type": "k5"}, "kl_loss_type is 'k5'"),
        ({"use_tis": True, "use_rollout_logprobs": True}, "use_tis with use_rollout_logprobs"),
    ],
)
def test_impossible_objectives(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(**settings)


@pytest.mark.parametrize(
    ("settings", "missing", "message"),
    [
        ({"use_kl_loss": True}, "ref_logprobs", "ref_logprobs is None: use_kl_loss = True needs it"),
        ({"use_tis": True}, "rollout_logprobs", "rollout_logprobs is None: use_tis"),
        ({"use_rollout_logprobs": True}, "rollout_logprobs", "rollout_logprobs is None: use_rollout_logprobs"),
        ({"entropy_coef": 0.1}, "entropy", "entropy is None: entropy_coef = 0.1 needs it"),
    ],
)
def test_a_needed_tensor_is_missing(settings: dict[str, Any], missing: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(objective(**settings), {**batch(), missing: None})


def test_wrong_shapes_and_masks() -> None:
    with pytest.raises(ValueError, match=r"entropy has shape \(7, 5\)"):
        run(objective(), {**batch(), "entropy": torch.zeros(B, T - 1)})
    with pytest.raises(ValueError, match=r"mask is torch\.float32"):
        run(objective(), {**batch(), "mask": torch.ones(B, T)})
    with pytest.raises(ValueError, match="old_logprobs are given: with use_rollout_logprobs"):
        run(objective(use_rollout_logprobs=True), batch())


# --- which log-probs are the old ones


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_without_old_logprobs_the_ratio_is_one_and_the_gradient_is_reinforce(estimator: str) -> None:
    inputs = {**batch(), "old_logprobs": None}
    obj = objective(estimator, reduction="token_mean", eps_clip_c=None)
    _, metrics, grad = run(obj, inputs)
    mask = inputs["mask"]
    assert metrics["ppo_kl"].item() == 0 and metrics["pg_clipfrac"].item() == 0
    want = torch.where(mask, -inputs["advantages"], 0.0) / mask.sum()
    if obj.policy_loss == "gspo":  # the gradient is shared by the tokens of a response
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        want = torch.where(mask, want.sum(1, keepdim=True) / lengths, 0.0)
    torch.testing.assert_close(grad, want)


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_rollout_logprobs_can_be_the_old_ones(estimator: str) -> None:
    inputs = batch()
    loss, metrics, grad = run(objective(estimator, use_rollout_logprobs=True), {**inputs, "old_logprobs": None})
    want = run(objective(estimator), {**inputs, "old_logprobs": inputs["rollout_logprobs"]})
    assert loss == want[0] and metrics == want[1] and torch.equal(grad, want[2])


# --- metrics


def test_only_what_has_a_meaning_is_reported() -> None:
    always = {"loss", "pg_loss", "pg_clipfrac", "ppo_kl"}
    bare = {**batch(), "ref_logprobs": None, "rollout_logprobs": None, "entropy": None}
    assert set(run(objective(), bare)[1]) == always
    given = run(objective(), batch())[1]
    assert set(given) == always | {"entropy_loss", "train_rollout_logprob_abs_diff"}
    everything = run(objective(**EVERYTHING), batch())[1]
    assert set(everything) == set(given) | {"kl_loss", "tis", "tis_clipfrac"}


def test_values_by_hand() -> None:
    """Two tokens of one response and one of another; response_mean: weights 1/4, 1/4, 1/2."""
    mask = torch.tensor([[1, 1], [1, 0]]).bool()

    def f(*rows: list[float]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    obj = objective(
        "rloo", reduction="response_mean", entropy_coef=0.5, use_kl_loss=True, kl_loss_coef=2.0, kl_loss_type="k2",
        use_tis=True, tis_clip_high=1.5,
    )  # fmt: skip
    lp = f([-1, -2], [-3, 0]).requires_grad_()
    loss, got = loss_and_metrics(
        obj,
        Totals(responses=2, tokens=3),
        logprobs=lp,
        old_logprobs=f([-1, -2.5], [-3, 0]),
        ref_logprobs=f([-1, -3], [-1, 0]),
        rollout_logprobs=f([-1 - math.log(2), -2.5], [-3 - math.log(0.5), 0]),
        advantages=f([1, 1], [-2, 9]),
        entropy=f([0.4, 0.8], [1.0, 9]),
        mask=mask,
    )
    # -A lp: 1, 2, -6. TIS ratio 2, 1, 0.5, weight 1.5, 1, 0.5: 1.5, 2, -3
    assert got["pg_loss"].item() == pytest.approx(1.5 / 4 + 2 / 4 - 3 / 2)
    assert got["tis"].item() == pytest.approx(2 / 4 + 1 / 4 + 0.5 / 2)
    assert got["tis_clipfrac"].item() == pytest.approx(1 / 4)
    assert got["entropy_loss"].item() == pytest.approx(0.1 + 0.2 + 0.5)
    assert got["kl_loss"].item() == pytest.approx(0 + 0.5 / 4 + 2 / 2)  # d = 0, 1, -2
    assert got["ppo_kl"].item() == pytest.approx(0 - 0.5 / 4 + 0)  # lp_old - lp
    assert got["pg_clipfrac"].item() == 0
    assert got["train_rollout_logprob_abs_diff"].item() == pytest.approx((2 * math.log(2) + 0.5) / 3)  # over tokens
    want = -0.625 - 0.5 * 0.8 + 2 * 1.125
    assert loss.item() == pytest.approx(want) == got["loss"].item()
    # d/dlp: (-A w + 2 d) * weight of the token
    (grad,) = torch.autograd.grad(loss, lp)
    assert grad.flatten().tolist() == pytest.approx([-1.5 / 4, (-1 + 2) / 4, (1 - 4) / 2, 0])


def test_coefficients_of_zero_only_measure() -> None:
    with_kl = run(objective(use_kl_loss=True), batch())
    without = run(objective(), batch())
    assert with_kl[1]["kl_loss"].abs() > 0
    assert with_kl[0] == without[0] and torch.equal(with_kl[2], without[2])


def test_shares_stay_shares_under_the_constant_divisor() -> None:
    settings = {**EVERYTHING, "eps_clip": 0.01, "eps_clip_high": 0.01}
    constant = run(objective(**settings, reduction="constant"), batch())[1]
    token_mean = run(objective(**settings, reduction="token_mean"), batch())[1]
    for name in ("pg_clipfrac", "ppo_kl", "tis", "tis_clipfrac", "train_rollout_logprob_abs_diff"):
        assert constant[name] == token_mean[name]
    for name in ("pg_loss", "kl_loss", "entropy_loss"):
        assert constant[name] != token_mean[name]


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_metrics_carry_no_graph(estimator: str) -> None:
    _, metrics, _ = run(objective(estimator, **EVERYTHING), batch())
    assert not any(x.requires_grad for x in metrics.values())


# --- gradients


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_gradient_flows_only_into_the_current_policy(estimator: str) -> None:
    inputs = {n: x if n == "mask" else x.requires_grad_() for n, x in batch().items()}
    loss, _ = loss_and_metrics(objective(estimator, **EVERYTHING), totals_of(inputs["mask"]), **inputs)
    loss.backward()
    for name in ("old_logprobs", "ref_logprobs", "rollout_logprobs", "advantages"):
        assert inputs[name].grad is None, name
    mask = inputs["mask"]
    for name in ("logprobs", "entropy"):
        grad = inputs[name].grad
        assert grad.isfinite().all() and not grad[~mask].any() and grad[mask].any()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("estimator", [name for name in ALGORITHMS if name != "cispo"])
def test_gradient_is_the_slope(estimator: str, reduction: str) -> None:
    """Central differences, away from the kinks of a clip. (The clipped ratio of cispo is a constant by definition.)"""
    inputs = batch(1)
    obj = objective(estimator, **EVERYTHING, reduction=reduction, eps_clip=0.011)
    _, _, grad = run(obj, inputs)
    h = 1e-6
    for i, t in inputs["mask"].nonzero().tolist():
        shift = torch.zeros(B, T, dtype=torch.float64)
        shift[i, t] = h
        up = run(obj, {**inputs, "logprobs": inputs["logprobs"] + shift})[0]
        down = run(obj, {**inputs, "logprobs": inputs["logprobs"] - shift})[0]
        assert ((up - down) / (2 * h)).item() == pytest.approx(grad[i, t].item(), rel=1e-5, abs=1e-8)


def test_gspo_equals_grpo_on_responses_of_one_token() -> None:
    inputs = batch(2)
    first = torch.arange(T).expand(B, T) == inputs["mask"].int().argmax(1, keepdim=True)
    inputs["mask"] = inputs["mask"] & first
    one, other = run(objective("gspo", **EVERYTHING), inputs), run(objective("grpo", **EVERYTHING), inputs)
    torch.testing.assert_close(one, other)


def test_rloo_never_clips_and_wide_clips_are_the_plain_ratio() -> None:
    inputs = batch(3)
    assert run(objective("rloo"), inputs)[1]["pg_clipfrac"].item() == 0
    loss, metrics, grad = run(objective("ppo", eps_clip=1e9, reduction="token_mean"), inputs)
    mask = inputs["mask"]
    weighted = -torch.exp(inputs["logprobs"] - inputs["old_logprobs"]) * inputs["advantages"]
    torch.testing.assert_close(loss, weighted[mask].mean())
    torch.testing.assert_close(grad, torch.where(mask, weighted, 0.0) / mask.sum())
    assert metrics["pg_clipfrac"].item() == 0


def test_bfloat16_is_worked_in_float32() -> None:
    inputs = batch(4, torch.bfloat16)
    loss, _, grad = run(objective(**EVERYTHING), inputs)
    exact = {n: x if n == "mask" else x.float() for n, x in inputs.items()}
    want = run(objective(**EVERYTHING), exact)
    assert loss == want[0]
    assert grad.dtype == torch.bfloat16
    assert torch.equal(grad, want[2].to(torch.bfloat16))


# --- how parts add up


def parts(inputs: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """n micro-batches of unequal size, each cut to its longest response (another padding in each)."""
    bounds = torch.linspace(0, B, n + 1).round().int().tolist()
    cut = []
    for start, stop in pairwise(bounds):
        rows = inputs["mask"][start:stop]
        width = int((rows.any(0).nonzero().amax() + 1) if rows.any() else 1)
        cut.append({name: x[start:stop, :width] for name, x in inputs.items()})
    return cut


@pytest.mark.parametrize("n", [2, 7])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_micro_batches_add_up(estimator: str, reduction: str, n: int) -> None:
    """Loss, every metric and every gradient in float32, to 1e-6 of the largest; one of the parts has no valid token."""
    inputs = batch(5, torch.float32)
    obj = objective(estimator, **EVERYTHING, reduction=reduction)
    totals = totals_of(inputs["mask"])
    whole_loss, whole, whole_grad = run(obj, inputs, totals)
    split = [run(obj, part, totals) for part in parts(inputs, n)]
    assert n != 7 or any(not part["mask"].any() for part in parts(inputs, n))
    assert sum(loss for loss, _, _ in split).item() == pytest.approx(whole_loss.item(), rel=1e-6)
    for name, value in whole.items():
        assert sum(m[name] for _, m, _ in split).item() == pytest.approx(value.item(), rel=1e-6), name
    rows = torch.cat([torch.nn.functional.pad(g, (0, T - g.shape[1])) for _, _, g in split])
    assert (rows - whole_grad).abs().max() <= 1e-6 * whole_grad.abs().max()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_order_and_padding_do_not_matter(estimator: str, reduction: str) -> None:
    inputs = batch(6)
    obj = objective(estimator, **EVERYTHING, reduction=reduction)
    loss, metrics, grad = run(obj, inputs)
    order = [4, 1, 6, 0, 3, 2, 5]
    moved = {
        n: torch.nn.functional.pad(x[order], (2, 3), value=False if n == "mask" else math.nan)
        for n, x in inputs.items()
    }
    again = run(obj, moved)
    torch.testing.assert_close((again[0], again[1]), (loss, metrics), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(again[2][:, 2:-3], grad[order], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_no_valid_token_gives_zero_and_a_zero_gradient(estimator: str, reduction: str) -> None:
    inputs = {**batch(), "mask": torch.zeros(B, T).bool()}
    loss, metrics, grad = run(objective(estimator, **EVERYTHING, reduction=reduction), inputs)
    assert loss.item() == 0 and not any(metrics.values())
    assert grad.isfinite().all() and not grad.any()


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_policy_loss_per_token_is_what_is_reduced(estimator: str) -> None:
    inputs = batch(7)
    obj = objective(estimator, **EVERYTHING, reduction="token_mean")
    per_token = policy_loss_per_token(obj, **inputs)
    assert not per_token[~inputs["mask"]].any()
    _, metrics, _ = run(obj, inputs)
    assert (per_token.sum() / inputs["mask"].sum()).item() == pytest.approx(metrics["pg_loss"].item())


# --- the critic


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("n", [1, 7])
def test_critic_parts_add_up(reduction: str, n: int) -> None:
    gen = torch.Generator().manual_seed(0)
    mask = batch()["mask"]
    names = ("values", "old_values", "returns")
    inputs: dict[str, Any] = {k: torch.where(mask, torch.randn(B, T, generator=gen), math.nan) for k in names}
    totals = totals_of(mask)

    def share(part: dict[str, Any]):  # type: ignore[no-untyped-def]
        v = part["values"].clone().requires_grad_()
        loss, metrics = value_loss_and_metrics(
            totals, **{**part, "values": v}, value_clip=0.2, reduction=reduction, max_response_len=T
        )
        loss.backward()
        return loss, metrics, v.grad

    whole_loss, whole, whole_grad = share({**inputs, "mask": mask})
    split = [share(part) for part in parts({**inputs, "mask": mask}, n)]
    assert sum(loss for loss, _, _ in split).item() == pytest.approx(whole_loss.item(), rel=1e-6)
    assert set(whole) == {"critic-value_loss", "critic-value_clipfrac"}
    for name, value in whole.items():
        assert sum(m[name] for _, m, _ in split).item() == pytest.approx(value.item(), rel=1e-6)
    rows = torch.cat([torch.nn.functional.pad(g, (0, T - g.shape[1])) for _, _, g in split])
    assert (rows - whole_grad).abs().max() <= 1e-6 * whole_grad.abs().max()
    assert whole_grad.isfinite().all() and not whole_grad[~mask].any()


def test_critic_gradient_flows_only_into_the_new_values() -> None:
    x = {name: torch.ones(1, 2, requires_grad=True) for name in ("values", "old_values", "returns")}
    loss, _ = value_loss_and_metrics(
        Totals(responses=1, tokens=2), **x, mask=torch.ones(1, 2).bool(), value_clip=0.2, reduction="token_mean"
    )
    loss.backward()
    assert x["values"].grad is not None
    assert x["old_values"].grad is None and x["returns"].grad is None
