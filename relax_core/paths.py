"""Where things lie. Everything a run writes is below RELAX_ARTIFACTS; only cleaned datasets can be moved apart."""

from __future__ import annotations

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


def artifacts() -> Path:
    """RELAX_ARTIFACTS, else EXP_DIR (its name in the source system), else `artifacts/` beside flyte.config."""
    return Path(os.environ.get("RELAX_ARTIFACTS") or os.environ.get("EXP_DIR") or PROJECT / "artifacts").resolve()


def datasets() -> Path:
    """RLOO_DATA_CACHE_DIR moves the cleaned datasets alone."""
    moved = os.environ.get("RLOO_DATA_CACHE_DIR")
    return Path(moved).resolve() if moved else artifacts() / "datasets"


def models() -> Path:
    return artifacts() / "models"


def runs() -> Path:
    return artifacts() / "runs"


def reports() -> Path:
    return artifacts() / "reports"


def temporary() -> Path:
    """Scratch space of this project; emptied of what dead processes left at the next start."""
    return artifacts() / "tmp"
