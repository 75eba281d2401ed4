"""Policy and value losses per token. Inputs are clean (already selected by the mask) and all of one shape, [B, T].

`log_ratio` is lp - lp_old, so the ratio is rho = exp(log_ratio), its exponent limited to 20. A policy loss returns the
loss and where it counts as clipped.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relax_core.algorithms.kl import bounded_exp
from relax_core.algorithms.masking import masked_mean

SAPO_OPEN_GATE = 0.9
"""A SAPO token counts as clipped where its gate's slope 4p(1-p), at most 1, falls below this."""


class PolicyLoss(NamedTuple):
    """Loss per token, and bool per token: it counts in pg_clipfrac."""

    loss: Tensor
    clipped: Tensor


def reinforce(logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
    """-A lp: no ratio, so nothing is ever clipped (RLOO, arXiv 2402.14740)."""
    return PolicyLoss(-advantages * logprobs, torch.zeros_like(advantages, dtype=torch.bool))


def ppo_clip(
    log_ratio: Tensor, advantages: Tensor, *, eps_clip: float, eps_clip_high: float, eps_clip_c: float | None
) -> PolicyLoss:
    """max(-rho A, -clip(rho, 1 - eps_clip, 1 + eps_clip_high) A), with a bound for negative advantages.

    Where A < 0 and eps_clip_c is given, the loss is at most -eps_clip_c A, inside the band too (dual clip, arXiv
    1912.09729). Clipped: the clipped term is strictly larger; the bound does not count. (PPO: arXiv 1707.06347;
    eps_clip_high above eps_clip: DAPO, arXiv 2503.14476.)
    """
    ratio = bounded_exp(log_ratio)
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    is_clipped = clipped > plain
    loss = torch.where(is_clipped, clipped, plain)
    if eps_clip_c is not None:
        bound = -eps_clip_c * advantages
        loss = torch.where((advantages < 0) & (loss > bound), bound, loss)
    return PolicyLoss(loss, is_clipped)


def sequence_log_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T]: each response's mean of log_ratio over its valid tokens, in every slot (GSPO, arXiv 2507.18071).

    The gradient flows through the mean. A response without a valid token has 0.
    """
    mean_B = masked_mean(log_ratio_BT, mask_BT, dim=1).to(log_ratio_BT.dtype)
    return mean_B.unsqueeze(1).expand_as(log_ratio_BT)


def cispo(
    logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, *, eps_clip: float, eps_clip_high: float
) -> PolicyLoss:
    """-sg(clip(rho, 1 - eps_clip, 1 + eps_clip_high)) A lp: every token keeps a gradient (CISPO, arXiv 2506.13585).

    Clipped on both sides whatever the sign of A. Clipped: the ratio lies outside the band.
    """
    with torch.no_grad():
        ratio = bounded_exp(log_ratio)
        weight = ratio.clamp(1 - eps_clip, 1 + eps_clip_high)
    return PolicyLoss(-weight * advantages * logprobs, weight != ratio)


def sapo(log_ratio: Tensor, advantages: Tensor, *, tau_pos: float, tau_neg: float) -> PolicyLoss:
    """-(4 / tau) sigmoid(tau (rho - 1)) A, tau = tau_pos where A > 0, else tau_neg (SAPO, arXiv 2511.20347).

    At rho = 1 the gradient is that of -A lp. Clipped: the slope 4p(1-p) of the gate is below 0.9.
    """
    # One side is a tensor: two Python numbers would be rounded to float32.
    tau = torch.where(advantages > 0, torch.full_like(advantages, tau_pos), tau_neg)
    gate = torch.sigmoid(tau * (bounded_exp(log_ratio) - 1))
    return PolicyLoss(-(4 / tau) * gate * advantages, 4 * gate * (1 - gate) < SAPO_OPEN_GATE)


class TisWeight(NamedTuple):
    """Truncated importance sampling, per token: weight, ratio before the clamp, and where the clamp changed it."""

    weight: Tensor
    ratio: Tensor
    clipped: Tensor


@torch.no_grad()
def tis_weight(old_logprobs: Tensor, rollout_logprobs: Tensor, *, low: float, high: float) -> TisWeight:
    """clamp(exp(lp_old - lp_roll), low, high): corrects for an engine whose log-probs differ from the trainer's."""
    ratio = bounded_exp(old_logprobs - rollout_logprobs)
    weight = ratio.clamp(low, high)
    return TisWeight(weight, ratio, weight != ratio)


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, value_clip: float) -> PolicyLoss:
    """max((v - R)^2, (v_old + clamp(v - v_old, +-value_clip) - R)^2), without a factor 1/2, per token.

    Clipped: |v - v_old| > value_clip.
    """
    moved = values - old_values
    plain = (values - returns).square()
    clipped = (old_values + moved.clamp(-value_clip, value_clip) - returns).square()
    return PolicyLoss(torch.where(clipped > plain, clipped, plain), moved.abs() > value_clip)
