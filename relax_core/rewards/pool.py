"""Grading of many replies: our own rules in this process, math-verify in worker processes that can be killed.

    with Grader() as grader:
        grades = grader.grade_many([("4", "so it is \\\\boxed{4}"), ...])

Works from any thread, inside a Ray actor and under any main module. Nothing is started before the first answer that
needs it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType

import psutil

from relax_core.errors import RunError
from relax_core.rewards.boxed import last_boxed
from relax_core.rewards.equality import compare, plain
from relax_core.rewards.grading import Grade, GradeStatus, grade_fast

_START_S = 60.0  # for the server to start on a loaded machine
_SLACK_S = 5.0  # per worker that has to be killed and replaced, and for the way of the answers
_END_S = 5.0
_GONE_S = 1.0  # killed processes are gone at once, where process 1 reaps them


class Grader:
    """A pool of graders; a context manager. One call at a time is served, further threads wait.

    workers: processes for what needs math-verify. limit_s: seconds for one such answer. memory_mb: address space of one
    worker.
    """

    def __init__(self, workers: int = 2, limit_s: float = 5.0, memory_mb: int = 2048) -> None:
        self._workers = workers
        self._limit_s = limit_s
        self._memory_mb = memory_mb
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def grade_many(self, pairs: Sequence[tuple[str, str]]) -> list[Grade]:
        """The grades of (gold, response) pairs: as many, in the same order, whatever happens to any of them."""
        fast = [grade_fast(gold, response) for gold, response in pairs]
        boxes = {at: last_boxed(pairs[at][1]) or "" for at, grade in enumerate(fast) if grade is None}
        texts = {at: (plain(pairs[at][0]), plain(box)) for at, box in boxes.items()}
        statuses = self._ask(list(texts.values()))
        return [Grade.of(statuses[texts[at]], boxes[at]) if grade is None else grade for at, grade in enumerate(fast)]

    def equal_many(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """For each pair of final answers whether they are the same; what cannot be read within the limits is not."""
        decided = [compare(left, right) for left, right in pairs]
        texts = [(plain(left), plain(right)) for left, right in pairs]
        statuses = self._ask([pair for pair, known in zip(texts, decided, strict=True) if known is None])
        return [
            statuses[pair] is GradeStatus.CORRECT if known is None else known
            for pair, known in zip(texts, decided, strict=True)
        ]

    def close(self) -> None:
        """End the server and its workers; nothing is left running. The grader can be used again afterwards."""
        with self._lock:
            self._end()

    def __enter__(self) -> Grader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], GradeStatus]:
        """math-verify's statuses of normalised pairs. A server that dies is started again, once."""
        wanted = list(dict.fromkeys(pairs))
        if not wanted:
            return {}
        with self._lock:
            answers = self._exchange(wanted)
            if answers is None:
                answers = self._exchange(wanted)
            if answers is None:
                raise RunError(
                    f"the grading server died twice on a batch of {len(wanted)} answers, with {self._workers} workers of"
                    f" at most {self._memory_mb} MB each: give the machine more memory or lower the number of workers"
                )
        return dict(zip(wanted, map(GradeStatus, answers), strict=True))

    def _exchange(self, pairs: list[tuple[str, str]]) -> list[str] | None:
        """One batch there and back; None if the server died or did not answer in time (it is ended then)."""
        connection = self._connection or self._start()
        deadline = _START_S + math.ceil(len(pairs) / self._workers) * (self._limit_s + _SLACK_S)
        answers: list[str] | None = None
        try:
            connection.send_bytes(json.dumps(pairs).encode())
            if connection.poll(deadline):
                answers = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            answers = None  # the server is gone
        finally:
            if answers is None:  # also when this call was interrupted: a late reply must not meet the next batch
                self._end()
        return answers

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), str(self._workers), str(self._limit_s), str(self._memory_mb)]
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-m", "relax_core.rewards.server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # The same modules as here, wherever this process found them.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # Ctrl-C reaches the caller alone, and one signal ends the whole group
            )
        self._connection = Connection(ours.detach())
        return self._connection

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()  # the server sees the end of its input and stops its pool
            self._connection = None
        server, self._server = self._server, None
        if server is None:
            return
        _end_group(server)


def _end_group(server: subprocess.Popen[bytes]) -> None:
    """Let the server end by itself, kill what is left of its process group, and wait until all of it is gone.

    The server is reaped last: until then its id is taken, so the signal cannot reach a group that came by the same number.
    """
    try:
        family = psutil.Process(server.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.01)
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    psutil.wait_procs(family, timeout=_GONE_S)
