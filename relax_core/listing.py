"""What is below the artifacts: runs and datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relax_core import files, paths
from relax_core.data.store import Dataset, Store
from relax_core.errors import UserError
from relax_core.ledger.ledger import Ledger
from relax_core.refs import RunRef


def runs() -> list[dict[str, Any]]:
    """Every run, the newest first."""
    found = [_run(Ledger(RunRef(id=p.parent.name))) for p in paths.runs().glob("*/run.json")]
    return sorted(found, key=lambda r: str(r["started"]), reverse=True)


def _run(ledger: Ledger) -> dict[str, Any]:
    evaluated = ledger.evaluated_steps()
    return {
        "run": ledger.run.id,
        "name": ledger.name,
        "seed": ledger.config.seed,
        "steps": ledger.config.rollout.num_rollout,
        "done": ledger.last_step(),
        "finished": ledger.is_finished(),
        "before": _accuracy(ledger, evaluated[0]) if evaluated else None,
        "after": _accuracy(ledger, evaluated[-1]) if len(evaluated) > 1 else None,
        "started": ledger.about["started"],
        "dataset": ledger.dataset.digest,
        "base_model": ledger.base_model.digest,
    }


def _accuracy(ledger: Ledger, step: int) -> float | None:
    record = ledger.evaluation(step)
    return record["summary"]["greedy_accuracy"]["value"] if record else None


def datasets() -> list[dict[str, Any]]:
    """Every dataset of the store."""
    store = Store(paths.datasets())
    return [_dataset(store.open(ref)) for ref in store.datasets()]


def _dataset(opened: Dataset) -> dict[str, Any]:
    manifest = opened.manifest
    return {
        "digest": opened.digest,
        "source": ", ".join(s["name"] for s in manifest["derivation"]["sources"]),
        "train": manifest["sides"]["train"]["rows"],
        "evaluation": manifest["sides"]["eval"]["rows"],
        "created": manifest["created"],
    }


def dataset(beginning: str) -> dict[str, Any]:
    """The manifest of the dataset whose digest begins so. UserError if there is none, or more than one."""
    store = Store(paths.datasets())
    found = [ref for ref in store.datasets() if ref.digest.startswith(beginning)]
    if len(found) != 1:
        what = "no dataset" if not found else f"{len(found)} datasets"
        raise UserError(f"{beginning}: {what} below {paths.datasets()} begin so; `relax datasets` lists them")
    return store.open(found[0]).manifest


def report(run: str) -> Path:
    """The report of a run; of one that has not ended it is written as far as it is."""
    from relax_core.cluster.run import open_run
    from relax_core.report.from_ledger import run_report
    from relax_core.report.run_report import render

    opened = open_run(RunRef(id=run))
    known = opened.ledger.report()
    if known is not None:
        return known
    saved = opened.newest_checkpoint(opened.ledger.last_step())
    path = paths.reports() / f"{run}.html"
    files.write_text(path, render(run_report(opened.ledger, saved[1] / "hf" if saved else opened.base_folder)))
    return path
