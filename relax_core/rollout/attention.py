"""The attention that the engine plugs into transformers' models: fewer passes over small tensors than theirs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "relax_rollout"


def attend(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """softmax(scaling q k^T + mask) v, where H / K query heads share each key-value head.

    query: [B, H, n, D]; key, value: [B, K, T, D]; mask: [B, 1, n, T], added to the scores, or None where every query
    sees every key. Signature and result ([B, n, H, D], None) are those of transformers' attention interface.

    A single query per row (decoding) is done here, with the heads of a group as the rows of one product: keys and values
    need not be repeated, and on a CPU with short sequences it takes less time than PyTorch's fused kernel. Longer ones
    go to the fused kernel, which does not hold all scores at once.
    """
    rows, heads, queries, size = query.shape
    groups = key.shape[1]
    if queries > 1:
        attended = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=heads != groups
        )
        return attended.transpose(1, 2), None
    scores = torch.matmul((query * scaling).view(rows, groups, heads // groups, size), key.transpose(2, 3))
    if mask is not None:
        scores = scores.add_(mask)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).view(rows, 1, heads, size), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
