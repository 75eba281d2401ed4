"""MLflow: one function writes it, `sync`. It copies what a run's ledger has and MLflow lacks.

The MLflow run is found by its tag `relax.run_id`, so no MLflow id travels; tags say how far the copy got. So any
process may call `sync` at any time, also long after the run (`relax runs sync`), and a server that cannot be reached
costs one line, not a run.

MLflow's database keeps a NaN as 0 beside a flag and an infinity as the largest float, so that a diverged run could
win a comparison. Values that are not finite are therefore never logged: the run is marked by the tag `relax.diverged`
= true, which names the metrics in `relax.diverged_metrics`, and the metric `relax/nonfinite_values` counts them. Rank
runs with the filter `NOT_DIVERGED`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import math
import os
import re
import shlex
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from relax_core import files, paths

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

_log = logging.getLogger(__name__)

NO_TRACKING = "none"
NOT_DIVERGED = "tags.`relax.diverged` = 'false'"
NONFINITE = "relax/nonfinite_values"
_SQLITE = "sqlite:///"
_MAX_METRICS = 999  # limits of MLflow's REST interface and store: per call 1000 entities (one is left for a tag),
_MAX_PARAMS_OR_TAGS = 100  # or 100 of these,
_MAX_PARAM = 6000  # and so many characters in a value
_MAX_TAG = 8000
_MAX_DIGEST = 36
_CONNECT_SECONDS = 3.0
_PATIENCE_SECONDS = 60.0  # after a failure, how long this process does not ask the same server again
_FINAL = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedStep:
    """Metrics of one step. at_ms: when they were made, milliseconds since 1970."""

    step: int
    at_ms: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedDataset:
    """The cleaned dataset of the run. digest: the full sha256. rows: per split."""

    name: str
    digest: str
    source: str
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """A run as its ledger knows it now.

    steps and evaluations are two series, each in rising order of the step and each copied to its own last step: an
    evaluation after step k may come later than the metrics of step k. artifacts are files, copied again at every call
    that has them.
    """

    run_id: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    steps: Sequence[TrackedStep]
    evaluations: Sequence[TrackedStep] = ()
    dataset: TrackedDataset | None = None
    artifacts: Sequence[Path] = ()
    status: Literal["running", "finished", "failed"]
    start_ms: int
    end_ms: int | None = None


def default_uri() -> str:
    """sqlite below the artifacts."""
    return f"{_SQLITE}{paths.artifacts() / 'mlflow.db'}"


def open_command(uri: str | None) -> str:
    """The line that shows the tracked runs: MLflow's own server on the database, or where the server already is."""
    uri = uri or default_uri()
    if not uri.startswith(_SQLITE):
        return f"open {uri}"
    mlflow = Path(sys.executable).with_name("mlflow")
    program = os.path.relpath(mlflow) if mlflow.is_relative_to(Path.cwd()) else str(mlflow)
    # Without the job runner it starts in a third of the time, with a tenth of the processes.
    quiet = "MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"
    return f"{quiet} {shlex.quote(program)} server --workers 1 --backend-store-uri {shlex.quote(uri)}"


def sync(tracked: Tracked, *, uri: str | None, experiment: str) -> str | None:
    """Copy to MLflow what it lacks of `tracked`; give the id of the MLflow run, None if there is no tracking to be had.

    uri: None or "" is sqlite below the artifacts, "none" switches tracking off. Whatever keeps MLflow from being
    written is said in one line and never ends the run; for a minute after that the same process does not try again,
    so that a dead server does not delay every step. A later call copies all that is missing.
    """
    uri = uri or default_uri()
    if uri == NO_TRACKING or time.monotonic() < _asked_in_vain.get(uri, -math.inf):
        return None
    _prepare_environment()
    from mlflow.exceptions import MlflowException

    try:
        with _alone(uri):
            return _Copy(_client(uri), tracked, uri, experiment).run()
    except (MlflowException, OSError, sqlite3.Error) as error:
        _asked_in_vain[uri] = time.monotonic() + _PATIENCE_SECONDS
        _log.warning(
            "MLflow at %s cannot be written (%s); the run goes on, `relax runs sync` copies it later",
            uri,
            _first_line(error),
        )
        return None


_asked_in_vain: dict[str, float] = {}


class _Copy:
    """One call of `sync`."""

    def __init__(self, client: MlflowClient, tracked: Tracked, uri: str, experiment: str) -> None:
        self.client, self.tracked, self.uri, self.experiment = client, tracked, uri, experiment

    def run(self) -> str:
        run = self._find() or self._create()
        run_id = str(run.info.run_id)
        self._params(run_id, run.data.params)
        self._series(run_id, self.tracked.steps, "relax.last_step", run.data.tags)
        self._series(run_id, self.tracked.evaluations, "relax.last_evaluation", run.data.tags)
        self._tags(run_id, run.data.tags)
        self._dataset(run_id, run)
        for path in self.tracked.artifacts:
            self.client.log_artifact(run_id, str(path))
        self._status(run_id, run)
        return run_id

    def _find(self) -> Run | None:
        found = self.client.search_runs(
            [self._experiment_id()], f"tags.`relax.run_id` = '{self.tracked.run_id}'", max_results=1
        )
        return found[0] if found else None

    def _create(self) -> Run:
        return self.client.create_run(
            self._experiment_id(),
            start_time=self.tracked.start_ms,
            tags={"relax.run_id": self.tracked.run_id},
            run_name=self.tracked.name,
        )

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        known = self.client.get_experiment_by_name(self.experiment)
        if known is None:
            try:
                folder = (paths.artifacts() / "mlflow").as_uri() if self.uri.startswith(_SQLITE) else None
                return str(self.client.create_experiment(self.experiment, artifact_location=folder))
            except MlflowException:
                # On a server somebody else may have made it since; anything else fails again in the next line.
                known = self.client.get_experiment_by_name(self.experiment)
                if known is None:
                    raise
        return str(known.experiment_id)

    def _params(self, run_id: str, there: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        params = {mlflow_name(key): value for key, value in self.tracked.params.items()}
        missing = [Param(key, _cut(value, _MAX_PARAM)) for key, value in params.items() if key not in there]
        for part in _chunks(missing, _MAX_PARAMS_OR_TAGS):
            self.client.log_batch(run_id, params=part)

    def _series(self, run_id: str, steps: Sequence[TrackedStep], tag: str, there: Mapping[str, str]) -> None:
        from mlflow.entities import Metric, RunTag

        last = int(there.get(tag, -1))
        fresh = [s for s in steps if s.step > last]
        if not fresh:
            return
        metrics: list[Metric] = [
            Metric(mlflow_name(name), float(value), s.at_ms, s.step)
            for s in fresh
            for name, value in s.metrics.items()
            if math.isfinite(value)
        ]
        *parts, end = _chunks(metrics, _MAX_METRICS) or [[]]
        for part in parts:
            self.client.log_batch(run_id, metrics=part)
        # The tag comes with the last metrics (MLflow writes tags after them): a copy that was cut short is made again, and
        # of equal values MLflow keeps one.
        self.client.log_batch(run_id, metrics=end, tags=[RunTag(tag, str(fresh[-1].step))])

    def _tags(self, run_id: str, there: Mapping[str, str]) -> None:
        from mlflow.entities import Metric, RunTag

        bad = nonfinite(self.tracked)
        wanted = {
            **self.tracked.tags,
            "relax.diverged": "true" if bad else "false",
            **({"relax.diverged_metrics": ", ".join(sorted(bad))} if bad else {}),
            **({"relax.dataset": self.tracked.dataset.digest} if self.tracked.dataset else {}),
        }
        changed = [RunTag(k, cut) for k, v in wanted.items() if there.get(k) != (cut := _cut(v, _MAX_TAG))]
        for part in _chunks(changed, _MAX_PARAMS_OR_TAGS):
            self.client.log_batch(run_id, tags=part)
        if any(tag.key.startswith("relax.diverged") for tag in changed):
            at = max((s.at_ms for s in (*self.tracked.steps, *self.tracked.evaluations)), default=self.tracked.start_ms)
            self.client.log_batch(run_id, metrics=[Metric(NONFINITE, float(sum(bad.values())), at, 0)])

    def _dataset(self, run_id: str, run: Run) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        data = self.tracked.dataset
        if data is None or run.inputs.dataset_inputs:
            return
        entity = Dataset(
            name=data.name,
            digest=data.digest[:_MAX_DIGEST],
            source_type="relax",
            source=json.dumps({"source": data.source, "sha256": data.digest}),
            profile=json.dumps({f"rows_{split}": count for split, count in data.rows.items()}),
        )
        tags = [InputTag("mlflow.data.context", "training"), InputTag("relax.sha256", data.digest)]
        self.client.log_inputs(run_id, datasets=[DatasetInput(entity, tags)])

    def _status(self, run_id: str, run: Run) -> None:
        status = _FINAL[self.tracked.status]
        if run.info.status == status:
            return
        if self.tracked.status == "running":
            self.client.update_run(run_id, status=status)
        else:
            self.client.set_terminated(run_id, status=status, end_time=self.tracked.end_ms)


def mlflow_name(name: str) -> str:
    """How MLflow knows a metric or parameter: it allows no @, so pass@4 is pass_at_4 there; other signs become _."""
    return re.sub(r"[^/\w.\- :]", "_", name.replace("@", "_at_"))


def nonfinite(tracked: Tracked) -> dict[str, int]:
    """Metric -> how many of its values are NaN or infinite; empty for a run that did not diverge."""
    counts: dict[str, int] = {}
    for step in (*tracked.steps, *tracked.evaluations):
        for name, value in step.metrics.items():
            if not math.isfinite(value):
                counts[name] = counts.get(name, 0) + 1
    return counts


def _prepare_environment() -> None:
    """Before mlflow is imported: nothing is sent, nothing is written to $HOME, no long wait for a dead server."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # the next call of sync is the retry
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _client(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    if uri.startswith(_SQLITE):
        database = _database(uri)
        if database.exists():
            _check_database(database)
        else:
            _create_database(database)
    else:
        _check_server(uri)
    return MlflowClient(tracking_uri=uri)


def _database(uri: str) -> Path:
    return Path(uri.removeprefix(_SQLITE))


def _check_database(path: Path) -> None:
    """Refuse at once a file that is no database: MLflow would try ten times and take 100 seconds."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _check_server(uri: str) -> None:
    """Find out in three seconds that nothing answers there; behind a proxy only the request itself can tell."""
    place = urlsplit(uri)
    if place.hostname is None or (place.scheme in getproxies() and not proxy_bypass(place.hostname)):
        return
    port = place.port or {"http": 80, "https": 443}.get(place.scheme)
    if port is not None:
        socket.create_connection((place.hostname, port), timeout=_CONNECT_SECONDS).close()


def _create_database(path: Path) -> None:
    """Make MLflow's tables by its own migrations, in a file that takes its place only when it is complete.

    So it need not be synced at each of some 400 statements, but once at the end (by atomic_file): 1.2 s instead of 5,
    and a process that is killed here leaves no half-made database.
    """
    import sqlalchemy
    from mlflow.store.db.utils import _initialize_tables

    logging.getLogger("mlflow.store.db").setLevel(logging.WARNING)
    with files.atomic_file(path) as temporary:
        engine = sqlalchemy.create_engine(f"{_SQLITE}{temporary}")

        @sqlalchemy.event.listens_for(engine, "connect")
        def unsynced(connection: sqlite3.Connection, _record: Any) -> None:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA journal_mode = MEMORY")

        _initialize_tables(engine)
        engine.dispose()


@contextlib.contextmanager
def _alone(uri: str) -> Iterator[None]:
    """One process at a time writes: two at once would break a fresh database, or make one run twice."""
    if uri.startswith(_SQLITE):
        database = _database(uri)
        lock = database.with_name(f".{database.name}.lock")
    else:
        lock = paths.artifacts() / f".mlflow-{hashlib.sha256(uri.encode()).hexdigest()[:12]}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)  # the kernel frees it when the process dies
        yield


def _cut(value: str, limit: int) -> str:
    """The value, or as much of it as MLflow holds, ending in what was cut and the digest of the whole."""
    if len(value) <= limit:
        return value
    end = f" … [cut: {len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()}]"
    return value[: limit - len(end)] + end


def _chunks(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
