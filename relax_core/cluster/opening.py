"""The first stage of a run: its ledger."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform

from relax_core import paths
from relax_core.cluster import nodes
from relax_core.data.order import check_batch
from relax_core.data.store import Store
from relax_core.ledger.ledger import Ledger
from relax_core.models import store as models
from relax_core.plan import RunPlan
from relax_core.progress import shown
from relax_core.refs import DatasetRef, ModelRef, PolicyRef

_PACKAGES = ("torch", "megatron-core", "transformers", "ray", "flytekit", "pyarrow", "mlflow-skinny", "mlflow")


def open_run(plan: RunPlan, dataset: DatasetRef, base_model: ModelRef) -> PolicyRef:
    """The run of a plan: a new one, or the one that it is already. Returns the policy before its first update.

    UserError: fewer training prompts than a step asks. IntegrityError: the dataset or the base model is gone or damaged.
    """
    opened = Store(paths.datasets()).open(dataset)
    check_batch(opened.manifest["sides"]["train"]["rows"], plan.config.rollout.rollout_batch_size)
    models.folder(base_model)
    ref = plan.run(dataset, base_model)
    ledger = Ledger(ref)
    ledger.create(
        plan.config,
        {
            "run": ref.id,
            "name": plan.name,
            "dataset": dataset.digest,
            "base_model": base_model.digest,
            "base_weights": models.manifest(base_model)["weights"],
            "identity": plan.identity,
            "code": plan.code,
            "origins": plan.origins,
            "packages": _packages(),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        },
    )
    run = nodes.enter(ref)
    done = ledger.last_step()
    state = "is finished" if ledger.is_finished() else f"goes on after step {done}" if done else "begins"
    shown.say(
        f"run {ref.id} ({plan.name}) {state}: {plan.config.rollout.num_rollout} steps of "
        f"{plan.config.rollout.rollout_batch_size} prompts x {plan.config.rollout.n_samples_per_prompt} samples"
    )
    return run.base_policy


def _packages() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
