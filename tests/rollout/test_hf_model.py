from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_models import make_tokenizer, save_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from relax_core.errors import ModelError
from relax_core.rollout.hf_model import load, read_weights, stop_ids


def read(folder: Path) -> Any:
    return load(folder, torch.float32, torch.device("cpu"), "eager")


def edit(folder: Path, file: str, **changes: Any) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def stops(folder: Path) -> frozenset[int]:
    return stop_ids(folder, AutoConfig.from_pretrained(folder))


def test_a_folder_becomes_a_model_that_only_reads(model_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = read(model_folder)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert capfd.readouterr().err == ""  # no progress bar


def test_another_dtype_is_taken(model_folder: Path) -> None:
    assert load(model_folder, torch.bfloat16, torch.device("cpu"), "eager").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt2"}, r"type 'gpt2'; supported: llama, qwen2, qwen3"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]},
            "sliding",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rotary embeddings of type 'dynamic'",
        ),
    ],
)
def test_models_that_the_engine_would_run_wrongly_are_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    folder = save_model(tmp_path)
    edit(folder, "config.json", **config)
    with pytest.raises(ModelError, match=message):
        read(folder)


def test_an_incomplete_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        read(tmp_path / "nothing")
    folder = save_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if k != "model.norm.weight"}, folder / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ModelError, match=r"lacks weights.*model\.norm\.weight"):
        read(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        read(folder)
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        read_weights(folder)


def test_weights_are_read_from_all_files(model_folder: Path, tmp_path: Path) -> None:
    weights = load_file(model_folder / "model.safetensors")
    names = sorted(weights)
    save_file({n: weights[n] for n in names[:5]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({n: weights[n] for n in names[5:]}, tmp_path / "model-00002-of-00002.safetensors")
    found = read_weights(tmp_path)
    assert sorted(found) == names
    assert all(torch.equal(found[n], weights[n]) for n in names)


def test_end_tokens_come_from_the_generation_config_first(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    edit(folder, "config.json", eos_token_id=2)
    edit(folder, "generation_config.json", eos_token_id=[3, 4])
    assert stops(folder) == {3, 4}
    edit(folder, "generation_config.json", eos_token_id=5)
    assert stops(folder) == {5}


@pytest.mark.parametrize("how", ["without", "empty"])
def test_end_tokens_come_from_the_config_then_from_the_tokenizer(tmp_path: Path, how: str) -> None:
    folder = save_model(tmp_path)
    if how == "without":
        (folder / "generation_config.json").unlink()
    else:
        edit(folder, "generation_config.json", eos_token_id=None)
    edit(folder, "config.json", eos_token_id=[6, 7])
    assert stops(folder) == {6, 7}
    edit(folder, "config.json", eos_token_id=None)
    with pytest.raises(ModelError, match="names no end-of-sequence token"):
        stops(folder)
    make_tokenizer().save_pretrained(folder)
    assert stops(folder) == {2}


def test_an_end_token_of_zero_is_one(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    edit(folder, "generation_config.json", eos_token_id=0)
    assert stops(folder) == {0}


def test_an_end_token_outside_of_the_vocabulary_is_refused(chain: Callable[..., Path]) -> None:
    folder = chain({})
    edit(folder, "generation_config.json", eos_token_id=[2, 16])
    with pytest.raises(ModelError, match=r"\[16\].*vocabulary of 16"):
        stops(folder)
