"""Nothing is left behind, however a run ends.

What must be ended or removed is registered here. At a normal exit it is done by `finish`; SIGTERM and Ctrl-C do the same and
leave with exit code 130 (with Ray up, an unhandled SIGTERM aborts without exit hooks). What `kill -9` leaves is removed by the
next start: the folders of a process are listed in a file that carries its pid.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import psutil

from relax_core import files, paths

_folders: list[Path] = []
_endings: list[Callable[[], None]] = []
_owner = os.getpid()
EXIT_CODE = 130


def _record(pid: int, started: float) -> Path:
    return paths.temporary() / f"process-{pid}-{int(started * 100)}.json"


def _own_record() -> Path:
    return _record(os.getpid(), psutil.Process().create_time())


def remove_at_end(folder: Path) -> None:
    """Have a folder outside the artifacts removed when this process ends, or by the next start if it is killed."""
    if folder not in _folders:
        _folders.append(folder)
        files.write_json(_own_record(), [str(f) for f in _folders])
        _register()


def use_own_temporary_folder() -> Path:
    """Have this process and those that it starts make their temporary files in one short folder, which is removed at the end.

    Not below the artifacts: the path of a socket in it must stay under about 100 characters.
    """
    folder = Path(tempfile.gettempdir())
    if folder not in _folders:
        folder = Path(tempfile.mkdtemp(prefix=f"relax-{os.getpid()}-"))
        remove_at_end(folder)
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    return folder


def call_at_end(ending: Callable[[], None]) -> None:
    """Have something ended when this process ends; the last one registered is ended first."""
    if ending not in _endings:
        _endings.append(ending)
        _register()


def _register() -> None:
    atexit.unregister(finish)
    atexit.register(finish)


def finish() -> None:
    """End and remove everything registered. Called twice it does nothing the second time; a forked child does nothing."""
    if os.getpid() != _owner:
        return
    while _endings:
        _endings.pop()()
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)
    _own_record().unlink(missing_ok=True)


def sweep() -> None:
    """Remove what processes that were killed have left."""
    for record in paths.temporary().glob("process-*.json"):
        pid, started = record.stem.split("-")[1:]
        try:
            alive = abs(psutil.Process(int(pid)).create_time() - int(started) / 100) < 1.0
        except psutil.NoSuchProcess:
            alive = False
        if not alive:
            for folder in files.read_json(record):
                shutil.rmtree(folder, ignore_errors=True)
            record.unlink(missing_ok=True)


def on_signals(last_words: Callable[[], str]) -> None:
    """End cleanly on SIGTERM and SIGINT: everything registered, then one line for people, exit code 130.

    Call it again after a library has set handlers of its own.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, signal.SIG_IGN)
        words = last_words()
        finish()
        print(words, file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(EXIT_CODE)

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)
