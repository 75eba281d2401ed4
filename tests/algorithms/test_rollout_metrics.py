from __future__ import annotations

import pytest
import torch

from relax_core.algorithms.advantages import Advantages, group_index
from relax_core.algorithms.rollout_metrics import reinforce_pp_metrics, rloo_metrics


def rloo(**changes: object) -> dict[str, float]:
    inputs: dict[str, object] = {
        "rewards": torch.tensor([1.0, 0, 0, 0.5, 0.5, 0.5, 7.0]),
        "groups": group_index([*"aaabbb", "c"]),
        "mask": torch.tensor([[1, 1], [1, 0], [0, 0], [1, 1], [1, 0], [0, 0], [1, 1]]).bool(),
        "lengths": torch.tensor([2, 1, 0, 2, 1, 2, 2]),
        "samples_per_group": 3,
        "groups_seen": 5,
        "groups_withheld": 2,
    }
    return rloo_metrics(**{**inputs, **changes})  # type: ignore[arg-type]


def test_rloo_literals() -> None:
    got = rloo()
    assert got == {
        # baselines: a: 0, 1/2, 1/2 -> mean 1/3; b: 1/2 -> mean 5/12; c is not complete
        "rollout/rloo/baseline_mean": pytest.approx(5 / 12),
        # |A|: a: 1, 1/2, 1/2 -> 2/3; b: 0 -> mean 1/3
        "rollout/rloo/adv_abs_mean": pytest.approx(1 / 3),
        # tokens of b (3) and of c, alone and so without signal (2), over 8
        "rollout/rloo/no_signal_frac": 5 / 8,
        "rollout/rloo/zero_adv_group_frac": 0.5,
        # one of seven has length 0; the last of b has two tokens, masked
        "rollout/rloo/empty_response_frac": 1 / 7,
        "rollout/rloo/dropped_group_frac": 0.4,
    }


def test_rloo_denominators_of_zero() -> None:
    nothing = rloo(
        rewards=torch.zeros(0),
        groups=group_index([]),
        mask=torch.zeros(0, 2).bool(),
        lengths=torch.zeros(0).long(),
        groups_seen=0,
        groups_withheld=0,
    )
    assert set(nothing.values()) == {0.0}
    assert rloo(mask=torch.zeros(7, 2).bool())["rollout/rloo/no_signal_frac"] == 0


def test_rloo_order_does_not_matter() -> None:
    order = [3, 6, 0, 5, 2, 1, 4]
    moved = rloo(
        rewards=torch.tensor([1.0, 0, 0, 0.5, 0.5, 0.5, 7.0])[order],
        groups=group_index([[*"aaabbb", "c"][i] for i in order]),
        mask=torch.tensor([[1, 1], [1, 0], [0, 0], [1, 1], [1, 0], [0, 0], [1, 1]]).bool()[order],
        lengths=torch.tensor([2, 1, 0, 2, 1, 2, 2])[order],
    )
    assert moved == pytest.approx(rloo())


def test_reinforce_pp_literals() -> None:
    mask = torch.tensor([[1, 1], [1, 0]]).bool()
    raw = torch.tensor([[1.0, 1.0], [4.0, float("nan")]])
    normal = torch.tensor([[-1.0, 0.0], [1.0, float("nan")]])
    got = reinforce_pp_metrics(Advantages(advantages=normal, raw=raw, returns=None), mask)
    assert got == {
        "rollout/reinforce_pp/advantage_raw_mean": 2,  # 6 / 3
        "rollout/reinforce_pp/advantage_raw_std": pytest.approx(2**0.5),  # (1 + 1 + 4) / 3
        "rollout/reinforce_pp/advantage_normalized_mean": 0,
        "rollout/reinforce_pp/advantage_normalized_std": pytest.approx((2 / 3) ** 0.5),
        "rollout/reinforce_pp/valid_token_count": 3,
        "rollout/reinforce_pp/zero_variance": 0,
    }


@pytest.mark.parametrize("mask", [[[1, 1], [1, 0]], [[0, 0], [1, 0]], [[0, 0], [0, 0]]])
def test_reinforce_pp_zero_variance(mask: list[list[int]]) -> None:
    raw = torch.tensor([[0.7, 0.7], [0.7, float("nan")]])
    got = reinforce_pp_metrics(Advantages(advantages=raw, raw=raw, returns=None), torch.tensor(mask).bool())
    assert got["rollout/reinforce_pp/zero_variance"] == 1
    assert got["rollout/reinforce_pp/advantage_raw_std"] == pytest.approx(0, abs=1e-7)
