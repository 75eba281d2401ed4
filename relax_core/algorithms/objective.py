"""The one composition of losses that a trainer calls per micro-batch, for every algorithm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from relax_core.algorithms import losses
from relax_core.algorithms.kl import bounded_exp, kl_estimate
from relax_core.algorithms.masking import select
from relax_core.algorithms.reduction import reduce
from relax_core.algorithms.table import KL_TYPES, REDUCTIONS, default, lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is minimised, as plain values. Names, meanings and ranges are those of the configuration keys."""

    policy_loss: str
    """Key of `POLICY_LOSSES`."""
    eps_clip: float
    eps_clip_high: float
    eps_clip_c: float | None
    """Bound of the loss for negative advantages; None: no bound."""
    sapo_tau_pos: float
    sapo_tau_neg: float
    reduction: str
    max_response_len: int | None
    """Limit of a reply in tokens; read by the reduction `constant`."""
    entropy_coef: float
    use_kl_loss: bool
    kl_loss_coef: float
    kl_loss_type: str
    use_unbiased_kl: bool
    use_tis: bool
    tis_clip_low: float
    tis_clip_high: float
    use_rollout_logprobs: bool
    """lp_old is what the rollout engine returned."""

    def __post_init__(self) -> None:
        _one_of("policy_loss", self.policy_loss, POLICY_LOSSES)
        _one_of("reduction", self.reduction, REDUCTIONS)
        _one_of("kl_loss_type", self.kl_loss_type, KL_TYPES)
        if self.use_tis and self.use_rollout_logprobs:
            raise ValueError("use_tis with use_rollout_logprobs: the weight would always be 1; switch one of them off")


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of the whole optimizer step: all its micro-batches on all ranks, empty responses included."""

    responses: int
    tokens: int


def objective_of(estimator: str, settings: Mapping[str, Any], *, max_response_len: int | None = None) -> Objective:
    """The objective of an estimator. `settings` has configuration keys; a missing one takes the estimator's default.

    eps_clip_high None is eps_clip. Keys that are no field of `Objective` belong to others and are passed over.
    """
    names = [f.name for f in fields(Objective) if f.name not in ("policy_loss", "max_response_len")]
    values: dict[str, Any] = {n: settings[n] if n in settings else default(estimator, n) for n in names}
    if values["eps_clip_high"] is None:
        values["eps_clip_high"] = values["eps_clip"]
    return Objective(policy_loss=lookup(estimator).policy_loss, max_response_len=max_response_len, **values)


def loss_and_metrics(
    objective: Objective,
    totals: Totals,
    *,
    logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss (float64 scalar, with graph) and metrics (float64 scalars, without) of one micro-batch.

    All tensors are [B, T]; mask is bool; log-probs are of the full softmax of logits / temperature, in nats. Loss =
    reduce(pg) - entropy_coef reduce(H) + kl_loss_coef reduce(KL).

    old_logprobs None means sg(logprobs): one update on the weights that generated the rollout. With
    use_rollout_logprobs the old ones are rollout_logprobs, and old_logprobs must be None. ref_logprobs are needed with
    use_kl_loss, rollout_logprobs with use_tis and use_rollout_logprobs, entropy where entropy_coef is not 0; elsewhere
    rollout_logprobs and entropy may be given to be measured.

    Every value is this micro-batch's share: sums over micro-batches and ranks are the step's values. Metrics: loss,
    pg_loss, pg_clipfrac, ppo_kl; kl_loss (before its coefficient), tis and tis_clipfrac where they are on; entropy_loss
    and train_rollout_logprob_abs_diff (mean over tokens) where their inputs are given. ValueError: a needed tensor is
    missing or a shape differs.
    """
    batch = _prepare(
        objective,
        logprobs=logprobs,
        advantages=advantages,
        mask=mask,
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        rollout_logprobs=rollout_logprobs,
        entropy=entropy,
    )
    terms, tis = _policy_terms(objective, batch)
    share = _Share(mask, objective.reduction, totals, objective.max_response_len)

    loss = share.of_loss(terms.loss)
    metrics = {
        "pg_loss": loss.detach(),
        "pg_clipfrac": share.of_metric(terms.clipped),
        "ppo_kl": share.of_metric(-terms.log_ratio.detach()),
    }
    if tis is not None:
        metrics["tis"] = share.of_metric(tis.ratio)
        metrics["tis_clipfrac"] = share.of_metric(tis.clipped)
    if batch.entropy is not None:
        reduced_entropy = share.of_loss(batch.entropy)
        metrics["entropy_loss"] = reduced_entropy.detach()
        if objective.entropy_coef != 0:
            loss = loss - objective.entropy_coef * reduced_entropy
    if objective.use_kl_loss:
        reduced_kl = share.of_loss(_kl_per_token(objective, batch))
        metrics["kl_loss"] = reduced_kl.detach()
        if objective.kl_loss_coef != 0:
            loss = loss + objective.kl_loss_coef * reduced_kl
    if batch.rollout_logprobs is not None:
        gap = (batch.logprobs.detach() - batch.rollout_logprobs).abs()
        metrics["train_rollout_logprob_abs_diff"] = share.of_tokens(gap)
    return loss, {"loss": loss.detach(), **metrics}


def policy_loss_per_token(objective: Objective, **tensors: Any) -> Tensor:
    """[B, T]: the policy loss of each token, TIS weight included, 0 outside the mask.

    Keyword arguments: the tensors of `loss_and_metrics`, under its rules.
    """
    batch = _prepare(objective, **tensors)
    return select(_policy_terms(objective, batch)[0].loss, batch.mask)


def value_loss_and_metrics(
    totals: Totals,
    *,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    value_clip: float,
    reduction: str,
    max_response_len: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The critic's loss and metrics of one micro-batch, shares like those of `loss_and_metrics`. All tensors [B, T].

    old_values: the critic's values before the update; returns: from `compute_advantages`. Metrics: critic-value_loss,
    critic-value_clipfrac.
    """
    _check_shapes(mask, {"values": values, "old_values": old_values, "returns": returns})
    old, target = select(old_values, mask).detach(), select(returns, mask).detach()
    terms = losses.clipped_value_loss(select(values, mask), old, target, value_clip=value_clip)
    share = _Share(mask, reduction, totals, max_response_len)
    loss = share.of_loss(terms.loss)
    return loss, {
        "critic-value_loss": loss.detach(),
        "critic-value_clipfrac": share.of_metric(terms.clipped),
    }


class _Inputs(NamedTuple):
    """The tensors of a micro-batch after selection: 0 wherever the mask is False."""

    logprobs: Tensor
    advantages: Tensor
    mask: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor | None
    rollout_logprobs: Tensor | None
    entropy: Tensor | None


class _Share(NamedTuple):
    """How this micro-batch's tokens become its share of the step's values."""

    mask: Tensor
    reduction: str
    totals: Totals
    max_response_len: int | None

    def of_loss(self, x: Tensor) -> Tensor:
        """x [B, T] by the run's reduction, with graph."""
        return self._reduce(x, self.reduction)

    def of_metric(self, x: Tensor) -> Tensor:
        """x [B, T] as a share: by the run's reduction, but over tokens where that one has a constant divisor."""
        return self._reduce(x, "token_mean" if self.reduction == "constant" else self.reduction)

    def of_tokens(self, x: Tensor) -> Tensor:
        """x [B, T] as a mean over tokens."""
        return self._reduce(x, "token_mean")

    def _reduce(self, x: Tensor, reduction: str) -> Tensor:
        return reduce(
            x,
            self.mask,
            reduction=reduction,
            responses=self.totals.responses,
            tokens=self.totals.tokens,
            max_response_len=self.max_response_len,
        )


class _PolicyTerms(NamedTuple):
    loss: Tensor
    clipped: Tensor
    log_ratio: Tensor
    """lp - lp_old as the surrogate uses it; ppo_kl is its negative."""


def _reinforce(objective: Objective, batch: _Inputs, log_ratio: Tensor) -> _PolicyTerms:
    return _PolicyTerms(*losses.reinforce(batch.logprobs, batch.advantages), log_ratio)


def _ppo_clip(objective: Objective, batch: _Inputs, log_ratio: Tensor) -> _PolicyTerms:
    terms = losses.ppo_clip(
        log_ratio,
        batch.advantages,
        eps_clip=objective.eps_clip,
        eps_clip_high=objective.eps_clip_high,
        eps_clip_c=objective.eps_clip_c,
    )
    return _PolicyTerms(*terms, log_ratio)


def _gspo(objective: Objective, batch: _Inputs, log_ratio: Tensor) -> _PolicyTerms:
    return _ppo_clip(objective, batch, losses.sequence_log_ratio(log_ratio, batch.mask))


def _cispo(objective: Objective, batch: _Inputs, log_ratio: Tensor) -> _PolicyTerms:
    terms = losses.cispo(
        batch.logprobs,
        log_ratio,
        batch.advantages,
        eps_clip=objective.eps_clip,
        eps_clip_high=objective.eps_clip_high,
    )
    return _PolicyTerms(*terms, log_ratio)


def _sapo(objective: Objective, batch: _Inputs, log_ratio: Tensor) -> _PolicyTerms:
    terms = losses.sapo(log_ratio, batch.advantages, tau_pos=objective.sapo_tau_pos, tau_neg=objective.sapo_tau_neg)
    return _PolicyTerms(*terms, log_ratio)


POLICY_LOSSES: Mapping[str, Callable[[Objective, _Inputs, Tensor], _PolicyTerms]] = {
    "reinforce": _reinforce,
    "ppo_clip": _ppo_clip,
    "gspo": _gspo,
    "cispo": _cispo,
    "sapo": _sapo,
}


"""The surrogates by the name that the table of algorithms uses."""


def _policy_terms(objective: Objective, batch: _Inputs) -> tuple[_PolicyTerms, losses.TisWeight | None]:
    """The finished policy loss of each token, and the TIS weight that is in it."""
    terms = POLICY_LOSSES[objective.policy_loss](objective, batch, batch.logprobs - batch.old_logprobs)
    if not objective.use_tis:
        return terms, None
    assert batch.rollout_logprobs is not None  # _prepare has checked it
    tis = losses.tis_weight(
        batch.old_logprobs, batch.rollout_logprobs, low=objective.tis_clip_low, high=objective.tis_clip_high
    )
    return terms._replace(loss=tis.weight * terms.loss), tis


def _kl_per_token(objective: Objective, batch: _Inputs) -> Tensor:
    assert batch.ref_logprobs is not None  # _prepare has checked it
    weight = bounded_exp(batch.logprobs - batch.old_logprobs) if objective.use_unbiased_kl else None
    return kl_estimate(objective.kl_loss_type, batch.logprobs, batch.ref_logprobs, weight=weight)


def _prepare(
    objective: Objective,
    *,
    logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
) -> _Inputs:
    """Check what the objective needs, select by the mask, settle which log-probs are the old ones."""
    optional = {
        "old_logprobs": old_logprobs,
        "ref_logprobs": ref_logprobs,
        "rollout_logprobs": rollout_logprobs,
        "entropy": entropy,
    }
    present = {name: x for name, x in optional.items() if x is not None}
    _check_needs(objective, present.keys())
    _check_shapes(mask, {"logprobs": logprobs, "advantages": advantages, **present})

    # Only the current policy's log-probs and entropy carry a gradient.
    current = select(logprobs, mask)
    fixed = {name: select(x, mask).detach() for name, x in present.items() if name != "entropy"}
    rollout = fixed.get("rollout_logprobs")
    old = rollout if objective.use_rollout_logprobs else fixed.get("old_logprobs")
    return _Inputs(
        logprobs=current,
        advantages=select(advantages, mask).detach(),
        mask=mask,
        old_logprobs=current.detach() if old is None else old,
        ref_logprobs=fixed.get("ref_logprobs"),
        rollout_logprobs=rollout,
        entropy=None if entropy is None else select(entropy, mask),
    )


def _check_needs(objective: Objective, present: Collection[str]) -> None:
    needs = {
        "use_kl_loss": ("ref_logprobs", objective.use_kl_loss),
        "use_tis": ("rollout_logprobs", objective.use_tis),
        "use_rollout_logprobs": ("rollout_logprobs", objective.use_rollout_logprobs),
        "entropy_coef": ("entropy", objective.entropy_coef != 0),
    }
    for key, (name, needed) in needs.items():
        if needed and name not in present:
            raise ValueError(f"{name} is None: {key} = {getattr(objective, key)} needs it")
    if objective.use_rollout_logprobs and "old_logprobs" in present:
        raise ValueError(
            "old_logprobs are given: with use_rollout_logprobs the old ones are rollout_logprobs; pass None"
        )


def _check_shapes(mask: Tensor, tensors: Mapping[str, Tensor]) -> None:
    if mask.dtype != torch.bool or mask.dim() != 2:
        raise ValueError(f"mask is {mask.dtype} of shape {tuple(mask.shape)}: it must be bool of shape [B, T]")
    for name, x in tensors.items():
        if x.shape != mask.shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: it must be that of the mask, {tuple(mask.shape)}")


def _one_of(key: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ValueError(f"{key} is {value!r}: it must be one of {', '.join(known)}")
