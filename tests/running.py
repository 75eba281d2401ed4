"""Helpers of the tests that run whole workflows, each in a process of its own, as a person does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PYFLYTE = Path(sys.executable).with_name("pyflyte")
RELAX = Path(sys.executable).with_name("relax")
SECONDS = 240

# A whole run in little: 4 updates of 8 prompts x 4 samples, evaluated in the middle too.
SMALL = {
    "rollout.num_rollout": 4,
    "rollout.rollout_batch_size": 8,
    "rollout.n_samples_per_prompt": 4,
    "training.global_batch_size": 32,
    "training.micro_batch_size": 32,
    "evaluation.eval_interval": 2,
    "evaluation.eval_rows": 20,
    "evaluation.n_samples_per_eval_prompt": 2,
    "checkpoint.save_interval": 3,
    "tracking.uri": "none",
}


def environment(artifacts: Path, **more: str) -> dict[str, str]:
    """The environment of a person whose artifacts lie there."""
    return {**os.environ, "RELAX_ARTIFACTS": str(artifacts), **more}


def command(settings: dict[str, object] | None = None, *arguments: str) -> list[str]:
    """`pyflyte run workflows/rloo.py rloo` with SMALL, changed by `settings`."""
    both = {**SMALL, **(settings or {})}
    return [str(PYFLYTE), "run", "workflows/rloo.py", "rloo", "--set", json.dumps(both), *arguments]


def run(
    artifacts: Path, settings: dict[str, object] | None = None, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the workflow to its end."""
    return subprocess.run(
        command(settings, *arguments),
        cwd=PROJECT,
        env=environment(artifacts, **more),
        text=True,
        capture_output=True,
        timeout=SECONDS,
    )


def base_of(artifacts: Path) -> Path:
    """The folder of the one base model below these artifacts: another run need not warm it up again."""
    (model,) = artifacts.glob("models/*/model")
    return model


def only_run(artifacts: Path) -> Path:
    """The folder of the one run below these artifacts."""
    (folder,) = (artifacts / "runs").iterdir()
    return folder


def records(folder: Path) -> dict[str, bytes]:
    """All that stages wrote, timings apart: relative path -> bytes."""
    files = [p for part in ("steps", "evaluations") for p in sorted((folder / part).rglob("*")) if p.is_file()]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def processes_of(mark: str) -> list[str]:
    """Command lines of living processes that carry this text in their environment or arguments."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if mark in " ".join([*process.cmdline(), *(f"{k}={v}" for k, v in process.environ().items())]):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found
