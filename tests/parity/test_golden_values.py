"""Every golden case against the product: 1e-9 in float64, 1e-5 in float32, with clean and with poisoned padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from relax_core.algorithms.parity import BOUNDS, compute, differences
from relax_core.algorithms.table import ALGORITHMS

GOLDEN = Path(__file__).parent / "golden"


def load(estimator: str) -> list[dict[str, Any]]:
    return json.loads((GOLDEN / f"{estimator}.json").read_text())


CASES = [pytest.param(case, id=case["name"]) for estimator in ALGORITHMS for case in load(estimator)]


def test_all_cases_are_here() -> None:
    assert len(CASES) == 161


@pytest.mark.parametrize("poisoned", [False, True], ids=["clean", "poisoned"])
@pytest.mark.parametrize("dtype", list(BOUNDS), ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_every_quantity_is_right(case: dict[str, Any], dtype: torch.dtype, poisoned: bool) -> None:
    found = differences(case, dtype=dtype, poisoned=poisoned)
    assert set(found) == set(case["expect"])
    wrong = {name: d for name, d in found.items() if not d <= BOUNDS[dtype]}  # NaN is wrong too
    assert not wrong


@pytest.mark.parametrize("case", CASES)
def test_poison_changes_no_bit(case: dict[str, Any]) -> None:
    clean = compute(case, dtype=torch.float32)
    poisoned = compute(case, dtype=torch.float32, poisoned=True)
    assert set(clean) == set(poisoned)
    for name, value in clean.items():
        assert torch.equal(value, poisoned[name]), name


def test_a_wrong_value_and_a_nan_are_seen() -> None:
    case = load("rloo")[0]
    case["expect"]["pg_loss"] += 1e-6
    case["expect"]["ppo_kl"] = float("nan")
    found = differences(case, dtype=torch.float64)
    assert found["pg_loss"] > BOUNDS[torch.float64]
    assert not found["ppo_kl"] <= BOUNDS[torch.float64]


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline", "gspo"])
def test_equal_rewards_give_exactly_zero(estimator: str) -> None:
    for case in load(estimator):
        if "no-signal" in case["name"]:
            for dtype in BOUNDS:
                assert not compute(case, dtype=dtype)["advantages"].any()
