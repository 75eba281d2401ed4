"""The trainer against Hugging Face and torch.optim: logits, updates, splits, skipped steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import training_checks as checks
from conftest import MODELS

from relax_core.algorithms.objective import Totals, loss_and_metrics, objective_of


def reference_log_probs(model, batch, temperature):
    """Each response alone through the Hugging Face model, no packing and no padding: [tokens] tensors with a graph."""
    out = []
    for prompt, response in zip(batch.prompt_ids, batch.response_ids, strict=True):
        ids = torch.from_numpy(np.concatenate([prompt, response]))
        logits = model(ids[None]).logits[0, len(prompt) - 1 : -1].float() / temperature
        out.append(torch.log_softmax(logits, -1).gather(1, torch.from_numpy(response)[:, None])[:, 0])
    return out


def hugging_face(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)


def worst(ours, theirs):
    return max((np.abs(a - b.detach().numpy()).max() for a, b in zip(ours, theirs, strict=True) if len(a)), default=0.0)


@pytest.mark.parametrize("kind", MODELS)
def test_log_probs_are_those_of_hugging_face(kind, models, world):
    batch = checks.make_batch()
    ours = world(checks.log_probs, models[kind], batch, 0.7)
    assert [len(x) for x in ours] == [len(x) for x in batch.response_ids]
    assert worst(ours, reference_log_probs(hugging_face(models[kind]), batch, 0.7)) <= 1e-5


def test_the_flash_kernel_gives_the_same(models, world):
    batch = checks.make_batch()
    ours = world(checks.log_probs_flash, models["qwen3_tied"], batch)
    assert worst(ours, reference_log_probs(hugging_face(models["qwen3_tied"]), batch, 1.0)) <= 1e-5


def test_a_frozen_policy_gives_the_same(models, world):
    batch = checks.make_batch()
    frozen = world(checks.frozen_log_probs, models["llama"], batch, 1.0)
    assert worst(frozen, reference_log_probs(hugging_face(models["llama"]), batch, 1.0)) <= 1e-5


@pytest.mark.parametrize("kind", MODELS)
def test_weights_come_out_as_they_went_in(kind, models, world):
    from safetensors.numpy import load_file

    ours, theirs = world(checks.round_trip, models[kind]), load_file(models[kind] / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def reference_training(folder, batches, objective, temperature, spec, lrs):
    """The same updates with Hugging Face and torch.optim.AdamW: (losses, gradient norms, weights)."""
    model = hugging_face(folder)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    o = spec.optimizer
    adam = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": o.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=(o.adam_beta1, o.adam_beta2),
        eps=o.adam_eps,
    )
    losses, norms = [], []
    for batch, lr in zip(batches, lrs, strict=True):
        rows = reference_log_probs(model, batch, temperature)
        tokens = int(sum(mask.sum() for mask in batch.masks))

        def padded(values):
            tensors = [torch.as_tensor(v, dtype=torch.float32) for v in values]
            return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)

        loss, _ = loss_and_metrics(
            objective,
            Totals(len(rows), tokens),
            logprobs=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            advantages=padded(batch.advantages),
            mask=padded(batch.masks).bool(),
            old_logprobs=None if batch.old_log_probs is None else padded(batch.old_log_probs),
            ref_logprobs=None if batch.ref_log_probs is None else padded(batch.ref_log_probs),
        )
        adam.zero_grad()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), o.clip_grad or torch.inf)))
        for group in adam.param_groups:
            group["lr"] = lr
        adam.step()
        losses.append(loss.item())
    return losses, norms, {name: p.detach().numpy() for name, p in model.named_parameters()}


# Update 1 of 2 warm-up updates at half the rate; then the cosine from 1e-2 at update 2 to 1e-3 at update 10.
RATES = [5e-3, 1e-2, 1e-3 + 9e-3 * 0.5 * (1 + np.cos(np.pi / 8)), 1e-3 + 9e-3 * 0.5 * (1 + np.cos(np.pi / 4))]


@pytest.mark.parametrize(
    ("kind", "estimator", "settings", "clip"),
    [
        ("qwen3_tied", "rloo", {}, 1.0),
        ("qwen3_untied", "grpo", {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3"}, 0.1),
        ("llama", "rloo", {}, 0.0),
    ],
)
def test_four_updates_are_those_of_torch(kind, estimator, settings, clip, models, world):
    spec = replace(checks.SPEC, optimizer=replace(checks.OPTIMIZER, clip_grad=clip))
    make = checks.rloo_batch if estimator == "rloo" else checks.make_batch
    batches = [make(seed) for seed in range(4)]
    metrics, ours, _ = world(checks.train, models[kind], batches, estimator, settings, 0.9, spec)
    objective = objective_of(estimator, settings, max_response_len=8)
    losses, norms, theirs = reference_training(models[kind], batches, objective, 0.9, spec, RATES)
    assert [m["lr"] for m in metrics] == pytest.approx(RATES, rel=1e-12)
    assert [m["loss"] for m in metrics] == pytest.approx(losses, abs=1e-5)
    assert [m["grad_norm"] for m in metrics] == pytest.approx(norms, rel=1e-4)
    assert max(np.abs(ours[name] - theirs[name]).max() for name in theirs) <= 1e-5
    assert all(m["skipped_step"] == 0 for m in metrics)


@pytest.mark.parametrize(
    ("estimator", "settings"),
    [
        ("rloo", {"entropy_coef": 0.01}),
        ("gspo", {"reduction": "response_mean"}),
        ("grpo", {"reduction": "constant", "use_tis": True}),
    ],
)
def test_micro_batches_do_not_change_the_result(estimator, settings, models, world):
    batch = checks.rloo_batch() if estimator == "rloo" else replace(checks.make_batch(), ref_log_probs=None)
    results = {}
    for size in (1, 2, 7, 12):
        spec = replace(checks.SPEC, micro_batch_size=size)
        results[size], _, _ = world(checks.train, models["qwen3_tied"], [batch], estimator, settings, 1.0, spec)
    for size in (1, 2, 7):
        assert results[size][0] == pytest.approx(results[12][0], rel=1e-6, abs=1e-7)


def test_the_divisor_is_that_of_the_whole_step(models, world):
    """Token means of micro-batches of very different size (bug case S-12), masked tokens left out (S-17)."""
    batch = checks.rloo_batch()
    spec = replace(checks.SPEC, micro_batch_size=2)
    (metrics,), _, _ = world(checks.train, models["llama"], [batch], "rloo", {}, 1.0, spec)
    rows = world(checks.log_probs, models["llama"], batch, 1.0)
    valid = [(a * lp)[m] for a, lp, m in zip(batch.advantages, rows, batch.masks, strict=True)]
    tokens = sum(len(v) for v in valid)
    assert metrics["tokens"] == tokens
    assert metrics["loss"] == pytest.approx(-sum(v.sum() for v in valid) / tokens, rel=1e-5)
    gaps = [np.abs(lp - r)[m] for lp, r, m in zip(rows, batch.rollout_log_probs, batch.masks, strict=True)]
    assert metrics["train_rollout_logprob_abs_diff"] == pytest.approx(sum(g.sum() for g in gaps) / tokens, rel=1e-5)


def test_without_a_valid_token_nothing_changes(models, world):
    batch = checks.rloo_batch()
    nothing = replace(batch, masks=[np.zeros(len(m), dtype=bool) for m in batch.masks])
    result = world(checks.skipped, models["qwen3_tied"], nothing)
    assert result["metrics"]["skipped_step"] == 1 and result["metrics"]["loss"] == 0
    assert result["metrics"].keys() == result["last"][0].keys()
    assert result["unchanged"]
    assert result["last"][0] == result["last"][1] and result["digests"][0] == result["digests"][1]


def test_a_gradient_that_is_not_finite_changes_nothing(models, world):
    batch = checks.rloo_batch()
    advantages = [np.where(m, np.inf, a) for m, a in zip(batch.masks, batch.advantages, strict=True)]
    result = world(checks.skipped, models["qwen3_tied"], replace(batch, advantages=advantages))
    assert result["metrics"]["skipped_step"] == 1 and result["metrics"]["nonfinite_gradients"] >= 1
    assert result["unchanged"]
    assert result["last"][0] == result["last"][1] and result["digests"][0] == result["digests"][1]


@pytest.mark.slow
def test_two_processes_agree_bit_for_bit(models, worlds):
    spec = replace(checks.SPEC, threads=2, micro_batch_size=12)
    arguments = (models["qwen3_tied"], [checks.rloo_batch(seed) for seed in range(3)], "rloo", {}, 1.0, spec)
    one, two = (run(checks.train, *arguments) for run in worlds)
    assert one[0] == two[0]
    assert one[2] == two[2]


def test_bfloat16_trains(models, world):
    spec = replace(checks.SPEC, dtype="bfloat16")
    batch = checks.rloo_batch()
    metrics, _, _ = world(checks.train, models["qwen3_tied"], [batch] * 4, "rloo", {}, 1.0, spec)
    full, _, _ = world(checks.train, models["qwen3_tied"], [batch] * 4, "rloo", {}, 1.0)
    assert metrics[0]["loss"] == pytest.approx(full[0]["loss"], abs=0.05)
    assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_the_entropy_is_measured_only_where_it_is_asked_for(models, world):
    batch = checks.rloo_batch()
    plain, _, _ = world(checks.train, models["llama"], [batch], "rloo", {}, 1.0)
    asked, _, _ = world(checks.train, models["llama"], [batch], "rloo", {"entropy_coef": 0.5}, 1.0)
    assert "entropy_loss" not in plain[0]
    assert asked[0]["loss"] == pytest.approx(asked[0]["pg_loss"] - 0.5 * asked[0]["entropy_loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"response_ids": [[1, 2]]}, r"masks\[0\] has 1 values for 2 response tokens"),
        ({"advantages": [[1.0], [1.0]]}, "advantages has 2 entries for 1 prompts"),
        ({"prompt_ids": [[]]}, r"prompt_ids\[0\] is empty"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(changes, message):
    from relax_core.errors import UserError
    from relax_core.training.trainer import _Responses
    from relax_core.training.types import TrainBatch

    good = {
        "prompt_ids": [[5]],
        "response_ids": [[1]],
        "masks": [[1]],
        "advantages": [[1.0]],
        "rollout_log_probs": [[0.0]],
    }
    with pytest.raises(UserError, match=message):
        _Responses(TrainBatch(**{**good, **changes}), torch.device("cpu"))


def test_wrong_values_of_a_specification_are_refused_all_at_once(models, world):
    message = world(_wrong_spec, models["llama"])
    assert "lr_decay_style is 'steps'" in message and "micro_batch_size is 0" in message and "min_lr is 1.0" in message


def _wrong_spec(folder):
    return checks.spec_error(folder, lr_decay_style="steps", micro_batch_size=0, min_lr=1.0)


def test_a_process_has_one_thread_count(models, world):
    world(checks.round_trip, models["llama"])
    assert "threads is 2" in world(checks.thread_conflict, models["llama"])
