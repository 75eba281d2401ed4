"""One start at a time owns a run: a lock in its folder that names who holds it. A dead owner's lock is taken over."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

_POLL_SECONDS = 0.5


def _me() -> dict[str, object]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "execution": os.environ.get("FLYTE_INTERNAL_EXECUTION_ID", ""),
    }


def _read(path: Path) -> dict[str, object] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _alive(owner: dict[str, object]) -> bool:
    """Whether an owner still works: by process on this host; another host's or execution's is trusted to."""
    if owner["execution"]:
        return True
    if owner["host"] != socket.gethostname():
        return True
    try:
        born = float(psutil.Process(int(str(owner["pid"]))).create_time())
        return abs(born - float(str(owner["started"]))) < 1.0
    except psutil.NoSuchProcess:
        return False


def _same(a: dict[str, object], b: dict[str, object]) -> bool:
    if a["execution"] or b["execution"]:
        return bool(a["execution"] == b["execution"])
    return all(a[k] == b[k] for k in ("host", "pid", "started"))


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Between reading and writing the lock nobody else does; the kernel frees this when a process dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".owner.guard").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def acquire(folder: Path, waiting: Callable[[str], None]) -> None:
    """Own the run in `folder`; while somebody alive does, say so once through `waiting` and wait for them to end."""
    path, me, told = folder / "owner.json", _me(), False
    while True:
        with _exclusive(folder):
            owner = _read(path)
            if owner is None or _same(owner, me) or not _alive(owner):
                path.write_text(json.dumps(me), encoding="utf-8")
                return
        if not told:
            who = owner["execution"] or f"process {owner['pid']} on {owner['host']}"
            waiting(
                f"{folder.name} is being run by {who}; waiting for it to end (remove {path} if it is gone for good)"
            )
            told = True
        time.sleep(_POLL_SECONDS)


def release(folder: Path) -> None:
    """Give the run up, if this process or execution owns it."""
    with _exclusive(folder):
        owner = _read(folder / "owner.json")
        if owner is not None and _same(owner, _me()):
            (folder / "owner.json").unlink()
