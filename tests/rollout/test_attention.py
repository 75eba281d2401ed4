from __future__ import annotations

import pytest
import torch

from relax_core.rollout.attention import attend


def by_hand(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Head by head in float64: [B, n, H, D]."""
    share = query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        k, v = key[:, head // share].double(), value[:, head // share].double()
        scores = query[:, head].double() @ k.transpose(1, 2) * scaling + mask[:, 0]
        heads.append(torch.softmax(scores, -1) @ v)
    return torch.stack(heads, dim=2)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_it_is_masked_attention_with_shared_heads(queries: int, groups: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 4, queries, 8, generator=generator)
    room = torch.randn(2, 3, groups, 12, 8, generator=generator)  # views of a larger cache, as in the engine
    key, value = room[0][:, :, :7], room[1][:, :, :7]
    mask = torch.zeros(3, 1, queries, 7)
    mask[1, ..., :3] = -torch.inf
    mask[2, ..., :1] = -torch.inf
    result, none = attend(torch.nn.Identity(), query, key, value, mask, 0.3)
    assert none is None
    assert result.shape == (3, queries, 4, 8)
    assert (result - by_hand(query, key, value, mask, 0.3)).abs().max() < 1e-6


def test_no_mask_is_a_mask_of_zeros_for_a_single_query() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, n, 8, generator=generator) for n in (1, 5, 5))
    masked, _ = attend(torch.nn.Identity(), query, key, value, torch.zeros(2, 1, 1, 5), 0.3)
    plain, _ = attend(torch.nn.Identity(), query, key, value, None, 0.3)
    assert torch.equal(masked, plain)
