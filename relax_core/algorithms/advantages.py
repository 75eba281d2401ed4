"""Advantages: rewards of a rollout in, [B, T] advantages out. Float64 inside, without a loop over responses.

Groups are given by an integer index per response (`group_index` makes it from ids); position never matters, and each
group's own size counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from relax_core.algorithms.masking import select
from relax_core.algorithms.normalisation import NORMALISATIONS, Across, one_rank
from relax_core.algorithms.scan import discounted_suffix_sum
from relax_core.algorithms.table import lookup

STD_FLOOR = 1e-6
"""Added to a group's standard deviation before dividing by it."""


def group_index(ids: Sequence[Hashable]) -> Tensor:
    """[B] int64: 0, 1, ... for each distinct id in the order of its first appearance."""
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(i, len(numbers)) for i in ids], dtype=torch.int64)


def check_groups(ids: Sequence[Hashable], rewards: Sequence[float], rows: Sequence[str], *, n: int) -> None:
    """ValueError unless every group has exactly n members and every reward is a finite number.

    ids, rewards, rows: group id, reward and name of the data row of each response, for the message.
    """
    sizes: dict[Hashable, int] = {}
    for group, reward, row in zip(ids, rewards, rows, strict=True):
        sizes[group] = sizes.get(group, 0) + 1
        if not -float("inf") < reward < float("inf"):
            raise ValueError(
                f"reward {reward} of row {row} in group {group}: a reward must be finite; check the reward function"
            )
    for group, size in sizes.items():
        if size != n:
            raise ValueError(
                f"group {group} has {size} responses and n_samples_per_prompt is {n}: a group is trained whole or not "
                "at all; withhold it"
            )


class GroupStats(NamedTuple):
    """Per response: reward less its group's mean (exactly 0 where the group's rewards are equal), size of the group."""

    centred: Tensor
    size: Tensor


def group_stats(rewards_B: Tensor, groups_B: Tensor) -> GroupStats:
    """[B] each, float64. groups_B holds indexes in [0, B)."""
    r = rewards_B.to(torch.float64)
    # Measured from the group's smallest reward: equal rewards become exactly 0, and a large offset costs no digits.
    shifted = r - torch.full_like(r, torch.inf).scatter_reduce(0, groups_B, r, "amin")[groups_B]
    size = _group_sums(torch.ones_like(r), groups_B)
    return GroupStats(shifted - _group_sums(shifted, groups_B) / size, size)


def _group_sums(x_B: Tensor, groups_B: Tensor) -> Tensor:
    """[B]: for each response the sum of x over its group."""
    return torch.zeros_like(x_B).index_add(0, groups_B, x_B)[groups_B]


def group_centred(rewards_B: Tensor, groups_B: Tensor) -> Tensor:
    """c = r - mean of the group, [B]. A group of one, or of equal rewards: exactly 0."""
    return group_stats(rewards_B, groups_B).centred


def group_normalised(rewards_B: Tensor, groups_B: Tensor) -> Tensor:
    """c / (std + 1e-6) with the group's sample standard deviation (ddof 1), [B] (GRPO, arXiv 2402.03300)."""
    stats = group_stats(rewards_B, groups_B)
    std = (_group_sums(stats.centred.square(), groups_B) / (stats.size - 1).clamp(min=1)).sqrt()
    return stats.centred / (std + STD_FLOOR)


def leave_one_out(rewards_B: Tensor, groups_B: Tensor) -> Tensor:
    """r - mean of the *other* rewards of the group = c n / (n - 1), [B] (RLOO, arXiv 2402.14740).

    A group of one, or of equal rewards: exactly 0.
    """
    stats = group_stats(rewards_B, groups_B)
    return stats.centred * stats.size / (stats.size - 1).clamp(min=1)


def broadcast(scalars_B: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T]: each response's scalar on its valid tokens, 0 elsewhere."""
    return torch.where(mask_BT, scalars_B.unsqueeze(1), 0.0)


def token_rewards(
    rewards_B: Tensor, mask_BT: Tensor, *, kl_coef: float, old_logprobs: Tensor | None, ref_logprobs: Tensor | None
) -> Tensor:
    """[B, T] float64: -kl_coef (lp_old - lp_ref) on valid tokens (k1), plus the reward on the last valid one.

    The log-probs may be None where kl_coef is 0. A response without a valid token has no place for its reward: 0.
    """
    slots_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B = torch.where(mask_BT, slots_T, -1).amax(1) if mask_BT.shape[1] else slots_T.new_zeros(mask_BT.shape[0])
    rewards = torch.where(slots_T == last_B.unsqueeze(1), rewards_B.to(torch.float64).unsqueeze(1), 0.0)
    if kl_coef == 0:
        return rewards
    if old_logprobs is None or ref_logprobs is None:
        raise ValueError(f"kl_coef is {kl_coef}: the KL in the reward needs old_logprobs and ref_logprobs")
    gap = select(old_logprobs.to(torch.float64) - ref_logprobs.to(torch.float64), mask_BT)
    return rewards - kl_coef * gap


def reward_to_go(token_rewards_BT: Tensor, mask_BT: Tensor, *, gamma: float) -> Tensor:
    """G_t = reward_t + gamma G_{t+1}, 0 outside the mask: [B, T] float64. A hole adds 0 and still discounts."""
    return select(discounted_suffix_sum(select(token_rewards_BT, mask_BT), gamma), mask_BT)


class Gae(NamedTuple):
    """Generalised advantages and the critic's targets A + V, [B, T] float64, 0 outside the mask."""

    advantages: Tensor
    returns: Tensor


def gae(token_rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, lambd: float) -> Gae:
    """A_k = delta_k + gamma lambd A_{k+1}, delta_k = reward_k + gamma V_{k+1} - V_k, over the valid tokens only.

    Masked slots are skipped, k counts valid tokens, and V after the last is 0, also when the reply was cut off (GAE,
    arXiv 1506.02438).
    """
    B, T = mask_BT.shape
    values = select(values_BT.to(torch.float64), mask_BT)
    # Valid tokens move to the front; every masked slot goes to one more slot at the end, where only zeros are written.
    position_BT = torch.where(mask_BT, mask_BT.cumsum(1) - 1, T)
    front = torch.zeros(2, B, T + 1, dtype=torch.float64, device=mask_BT.device)
    front_values = front[0].scatter_(1, position_BT, values)
    front_rewards = front[1].scatter_(1, position_BT, select(token_rewards_BT, mask_BT).to(torch.float64))
    # Behind the last valid token everything is 0, and so is delta there.
    delta = front_rewards[:, :-1] + gamma * front_values[:, 1:] - front_values[:, :-1]
    front_advantages = torch.nn.functional.pad(discounted_suffix_sum(delta, gamma * lambd), (0, 1))
    advantages = front_advantages.gather(1, position_BT)
    return Gae(advantages, advantages + values)  # both are 0 outside the mask


@dataclass(frozen=True, slots=True)
class Advantages:
    """What the advantages stage hands on; [B, T], 0 outside the mask, in the dtype of the rewards."""

    advantages: Tensor
    raw: Tensor
    """Before normalisation (the same tensor where there is none)."""
    returns: Tensor | None
    """The critic's targets, from the raw advantages; None without a critic."""


class _Rollout(NamedTuple):
    rewards: Tensor
    groups: Tensor
    mask: Tensor
    old_logprobs: Tensor | None
    ref_logprobs: Tensor | None
    values: Tensor | None
    kl_coef: float
    gamma: float
    lambd: float
    std_normalization: bool


_Raw = tuple[Tensor, Tensor | None]


def _group_normalised(x: _Rollout) -> _Raw:
    scalars = group_normalised if x.std_normalization else group_centred
    return broadcast(scalars(x.rewards, x.groups), x.mask), None


def _group_centred(x: _Rollout) -> _Raw:
    return broadcast(group_centred(x.rewards, x.groups), x.mask), None


def _leave_one_out(x: _Rollout) -> _Raw:
    return broadcast(leave_one_out(x.rewards, x.groups), x.mask), None


def _token_rewards(x: _Rollout) -> Tensor:
    return token_rewards(x.rewards, x.mask, kl_coef=x.kl_coef, old_logprobs=x.old_logprobs, ref_logprobs=x.ref_logprobs)


def _kl_to_go(x: _Rollout) -> _Raw:
    return reward_to_go(_token_rewards(x), x.mask, gamma=x.gamma), None


def _gae(x: _Rollout) -> _Raw:
    if x.values is None:
        raise ValueError("values are None: generalised advantages need the critic's values before the update")
    return gae(_token_rewards(x), x.values, x.mask, gamma=x.gamma, lambd=x.lambd)


ADVANTAGES: Mapping[str, Callable[[_Rollout], _Raw]] = {
    "group_normalised": _group_normalised,
    "group_centred": _group_centred,
    "leave_one_out": _leave_one_out,
    "kl_to_go": _kl_to_go,
    "gae": _gae,
}
"""By the name that the table of algorithms uses."""


def compute_advantages(
    estimator: str,
    *,
    rewards: Tensor,
    groups: Tensor,
    mask: Tensor,
    normalize_advantages: bool,
    std_normalization: bool = True,
    kl_coef: float = 0.0,
    gamma: float = 1.0,
    lambd: float = 1.0,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    values: Tensor | None = None,
    across: Across = one_rank,
) -> Advantages:
    """The advantages of a whole rollout, once, before it is cut into optimizer steps and micro-batches.

    rewards [B] float; groups [B] int64 in [0, B), from `group_index`; mask [B, T] bool; log-probs and values [B, T].
    old_logprobs and ref_logprobs are read where kl_coef is not 0, values by an estimator with a critic. `across`
    combines the statistics of a normalisation over ranks that each hold whole groups. ValueError: a missing input, a
    wrong shape, or normalize_advantages for an estimator that has no normalisation.
    """
    algorithm = lookup(estimator)
    if normalize_advantages and algorithm.normalisation is None:
        raise ValueError(f"normalize_advantages is on: {estimator} does not normalise; switch it off")
    _check(rewards, groups, mask, {"old_logprobs": old_logprobs, "ref_logprobs": ref_logprobs, "values": values})
    raw, returns = ADVANTAGES[algorithm.advantage](
        _Rollout(rewards, groups, mask, old_logprobs, ref_logprobs, values, kl_coef, gamma, lambd, std_normalization)
    )
    final = raw
    if normalize_advantages and algorithm.normalisation is not None:
        final = NORMALISATIONS[algorithm.normalisation](raw, mask, across=across)
    dtype = rewards.dtype
    raw_out = raw.to(dtype)
    return Advantages(
        advantages=raw_out if final is raw else final.to(dtype),
        raw=raw_out,
        returns=None if returns is None else returns.to(dtype),
    )


def _check(rewards: Tensor, groups: Tensor, mask: Tensor, tensors: Mapping[str, Tensor | None]) -> None:
    if mask.dtype != torch.bool or mask.dim() != 2:
        raise ValueError(f"mask is {mask.dtype} of shape {tuple(mask.shape)}: it must be bool of shape [B, T]")
    if rewards.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"rewards are {rewards.dtype}: they must be float32 or float64")
    for name, x, shape in (("rewards", rewards, mask.shape[:1]), ("groups", groups, mask.shape[:1])):
        if x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: it must be {tuple(shape)}, one for each response")
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != mask.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: it must be that of the mask, {tuple(mask.shape)}"
            )
