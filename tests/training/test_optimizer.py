"""Learning rates by hand, and weight decay only where it belongs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import training_checks as checks


@pytest.mark.parametrize(
    ("style", "warmup", "expected"),
    [
        ("constant", 0, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("constant", 4, [0.25, 0.5, 0.75, 1.0, 1.0]),
        # from update 1 (rate 1, warm-up) to update 5 (rate 0.2): a quarter of the way each
        ("linear", 1, [1.0, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", 1, [1.0, 0.2 + 0.8 * 0.8535533905932737, 0.6, 0.2 + 0.8 * 0.14644660940672627, 0.2]),
        # without warm-up the fall starts at an update 0
        ("linear", 0, [0.84, 0.68, 0.52, 0.36, 0.2]),
    ],
)
def test_learning_rates(style, warmup, expected, models, world):
    optimizer = replace(
        checks.OPTIMIZER, lr=1.0, min_lr=0.2, lr_warmup_iters=warmup, lr_decay_style=style, total_steps=5
    )
    rates = world(checks.learning_rates, models["qwen3_tied"], replace(checks.SPEC, optimizer=optimizer), 5)
    assert rates == pytest.approx(expected, rel=1e-12)


def test_past_the_last_planned_update_the_rate_stays_at_its_minimum(models, world):
    optimizer = replace(checks.OPTIMIZER, lr=1.0, min_lr=0.2, lr_warmup_iters=0, lr_decay_style="linear", total_steps=2)
    rates = world(checks.learning_rates, models["qwen3_tied"], replace(checks.SPEC, optimizer=optimizer), 4)
    assert rates == pytest.approx([0.6, 0.2, 0.2, 0.2], rel=1e-12)


@pytest.mark.parametrize("kind", ["qwen3_tied", "llama"])
def test_only_matrices_decay(kind, models, world):
    decays = world(checks.weight_decays, models[kind])
    norms = {name for name in decays if "norm" in name}
    assert len(norms) == (2 * 4 + 1 if kind == "qwen3_tied" else 2 * 2 + 1)
    assert all(decays[name] == 0 for name in norms)
    assert all(decays[name] == 0.1 for name in decays.keys() - norms)
