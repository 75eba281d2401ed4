"""One row per prompt, and two sides that share none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from relax_core.data import split
from relax_core.data.cleaning import Report
from relax_core.data.schema import RAW
from relax_core.data.split import Side, Spool, fraction, prompt_key

Make = Callable[[list[tuple[str, str]]], tuple[Spool, Report]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def spool(problems: list[tuple[str, str]]) -> tuple[Spool, Report]:
        rows = [
            {"source_index": 10 + i, "source_digest": f"d{i}", "question": q, "answer": a}
            for i, (q, a) in enumerate(problems)
        ]
        made = Spool(tmp_path / "spool.parquet")
        made.write(pa.RecordBatch.from_pylist(rows[i : i + 3], schema=RAW) for i in range(0, len(rows), 3))
        report = Report(split.SET_RULES)
        report.read = len(rows)
        return made, report

    return spool


def test_the_first_of_a_prompt_stays(make: Make) -> None:
    spool, report = make([("a", "1"), ("b", "2"), ("a", "1"), (" a ", "01"), ("a\n", "1")])
    assert split.one_row_per_prompt(spool, report).tolist() == [True, True, False, False, False]
    assert report["duplicate_prompt"].dropped == {"its prompt came before": 3}
    assert report["duplicate_prompt"].examples["its prompt came before"][0]["source_index"] == 12


def test_a_prompt_with_different_answers_goes_altogether(make: Make) -> None:
    spool, report = make(
        [("a", "1"), ("b", "2"), ("a", "1"), ("a", "2"), ("c", "0.5"), ("c", "\\frac12"), ("d", "x+1"), ("d", "sin x")]
    )
    assert split.one_row_per_prompt(spool, report).tolist() == [False, True, False, False, True, False, False, False]
    assert report["conflicting_answers"].dropped == {"the answers of its prompt differ": 5}
    assert report["duplicate_prompt"].dropped == {"its prompt came before": 1}


@pytest.mark.parametrize("part_rows", [1, 2, 7])
def test_the_parts_change_nothing(make: Make, part_rows: int) -> None:
    problems = [(f"q{i % 13}", "2" if i in (17, 30) else "1") for i in range(40)]
    spool, whole = make(problems)
    expected = split.one_row_per_prompt(spool, whole)
    spool, report = make(problems)
    assert split.one_row_per_prompt(spool, report, part_rows).tolist() == expected.tolist()
    assert report.as_json() == whole.as_json()
    assert expected.sum() == 13 - 1  # 17 and 30 are the same prompt (4), which has different answers


def test_the_share_depends_on_seed_and_prompt_only(make: Make) -> None:
    problems = [(f"q{i}", "1") for i in range(400)]
    spool, report = make(problems)
    sides = split.share(spool, np.ones(400, np.bool_), 0, 0.25, None, report)
    evaluated = {problems[i][0] for i in np.flatnonzero(sides == Side.EVAL)}
    assert 70 < len(evaluated) < 130
    assert (sides == Side.TRAIN).sum() == 400 - len(evaluated)
    # Fewer rows in another order: the same prompts are evaluated.
    part = problems[::-2]
    spool, report = make(part)
    sides = split.share(spool, np.ones(200, np.bool_), 0, 0.25, None, report)
    assert {part[i][0] for i in np.flatnonzero(sides == Side.EVAL)} == evaluated & {q for q, _ in part}
    assert fraction(0, prompt_key("q")) != fraction(1, prompt_key("q"))


def test_what_exceeds_the_limit_is_on_neither_side(make: Make) -> None:
    problems = [(f"q{i}", "1") for i in range(100)]
    kept = np.ones(100, np.bool_)
    spool, report = make(problems)
    free = split.share(spool, kept, 0, 0.3, None, report)
    spool, report = make(problems)
    limited = split.share(spool, kept, 0, 0.3, 5, report)
    assert (limited == Side.EVAL).sum() == 5
    assert ((limited == Side.TRAIN) == (free == Side.TRAIN)).all()
    by_fraction = sorted(np.flatnonzero(free == Side.EVAL), key=lambda i: fraction(0, prompt_key(problems[i][0])))
    assert set(np.flatnonzero(limited == Side.EVAL)) == set(by_fraction[:5])
    assert report["eval_rows"].dropped == {"more than eval_rows": (free == Side.EVAL).sum() - 5}


def test_a_few_rows_still_give_one_for_evaluation(make: Make) -> None:
    spool, report = make([("a", "1"), ("b", "2"), ("c", "3")])
    sides = split.share(spool, np.array([True, True, False]), 0, 1e-9, None, report)
    assert sorted(sides.tolist()) == [Side.NONE, Side.TRAIN, Side.EVAL]
    assert sides[2] == Side.NONE  # was dropped before


def test_training_rows_whose_prompt_is_evaluated_go(make: Make) -> None:
    spool, report = make([("a", "1"), ("b  b", "2"), ("c", "3"), ("d", "4")])
    kept = np.array([True, True, True, False])
    sides = split.without_evaluation(spool, kept, {prompt_key("b b"), prompt_key("d")}, report)
    assert sides.tolist() == [Side.TRAIN, Side.NONE, Side.TRAIN, Side.NONE]
    assert report["in_evaluation"].dropped == {"its prompt is in the evaluation data": 1}


@pytest.mark.parametrize(("limit", "rows"), [(None, 3), (3, 3), (2, 2)])
def test_evaluation_data_of_its_own(make: Make, limit: int | None, rows: int) -> None:
    spool, report = make([("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")])
    sides = split.limit_evaluation(spool, np.array([True, True, True, False]), 0, limit, report)
    assert (sides == Side.EVAL).sum() == rows
    assert (sides == Side.TRAIN).sum() == 0
    assert report["eval_rows"].dropped.total() == 3 - rows
