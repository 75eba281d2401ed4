"""The plan: everything that can be known before anything is made. It reads, checks and digests; it writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from relax_core import digests, paths
from relax_core.code_version import code_version
from relax_core.config import flat
from relax_core.config.models import RunConfig
from relax_core.config.resolve import resolve
from relax_core.config.schedule import evaluated_steps, node_ends
from relax_core.data.prepare import DataPlan, plan_data
from relax_core.data.store import Store
from relax_core.errors import ConfigError, UserError
from relax_core.models import store as models
from relax_core.models.base import BasePlan, plan_base
from relax_core.refs import DatasetRef, ModelRef, RunRef

# The stages and everything that they compute with; what is only shown or tracked is not among them.
_CODE = ("relax_core.cluster.stages",)


class Schedule(BaseModel):
    """When what happens in a run: what a workflow needs to know to lay out its nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    steps_per_node: int
    node_ends: list[int]  # after how many updates a node of several steps ends
    evaluated: list[int]  # after how many updates the policy is evaluated, without the first and the last time


class RunPlan(BaseModel):
    """A resolved run, before its dataset and base model are made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    config: RunConfig
    origins: dict[str, str]
    notes: list[str]
    identity: str  # digest of the configuration as far as it says what is computed
    code: str

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            steps=self.config.rollout.num_rollout,
            steps_per_node=self.config.steps_per_node,
            node_ends=node_ends(self.config),
            evaluated=evaluated_steps(self.config)[1:-1],
        )

    def run(self, dataset: DatasetRef, base_model: ModelRef) -> RunRef:
        """The run that this plan is with these data and this base model."""
        digest = digests.of_value([self.identity, dataset.digest, base_model.digest, self.code])
        return RunRef(id=f"{self.config.algorithm.advantage_estimator}-{digest[:12]}")


class Plan(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    run: RunPlan
    data: DataPlan
    base: BasePlan
    base_source: str  # where the base model lies: no part of what it is


def make(
    algorithm: str,
    recipe: str,
    settings: str | Mapping[str, Any] = "",
    scalars: Mapping[str, str | int] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """Resolve and check a run. ConfigError holds everything that is wrong with configuration, data and base model."""
    resolved = resolve(algorithm, recipe, settings, scalars, environ)
    config, wrong = resolved.config, list(resolved.violations)
    data_plan, base_plan = None, None
    try:
        data_plan = plan_data(
            source=config.data.source,
            eval_data=config.evaluation.eval_data,
            prompt_template=config.data.prompt_template,
            seed=config.data.seed,
            eval_share=config.evaluation.eval_share,
            eval_rows=config.evaluation.eval_rows,
            arithmetic_levels=config.data.arithmetic.levels,
            arithmetic_count=config.data.arithmetic.count,
            arithmetic_templates=config.data.arithmetic.templates,
        )
    except UserError as error:
        wrong += str(error).splitlines()
    try:
        base_plan = plan_base(config)
    except UserError as error:
        wrong += str(error).splitlines()
    if wrong or data_plan is None or base_plan is None:
        raise ConfigError(list(dict.fromkeys(wrong)))
    run = RunPlan(
        name=resolved.name,
        config=config,
        origins=resolved.origins,
        notes=list(resolved.notes),
        identity=digests.of_value(resolved.identity()),
        code=code_version(_CODE),
    )
    return Plan(run=run, data=data_plan, base=base_plan, base_source=config.base.model)


def known_run(plan: Plan) -> tuple[DatasetRef | None, ModelRef | None, RunRef | None]:
    """What of a plan exists already: its dataset, its base model and, where both do, the id of its run."""
    dataset = Store(paths.datasets()).lookup(plan.data.key)
    model = models.lookup(plan.base.key)
    return dataset, model, plan.run.run(dataset, model) if dataset and model else None


def differences(plan: Plan, other: Plan) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in which two plans differ, with both values."""
    left = flat.flatten(plan.run.config.model_dump(mode="json"))
    right = flat.flatten(other.run.config.model_dump(mode="json"))
    return {key: (left.get(key), right.get(key)) for key in left if left.get(key) != right.get(key)}
