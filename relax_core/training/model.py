"""Megatron's GPTModel for an architecture: its configuration, its layers, and logits only where they are wanted."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from relax_core.training.architecture import Architecture
from relax_core.training.layers import PackedAttention, RMSNorm, SharedPrompts
from relax_core.training.packing import Packing


def transformer_config(architecture: Architecture, dtype: torch.dtype) -> TransformerConfig:
    """Megatron's configuration. Fused kernels are off: they need CUDA extensions, or compile on first use."""
    return TransformerConfig(
        num_layers=architecture.layers,
        hidden_size=architecture.hidden,
        ffn_hidden_size=architecture.ffn,
        num_attention_heads=architecture.heads,
        num_query_groups=architecture.kv_heads,
        kv_channels=architecture.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_eps,
        qk_layernorm=architecture.qk_norm,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        perform_initialization=False,  # every weight is loaded
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        calculate_per_token_loss=True,  # gradients are summed: a loss share is already divided by the totals of the step
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        batch_p2p_comm=False,
        cuda_graph_scope=[],
    )


def _layers(architecture: Architecture) -> TransformerBlockSubmodules:
    """Megatron's local layer specification with our attention and norm in it."""
    layer = get_gpt_layer_local_spec(qk_layernorm=architecture.qk_norm, normalization="RMSNorm")
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    if architecture.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * architecture.layers, layer_norm=RMSNorm)


class PolicyModel(GPTModel):  # type: ignore[misc]
    """GPTModel on packed tokens: rotary angles by position, logits only for predictions that are wanted."""

    def forward(self, packing: Packing) -> Tensor:
        """[M, V] logits of the wanted predictions (of this rank's part of the vocabulary)."""
        logits: Tensor = super().forward(
            input_ids=packing.tokens.unsqueeze(0),
            position_ids=packing.positions.unsqueeze(0),
            attention_mask=None,
            packed_seq_params=SharedPrompts.of(packing, self.config.num_query_groups),
        )
        return logits.squeeze(0)

    def _preprocess(self, *args: Any, packed_seq_params: SharedPrompts, **kwargs: Any) -> tuple[Any, ...]:
        decoder_input, angles, *rest = super()._preprocess(*args, packed_seq_params=packed_seq_params, **kwargs)
        assert packed_seq_params.packing is not None
        return (decoder_input, angles.index_select(0, packed_seq_params.packing.positions), *rest)

    def _postprocess(
        self, hidden_states: Tensor, *args: Any, packed_seq_params: SharedPrompts, **kwargs: Any
    ) -> Tensor:
        assert packed_seq_params.packing is not None
        wanted = hidden_states.index_select(0, packed_seq_params.packing.predictors)
        logits: Tensor = super()._postprocess(wanted, *args, packed_seq_params=packed_seq_params, **kwargs)
        return logits


def build(architecture: Architecture, dtype: torch.dtype, device: torch.device) -> PolicyModel:
    """The model with memory for its weights, which are not set yet."""
    model: PolicyModel = PolicyModel(
        config=transformer_config(architecture, dtype),
        transformer_layer_spec=_layers(architecture),
        vocab_size=architecture.vocabulary,
        max_sequence_length=architecture.max_positions,
        share_embeddings_and_output_weights=architecture.tied,
        position_embedding_type="rope",
        rotary_base=architecture.rope_theta,
    ).to(device)
    return model
