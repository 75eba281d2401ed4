"""Files are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_core import digests, files


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(RuntimeError), files.atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), files.atomic_folder(tmp_path / "d") as temporary:
        (temporary / "a").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_of_two_writers_of_a_folder_the_first_stays(tmp_path: Path) -> None:
    with files.atomic_folder(tmp_path / "d") as one, files.atomic_folder(tmp_path / "d") as two:
        (one / "a").write_text("one")
        (two / "a").write_text("two")
    assert (tmp_path / "d" / "a").read_text() == "two", "the inner block ended first"
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_digest_names_content_and_relative_names_only(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "f").write_text("1")
    assert digests.of_tree(tmp_path / "x") == digests.of_tree(tmp_path / "y")
    (tmp_path / "y" / "sub" / "f").rename(tmp_path / "y" / "sub" / "g")
    assert digests.of_tree(tmp_path / "x") != digests.of_tree(tmp_path / "y")


def test_canonical_json_has_one_form_and_no_nan() -> None:
    assert digests.canonical_json({"b": 1, "a": [1.5, "é"]}) == '{"a":[1.5,"é"],"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        digests.of_value(float("nan"))
