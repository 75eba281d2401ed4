"""Figures of an evaluation. Expected values are worked out by hand in the comments."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.evaluation import statistics
from relax_core.evaluation.statistics import (
    PromptOutcome,
    Transitions,
    accuracies,
    avg_at_k,
    bootstrap,
    mean_pass_at_k,
    paired_gain,
    pass_at_k,
    summarise,
    transitions,
    wilson,
)
from relax_core.rollout.types import Status

DONE, CUT, FAILED = Status.COMPLETED, Status.TRUNCATED, Status.FAILED


def outcome(row: str, *correct: bool | None, status: Status = DONE, rewards: tuple[float, ...] | None = None):
    return PromptOutcome(
        row=row,
        correct=correct,
        rewards=rewards or tuple(float(c is True) for c in correct),
        statuses=(status,) * len(correct),
    )


# -- pass@k (S-31) ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "c", "k", "right"),
    [
        (5, 1, 1, 0.2),
        (5, 1, 2, 0.4),  # resampling with replacement would give 1 - 0.8^2 = 0.36
        (5, 1, 5, 1.0),  # and here 1 - 0.8^5 = 0.672
        *[(4, 0, k, 0.0) for k in (1, 2, 4)],
        *[(4, 4, k, 1.0) for k in (1, 2, 4)],
        (4, 2, 2, 5 / 6),  # 1 - C(2,2)/C(4,2)
    ],
)
def test_pass_at_k_is_unbiased_and_exact(n: int, c: int, k: int, right: float) -> None:
    assert pass_at_k(n, c, k) == right


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_equals_counting_every_subset(case: tuple[int, int, int]) -> None:
    n, c, k = case
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets), abs=1e-15)


def test_pass_at_k_of_many_replies_does_not_overflow() -> None:
    assert pass_at_k(5000, 1, 2500) == 0.5


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_pass_at_k_refuses_what_cannot_be(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=rf"pass@{k} of {n} replies with {c} correct"):
        pass_at_k(n, c, k)


def test_averages_over_prompts() -> None:
    assert mean_pass_at_k([(4, 0), (4, 2), (4, 4)], 2) == pytest.approx((0 + 5 / 6 + 1) / 3)
    assert avg_at_k([True, False, False, False]) == 0.25


# -- intervals --------------------------------------------------------------------------------------------------------


def test_wilson_against_a_textbook_value() -> None:
    # 15 of 50: centre (0.3 + 1.9208/50) / (1 + 3.8415/50) = 0.31427, half width 0.12312
    interval = wilson(15, 50)
    assert interval == {
        "value": 0.3,
        "low": pytest.approx(0.19103, abs=2e-5),
        "high": pytest.approx(0.43751, abs=2e-5),
        "n": 50,
    }


def test_wilson_at_the_ends_is_not_a_point() -> None:
    # 0 of 10: the upper bound is z^2 / (n + z^2) = 3.8415 / 13.8415
    assert wilson(0, 10) == {"value": 0.0, "low": 0.0, "high": pytest.approx(0.27753, abs=1e-5), "n": 10}
    assert wilson(10, 10)["low"] == pytest.approx(1 - 0.27753, abs=1e-5)
    assert wilson(10, 10)["high"] == 1.0


def test_nothing_measured_is_none_not_zero() -> None:
    nothing = {"value": None, "low": None, "high": None, "n": 0}
    assert wilson(0, 0) == nothing
    assert bootstrap([], seed=0) == nothing


def test_bootstrap_agrees_with_the_normal_interval_for_many_prompts() -> None:
    values = [float(i % 2) for i in range(400)]
    interval = bootstrap(values, seed=3)
    half = 1.96 * 0.5 / math.sqrt(400)  # 0.049
    assert interval["value"] == 0.5
    assert interval["low"] == pytest.approx(0.5 - half, abs=0.004)
    assert interval["high"] == pytest.approx(0.5 + half, abs=0.004)


def test_bootstrap_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        interval = bootstrap(list(rng.binomial(8, 0.4, size=60) / 8), seed=trial, draws=1000)
        covered += interval["low"] <= 0.4 <= interval["high"]
    assert 0.91 <= covered / 300 <= 0.98


def test_bootstrap_is_a_function_of_its_seed_whatever_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [math.sin(i) for i in range(37)]
    once = bootstrap(values, seed=7)
    assert bootstrap(values, seed=7) == once
    assert bootstrap(values, seed=8) != once
    monkeypatch.setattr(statistics, "_CHUNK", 37 * 123)
    assert bootstrap(values, seed=7) == once


def test_equal_values_have_an_interval_of_no_width() -> None:
    for n, value in itertools.product(range(2, 40), (0.1, 0.3, 0.7)):
        interval = bootstrap([value] * n, seed=0, draws=10)
        assert interval["low"] == pytest.approx(value)
        assert interval["high"] == pytest.approx(value)
        assert interval["low"] <= interval["value"] <= interval["high"]  # also in the last bit


def test_bootstrap_shows_a_value_that_is_not_finite() -> None:
    assert math.isnan(bootstrap([0.0, math.inf], seed=0)["value"])


# -- before and after -------------------------------------------------------------------------------------------------


def test_a_gain_is_paired_by_row_whatever_the_order() -> None:
    before = {"gone": 1.0} | {f"r{i}": float(i % 2) for i in range(100)}
    after = {f"r{i}": 1.0 for i in reversed(range(100))} | {"new": 0.0}
    gain = paired_gain(before, after, seed=0)
    assert gain["value"] == 0.5
    assert gain["n"] == 100
    assert 0.38 < gain["low"] < 0.5 < gain["high"] < 0.62


def test_no_gain_has_an_interval_around_zero() -> None:
    before = {f"r{i}": float(i < 50) for i in range(100)}
    after = {f"r{i}": float(20 <= i < 70) for i in range(100)}  # 20 lost, 20 won
    gain = paired_gain(before, after, seed=0)
    assert gain["value"] == 0
    assert gain["low"] < 0 < gain["high"]


def test_transitions_count_common_prompts() -> None:
    moves = [("kept", 1.0, 1.0)] * 4 + [("fixed", 0.0, 1.0)] * 3 + [("broken", 1.0, 0.0)] * 2 + [("missed", 0.5, 0.0)]
    before = {str(i): was for i, (_, was, _) in enumerate(moves)} | {"gone": 1.0}
    after = {str(i): now for i, (_, _, now) in enumerate(moves)} | {"new": 1.0}
    assert transitions(before, after) == Transitions(kept=4, fixed=3, broken=2, missed=1)


# -- the summary ------------------------------------------------------------------------------------------------------


def test_summary_of_both_decodings() -> None:
    greedy = [outcome("a", True), outcome("b", False), outcome("c", True), outcome("d", True)]
    sampled = [
        outcome("a", True, True, True, True),
        outcome("b", False, False, False, False),
        outcome("c", True, False, False, False),
        outcome("d", True, True, False, False, status=CUT),
    ]
    summary = summarise(greedy, sampled, seed=0)
    assert list(summary) == [
        *("greedy_accuracy", "avg@4", "pass@1", "pass@2", "pass@4"),
        *("mean_reward", "truncated_ratio", "unverifiable_rows", "withheld_rows"),
    ]
    assert summary["greedy_accuracy"] == wilson(3, 4)
    assert summary["avg@4"]["value"] == summary["pass@1"]["value"] == pytest.approx((1 + 0 + 0.25 + 0.5) / 4)
    assert summary["pass@2"]["value"] == pytest.approx((1 + 0 + 0.5 + 5 / 6) / 4)
    assert summary["pass@4"]["value"] == 0.75
    assert summary["mean_reward"]["value"] == pytest.approx(7 / 16)
    assert summary["truncated_ratio"]["value"] == 0.25
    assert all(s["low"] <= s["value"] <= s["high"] and s["n"] == 4 for s in summary.values())


def test_rows_with_unverifiable_gold_leave_numerator_and_denominator() -> None:
    greedy = [outcome("a", True), outcome("b", None, rewards=(0.0,)), outcome("c", False), outcome("d", True)]
    summary = summarise(greedy, seed=0)
    assert summary["greedy_accuracy"]["value"] == 2 / 3
    assert summary["greedy_accuracy"]["n"] == 3
    assert summary["mean_reward"]["value"] == pytest.approx(2 / 3)
    assert summary["unverifiable_rows"] == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 4}
    assert accuracies(greedy) == {"a": 1.0, "c": 0.0, "d": 1.0}


def test_a_failed_reply_takes_its_prompt_out_of_everything() -> None:
    sampled = [outcome("a", True, True), outcome("b", False, True, status=FAILED)]
    summary = summarise([], sampled, seed=0)
    assert summary["avg@2"]["value"] == 1.0
    assert summary["truncated_ratio"]["n"] == 1
    assert summary["withheld_rows"]["value"] == 1.0


def test_correct_is_not_the_reward() -> None:
    """Accuracy means score 1 of the math score, whatever else is mixed into the reward."""
    summary = summarise([outcome("a", True, rewards=(0.2,)), outcome("b", False, rewards=(0.9,))], seed=0)
    assert summary["greedy_accuracy"]["value"] == 0.5
    assert summary["mean_reward"]["value"] == pytest.approx(0.55)


def test_one_sampled_reply_per_prompt_gets_wilson() -> None:
    summary = summarise([], [outcome("a", True), outcome("b", False, status=CUT)], seed=0)
    assert summary["avg@1"] == summary["pass@1"] == wilson(1, 2)
    assert summary["truncated_ratio"] == wilson(1, 2)


def test_nothing_verifiable() -> None:
    summary = summarise([outcome("a", None)], [outcome("a", None, None)], seed=0)
    assert summary["greedy_accuracy"]["value"] is None
    assert summary["avg@2"] == {"value": None, "low": None, "high": None, "n": 0}
    assert summary["truncated_ratio"]["value"] == 0.0
    assert summary["unverifiable_rows"]["n"] == 1


def test_every_k_up_to_the_number_of_replies() -> None:
    names = summarise([], [outcome("a", *[True] * 6)], seed=0)
    assert [n for n in names if n.startswith("pass@")] == ["pass@1", "pass@2", "pass@4", "pass@6"]


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="prompt b has 2 replies and prompt a has 1"):
        summarise([], [outcome("a", True), outcome("b", True, False)], seed=0)
    with pytest.raises(ValueError, match="one reply per prompt, not 2"):
        summarise([outcome("a", True, True)], seed=0)
    with pytest.raises(ValueError, match="2 outcomes for 1 prompts"):
        summarise([outcome("a", True), outcome("a", False)], seed=0)
    with pytest.raises(ValueError, match="prompt a: 1 correctness values, 2 rewards"):
        PromptOutcome(row="a", correct=(True,), rewards=(1.0, 0.0), statuses=(DONE,))
