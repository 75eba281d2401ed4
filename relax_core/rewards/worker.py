"""A grading worker: limits set once, then pairs. Light to import; math-verify is there already when the fork server has
preloaded it.
"""

from __future__ import annotations

import resource
import signal

_alarm_s = 0.0


def start(limit_s: float, memory_mb: int) -> None:
    """Set a worker up: SIGTERM ends it at once, even inside one long operation on integers, memory is bounded."""
    global _alarm_s
    _alarm_s = 2 * limit_s
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def judge(gold: str, answer: str) -> str:
    """`mathverify.judge` under the kernel's alarm, which ends this process should the pool that watches it be gone."""
    from relax_core.rewards import mathverify

    signal.setitimer(signal.ITIMER_REAL, _alarm_s)
    try:
        return mathverify.judge(gold, answer)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
