r"""The rules that turn what a source says into problems that can be trained on.

Rules have a name and a version, run in the order of ROW_RULES, and each either leaves a row, changes it or drops it.
Every change and drop has a reason and is counted; the first few of each reason are kept as examples. What needs to
see all rows (duplicates, conflicts, the two sides) is in `split`.

Change what a rule does, and its version goes up: the lineage shows it, and a cached dataset is made anew (the code
digest alone would see to that as well).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from relax_core.data.schema import RAW
from relax_core.rewards.boxed import last_boxed
from relax_core.rewards.equality import verifiable

EXAMPLES_PER_REASON = 3
_EXAMPLE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Draft:
    """A row on its way through the rules."""

    form: str
    question: str | None
    answer: str | None
    solution: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """What a rule made of a row, and why."""

    draft: Draft
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """The row goes, and why."""

    reason: str


Outcome = Change | Drop | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A named, versioned rule. `apply` is there for rules that look at one row; it returns None to leave the row."""

    name: str
    version: int
    about: str
    apply: Callable[[Draft], Outcome] | None = None


# ---- counting ------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What one rule did to one source: how many rows it changed or dropped, by reason, with a few examples."""

    rule: Rule
    changed: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def change(self, source_index: int, before: Draft, change: Change) -> None:
        self.changed[change.reason] += 1
        if len(kept := self.examples.setdefault(change.reason, [])) < EXAMPLES_PER_REASON:
            names = [n for n in ("question", "answer", "solution") if getattr(before, n) != getattr(change.draft, n)]
            kept.append(
                {
                    "source_index": source_index,
                    "before": {name: _clipped(getattr(before, name)) for name in names},
                    "after": {name: _clipped(getattr(change.draft, name)) for name in names},
                }
            )

    def drop(self, source_index: int, question: str | None, answer: str | None, reason: str) -> None:
        self.dropped[reason] += 1
        if len(kept := self.examples.setdefault(reason, [])) < EXAMPLES_PER_REASON:
            before = {"question": _clipped(question), "answer": _clipped(answer)}
            kept.append({"source_index": source_index, "before": before, "after": None})

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.rule.name,
            "version": self.rule.version,
            "about": self.rule.about,
            "changed": self.changed.total(),
            "dropped": self.dropped.total(),
            "changed_reasons": dict(sorted(self.changed.items())),
            "dropped_reasons": dict(sorted(self.dropped.items())),
            "examples": {reason: self.examples[reason] for reason in sorted(self.examples)},
        }


class Report:
    """The tallies of all rules over one source, in the order of the rules."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.read = 0
        self.tallies = {rule.name: Tally(rule) for rule in rules}

    def __getitem__(self, name: str) -> Tally:
        return self.tallies[name]

    def as_json(self) -> list[dict[str, Any]]:
        return [tally.as_json() for tally in self.tallies.values()]

    def drops(self) -> str:
        """One line: rows read, and what dropped how many."""
        parts = [f"{self.read} rows read"]
        for name, tally in self.tallies.items():
            if tally.dropped:
                reasons = ", ".join(f"{reason}: {count}" for reason, count in tally.dropped.most_common())
                parts.append(f"{name} dropped {tally.dropped.total()} ({reasons})")
        return "; ".join(parts)


def _clipped(text: str | None) -> str | None:
    return text if text is None or len(text) <= _EXAMPLE_CHARS else f"{text[: _EXAMPLE_CHARS - 3]}..."


# ---- the rules that look at one row --------------------------------------------------------------

# Format and control characters carry no meaning in a problem; tab and line feed do. The joiners are kept: some
# scripts need them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\ufeff]"
)
_LINE_ENDS = re.compile("\r\n?|\x0c|\x85")
_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_LINE_EDGES = re.compile(r"[ \t]+(?=\n)")

_MISSING_WORDS = frozenset({"nan", "null", "none", "n/a", "<na>", "nil"})


def tidy(text: str) -> str:
    """Text in one form: NFC, `\\n` ends lines, plain spaces, no invisible signs, no space at the ends of lines or of
    the text.

    NFC and not NFKC, which would make 5² into 52.
    """
    if text.isascii() and text.isprintable():
        return text.strip()
    text = unicodedata.normalize("NFC", text)
    text = _LINE_ENDS.sub("\n", text)
    text = _SPACES.sub(" ", _INVISIBLE.sub("", text))
    return _LINE_EDGES.sub("", text).strip()


def _tidy_text(draft: Draft) -> Outcome:
    tidied = replace(
        draft, **{n: tidy(text) for n in ("question", "answer", "solution") if (text := getattr(draft, n)) is not None}
    )
    if tidied == draft:
        return None
    names = [n for n in ("question", "answer", "solution") if getattr(tidied, n) != getattr(draft, n)]
    return Change(tidied, f"text of {' and '.join(names)}")


def _extract_answer(draft: Draft) -> Outcome:
    """The final answer, out of the place where the form keeps it."""
    answer = draft.answer
    if draft.form == "gsm8k" and answer is not None:
        work, mark, final = answer.rpartition("####")
        if not mark:
            return Change(replace(draft, answer=None, solution=answer or None), "no #### in the answer")
        return Change(replace(draft, answer=final.strip(), solution=work.strip() or None), "after ####")
    if answer is not None and ("\\boxed" in answer or "\\fbox" in answer):
        inside = last_boxed(answer)
        solution = draft.solution or answer
        return Change(
            replace(draft, answer=inside, solution=solution),
            "box in the answer" if inside else "broken box in the answer",
        )
    if not answer and draft.solution and (inside := last_boxed(draft.solution)):
        return Change(replace(draft, answer=inside), "box in the solution")
    return None


def _empty_question(draft: Draft) -> Outcome:
    return None if draft.question else Drop("nothing is asked")


def _missing_answer(draft: Draft) -> Outcome:
    if draft.answer is None or not draft.answer:
        places = {"gsm8k": "nothing after ####", "boxed": "no complete box in the solution"}
        return Drop(places.get(draft.form, "no answer"))
    if draft.answer.casefold() in _MISSING_WORDS:
        return Drop("a word that says missing")
    return None


@lru_cache(maxsize=1 << 16)
def _verifiable(answer: str) -> bool:
    return verifiable(answer)


def _unverifiable_answer(draft: Draft) -> Outcome:
    return None if draft.answer and _verifiable(draft.answer) else Drop("no reward could be given for it")


ROW_RULES = (
    Rule("tidy_text", 1, "NFC, plain spaces and line ends, no invisible signs, trimmed", _tidy_text),
    Rule(
        "extract_answer",
        1,
        "the answer out of `#### 42` or the last \\boxed{42}; the rest is the solution",
        _extract_answer,
    ),
    Rule("empty_question", 1, "drops rows that ask nothing", _empty_question),
    Rule("missing_answer", 1, "drops rows without an answer", _missing_answer),
    Rule("unverifiable_answer", 1, "drops rows whose answer the reward cannot check", _unverifiable_answer),
)


# ---- applying them -------------------------------------------------------------------------------


def clean(batches: Iterator[pa.RecordBatch], form: str, report: Report) -> Iterator[pa.RecordBatch]:
    """Rows of schema RAW through ROW_RULES, batch by batch; what was done is counted in `report`."""
    for batch in batches:
        report.read += batch.num_rows
        kept = [row for raw in batch.to_pylist() if (row := _clean_row(raw, form, report)) is not None]
        yield pa.RecordBatch.from_pylist(kept, schema=RAW)


def _clean_row(raw: dict[str, Any], form: str, report: Report) -> dict[str, Any] | None:
    draft = Draft(form, raw["question"], raw["answer"], raw["solution"])
    for rule in ROW_RULES:
        assert rule.apply is not None
        outcome = rule.apply(draft)
        if isinstance(outcome, Change):
            report[rule.name].change(raw["source_index"], draft, outcome)
            draft = outcome.draft
        elif isinstance(outcome, Drop):
            report[rule.name].drop(raw["source_index"], draft.question, draft.answer, outcome.reason)
            return None
    return {**raw, "question": draft.question, "answer": draft.answer, "solution": draft.solution}
