from __future__ import annotations

import torch

from relax_core.rollout.kv_cache import KeyValueCache


def filled(rows: int = 4, tokens: int = 3, capacity: int = 5) -> KeyValueCache:
    """2 layers, 1 head of size 2; every number tells layer, key or value, row and token."""
    cache = KeyValueCache.empty((2, rows, 1, capacity, 2), torch.float32, torch.device("cpu"))
    cache.store.fill_(torch.nan)
    for token in range(tokens):
        for layer in range(2):
            number = torch.arange(rows).view(rows, 1, 1, 1) * 10.0 + token + 1000 * layer
            cache.update(number.expand(rows, 1, 1, 2), number.expand(rows, 1, 1, 2) + 100, layer)
        cache.advance(1)
    return cache


def numbers(cache: KeyValueCache, layer: int, what: int) -> list[list[float]]:
    return cache.store[layer, what, :, 0, : cache.length, 0].tolist()


def test_update_returns_what_was_there_and_what_is_new() -> None:
    cache = filled(rows=2, tokens=2)
    keys, values = cache.update(torch.full((2, 1, 2, 2), 7.0), torch.full((2, 1, 2, 2), 8.0), 1, kwargs={})
    assert keys[:, 0, :, 0].tolist() == [[1000, 1001, 7, 7], [1010, 1011, 7, 7]]
    assert values[:, 0, :, 1].tolist() == [[1100, 1101, 8, 8], [1110, 1111, 8, 8]]
    assert cache.length == 2 and cache.capacity == 5


def test_keep_moves_only_what_must_move() -> None:
    cache = filled()
    cache.keep(torch.tensor([0, 3, 2]))
    assert numbers(cache, 0, 0) == [[0, 1, 2], [30, 31, 32], [20, 21, 22]]
    assert numbers(cache, 1, 1) == [[1100, 1101, 1102], [1130, 1131, 1132], [1120, 1121, 1122]]
    keys, _ = cache.update(torch.zeros(3, 1, 1, 2), torch.zeros(3, 1, 1, 2), 0)
    assert keys.shape == (3, 1, 4, 2)
    cache.keep(torch.tensor([0]))
    assert numbers(cache, 0, 0) == [[0, 1, 2]]


def test_spread_copies_rows_into_more_room() -> None:
    cache = filled(rows=2)
    spread = cache.spread(torch.tensor([1, 0, 1]), capacity=9)
    assert numbers(spread, 0, 0) == [[10, 11, 12], [0, 1, 2], [10, 11, 12]]
    assert (spread.length, spread.capacity) == (3, 9)
    spread.update(torch.full((3, 1, 1, 2), 5.0), torch.full((3, 1, 1, 2), 5.0), 0)
    assert numbers(cache, 0, 0) == [[0, 1, 2], [10, 11, 12]]
