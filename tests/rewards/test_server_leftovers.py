"""A grader that has used its pool leaves nothing, also in shared memory."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from relax_core.rewards.grading import GradeStatus
from relax_core.rewards.pool import Grader


def semaphores(grader: Grader) -> set[Path]:
    """Those that the processes of this grader hold: other processes of the machine may have some of their own."""
    assert grader._server is not None
    server = psutil.Process(grader._server.pid)
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in [server, *server.children(recursive=True)]]
    return {Path(line.split()[5]) for text in maps for line in text.splitlines() if "/dev/shm/sem.mp-" in line}


@pytest.mark.slow
def test_a_closed_grader_leaves_no_semaphore() -> None:
    with Grader(workers=1) as grader:
        (grade,) = grader.grade_many([("\\sin x", "\\boxed{\\sin(x)}")])
        held = semaphores(grader)
        assert held and all(path.exists() for path in held), "no semaphore in use: the test would show nothing"
    assert grade.status is GradeStatus.CORRECT
    assert [path for path in held if path.exists()] == []
