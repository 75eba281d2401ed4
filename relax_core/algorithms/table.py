"""The one table of algorithms: what each estimator is made of, which keys it reads and what they default to.

It imports no torch, so that configuration and planning can read it. The names of advantages, normalisations and policy
losses are looked up in `advantages` and `objective`; nothing else in the system branches on an estimator's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "reduction": "response_mean",
        "entropy_coef": 0.0,
        "use_rollout_logprobs": False,
        "use_tis": False,
        "tis_clip_low": 0.0,
        "tis_clip_high": 2.0,
        "use_kl_loss": False,
        "kl_loss_coef": 0.0,
        "kl_loss_type": "k1",
        "use_unbiased_kl": False,
        "kl_coef": 0.0,
        "eps_clip": 0.2,
        "eps_clip_high": None,  # None: the value of eps_clip
        "eps_clip_c": None,  # None: no lower bound for negative advantages
        "sapo_tau_pos": 1.0,
        "sapo_tau_neg": 1.05,
        "normalize_advantages": False,
        "std_normalization": True,
        "gamma": 1.0,
        "lambd": 1.0,
        "value_clip": 0.2,
        "num_critic_only_steps": 0,
        "critic_lr": None,  # None: the actor's learning rate
        "critic_lr_warmup_iters": 0,
    }
)
"""Every key of an algorithm block with its default; an entry of the table may have another (`Algorithm.defaults`)."""

REDUCTIONS = ("response_mean", "token_mean", "constant")
KL_TYPES = ("k1", "k2", "k3", "low_var_kl")

_ALWAYS = frozenset({"reduction", "entropy_coef", "use_rollout_logprobs", "use_tis", "tis_clip_low", "tis_clip_high"})
_KL_LOSS = frozenset({"use_kl_loss", "kl_loss_coef", "kl_loss_type"})
_UNBIASED = frozenset({"use_unbiased_kl"})
_KL_REWARD = frozenset({"kl_coef"})
_CLIP = frozenset({"eps_clip", "eps_clip_high"})
_DUAL_CLIP = frozenset({"eps_clip_c"})
_SAPO = frozenset({"sapo_tau_pos", "sapo_tau_neg"})
_NORMALISE = frozenset({"normalize_advantages"})
_STD = frozenset({"std_normalization"})
_GAMMA = frozenset({"gamma"})
_CRITIC = frozenset({"lambd", "value_clip", "num_critic_only_steps", "critic_lr", "critic_lr_warmup_iters"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What one estimator is made of."""

    name: str
    """The value of `advantage_estimator`."""
    title: str
    """The name that people use."""
    advantage: str
    """Key of `advantages.ADVANTAGES`."""
    normalisation: str | None
    """Key of `normalisation.NORMALISATIONS`, applied when normalize_advantages is on; None: the key is not read."""
    policy_loss: str
    """Key of `objective.POLICY_LOSSES`."""
    reads: frozenset[str]
    """The keys of `DEFAULTS` that have an effect (tis_clip_* with use_tis, the KL-loss keys with use_kl_loss)."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Defaults that differ from `DEFAULTS`."""
    min_samples: int
    """The smallest n (samples per prompt) with which there is a signal."""
    needs_critic: bool = False
    """Values before the update are needed, and a critic learns beside the actor."""
    sync_only: bool = False
    """Refuses fully-async rollouts and any staleness."""


def _table(*entries: Algorithm) -> Mapping[str, Algorithm]:
    return MappingProxyType({entry.name: entry for entry in entries})


ALGORITHMS: Mapping[str, Algorithm] = _table(
    Algorithm(
        name="ppo",
        title="PPO",
        advantage="gae",
        normalisation="whiten",
        policy_loss="ppo_clip",
        reads=_ALWAYS | _KL_LOSS | _UNBIASED | _KL_REWARD | _CLIP | _DUAL_CLIP | _NORMALISE | _GAMMA | _CRITIC,
        min_samples=1,
        needs_critic=True,
        sync_only=True,
    ),
    Algorithm(
        name="grpo",
        title="GRPO",
        advantage="group_normalised",
        normalisation="whiten",
        policy_loss="ppo_clip",
        reads=_ALWAYS | _KL_LOSS | _UNBIASED | _CLIP | _DUAL_CLIP | _NORMALISE | _STD,
        min_samples=2,
    ),
    Algorithm(
        name="reinforce_plus_plus",
        title="REINFORCE++",
        advantage="kl_to_go",
        normalisation="tokens",
        policy_loss="ppo_clip",
        reads=_ALWAYS | _KL_REWARD | _CLIP | _DUAL_CLIP | _NORMALISE | _GAMMA,
        defaults=MappingProxyType({"normalize_advantages": True}),
        min_samples=1,
        sync_only=True,
    ),
    Algorithm(
        name="reinforce_plus_plus_baseline",
        title="REINFORCE++-baseline",
        advantage="group_centred",
        normalisation="tokens",
        policy_loss="ppo_clip",
        reads=_ALWAYS | _KL_LOSS | _CLIP | _DUAL_CLIP | _NORMALISE,
        defaults=MappingProxyType({"normalize_advantages": True}),
        min_samples=2,
        sync_only=True,
    ),
    Algorithm(
        name="rloo",
        title="RLOO",
        advantage="leave_one_out",
        normalisation=None,
        policy_loss="reinforce",
        reads=_ALWAYS | _KL_LOSS | _UNBIASED,
        defaults=MappingProxyType({"reduction": "token_mean"}),
        min_samples=2,
        sync_only=True,
    ),
    Algorithm(
        name="gspo",
        title="GSPO",
        advantage="group_normalised",
        normalisation="whiten",
        policy_loss="gspo",
        reads=_ALWAYS | _KL_LOSS | _UNBIASED | _CLIP | _DUAL_CLIP | _NORMALISE | _STD,
        min_samples=2,
    ),
    Algorithm(
        name="cispo",
        title="CISPO",
        advantage="group_normalised",
        normalisation="whiten",
        policy_loss="cispo",
        reads=_ALWAYS | _KL_LOSS | _UNBIASED | _CLIP | _NORMALISE | _STD,
        min_samples=2,
    ),
    Algorithm(
        name="sapo",
        title="SAPO",
        advantage="group_normalised",
        normalisation="whiten",
        policy_loss="sapo",
        reads=_ALWAYS | _KL_LOSS | _UNBIASED | _SAPO | _NORMALISE | _STD,
        min_samples=2,
    ),
)
"""The estimators by the name that `advantage_estimator` takes."""


def lookup(estimator: str) -> Algorithm:
    """The entry of an estimator. ValueError names the ones that exist."""
    try:
        return ALGORITHMS[estimator]
    except KeyError:
        known = ", ".join(ALGORITHMS)
        raise ValueError(f"advantage_estimator is {estimator!r}: it must be one of {known}") from None


def default(estimator: str, key: str) -> object:
    """The default of an algorithm key for this estimator (None stands for what `DEFAULTS` says beside it)."""
    return lookup(estimator).defaults.get(key, DEFAULTS[key])


def readers(key: str) -> tuple[str, ...]:
    """The estimators that read an algorithm key, in the order of the table (for messages)."""
    return tuple(name for name, entry in ALGORITHMS.items() if key in entry.reads)
