"""One reply against one gold: status, score, and the answer that was read. See docs/rewards.md for the policy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from relax_core.rewards.boxed import last_boxed
from relax_core.rewards.equality import compare_plain, plain, verifiable
from relax_core.rewards.exact import TooBig
from relax_core.rewards.normalise import normalise


class GradeStatus(StrEnum):
    """What became of a reply. Only `correct` scores 1; `unverifiable` has no score; every other status scores 0 and is
    counted by name.
    """

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NO_ANSWER = "no_answer"  # no complete, non-empty box
    TIMEOUT = "timeout"  # refused by its shape, or beyond the limit of time or memory
    ERROR = "error"  # the answer could not be read, or its comparison failed
    UNVERIFIABLE = "unverifiable"  # the gold cannot be verified: nothing is said about the reply


@dataclass(frozen=True, slots=True)
class Grade:
    """score: 1.0, 0.0, or None where the gold is unverifiable. extracted: the box as it stands, trimmed."""

    status: GradeStatus
    score: float | None
    extracted: str | None

    @classmethod
    def of(cls, status: GradeStatus, extracted: str | None) -> Grade:
        """The grade of a status, whose score follows from it."""
        score = None if status is GradeStatus.UNVERIFIABLE else float(status is GradeStatus.CORRECT)
        return cls(status, score, extracted)


_STATUS = {True: GradeStatus.CORRECT, False: GradeStatus.INCORRECT}
_INTEGER = re.compile(r"[-+]?[0-9]{1,300}")


def grade_fast(gold: str, response: str) -> Grade | None:
    """The grade by our own rules, in this process, in microseconds; None where math-verify has to decide."""
    extracted = last_boxed(response)
    if extracted is not None and _INTEGER.fullmatch(extracted) and _INTEGER.fullmatch(gold):
        return Grade.of(_STATUS[int(extracted) == int(gold)], extracted)
    if not verifiable(gold):
        return Grade.of(GradeStatus.UNVERIFIABLE, extracted)
    if extracted is None:
        return Grade.of(GradeStatus.NO_ANSWER, None)
    try:
        decided = compare_plain(plain(gold), normalise(extracted))
    except TooBig:
        return Grade.of(GradeStatus.TIMEOUT, extracted)
    return None if decided is None else Grade.of(_STATUS[decided], extracted)
