"""A run's ledger as MLflow gets it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_core import paths, tracking
from relax_core.config import flat
from relax_core.data.store import Store
from relax_core.ledger.ledger import Ledger
from relax_core.tracking import Tracked, TrackedDataset, TrackedStep


def sync(ledger: Ledger, artifacts: tuple[Path, ...] = ()) -> str | None:
    """Copy to MLflow what it lacks of a run; the id of the MLflow run, or None."""
    config = ledger.config.tracking
    return tracking.sync(tracked(ledger, artifacts), uri=config.uri, experiment=config.experiment)


def tracked(ledger: Ledger, artifacts: tuple[Path, ...] = ()) -> Tracked:
    about = ledger.about
    started = datetime.datetime.fromisoformat(about["started"])
    times = {(t["step"], t["stage"]): t for t in ledger.timings()}
    start_ms = round(started.timestamp() * 1000)
    steps = [
        TrackedStep(
            step=step,
            at_ms=round(times[step, "update"]["at"] * 1000) if (step, "update") in times else start_ms,
            metrics={**ledger.metrics(step), **performance(ledger, step, times)},
        )
        for step in range(1, ledger.last_step() + 1)
    ]
    evaluations = [
        TrackedStep(
            step=step,
            at_ms=round(times[step, "evaluation"]["at"] * 1000) if (step, "evaluation") in times else start_ms,
            metrics=evaluation_metrics(evaluation),
        )
        for step in ledger.evaluated_steps()
        if (evaluation := ledger.evaluation(step)) is not None
    ]
    finished = ledger.is_finished() or bool(artifacts)
    return Tracked(
        run_id=ledger.run.id,
        name=ledger.name,
        params={k: str(v) for k, v in flat.flatten(ledger.config.model_dump(mode="json")).items()},
        tags={
            "relax.algorithm": ledger.config.algorithm.advantage_estimator,
            "relax.name": ledger.name,
            "relax.base_model": about["base_model"],
            "relax.code": about["code"],
            "relax.seed": str(ledger.config.seed),
        },
        steps=steps,
        evaluations=evaluations,
        dataset=_dataset(ledger),
        artifacts=artifacts,
        status="finished" if finished else "running",
        start_ms=start_ms,
        end_ms=round(max((t["at"] for t in times.values()), default=started.timestamp()) * 1000),
    )


def performance(ledger: Ledger, step: int, times: Mapping[tuple[int, str], Mapping[str, Any]]) -> dict[str, float]:
    """perf/* of a step, out of its timings."""
    rollout, advantages, update = (times.get((step, stage)) for stage in ("rollout", "advantages", "update"))
    if rollout is None or advantages is None or update is None:
        return {}
    generate = rollout["generate"]
    total = generate + rollout["score"] + rollout["weight_sync"] + advantages["advantages"] + update["update"]
    tokens = ledger.metrics(step).get("train/tokens", 0.0)
    return {
        "perf/rollout_time": generate + rollout["score"],
        "perf/train_time": update["train"],
        "perf/weight_sync_time": rollout["weight_sync"],
        "perf/step_time": total,
        "perf/tokens_per_sec": tokens / total if total > 0 else 0.0,
    }


def evaluation_metrics(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """eval/<set>/<name>, with the ends of the 95 % interval as <name>_low and <name>_high."""
    metrics = {}
    for name, interval in evaluation["summary"].items():
        for suffix, key in (("", "value"), ("_low", "low"), ("_high", "high")):
            if interval[key] is not None:
                metrics[f"eval/{evaluation['set']}/{name}{suffix}"] = float(interval[key])
    return metrics


def _dataset(ledger: Ledger) -> TrackedDataset:
    manifest = Store(paths.datasets()).open(ledger.dataset).manifest
    return TrackedDataset(
        name=source_name(manifest),
        digest=ledger.dataset.digest,
        source=source_name(manifest),
        rows={side: entry["rows"] for side, entry in manifest["sides"].items()},
    )


def source_name(manifest: Mapping[str, Any]) -> str:
    return str(manifest["derivation"]["sources"][0]["name"])
