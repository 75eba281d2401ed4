"""Files that are either whole or not there: written under a temporary name, synced, renamed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was written there replaces `path` when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        _sync_file(temporary)
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(root: Path, name: str = "work") -> Iterator[Path]:
    """A folder of one's own below `root` (so that a rename stays on one disk), removed at the end if it is still there."""
    root.mkdir(parents=True, exist_ok=True)
    temporary = root / f".{name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_folder(temporary: Path, path: Path) -> None:
    """Make a filled folder durable and rename it to `path`. Where a folder of that name is in place, that one stays.

    `path` must be a name that stands for its content (a digest), or one that only a single owner writes.
    """
    for p in sorted(temporary.rglob("*"), reverse=True):
        sync_folder(p) if p.is_dir() else _sync_file(p)
    sync_folder(temporary)
    try:
        temporary.rename(path)
    except OSError:
        if not path.is_dir():
            raise
    sync_folder(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` when the block ends well (see `put_folder`)."""
    with scratch_folder(path.parent, path.name) as temporary:
        yield temporary
        put_folder(temporary, path)


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
