"""How an error of ours reaches a person: as its message and an exit code, not as a traceback."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from flytekit import FlyteContextManager
from flytekit.exceptions.user import FlyteUserException

from relax_core import cleanup
from relax_core.errors import RelaxError, UserError

P = ParamSpec("P")
T = TypeVar("T")


def plain_errors(body: Callable[P, T]) -> Callable[P, T]:
    """Under `pyflyte run`: the message on standard error, exit code 2 for wrong input and 1 for anything else.

    In a container an error of ours is a user error: it is not tried again.
    """

    @functools.wraps(body)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return body(*args, **kwargs)
        except RelaxError as error:
            state = FlyteContextManager.current_context().execution_state
            if state is None or not state.is_local_execution():
                raise FlyteUserException(str(error)) from error
            cleanup.finish()
            for line in str(error).splitlines():
                print(f"error: {line}", file=sys.stderr)
            raise SystemExit(2 if isinstance(error, UserError) else 1) from None

    return wrapped
