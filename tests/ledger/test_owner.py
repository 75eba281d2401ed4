"""One start at a time owns a run; a dead owner's lock is taken over."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from relax_core.ledger import owner

HOLD = "import sys, time; from pathlib import Path; from relax_core.ledger import owner; owner.acquire(Path(sys.argv[1]), print); print('owns', flush=True); time.sleep(60)"


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that owns the run in tmp_path."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "owns\n"
    yield process
    process.kill()
    process.wait()


def test_the_same_process_may_take_it_twice_and_give_it_up(tmp_path: Path) -> None:
    owner.acquire(tmp_path, pytest.fail)
    owner.acquire(tmp_path, pytest.fail)
    owner.release(tmp_path)
    assert not (tmp_path / "owner.json").exists()


def test_a_living_owner_is_waited_for_and_said_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    said: list[str] = []
    waiting = threading.Thread(target=owner.acquire, args=(tmp_path, said.append))
    waiting.start()
    time.sleep(1.5)
    assert waiting.is_alive(), "a run that somebody owns was taken"
    holder.kill()
    holder.wait()
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    (line,) = said
    assert f"process {holder.pid}" in line
    owner.release(tmp_path)


def test_what_somebody_else_owns_is_not_released(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    owner.release(tmp_path)
    assert json.loads((tmp_path / "owner.json").read_text())["pid"] == holder.pid


def test_a_flyte_execution_owns_it_from_whatever_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "a1")
    owner.acquire(tmp_path, pytest.fail)
    elsewhere = json.loads((tmp_path / "owner.json").read_text()) | {"host": "other", "pid": 1}
    (tmp_path / "owner.json").write_text(json.dumps(elsewhere))
    owner.acquire(tmp_path, pytest.fail)
    owner.release(tmp_path)
    assert not (tmp_path / "owner.json").exists()
