"""The same trainer on a CUDA device."""

from __future__ import annotations

import pytest
import torch
import training_checks as checks
from test_trainer import hugging_face, reference_log_probs, worst

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_cuda
def test_log_probs_and_updates_on_the_device(models, worlds):
    batch = checks.rloo_batch()
    ours = worlds[0](checks.log_probs, models["qwen3_tied"], batch, 0.7)
    assert worst(ours, reference_log_probs(hugging_face(models["qwen3_tied"]), batch, 0.7)) <= 1e-3
    metrics, _, _ = worlds[0](checks.train, models["qwen3_tied"], [batch] * 4, "rloo", {}, 1.0)
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert not worlds[0](checks.shim_state)["installed"]
