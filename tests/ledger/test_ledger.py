"""What the ledger writes is whole, comes back as it was, and is refused when it changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from relax_core.config.resolve import resolve
from relax_core.errors import IntegrityError, UserError
from relax_core.ledger.ledger import Ledger
from relax_core.refs import BatchRef, PolicyRef, RunRef

ABOUT = {
    "name": "rloo:tiny",
    "dataset": "d" * 64,
    "base_model": "b" * 64,
    "base_weights": "w" * 64,
    "started": "2026-01-01T00:00:00+00:00",
}


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(RunRef(id="rloo-123"))
    made.create(resolve("rloo", "tiny", {"rollout.num_rollout": 3}, environ={}).config, ABOUT)
    return made


def write_step(ledger: Ledger, step: int, weights: str = "x") -> None:
    folder = ledger.step_folder(step)
    rows = pa.table({"ids": [[1, 2], [3]], "reward": [1.0, 0.0]})
    ledger.write(folder, "rollout", rows, {"step": step, "metrics": {"rollout/raw_reward": 0.5}})
    ledger.write(
        folder, "advantages", pa.table({"advantages": [[0.5, 0.5], [-0.5]]}), {"step": step, "metrics": {"a": 1.0}}
    )
    ledger.write(folder, "update", None, {"step": step, "weights": weights, "metrics": {"train/loss": 2.0}})


def test_configuration_and_facts_come_back(ledger: Ledger) -> None:
    again = Ledger(ledger.run)
    assert again.config == ledger.config
    assert (again.name, again.dataset.digest, again.base_model.digest) == ("rloo:tiny", "d" * 64, "b" * 64)
    assert again.policy(0) == PolicyRef(run="rloo-123", step=0, digest="w" * 64)


def test_a_second_start_changes_nothing(ledger: Ledger) -> None:
    ledger.create(ledger.config, {**ABOUT, "name": "other"})
    assert Ledger(ledger.run).name == "rloo:tiny"


def test_a_run_that_is_not_there_is_a_users_error() -> None:
    with pytest.raises(UserError, match="run rloo-none: there is no such run"):
        _ = Ledger(RunRef(id="rloo-none")).config


def test_rows_of_the_stages_are_joined(ledger: Ledger) -> None:
    write_step(ledger, 1)
    assert ledger.samples(1).to_pydict() == {
        "ids": [[1, 2], [3]],
        "reward": [1.0, 0.0],
        "advantages": [[0.5, 0.5], [-0.5]],
    }
    assert ledger.metrics(1) == {"rollout/raw_reward": 0.5, "a": 1.0, "train/loss": 2.0}


def test_the_last_step_is_the_last_whole_one_in_a_row(ledger: Ledger) -> None:
    assert ledger.last_step() == 0
    write_step(ledger, 1)
    write_step(ledger, 3)  # step 2 is missing
    assert ledger.last_step() == 1
    ledger.write(ledger.step_folder(2), "rollout", pa.table({"ids": [[1]]}), {"metrics": {}})
    assert ledger.last_step() == 1
    assert ledger.policy(2) is None
    assert ledger.batch(2, "advantages") is None


def test_digest_covers_rows_and_record(ledger: Ledger) -> None:
    """Changing a cell or a metric changes the digest of the record; writing the same again does not."""
    rows, other = pa.table({"x": [1.0]}), pa.table({"x": [2.0]})
    folder = ledger.folder / "steps" / "a"
    first = ledger.write(folder, "s", rows, {"m": 1})["digest"]
    assert ledger.write(folder, "s", rows, {"m": 1})["digest"] == first
    assert ledger.write(folder, "s", other, {"m": 1})["digest"] != first
    assert ledger.write(folder, "s", rows, {"m": 2})["digest"] != first


def test_metrics_that_are_not_finite_come_back_as_they_were(ledger: Ledger) -> None:
    values = {"a": float("nan"), "b": float("-inf"), "c": 1.5}
    ledger.write(ledger.step_folder(1), "update", None, {"weights": "x", "metrics": values})
    found = ledger.metrics(1)
    assert found["a"] != found["a"] and (found["b"], found["c"]) == (float("-inf"), 1.5)


def test_changed_or_missing_rows_are_never_used(ledger: Ledger) -> None:
    write_step(ledger, 1)
    path = ledger.step_folder(1) / "rollout.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match=r"rollout\.parquet: missing or changed"):
        ledger.samples(1)
    path.unlink()
    with pytest.raises(IntegrityError, match=r"rollout\.parquet: missing or changed"):
        ledger.samples(1)


def test_a_batch_is_named_by_the_digest_of_its_stage(ledger: Ledger) -> None:
    write_step(ledger, 1)
    rollout, advantages = ledger.batch(1, "rollout"), ledger.batch(1, "advantages")
    assert isinstance(rollout, BatchRef) and isinstance(advantages, BatchRef)
    assert rollout.digest != advantages.digest


def test_a_half_written_timing_is_not_read(ledger: Ledger) -> None:
    ledger.time(1, "rollout", {"generate": 0.5})
    with (ledger.folder / "timings.jsonl").open("a") as f:
        f.write('{"step": 2, "sta')
    (timing,) = ledger.timings()
    assert (timing["step"], timing["stage"], timing["generate"]) == (1, "rollout", 0.5)


def test_finished_only_with_its_report_as_it_was_written(ledger: Ledger, artifacts: Path) -> None:
    report = artifacts / "reports" / "rloo-123.html"
    report.parent.mkdir(parents=True)
    report.write_text("page")
    assert not ledger.is_finished() and ledger.report() is None
    ledger.finish(report)
    assert ledger.is_finished() and ledger.report() == report
    report.write_text("other")
    assert ledger.report() is None
