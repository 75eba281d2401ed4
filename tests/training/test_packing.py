"""Packing: every sequence can be read off the slots, shared prompts lie once, gradients add up over copies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import training_checks as checks

from relax_core.training.packing import HeadRows, collect, pack, spread

CPU = torch.device("cpu")


def packed(prompts, responses, wanted):
    return pack(
        [np.array(p) for p in prompts],
        [np.array(r, dtype=np.int64) for r in responses],
        [np.array(w, dtype=bool) for w in wanted],
        CPU,
    )


def predictions(packing):
    """(response, place, sequence up to the prediction, target) of each prediction, read off the packing."""
    slots = packing.slots.view(packing.sequences, packing.length)
    out = []
    for predictor, target, row, column in zip(
        packing.predictors, packing.targets, packing.rows, packing.columns, strict=True
    ):
        holders = (slots == predictor).nonzero()
        position = int(packing.positions[predictor])
        contexts = {tuple(packing.tokens[slots[s, : p + 1]].tolist()) for s, p in holders.tolist() if p == position}
        out.append((int(row), int(column), contexts, int(target)))
    return out


def test_every_prediction_sees_its_own_context():
    batch = checks.make_batch()
    packing = pack(batch.prompt_ids, batch.response_ids, batch.masks, CPU)
    found = predictions(packing)
    expected = [(i, t) for i, mask in enumerate(batch.masks) for t in np.flatnonzero(mask)]
    assert sorted((row, column) for row, column, _, _ in found) == expected
    for row, column, contexts, target in found:
        response = batch.response_ids[row]
        assert target == response[column]
        assert (*batch.prompt_ids[row], *response[:column]) in contexts


def test_a_shared_prompt_lies_once_and_nothing_unneeded_is_packed():
    packing = packed([[1, 2, 3], [1, 2, 3], [4]], [[5, 6, 7], [8, 9], []], [[1, 1, 0], [0, 1], []])
    # prompt once; of [5, 6, 7] the 7 is not wanted and the 6 only as a target; 9 is only a target; the empty one is gone
    assert packing.tokens.tolist() == [1, 2, 3, 5, 8]
    assert packing.positions.tolist() == [0, 1, 2, 3, 3]
    assert (packing.sequences, packing.length) == (2, 4)
    assert packing.slots.tolist() == [0, 1, 2, 3, 0, 1, 2, 4]
    assert [copy.tolist() for copy in packing.copies] == [[0, 1, 2, 3, 7], [4, 5, 6]]
    assert packing.predictors.tolist() == [2, 3, 4] and packing.targets.tolist() == [5, 6, 9]
    assert packing.rows.tolist() == [0, 0, 1] and packing.columns.tolist() == [0, 1, 1]


def test_pad_and_end_tokens_have_no_meaning_here():
    """The mask comes from the returned length, whatever the tokens are (bug case S-21): pad 0, end 2."""
    packing = packed([[7], [8], [9]], [[5, 6, 2], [5, 6, 7], [5, 2]], [[1, 1, 1], [1, 1, 1], [1, 1]])
    assert packing.targets.tolist() == [5, 6, 2, 5, 6, 7, 5, 2]


def test_nothing_wanted_is_no_packing():
    assert packed([[1]], [[2]], [[0]]) is None
    assert packed([[1]], [[]], [[]]) is None


@pytest.mark.parametrize("heads", [1, 2])
def test_spread_and_collect_are_gathers(heads):
    batch = checks.make_batch(4)
    packing = pack(batch.prompt_ids, batch.response_ids, batch.masks, CPU)
    rows = HeadRows.of(packing, heads)
    count, slots = len(packing.tokens), len(packing.slots)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(count, heads, 3, generator=g, requires_grad=True)
    plain = x.detach().clone().requires_grad_()
    weight = torch.randn(heads, slots, 3, generator=g)
    valid = packing.positions[packing.slots] == torch.arange(slots) % packing.length
    weight[:, ~valid] = 0  # attention gives the padding no gradient

    out = spread(x.flatten(0, 1), rows).view(heads, slots, 3)
    expected = plain[packing.slots].transpose(0, 1)
    assert torch.equal(out, expected)
    back = collect((out * weight).flatten(0, 1), rows).view(count, heads, 3)
    assert torch.equal(back, (expected * weight)[:, packing.copies[0]].transpose(0, 1))

    (out * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(x.grad, plain.grad, rtol=1e-6, atol=1e-6)

    y = torch.randn(heads * slots, 3, generator=g, requires_grad=True)
    z = y.detach().clone().requires_grad_()
    upstream = torch.randn(count * heads, 3, generator=g)
    collect(y, rows).backward(upstream)
    z[rows.copies[0]].backward(upstream)
    assert torch.equal(y.grad, z.grad)
