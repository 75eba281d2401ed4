"""The stand-ins for CUDA stay in the trainer's process and are refused where CUDA exists."""

from __future__ import annotations

import pytest
import torch
import training_checks as checks

from relax_core.errors import RunError
from relax_core.training import cpu_shim


def test_they_are_in_the_worker_and_not_here(models, world):
    world(checks.round_trip, models["llama"])
    state = world(checks.shim_state)
    assert state["installed"] and state["compiles"]
    assert not state["transformers"], "a trainer needs no transformers: it would cost seconds at every start"
    assert not cpu_shim.installed()
    assert torch.zeros(1).type() == "torch.FloatTensor"


def test_they_are_refused_where_cuda_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RunError, match="CUDA is available"):
        cpu_shim.install()
    assert not cpu_shim.installed()


def test_an_unknown_target_is_an_error():
    with pytest.raises(RunError, match="has no current_devise"):
        cpu_shim._set(torch.cuda, "current_devise", None)
