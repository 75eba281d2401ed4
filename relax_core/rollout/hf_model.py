"""A Hugging Face folder as the model that the transformers engine runs: what is accepted, loaded, replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from relax_core.errors import ModelError

# Their decoder layers take the same arguments and add nothing between embedding, layers, norm and head.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
# Frequencies of the other kinds depend on the length of the batch, so a token's logits would depend on its neighbours.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def load(folder: Path, dtype: torch.dtype, device: torch.device, attention: str) -> Any:
    """The model of a folder, in evaluation mode, every weight from its safetensors files.

    Raises: ModelError for a folder that is missing or incomplete and for an architecture that is not supported.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds no config.json. A model is a Hugging Face folder.")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    _check_architecture(folder, config)
    if not list(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} holds no *.safetensors. Convert the weights with save_pretrained.")
    with _no_progress_bar():
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    wrong = sorted({*info["missing_keys"], *(str(key) for key in info["mismatched_keys"])})
    if wrong:
        # transformers would go on with random numbers in their place.
        raise ModelError(
            f"{folder} lacks weights, or has them in another shape: {', '.join(wrong[:5])} ({len(wrong)} in all)."
        )
    return model.to(device).eval().requires_grad_(False)


def stop_ids(folder: Path, config: Any) -> frozenset[int]:
    """Every end-of-sequence id: of generation_config.json, else of the model's configuration, else of the tokenizer.

    Raises: ModelError when none names one, or one is not in the vocabulary.
    """
    generation = folder / "generation_config.json"
    named = json.loads(generation.read_text()).get("eos_token_id") if generation.is_file() else None
    if named is None:
        named = config.eos_token_id
    if named is None and (folder / "tokenizer_config.json").is_file():
        named = AutoTokenizer.from_pretrained(folder, local_files_only=True).eos_token_id
    ids = frozenset([named] if isinstance(named, int) else named or [])
    if not ids:
        raise ModelError(
            f"{folder} names no end-of-sequence token: no reply could end. Set eos_token_id in generation_config.json."
        )
    if outside := sorted(i for i in ids if not 0 <= i < config.vocab_size):
        raise ModelError(
            f"{folder}: end-of-sequence ids {outside} are outside of the vocabulary of {config.vocab_size}."
        )
    return ids


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the safetensors files of a folder, by name.

    Raises: ModelError for a folder without such a file.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} holds no *.safetensors to take weights from.")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def replace_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Copy every weight in place, by Hugging Face name. All are checked before the first is written.

    A model with tied embeddings takes lm_head.weight too, where it equals the embedding.

    Raises: ModelError for names that are missing or unknown, for other shapes, and for a head that differs from the
    embedding it is tied to.
    """
    own = dict(model.named_parameters())
    given = dict(weights)
    if "lm_head.weight" not in own and "lm_head.weight" in given:
        head = given.pop("lm_head.weight")
        embedding = given.get("model.embed_tokens.weight")
        if embedding is not None and not torch.equal(head, embedding):
            raise ModelError(
                "lm_head.weight differs from model.embed_tokens.weight, but this model ties them. Send one."
            )
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    if missing or unknown:
        raise ModelError(
            f"Weights do not fit the model: missing {missing[:5]}, unknown {unknown[:5]}. Send each of its weights."
        )
    for name, parameter in own.items():
        if given[name].shape != parameter.shape:
            raise ModelError(f"{name} has shape {tuple(given[name].shape)}; the model has {tuple(parameter.shape)}.")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(given[name])


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers draws a bar for each load, which in a worker process is noise in a log."""
    if not transformers_logging.is_progress_bar_enabled():
        yield
        return
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()


def _check_architecture(folder: Path, config: Any) -> None:
    if config.model_type not in ARCHITECTURES:
        raise ModelError(f"{folder} is of type {config.model_type!r}; supported: {', '.join(ARCHITECTURES)}.")
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise ModelError(
            f"{folder} uses sliding-window attention, which is not supported. Set use_sliding_window to false."
        )
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in _ROPE_TYPES:
        raise ModelError(f"{folder} uses rotary embeddings of type {rope!r}; supported: {', '.join(_ROPE_TYPES)}.")
