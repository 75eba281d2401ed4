r"""Statuses and scores of replies; golden rows and the bug cases of answers by our own rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.rewards.grading import Grade, GradeStatus, grade_fast

GOLDEN = Path(__file__).parents[1] / "parity" / "golden" / "answers.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize("row", [row for row in ROWS if row["kind"] == "grade"], ids=lambda row: row["id"])
def test_golden_rows(row: dict[str, str]) -> None:
    grade = grade_fast(row["gold"], row["response"])
    assert grade is not None
    assert grade.score == row["score"]
    if "extracted" in row:
        assert grade.extracted == row["extracted"]


@pytest.mark.parametrize(
    ("gold", "response", "grade"),
    [
        ("4", "\\boxed{4}", Grade(GradeStatus.CORRECT, 1.0, "4")),
        ("4", "\\boxed{+04}", Grade(GradeStatus.CORRECT, 1.0, "+04")),
        ("4", "\\boxed{5}", Grade(GradeStatus.INCORRECT, 0.0, "5")),
        ("4", "it is 4", Grade(GradeStatus.NO_ANSWER, 0.0, None)),
        ("4", "\\boxed{99999999!}", Grade(GradeStatus.TIMEOUT, 0.0, "99999999!")),
        ("4", "\\boxed{" + "7" * 1001 + "}", Grade(GradeStatus.TIMEOUT, 0.0, "7" * 1001)),
        ("", "\\boxed{4}", Grade(GradeStatus.UNVERIFIABLE, None, "4")),
        ("None", "no box", Grade(GradeStatus.UNVERIFIABLE, None, None)),
        ("9^{9^{9^9}}", "\\boxed{4}", Grade(GradeStatus.UNVERIFIABLE, None, "4")),
        ("\\boxed{\\frac12}", "\\boxed{0.5}", Grade(GradeStatus.CORRECT, 1.0, "0.5")),
        ("\\sin x", "\\boxed{\\sin x}", Grade(GradeStatus.CORRECT, 1.0, "\\sin x")),
        ("\\sin x", "\\boxed{\\sin(x)}", None),
    ],
)
def test_grade_fast(gold: str, response: str, grade: Grade | None) -> None:
    assert grade_fast(gold, response) == grade


def test_an_unparseable_reply_shifts_nothing() -> None:
    """S-09."""
    golds = ["137", "2", "2", "2", "2"]
    replies = ["\\boxed{137}", "I do not know", "\\boxed{2}", "", "\\boxed{3}"]
    grades = [grade_fast(gold, reply) for gold, reply in zip(golds, replies, strict=True)]
    assert [grade and grade.score for grade in grades] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert [grade and grade.extracted for grade in grades] == ["137", None, "2", None, "3"]


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_integers(gold: int, answer: int) -> None:
    grade = grade_fast(str(gold), f"so it is \\boxed{{{answer}}}.")
    assert grade is not None
    assert grade.score == float(gold == answer)


@given(st.text(max_size=200), st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_gets_a_grade_or_is_passed_on(gold: str, content: str) -> None:
    grade = grade_fast(gold, f"\\boxed{{{content}}}")
    assert grade is None or (grade.score == 1.0) is (grade.status is GradeStatus.CORRECT)
