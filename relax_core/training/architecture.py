"""What a model is, read from the config.json of a Hugging Face folder: the Llama and Qwen3 families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relax_core import files
from relax_core.errors import ModelError

# What transformers assumes where a config.json is silent (a test compares it with the classes).
_COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "rope_theta": 10000.0,
    }
)
DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": MappingProxyType({**_COMMON, "max_position_embeddings": 2048, "mlp_bias": False}),
        "qwen3": MappingProxyType(
            {**_COMMON, "max_position_embeddings": 32768, "head_dim": 128, "use_sliding_window": False}
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes and choices of a decoder with grouped-query attention, rotary positions, RMSNorm and a gated SiLU MLP."""

    model_type: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    tied: bool
    """The output layer is the embedding."""
    qk_norm: bool
    """RMSNorm on queries and keys, per head (Qwen3)."""


def read(folder: Path) -> Architecture:
    """The architecture of a Hugging Face folder. ModelError: no config.json, or something that is not supported."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} has no config.json: a base model is a folder as save_pretrained writes it")
    return parse(files.read_json(path), str(folder))


def parse(config: Mapping[str, Any], where: str) -> Architecture:
    """The same from the contents of config.json; `where` names it in messages."""
    model_type = str(config.get("model_type"))
    if model_type not in DEFAULTS:
        raise ModelError(f"{where} has model_type {model_type!r}: it must be one of {', '.join(DEFAULTS)}")
    value = {**DEFAULTS[model_type], **config}
    rope = _rope(value, where)
    _refuse(value, rope, where)
    heads = int(value["num_attention_heads"])
    return Architecture(
        model_type=model_type,
        layers=int(value["num_hidden_layers"]),
        hidden=int(value["hidden_size"]),
        ffn=int(value["intermediate_size"]),
        heads=heads,
        kv_heads=int(value.get("num_key_value_heads") or heads),
        head_dim=int(value.get("head_dim") or value["hidden_size"] // heads),
        vocabulary=int(value["vocab_size"]),
        norm_eps=float(value["rms_norm_eps"]),
        rope_theta=float(rope["rope_theta"]),
        max_positions=int(value["max_position_embeddings"]),
        tied=bool(value["tie_word_embeddings"]),
        qk_norm=model_type == "qwen3",
    )


def _rope(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """rope_parameters (transformers 5), or rope_theta and rope_scaling (before)."""
    rope = {
        "rope_theta": value["rope_theta"],
        **(value.get("rope_scaling") or {}),
        **(value.get("rope_parameters") or {}),
    }
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ModelError(f"{where} scales its rotary positions ({kind}): only rope_type default is supported")
    return rope


def _refuse(value: Mapping[str, Any], rope: Mapping[str, Any], where: str) -> None:
    """Choices that the trainer has no counterpart for, all at once."""
    wrong = [
        f"{key} is {value[key]!r}, supported is {wanted!r}"
        for key, wanted in (
            ("hidden_act", "silu"),
            ("attention_bias", False),
            ("mlp_bias", False),
            ("use_sliding_window", False),
        )
        if value.get(key, wanted) != wanted
    ]
    if float(rope.get("partial_rotary_factor", 1.0)) != 1.0:
        wrong.append(f"partial_rotary_factor is {rope['partial_rotary_factor']!r}, supported is 1.0")
    if wrong:
        raise ModelError(f"{where} cannot be trained: " + "; ".join(wrong))
