"""RLOO: each response against the mean of the others of its group (Ahmadian et al. 2024)."""

from __future__ import annotations

from flytekit import dynamic, workflow
from flytekit.types.file import FlyteFile

from relax_core.plan import Schedule
from relax_core.refs import PolicyRef
from tasks import prepare, report, steps


@dynamic
def rloo_steps(policy: PolicyRef, schedule: Schedule) -> PolicyRef:
    """The steps of a run: every stage a node of its own, or several steps in one node."""
    if schedule.steps_per_node == 1:
        for step in range(1, schedule.steps + 1):
            batch = steps.rollout(policy=policy)
            batch = steps.leave_one_out_advantages(batch=batch)
            policy = steps.update_actor(batch=batch)
            if step in schedule.evaluated:
                policy = steps.evaluate(policy=policy)
    else:
        done = 0
        for end in schedule.node_ends:
            policy = steps.train_steps(policy=policy, count=end - done)
            if end in schedule.evaluated:
                policy = steps.evaluate(policy=policy)
            done = end
    return policy


@workflow
def rloo(
    recipe: str = "tiny",
    set: str = "",
    data: str = "",
    eval_data: str = "",
    base_model: str = "",
    num_rollout: int = -1,
    rollout_batch_size: int = -1,
    n_samples_per_prompt: int = -1,
    global_batch_size: int = -1,
    seed: int = -1,
) -> FlyteFile:
    """Train a language model with RLOO and report whether it got better.

    Args:
        recipe: name of a recipe in workflows/recipes, or a YAML file
        set: JSON object of dotted keys that override the recipe, e.g. '{"optimizer.lr": 1e-3}'
        data: problems to train on: "arithmetic", or a Parquet, JSONL or CSV file; empty: as the recipe says
        eval_data: a file of held-out problems; empty: as the recipe says (else a seeded share of the data)
        base_model: "tiny", or a Llama/Qwen3-style Hugging Face folder; empty: as the recipe says
        num_rollout: rollouts, each followed by one update; -1: as the recipe says
        rollout_batch_size: prompts per rollout; -1: as the recipe says
        n_samples_per_prompt: responses per prompt, at least 2; -1: as the recipe says
        global_batch_size: responses per update, rollout_batch_size * n_samples_per_prompt; -1: as the recipe says
        seed: run seed (prompt order and sampling); -1: as the recipe says
    """
    planned = prepare.plan_run(
        algorithm="rloo",
        recipe=recipe,
        set=set,
        data=data,
        eval_data=eval_data,
        base_model=base_model,
        num_rollout=num_rollout,
        rollout_batch_size=rollout_batch_size,
        n_samples_per_prompt=n_samples_per_prompt,
        global_batch_size=global_batch_size,
        seed=seed,
    )
    dataset = prepare.clean_dataset(
        identity=planned.data, store=planned.data_store, source=planned.data_source, eval_source=planned.eval_source
    )
    base = prepare.base_model(identity=planned.base, store=planned.base_store, source=planned.base_source)
    start = prepare.open_run(plan=planned.run, dataset=dataset, base_model=base)
    before = steps.evaluate(policy=start)
    trained = rloo_steps(policy=before, schedule=planned.schedule)
    after = steps.evaluate(policy=trained)
    return report.report(policy=after)


def __dir__() -> list[str]:
    """What `pyflyte run workflows/rloo.py` lists: the workflow, and nothing that is not meant to be run."""
    return ["rloo"]
