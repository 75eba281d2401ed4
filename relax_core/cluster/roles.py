"""Which actor holds which policy: every stage begins with `ensure_trainer` or `ensure_engine`.

The named actor of the run is used if it stands at exactly the policy asked for. Else the newest complete checkpoint at or
before it is loaded, the recorded batches since are replayed, and the weights must have the digest that the ledger knows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_core.cluster import actors, session
from relax_core.errors import RunError
from relax_core.refs import PolicyRef
from relax_core.training.checkpoint import folder_of

if TYPE_CHECKING:
    from relax_core.cluster.run import Run


def _name(run: Run, role: str) -> str:
    return f"{run.ref.id}-{role}"


def _find(run: Run, role: str) -> Any | None:
    """The named actor of the run, if it lives."""
    if not session.running():
        return None
    ray = session.ray(run.config.resources.threads)
    try:
        actor = ray.get_actor(_name(run, role), namespace=session.NAMESPACE)
        ray.get(actor.at.remote())
        return actor
    except (ValueError, ray.exceptions.RayActorError):
        return None


def _start(run: Run, role: str, cls: type, *args: Any) -> Any:
    ray = session.ray(run.config.resources.threads)
    # Trainer and engine take turns on the same cores, so neither reserves any. Detached: an actor is held by its name, not by
    # the handle of the stage that started it; `end` and the end of the session end it.
    options = {"name": _name(run, role), "namespace": session.NAMESPACE, "num_cpus": 0, "lifetime": "detached"}
    return ray.remote(cls).options(**options).remote(*args)


def get(run: Run, reference: Any) -> Any:
    """The value of a call to an actor."""
    return session.ray(run.config.resources.threads).get(reference)


def start(run: Run, policy: PolicyRef) -> None:
    """Start both roles without waiting, so that they load side by side while the driver does something else."""
    if _find(run, "trainer") is None:
        _start_trainer(run)
    if _find(run, "engine") is None:
        _start_engine(run, policy)


def _start_trainer(run: Run) -> Any:
    reference = str(run.base_folder) if run.needs_reference else None
    return _start(run, "trainer", actors.Trainer, run.base_policy, str(run.base_folder), run.trainer_spec(), reference)


def _start_engine(run: Run, policy: PolicyRef) -> Any:
    folder = run.policy_folder(policy)
    step = policy.step if folder else 0
    threads, most = run.config.resources.threads, run.config.rollout.max_running
    return _start(
        run,
        "engine",
        actors.Engine,
        PolicyRef(run=run.ref.id, step=step, digest=""),
        str(folder or run.base_folder),
        threads,
        most,
    )


def ensure_trainer(run: Run, policy: PolicyRef) -> Any:
    """The trainer of the run, holding exactly `policy`."""
    trainer = _find(run, "trainer") or _start_trainer(run)
    at: PolicyRef = get(run, trainer.at.remote())
    if at == policy:
        return trainer
    saved_step, folder = run.newest_checkpoint(policy.step) or (0, None)
    warm = at.step <= policy.step and at.digest == _digest(run, at.step)
    if not warm or at.step < saved_step:
        if folder is None:  # back to the base model
            end(run, "trainer")
            trainer = _start_trainer(run)
        else:
            get(run, trainer.load.remote(str(folder), PolicyRef(run=run.ref.id, step=saved_step, digest="")))
        at = get(run, trainer.at.remote())
    _verify(at, _digest(run, at.step))
    for step in range(at.step + 1, policy.step + 1):
        result = get(run, trainer.update.remote(step, *run.training_input(step)))
        _verify(PolicyRef(run=run.ref.id, step=step, digest=result["weights"]), _digest(run, step))
    _verify(get(run, trainer.at.remote()), policy.digest)
    return trainer


def ensure_engine(run: Run, policy: PolicyRef) -> tuple[Any, float]:
    """The engine of the run, holding exactly `policy`, and the seconds that handing the weights over took."""
    start_time = time.perf_counter()
    engine = _find(run, "engine") or _start_engine(run, policy)
    if get(run, engine.at.remote()) == policy:
        return engine, time.perf_counter() - start_time
    trainer = _find(run, "trainer")
    folder = run.policy_folder(policy)
    if folder is not None and (trainer is None or get(run, trainer.at.remote()) != policy):
        get(run, engine.load.remote(str(folder), policy.step))
    else:
        trainer = ensure_trainer(run, policy)
        start_time = time.perf_counter()
        get(run, engine.update_weights.remote(policy.step, trainer.weights.remote()))
    _verify(get(run, engine.at.remote()), policy.digest)
    return engine, time.perf_counter() - start_time


def _digest(run: Run, step: int) -> str:
    known = run.ledger.policy(step)
    return known.digest if known else ""


def _verify(at: PolicyRef, digest: str) -> None:
    if at.digest != digest:
        raise RunError(
            f"run {at.run}: the weights after {at.step} updates have digest {at.digest[:12]}, the ledger says {digest[:12]}; "
            "the machine or its libraries changed since they were made: remove the run's folder to start it anew"
        )


def end(run: Run, role: str | None = None) -> None:
    """End the actors of a run (or one of them)."""
    if not session.running():
        return
    ray = session.ray(run.config.resources.threads)
    for name in [role] if role else ["trainer", "engine"]:
        try:
            ray.kill(ray.get_actor(_name(run, name), namespace=session.NAMESPACE))
        except ValueError:
            continue  # it does not live


def checkpoint(run: Run, trainer: Any, policy: PolicyRef, state: dict[str, Any]) -> Path:
    """Have the trainer write a complete checkpoint of `policy`; returns its folder."""
    folder = folder_of(run.checkpoints, policy.step)
    get(run, trainer.save.remote(str(folder), state))
    return folder
