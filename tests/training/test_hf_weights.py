"""Names, shapes and order of weights, and the folder they are written to."""

from __future__ import annotations

import pytest
import torch

from relax_core.errors import ModelError
from relax_core.training import architecture, hf_weights

SMALL = architecture.parse(
    {
        "model_type": "qwen3",
        "vocab_size": 5,
        "hidden_size": 6,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 3,
    },
    "here",
)


def random_weights(a):
    g = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=g) for name, shape in hf_weights.shapes(a).items()}


def test_there_and_back_is_bitwise():
    weights = random_weights(SMALL)
    back = hf_weights.to_hf(hf_weights.to_megatron(weights, SMALL), SMALL)
    assert list(back) == list(weights)
    assert all(torch.equal(back[name], weights[name]) for name in weights)
    assert all(w.is_contiguous() for w in back.values())


def test_what_comes_out_is_not_shared_with_the_model():
    state = hf_weights.to_megatron(random_weights(SMALL), SMALL)
    out = hf_weights.to_hf(state, SMALL)
    copies = {name: w.clone() for name, w in out.items()}
    for w in state.values():
        w.zero_()
    assert all(torch.equal(out[name], copies[name]) for name in out)


def test_heads_are_grouped_by_key_value_head():
    q = torch.arange(4).repeat_interleave(3)[:, None].float()  # the number of the head, three rows each
    k, v = (torch.tensor([a, a, a, b, b, b])[:, None].float() for a, b in ((10, 11), (20, 21)))
    merged = hf_weights.merge_qkv(q, k, v, SMALL)[:, 0].view(-1, 3)[:, 0].tolist()
    assert merged == [0, 1, 10, 20, 2, 3, 11, 21]


def test_gate_lies_above_up():
    weights = random_weights(SMALL)
    fc1 = hf_weights.to_megatron(weights, SMALL)["decoder.layers.1.mlp.linear_fc1.weight"]
    assert torch.equal(fc1[:8], weights["model.layers.1.mlp.gate_proj.weight"])
    assert torch.equal(fc1[8:], weights["model.layers.1.mlp.up_proj.weight"])


def test_a_missing_weight_and_a_wrong_shape_are_named():
    weights = random_weights(SMALL)
    lacking = {name: w for name, w in weights.items() if name != "model.norm.weight"}
    with pytest.raises(ModelError, match=r"lacks 1 weights, the first is model\.norm\.weight"):
        hf_weights.to_megatron(lacking, SMALL)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \(7,\), config\.json says \(6,\)"):
        hf_weights.to_megatron({**weights, "model.norm.weight": torch.ones(7)}, SMALL)


def test_the_digest_sees_names_shapes_types_and_bytes():
    base = {"a": torch.zeros(2, 3), "b": torch.ones(2)}
    others = [
        {"a": torch.zeros(2, 3), "c": torch.ones(2)},
        {"a": torch.zeros(3, 2), "b": torch.ones(2)},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.ones(2)},
        {"a": torch.zeros(2, 3), "b": torch.tensor([1.0, 1.0000001])},
    ]
    seen = {hf_weights.digest(w) for w in (base, *others)}
    assert len(seen) == 5
    assert hf_weights.digest(dict(reversed(base.items()))) == hf_weights.digest(base)
    assert len(hf_weights.digest({"a": torch.ones(2, dtype=torch.bfloat16)})) == 64


def test_a_written_folder_has_what_the_base_has(models, tmp_path):
    base = models["qwen3_untied"]
    weights = {name: w + 1 for name, w in hf_weights.read(base).items()}
    hf_weights.write(tmp_path / "out", weights, base)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == (base / "tokenizer.json").read_text()
    assert (tmp_path / "out" / "generation_config.json").is_file()
    read = hf_weights.read(tmp_path / "out")
    assert all(torch.equal(read[name], weights[name]) for name in weights)


def test_weights_in_several_files_are_read(models, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models["llama"], dtype=torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    whole = hf_weights.read(models["llama"])
    parts = hf_weights.read(tmp_path)
    assert parts.keys() == whole.keys() and all(torch.equal(parts[name], whole[name]) for name in whole)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        hf_weights.read(tmp_path)
