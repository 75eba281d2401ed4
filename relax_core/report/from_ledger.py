"""The report of a run, out of its ledger."""

from __future__ import annotations

import datetime
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relax_core import follow, paths, tracking
from relax_core.algorithms.table import lookup
from relax_core.config import flat
from relax_core.data.store import Store
from relax_core.evaluation.statistics import Interval, Transitions, paired_gain, transitions
from relax_core.ledger.ledger import Ledger
from relax_core.report.run_report import Conversation, DatasetFacts, Reply, RunReport, Setting

CONVERSATIONS = 40


def run_report(ledger: Ledger, model_folder: Path) -> RunReport:
    """Everything that the page of this run says."""
    about, config = ledger.about, ledger.config
    times = {(t["step"], t["stage"]): t for t in ledger.timings()}
    steps = range(1, ledger.last_step() + 1)
    metrics: dict[str, list[tuple[int, float]]] = {}
    for step in steps:
        for name, value in {**ledger.metrics(step), **follow.performance(ledger, step, times)}.items():
            metrics.setdefault(name, []).append((step, value))
    evaluated = ledger.evaluated_steps()
    evaluations = {step: ledger.evaluation(step) or {} for step in evaluated}
    gain, moved = _change(ledger, evaluated)
    policy = ledger.policy(ledger.last_step())
    assert policy is not None
    shown_folder = nearest(model_folder)
    return RunReport(
        run_id=ledger.run.id,
        name=ledger.name,
        algorithm=lookup(config.algorithm.advantage_estimator).title,
        status="finished" if ledger.last_step() == config.rollout.num_rollout else "interrupted",
        seed=config.seed,
        started=datetime.datetime.fromisoformat(about["started"]),
        finished=datetime.datetime.fromtimestamp(max((t["at"] for t in times.values()), default=0.0), datetime.UTC),
        evaluations=[(step, evaluations[step]["summary"]) for step in evaluated],
        gain=gain,
        transitions=moved,
        metrics=metrics,
        timings=_timings(ledger),
        conversations=_conversations(ledger, evaluated),
        dataset=_dataset(ledger),
        base_model=config.base.model,
        base_model_digest=about["base_model"],
        policy_digest=policy.digest,
        model_folder=shown_folder,
        settings=[
            Setting(key=key, value=str(value), origin=about["origins"].get(key, ""))
            for key, value in flat.flatten(config.model_dump(mode="json")).items()
        ],
        code_version=about["code"],
        packages=about["packages"],
        again=again(ledger),
        talk=f"relax sample {ledger.run.id} {shlex.quote(_first_question(ledger))}",
        open_mlflow=None if config.tracking.uri == tracking.NO_TRACKING else tracking.open_command(config.tracking.uri),
    )


def again(ledger: Ledger) -> str:
    """The command that makes the same run, or goes on with it."""
    name = ledger.config.algorithm.advantage_estimator
    return f"pyflyte run workflows/{name}.py {name} --recipe {nearest(ledger.folder / 'config.yaml')}"


def nearest(path: Path) -> str:
    """A path as a person here would type it."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def _change(ledger: Ledger, evaluated: list[int]) -> tuple[Interval | None, Transitions | None]:
    if len(evaluated) < 2:
        return None, None
    before, after = (_greedy_scores(ledger, evaluated[i]) for i in (0, -1))
    return paired_gain(before, after, seed=ledger.config.seed), transitions(before, after)


def _greedy_scores(ledger: Ledger, step: int) -> dict[str, float]:
    """The rows that greedy_accuracy counts: a verifiable answer, and a reply that came to an end."""
    rows = (r for r in _greedy(ledger, step) if r["score"] is not None and r["status"] in ("completed", "truncated"))
    return {r["row_id"]: float(r["grade"] == "correct") for r in rows}


def _greedy(ledger: Ledger, step: int) -> list[dict[str, Any]]:
    """The rows of the greedy replies of an evaluation."""
    record = ledger.evaluation(step)
    assert record is not None
    rows: list[dict[str, Any]] = ledger.rows(ledger.evaluation_folder(step), record).to_pylist()
    return [r for r in rows if r["kind"] == "greedy"]


def _conversations(ledger: Ledger, evaluated: list[int]) -> list[Conversation]:
    if not evaluated:
        return []
    before = _greedy(ledger, evaluated[0])[:CONVERSATIONS]
    after = {r["row_id"]: r for r in _greedy(ledger, evaluated[-1])} if len(evaluated) > 1 else {}
    return [
        Conversation(
            row=r["row_id"],
            prompt=r["prompt"],
            answer=r["answer"],
            before=_reply(r),
            after=_reply(after[r["row_id"]]) if r["row_id"] in after else None,
        )
        for r in before
    ]


def _reply(row: Mapping[str, Any]) -> Reply:
    return Reply(
        text=row["reply"],
        extracted=row["extracted"],
        reward=float(row["score"] or 0.0),
        correct=None if row["score"] is None else row["grade"] == "correct",
        status=row["status"],
    )


def _first_question(ledger: Ledger) -> str:
    return Store(paths.datasets()).open(ledger.dataset).evaluation_rows[0].question


def _dataset(ledger: Ledger) -> DatasetFacts:
    manifest = Store(paths.datasets()).open(ledger.dataset).manifest
    derivation = manifest["derivation"]
    return DatasetFacts(
        name=follow.source_name(manifest),
        digest=ledger.dataset.digest,
        source=", ".join(f"{s['name']} ({s['side']})" for s in derivation["sources"]),
        source_digest=derivation["sources"][0]["digest"],
        rows={side: entry["rows"] for side, entry in manifest["sides"].items()},
        rules=[
            (f"{rule['name']} v{rule['version']}", rule["changed"] + rule["dropped"])
            for rule in derivation["rules"]["train"]
        ],
    )


def _timings(ledger: Ledger) -> dict[str, list[float]]:
    """Seconds by stage, each as often as it ran."""
    found: dict[str, list[float]] = {}
    for line in ledger.timings():
        for name in ("generate", "score", "weight_sync", "advantages", "train", "checkpoint", "evaluation"):
            if name in line:
                found.setdefault(name, []).append(float(line[name]))
    return found
