"""Who may touch a model when: a generation takes it step by step, a visitor (weight swap, pause) comes in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """Steps and visits exclude each other, and a waiting visit goes before the next step.

    A plain lock would not do: a loop that releases and takes it again keeps a waiting thread out for long. The lock
    here is held by a visit, but not during a step.
    """

    def __init__(self) -> None:
        self._door = threading.Condition()
        self._stepping = False
        self._visitors = 0
        self._held = False

    @contextmanager
    def step(self, unless: Callable[[], bool]) -> Iterator[bool]:
        """Wait for a turn, or until `unless` is true; the value says whether the turn was taken (True) or not.

        `unless` is evaluated with the lock held; whoever changes its answer does so in `noticed` or `visit`.
        """
        with self._door:
            self._door.wait_for(lambda: unless() or not (self._stepping or self._visitors or self._held))
            taken = not unless()
            if taken:
                self._stepping = True
        try:
            yield taken
        finally:
            if taken:
                with self._door:
                    self._stepping = False
                    self._door.notify_all()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Wait for the end of a running step; the next one begins after the visit."""
        with self._door:
            self._visitors += 1
            try:
                self._door.wait_for(lambda: not self._stepping)
                yield
            finally:
                self._visitors -= 1
                self._door.notify_all()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Change something that a waiting step looks at, without waiting for a running one."""
        with self._door:
            yield
            self._door.notify_all()

    def hold(self) -> None:
        """No further step until `release`. To be called inside a visit."""
        self._held = True

    def release(self) -> None:
        with self.noticed():
            self._held = False
