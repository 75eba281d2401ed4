"""MLflow gets what the ledger has: once, whole, and never at the cost of the run."""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relax_core import tracking
from relax_core.tracking import NONFINITE, NOT_DIVERGED, Tracked, TrackedDataset, TrackedStep, open_command, sync

ROOT = Path(tracking.__file__).parents[1]
START = 1_796_000_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all tests; each has an experiment of its own."""
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(autouse=True)
def artifacts(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_ARTIFACTS", str(store))
    monkeypatch.setattr(tracking, "_asked_in_vain", {})


@pytest.fixture
def client(store: Path):
    tracking._prepare_environment()
    with tracking._alone(tracking.default_uri()):
        return tracking._client(tracking.default_uri())


@pytest.fixture
def batches(client, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The number of metrics, params and tags of each call of log_batch."""
    original, seen = type(client).log_batch, []

    def recording(self, run_id, metrics=(), params=(), tags=(), **rest):
        seen.append({"metrics": len(metrics), "params": len(params), "tags": len(tags)})
        return original(self, run_id, metrics=metrics, params=params, tags=tags, **rest)

    monkeypatch.setattr(type(client), "log_batch", recording)
    return seen


@pytest.fixture
def experiment(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def steps(*values: float, name: str = "train/loss", first: int = 1) -> list[TrackedStep]:
    return [TrackedStep(step=first + i, at_ms=START + 150 * i, metrics={name: value}) for i, value in enumerate(values)]


def tracked(run_id: str = "a" * 64, **changes: object) -> Tracked:
    values = {
        "run_id": run_id,
        "name": "rloo:tiny",
        "params": {"optimizer.lr": "0.001"},
        "tags": {"relax.algorithm": "rloo"},
        "steps": steps(0.5, 0.4, 0.3),
        "status": "running",
        "start_ms": START,
    }
    return Tracked(**{**values, **changes})


def history(client, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client.get_metric_history(run_id, name)]


def test_a_run_is_copied_whole(client, experiment: str, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("<p>report</p>")
    data = TrackedDataset(name="arithmetic", digest="d" * 64, source="built-in", rows={"train": 4000, "evaluate": 200})
    run_id = sync(
        tracked(dataset=data, artifacts=[report], status="finished", end_ms=START + 9000),
        uri=None,
        experiment=experiment,
    )
    run = client.get_run(run_id)
    assert run.info.run_name == "rloo:tiny"
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", START, START + 9000)
    assert run.data.params == {"optimizer.lr": "0.001"}
    assert history(client, run_id, "train/loss") == [(1, 0.5), (2, 0.4), (3, 0.3)]
    assert [m.timestamp for m in client.get_metric_history(run_id, "train/loss")] == [START, START + 150, START + 300]
    wanted = {
        **{"relax.run_id": "a" * 64, "relax.algorithm": "rloo", "relax.last_step": "3"},
        **{"relax.diverged": "false", "relax.dataset": "d" * 64},
    }
    assert wanted.items() <= run.data.tags.items()
    (dataset,) = run.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.digest) == ("arithmetic", "d" * 36)
    assert {t.key: t.value for t in dataset.tags}["relax.sha256"] == "d" * 64
    assert '"rows_train": 4000' in dataset.dataset.profile
    assert [a.path for a in client.list_artifacts(run_id)] == ["report.html"]


def test_only_what_lacks_is_copied(client, experiment: str, batches: list[dict[str, int]]) -> None:
    run_id = sync(tracked(steps=steps(0.5, 0.4)), uri=None, experiment=experiment)
    batches.clear()
    assert sync(tracked(steps=steps(0.5, 0.4, 0.3)), uri=None, experiment=experiment) == run_id
    assert sync(tracked(steps=steps(0.5, 0.4, 0.3)), uri=None, experiment=experiment) == run_id
    assert batches == [{"metrics": 1, "params": 0, "tags": 1}]
    assert history(client, run_id, "train/loss") == [(1, 0.5), (2, 0.4), (3, 0.3)]


def test_an_evaluation_may_come_later_than_its_step(client, experiment: str) -> None:
    run_id = sync(tracked(), uri=None, experiment=experiment)
    evaluations = [*steps(0.48, name="eval/x/avg@8", first=0), *steps(0.86, name="eval/x/avg@8", first=3)]
    sync(tracked(evaluations=evaluations), uri=None, experiment=experiment)
    assert history(client, run_id, "eval/x/avg_at_8") == [(0, 0.48), (3, 0.86)]
    assert client.get_run(run_id).data.tags["relax.last_evaluation"] == "3"


def test_a_copy_that_was_cut_short_is_made_again_without_doubles(
    client, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException

    monkeypatch.setattr(tracking, "_MAX_METRICS", 2)
    original, calls = type(client).log_batch, []

    def breaking(self, run_id, **batch):
        calls.append(batch)
        if len([c for c in calls if c.get("metrics")]) == 2:
            raise MlflowException("gone")
        return original(self, run_id, **batch)

    monkeypatch.setattr(type(client), "log_batch", breaking)
    assert sync(tracked(), uri=None, experiment=experiment) is None
    monkeypatch.setattr(tracking, "_asked_in_vain", {})
    run_id = sync(tracked(), uri=None, experiment=experiment)
    assert history(client, run_id, "train/loss") == [(1, 0.5), (2, 0.4), (3, 0.3)]


def test_more_metrics_than_fit_in_one_call(client, experiment: str, batches: list[dict[str, int]]) -> None:
    many = [TrackedStep(step=i, at_ms=START, metrics={f"m/{j}": i * j for j in range(333)}) for i in range(1, 7)]
    run_id = sync(tracked(steps=many), uri=None, experiment=experiment)
    metrics = client.get_run(run_id).data.metrics
    assert {f"m/{j}": 6.0 * j for j in range(333)}.items() <= metrics.items()
    assert len(history(client, run_id, "m/332")) == 6
    assert max(sum(batch.values()) for batch in batches) == 1000  # what MLflow's interface takes


def test_names_that_mlflow_refuses_are_spelt_so_that_it_takes_them(client, experiment: str) -> None:
    odd = {"rollout/passrate/pass@4": 1.0, "a b:c.d-e": 2.0, "x=y,ü": 3.0}
    series = [TrackedStep(step=1, at_ms=START, metrics=odd)]
    run_id = sync(tracked(steps=series, params={"k@1": "v"}), uri=None, experiment=experiment)
    run = client.get_run(run_id)
    assert {"rollout/passrate/pass_at_4", "a b:c.d-e", "x_y_ü"} <= set(run.data.metrics)
    assert run.data.params == {"k_at_1": "v"}


def test_params_are_logged_once_in_parts_and_cut_honestly(
    client, experiment: str, batches: list[dict[str, int]]
) -> None:
    long = "x" * 7000
    params = {**{f"p{i}": str(i) for i in range(250)}, "long": long}
    run_id = sync(tracked(params=params), uri=None, experiment=experiment)
    there = client.get_run(run_id).data.params
    assert len(there) == 251
    assert max(batch["params"] for batch in batches) == 100  # what MLflow's interface takes
    assert len(there["long"]) == 6000
    assert re.search(r"x … \[cut: 7000 characters, sha256 [0-9a-f]{64}\]$", there["long"])
    # MLflow refuses another value; the ledger's is fixed by the run id, so it is not sent again.
    assert sync(tracked(params={**params, "p0": "other", "new": "1"}), uri=None, experiment=experiment) == run_id
    there = client.get_run(run_id).data.params
    assert (there["p0"], there["new"]) == ("0", "1")


def test_a_diverged_run_never_wins(client, experiment: str) -> None:
    """S-30: the store keeps NaN as 0 and infinity as the largest float."""
    for run_id, last in (("sound", 0.5), ("nan", math.nan), ("inf", math.inf), ("fell", math.nan)):
        values = (0.05, last) if run_id == "fell" else (last,)
        sync(tracked(run_id, steps=steps(*values), name=run_id), uri=None, experiment=experiment)
    where = [client.get_experiment_by_name(experiment).experiment_id]

    def found(filter_string: str) -> list[str]:
        runs = client.search_runs(where, filter_string, order_by=["metrics.`train/loss` ASC"])
        return [run.info.run_name for run in runs]

    assert found(f"metrics.`train/loss` < 0.1 AND {NOT_DIVERGED}") == []
    assert found(NOT_DIVERGED) == ["sound"]
    assert sorted(found("tags.`relax.diverged` = 'true'")) == ["fell", "inf", "nan"]
    for run in client.search_runs(where):
        assert all(math.isfinite(v) and abs(v) < 1e300 for v in run.data.metrics.values())
        bad = run.info.run_name != "sound"
        assert run.data.metrics[NONFINITE] == float(bad)
        assert run.data.tags.get("relax.diverged_metrics") == ("train/loss" if bad else None)


def test_a_run_that_diverges_later_is_marked_then(client, experiment: str) -> None:
    run_id = sync(tracked(steps=steps(0.5)), uri=None, experiment=experiment)
    sync(tracked(steps=steps(0.5, math.nan, math.nan)), uri=None, experiment=experiment)
    run = client.get_run(run_id)
    assert run.data.tags["relax.diverged"] == "true"
    assert run.data.tags["relax.last_step"] == "3"
    assert run.data.metrics[NONFINITE] == 2.0


def test_status_follows_the_run(client, experiment: str) -> None:
    for status, there in (
        ("running", "RUNNING"),
        ("failed", "FAILED"),
        ("running", "RUNNING"),
        ("finished", "FINISHED"),
    ):
        run_id = sync(tracked(status=status, end_ms=START + 5), uri=None, experiment=experiment)
        assert client.get_run(run_id).info.status == there


def test_runs_are_told_apart(experiment: str) -> None:
    assert sync(tracked("one"), uri=None, experiment=experiment) != sync(
        tracked("two"), uri=None, experiment=experiment
    )


def test_tracking_can_be_switched_off(experiment: str) -> None:
    assert sync(tracked(), uri="none", experiment=experiment) is None


# -- a store that cannot be had ---------------------------------------------------------------------------------------


def test_a_dead_server_costs_one_line(experiment: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert [sync(tracked(), uri=uri, experiment=experiment) for _ in range(3)] == [None] * 3
    assert time.monotonic() - start < 10
    (record,) = [r for r in caplog.records if r.name == tracking.__name__]
    message = record.getMessage()
    assert uri in message
    assert "relax runs sync" in message
    assert "\n" not in message


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_silent_server_is_not_waited_for(
    silent_server: str, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    start = time.monotonic()
    assert sync(tracked(), uri=silent_server, experiment=experiment) is None
    assert time.monotonic() - start < 8


def test_a_server_is_asked_again_later(experiment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    database.write_text("this is no database, only text that is long enough to be one")
    uri = f"sqlite:///{database}"
    start = time.monotonic()
    assert sync(tracked(), uri=uri, experiment=experiment) is None
    assert time.monotonic() - start < 5
    database.unlink()
    assert sync(tracked(), uri=uri, experiment=experiment) is None  # within the minute
    monkeypatch.setattr(tracking, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(tracking, "_asked_in_vain", {})
    assert sync(tracked(), uri=uri, experiment=experiment) is not None


def test_a_database_appears_whole_or_not_at_all(
    tmp_path: Path, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(engine) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE experiments (x)")
        raise OSError("no space left")

    monkeypatch.setattr("mlflow.store.db.utils._initialize_tables", breaks)
    assert sync(tracked(), uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment=experiment) is None
    assert [p.name for p in tmp_path.iterdir()] == [".mlflow.db.lock"]


# -- several processes ------------------------------------------------------------------------------------------------

_ONE_OF_MANY = """
import sys
from relax_core.tracking import *
steps = [TrackedStep(step=i, at_ms=i, metrics={"m": float(i)}) for i in range(1, 51)]
run = Tracked(run_id=sys.argv[1], name="n", params={"p": "1"}, tags={}, steps=steps, status="finished", start_ms=0)
assert sync(run, uri=None, experiment="many") is not None
"""


@pytest.mark.slow
def test_processes_on_a_fresh_database_all_finish_and_write_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: tmp_path / name for name in ("artifacts", "home", "cwd", "tmp")}
    for place in places.values():
        place.mkdir()
    environment = {
        **{"RELAX_ARTIFACTS": str(places["artifacts"]), "HOME": str(places["home"]), "TMPDIR": str(places["tmp"])},
        **{"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    }
    command = [sys.executable, "-c", _ONE_OF_MANY]
    started = [
        subprocess.Popen([*command, run_id], env=environment, cwd=places["cwd"], stderr=subprocess.PIPE, text=True)
        for run_id in ("one", "two", "two")
    ]
    for process in started:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        assert errors == ""
    monkeypatch.setenv("RELAX_ARTIFACTS", str(places["artifacts"]))
    client = tracking._client(tracking.default_uri())
    runs = client.search_runs([client.get_experiment_by_name("many").experiment_id])
    assert sorted(run.data.tags["relax.run_id"] for run in runs) == ["one", "two"]
    assert all(len(client.get_metric_history(run.info.run_id, "m")) == 50 for run in runs)
    assert [list(places[name].iterdir()) for name in ("home", "cwd", "tmp")] == [[], [], []]


# -- opening it -------------------------------------------------------------------------------------------------------


def test_the_command_that_opens_it(store: Path) -> None:
    command = open_command(None)
    assert command.endswith(f"--backend-store-uri sqlite:///{store}/mlflow.db")
    assert "mlflow server" in command
    assert open_command("http://tracking:5000") == "open http://tracking:5000"


def test_importing_the_module_does_not_import_mlflow() -> None:
    code = "import sys, relax_core.tracking; sys.exit('mlflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=60)
