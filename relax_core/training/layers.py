"""The two layers of ours inside Megatron's transformer: attention over packed sequences, and RMSNorm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from relax_core.training.packing import HeadRows, Packing, collect, spread

SHORT = 128
"""Up to this many slots a CPU is faster with the whole matrix of scores than with torch's flash kernel (measured)."""


@dataclass
class SharedPrompts(PackedSeqParams):  # type: ignore[misc]
    """Megatron's carrier of packed sequences with ours inside.

    qkv_format stays "sbhd": positions do not follow from sequence lengths here, so Megatron's own splitting ("thd") is not
    used; `model.PolicyModel` gives each token the rotary angle of its position instead.
    """

    packing: Packing | None = None
    rows: HeadRows | None = None

    @classmethod
    def of(cls, packing: Packing, kv_heads: int) -> SharedPrompts:
        return cls(
            qkv_format="sbhd",
            max_seqlen_q=packing.length,
            max_seqlen_kv=packing.length,
            packing=packing,
            rows=HeadRows.of(packing, kv_heads),
        )


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention, query heads grouped by key-value head, of tokens packed as in `packing`."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__(config=config)
        self.scale = config.kv_channels**-0.5 if softmax_scale is None else softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: None,
        *,
        packed_seq_params: SharedPrompts,
        **_: Any,
    ) -> Tensor:
        """query [N, 1, heads, dim], key and value [N, 1, kv heads, dim] -> [N, 1, heads * dim]."""
        packing, rows = packed_seq_params.packing, packed_seq_params.rows
        assert packing is not None and rows is not None and attention_mask is None
        count, _one, kv_heads, dim = key.shape
        # One row per (token, key-value head), so that spreading also brings the heads to the front.
        q, k, v = (spread(x.reshape(count * kv_heads, -1), rows) for x in (query, key, value))
        sequences = kv_heads * packing.sequences
        q, k, v = q.view(sequences, packing.length, -1, dim), k.view(sequences, -1, dim), v.view(sequences, -1, dim)
        short = packing.length <= SHORT and query.device.type == "cpu"
        out = _all_scores(q, k, v, self.scale) if short else _flash(q, k, v, self.scale)
        return collect(out.flatten(0, 1).flatten(1), rows).view(count, 1, -1)


def _all_scores(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [B, S, group, dim], k and v [B, S, dim] -> [B, S, group, dim]. The softmax is in float32."""
    length, group = q.shape[1:3]
    later = torch.full((length, length), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
    scores = torch.baddbmm(later.repeat_interleave(group, 0), q.flatten(1, 2), k.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1, dtype=torch.float32).to(v.dtype), v).view(q.shape)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The same by torch's scaled_dot_product_attention."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.unsqueeze(1), v.unsqueeze(1), is_causal=True, scale=scale, enable_gqa=q.shape[2] > 1
    )
    return out.transpose(1, 2)


class _Normalise(torch.autograd.Function):
    """x / rms(x) * weight on [M, D] with few passes over memory: sums over a row are matrix-vector products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = torch.mv(x * x, x.new_full((x.shape[1],), 1 / x.shape[1])).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse.unsqueeze(1)).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        product = grad * x
        grad_weight = torch.mv(product.t(), inverse)
        along = torch.mv(product, weight).mul_(inverse.pow(3)).div_(x.shape[1])
        grad_x = (grad * weight).mul_(inverse.unsqueeze(1)).addcmul_(x, along.unsqueeze(1), value=-1)
        return grad_x, grad_weight, None


class RMSNorm(torch.nn.RMSNorm):
    """RMSNorm with the constructor that Megatron's layer specs call; float32 on a CPU takes the shorter way above."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the last dimension."""
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return super().forward(x)
        out: Tensor = _Normalise.apply(x.reshape(-1, x.shape[-1]), self.weight, self.eps)  # type: ignore[no-untyped-call]
        return out.view(x.shape)
