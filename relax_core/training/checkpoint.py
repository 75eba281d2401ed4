"""Checkpoint folders of a run: whole or not there, found by number, the last and the best kept.

    <root>/step-<n>/trainer/       the trainer's state, in Megatron's distributed format
                    hf/            the same weights as a Hugging Face folder: no Megatron needed to load it
                    state.json     what the caller recorded (policy step, weight digest, data cursor, ...)
                    COMPLETE.json  size and sha256 of every file, written last

A folder gets its name by a rename after everything in it is on disk. One without its marker, or with a file that is not what
the marker says, is never used; a warning names it. This module imports neither torch nor Megatron.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from relax_core import digests, files
from relax_core.errors import IntegrityError

log = logging.getLogger(__name__)

MARKER = "COMPLETE.json"
STATE = "state.json"
_NAME = re.compile(r"step-(\d+)")


class Saves(Protocol):
    """What a checkpoint needs of a trainer."""

    def save(self, folder: Path) -> None: ...

    def save_hf(self, folder: Path) -> None: ...


def folder_of(root: Path, step: int) -> Path:
    """The checkpoint folder of a step below the folder of all checkpoints of a run."""
    return root / f"step-{step}"


def write_checkpoint(folder: Path, trainer: Saves, state: Mapping[str, Any]) -> None:
    """Write a checkpoint; `state` is kept as JSON. A complete folder of that name stays as it is, a broken one is replaced."""
    if folder.exists():
        if not problem_of(folder):
            return
        shutil.rmtree(folder)
    with files.atomic_folder(folder) as temporary:
        trainer.save(temporary / "trainer")
        trainer.save_hf(temporary / "hf")
        files.write_json(temporary / STATE, dict(state))
        files.write_json(temporary / MARKER, _listing(temporary))


def read_state(folder: Path) -> dict[str, Any]:
    """The recorded state of a checkpoint. IntegrityError: the folder is not what its marker says."""
    if problem := problem_of(folder):
        raise IntegrityError(
            f"checkpoint {folder} cannot be used: {problem}; remove the folder and resume from another one"
        )
    state: dict[str, Any] = files.read_json(folder / STATE)
    return state


def complete_checkpoints(root: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the checkpoints that can be used, by number, the oldest first; a warning names every other."""
    found = []
    for step, folder in _numbered(root):
        if problem := problem_of(folder):
            log.warning("checkpoint %s is passed over: %s", folder, problem)
        else:
            found.append((step, folder))
    return found


def newest_checkpoint(root: Path, *, at_most: int | None = None) -> tuple[int, Path] | None:
    """The last of `complete_checkpoints` (with at_most: of a step not above it), without reading the older ones."""
    for step, folder in reversed(_numbered(root)):
        if at_most is not None and step > at_most:
            continue
        if problem := problem_of(folder):
            log.warning("checkpoint %s is passed over: %s", folder, problem)
        else:
            return step, folder
    return None


def keep_last_and(root: Path, best: int | None) -> list[Path]:
    """Remove the checkpoints that are neither the last complete one nor that of step `best`; the removed folders.

    Unusable folders older than the last complete one go too, and what killed writers left behind.
    """
    last = max((step for step, folder in _numbered(root) if not _problem_outside(folder)), default=None)
    if last is None:
        return []
    removed = [folder for step, folder in _numbered(root) if step < last and step != best]
    removed += [folder for folder in root.glob(".step-*.tmp") if folder.is_dir()]
    for folder in removed:
        _remove(folder)
    return removed


def problem_of(folder: Path) -> str | None:
    """Why a checkpoint folder cannot be used, or None. Sizes are compared first, then every sha256."""
    if problem := _problem_outside(folder):
        return problem
    for name, wanted in _listed(folder).items():
        if (found := digests.of_file(folder / name)) != wanted["sha256"]:
            return f"{name} has sha256 {found}, {MARKER} says {wanted['sha256']}"
    return None


def _problem_outside(folder: Path) -> str | None:
    """The same without reading the contents of the files."""
    if not (folder / MARKER).is_file():
        return f"it has no {MARKER}, so its writer did not finish"
    for name, wanted in _listed(folder).items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (found := (folder / name).stat().st_size) != wanted["size"]:
            return f"{name} has size {found}, {MARKER} says {wanted['size']}"
    return None


def _listed(folder: Path) -> dict[str, dict[str, Any]]:
    listed: dict[str, dict[str, Any]] = files.read_json(folder / MARKER)["files"]
    return listed


def _listing(folder: Path) -> dict[str, Any]:
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        "files": {
            p.relative_to(folder).as_posix(): {"size": p.stat().st_size, "sha256": digests.of_file(p)} for p in paths
        }
    }


def _numbered(root: Path) -> list[tuple[int, Path]]:
    """The checkpoint folders of a root in the order of their numbers: 9 before 10 before 100."""
    if not root.is_dir():
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in root.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def _remove(folder: Path) -> None:
    """The marker goes first, so that a removal that is cut short leaves no folder that looks complete."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder)
