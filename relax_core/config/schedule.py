"""When what happens in a run."""

from __future__ import annotations

from relax_core.config.models import RunConfig


def evaluated_steps(config: RunConfig) -> list[int]:
    """After how many updates the policy is evaluated: before the first, at the interval, after the last."""
    interval = config.evaluation.eval_interval
    return [0, *(range(interval, config.rollout.num_rollout, interval) if interval else ()), config.rollout.num_rollout]


def node_ends(config: RunConfig) -> list[int]:
    """After how many updates a node of several steps ends: after steps_per_node of them, and where an evaluation is due."""
    steps = config.rollout.num_rollout
    return sorted({*range(config.steps_per_node, steps, config.steps_per_node), *evaluated_steps(config)[1:], steps})


def is_checkpoint_step(config: RunConfig, step: int) -> bool:
    """Whether the policy after `step` updates is saved: at the interval, and wherever it is evaluated."""
    return step % config.checkpoint.save_interval == 0 or step in evaluated_steps(config)
