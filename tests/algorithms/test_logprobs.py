from __future__ import annotations

import math

import pytest
import torch

from relax_core.algorithms.logprobs import log_probs, log_probs_and_entropy

TARGETS = torch.tensor([[0, 1]])


def test_literals() -> None:
    # temperature 0.5: logits 4, 0. log-prob of 0: -log(1 + e^-4) = -0.01815, of 1: -4.01815
    logits = torch.tensor([[[2.0, 0.0], [2.0, 0.0]]], dtype=torch.float64)
    lp, entropy = log_probs_and_entropy(logits, TARGETS, 0.5)
    a, b = -math.log1p(math.exp(-4)), -4 - math.log1p(math.exp(-4))
    assert lp[0].tolist() == pytest.approx([a, b], rel=1e-14)
    assert entropy[0].tolist() == pytest.approx([-(math.exp(a) * a + math.exp(b) * b)] * 2, rel=1e-14)
    assert torch.equal(log_probs(logits, TARGETS, 0.5), lp)


def test_uniform_logits_have_entropy_log_v_at_every_temperature() -> None:
    for temperature in (0.1, 1.0, 7.0):
        _, entropy = log_probs_and_entropy(torch.full((1, 2, 8), 3.0), TARGETS, temperature)
        assert entropy[0].tolist() == pytest.approx([math.log(8)] * 2, rel=1e-6)


def test_input_stays_and_the_result_is_float32_at_least() -> None:
    for dtype, want in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        logits = torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
        before = logits.clone()
        lp, entropy = log_probs_and_entropy(logits, TARGETS, 0.7)
        assert lp.dtype == entropy.dtype == want
        assert torch.equal(logits, before)


def test_bfloat16_logits_are_scaled_and_normalised_in_float32() -> None:
    logits = torch.tensor([[[1.0, 2, 3], [4, 5, 6]]]).to(torch.bfloat16)
    torch.testing.assert_close(log_probs(logits, TARGETS, 0.3), log_probs(logits.double(), TARGETS, 0.3).float())


def test_gradients() -> None:
    gen = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 2, 5, dtype=torch.float64, generator=gen, requires_grad=True)
    targets = torch.tensor([[0, 1], [4, 2]])
    assert torch.autograd.gradcheck(lambda x: log_probs_and_entropy(x, targets, 0.7), logits)


@pytest.mark.parametrize("logits", [[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 1.0, -math.inf]])
def test_extreme_and_excluded_tokens_stay_finite(logits: list[float]) -> None:
    x = torch.tensor([[logits, logits]], requires_grad=True)
    lp, entropy = log_probs_and_entropy(x, TARGETS, 1.0)
    (lp.sum() + entropy.sum()).backward()
    assert lp.isfinite().all() and entropy.isfinite().all() and (entropy >= 0).all()
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_temperature_must_be_positive(temperature: float) -> None:
    with pytest.raises(ValueError, match=f"temperature is {temperature}: it must be above 0"):
        log_probs(torch.zeros(1, 2, 3), TARGETS, temperature)
