"""Every test has artifacts of its own and none of the environment names that plan reads."""

from __future__ import annotations

from pathlib import Path

import pytest

READ_BY_PLAN = (
    "MODEL_DIR",
    "DATA_DIR",
    "EXP_DIR",
    "NUM_ROLLOUT",
    "ROLLOUT_BATCH_SIZE",
    "N_SAMPLES",
    "GLOBAL_BATCH_SIZE",
    "ADVANTAGE_ESTIMATOR",
    "RLOO_DATA_CACHE_DIR",
)


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that RELAX_ARTIFACTS names during a test."""
    for name in READ_BY_PLAN:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "artifacts"
    monkeypatch.setenv("RELAX_ARTIFACTS", str(folder))
    return folder
