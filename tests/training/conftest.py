"""Tiny models, and one spawned process in which Megatron runs: the stand-ins of the trainer must not reach the test process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

MODELS = ("qwen3_tied", "qwen3_untied", "llama")


def make_model(kind: str, folder: Path) -> Path:
    """A random 2-layer model, query heads grouped 4 to 2, as a Hugging Face folder; its norms are not all ones."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    sizes = {
        "vocab_size": 37,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
    }
    torch.manual_seed(3)
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=12, tie_word_embeddings=kind == "qwen3_tied"))
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"not": "read here"}', encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {kind: make_model(kind, root / kind) for kind in MODELS}


def _executor() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The models are so small that a second thread only waits, for long where the cores are shared."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the spawned process


@pytest.fixture(scope="session")
def world() -> Iterator[Callable[..., Any]]:
    """world(function, *arguments): the function's result, computed in the one process where Megatron runs."""
    with _executor() as executor:
        yield lambda function, *args: executor.submit(function, *args).result()


@pytest.fixture
def worlds() -> Iterator[list[Callable[..., Any]]]:
    """Two more such processes, for what must not depend on the process."""
    with _executor() as one, _executor() as two:
        yield [lambda function, *args, e=e: e.submit(function, *args).result() for e in (one, two)]
