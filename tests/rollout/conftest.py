"""Fixtures of the rollout tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rollout_models import save_chain, save_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same model."""
    return save_model(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture
def chain(tmp_path: Path) -> Callable[..., Path]:
    return lambda following, **config: save_chain(tmp_path / "chain", following, **config)
