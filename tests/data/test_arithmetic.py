"""The arithmetic generator: right answers, stable items, distinct problems, splits that cannot overlap."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from typing import get_args

import pytest

from relax_core.data import arithmetic
from relax_core.data.arithmetic import Problem
from relax_core.errors import DataError

GOLDEN_FIRST = ("gcd(67,87)=?", "gcd(87,67)=gcd(67,20)=gcd(20,7)=gcd(7,6)=gcd(6,1)=gcd(1,0)=1 \\boxed{1}")
GOLDEN_DIGEST = "045273afc3d1ec68efccb7ceb79b52cd3a85100104e4da5a5835e1f8040da1dc"

NUMBER = re.compile(r"\d+")


def numbers(text: str) -> list[int]:
    return [int(n) for n in NUMBER.findall(text)]


def recomputed(problem: Problem) -> int:
    """The answer from the text of the question alone."""
    n = numbers(problem.question)
    match problem.template_id:
        case "gcd":
            return math.gcd(*n)
        case "linear":
            return (n[2] - n[1]) // n[0]
        case "word_bought":
            return n[0] + n[1] - n[2]
        case "word_boxes":
            return n[0] * n[1] + n[2]
        case "word_shared":
            return (n[0] - n[1]) // n[2]
        case "word_more":
            return 2 * n[0] + n[1]
        case _:
            expression = problem.question.removesuffix("=?")
            assert re.fullmatch(r"[0-9+*-]+", expression)
            return int(eval(expression))


@pytest.fixture(scope="module")
def sample() -> dict[str, list[Problem]]:
    """Sixty problems of each kind."""
    return {
        name: [arithmetic.item(3, "train", i, templates=[name]) for i in range(60)]
        for name in arithmetic.template_ids()
    }


def test_items_never_change() -> None:
    # Golden: base models, datasets and runs are named by what this generator makes.
    first = [arithmetic.item(0, "train", i) for i in range(200)]
    assert (first[0].question, first[0].solution) == GOLDEN_FIRST
    text = json.dumps([[p.question, p.answer, p.solution, p.slip, p.level, p.template_id, p.key] for p in first])
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN_DIGEST


@pytest.mark.parametrize("name", arithmetic.template_ids())
def test_answer_is_right_and_canonical(name: str, sample: dict[str, list[Problem]]) -> None:
    for problem in sample[name]:
        assert problem.template_id == name
        assert recomputed(problem) == int(problem.answer) >= 0, problem
        assert problem.answer == str(int(problem.answer))


@pytest.mark.parametrize("name", arithmetic.template_ids())
def test_solution_works_and_ends_in_the_box(name: str, sample: dict[str, list[Problem]]) -> None:
    for problem in sample[name]:
        work, box = problem.solution.rsplit(" ", 1)
        assert box == f"\\boxed{{{problem.answer}}}"
        assert work.endswith(f"={problem.answer}")
        for step in work.split(" "):  # each written equation holds
            sides = step.removeprefix("x=").split("=")
            if all(re.fullmatch(r"[0-9+*/-]+", side) for side in sides):
                assert len({eval(side) for side in sides}) == 1, problem


@pytest.mark.parametrize(
    ("name", "carries"),
    [("sum99", False), ("sum99_carry", True), ("difference99", False), ("difference99_borrow", True)],
)
def test_two_digit_kinds(name: str, carries: bool, sample: dict[str, list[Problem]]) -> None:
    for problem in sample[name]:
        a, b = numbers(problem.question)
        assert 10 <= b <= 99 and 10 <= a <= 99 and 0 <= int(problem.answer) <= 99
        ones = a % 10 + b % 10 > 9 if "+" in problem.question else a % 10 < b % 10
        assert ones is carries
        assert (problem.slip is not None) is carries


def test_slip_forgets_the_carry() -> None:
    kinds = ["sum99_carry", "difference99_borrow"]
    by_key = {p.key: p for p in arithmetic.problems(0, "train", 1000, levels=[2], templates=kinds)}
    carry, borrow = by_key["15+28"], by_key["93-54=?"]
    assert carry.solution == "30+13=43 \\boxed{43}"
    assert carry.slip == "30+13=33 \\boxed{33}"  # the ten of 13 is lost
    assert borrow.solution == "43-4=39 \\boxed{39}"
    assert borrow.slip == "43-4=49 \\boxed{49}"  # 13 - 4 is 9, but the 4 of 43 stays


def test_levels_hold_their_kinds() -> None:
    for level in arithmetic.LEVELS:
        stream = list(arithmetic.problems(1, "train", 60, levels=[level]))
        assert {p.template_id for p in stream} == set(arithmetic.template_ids([level]))
        assert all(p.level == level for p in stream)
        assert level > 1 or all(int(p.answer) <= 20 for p in stream)


def test_problems_are_distinct_up_to_the_order_of_operands() -> None:
    stream = list(arithmetic.problems(0, "train", 600, levels=[2], templates=["sum99", "sum99_carry"]))
    assert len({tuple(sorted(numbers(p.question))) for p in stream}) == 600
    assert {p.template_id for p in stream} == {"sum99", "sum99_carry"}


def test_a_longer_stream_begins_with_the_shorter_one() -> None:
    long = list(arithmetic.problems(5, "train", 80, levels=[3]))
    assert list(arithmetic.problems(5, "train", 30, levels=[3])) == long[:30]


def test_seeds_differ() -> None:
    a, b = ([p.question for p in arithmetic.problems(seed, "train", 50, levels=[3])] for seed in (0, 1))
    assert a != b


def test_splits_never_share_a_problem_whatever_the_seeds() -> None:
    keys = {
        split: {arithmetic.item(seed, split, i).key for seed in (0, 1) for i in range(150)}
        for split in get_args(arithmetic.Split)
    }
    for a, b in itertools.combinations(keys.values(), 2):
        assert a and b and not a & b
    assert all(arithmetic.split_of(key) == split for split, of_split in keys.items() for key in of_split)


def test_shares_of_the_splits() -> None:
    splits = [arithmetic.split_of(f"{a}-{b}=?") for a in range(100) for b in range(100)]
    shares = {split: splits.count(split) / len(splits) for split in get_args(arithmetic.Split)}
    assert shares == pytest.approx({"warmup": 0.4, "train": 0.55, "test": 0.05}, abs=0.015)


def test_swapped_operands_stay_in_one_split() -> None:
    for i in range(100):
        problem = arithmetic.item(0, "train", i, templates=["sum20", "product_sum"])
        a, *rest = numbers(problem.question)
        assert problem.key.startswith(f"{min(a, rest[0])}")


def test_none_means_all_and_too_many_is_an_error() -> None:
    everything = list(arithmetic.problems(0, "test", levels=[1]))
    assert list(arithmetic.problems(0, "test", len(everything), levels=[1])) == everything
    with pytest.raises(DataError, match=rf"count=5000: the test split .* only about {len(everything)} distinct"):
        list(arithmetic.problems(0, "test", 5000, levels=[1]))
    assert list(arithmetic.problems(0, "test", 0)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"levels": [4]}, r"levels: \[4\] do not exist"),
        ({"levels": []}, "levels is empty"),
        ({"count": -1}, "count=-1"),
        ({"templates": ["sum98"]}, r"templates: \['sum98'\] are not of levels"),
        ({"templates": ["gcd"], "levels": [2]}, r"\['gcd'\] are not of levels \[2\]; choose from \['sum99'"),
    ],
)
def test_wrong_arguments_fail_at_the_call(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        arithmetic.problems(0, "train", **arguments)  # type: ignore[arg-type]


def test_item_refuses_an_unknown_template() -> None:
    with pytest.raises(DataError, match=r"\['sum98'\] do not exist"):
        arithmetic.item(0, "train", 0, templates=["sum98"])


def test_draws_are_even() -> None:
    draws = arithmetic.Draws("a name")
    counts = [0] * 6
    for _ in range(6000):
        counts[draws.between(1, 6) - 1] += 1
    assert min(counts) > 900 and max(counts) < 1100  # 1000 +- 3.5 standard deviations of 28.9
