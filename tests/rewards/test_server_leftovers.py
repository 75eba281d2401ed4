"""A grader that has used its pool leaves nothing, also in shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_core.rewards.grading import GradeStatus
from relax_core.rewards.pool import Grader


@pytest.mark.slow
def test_a_closed_grader_leaves_no_semaphore() -> None:
    before = set(Path("/dev/shm").iterdir())
    with Grader(workers=1) as grader:
        (grade,) = grader.grade_many([("\\sin x", "\\boxed{\\sin(x)}")])
        assert set(Path("/dev/shm").iterdir()) - before, "this answer did not need the pool: the test shows nothing"
    assert grade.status is GradeStatus.CORRECT
    assert set(Path("/dev/shm").iterdir()) - before == set()
