"""The store: content-addressed, atomic, and never trusting what lies there."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from relax_core.data import schema
from relax_core.data import store as module
from relax_core.data.store import SideWriter, Store, dataset_digest
from relax_core.errors import IntegrityError
from relax_core.refs import DatasetRef


def batch(start: int, count: int, **changed: Any) -> pa.RecordBatch:
    rows = [
        {
            "row_id": f"r{i}",
            "prompt": f"p{i}",
            "question": f"q{i}",
            "answer": str(i),
            "level": "1",
            "source_index": i,
            "source_digest": f"d{i}",
            **changed,
        }
        for i in range(start, start + count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema.ROW)


def put(
    store: Store, *, rows: int = 10, shard_rows: int = 4, key: str = "k", step: int = 3, **changed: Any
) -> DatasetRef:
    with store.workspace() as workspace:
        shards = workspace / "shards"
        shards.mkdir()
        train = SideWriter(shards, "train", shard_rows)
        for start in range(0, rows, step):
            train.write(batch(start, min(step, rows - start), **changed))
        evaluation = SideWriter(shards, "eval", shard_rows)
        evaluation.write(batch(100, 2))
        sides = {"train": train.close(), "eval": evaluation.close()}
        return store.put(shards, sides, key, {"made": "by a test"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "datasets")


def test_round_trip(store: Store) -> None:
    dataset = store.open(put(store))
    assert dataset.train.num_rows == 10
    assert dataset.train.schema.equals(schema.ROW)
    assert [row.row_id for row in dataset.train_rows([7, 0])] == ["r7", "r0"]
    assert dataset.evaluation_rows[1] == schema.Row(
        row_id="r101", prompt="p101", question="q101", answer="101", level="1", source_index=101, source_digest="d101"
    )
    assert [shard["rows"] for shard in dataset.manifest["sides"]["train"]["shards"]] == [4, 4, 2]
    assert dataset.manifest["derivation"] == {"made": "by a test"}
    assert dataset.manifest["schema"][0] == {"name": "row_id", "nullable": False, "type": "string"}
    assert not list(store.root.glob(".*.tmp"))


@pytest.mark.parametrize(("shard_rows", "step"), [(1, 10), (4, 1), (100, 7)])
def test_the_digest_does_not_depend_on_the_shards(store: Store, tmp_path: Path, shard_rows: int, step: int) -> None:
    assert put(Store(tmp_path / "other"), shard_rows=shard_rows, step=step) == put(store)


@pytest.mark.parametrize("changed", [{"answer": "0"}, {"level": None}, {"solution": ""}, {"source_index": 5}])
def test_the_digest_depends_on_every_cell(store: Store, changed: dict[str, Any]) -> None:
    assert put(store) != put(store, **changed)


def test_the_digest_tells_the_sides_apart() -> None:
    assert dataset_digest({"train": {"digest": "a"}, "eval": {"digest": "b"}}) != dataset_digest(
        {"train": {"digest": "b"}, "eval": {"digest": "a"}}
    )


def test_lookup_by_key(store: Store) -> None:
    assert store.lookup("k") is None
    ref = put(store)
    assert store.lookup("k") == ref
    assert store.lookup("other") is None
    assert put(store, key="other") == ref  # the same content made otherwise
    assert store.lookup("other") == ref
    assert store.datasets() == [ref]


def damage_cut(folder: Path) -> None:
    path = folder / "train-00001.parquet"
    path.write_bytes(path.read_bytes()[:-10])


def damage_bit(folder: Path) -> None:
    path = folder / "eval-00000.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_gone(folder: Path) -> None:
    (folder / "train-00002.parquet").unlink()


def damage_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"format": 1')


def damage_no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def damage_side_removed(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["sides"]["eval"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def damage_format(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))


def damage_folder(folder: Path) -> None:
    shutil.rmtree(folder)


DAMAGES = {
    damage_cut: r"train-00001.parquet: the shard has \d+ bytes, not \d+",
    damage_bit: "eval-00000.parquet: the bytes of the shard have changed",
    damage_gone: "train-00002.parquet: the shard is missing",
    damage_manifest: "the manifest is damaged",
    damage_no_manifest: "there is no dataset of this digest",
    damage_side_removed: "the manifest is damaged",
    damage_format: "format 99, and this version reads format 1",
    damage_folder: "there is no dataset of this digest",
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.items(), ids=lambda d: getattr(d, "__name__", ""))
def test_damage_is_noticed_named_and_mended(store: Store, damage: Any, message: str) -> None:
    ref = put(store)
    damage(store.root / ref.digest)
    with pytest.raises(IntegrityError, match=message) as caught:
        store.open(ref)
    assert "--overwrite-cache" in str(caught.value)
    assert store.lookup("k") is None  # so that it is made anew
    assert put(store) == ref
    assert store.open(ref).train.num_rows == 10
    assert not list(store.root.glob(".*.tmp"))


def test_a_folder_under_another_digest_is_refused(store: Store) -> None:
    ref = put(store)
    other = "0" * 64
    (store.root / ref.digest).rename(store.root / other)
    with pytest.raises(IntegrityError, match=f"describes a dataset of digest {ref.digest}, not {other}"):
        store.open(DatasetRef(digest=other))


def test_rows_that_do_not_have_the_digest_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards and manifest that agree with each other, but not with the digest of the content."""
    ref = put(store)
    folder = store.root / ref.digest
    other = store.root / put(store, rows=9, key="other").digest
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sides"]["train"]["shards"] = json.loads((other / "manifest.json").read_text())["sides"]["train"]["shards"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    shutil.copytree(other, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
    dataset = store.open(ref)
    with pytest.raises(IntegrityError, match="the rows of the train side have digest"):
        _ = dataset.train


def test_a_ref_that_is_no_digest_is_refused(store: Store) -> None:
    with pytest.raises(IntegrityError, match="is no digest of a dataset"):
        store.open(DatasetRef(digest="../x"))


def test_a_damaged_record_is_a_miss(store: Store) -> None:
    put(store)
    path = store.root / "index" / "k.json"
    for text in ("", "[]", path.read_text().replace('"k"', '"x"')):
        path.write_text(text)
        assert store.lookup("k") is None


def test_a_later_format_may_add_columns_but_not_lose_or_retype_one() -> None:
    schema.check(schema.ROW.append(pa.field("images", pa.list_(pa.binary()))), "x")
    with pytest.raises(IntegrityError, match="column answer is missing"):
        schema.check(pa.schema([field for field in schema.ROW if field.name != "answer"]), "x")
    with pytest.raises(IntegrityError, match="column source_index has type int32"):
        schema.check(schema.ROW.set(7, pa.field("source_index", pa.int32())), "x")


def test_what_a_killed_writer_left_is_removed(store: Store) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [store.root / f".work.{dead.pid}-0123abcd.tmp", store.root / f".work.{os.getpid()}-0123abcd.tmp"]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "spool").write_text("x")
    store.sweep()
    assert all(folder.exists() for folder in left)  # just touched
    old = time.time() - 2 * module._ABANDONED_S
    for path in (*(folder / "spool" for folder in left), *left):
        os.utime(path, (old, old))
    store.sweep()
    assert [folder.exists() for folder in left] == [False, True]  # the second one's process lives
