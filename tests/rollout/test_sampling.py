from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from relax_core.errors import UserError
from relax_core.rollout.sampling import Draw, Knobs, check, draw
from relax_core.rollout.seeds import uniforms
from relax_core.rollout.types import Sampling

# log of these as logits: the softmax gives them back.
HALVES = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()


def one(logits: torch.Tensor, u: float, **parameters: float) -> tuple[int, float]:
    """The draw of one row: token and log-prob."""
    result = many(logits.unsqueeze(0), [u], **parameters)
    return int(result.ids[0]), float(result.log_probs[0])


def many(logits: torch.Tensor, u: list[float], **parameters: float) -> Draw:
    sampling = Sampling(**{"temperature": 1.0, "max_tokens": 1} | parameters)
    return draw(logits, torch.tensor(u, dtype=torch.float64), Knobs.of([sampling] * len(logits)))


def reachable(logits: torch.Tensor, **parameters: float) -> set[int]:
    """Every token that a fine grid of uniforms draws."""
    grid = [(i + 0.5) / 1000 for i in range(1000)]
    return set(many(logits.expand(1000, -1), grid, **parameters).ids.tolist())


def test_the_cumulative_sum_is_inverted() -> None:
    edges = {0.001: 0, 0.499: 0, 0.501: 1, 0.749: 1, 0.751: 2, 0.874: 2, 0.876: 3, 0.999: 3}
    assert {u: one(HALVES, u)[0] for u in edges} == edges


def test_a_token_is_drawn_when_its_mass_exceeds_the_uniform() -> None:
    assert one(torch.tensor([0.0, 0.0]), 0.5)[0] == 1
    assert one(torch.tensor([0.0, -torch.inf, 0.0]), 0.5)[0] == 2


def test_small_masses_add_up() -> None:
    # A thousand tokens of 2e-9 after one of nearly 1: in float32 the sum would not move.
    logits = torch.cat([torch.zeros(1), torch.full((1000,), -20.0)])
    tail = 1000 * math.exp(-20)
    assert one(logits, 1 - tail / 2)[0] == pytest.approx(500, abs=2)


@pytest.mark.parametrize("parameters", [{}, {"top_p": 0.5}, {"top_k": 1}])
def test_s20_log_prob_is_at_the_temperature_of_sampling(parameters: dict[str, float]) -> None:
    token, log_prob = one(torch.tensor([2.0, 0.0]), 0.5, temperature=0.5, **parameters)
    assert token == 0
    assert log_prob == pytest.approx(-0.01815, abs=5e-6)  # log(1 / (1 + exp(-4)))
    at_one = math.log(1 / (1 + math.exp(-2)))
    assert math.exp(at_one - log_prob) == pytest.approx(0.897, abs=5e-4)  # what scoring at temperature 1 would say


def test_greedy_takes_the_first_of_the_largest_and_reports_temperature_one() -> None:
    logits = torch.tensor([0.0, 2.0, 2.0, 1.0])
    token, log_prob = one(logits, 0.999, temperature=0)
    assert token == 1
    assert log_prob == pytest.approx(float(torch.log_softmax(logits, 0)[1]))
    assert one(logits, 0.999, temperature=0, top_p=0.1, top_k=2) == (token, log_prob)


def test_top_k_keeps_the_most_probable_and_among_equals_the_smaller_id() -> None:
    assert reachable(HALVES, top_k=1) == {0}
    assert reachable(HALVES, top_k=3) == {0, 1, 2}
    assert reachable(HALVES, top_k=4) == reachable(HALVES, top_k=100) == reachable(HALVES) == {0, 1, 2, 3}
    assert reachable(torch.zeros(6), top_k=2) == {0, 1}
    assert reachable(torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0]), top_k=3) == {1, 2, 3}


def test_top_p_keeps_the_shortest_beginning_that_reaches_the_mass() -> None:
    assert reachable(HALVES, top_p=1e-9) == {0}
    assert reachable(HALVES, top_p=0.5) == {0}
    assert reachable(HALVES, top_p=0.51) == {0, 1}
    assert reachable(HALVES, top_p=0.75) == {0, 1}
    assert reachable(HALVES, top_p=0.76) == {0, 1, 2}
    assert reachable(HALVES, top_p=0.9) == {0, 1, 2, 3}
    assert reachable(torch.zeros(4), top_p=0.5) == {0, 1}


def test_top_p_is_measured_at_the_temperature() -> None:
    logits = torch.tensor([2.0, 0.0])  # 0.881 at 1, 0.982 at 0.5, 0.731 at 2
    assert reachable(logits, top_p=0.8) == {0}
    assert reachable(logits, top_p=0.95) == {0, 1}
    assert reachable(logits, top_p=0.95, temperature=0.5) == {0}
    assert reachable(logits, top_p=0.8, temperature=2.0) == {0, 1}


def test_top_k_and_top_p_both_must_keep_a_token_and_both_look_at_the_full_softmax() -> None:
    assert reachable(HALVES, top_k=3, top_p=0.5) == {0}
    assert reachable(HALVES, top_k=1, top_p=0.9) == {0}
    # Renormalised after top_k = 2 the first token alone would hold 2/3 and reach 0.6.
    assert reachable(HALVES, top_k=2, top_p=0.6) == {0, 1}


def test_rows_have_their_own_parameters() -> None:
    samplings = [
        Sampling(temperature=1.0, max_tokens=1),
        Sampling(temperature=0, max_tokens=1),
        Sampling(temperature=1.0, top_p=0.5, max_tokens=1),
        Sampling(temperature=0.5, max_tokens=1),
        Sampling(temperature=1.0, top_k=2, max_tokens=1),
    ]
    u = torch.full((5,), 0.95, dtype=torch.float64)
    together = draw(HALVES.expand(5, -1), u, Knobs.of(samplings))
    # 0.95 lies in the third token at temperature 0.5: 8/11, 10/11, 21/22, 1.
    assert together.ids.tolist() == [3, 0, 0, 2, 1]
    for i, sampling in enumerate(samplings):
        alone = draw(HALVES.unsqueeze(0), u[:1], Knobs.of([sampling]))
        assert (alone.ids[0], alone.log_probs[0]) == (together.ids[i], together.log_probs[i])
    some = torch.tensor([4, 1])
    taken = draw(HALVES.expand(2, -1), u[:2], Knobs.of(samplings).take(some))
    assert taken.ids.tolist() == together.ids[some].tolist()


def test_a_row_without_top_p_keeps_all_beside_a_row_with_it() -> None:
    # Seven times 1/7 is a little more than 1 in float32: the eighth token lies beyond a mass of 1.
    logits = torch.tensor([0.0] * 7 + [-17.5]).expand(2, -1)
    samplings = [Sampling(temperature=1.0, top_p=p, max_tokens=1) for p in (1.0, 0.9)]
    u = torch.full((2,), 1 - 2.0**-53, dtype=torch.float64)
    assert draw(logits, u, Knobs.of(samplings)).ids.tolist() == [7, 6]


@pytest.mark.parametrize("u", [2.0**-53, 0.5, 1 - 2.0**-53])
def test_a_token_without_mass_is_never_drawn(u: float) -> None:
    assert one(torch.tensor([-torch.inf, -200.0, 0.0, -200.0, -torch.inf]), u)[0] == 2
    assert one(torch.tensor([-torch.inf, 0.0]), u) == (1, 0.0)


@pytest.mark.parametrize("vocabulary", [2, 3, 70, 1000])
def test_the_largest_uniform_draws_the_last_token_with_mass(vocabulary: int) -> None:
    logits = torch.randn(50, vocabulary, generator=torch.Generator().manual_seed(0))
    result = many(logits, [1 - 2.0**-53] * 50)
    assert (result.ids >= vocabulary - 2).all()
    kept = many(logits, [1 - 2.0**-53] * 50, top_k=1)
    assert kept.ids.tolist() == logits.argmax(1).tolist()


@pytest.mark.parametrize("parameters", [{}, {"top_p": 0.7}, {"top_k": 2}, {"temperature": 0}, {"temperature": 0.7}])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("vocabulary", [5, 70, 1001])
def test_a_row_that_is_not_finite_is_named_and_the_others_are_drawn(
    parameters: dict[str, float], bad: float, vocabulary: int
) -> None:
    logits = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(0))
    right = many(logits, [0.3] * 4, **parameters)
    for place in (0, 3, vocabulary - 1):
        broken = logits.clone()
        broken[2, place] = bad
        result = many(broken, [0.3] * 4, **parameters)
        assert result.finite.tolist() == [True, True, False, True]
        assert (result.ids >= 0).all() and (result.ids < vocabulary).all()
        assert result.ids[[0, 1, 3]].tolist() == right.ids[[0, 1, 3]].tolist()
        assert result.log_probs[[0, 1, 3]].tolist() == right.log_probs[[0, 1, 3]].tolist()
    assert many(torch.full((1, 4), -torch.inf), [0.3]).finite.tolist() == [False]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1, 0.0]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30, 0.0]),  # squares of the above
        ({"top_k": 2}, [4 / 7, 3 / 7, 0.0, 0.0, 0.0]),
        ({"top_p": 0.8}, [4 / 9, 3 / 9, 2 / 9, 0.0, 0.0]),
    ],
)
def test_tokens_come_in_proportion(parameters: dict[str, float], expected: list[float]) -> None:
    n = 20000
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0]).log().expand(n, -1)
    counts = torch.bincount(many(logits, uniforms(range(n), 3).tolist(), **parameters).ids, minlength=5).tolist()
    possible = [i for i, p in enumerate(expected) if p > 0]
    assert sum(counts[i] for i in possible) == n
    assert stats.chisquare([counts[i] for i in possible], [n * expected[i] for i in possible]).pvalue > 1e-3


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    result = many(logits, [0.4] * 8)
    right = torch.log_softmax(logits.double(), 1).gather(1, result.ids.unsqueeze(1)).squeeze(1)
    assert result.log_probs.dtype == torch.float32
    assert (result.log_probs - right).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("max_tokens", 0),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{name} is {value}, and must be "):
        check(Sampling(**{"temperature": 1.0, "max_tokens": 1} | {name: value}))


def test_parameters_at_the_ends_of_their_ranges_are_accepted() -> None:
    check(Sampling(temperature=0, top_p=1, top_k=0, max_tokens=1))
