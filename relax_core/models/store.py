"""The store of base models: Hugging Face folders by content, with a manifest, and an index from what was asked to what was made.

    <root>/<digest>/model/          the folder, as from_pretrained loads it
    <root>/<digest>/manifest.json   files with size and sha256, the digest of the weights, how it was made; written last
    <root>/index/<key>.json         a plan -> the digest it gave

The digest is that of the files' names and bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from relax_core import digests, files, paths
from relax_core.errors import IntegrityError
from relax_core.refs import ModelRef

_REMEDY = "start the workflow again with `pyflyte run --overwrite-cache ...`, which makes it anew"


def lookup(key: str) -> ModelRef | None:
    """The model that this plan gave before, if it is whole; None if it must be made (anew)."""
    try:
        ref = ModelRef(digest=files.read_json(paths.models() / "index" / f"{key}.json")["digest"])
        folder(ref)
    except (FileNotFoundError, json.JSONDecodeError, IntegrityError):
        return None
    return ref


def put(key: str, origin: dict[str, Any], build: Callable[[Path], dict[str, Any]]) -> ModelRef:
    """Have `build` fill a folder, and put it in place under its digest; what `build` returns goes into the manifest.

    Several processes may make the same model: the first one's folder stays.
    """
    with files.scratch_folder(paths.models()) as scratch:
        model = scratch / "model"
        model.mkdir()
        facts = build(model)
        listing = {
            p.relative_to(model).as_posix(): {"bytes": p.stat().st_size, "sha256": digests.of_file(p)}
            for p in sorted(model.rglob("*"))
            if p.is_file()
        }
        digest = digests.of_value({name: entry["sha256"] for name, entry in listing.items()})
        files.write_json(
            scratch / "manifest.json", {"digest": digest, "files": listing, "origin": origin, "key": key, **facts}
        )
        files.put_folder(scratch, paths.models() / digest)
    files.write_json(paths.models() / "index" / f"{key}.json", {"digest": digest, "origin": origin})
    return ModelRef(digest=digest)


def manifest(ref: ModelRef) -> dict[str, Any]:
    """IntegrityError if the model is not there or its manifest is damaged."""
    if not re.fullmatch(r"[0-9a-f]{64}", ref.digest):
        raise IntegrityError(f"{ref.digest!r} is no digest of a base model (64 hexadecimal signs)")
    path = paths.models() / ref.digest / "manifest.json"
    try:
        found = dict(files.read_json(path))
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise IntegrityError(f"{path}: there is no whole base model of this digest; {_REMEDY}") from error
    if found.get("digest") != ref.digest:
        raise IntegrityError(f"{path}: describes a model of digest {found.get('digest')}; {_REMEDY}")
    return found


def folder(ref: ModelRef) -> Path:
    """The Hugging Face folder of a model, its files checked against the manifest (once per process)."""
    return _verified(ref, paths.models())


@lru_cache(maxsize=8)
def _verified(ref: ModelRef, root: Path) -> Path:
    model = root / ref.digest / "model"
    listing = manifest(ref)["files"]
    for name, entry in listing.items():
        path = model / name
        if not path.is_file() or path.stat().st_size != entry["bytes"] or digests.of_file(path) != entry["sha256"]:
            raise IntegrityError(f"{path}: missing or changed since it was stored; {_REMEDY}")
    if digests.of_value({name: entry["sha256"] for name, entry in listing.items()}) != ref.digest:
        raise IntegrityError(f"{model}: the manifest lists other files than the digest {ref.digest} names; {_REMEDY}")
    return model
