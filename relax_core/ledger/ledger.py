"""What every step of a run consumed and produced: the folder `runs/<run id>/`.

    config.yaml               the resolved recipe (a recipe itself)
    run.json                  what the run is: its name, dataset, base model, code version, origins of the configuration
    steps/00001/<stage>.json  the record of a stage, written last: a stage without one is not done
    steps/00001/*.parquet     the rows of a stage: rollout.parquet (samples), advantages.parquet
    evaluations/00020/        the same for an evaluation after 20 updates
    checkpoints/step-20/      a policy that can go on (relax_core/training/checkpoint.py)
    timings.jsonl             seconds by stage: apart, since they differ between two equal runs
    report.json               where the report lies; written last of all

The ledger, not Flyte's cache, says which steps are done. Everything but timings.jsonl is a function of the run's identity.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from relax_core import digests, files, paths
from relax_core.config.models import RunConfig
from relax_core.errors import IntegrityError, UserError
from relax_core.refs import BatchRef, DatasetRef, ModelRef, PolicyRef, RunRef

if TYPE_CHECKING:
    import pyarrow as pa


class Ledger:
    """The ledger of one run. Records are written once and read back checked against their digests."""

    def __init__(self, run: RunRef) -> None:
        self.run = run
        self.folder = paths.runs() / run.id
        self._config: RunConfig | None = None
        self._about: dict[str, Any] | None = None

    # -- the run ------------------------------------------------------------------------------------------------------

    def create(self, config: RunConfig, about: Mapping[str, Any]) -> None:
        """Write what the run is, once; a run id names its content, so a second call changes nothing."""
        if self.exists():
            return
        recipe = config.model_dump(mode="json")
        files.write_text(self.folder / "config.yaml", yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
        files.write_json(self.folder / "run.json", dict(about))

    def exists(self) -> bool:
        return (self.folder / "run.json").is_file()

    @property
    def config(self) -> RunConfig:
        if self._config is None:
            self._require()
            self._config = RunConfig.model_validate(
                yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8"))
            )
        return self._config

    @property
    def about(self) -> dict[str, Any]:
        """Content of run.json."""
        if self._about is None:
            self._require()
            self._about = dict(files.read_json(self.folder / "run.json"))
        return self._about

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def dataset(self) -> DatasetRef:
        return DatasetRef(digest=self.about["dataset"])

    @property
    def base_model(self) -> ModelRef:
        return ModelRef(digest=self.about["base_model"])

    def _require(self) -> None:
        if not self.exists():
            raise UserError(
                f"run {self.run.id}: there is no such run below {paths.runs()}; `relax runs` lists those there are"
            )

    # -- stages of a step ---------------------------------------------------------------------------------------------

    def step_folder(self, step: int) -> Path:
        return self.folder / "steps" / f"{step:05d}"

    def evaluation_folder(self, step: int) -> Path:
        return self.folder / "evaluations" / f"{step:05d}"

    @staticmethod
    def write(folder: Path, stage: str, table: pa.Table | None, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a stage: its rows first, its record last. The record's digest covers both."""
        record = {"stage": stage, **content}
        if "metrics" in record:  # JSON has no NaN: a value that is not finite is kept as its name
            record["metrics"] = {k: v if math.isfinite(v) else str(v) for k, v in record["metrics"].items()}
        if table is not None:
            import pyarrow.parquet as pq

            rows = folder / f"{stage}.parquet"
            with files.atomic_file(rows) as temporary:
                pq.write_table(table, temporary, compression="zstd")
            record["rows"] = {"file": rows.name, "sha256": digests.of_file(rows), "count": table.num_rows}
        record["digest"] = digests.of_value(record)
        files.write_json(folder / f"{stage}.json", record)
        return record

    @staticmethod
    def record(folder: Path, stage: str) -> dict[str, Any] | None:
        """The record of a stage, or None where the stage is not done."""
        path = folder / f"{stage}.json"
        return dict(files.read_json(path)) if path.is_file() else None

    @staticmethod
    def rows(folder: Path, record: Mapping[str, Any]) -> pa.Table:
        """The rows of a stage, checked against its record. IntegrityError names the file."""
        import pyarrow.parquet as pq

        path = folder / record["rows"]["file"]
        if not path.is_file() or digests.of_file(path) != record["rows"]["sha256"]:
            raise IntegrityError(
                f"{path}: missing or changed since it was written; restore it, or remove "
                f"{folder.parent.parent} to run anew"
            )
        return pq.read_table(path)

    def samples(self, step: int) -> pa.Table:
        """The samples of a step with all that its stages know: rollout columns, and advantages once they are there."""
        folder = self.step_folder(step)
        rollout = self._done(step, "rollout")
        table = self.rows(folder, rollout)
        advantages = self.record(folder, "advantages")
        if advantages is not None:
            more = self.rows(folder, advantages)
            for name in more.column_names:
                table = table.append_column(name, more.column(name))
        return table

    def _done(self, step: int, stage: str) -> dict[str, Any]:
        record = self.record(self.step_folder(step), stage)
        if record is None:
            raise IntegrityError(
                f"run {self.run.id}: step {step} has no complete {stage}; start the run again to make it"
            )
        return record

    def batch(self, step: int, stage: str) -> BatchRef | None:
        record = self.record(self.step_folder(step), stage)
        return BatchRef(run=self.run.id, step=step, digest=record["digest"]) if record else None

    def policy(self, step: int) -> PolicyRef | None:
        """The policy after `step` updates, or None where that update is not done."""
        if step == 0:
            return PolicyRef(run=self.run.id, step=0, digest=self.about["base_weights"])
        record = self.record(self.step_folder(step), "update")
        return PolicyRef(run=self.run.id, step=step, digest=record["weights"]) if record else None

    def last_step(self) -> int:
        """The last step whose update is complete."""
        step = 0
        while self.record(self.step_folder(step + 1), "update") is not None:
            step += 1
        return step

    def metrics(self, step: int) -> dict[str, float]:
        """All metrics of a step under their names, timings included where they are known."""
        merged: dict[str, float] = {}
        for stage in ("rollout", "advantages", "update"):
            record = self.record(self.step_folder(step), stage)
            if record is not None:
                merged.update({name: float(value) for name, value in record["metrics"].items()})
        return merged

    def evaluation(self, step: int) -> dict[str, Any] | None:
        return self.record(self.evaluation_folder(step), "evaluation")

    def evaluated_steps(self) -> list[int]:
        return sorted(int(p.parent.name) for p in (self.folder / "evaluations").glob("*/evaluation.json"))

    # -- the end ------------------------------------------------------------------------------------------------------

    def is_finished(self) -> bool:
        """Whether the run went through to its report."""
        return (self.folder / "report.json").is_file()

    def finish(self, report: Path) -> None:
        files.write_json(self.folder / "report.json", {"report": report.name, "sha256": digests.of_file(report)})

    def report(self) -> Path | None:
        """The report of a finished run, if it is there as it was written."""
        if not self.is_finished():
            return None
        record = files.read_json(self.folder / "report.json")
        path = paths.reports() / record["report"]
        return path if path.is_file() and digests.of_file(path) == record["sha256"] else None

    # -- timings ------------------------------------------------------------------------------------------------------

    def time(self, step: int, stage: str, seconds: Mapping[str, float]) -> None:
        """Append the seconds of a stage. A line is whole or, after a crash, not read."""
        line = json.dumps({"step": step, "stage": stage, "at": time.time(), **seconds})
        with (self.folder / "timings.jsonl").open("a", encoding="utf-8") as f:
            f.write(line + "\n")

    def timings(self) -> list[dict[str, Any]]:
        """Every timing, in the order of writing; a stage that ran twice is there twice."""
        path = self.folder / "timings.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        found = []
        for line in lines:
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # the last line of a killed process
        return found
