"""From ragged responses to the tensors of one forward pass: no padding, and a prompt that several responses share once.

Only attention mixes tokens. Everything else sees each distinct token once, in one row of N tokens; attention spreads the
tokens over B sequences of S slots (padding on the right, which a causal mask never looks at), and collects the answers. A
prompt with eight responses is thus computed once and not eight times; the mathematics is the same, and sums differ by
rounding only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Where each token of B sequences lies. N distinct tokens, S slots per sequence, M predicted tokens."""

    tokens: Tensor
    """[N] token ids: the prompts, those with most copies first, then the responses."""
    positions: Tensor
    """[N] place of the token in its sequence."""
    slots: Tensor
    """[B * S] which token lies in a slot of a sequence; any in the padding."""
    copies: tuple[Tensor, ...]
    """copies[r][t]: the slot of the r-th copy of token t. All N tokens have a first copy, a leading part has more."""
    owned: Tensor
    """[B * S] the token of which the slot is the first copy; N elsewhere."""
    sequences: int
    """B"""
    length: int
    """S"""
    predictors: Tensor
    """[M] the token whose output predicts."""
    targets: Tensor
    """[M] the token id that came next."""
    rows: Tensor
    """[M] the response of the prediction, as an index into what was packed."""
    columns: Tensor
    """[M] its place in the response."""


def pack(
    prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray], wanted: Sequence[np.ndarray], device: torch.device
) -> Packing | None:
    """Pack the responses for the predictions that are wanted (bool per response token).

    What no wanted prediction depends on is left out: tokens behind the last one, responses without any. None: there is no
    prediction at all.
    """
    lengths = [int(w.nonzero()[0][-1]) + 1 if w.any() else 0 for w in wanted]
    used = [i for i, length in enumerate(lengths) if length > 0]
    if not used:
        return None
    groups = _same_prompts(prompts, used)
    order = [i for group in groups for i in group]
    prompt_lengths = np.array([len(prompts[i]) for i in order])
    inputs = np.array([lengths[i] - 1 for i in order])  # the last predicted token is no input
    slots, copies = _place(groups, prompt_lengths, inputs)
    owned = np.full(slots.size, len(copies[0]))
    owned[copies[0]] = np.arange(len(copies[0]))

    predictions = [np.flatnonzero(wanted[i][: lengths[i]]) for i in order]
    sequence = np.repeat(np.arange(len(order)), [len(p) for p in predictions])
    columns = np.concatenate(predictions)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)

    return Packing(
        tokens=tensor(
            np.concatenate([prompts[group[0]] for group in groups] + [responses[i][: lengths[i] - 1] for i in order])
        ),
        positions=tensor(copies[0] % slots.shape[1]),
        slots=tensor(slots.ravel()),
        copies=tuple(tensor(copy) for copy in copies),
        owned=tensor(owned),
        sequences=slots.shape[0],
        length=slots.shape[1],
        predictors=tensor(slots[sequence, prompt_lengths[sequence] + columns - 1]),
        targets=tensor(np.concatenate([responses[i][p] for i, p in zip(order, predictions, strict=True)])),
        rows=tensor(np.array(order)[sequence]),
        columns=tensor(columns),
    )


def _same_prompts(prompts: Sequence[np.ndarray], used: Sequence[int]) -> list[list[int]]:
    """The responses of each distinct prompt, the largest groups first (then in the order of appearance)."""
    groups: dict[bytes, list[int]] = {}
    for i in used:
        groups.setdefault(prompts[i].tobytes(), []).append(i)
    return sorted(groups.values(), key=len, reverse=True)


def _place(
    groups: Sequence[Sequence[int]], prompt_lengths: np.ndarray, inputs: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The token in each slot, [B, S], and per rank of copy the slots of the tokens that have one.

    Tokens are numbered prompt by prompt, then response by response; sequences stand group by group.
    """
    sizes = [len(group) for group in groups]
    first = np.cumsum([0, *sizes])  # the first sequence of each group
    starts = np.cumsum([0, *prompt_lengths[first[:-1]]])
    length = int((prompt_lengths + inputs).max())
    place, ends = np.arange(length), prompt_lengths[:, None]
    prompt_tokens = np.repeat(starts[:-1], sizes)[:, None] + place
    response_tokens = (starts[-1] + np.cumsum(inputs) - inputs)[:, None] + place - ends
    in_response = (place >= ends) & (place < ends + inputs[:, None])
    slots = np.where(place < ends, prompt_tokens, np.where(in_response, response_tokens, 0))

    copies = []
    for rank in range(sizes[0]):
        sequences = [first[g] + rank for g, size in enumerate(sizes) if size > rank]
        copies.append(np.concatenate([s * length + np.arange(prompt_lengths[s]) for s in sequences]))
    copies[0] = np.concatenate([copies[0], np.flatnonzero(in_response.ravel())])
    return slots, copies


@dataclass(frozen=True, slots=True)
class HeadRows:
    """The same for tensors whose rows are (token, key-value head): heads are the outermost dimension of the slots."""

    slots: Tensor
    """[heads * B * S]"""
    copies: tuple[Tensor, ...]
    owned: Tensor

    @classmethod
    def of(cls, packing: Packing, heads: int) -> HeadRows:
        head = torch.arange(heads, device=packing.slots.device)
        count, slots = len(packing.tokens), len(packing.slots)
        nothing = packing.owned.eq(count)

        def by_slot(tokens: Tensor) -> Tensor:
            return (tokens * heads + head[:, None]).flatten()

        owned = torch.where(nothing, count * heads, packing.owned * heads + head[:, None])
        return cls(
            slots=by_slot(packing.slots),
            copies=tuple((copy[:, None] + head * slots).flatten() for copy in packing.copies),
            owned=owned.flatten(),
        )


def spread(x: Tensor, rows: HeadRows) -> Tensor:
    """Rows of tokens into rows of slots. The gradient of a token is the sum over its copies, in a fixed order."""
    out: Tensor = _Spread.apply(x, rows)  # type: ignore[no-untyped-call]
    return out


def collect(x: Tensor, rows: HeadRows) -> Tensor:
    """Rows of slots into rows of tokens, each from its first copy (all copies are equal)."""
    out: Tensor = _Collect.apply(x, rows)  # type: ignore[no-untyped-call]
    return out


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: HeadRows) -> Tensor:
        ctx.rows = rows
        return x.index_select(0, rows.slots)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        first, *others = ctx.rows.copies
        grad = grad.contiguous()
        out = grad.index_select(0, first)
        for copy in others:
            out[: len(copy)] += grad.index_select(0, copy)
        return out, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: HeadRows) -> Tensor:
        ctx.rows = rows
        return x.index_select(0, rows.copies[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        nothing = grad.new_zeros((1, *grad.shape[1:]))
        return torch.cat((grad, nothing)).index_select(0, ctx.rows.owned), None
