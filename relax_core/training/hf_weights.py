"""Weights under their Hugging Face names and as Megatron holds them, both ways, bitwise.

    Hugging Face                     Megatron (local layer specification)
    embed_tokens, lm_head            embedding.word_embeddings, output_layer (absent when tied)
    q_proj, k_proj, v_proj           self_attention.linear_qkv: per key-value head, its query heads, its key, its value
    o_proj, down_proj                self_attention.linear_proj, mlp.linear_fc2
    gate_proj, up_proj               mlp.linear_fc1: gate above up
    q_norm, k_norm                   self_attention.q_layernorm, k_layernorm
    input_, post_attention_layernorm input_layernorm, pre_mlp_layernorm
    norm                             decoder.final_layernorm

The functions take and give whole tensors; what a rank of a tensor-parallel group holds is a slice of them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from relax_core.errors import ModelError
from relax_core.training.architecture import Architecture

_EMBEDDING = ("model.embed_tokens.weight", "embedding.word_embeddings.weight")
_OUTPUT = ("lm_head.weight", "output_layer.weight")
_FINAL_NORM = ("model.norm.weight", "decoder.final_layernorm.weight")
_LAYER = (
    ("input_layernorm", "input_layernorm"),
    ("post_attention_layernorm", "pre_mlp_layernorm"),
    ("self_attn.o_proj", "self_attention.linear_proj"),
    ("mlp.down_proj", "mlp.linear_fc2"),
)
_QK_NORM = (("self_attn.q_norm", "self_attention.q_layernorm"), ("self_attn.k_norm", "self_attention.k_layernorm"))
_QKV = tuple(f"self_attn.{x}_proj" for x in "qkv")
_GATED = ("mlp.gate_proj", "mlp.up_proj")


def _renamed(a: Architecture) -> Iterator[tuple[str, str]]:
    """(Hugging Face name, Megatron name) of the weights that are the same tensor on both sides."""
    yield _EMBEDDING
    yield _FINAL_NORM
    if not a.tied:
        yield _OUTPUT
    for i in range(a.layers):
        for hf, megatron in _LAYER + (_QK_NORM if a.qk_norm else ()):
            yield f"model.layers.{i}.{hf}.weight", f"decoder.layers.{i}.{megatron}.weight"


def to_megatron(weights: Mapping[str, Tensor], a: Architecture) -> dict[str, Tensor]:
    """Megatron's state from Hugging Face weights. ModelError names a weight that is missing or has another shape."""
    expected = shapes(a)
    missing = [name for name in expected if name not in weights]
    if missing:
        raise ModelError(f"the model lacks {len(missing)} weights, the first is {missing[0]}: its folder is incomplete")
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise ModelError(f"{name} has shape {tuple(weights[name].shape)}, config.json says {shape}")
    state = {megatron: weights[hf] for hf, megatron in _renamed(a)}
    for i in range(a.layers):
        hf, megatron = f"model.layers.{i}.", f"decoder.layers.{i}."
        q, k, v = (weights[f"{hf}{name}.weight"] for name in _QKV)
        state[f"{megatron}self_attention.linear_qkv.weight"] = merge_qkv(q, k, v, a)
        state[f"{megatron}mlp.linear_fc1.weight"] = torch.cat([weights[f"{hf}{name}.weight"] for name in _GATED])
    return state


def to_hf(state: Mapping[str, Tensor], a: Architecture) -> dict[str, Tensor]:
    """Hugging Face weights from Megatron's state, as tensors of their own, in a fixed order."""
    weights = {hf: state[megatron].clone() for hf, megatron in _renamed(a)}
    for i in range(a.layers):
        hf, megatron = f"model.layers.{i}.", f"decoder.layers.{i}."
        qkv = split_qkv(state[f"{megatron}self_attention.linear_qkv.weight"], a)
        gated = state[f"{megatron}mlp.linear_fc1.weight"].chunk(2)
        for name, weight in zip(_QKV + _GATED, (*qkv, *(x.clone() for x in gated)), strict=True):
            weights[f"{hf}{name}.weight"] = weight
    return {name: weights[name] for name in shapes(a)}


def merge_qkv(q: Tensor, k: Tensor, v: Tensor, a: Architecture) -> Tensor:
    """[heads * dim, h], [kv heads * dim, h] twice -> [(heads + 2 kv heads) * dim, h], grouped by key-value head."""
    grouped = [x.view(a.kv_heads, -1, x.shape[-1]) for x in (q, k, v)]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def split_qkv(qkv: Tensor, a: Architecture) -> tuple[Tensor, Tensor, Tensor]:
    """The inverse of `merge_qkv`, as contiguous tensors."""
    sizes = [a.heads // a.kv_heads * a.head_dim, a.head_dim, a.head_dim]
    q, k, v = torch.split(qkv.view(a.kv_heads, sum(sizes), -1), sizes, dim=1)
    return q.flatten(0, 1).clone(), k.flatten(0, 1).clone(), v.flatten(0, 1).clone()


def shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Every weight of the model under its Hugging Face name, in the order of the layers."""
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (a.hidden,),
        "self_attn.q_proj": (q, a.hidden),
        "self_attn.k_proj": (kv, a.hidden),
        "self_attn.v_proj": (kv, a.hidden),
        "self_attn.o_proj": (a.hidden, q),
    }
    if a.qk_norm:
        layer |= {"self_attn.q_norm": (a.head_dim,), "self_attn.k_norm": (a.head_dim,)}
    layer |= {
        "post_attention_layernorm": (a.hidden,),
        "mlp.gate_proj": (a.ffn, a.hidden),
        "mlp.up_proj": (a.ffn, a.hidden),
        "mlp.down_proj": (a.hidden, a.ffn),
    }
    every: dict[str, tuple[int, ...]] = {_EMBEDDING[0]: (a.vocabulary, a.hidden)}
    for i in range(a.layers):
        every |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    every[_FINAL_NORM[0]] = (a.hidden,)
    if not a.tied:
        every[_OUTPUT[0]] = (a.vocabulary, a.hidden)
    return every


def read(folder: Path) -> dict[str, Tensor]:
    """The weights of a Hugging Face folder with safetensors, in one file or several."""
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        parts = ["model.safetensors"]
    weights: dict[str, Tensor] = {}
    for part in parts:
        if not (folder / part).is_file():
            raise ModelError(f"{folder} has no {part}: a base model needs its weights as safetensors (save_pretrained)")
        weights.update(load_file(folder / part))
    return weights


def write(folder: Path, weights: Mapping[str, Tensor], base: Path) -> None:
    """A Hugging Face folder of these weights; configuration and tokenizer are copied from the folder of the base model."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(base.iterdir()):
        if path.is_file() and not _holds_weights(path.name):
            shutil.copyfile(path, folder / path.name)
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # safetensors writes for the owner alone


def _holds_weights(name: str) -> bool:
    return name.startswith(".") or name.endswith((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json"))


def digest(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names, shapes, dtypes and bytes, in the order of the names."""
    h = hashlib.sha256()
    for name in sorted(weights):
        weight = weights[name].detach().cpu().contiguous()
        h.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        h.update(weight.view(torch.uint8).numpy().data)
    return h.hexdigest()
