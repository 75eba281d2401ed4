"""Nothing is left behind: at a normal exit, on a signal, and after kill -9 by the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relax_core import cleanup, paths

CHILD = """
import sys, time
from pathlib import Path
from relax_core import cleanup
folder = Path(sys.argv[1]); folder.mkdir()
cleanup.remove_at_end(folder)
cleanup.call_at_end(lambda: print("ended", flush=True))
cleanup.on_signals(lambda: "stopped after step 3")
print("ready", flush=True)
if sys.argv[2] == "wait": time.sleep(60)
"""


def child(folder: Path, mode: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(folder), mode], text=True, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and what it said. (`communicate` would lose what the pipe's buffer holds already.)"""
    assert process.stdout is not None and process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    return process.wait(timeout=20), out, err


def records() -> list[Path]:
    return list(paths.temporary().glob("process-*"))


def test_a_normal_exit_ends_and_removes_everything(tmp_path: Path) -> None:
    process = child(tmp_path / "outside", "end")
    assert ended(process) == (0, "ended\n", "")
    assert not (tmp_path / "outside").exists() and records() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_does_the_same_and_leaves_with_130_and_last_words(tmp_path: Path, number: signal.Signals) -> None:
    process = child(tmp_path / "outside", "wait")
    process.send_signal(number)
    assert ended(process) == (130, "ended\n", "stopped after step 3\n")
    assert not (tmp_path / "outside").exists() and records() == []


def test_what_a_killed_process_left_the_next_start_removes_and_only_that(tmp_path: Path) -> None:
    killed, living = child(tmp_path / "killed", "wait"), child(tmp_path / "living", "wait")
    killed.kill()
    killed.communicate(timeout=20)
    assert (tmp_path / "killed").exists() and len(records()) == 2
    cleanup.sweep()
    assert not (tmp_path / "killed").exists() and (tmp_path / "living").exists() and len(records()) == 1
    living.terminate()
    living.communicate(timeout=20)
    assert records() == []


def test_a_forked_child_ends_nothing_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "_owner", os.getpid() + 1)
    monkeypatch.setattr(cleanup, "_endings", [pytest.fail])
    cleanup.finish()
