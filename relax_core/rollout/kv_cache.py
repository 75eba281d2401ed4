"""A preallocated key-value cache that the attention modules of transformers write to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of the tokens seen so far, all rows at the same length.

    store: [layers, 2, rows, key-value heads, capacity, head size]; only [..., :length, :] has a meaning. An attention
    module calls `update` once per forward; the caller then counts the tokens with `advance`.
    """

    def __init__(self, store: Tensor) -> None:
        self.store = store
        self.length = 0
        self._split()

    def _split(self) -> None:
        # The views are made here and not in `update`, which runs once for each layer and step.
        self._layers = [(layer[0], layer[1]) for layer in self.store]

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> KeyValueCache:
        """shape: layers, rows, key-value heads, capacity, head size."""
        layers, *rest = shape
        return cls(torch.empty((layers, 2, *rest), dtype=dtype, device=device))

    @property
    def capacity(self) -> int:
        return self.store.shape[4]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add the newest tokens of a layer, [rows, heads, new, size]; returns all of it, [rows, heads, length + new, size].

        The name and the further arguments are those of transformers' Cache.
        """
        old_keys, old_values = self._layers[layer]
        end = self.length + keys.shape[2]
        old_keys[:, :, self.length : end] = keys
        old_values[:, :, self.length : end] = values
        return old_keys[:, :, :end], old_values[:, :, :end]

    def advance(self, tokens: int) -> None:
        self.length += tokens

    def spread(self, rows: Tensor, capacity: int) -> KeyValueCache:
        """A new cache with room for `capacity` tokens whose row i is row rows[i] of this one."""
        layers, _, _, heads, _, size = self.store.shape
        shape = (layers, len(rows), heads, capacity, size)
        new = KeyValueCache.empty(shape, self.store.dtype, self.store.device)
        new.store[..., : self.length, :] = self.store[..., : self.length, :].index_select(2, rows)
        new.length = self.length
        return new

    def keep(self, rows: Tensor) -> None:
        """Shrink to these rows, in this order. Rows that stay where they are cost nothing."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(1)
        if len(moved):
            used = self.store[..., : self.length, :]
            used[:, :, moved] = used.index_select(2, rows[moved])
        self.store = self.store[:, :, : len(rows)]
        self._split()
