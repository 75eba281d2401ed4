"""What a node of a workflow does: a stage, and what belongs around it (ownership, signals, progress, tracking).

The stages themselves know of none of this, so that changing it does not change what a run is.
"""

from __future__ import annotations

import time

from relax_core import cleanup, follow
from relax_core.cluster import roles, session, stages
from relax_core.cluster.run import Run, open_run
from relax_core.ledger import owner
from relax_core.progress import shown
from relax_core.refs import BatchRef, PolicyRef, RunRef

_BEHIND_SECONDS = 20.0
_last_followed = time.monotonic()


def enter(ref: RunRef) -> Run:
    """Be the one process that works on a run: wait for another that does, and end well on Ctrl-C and SIGTERM."""
    run = open_run(ref)
    if not run.ledger.is_finished():
        owner.acquire(run.ledger.folder, shown.say)
        cleanup.call_at_end(run.give_up)
        catch_signals(run)
    return run


def catch_signals(run: Run) -> None:
    """Set the handlers, again after Ray has set its own."""
    cleanup.on_signals(
        lambda: (
            f"stopped after step {run.ledger.last_step()} of {run.config.rollout.num_rollout}; the same command goes on from there"
        )
    )


def rollout(policy: PolicyRef) -> BatchRef:
    run = enter(RunRef(id=policy.run))
    if run.ledger.batch(policy.step + 1, "rollout") is None:
        warm(run, policy)
    return stages.rollout(policy)


def advantages(batch: BatchRef) -> BatchRef:
    enter(RunRef(id=batch.run))
    return stages.advantages(batch)


def update(batch: BatchRef) -> PolicyRef:
    run = enter(RunRef(id=batch.run))
    already = run.ledger.policy(batch.step) is not None
    if not already and not session.running():
        before = run.ledger.policy(batch.step - 1)
        assert before is not None
        warm(run, before)
    policy = stages.update(batch)
    if not already:
        shown.step(batch.step, run.config.rollout.num_rollout, run.ledger.metrics(batch.step))
        _follow(run)
    return policy


def evaluate(policy: PolicyRef) -> PolicyRef:
    run = enter(RunRef(id=policy.run))
    if run.ledger.evaluation(policy.step) is None:
        warm(run, policy)
        stages.evaluate(policy)
        evaluation = run.ledger.evaluation(policy.step)
        assert evaluation is not None
        shown.evaluation(policy.step, evaluation["summary"])
        _follow(run)
    return policy


def steps(policy: PolicyRef, count: int) -> PolicyRef:
    """`count` steps with warm actors: the same nodes, in one process."""
    for _ in range(count):
        policy = update(advantages(rollout(policy)))
    return policy


def warm(run: Run, policy: PolicyRef) -> None:
    """Start Ray and the actors of a run, if they do not live."""
    if not session.running():
        shown.say("starting Ray, the trainer and the engine")
        session.ray(run.config.resources.threads)
        catch_signals(run)
        roles.start(run, policy)


def _follow(run: Run) -> None:
    """Bring tracking up to date now and then: it takes longer than a small step."""
    global _last_followed
    if time.monotonic() - _last_followed > _BEHIND_SECONDS:
        follow.sync(run.ledger)
        _last_followed = time.monotonic()
