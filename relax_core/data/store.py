"""The store of cleaned datasets: content-addressed Parquet shards with a manifest, and an index from what was asked
to what was made.

    <root>/<digest>/manifest.json        the marker, written last; names the shards with their sizes and digests
    <root>/<digest>/train-00000.parquet  the rows of the training side, in order; then eval-00000.parquet ...
    <root>/index/<key>.json              a derivation: the inputs, rules and code that gave this dataset

The digest of a dataset is that of its content (see `content`) and of nothing else: how it is cut into shards, when
and by which file name it was made are not in it. Two derivations may give the same dataset; each keeps its record in
the index, and the manifest holds the one that came first.

Folders appear by one rename. What is opened is checked: the bytes of each shard against the manifest, the cells
against the digest that is the folder's name.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from relax_core import digests, files
from relax_core.data import schema
from relax_core.data.content import ContentDigest, of_table
from relax_core.errors import IntegrityError
from relax_core.refs import DatasetRef

SIDES = ("train", "eval")
SHARD_ROWS = 100_000

_MANIFEST = "manifest.json"
_REMEDY = "start the workflow again with `pyflyte run --overwrite-cache ...`, which makes the dataset anew"
# A temporary folder of a process that is not alive here is left for so long: it may live on another machine.
_ABANDONED_S = 3600.0


class SideWriter:
    """Writes one side of a dataset as shards and digests its content on the way."""

    def __init__(self, folder: Path, side: str, shard_rows: int = SHARD_ROWS) -> None:
        self._folder = folder
        self._side = side
        self._shard_rows = shard_rows
        self._content = ContentDigest(schema.ROW)
        self._shards: list[dict[str, Any]] = []
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows (schema ROW)."""
        self._content.update(batch)
        while batch.num_rows:
            part = batch.slice(0, self._shard_rows - self._waiting_rows)
            batch = batch.slice(part.num_rows)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            if self._waiting_rows == self._shard_rows:
                self._flush()

    def close(self) -> dict[str, Any]:
        """Write what waits, and return the side's part of the manifest."""
        self._flush()
        return {"digest": self._content.hexdigest(), "rows": self._content.rows, "shards": self._shards}

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        path = self._folder / f"{self._side}-{len(self._shards):05d}.parquet"
        pq.write_table(pa.Table.from_batches(self._waiting, schema.ROW), path, compression="zstd")
        self._shards.append(
            {
                "name": path.name,
                "rows": self._waiting_rows,
                "bytes": path.stat().st_size,
                "sha256": digests.of_file(path),
            }
        )
        self._waiting, self._waiting_rows = [], 0


def dataset_digest(sides: dict[str, dict[str, Any]]) -> str:
    """Digest of a dataset from the content digests of its sides (these hold names and types of the columns too)."""
    return digests.of_value({"format": schema.FORMAT, **{side: sides[side]["digest"] for side in SIDES}})


@dataclass(frozen=True)
class Dataset:
    """An opened dataset. The sides are read, and their cells checked against the digest, at the first use."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def digest(self) -> str:
        return str(self.manifest["digest"])

    @cached_property
    def train(self) -> pa.Table:
        return self._table("train")

    @cached_property
    def evaluation(self) -> pa.Table:
        return self._table("eval")

    def train_rows(self, indices: list[int]) -> list[schema.Row]:
        """The training rows at these places, in this order."""
        return list(schema.rows_of(self.train.take(pa.array(indices, pa.int64()))))

    @cached_property
    def evaluation_rows(self) -> tuple[schema.Row, ...]:
        return tuple(schema.rows_of(self.evaluation))

    def _table(self, side: str) -> pa.Table:
        entry = self.manifest["sides"][side]
        tables = [_read_shard(self.folder / shard["name"]) for shard in entry["shards"]]
        table = pa.concat_tables(tables) if tables else schema.ROW.empty_table()
        schema.check(table.schema, f"dataset {self.digest}, side {side}")
        if (found := of_table(table)) != entry["digest"]:
            raise IntegrityError(
                f"{self.folder}: the rows of the {side} side have digest {found}, not {entry['digest']}; {_REMEDY}"
            )
        return table


def _read_shard(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read()
    except (OSError, pa.ArrowInvalid) as e:
        raise IntegrityError(f"{path}: the shard cannot be read ({e}); {_REMEDY}") from e


class Store:
    """The datasets below one folder. Several processes may use it at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # ---- reading ----

    def open(self, ref: DatasetRef) -> Dataset:
        """Open a dataset; IntegrityError if it is not there, or a shard is missing, cut off or changed."""
        folder = self._folder(ref.digest)
        manifest = self._manifest(folder, ref.digest)
        for side in SIDES:
            for shard in manifest["sides"][side]["shards"]:
                _check_shard(folder / shard["name"], shard)
        return Dataset(folder, manifest)

    def lookup(self, key: str) -> DatasetRef | None:
        """The dataset that this derivation gave before, if it is whole; None if it must be made (anew)."""
        record = self.derivation(key)
        if record is None:
            return None
        ref = DatasetRef(digest=record["digest"])
        try:
            self.open(ref)
        except IntegrityError:
            return None
        return ref

    def derivation(self, key: str) -> dict[str, Any] | None:
        """The record of a derivation, or None."""
        try:
            record = files.read_json(self._index(key))
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        whole = isinstance(record, dict) and record.get("format") == schema.FORMAT and record.get("key") == key
        return record if whole else None

    def datasets(self) -> list[DatasetRef]:
        """The datasets that have a manifest, sorted by digest."""
        found = self.root.glob(f"*/{_MANIFEST}")
        return [DatasetRef(digest=p.parent.name) for p in sorted(found) if re.fullmatch(r"[0-9a-f]{64}", p.parent.name)]

    # ---- writing ----

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A folder of one's own inside the store (so that renames stay on one disk), removed at the end."""
        self.sweep()
        with files.scratch_folder(self.root) as folder:
            yield folder

    def put(self, shards: Path, sides: dict[str, dict[str, Any]], key: str, derivation: dict[str, Any]) -> DatasetRef:
        """Make the folder `shards` (of a workspace, holding what the writers of `sides` wrote) the dataset of its digest.

        A whole dataset of the same digest stays as it is; a damaged one is replaced. The derivation is recorded under `key`.
        """
        digest = dataset_digest(sides)
        folder = self._folder(digest)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        manifest = {
            "format": schema.FORMAT,
            "digest": digest,
            "schema": schema.describe(schema.ROW),
            "sides": sides,
            "derivation": derivation,
            "parents": [],
            "created": created,
        }
        files.write_json(shards / _MANIFEST, manifest)
        with self._lock():
            if folder.exists() and not self._is_whole(digest):
                with files.scratch_folder(self.root, "damaged") as away:
                    folder.rename(away / digest)
            files.put_folder(shards, folder)
        record = {"format": schema.FORMAT, "key": key, "digest": digest, "derivation": derivation, "created": created}
        files.write_json(self._index(key), record)
        return DatasetRef(digest=digest)

    def sweep(self) -> None:
        """Remove what killed writers left: temporary names of processes that are gone, untouched for an hour."""
        for path in (*self.root.glob(".*.tmp"), *self.root.glob("index/.*.tmp")):
            found = re.search(r"\.(\d+)-[0-9a-f]{8}\.tmp$", path.name)
            if found and not _alive(int(found[1])) and _idle_s(path) > _ABANDONED_S:
                path.unlink(missing_ok=True) if path.is_file() else shutil.rmtree(path, ignore_errors=True)

    # ---- inside ----

    def _folder(self, digest: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise IntegrityError(f"{digest!r} is no digest of a dataset (64 hexadecimal signs)")
        return self.root / digest

    def _index(self, key: str) -> Path:
        return self.root / "index" / f"{key}.json"

    def _manifest(self, folder: Path, digest: str) -> dict[str, Any]:
        path = folder / _MANIFEST
        try:
            manifest = files.read_json(path)
            format_, claimed = manifest["format"], dataset_digest(manifest["sides"])
        except FileNotFoundError as e:
            raise IntegrityError(f"{path}: there is no dataset of this digest; {_REMEDY}") from e
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as e:
            raise IntegrityError(f"{path}: the manifest is damaged ({e!r}); {_REMEDY}") from e
        if format_ != schema.FORMAT:
            raise IntegrityError(f"{path}: format {format_}, and this version reads format {schema.FORMAT}; {_REMEDY}")
        if claimed != digest:
            raise IntegrityError(f"{path}: describes a dataset of digest {claimed}, not {digest}; {_REMEDY}")
        return dict(manifest)

    def _is_whole(self, digest: str) -> bool:
        try:
            self.open(DatasetRef(digest=digest))
        except IntegrityError:
            return False
        return True

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One writer at a time puts a dataset in place (the system frees the lock of a process that dies)."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _check_shard(path: Path, shard: dict[str, Any]) -> None:
    if not path.is_file():
        raise IntegrityError(f"{path}: the shard is missing; {_REMEDY}")
    size = path.stat().st_size
    if size != shard["bytes"]:
        raise IntegrityError(f"{path}: the shard has {size} bytes, not {shard['bytes']}; {_REMEDY}")
    if digests.of_file(path) != shard["sha256"]:
        raise IntegrityError(f"{path}: the bytes of the shard have changed; {_REMEDY}")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _idle_s(path: Path) -> float:
    """Seconds since a file, or anything in a folder, changed."""
    newest = 0.0
    for part in (path, *path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, part.stat().st_mtime)
    return time.time() - newest
