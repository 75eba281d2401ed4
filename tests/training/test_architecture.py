"""config.json to sizes: the defaults of transformers, and a clear no to what cannot be trained."""

from __future__ import annotations

import json

import pytest

from relax_core.errors import ModelError
from relax_core.training import architecture

CONFIG = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_defaults_are_those_of_transformers():
    from transformers import LlamaConfig, Qwen3Config

    for kind, config in (("llama", LlamaConfig()), ("qwen3", Qwen3Config())):
        for key, value in architecture.DEFAULTS[kind].items():
            theirs = config.rope_parameters["rope_theta"] if key == "rope_theta" else getattr(config, key)
            assert theirs == value, f"{kind} {key}"


def test_what_a_short_config_means():
    a = architecture.parse(CONFIG, "here")
    assert (a.kv_heads, a.head_dim, a.tied, a.qk_norm, a.rope_theta, a.norm_eps) == (4, 8, False, False, 10000.0, 1e-6)


@pytest.mark.parametrize(
    "rope", [{"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}]
)
def test_both_spellings_of_the_rotary_base(rope):
    assert architecture.parse({**CONFIG, **rope}, "here").rope_theta == 5e5


def test_saved_models_are_read(models):
    a = architecture.read(models["qwen3_tied"])
    assert (a.heads, a.kv_heads, a.head_dim, a.tied, a.qk_norm, a.vocabulary) == (4, 2, 12, True, True, 37)
    assert not architecture.read(models["llama"]).qk_norm


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'.*llama, qwen3"),
        ({"attention_bias": True, "hidden_act": "gelu"}, "hidden_act is 'gelu'.*attention_bias is True"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3"),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "linear"),
        ({"model_type": "qwen3", "use_sliding_window": True}, "use_sliding_window is True"),
    ],
)
def test_what_cannot_be_trained_is_refused(change, message):
    with pytest.raises(ModelError, match=message):
        architecture.parse({**CONFIG, **change}, "here")


def test_a_folder_without_config_is_no_model(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        architecture.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    assert architecture.read(tmp_path).layers == 2
