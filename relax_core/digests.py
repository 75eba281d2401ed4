"""Digests: what a thing is, independent of where it lies. Always the full sha256 in hexadecimal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_BLOCK = 1 << 20


def of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, no NaN, unicode as it is."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def of_value(value: Any) -> str:
    """Digest of a JSON value."""
    return of_bytes(canonical_json(value).encode())


def of_file(path: Path) -> str:
    h = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(_BLOCK):
            h.update(block)
    return h.hexdigest()


def of_files(folder: Path, names: Iterable[str]) -> str:
    """Digest of the named files of a folder: relative names and bytes, in the order of the names."""
    return of_value({name: of_file(folder / name) for name in sorted(names)})


def of_tree(folder: Path) -> str:
    """Digest of a folder: the relative path and the bytes of every file below it."""
    return of_files(folder, (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()))
