"""The workflow from end to end, in processes of its own: both granularities, interruption, ended actors, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from running import PROJECT, base_of, command, environment, only_run, processes_of, records, run

pytestmark = pytest.mark.slow


def places(home: Path, temporary: Path) -> set[str]:
    """Everything that lies where libraries write by default."""
    return {str(p) for top in (home, temporary, Path("/dev/shm")) for p in top.rglob("*")}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with a node for every stage of every step; the folder of its artifacts."""
    top = tmp_path_factory.mktemp("stages")
    home, temporary = top / "home", Path(os.environ.get("TMPDIR", "/tmp")) / f"t{os.getpid()}"
    home.mkdir()
    temporary.mkdir()
    before = places(home, temporary)
    done = run(top / "artifacts", None, HOME=str(home), TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr[-3000:]
    assert places(home, temporary) - before == set(), "a run that ends well leaves something outside its artifacts"
    assert processes_of(str(top / "artifacts")) == []
    temporary.rmdir()
    (top / "stderr.txt").write_text(done.stderr)
    return top / "artifacts"


def test_the_last_lines_say_what_there_is_now(stages: Path) -> None:
    lines = (stages.parent / "stderr.txt").read_text().splitlines()
    folder = only_run(stages)
    said = {line.split()[0]: line for line in lines if line.startswith(("run ", "before", "after", "model", "report"))}
    assert folder.name in said["run"]
    assert "greedy accuracy" in said["before"] and "95 % interval" in said["after"]
    assert (PROJECT / said["model"].split(maxsplit=1)[1] / "config.json").is_file()
    assert (PROJECT / said["report"].split(maxsplit=1)[1]).is_file()
    assert any(line.startswith("step 4/4  reward ") for line in lines)


def test_the_ledger_holds_what_every_step_consumed_and_produced(stages: Path) -> None:
    import pyarrow.parquet as pq

    folder = only_run(stages)
    rows = pq.read_table(folder / "steps" / "00001" / "rollout.parquet").to_pylist()
    assert len(rows) == 32 and len({r["group"] for r in rows}) == 8
    assert len({r["seed"] for r in rows}) == 32
    for r in rows:
        assert len(r["ids"]) == len(r["mask"]) == len(r["log_probs"]) == len(r["versions"])
        assert all(x <= 0 for x in r["log_probs"]) and set(r["versions"]) <= {0}
        assert r["status"] in ("completed", "truncated")
    assert all(
        set(r["versions"]) <= {3} for r in pq.read_table(folder / "steps" / "00004" / "rollout.parquet").to_pylist()
    )
    update = json.loads((folder / "steps" / "00004" / "update.json").read_text())
    assert update["metrics"]["train/train_rollout_logprob_abs_diff"] < 1e-4
    assert update["metrics"]["train/grad_norm"] > 0
    advantages = json.loads((folder / "steps" / "00004" / "advantages.json").read_text())["metrics"]
    assert {name for name in advantages if name.startswith("rollout/rloo/")} == {
        f"rollout/rloo/{n}"
        for n in (
            "baseline_mean",
            "adv_abs_mean",
            "no_signal_frac",
            "zero_adv_group_frac",
            "empty_response_frac",
            "dropped_group_frac",
        )
    }


def test_only_the_last_and_the_best_checkpoint_are_kept(stages: Path) -> None:
    folder = only_run(stages)
    accuracy = {
        int(p.parent.name): json.loads(p.read_text())["summary"]["greedy_accuracy"]["value"]
        for p in (folder / "evaluations").glob("*/evaluation.json")
    }
    best = max(accuracy, key=lambda step: (accuracy[step], step))
    kept = {int(p.name.removeprefix("step-")) for p in (folder / "checkpoints").iterdir() if p.is_dir()}
    assert kept == {best, 4} - {0}  # 0 is the base model, which the store keeps


def test_the_policy_is_a_hugging_face_folder(stages: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = only_run(stages) / "checkpoints" / "step-4" / "hf"
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 400_000
    assert AutoTokenizer.from_pretrained(folder).decode([5]) != ""


def test_the_same_command_again_answers_from_the_ledger_without_ray(stages: Path) -> None:
    before = records(only_run(stages))
    start = time.monotonic()
    done = run(stages, None)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "is finished" in done.stderr and "starting Ray" not in done.stderr
    assert time.monotonic() - start < 60  # 15 s on a quiet machine; the bound keeps an accidental start of Ray out
    assert records(only_run(stages)) == before


def test_several_steps_in_one_node_write_the_same_ledger(stages: Path, tmp_path: Path) -> None:
    done = run(tmp_path, {"steps_per_node": 3}, "--base_model", str(base_of(stages)))
    assert done.returncode == 0, done.stderr[-3000:]
    assert only_run(tmp_path).name == only_run(stages).name
    assert records(only_run(tmp_path)) == records(only_run(stages))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_leaves_nothing_and_goes_on(stages: Path, tmp_path: Path, number: signal.Signals) -> None:
    home, temporary = tmp_path / "home", Path(os.environ.get("TMPDIR", "/tmp")) / f"t{os.getpid()}{number}"
    home.mkdir()
    temporary.mkdir()
    artifacts = tmp_path / "artifacts"
    before = places(home, temporary)
    start = command(None, "--base_model", str(base_of(stages)))
    env = environment(artifacts, HOME=str(home), TMPDIR=str(temporary))
    with subprocess.Popen(
        start, cwd=PROJECT, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 1/4"):
                process.send_signal(number)
                break
        rest = process.stderr.read()
        assert process.wait(timeout=60) == 130, rest
    assert "the same command goes on from there" in rest
    assert processes_of(str(artifacts)) == []
    assert places(home, temporary) - before == set()
    temporary.rmdir()
    done = run(artifacts, None, "--base_model", str(base_of(stages)))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "goes on after step" in done.stderr
    assert records(only_run(artifacts)) == records(only_run(stages))


ENDED = """
import json, sys
from relax_core import plan
from relax_core.cluster import nodes, opening, roles, session
from relax_core.cluster.run import open_run
from relax_core.data import prepare as data
from relax_core.models import base
from relax_core.refs import RunRef

made = plan.make("rloo", "tiny", sys.argv[1], {"base_model": sys.argv[2]})
policy = opening.open_run(made.run, data.prepare(made.data), base.prepare(made.base, made.base_source))
run = open_run(RunRef(id=policy.run))
policy = nodes.evaluate(policy)
for step in range(1, 5):
    batch = nodes.rollout(policy)
    roles.end(run)
    batch = nodes.advantages(batch)
    policy = nodes.update(batch)
    if step % 2:
        session.shutdown()
    else:
        policy = nodes.evaluate(policy)
"""


def test_actors_that_were_ended_between_two_stages_come_back_as_they_were(stages: Path, tmp_path: Path) -> None:
    import sys

    settings = json.loads(command()[5])
    done = subprocess.run(
        [sys.executable, "-c", ENDED, json.dumps(settings), str(base_of(stages))],
        cwd=PROJECT, env=environment(tmp_path), text=True, capture_output=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert records(only_run(tmp_path)) == records(only_run(stages))
