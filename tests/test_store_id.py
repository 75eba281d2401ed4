"""The id of a store."""

import subprocess
import sys
from pathlib import Path

import pytest

from relax_core.errors import IntegrityError
from relax_core.store_id import store_id


def test_it_is_made_once(tmp_path: Path) -> None:
    first = store_id(tmp_path / "a")
    assert store_id(tmp_path / "a") == first
    assert store_id(tmp_path / "b") != first


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    code = "import sys, pathlib; from relax_core.store_id import store_id; print(store_id(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(tmp_path / "s")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    ids = {process.communicate()[0] for process in running}
    assert len(ids) == 1
    assert [p.name for p in (tmp_path / "s").iterdir()] == ["store"]  # nothing temporary is left


def test_a_damaged_id_is_refused(tmp_path: Path) -> None:
    store_id(tmp_path)
    (tmp_path / "store" / "id").write_text("")
    with pytest.raises(IntegrityError, match="holds no store id"):
        store_id(tmp_path)
