"""The rules between keys (shared with no other place). Each returns messages: the key, its value, the rule, the fix.

Ranges of single keys stand with the fields in models.py; a rule that depends on the algorithm reads the one table of
algorithms, never an algorithm's name, unless the rule is that algorithm's alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relax_core.algorithms import table
from relax_core.config.models import RunConfig
from relax_core.config.schedule import evaluated_steps, node_ends

MAX_NODES = 2000
"""A dynamic workflow must stay below so many nodes."""


def fill_defaults(config: RunConfig) -> tuple[RunConfig, dict[str, str]]:
    """Give every unset key its value; also what each of these keys took its value from."""
    entry = table.ALGORITHMS.get(config.algorithm.advantage_estimator)
    algorithm: dict[str, Any] = {}
    training: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if entry is not None:
        for key in ("reduction", "normalize_advantages"):
            if getattr(config.algorithm, key) is None:
                algorithm[key] = table.default(entry.name, key)
                origins[f"algorithm.{key}"] = f"default of {entry.name}"
        if config.algorithm.eps_clip_high is None:
            algorithm["eps_clip_high"] = config.algorithm.eps_clip
            origins["algorithm.eps_clip_high"] = "default: eps_clip"
        if entry.needs_critic and config.algorithm.critic_lr is None:
            algorithm["critic_lr"] = config.optimizer.lr
            origins["algorithm.critic_lr"] = "default: optimizer.lr"
    responses = config.rollout.rollout_batch_size * config.rollout.n_samples_per_prompt
    if config.training.num_steps_per_rollout is None and responses % config.training.global_batch_size == 0:
        training["num_steps_per_rollout"] = responses // config.training.global_batch_size
        origins["training.num_steps_per_rollout"] = "rollout_batch_size * n_samples_per_prompt / global_batch_size"
    if config.evaluation.eval_max_response_len is None:
        evaluation["eval_max_response_len"] = config.rollout.max_response_len
        origins["evaluation.eval_max_response_len"] = "default: rollout.max_response_len"
    filled = config.model_copy(
        update={
            "algorithm": config.algorithm.model_copy(update=algorithm),
            "training": config.training.model_copy(update=training),
            "evaluation": config.evaluation.model_copy(update=evaluation),
        }
    )
    return filled, origins


def check(config: RunConfig) -> tuple[list[str], list[str]]:
    """All violations, and the notes that a person should read although nothing is wrong."""
    violations = [
        text for rule in (_algorithm_keys, _ranges, _kl, _tis, _batch, _rloo, _data, _nodes) for text in rule(config)
    ]
    return violations, list(_notes(config))


def _algorithm_keys(config: RunConfig) -> Iterator[str]:
    """No key is accepted and ignored."""
    entry = table.lookup(config.algorithm.advantage_estimator)
    default_of = {"eps_clip_high": config.algorithm.eps_clip}
    for key, usual in table.DEFAULTS.items():
        value = getattr(config.algorithm, key)
        usual = default_of.get(key, usual)
        if key not in entry.reads and value != usual:
            yield (
                f"algorithm.{key}={value}: {entry.name} does not read it (read by {', '.join(table.readers(key))}); "
                f"leave it at {_show(usual)}"
            )
    if not config.algorithm.use_tis:
        for key in ("tis_clip_low", "tis_clip_high"):
            if getattr(config.algorithm, key) != table.DEFAULTS[key]:
                yield f"algorithm.{key}={getattr(config.algorithm, key)}: it has an effect only with use_tis; set use_tis to true"


def _show(value: object) -> str:
    return "unset" if value is None else str(value)


def _ranges(config: RunConfig) -> Iterator[str]:
    """Ranges that algorithms.md section 4 lists."""
    a, r = config.algorithm, config.rollout
    for key in ("eps_clip", "eps_clip_high", "value_clip", "sapo_tau_pos", "sapo_tau_neg"):
        value = getattr(a, key)
        if value is not None and value <= 0:
            yield f"algorithm.{key}={value}: must be above 0; the default is {_show(table.DEFAULTS[key])}"
    if a.eps_clip_c is not None and a.eps_clip_c <= 1:
        yield f"algorithm.eps_clip_c={a.eps_clip_c}: must be above 1; leave it unset to switch the dual clip off"
    for key in ("gamma", "lambd"):
        if not 0 <= getattr(a, key) <= 1:
            yield f"algorithm.{key}={getattr(a, key)}: must lie in [0, 1]; 1 means no discount"
    for key in ("kl_coef", "kl_loss_coef", "entropy_coef"):
        if getattr(a, key) < 0:
            yield f"algorithm.{key}={getattr(a, key)}: must be at least 0; 0 switches it off"
    if not 0 <= a.tis_clip_low < a.tis_clip_high:
        yield (
            f"algorithm.tis_clip_low={a.tis_clip_low}, algorithm.tis_clip_high={a.tis_clip_high}: "
            "0 <= low < high must hold; the defaults are 0 and 2"
        )
    if r.temperature <= 0:
        yield f"rollout.temperature={r.temperature}: training needs a temperature above 0; 1 is the usual one"
    if config.optimizer.clip_grad < 0:
        yield f"optimizer.clip_grad={config.optimizer.clip_grad}: must be at least 0; 0 switches clipping off"
    if config.optimizer.min_lr > config.optimizer.lr:
        yield (
            f"optimizer.min_lr={config.optimizer.min_lr}, optimizer.lr={config.optimizer.lr}: "
            "a schedule ends at min_lr, which cannot be above lr; lower it"
        )
    if config.optimizer.min_lr > 0 and config.optimizer.lr_decay_style == "constant":
        yield (
            f"optimizer.min_lr={config.optimizer.min_lr}: the constant schedule never reaches it; "
            "set lr_decay_style to linear or cosine, or min_lr to 0"
        )


def _kl(config: RunConfig) -> Iterator[str]:
    a = config.algorithm
    if a.kl_coef and a.kl_loss_coef:
        yield (
            f"algorithm.kl_coef={a.kl_coef}, algorithm.kl_loss_coef={a.kl_loss_coef}: "
            "a KL belongs in the reward or in the loss, not in both; set one of them to 0"
        )
    if not a.use_kl_loss:
        for key, off in (("kl_loss_coef", 0.0), ("kl_loss_type", "k1"), ("use_unbiased_kl", False)):
            if getattr(a, key) != off:
                yield f"algorithm.{key}={getattr(a, key)}: it has an effect only with use_kl_loss; set use_kl_loss to true"


def _tis(config: RunConfig) -> Iterator[str]:
    a = config.algorithm
    if a.use_tis and a.use_rollout_logprobs:
        yield (
            "algorithm.use_tis=True, algorithm.use_rollout_logprobs=True: the weight between trainer and engine is 1 by "
            "definition when the engine's log-probs are the old ones; switch one of them off"
        )


def _batch(config: RunConfig) -> Iterator[str]:
    r, t = config.rollout, config.training
    responses = r.rollout_batch_size * r.n_samples_per_prompt
    sizes = (
        f"rollout.rollout_batch_size={r.rollout_batch_size}, rollout.n_samples_per_prompt={r.n_samples_per_prompt}, "
        f"training.global_batch_size={t.global_batch_size}"
    )
    if t.num_steps_per_rollout is None:
        yield (
            f"{sizes}: {responses} responses per rollout are no multiple of global_batch_size; "
            f"set global_batch_size to {responses}"
        )
    elif responses != t.global_batch_size * t.num_steps_per_rollout:
        yield (
            f"{sizes}, training.num_steps_per_rollout={t.num_steps_per_rollout}: rollout_batch_size * n_samples_per_prompt "
            f"({responses}) must equal global_batch_size * num_steps_per_rollout "
            f"({t.global_batch_size * t.num_steps_per_rollout}); "
            f"set global_batch_size to {responses // t.num_steps_per_rollout or 1}"
        )
    entry = table.lookup(config.algorithm.advantage_estimator)
    if r.n_samples_per_prompt < entry.min_samples:
        yield (
            f"rollout.n_samples_per_prompt={r.n_samples_per_prompt}: {entry.title} compares the responses of a group, so it needs "
            f"at least {entry.min_samples}; raise n_samples_per_prompt"
        )


def _rloo(config: RunConfig) -> Iterator[str]:
    """Rules of RLOO alone (algorithms.md section 4)."""
    a, t = config.algorithm, config.training
    if a.advantage_estimator != "rloo":
        return
    if a.reduction != "token_mean":
        yield f"algorithm.reduction={a.reduction}: rloo reduces by token_mean; leave reduction unset"
    if t.num_steps_per_rollout is not None and t.num_steps_per_rollout != 1:
        responses = config.rollout.rollout_batch_size * config.rollout.n_samples_per_prompt
        yield (
            f"training.num_steps_per_rollout={t.num_steps_per_rollout}, training.global_batch_size={t.global_batch_size}, "
            f"rollout.rollout_batch_size={config.rollout.rollout_batch_size}, "
            f"rollout.n_samples_per_prompt={config.rollout.n_samples_per_prompt}: rloo has no ratio, so it makes exactly one "
            f"update per rollout (rollout_batch_size * n_samples_per_prompt = global_batch_size); "
            f"set global_batch_size to {responses}"
        )


def _data(config: RunConfig) -> Iterator[str]:
    if "\\boxed{}" not in config.data.prompt_template:
        yield (
            f"data.prompt_template={config.data.prompt_template!r}: it does not ask for \\boxed{{}}, where the answer is "
            "looked for; add it"
        )


def nodes(config: RunConfig) -> int:
    """Nodes of the dynamic part of the workflow."""
    steps = 3 * config.rollout.num_rollout if config.steps_per_node == 1 else len(node_ends(config))
    return steps + len(evaluated_steps(config)) - 2


def _nodes(config: RunConfig) -> Iterator[str]:
    if (count := nodes(config)) >= MAX_NODES:
        yield (
            f"steps_per_node={config.steps_per_node}, rollout.num_rollout={config.rollout.num_rollout}: the workflow would have "
            f"{count} nodes, and a dynamic workflow must stay below {MAX_NODES}; raise steps_per_node to "
            f"{max(2, 4 * config.rollout.num_rollout // MAX_NODES)}"
        )


def _notes(config: RunConfig) -> Iterator[str]:
    a, r = config.algorithm, config.rollout
    if r.top_p < 1 or r.top_k:
        yield (
            f"rollout.top_p={r.top_p}, rollout.top_k={r.top_k}: samples come from a truncated distribution and log-probs are of "
            "the full one, so the gradient is biased; top_p 1 and top_k 0 are exact"
        )
    if a.use_kl_loss and a.kl_loss_coef == 0:
        yield "algorithm.kl_loss_coef=0.0: the KL to the base model is only measured, not trained on"
    if a.use_kl_loss and a.kl_loss_coef and a.kl_loss_type == "k1":
        yield "algorithm.kl_loss_type=k1: the expected gradient of a k1 loss is zero; k2 and k3 have one"
