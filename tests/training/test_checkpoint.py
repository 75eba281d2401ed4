"""Checkpoints: continue bit for bit, use only what is whole, order by number, keep the last and the best."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import training_checks as checks

from relax_core import files
from relax_core.errors import IntegrityError
from relax_core.training import checkpoint


class Writer:
    """Stands for a trainer: it writes two files."""

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_bytes(b"w" * 100)

    def save_hf(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}", encoding="utf-8")


class Dies(Writer):
    def save_hf(self, folder: Path) -> None:
        raise KeyboardInterrupt


def write(root: Path, *steps: int) -> None:
    for step in steps:
        checkpoint.write_checkpoint(checkpoint.folder_of(root, step), Writer(), {"step": step})


def steps_of(root: Path) -> list[int]:
    return [step for step, _ in checkpoint.complete_checkpoints(root)]


def test_the_newest_whole_checkpoint_by_number(tmp_path, caplog):
    """Bug case S-27: 20 lacks parts, 30 has a file cut to half, 9 and 100 would be sorted wrongly as text."""
    write(tmp_path, 9, 10, 20, 30)
    (tmp_path / "step-20" / checkpoint.MARKER).unlink()
    (tmp_path / "step-30" / "trainer" / "weights").write_bytes(b"w" * 50)
    with caplog.at_level(logging.WARNING):
        assert steps_of(tmp_path) == [9, 10]
    assert "step-20" in caplog.text and "step-30" in caplog.text and "size 50" in caplog.text
    assert checkpoint.newest_checkpoint(tmp_path) == (10, tmp_path / "step-10")
    assert checkpoint.newest_checkpoint(tmp_path, at_most=9) == (9, tmp_path / "step-9")
    assert checkpoint.newest_checkpoint(tmp_path, at_most=8) is None
    write(tmp_path, 100)
    assert steps_of(tmp_path)[-1] == 100
    assert checkpoint.newest_checkpoint(tmp_path) == (100, tmp_path / "step-100")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f: (f / "trainer" / "weights").write_bytes(b"x" * 100), "sha256"),
        (lambda f: (f / "hf" / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "state.json").write_text("{}", encoding="utf-8"), "state.json has size"),
    ],
)
def test_every_file_is_checked(damage, reason, tmp_path):
    write(tmp_path, 1)
    folder = checkpoint.folder_of(tmp_path, 1)
    damage(folder)
    assert reason in checkpoint.problem_of(folder)
    with pytest.raises(IntegrityError, match="step-1"):
        checkpoint.read_state(folder)


def test_an_interrupted_save_leaves_nothing_that_counts(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write_checkpoint(checkpoint.folder_of(tmp_path, 5), Dies(), {})
    assert list(tmp_path.iterdir()) == []


def test_a_broken_folder_is_written_anew_and_a_whole_one_is_left(tmp_path):
    write(tmp_path, 3)
    folder = checkpoint.folder_of(tmp_path, 3)
    inode = folder.stat().st_ino
    checkpoint.write_checkpoint(folder, Writer(), {"step": 3, "other": True})
    assert folder.stat().st_ino == inode
    (folder / "trainer" / "weights").unlink()
    checkpoint.write_checkpoint(folder, Writer(), {"step": 3})
    assert steps_of(tmp_path) == [3]


def test_the_last_and_the_best_are_kept(tmp_path):
    write(tmp_path, 2, 4, 9, 10)
    (tmp_path / "step-3").mkdir()  # what a killed save of an older version left
    (tmp_path / ".step-11.77-abc.tmp").mkdir()
    removed = checkpoint.keep_last_and(tmp_path, best=4)
    assert steps_of(tmp_path) == [4, 10]
    assert sorted(p.name for p in removed) == [".step-11.77-abc.tmp", "step-2", "step-3", "step-9"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-10", "step-4"]
    assert checkpoint.keep_last_and(tmp_path, best=None) == [tmp_path / "step-4"]


def test_no_folder_is_no_checkpoint(tmp_path):
    assert checkpoint.complete_checkpoints(tmp_path / "none") == []
    assert checkpoint.keep_last_and(tmp_path / "none", best=1) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_loaded_trainer_goes_on_as_the_saved_one(dtype, models, world, tmp_path):
    result = world(checks.save_and_continue, models["qwen3_tied"], tmp_path, replace(checks.SPEC, dtype=dtype))
    assert result["saved"] == result["loaded"] != result["digests"][0]
    assert result["losses"][0] == result["losses"][1]
    assert result["digests"][0] == result["digests"][1]
    ((step, folder),) = checkpoint.complete_checkpoints(tmp_path)
    assert step == 2
    assert checkpoint.read_state(folder) == {"step": 2, "digest": result["saved"], "cursor": [3, 4]}


def test_the_weights_load_without_megatron(models, world, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    from relax_core.training import hf_weights

    result = world(checks.save_and_continue, models["qwen3_untied"], tmp_path)
    folder = checkpoint.folder_of(tmp_path, 2) / "hf"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert hf_weights.digest(dict(model.named_parameters())) == result["saved"]


def test_the_folder_and_its_files_are_readable_by_others_as_the_umask_says(models, world, tmp_path):
    world(checks.save_and_continue, models["llama"], tmp_path)
    folder = checkpoint.folder_of(tmp_path, 2)
    modes = {p.name: p.stat().st_mode & 0o044 for p in folder.rglob("*") if p.is_file()}
    assert set(modes.values()) == {0o044}, modes
    assert files.read_json(folder / checkpoint.MARKER)["files"]
