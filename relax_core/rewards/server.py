"""The grading server: a process of its own that holds the pebble pool of math-verify workers. `pool.Grader` starts and
ends it.

It is a process and not a pool inside the caller for three reasons: a multiprocessing worker would run the caller's main
module again (`pyflyte`, Ray's worker), the fork server would stay in the caller after the pool has ended, and all of it
can be ended by one signal. Started as `python -m relax_core.rewards.server FD WORKERS LIMIT_S MEMORY_MB`; over the
socket FD come batches of pairs, and a list of statuses goes back for each. It ends when the socket closes, so it does
not outlive its caller.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import Connection

import psutil
from pebble import ProcessPool

from relax_core.rewards import worker

TASKS_PER_WORKER = 500  # sympy's caches grow; a new worker costs some ten milliseconds


def status(future: Future[str]) -> str:
    """The status of one judged pair: whatever ended it has a name that is counted, and is never a silent 0."""
    problem = future.exception()
    if problem is None:
        return future.result()
    if isinstance(problem, BrokenProcessPool):
        raise problem  # says nothing about this pair
    return "timeout" if isinstance(problem, TimeoutError | MemoryError) else "error"


class Pool:
    """pebble's pool, made anew when it breaks: it does when an idle worker is killed from outside."""

    def __init__(self, workers: int, limit_s: float, memory_mb: int) -> None:
        self._limit_s = limit_s
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["relax_core.rewards.mathverify"])
        self._make = partial(ProcessPool, workers, TASKS_PER_WORKER, worker.start, (limit_s, memory_mb), context)
        self._pool = self._make()

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """The statuses of pairs, in order."""
        for _ in range(3):
            try:
                futures = [self._pool.schedule(worker.judge, pair, timeout=self._limit_s) for pair in pairs]
                return [status(future) for future in futures]
            except RuntimeError:  # BrokenProcessPool is one, and what pebble says of a broken pool at the next task
                self.stop()
                self._pool = self._make()
        raise BrokenProcessPool("three pools broke on one batch")

    def stop(self) -> None:
        """End the workers."""
        self._pool.stop()
        self._pool.join()


def serve(connection: Connection, workers: int, limit_s: float, memory_mb: int) -> None:
    """Answer batches until the caller closes the connection."""
    pool = Pool(workers, limit_s, memory_mb)
    try:
        while True:
            pairs = json.loads(connection.recv_bytes())
            connection.send_bytes(json.dumps(pool.judge(pairs)).encode())
    except (EOFError, ConnectionError):
        return  # the caller has closed, or is gone
    finally:
        pool.stop()
        _end_children()


def _end_children() -> None:
    """The fork server and the resource tracker of multiprocessing would end a moment after this process, and unwaited
    for.
    """
    children = psutil.Process().children(recursive=True)
    for child in children:
        child.kill()
    psutil.wait_procs(children, timeout=2)


def main(arguments: list[str]) -> None:
    """Entry point of the process."""
    fd, workers, limit_s, memory_mb = arguments
    serve(Connection(int(fd)), int(workers), float(limit_s), int(memory_mb))


if __name__ == "__main__":
    main(sys.argv[1:])
