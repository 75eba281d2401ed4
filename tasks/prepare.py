"""Before the first step: the plan, the dataset, the base model, and the run that they make."""

from __future__ import annotations

from typing import NamedTuple

from flytekit import Cache, Resources, task

from relax_core import cleanup, paths, plan
from relax_core.data import prepare as data
from relax_core.data.prepare import DataIdentity, DataPlan
from relax_core.models import base
from relax_core.models.base import BasePlan
from relax_core.plan import RunPlan, Schedule
from relax_core.progress import shown
from relax_core.refs import DatasetRef, ModelRef, PolicyRef
from relax_core.store_id import store_id
from tasks.people import plain_errors

# The inputs of a cached task say what is made and by which code; these say only where it lies.
_PLACES = ("source", "eval_source")


class Planned(NamedTuple):
    """What a run is (run), what its dataset and base model are, in which stores, and where their sources lie."""

    run: RunPlan
    schedule: Schedule
    data: DataIdentity
    data_store: str
    data_source: str
    eval_source: str
    base: BasePlan
    base_store: str
    base_source: str


@task(requests=Resources(cpu="1", mem="1Gi"))
@plain_errors
def plan_run(
    algorithm: str,
    recipe: str,
    set: str,
    data: str,
    eval_data: str,
    base_model: str,
    num_rollout: int,
    rollout_batch_size: int,
    n_samples_per_prompt: int,
    global_batch_size: int,
    seed: int,
) -> Planned:
    """Resolve the recipe, check every rule, digest the sources. Never cached: files change under the same name."""
    cleanup.sweep()
    scalars: dict[str, str | int] = {
        "data": data,
        "eval_data": eval_data,
        "base_model": base_model,
        "num_rollout": num_rollout,
        "rollout_batch_size": rollout_batch_size,
        "n_samples_per_prompt": n_samples_per_prompt,
        "global_batch_size": global_batch_size,
        "seed": seed,
    }
    made = plan.make(algorithm, recipe, set, scalars)
    for note in made.run.notes:
        shown.say(f"note: {note}")
    return Planned(
        run=made.run,
        schedule=made.run.schedule,
        data=made.data.identity,
        data_store=store_id(paths.datasets()),
        data_source=made.data.source,
        eval_source=made.data.eval_source,
        base=made.base,
        base_store=store_id(paths.models()),
        base_source=made.base_source,
    )


@task(cache=Cache(version="1", ignored_inputs=_PLACES), requests=Resources(cpu="1", mem="2Gi"))
@plain_errors
def clean_dataset(identity: DataIdentity, store: str, source: str, eval_source: str) -> DatasetRef:
    """Clean the problems into prompts that ask for a boxed answer, and store them by content."""
    return data.prepare(DataPlan(identity=identity, source=source, eval_source=eval_source))


@task(cache=Cache(version="1", ignored_inputs=("source",)), requests=Resources(cpu="2", mem="4Gi"))
@plain_errors
def base_model(identity: BasePlan, store: str, source: str) -> ModelRef:
    """The base model: built and warmed up, or copied into the store."""
    return base.prepare(identity, source, shown.say)


@task(requests=Resources(cpu="1", mem="2Gi"))
@plain_errors
def open_run(plan: RunPlan, dataset: DatasetRef, base_model: ModelRef) -> PolicyRef:
    """Write what the run is into its ledger, or find the run that it is already; the policy before its first update."""
    from relax_core.cluster import opening

    return opening.open_run(plan, dataset, base_model)
