"""Tiny models of the real classes, made on the spot: random ones, and ones whose next token is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from relax_core.rollout.seeds import sample_seed
from relax_core.rollout.types import Request, Sampling

CLASSES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<|user|>", "<|assistant|>"]


def save_model(folder: Path, kind: str = "qwen3", seed: int = 0, **config: Any) -> Path:
    """A random model of 2 layers with large weights, so that its next token is far from uniform."""
    make_config, make_model = CLASSES[kind]
    settings: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.2,
    }
    if kind == "qwen3":
        settings["head_dim"] = 8
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make_model(make_config(**settings | config))
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    model.save_pretrained(folder)
    return folder


def save_chain(folder: Path, following: Mapping[int, int], **config: Any) -> Path:
    """A model that draws following[token] after a token (and 0 after one that is not named), nearly for certain.

    Its layers add nothing, the embedding of a token is a unit vector and the head holds the table.
    """
    save_model(folder, vocab_size=16, hidden_size=16, tie_word_embeddings=False, **config)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.norm.weight.fill_(1)
        model.model.embed_tokens.weight.copy_(torch.eye(16))
        model.lm_head.weight.zero_()
        for token in range(16):
            model.lm_head.weight[following.get(token, 0), token] = 20
    model.save_pretrained(folder)
    return folder


def reference(folder: Path) -> Callable[..., list[float]]:
    """log_probs(prompt, ids, temperature=1) of the model in a folder, as it is now.

    One plain forward of transformers: no padding, no cache, eager attention.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()

    def log_probs(prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        of_all = torch.log_softmax(logits.double() / temperature, dim=-1)
        return of_all.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1).tolist()

    return log_probs


def ask(prompts: Mapping[str, Sequence[int]], n: int = 1, step: int = 0, **parameters: Any) -> list[Request]:
    """n samples for each prompt, by row name."""
    sampling = Sampling(**{"temperature": 1.0, "max_tokens": 10} | parameters)
    return [
        Request(
            row=row,
            group=row,
            index=index,
            prompt_ids=tuple(prompt),
            seed=sample_seed(7, step, row, index),
            sampling=sampling,
        )
        for row, prompt in prompts.items()
        for index in range(n)
    ]


def make_tokenizer(bos: bool = False, eos: bool = False, **settings: Any) -> PreTrainedTokenizerFast:
    """One token per character; optionally one that adds <s> before and </s> after a text."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *"0123456789+-=? \n{}\\abcdefghijklmno"])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    if bos or eos:
        core.post_processor = processors.TemplateProcessing(
            single=f"{'<s> ' if bos else ''}$A{' </s>' if eos else ''}", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        **settings,
    )
