"""Metrics of a training rollout that belong to one algorithm, under their full names. 0 where a denominator is 0."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_core.algorithms.advantages import Advantages, group_stats, leave_one_out
from relax_core.algorithms.masking import masked_count, masked_mean, masked_min, masked_var

NO_SIGNAL = 1e-12
"""An advantage below this in size moves nothing."""


def rloo_metrics(
    *,
    rewards: Tensor,
    groups: Tensor,
    mask: Tensor,
    lengths: Tensor,
    samples_per_group: int,
    groups_seen: int,
    groups_withheld: int,
) -> dict[str, float]:
    """The six metrics `rollout/rloo/*` of one rollout.

    rewards [B]; groups [B] int64 in [0, B); mask [B, T] bool; lengths [B]: tokens that the engine returned, whatever
    the mask says; a group is complete with samples_per_group members; groups_seen counts the withheld ones too.

    baseline_mean, adv_abs_mean: means over complete groups of mean b_i and mean |A_i|, b_i the mean of the others'
    rewards. no_signal_frac: valid tokens of responses with |A_i| < 1e-12 over valid tokens. zero_adv_group_frac: share
    of complete groups whose every |A_i| < 1e-12. empty_response_frac: share of responses of length 0.
    dropped_group_frac: withheld over seen.
    """
    advantages = leave_one_out(rewards, groups)
    size = group_stats(rewards, groups).size
    silent = advantages.abs() < NO_SIGNAL
    tokens = masked_count(mask, dim=1)
    complete = size == samples_per_group
    # Complete groups are all of one size, so a mean over their members is the mean over groups of the groups' means.
    baselines = rewards.to(torch.float64) - advantages
    group_speaks = torch.zeros_like(advantages).index_add(0, groups, (~silent).to(torch.float64))[groups] > 0
    return {
        "rollout/rloo/baseline_mean": float(masked_mean(baselines, complete, dim=None)),
        "rollout/rloo/adv_abs_mean": float(masked_mean(advantages.abs(), complete, dim=None)),
        "rollout/rloo/no_signal_frac": float(tokens[silent].sum()) / max(1, int(tokens.sum())),
        "rollout/rloo/zero_adv_group_frac": float(masked_mean(~group_speaks, complete, dim=None)),
        "rollout/rloo/empty_response_frac": int((lengths == 0).sum()) / max(1, lengths.numel()),
        "rollout/rloo/dropped_group_frac": groups_withheld / max(1, groups_seen),
    }


def reinforce_pp_metrics(stage: Advantages, mask: Tensor) -> dict[str, float]:
    """The metrics `rollout/reinforce_pp/*` of one rollout, over its valid tokens; std has ddof 0, as in the algorithm.

    zero_variance is 1 where all raw advantages are the same number (also with one valid token or none), so that
    normalisation makes them 0; else 0.
    """
    out: dict[str, float] = {}
    for name, x in (("raw", stage.raw), ("normalized", stage.advantages)):
        out[f"rollout/reinforce_pp/advantage_{name}_mean"] = float(masked_mean(x, mask, dim=None))
        out[f"rollout/reinforce_pp/advantage_{name}_std"] = float(masked_var(x, mask, dim=None, ddof=0).sqrt())
    varies = -masked_min(-stage.raw, mask) > masked_min(stage.raw, mask)
    out["rollout/reinforce_pp/valid_token_count"] = float(masked_count(mask, dim=None))
    out["rollout/reinforce_pp/zero_variance"] = float(~varies)
    return out
