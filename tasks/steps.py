"""The stages of a step as Flyte nodes. What is computed is in relax_core/cluster/stages.py."""

from __future__ import annotations

from flytekit import Resources, task

from relax_core.refs import BatchRef, PolicyRef
from tasks.people import plain_errors

_HEAVY = Resources(cpu="2", mem="8Gi")


@task(requests=_HEAVY)
@plain_errors
def rollout(policy: PolicyRef) -> BatchRef:
    """Draw a group of responses for each prompt of the next step, and score them."""
    from relax_core.cluster import nodes

    return nodes.rollout(policy)


@task(requests=Resources(cpu="1", mem="2Gi"))
@plain_errors
def leave_one_out_advantages(batch: BatchRef) -> BatchRef:
    """Each response's reward against the mean of the others of its group."""
    from relax_core.cluster import nodes

    return nodes.advantages(batch)


@task(requests=_HEAVY)
@plain_errors
def update_actor(batch: BatchRef) -> PolicyRef:
    """One optimizer step on the batch."""
    from relax_core.cluster import nodes

    return nodes.update(batch)


@task(requests=_HEAVY)
@plain_errors
def train_steps(policy: PolicyRef, count: int) -> PolicyRef:
    """Several whole steps in one node, with warm engines and weights in memory."""
    from relax_core.cluster import nodes

    return nodes.steps(policy, count)


@task(requests=_HEAVY)
@plain_errors
def evaluate(policy: PolicyRef) -> PolicyRef:
    """Answer the held-out problems, greedily and sampled; hands the policy on."""
    from relax_core.cluster import nodes

    return nodes.evaluate(policy)
