"""What needs all rows to be seen: one row per prompt, no contradiction between rows, and two sides that share no
prompt.

Memory is bounded: the rows lie in a spool on disk, and only keys are held, a part of them at a time (`PART_ROWS`),
beside one byte per row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from relax_core.data.cleaning import Report, Rule
from relax_core.data.schema import RAW
from relax_core.data.sources import BATCH_ROWS
from relax_core.rewards.equality import compare

# Rows whose keys are held at once; about 300 bytes each.
PART_ROWS = 1_000_000

SET_RULES = (
    Rule("conflicting_answers", 1, "drops all rows of a prompt that has different answers"),
    Rule("duplicate_prompt", 1, "keeps the first row of a prompt"),
    Rule("in_evaluation", 1, "drops training rows whose prompt is in the evaluation data"),
    Rule("eval_rows", 1, "leaves out what the evaluation side has too many of; it does not go to the training side"),
)


class Side(IntEnum):
    """Where a spooled row goes."""

    NONE = 0
    TRAIN = 1
    EVAL = 2


def prompt_key(question: str) -> bytes:
    """What makes two prompts the same: the tidied question, with all white space alike."""
    return hashlib.sha256(" ".join(question.split()).encode()).digest()


def fraction(seed: int, key: bytes) -> float:
    """A number in [0, 1) for a prompt: the same wherever it stands, independent between seeds."""
    digest = hashlib.sha256(f"evaluation share/{seed}/".encode() + key).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64


class Spool:
    """Cleaned rows of one source on disk, in order, until it is known where each goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> None:
        with pq.ParquetWriter(self.path, RAW) as writer:
            for batch in batches:
                if batch.num_rows:
                    writer.write_batch(batch, row_group_size=BATCH_ROWS * 16)
                    self.rows += batch.num_rows

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self.path, pre_buffer=False, buffer_size=1 << 20) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=columns)

    def problems(self) -> Iterator[Problem]:
        """Position and what the set rules look at, row by row."""
        position = 0
        for batch in self.batches(["source_index", "question", "answer"]):
            for index, question, answer in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield Problem(position, index, question, answer, prompt_key(question))
                position += 1


@dataclass(frozen=True, slots=True)
class Problem:
    position: int
    source_index: int
    question: str
    answer: str
    key: bytes


def one_row_per_prompt(spool: Spool, report: Report, part_rows: int = PART_ROWS) -> npt.NDArray[np.bool_]:
    """Which rows stay: the first one of each prompt, and none of a prompt whose rows disagree about the answer."""
    kept = np.zeros(spool.rows, dtype=np.bool_)
    parts = spool.rows // part_rows + 1
    repeated: set[int] = set()
    conflicting: set[int] = set()
    for part in range(parts):
        first: dict[bytes, Problem] = {}
        others: dict[bytes, list[Problem]] = {}
        for problem in spool.problems():
            if (
                int.from_bytes(problem.key[:4], "big") % parts == part
                and first.setdefault(problem.key, problem) is not problem
            ):
                others.setdefault(problem.key, []).append(problem)
        kept[[problem.position for problem in first.values()]] = True
        for key, rows in others.items():
            agree = all(same_answer(first[key].answer, row.answer) for row in rows)
            (repeated if agree else conflicting).update(row.position for row in rows)
            if not agree:
                conflicting.add(first[key].position)
    kept[list(conflicting)] = False
    _count(spool, report, conflicting, repeated)
    return kept


def same_answer(a: str, b: str) -> bool:
    """Do two rows of one prompt give the same gold, as far as the reward's own rules tell without math-verify?

    What they leave open counts as different: the prompt is dropped, and no gold is guessed.
    """
    return a == b or compare(a, b) is True


def _count(spool: Spool, report: Report, conflicting: set[int], repeated: set[int]) -> None:
    """Count the drops in the order of the source, whatever the parts were."""
    if not conflicting and not repeated:
        return
    for p in spool.problems():
        if p.position in conflicting:
            report["conflicting_answers"].drop(p.source_index, p.question, p.answer, "the answers of its prompt differ")
        elif p.position in repeated:
            report["duplicate_prompt"].drop(p.source_index, p.question, p.answer, "its prompt came before")


def limit_evaluation(
    spool: Spool, kept: npt.NDArray[np.bool_], seed: int, eval_rows: int | None, report: Report
) -> npt.NDArray[np.uint8]:
    """Sides of the rows of an evaluation source: those kept, at most `eval_rows` of them (the smallest fractions)."""
    candidates = [(fraction(seed, p.key), p.position) for p in spool.problems() if kept[p.position]]
    return _sides(spool, report, np.zeros(spool.rows, dtype=np.uint8), candidates, eval_rows)


def without_evaluation(
    spool: Spool, kept: npt.NDArray[np.bool_], evaluation_keys: set[bytes], report: Report
) -> npt.NDArray[np.uint8]:
    """Sides of the rows of a training source beside an evaluation source: those kept whose prompt is not evaluated."""
    sides = np.where(kept, Side.TRAIN, Side.NONE).astype(np.uint8)
    for p in spool.problems():
        if kept[p.position] and p.key in evaluation_keys:
            sides[p.position] = Side.NONE
            report["in_evaluation"].drop(p.source_index, p.question, p.answer, "its prompt is in the evaluation data")
    return sides


def share(
    spool: Spool, kept: npt.NDArray[np.bool_], seed: int, eval_share: float, eval_rows: int | None, report: Report
) -> npt.NDArray[np.uint8]:
    """Sides of the rows of a single source: prompts whose fraction is below `eval_share` are for evaluation.

    A prompt's fraction does not depend on the other rows, so a file that grows keeps its evaluation prompts. Where no
    prompt is below the share (a few rows), the one with the smallest fraction is taken. What exceeds `eval_rows` is
    left out of both sides: a run with more evaluation rows then never meets a prompt that another run of the same
    seed and share was trained on.
    """
    sides = np.where(kept, Side.TRAIN, Side.NONE).astype(np.uint8)
    candidates = []
    smallest: tuple[float, int] | None = None
    for p in spool.problems():
        if kept[p.position]:
            drawn = (fraction(seed, p.key), p.position)
            smallest = min(smallest or drawn, drawn)
            if drawn[0] < eval_share:
                candidates.append(drawn)
    if smallest and not candidates:
        candidates = [smallest]
    return _sides(spool, report, sides, candidates, eval_rows)


def _sides(
    spool: Spool,
    report: Report,
    sides: npt.NDArray[np.uint8],
    candidates: list[tuple[float, int]],
    eval_rows: int | None,
) -> npt.NDArray[np.uint8]:
    """Put the candidates with the smallest fractions on the evaluation side and the others on none."""
    order = [position for _, position in sorted(candidates)]
    chosen, beyond = order[:eval_rows], set(order[eval_rows:] if eval_rows is not None else ())
    sides[chosen] = Side.EVAL
    if beyond:
        sides[list(beyond)] = Side.NONE
        for p in spool.problems():
            if p.position in beyond:
                report["eval_rows"].drop(p.source_index, p.question, p.answer, "more than eval_rows")
    return sides
