"""What a person sees before anything runs: the list, the help, and a clear message for every bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from running import PROJECT, PYFLYTE, environment

HEAVY = ("torch", "ray", "mlflow", "transformers", "megatron", "sglang", "matplotlib", "scipy")


def pyflyte(artifacts: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYFLYTE), "run", "workflows/rloo.py", *arguments],
        cwd=PROJECT, env=environment(artifacts, COLUMNS="200", **more), text=True, capture_output=True, timeout=120,
    )  # fmt: skip


def test_the_file_lists_its_workflow_and_nothing_that_is_not_meant_to_be_run(artifacts: Path) -> None:
    out = pyflyte(artifacts).stdout
    listed = [line for line in out.splitlines() if "workflows.rloo" in line or "tasks." in line]
    assert len(listed) == 1
    assert "rloo" in listed[0] and "Train a language model with RLOO" in listed[0]


def test_the_help_explains_each_input_with_its_default(artifacts: Path) -> None:
    out = pyflyte(artifacts, "rloo", "--help").stdout
    for name, default in (
        ("--recipe", "tiny"),
        ("--data", '""'),
        ("--seed", "-1"),
        ("--num_rollout", "-1"),
        ("--set", '""'),
    ):
        (line,) = [x for x in out.splitlines() if f"│ {name} " in x]
        assert len(line.split("TEXT" if "TEXT" in line else "INTEGER")[1].strip("│ ")) > 10, line
        assert f"[default: {default}]" in out[out.index(f"│ {name} ") :][:600]


@pytest.mark.parametrize("module", ["workflows.rloo", "relax_core.cli", "relax_core.plan"])
def test_nothing_heavy_is_imported_for_a_list_or_a_help_text(artifacts: Path, module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment(artifacts), text=True, capture_output=True
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_relax_core_needs_no_flytekit(artifacts: Path) -> None:
    code = "import sys, relax_core.cli, relax_core.cluster.nodes; print('flytekit' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment(artifacts), text=True, capture_output=True
    )
    assert done.stdout.strip() == "False", done.stderr


GOOD = '{"question": "What is 1 + 2?", "answer": "3"}\n'

BAD = {
    "missing file": (["--data", "nowhere.jsonl"], ["nowhere.jsonl"]),
    "empty file": (["--data", "{tmp}/empty.jsonl"], ["empty.jsonl", "empty"]),
    "no usable answers": (["--data", "{tmp}/unusable.jsonl"], ["unusable.jsonl", "no usable answers"]),
    "wrong column names": (["--data", "{tmp}/columns.csv"], ["columns.csv", "frage", "antwort"]),
    "a single sample": (["--n_samples_per_prompt", "1", "--global_batch_size", "16"], ["n_samples_per_prompt=1", "at least 2"]),
    "sizes that do not fit": (["--rollout_batch_size", "5"], ["rollout_batch_size=5", "global_batch_size=128", "set global_batch_size to 40"]),
    "unknown recipe key": (["--recipe", "{tmp}/unknown.yaml"], ["optimizer.lrr", "did you mean optimizer.lr?"]),
    "unknown key in --set": (["--set", '{"rollout.num_rolout": 3}'], ["rollout.num_rolout", "did you mean rollout.num_rollout?"]),
    "no such recipe": (["--recipe", "huge"], ["recipe huge", "choose from", "tiny"]),
    "no such model": (["--base_model", "nowhere"], ["base model nowhere", "tiny"]),
    "several at once": (
        ["--data", "nowhere.jsonl", "--n_samples_per_prompt", "1", "--base_model", "nowhere", "--set", '{"x": 1}'],
        ["nowhere.jsonl", "n_samples_per_prompt=1", "base model nowhere", "x (--set)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_clear_message_and_exit_code_2(case: str, tmp_path: Path, artifacts: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "unusable.jsonl").write_text(json.dumps({"question": "Why?", "answer": ""}) + "\n")
    (tmp_path / "columns.csv").write_text("frage,antwort\nWas ist 1+1?,2\n")
    (tmp_path / "unknown.yaml").write_text("optimizer: {lrr: 1}\n")
    arguments, parts = BAD[case]
    done = pyflyte(artifacts, "rloo", *(a.replace("{tmp}", str(tmp_path)) for a in arguments))
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for part in parts:
        assert any(part in line for line in errors), (part, done.stderr)
    assert "Traceback" not in done.stderr + done.stdout
    written = [p for p in artifacts.rglob("*") if p.is_file() and p.parent.name not in ("store", "local-cache", "tmp")]
    assert written == [], "bad input wrote something"
