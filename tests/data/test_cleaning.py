"""The rules that look at one row: what they change, what they drop, and that both are counted."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.data.cleaning import EXAMPLES_PER_REASON, ROW_RULES, Report, clean, tidy
from relax_core.data.schema import RAW


def run(form: str, *rows: dict[str, Any]) -> tuple[list[dict[str, Any]], Report]:
    """Rows through the rules; each row may name question, answer, solution."""
    raw = [
        {"source_index": i, "source_digest": f"d{i}", "question": "q", "level": None, "template": None, **row}
        for i, row in enumerate(rows)
    ]
    report = Report(ROW_RULES)
    batches = list(clean(iter([pa.RecordBatch.from_pylist(raw, schema=RAW)]), form, report))
    return [row for batch in batches for row in batch.to_pylist()], report


def answers(form: str, *rows: dict[str, Any]) -> list[str]:
    return [row["answer"] for row in run(form, *rows)[0]]


def test_gsm8k() -> None:
    kept, report = run(
        "gsm8k",
        {"answer": "2+2=<<2+2=4>>4\nso four\n#### 4"},
        {"answer": "#### 1,000"},
        {"answer": "uses #### twice #### -5"},
        {"answer": "just text"},
        {"answer": "work ####  "},
        {"answer": None},
    )
    assert [(row["answer"], row["solution"]) for row in kept] == [
        ("4", "2+2=<<2+2=4>>4\nso four"),
        ("1,000", None),
        ("-5", "uses #### twice"),
    ]
    assert report["missing_answer"].dropped == {"nothing after ####": 3}
    assert report["extract_answer"].changed == {"after ####": 4, "no #### in the answer": 1}
    assert report.read == 6


def test_plain() -> None:
    kept, _ = run(
        "plain", {"answer": " 4 ", "solution": "w"}, {"answer": "so \\boxed{\\frac{1}{2}}."}, {"answer": "007"}
    )
    assert [(row["answer"], row["solution"]) for row in kept] == [
        ("4", "w"),
        ("\\frac{1}{2}", "so \\boxed{\\frac{1}{2}}."),
        ("007", None),
    ]


def test_s05_boxes_in_solutions() -> None:
    solutions = [
        "is $\\boxed 8$.",
        "\\boxed{8}",
        "\\boxed{ 8 }",
        "\\boxed{\\frac{1}{2}}",
        "\\boxed{}",
        "cut \\boxed{12",
        None,
    ]
    kept, report = run("boxed", *({"solution": solution} for solution in solutions))
    assert [row["answer"] for row in kept] == ["8", "8", "8", "\\frac{1}{2}"]
    assert report["missing_answer"].dropped == {"no complete box in the solution": 3}


def test_a_missing_answer_is_taken_from_the_solution() -> None:
    assert answers("plain", {"answer": None, "solution": "so \\boxed{3}"}) == ["3"]


def test_a_broken_box_is_no_answer() -> None:
    _, report = run("plain", {"answer": "\\boxed{3"})
    assert report["extract_answer"].changed == {"broken box in the answer": 1}
    assert report["missing_answer"].dropped == {"no answer": 1}


@pytest.mark.parametrize("word", ["nan", "NaN", "None", "null", "N/A", "<NA>"])
def test_a_word_that_says_missing_is_no_answer(word: str) -> None:
    _, report = run("plain", {"answer": word})
    assert report["missing_answer"].dropped == {"a word that says missing": 1}


def test_empty_never_becomes_an_answer() -> None:
    kept, report = run("plain", {"answer": ""}, {"answer": "  \u200b\n"}, {"answer": None})
    assert kept == []
    assert report["missing_answer"].dropped == {"no answer": 3}


def test_a_row_that_asks_nothing_is_dropped() -> None:
    kept, report = run("plain", {"question": None, "answer": "1"}, {"question": "\ufeff \n", "answer": "1"})
    assert kept == []
    assert report["empty_question"].dropped == {"nothing is asked": 2}


def test_an_answer_that_no_reward_can_check_is_dropped() -> None:
    proof = "This follows from the triangle inequality, applied twice to the sides of the figure, and from symmetry."
    kept, report = run("plain", {"answer": proof}, {"answer": "12"})
    assert [row["answer"] for row in kept] == ["12"]
    assert report["unverifiable_answer"].dropped == {"no reward could be given for it": 1}


def test_examples_are_few_short_and_tell_before_and_after() -> None:
    _, report = run("gsm8k", *({"answer": "x" * 500 + f"\n#### {i}"} for i in range(EXAMPLES_PER_REASON + 2)))
    entry = next(entry for entry in report.as_json() if entry["name"] == "extract_answer")
    assert entry["changed"] == EXAMPLES_PER_REASON + 2
    assert entry["dropped"] == 0
    examples = entry["examples"]["after ####"]
    assert len(examples) == EXAMPLES_PER_REASON
    assert examples[1]["source_index"] == 1
    assert examples[1]["after"] == {"answer": "1", "solution": "x" * 197 + "..."}
    assert examples[1]["before"] == {"answer": "x" * 197 + "...", "solution": None}


def test_the_line_of_drops() -> None:
    _, report = run("plain", {"answer": None}, {"answer": "nan"}, {"question": "", "answer": "1"}, {"answer": "1"})
    assert report.drops() == (
        "4 rows read; empty_question dropped 1 (nothing is asked: 1); "
        "missing_answer dropped 2 (no answer: 1, a word that says missing: 1)"
    )


def test_rules_are_named_once_and_versioned() -> None:
    assert len({rule.name for rule in ROW_RULES}) == len(ROW_RULES)
    assert all(rule.version >= 1 and rule.about and rule.apply for rule in ROW_RULES)


@pytest.mark.parametrize(
    ("text", "tidied"),
    [
        (" a \t\r\n b\r c\u00a0d ", "a\n b\n c d"),
        ("e\u0301", "\u00e9"),  # NFC
        ("5\u00b2", "5\u00b2"),  # not NFKC, which would say 52
        ("1\u200b2\ufeff", "12"),
        ("x\u200dy", "x\u200dy"),  # a joiner is part of a word in some scripts
        ("a\x00\x07b\tc", "ab\tc"),
        ("line one  \nline two", "line one\nline two"),
        ("", ""),
    ],
)
def test_tidy(text: str, tidied: str) -> None:
    assert tidy(text) == tidied


@settings(deadline=None)
@given(st.text())
def test_tidy_is_idempotent(text: str) -> None:
    once = tidy(text)
    assert tidy(once) == once
