from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms import advantages as adv
from relax_core.algorithms.advantages import compute_advantages, group_index
from relax_core.algorithms.table import ALGORITHMS, default

NAN, INF = math.nan, math.inf
GROUP_FAMILY = ("grpo", "gspo", "cispo", "sapo")


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def groups(*ids: object) -> torch.Tensor:
    return group_index(ids)


# --- groups


def test_group_index_counts_by_first_appearance() -> None:
    assert group_index(["b", 7, "b", ("x", 1), 7]).tolist() == [0, 1, 0, 2, 1]
    assert group_index([]).tolist() == []


def test_check_groups_accepts_whole_groups_in_any_order() -> None:
    adv.check_groups(["a", "b", "a", "b"], [0, 1, 0.5, -1e30], ["r0", "r1", "r0", "r1"], n=2)


def test_check_groups_names_the_group() -> None:
    with pytest.raises(ValueError, match=r"group b has 1 responses and n_samples_per_prompt is 2"):
        adv.check_groups(["a", "b", "a"], [0, 0, 0], ["r0", "r1", "r0"], n=2)


@pytest.mark.parametrize("reward", [NAN, INF, -INF])
def test_check_groups_names_row_group_and_reward(reward: float) -> None:
    with pytest.raises(ValueError, match=rf"reward {reward} of row r7 in group a"):
        adv.check_groups(["a", "a"], [0, reward], ["r3", "r7"], n=2)


# --- one scalar per response


def test_leave_one_out_literals() -> None:
    # [3, 0, 0]: 3 - 0 = 3, 0 - 3/2, 0 - 3/2;  [1, 0]: 1 - 0, 0 - 1;  alone: 0
    got = adv.leave_one_out(f64(3, 1, 0, 5, 0, 0), groups("a", "b", "a", "c", "a", "b"))
    assert got.tolist() == pytest.approx([3, 1, -1.5, 0, -1.5, -1])


def test_group_normalised_literals() -> None:
    # [3, 0, 0]: mean 1, squares 4 + 1 + 1 = 6, / 2 = 3, std sqrt(3)
    got = adv.group_normalised(f64(3, 0, 0), groups("a", "a", "a"))
    s = math.sqrt(3) + 1e-6
    assert got.tolist() == pytest.approx([2 / s, -1 / s, -1 / s], rel=1e-14)


def test_group_centred_literals() -> None:
    assert adv.group_centred(f64(3, 0, 0, 7), groups("a", "a", "a", "b")).tolist() == [2, -1, -1, 0]


@pytest.mark.parametrize("function", [adv.group_centred, adv.group_normalised, adv.leave_one_out])
@pytest.mark.parametrize("value", [0.7, 1000.7, 1e15 / 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_are_exactly_zero(function, value: float, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    rewards = torch.full((7,), value, dtype=dtype)
    assert not function(rewards, torch.zeros(7, dtype=torch.int64)).any()


def test_almost_equal_rewards_keep_their_sign() -> None:
    rewards = f64(1000.7, 1000.7, math.nextafter(1000.7, 2000))
    got = adv.leave_one_out(rewards, groups(0, 0, 0))
    assert got[2] > 0 and got[0] <= 0


def test_large_offset_keeps_the_spread() -> None:
    rewards = torch.tensor([2.0**23, 2.0**23 + 1])  # float32 sums would round the mean
    assert adv.group_centred(rewards, groups(0, 0)).tolist() == [-0.5, 0.5]


REWARDS = st.lists(st.tuples(st.integers(0, 3), st.floats(-100, 100, allow_subnormal=False)), min_size=1, max_size=12)


@settings(deadline=None)
@given(REWARDS, st.randoms(use_true_random=False))
def test_members_need_not_be_neighbours(pairs: list[tuple[int, float]], rnd) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(pairs)))
    rnd.shuffle(order)
    rewards, ids = f64(*(r for _, r in pairs)), [g for g, _ in pairs]
    for function in (adv.group_centred, adv.group_normalised, adv.leave_one_out):
        want = function(rewards, group_index(ids))[order]
        got = function(rewards[order], group_index([ids[i] for i in order]))
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-7)


@settings(deadline=None)
@given(REWARDS)
def test_leave_one_out_is_what_it_says(pairs: list[tuple[int, float]]) -> None:
    got = adv.leave_one_out(f64(*(r for _, r in pairs)), group_index([g for g, _ in pairs]))
    for i, (group, reward) in enumerate(pairs):
        others = [r for j, (g, r) in enumerate(pairs) if g == group and j != i]
        want = reward - sum(others) / len(others) if others else 0.0
        assert got[i].item() == pytest.approx(want, abs=1e-11)


@settings(deadline=None)
@given(REWARDS)
def test_each_group_sums_to_zero(pairs: list[tuple[int, float]]) -> None:
    index = group_index([g for g, _ in pairs])
    for function in (adv.group_centred, adv.group_normalised, adv.leave_one_out):
        got = function(f64(*(r for _, r in pairs)), index)
        sums = torch.zeros(len(pairs), dtype=torch.float64).index_add(0, index, got)
        assert sums.abs().max().item() < 1e-7


# --- time


def test_token_rewards_put_the_reward_on_the_last_valid_token() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]]).bool()
    old = torch.tensor([[-1.0, -2, NAN], [-1, INF, -3], [NAN, NAN, NAN]], dtype=torch.float64)
    ref = torch.tensor([[-1.5, -1, 0], [-2, NAN, -3], [0, 0, 0]], dtype=torch.float64)
    got = adv.token_rewards(f64(5, 7, 9), mask, kl_coef=0.1, old_logprobs=old, ref_logprobs=ref)
    # -0.1 * 0.5; -0.1 * -1 + 5;  -0.1 * 1; hole; 0 + 7;  nowhere to put the 9
    assert got.tolist() == [pytest.approx([-0.05, 5.1, 0]), pytest.approx([-0.1, 0, 7]), [0, 0, 0]]


def test_token_rewards_without_kl_need_no_logprobs() -> None:
    mask = torch.tensor([[1, 1]]).bool()
    got = adv.token_rewards(f64(5), mask, kl_coef=0, old_logprobs=None, ref_logprobs=None)
    assert got.tolist() == [[0, 5]]
    with pytest.raises(ValueError, match=r"kl_coef is 0\.1: the KL in the reward needs old_logprobs"):
        adv.token_rewards(f64(5), mask, kl_coef=0.1, old_logprobs=None, ref_logprobs=None)


def test_reward_to_go_discounts_over_a_hole() -> None:
    mask = torch.tensor([[1, 0, 1, 1, 0]]).bool()
    rewards = torch.tensor([[1.0, NAN, 2, 4, INF]], dtype=torch.float64)
    # 4; 2 + 4/2 = 4; hole: 4/2 = 2; 1 + 2/2 = 2
    assert adv.reward_to_go(rewards, mask, gamma=0.5).tolist() == [[2, 0, 4, 4, 0]]


def test_gae_literal() -> None:
    # V 1, 2, 3 and 0 after; rewards 0, 0, 10; gamma 1/2, lambda 1/2, so gamma lambda = 1/4
    # delta: 0 + 1 - 1 = 0; 0 + 1.5 - 2 = -0.5; 10 + 0 - 3 = 7
    # A: 7; -0.5 + 7/4 = 1.25; 0 + 1.25/4 = 0.3125
    mask = torch.tensor([[1, 1, 1]]).bool()
    got = adv.gae(torch.tensor([[0.0, 0, 10]]), torch.tensor([[1.0, 2, 3]]), mask, gamma=0.5, lambd=0.5)
    assert got.advantages.tolist() == [[0.3125, 1.25, 7]]
    assert got.returns.tolist() == [[1.3125, 3.25, 10]]


@settings(deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**31),
)
def test_gae_over_holes_equals_gae_without_them(mask_T: list[bool], gamma: float, lambd: float, seed: int) -> None:
    gen = torch.Generator().manual_seed(seed)
    mask = torch.tensor([mask_T])
    rewards = torch.where(mask, torch.randn(1, len(mask_T), dtype=torch.float64, generator=gen), NAN)
    values = torch.where(mask, torch.randn(1, len(mask_T), dtype=torch.float64, generator=gen), INF)
    got = adv.gae(rewards, values, mask, gamma=gamma, lambd=lambd)
    kept_r, kept_v = rewards[mask].tolist(), [*values[mask].tolist(), 0.0]
    running, want = 0.0, []
    for k in reversed(range(len(kept_r))):
        running = kept_r[k] + gamma * kept_v[k + 1] - kept_v[k] + gamma * lambd * running
        want.append(running)
    assert got.advantages[mask].tolist() == pytest.approx(want[::-1], abs=1e-12)
    assert not got.advantages[~mask].any() and not got.returns[~mask].any()


# --- the stage


def stage(estimator: str, **changes):  # type: ignore[no-untyped-def]
    gen = torch.Generator().manual_seed(3)
    shape = (6, 5)
    mask = torch.rand(shape, generator=gen) > 0.3
    mask[2] = False

    def noisy() -> torch.Tensor:
        return torch.where(mask, torch.randn(shape, dtype=torch.float64, generator=gen), NAN)

    inputs = {
        "rewards": f64(1, 0, 0, 1, 1, 0.5),
        "groups": groups("a", "a", "b", "b", "c", "c"),
        "mask": mask,
        "normalize_advantages": default(estimator, "normalize_advantages"),
        "kl_coef": 0.1 if "kl_coef" in ALGORITHMS[estimator].reads else 0.0,
        "old_logprobs": noisy(),
        "ref_logprobs": noisy(),
        "values": noisy(),
        "gamma": 0.9,
        "lambd": 0.8,
    }
    inputs.update(changes)
    return compute_advantages(estimator, **inputs), inputs


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_every_estimator_is_zero_and_finite_outside_the_mask(estimator: str) -> None:
    got, inputs = stage(estimator)
    for x in (got.advantages, got.raw, got.returns):
        if x is not None:
            assert x.isfinite().all() and not x[~inputs["mask"]].any()
    assert got.advantages.any()
    assert (got.returns is None) != ALGORITHMS[estimator].needs_critic


@pytest.mark.parametrize("estimator", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_have_the_dtype_of_the_rewards(estimator: str, dtype: torch.dtype) -> None:
    got, _ = stage(estimator, rewards=f64(1, 0, 0, 1, 1, 0.5).to(dtype))
    assert got.advantages.dtype == got.raw.dtype == dtype


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_an_empty_response_counts_in_its_group(estimator: str) -> None:
    """Response 2 has no valid token; its reward still moves the other member of group b, where there are groups."""
    one, _ = stage(estimator, normalize_advantages=False)
    other, _ = stage(estimator, normalize_advantages=False, rewards=f64(1, 0, 0.9, 1, 1, 0.5))
    grouped = ALGORITHMS[estimator].advantage in ("group_normalised", "group_centred", "leave_one_out")
    assert torch.equal(one.raw[3], other.raw[3]) != grouped or estimator in GROUP_FAMILY
    centred, _ = stage(
        estimator, normalize_advantages=False, std_normalization=False, rewards=f64(1, 0, 0.9, 1, 1, 0.5)
    )
    plain, _ = stage(estimator, normalize_advantages=False, std_normalization=False)
    assert torch.equal(plain.raw[3], centred.raw[3]) != grouped
    assert not one.raw[2].any()


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_padding_and_order_do_not_matter(estimator: str) -> None:
    got, inputs = stage(estimator)
    order = [5, 2, 0, 4, 1, 3]
    moved = {
        name: torch.nn.functional.pad(x[order], (0, 3), value=False if x.dtype == torch.bool else NAN)
        if x.dim() == 2
        else x[order]
        for name, x in inputs.items()
        if isinstance(x, torch.Tensor)
    }
    again, _ = stage(estimator, **moved)
    torch.testing.assert_close(again.advantages[:, :5], got.advantages[order], rtol=1e-12, atol=1e-12)
    assert not again.advantages[:, 5:].any()


@pytest.mark.parametrize("estimator", ALGORITHMS)
def test_no_valid_token_and_no_slot(estimator: str) -> None:
    got, _ = stage(estimator, mask=torch.zeros(6, 5, dtype=torch.bool))
    assert not got.advantages.any()
    empty = torch.zeros(6, 0)
    got, _ = stage(estimator, mask=empty.bool(), old_logprobs=empty, ref_logprobs=empty, values=empty)
    assert got.advantages.shape == (6, 0)


def test_returns_are_made_before_whitening() -> None:
    plain, inputs = stage("ppo", normalize_advantages=False)
    white, _ = stage("ppo", normalize_advantages=True)
    assert torch.equal(plain.returns, white.returns)
    assert not torch.allclose(plain.advantages, white.advantages)
    mask = inputs["mask"]
    torch.testing.assert_close(plain.returns[mask], (plain.advantages + inputs["values"])[mask])


def test_std_normalization_off_is_the_centred_reward() -> None:
    got, inputs = stage("grpo", std_normalization=False)
    want = adv.broadcast(adv.group_centred(inputs["rewards"], inputs["groups"]), inputs["mask"])
    assert torch.equal(got.advantages, want)


def test_raw_is_before_normalisation() -> None:
    got, inputs = stage("reinforce_plus_plus")
    assert got.advantages[inputs["mask"]].mean().item() == pytest.approx(0, abs=1e-12)
    assert got.raw[inputs["mask"]].mean().abs().item() > 0.01


@pytest.mark.parametrize(
    ("estimator", "changes", "message"),
    [
        ("rloo", {"normalize_advantages": True}, "normalize_advantages is on: rloo does not normalise"),
        ("ppo", {"values": None}, "values are None"),
        ("ppo", {"ref_logprobs": None}, "needs old_logprobs and ref_logprobs"),
        ("grpo", {"rewards": torch.zeros(5)}, r"rewards has shape \(5,\): it must be \(6,\)"),
        ("grpo", {"groups": torch.zeros(5).long()}, r"groups has shape \(5,\)"),
        ("grpo", {"rewards": torch.zeros(6).long()}, "rewards are torch.int64"),
        ("grpo", {"mask": torch.ones(6, 5)}, "mask is torch.float32"),
        ("ppo", {"values": torch.zeros(6, 4)}, r"values has shape \(6, 4\)"),
    ],
)
def test_wrong_input_is_named(estimator: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stage(estimator, **changes)


def test_unknown_estimator_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="advantage_estimator is 'reinforce': it must be one of ppo, grpo"):
        compute_advantages(
            "reinforce",
            rewards=f64(1),
            groups=groups(0),
            mask=torch.ones(1, 1).bool(),
            normalize_advantages=False,
        )
