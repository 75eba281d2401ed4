from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rollout_models import ask, reference, save_model
from safetensors.torch import load_file
from scipy import stats

from relax_core.errors import ModelError, RunError, UserError
from relax_core.rollout import transformers_engine
from relax_core.rollout.engine import Engine
from relax_core.rollout.seeds import sample_seed
from relax_core.rollout.transformers_engine import TransformersEngine
from relax_core.rollout.types import Request, Sample, Sampling, Status

RAGGED = {f"row-{n}": tuple(3 + (7 * n + k) % 36 for k in range(n)) for n in (1, 2, 5, 9, 17)}


def make(folder: Path, version: int = 0, max_batch: int = 256) -> TransformersEngine:
    engine = TransformersEngine(threads=1, max_batch=max_batch)
    engine.load(folder, version)
    return engine


def by_name(samples: list[Sample] | Iterator[Sample]) -> dict[tuple[str, int], Sample]:
    found = list(samples)
    named = {(s.row, s.index): s for s in found}
    assert len(named) == len(found)
    return named


def prompts_of(requests: list[Request]) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(r.row, r.index): r.prompt_ids for r in requests}


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_it_is_an_engine(model_folder: Path) -> None:
    engine: Engine = make(model_folder)  # mypy compares the signatures where tests are checked
    assert all(callable(getattr(engine, name)) for name in vars(Engine) if not name.startswith("_"))


# --- What the log-probs are -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("qwen3", {}),
        ("qwen3", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
        ("qwen2", {}),
        ("llama", {}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}, "attention_bias": True}),
    ],
)
def test_log_probs_are_those_of_a_plain_forward(
    tmp_path: Path, kind: str, config: dict[str, object], temperature: float
) -> None:
    folder = save_model(tmp_path, kind, **config)
    requests = ask(RAGGED, n=3, temperature=temperature)
    samples = by_name(make(folder).generate(requests))
    plain = reference(folder)
    for name, prompt in prompts_of(requests).items():
        right = plain(prompt, samples[name].ids, temperature)
        assert samples[name].log_probs == pytest.approx(right, abs=1e-5)
        assert len(samples[name].log_probs) == len(samples[name].versions) == len(samples[name].ids) > 0


@pytest.mark.parametrize("parameters", [{"top_p": 0.8}, {"top_k": 3}, {"temperature": 0}])
def test_log_probs_are_of_the_full_softmax_whatever_is_sampled(
    model_folder: Path, parameters: dict[str, float]
) -> None:
    requests = ask(RAGGED, **parameters)
    plain = reference(model_folder)
    for sample in make(model_folder).generate(requests):
        right = plain(RAGGED[sample.row], sample.ids)
        assert sample.log_probs == pytest.approx(right, abs=1e-5)


def test_a_model_in_half_precision_draws_and_scores(model_folder: Path) -> None:
    engine = TransformersEngine(threads=1, dtype=torch.bfloat16)
    engine.load(model_folder, 0)
    plain = reference(model_folder)
    for sample in engine.generate(ask(RAGGED, n=2)):
        assert sample.log_probs == pytest.approx(plain(RAGGED[sample.row], sample.ids), abs=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_draws_and_scores_as_the_cpu_does(model_folder: Path) -> None:
    engine = TransformersEngine(threads=1, device="cuda")
    engine.load(model_folder, 0)
    requests = ask(RAGGED, n=4, top_p=0.9, top_k=20)
    plain = reference(model_folder)
    for sample in engine.generate(requests):
        assert sample.log_probs == pytest.approx(plain(RAGGED[sample.row], sample.ids), abs=1e-4)


def test_a_ragged_batch_draws_what_single_rows_draw(model_folder: Path) -> None:
    engine = make(model_folder)
    requests = ask(RAGGED, n=4)
    together = by_name(engine.generate(requests))
    for request in requests:
        (alone,) = engine.generate([request])
        batched = together[request.row, request.index]
        assert (alone.ids, alone.status) == (batched.ids, batched.status)
        assert alone.log_probs == pytest.approx(batched.log_probs, abs=1e-5)


def test_rows_keep_their_own_parameters_when_others_leave(model_folder: Path) -> None:
    engine = make(model_folder)
    kinds = [{"temperature": 0}, {"temperature": 2.0}, {"top_k": 2}, {"top_p": 0.3}, {"temperature": 0.7}]
    requests = [
        r for i, kind in enumerate(kinds) for n in (2, 5, 12) for r in ask({f"{i}-{n}": (5, 9)}, max_tokens=n, **kind)
    ]
    together = by_name(engine.generate(requests))
    for request in requests:
        (alone,) = engine.generate([request])
        batched = together[request.row, request.index]
        assert alone.ids == batched.ids
        assert alone.log_probs == pytest.approx(batched.log_probs, abs=1e-5)


def test_chunks_draw_what_one_batch_draws(model_folder: Path) -> None:
    requests = ask(RAGGED, n=5)
    whole = by_name(make(model_folder).generate(requests))
    chunks = by_name(make(model_folder, max_batch=3).generate(requests))
    assert {name: s.ids for name, s in whole.items()} == {name: s.ids for name, s in chunks.items()}


def test_the_order_of_requests_changes_nothing_at_all(model_folder: Path) -> None:
    engine = make(model_folder, max_batch=7)
    requests = ask(RAGGED, n=5)
    shuffled = random.Random(0).sample(requests, len(requests))
    assert by_name(engine.generate(requests)) == by_name(engine.generate(shuffled))


def test_the_same_seeds_repeat_and_others_do_not(model_folder: Path) -> None:
    requests = ask(RAGGED, n=8)
    first, again = by_name(make(model_folder).generate(requests)), by_name(make(model_folder).generate(requests))
    assert first == again
    other = by_name(make(model_folder).generate(ask(RAGGED, n=8, step=1)))
    assert {name: s.ids for name, s in first.items()} != {name: s.ids for name, s in other.items()}
    assert len({first["row-5", i].ids for i in range(8)}) > 1


def test_s22_doubled_prompts_are_two_groups_with_their_own_samples(model_folder: Path) -> None:
    prompt = RAGGED["row-5"]
    samples = by_name(make(model_folder).generate(ask({"first": prompt, "second": prompt}, n=4, max_tokens=20)))
    assert len({s.seed for s in samples.values()}) == 8
    assert {s.group for s in samples.values()} == {"first", "second"}
    assert len({s.ids for s in samples.values()}) == 8


def test_first_tokens_come_in_the_proportions_of_the_model(model_folder: Path) -> None:
    n, prompt = 4000, RAGGED["row-9"]
    samples = make(model_folder).generate(ask({"row": prompt}, n=n, max_tokens=1, temperature=1.3))
    counts = np.bincount([s.ids[0] for s in samples], minlength=40)
    plain = reference(model_folder)
    probs = np.exp([plain(prompt, [token], 1.3)[0] for token in range(40)])
    assert (probs * n > 5).all()  # as the test of chi-square wants it
    assert stats.chisquare(counts, n * probs / probs.sum()).pvalue > 1e-3


def test_no_global_generator_is_touched(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    list(make(folder).generate(ask(RAGGED, n=2)))
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


# --- How a sample ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eos", "drawn"), [(2, [5, 6, 2]), ([2, 6], [5, 6]), ([9, 5], [5])])
def test_every_end_token_of_the_generation_config_ends_a_sample(
    chain: Callable[..., Path], eos: int | list[int], drawn: list[int]
) -> None:
    folder = chain({4: 5, 5: 6, 6: 2, 2: 7}, eos_token_id=eos)
    (sample,) = make(folder).generate(ask({"row": [4]}))
    assert (list(sample.ids), sample.status) == (drawn, Status.COMPLETED)


@pytest.mark.parametrize("max_tokens", [3, 10])
def test_s21_the_mask_is_the_length_that_comes_back(chain: Callable[..., Path], max_tokens: int) -> None:
    """Padding 0, end 2: [5, 6, 2] ends, [8, 9, 0, ...] is cut and holds padding that was really drawn, [10, 2] ends."""
    folder = chain({4: 5, 5: 6, 6: 2, 3: 8, 8: 9, 9: 0, 0: 0, 7: 10, 10: 2, 2: 2})
    requests = ask({"ends": [4], "cut": [3], "early": [7]}, max_tokens=max_tokens)
    samples = {s.row: s for s in make(folder).generate(requests)}
    assert samples["ends"].ids == (5, 6, 2)
    assert samples["cut"].ids == (8, 9) + (0,) * (max_tokens - 2)
    assert samples["early"].ids == (10, 2)
    assert [samples[row].status for row in ("ends", "cut", "early")] == ["completed", "truncated", "completed"]
    for sample in samples.values():
        assert len(sample.log_probs) == len(sample.versions) == len(sample.ids)


def test_other_special_tokens_are_kept_and_end_nothing(chain: Callable[..., Path]) -> None:
    folder = chain({4: 0, 0: 1, 1: 3, 3: 2})  # padding, begin, unknown, end
    (sample,) = make(folder).generate(ask({"row": [4]}))
    assert (sample.ids, sample.status) == ((0, 1, 3, 2), Status.COMPLETED)
    assert sample.log_probs == pytest.approx(reference(folder)([4], sample.ids), abs=1e-5)


@pytest.mark.parametrize(("max_tokens", "status"), [(1, "truncated"), (2, "truncated"), (3, "completed")])
def test_max_tokens_counts_the_end_token(chain: Callable[..., Path], max_tokens: int, status: str) -> None:
    (sample,) = make(chain({4: 5, 5: 6, 6: 2})).generate(ask({"row": [4]}, max_tokens=max_tokens))
    assert (sample.ids, sample.status) == ((5, 6, 2)[:max_tokens], status)


def test_rows_have_their_own_limits(chain: Callable[..., Path]) -> None:
    engine = make(chain({4: 5, 5: 4}))
    requests = [r for n in (1, 4, 9) for r in ask({f"row-{n}": [4]}, max_tokens=n)]
    assert {s.row: len(s.ids) for s in engine.generate(requests)} == {"row-1": 1, "row-4": 4, "row-9": 9}


def test_the_context_of_the_model_cuts_and_a_prompt_that_fills_it_fails(
    chain: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    engine = make(chain({4: 5, 5: 4}, max_position_embeddings=12))
    prompts = {"short": [4], "room": [4] * 10, "last": [4] * 11, "full": [4] * 12, "over": [4] * 30}
    with caplog.at_level(logging.WARNING):
        samples = {s.row: s for s in engine.generate(ask(prompts, max_tokens=100))}
    assert {row: (len(s.ids), str(s.status)) for row, s in samples.items()} == {
        "short": (11, "truncated"),
        "room": (2, "truncated"),
        "last": (1, "truncated"),
        "full": (0, "failed"),
        "over": (0, "failed"),
    }
    assert engine.failures == {"the prompt fills the context of the model": 2}
    assert "Sample 0 of row full failed at token 0" in caplog.text


def test_a_row_whose_logits_are_not_finite_fails_alone(
    chain: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    following = {4: 5, 5: 6, 6: 2, 7: 8, 8: 9, 9: 2}
    right = {s.row: s for s in make(chain(following)).generate(ask({"good": [3, 4], "bad": [7]}))}
    assert right["bad"].status is Status.COMPLETED
    engine = make(chain(following))
    weights = weights_of(chain(following))
    weights["model.embed_tokens.weight"][9] = torch.nan
    engine.update_weights(1, weights)
    with caplog.at_level(logging.WARNING):
        samples = {s.row: s for s in engine.generate(ask({"good": [3, 4], "bad": [7]}))}
    assert samples["good"].ids == right["good"].ids
    assert samples["good"].log_probs == right["good"].log_probs
    assert (samples["bad"].ids, samples["bad"].status) == ((8, 9), Status.FAILED)
    assert len(samples["bad"].log_probs) == 2
    assert engine.failures == {"its logits are not finite": 1}
    assert "Sample 0 of row bad failed at token 2" in caplog.text


def test_a_prompt_that_is_not_finite_does_not_reach_its_neighbours(chain: Callable[..., Path]) -> None:
    following = {4: 5, 5: 6, 6: 2}
    engine, weights = make(chain(following)), weights_of(chain(following))
    weights["model.embed_tokens.weight"][[0, 9]] = torch.nan  # padding too: no row holds it
    engine.update_weights(1, weights)
    samples = {s.row: s for s in engine.generate(ask({"good": [4], "bad": [4, 9, 4, 4]}))}
    assert (samples["good"].ids, samples["bad"].status) == ((5, 6, 2), Status.FAILED)


def test_weights_that_are_not_finite_fail_every_sample(model_folder: Path) -> None:
    engine = make(model_folder)
    weights = weights_of(model_folder)
    weights["model.norm.weight"][0] = torch.nan
    engine.update_weights(1, weights)
    samples = list(engine.generate(ask(RAGGED, n=2)))
    assert [(s.ids, s.status) for s in samples] == [((), Status.FAILED)] * 10
    assert sum(engine.failures.values()) == 10


# --- Work that is not done --------------------------------------------------------------------------------------------


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the tokens that go through a model, forward by forward."""
    shapes: list[tuple[int, ...]] = []
    forward = transformers_engine._Policy.forward

    def counted(self: object, tokens: torch.Tensor, *rest: object) -> torch.Tensor:
        shapes.append(tuple(tokens.shape))
        return forward(self, tokens, *rest)

    monkeypatch.setattr(transformers_engine._Policy, "forward", counted)
    return shapes


def test_a_prompt_is_read_once_for_its_group(model_folder: Path, fed: list[tuple[int, ...]]) -> None:
    list(make(model_folder).generate(ask({"a": RAGGED["row-5"], "b": RAGGED["row-9"]}, n=8, max_tokens=2)))
    assert fed[0] == (2, 9)
    assert len(fed) == 2 and fed[1][1] == 1


def test_rows_that_have_ended_leave_the_batch(chain: Callable[..., Path], fed: list[tuple[int, ...]]) -> None:
    folder = chain({4: 2, 5: 6, 6: 2, 7: 8, 8: 9, 9: 10, 10: 2})
    samples = list(make(folder).generate(ask({"one": [4], "two": [5], "four": [7]}, n=3)))
    assert [s.row for s in samples] == ["one"] * 3 + ["two"] * 3 + ["four"] * 3  # as they finish
    assert fed == [(3, 1), (6, 1), (3, 1), (3, 1)]
    assert [s.ids for s in samples[::3]] == [(2,), (6, 2), (8, 9, 10, 2)]


def test_a_growing_cache_and_a_prompt_pass_in_parts_change_nothing(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, fed: list[tuple[int, ...]]
) -> None:
    requests = ask(RAGGED, n=3, max_tokens=25)
    whole = by_name(make(model_folder).generate(requests))
    assert fed[0] == (5, 17)
    monkeypatch.setattr(transformers_engine, "_FIRST_ROOM", 1)
    monkeypatch.setattr(transformers_engine, "_PREFILL_TOKENS", 40)
    fed.clear()
    parts = by_name(make(model_folder).generate(requests))
    assert fed[:3] == [(2, 17), (2, 17), (1, 17)]
    for name, sample in whole.items():
        assert parts[name].ids == sample.ids
        assert parts[name].log_probs == pytest.approx(sample.log_probs, abs=1e-5)


def test_nothing_is_asked_and_nothing_comes(model_folder: Path) -> None:
    assert list(make(model_folder).generate([])) == []


# --- Weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_folder", [False, True])
def test_new_weights_count_at_once(model_folder: Path, other_folder: Path, as_folder: bool) -> None:
    engine = make(model_folder, version=3)
    engine.update_weights(4, other_folder if as_folder else weights_of(other_folder))
    assert engine.version == 4
    plain = reference(other_folder)
    for sample in engine.generate(ask(RAGGED)):
        right = plain(RAGGED[sample.row], sample.ids)
        assert sample.log_probs == pytest.approx(right, abs=1e-5)
        assert set(sample.versions) == {4}


def test_weights_in_flight_name_each_token_and_give_its_log_prob(model_folder: Path, other_folder: Path) -> None:
    engine = make(model_folder, version=3)
    requests = ask(RAGGED, n=4, max_tokens=16)
    running = engine.generate(requests)
    samples = [next(running)]
    engine.update_weights(4, weights_of(other_folder))
    samples += running
    assert len(samples) == len(requests)
    assert {v for s in samples for v in s.versions} == {3, 4}
    old_plain, new_plain = reference(model_folder), reference(other_folder)
    for sample in samples:
        assert list(sample.versions) == sorted(sample.versions)
        old = sample.versions.count(3)
        before = old_plain(RAGGED[sample.row], sample.ids)
        after = new_plain(RAGGED[sample.row], sample.ids)
        assert sample.log_probs == pytest.approx([*before[:old], *after[old:]], abs=1e-5)


def test_the_weights_that_are_used_can_be_read_and_sent_again(model_folder: Path, other_folder: Path) -> None:
    engine = make(model_folder)
    sent = weights_of(other_folder)
    engine.update_weights(1, sent)
    held = engine.weights()
    assert held.keys() == sent.keys()
    assert all(torch.equal(held[name], sent[name]) for name in sent)
    engine.update_weights(2, held)


def test_the_callers_tensors_stay_the_callers(model_folder: Path) -> None:
    engine, weights = make(model_folder), weights_of(model_folder)
    engine.update_weights(1, weights)
    first = by_name(engine.generate(ask(RAGGED)))
    for tensor in weights.values():
        tensor.zero_()
    assert by_name(engine.generate(ask(RAGGED))) == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), r"missing \['model.norm.weight'\]"),
        (lambda w: w.update({"model.extra": torch.zeros(1)}), r"unknown \['model.extra'\]"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), r"model.norm.weight has shape \(3,\).*\(32,\)"),
        (lambda w: w.update({"lm_head.weight": torch.zeros(40, 32)}), "ties them"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(
    model_folder: Path, other_folder: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    engine = make(model_folder)
    before = by_name(engine.generate(ask(RAGGED)))
    weights = weights_of(other_folder)
    change(weights)
    with pytest.raises(ModelError, match=message):
        engine.update_weights(1, weights)
    assert engine.version == 0
    assert by_name(engine.generate(ask(RAGGED))) == before


def test_a_tied_head_may_be_sent_along(model_folder: Path, other_folder: Path) -> None:
    engine, weights = make(model_folder), weights_of(other_folder)
    engine.update_weights(1, weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()})
    (sample,) = engine.generate(ask({"row-5": RAGGED["row-5"]}))
    right = reference(other_folder)(RAGGED["row-5"], sample.ids)
    assert sample.log_probs == pytest.approx(right, abs=1e-5)


def test_load_replaces_the_model_but_not_under_a_generation(model_folder: Path, other_folder: Path) -> None:
    engine = make(model_folder)
    running = engine.generate(ask(RAGGED))
    with pytest.raises(RunError, match="while a generation"):
        engine.load(other_folder, 1)
    next(running)
    running.close()
    engine.load(other_folder, 9)
    assert engine.version == 9
    assert {v for s in engine.generate(ask(RAGGED)) for v in s.versions} == {9}


def test_a_generation_that_broke_is_at_its_end(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(model_folder)
    with monkeypatch.context() as broken, pytest.raises(MemoryError) as kept:  # its traceback keeps the frames
        broken.setattr(transformers_engine._Batch, "_begin", lambda batch: (_ for _ in ()).throw(MemoryError()))
        list(engine.generate(ask(RAGGED)))
    engine.load(model_folder, 1)
    assert len(list(engine.generate(ask(RAGGED)))) == len(RAGGED)
    assert kept.value is not None


# --- Pause and abort --------------------------------------------------------------------------------------------------


class Slow:
    """A generation in a thread that takes at least a millisecond per token and never ends by itself soon."""

    def __init__(self, engine: TransformersEngine, requests: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = 0
        step = transformers_engine._Batch.step

        def slow(batch: transformers_engine._Batch) -> None:
            self.steps += 1
            time.sleep(0.001)
            step(batch)

        monkeypatch.setattr(transformers_engine._Batch, "step", slow)
        self.samples: list[Sample] = []
        self.thread = threading.Thread(target=lambda: self.samples.extend(engine.generate(requests)), daemon=True)
        self.thread.start()

    def wait_for(self, steps: int) -> None:
        end = time.monotonic() + 20
        while self.steps < steps and time.monotonic() < end:
            time.sleep(0.0005)
        assert self.steps >= steps

    def finish(self) -> dict[str, Sample]:
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()
        return {s.row: s for s in self.samples}


@pytest.fixture
def endless(chain: Callable[..., Path]) -> Path:
    return chain({4: 5, 5: 4}, max_position_embeddings=4096)


def test_pause_holds_a_running_generation_and_resume_goes_on(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = ask({"a": [4], "b": [4, 4]}, max_tokens=100)
    right = {s.row: s.ids for s in make(endless).generate(requests)}
    engine = make(endless)
    slow = Slow(engine, requests, monkeypatch)
    slow.wait_for(5)
    engine.pause()
    held = slow.steps
    assert all(call.batch is not None and call.batch.cache is None for call in engine._calls)
    time.sleep(0.05)
    assert slow.steps == held < 100
    engine.resume()
    assert {row: s.ids for row, s in slow.finish().items()} == right


def test_a_paused_engine_holds_a_generation_that_comes_later(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(model_folder)
    engine.pause()
    slow = Slow(engine, ask(RAGGED), monkeypatch)
    time.sleep(0.03)
    assert slow.steps == 0 and slow.thread.is_alive()
    engine.resume()
    assert len(slow.finish()) == len(RAGGED)


def test_weights_swapped_while_paused(model_folder: Path, other_folder: Path) -> None:
    engine = make(model_folder)
    engine.pause()
    engine.update_weights(1, other_folder)
    engine.resume()
    assert {v for s in engine.generate(ask(RAGGED)) for v in s.versions} == {1}


def test_weights_swapped_from_another_thread_do_not_wait_for_the_end(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(endless)
    slow = Slow(engine, ask({"a": [4]}, max_tokens=300), monkeypatch)
    for version in (1, 2, 3):
        slow.wait_for(slow.steps + 3)
        engine.update_weights(version, weights_of(endless))
    versions = slow.finish()["a"].versions
    assert sorted(set(versions)) == [0, 1, 2, 3]
    assert versions.count(3) > 3


def test_abort_ends_the_rows_that_it_names(endless: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(endless)
    slow = Slow(engine, ask({"a": [4], "b": [4, 4], "c": [4, 4, 4]}, max_tokens=200), monkeypatch)
    slow.wait_for(5)
    engine.abort(["b", "nobody"])
    samples = slow.finish()
    assert {row: str(s.status) for row, s in samples.items()} == {"a": "truncated", "b": "aborted", "c": "truncated"}
    assert 0 < len(samples["b"].ids) < 200
    assert len(samples["b"].log_probs) == len(samples["b"].versions) == len(samples["b"].ids)
    assert len(samples["a"].ids) == 200
    assert engine.failures == {}


def test_abort_reaches_a_paused_engine_and_rows_that_have_not_begun(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(endless, max_batch=2)
    requests = ask({"a": [4], "b": [4, 4], "late": [4, 4, 4]}, n=2, max_tokens=1000)
    slow = Slow(engine, requests, monkeypatch)
    slow.wait_for(3)
    engine.pause()
    engine.abort(["a", "b", "late"])
    slow.thread.join(timeout=30)
    assert not slow.thread.is_alive()
    assert {s.status for s in slow.samples} == {Status.ABORTED}
    assert len(slow.samples) == 6
    assert [s.ids for s in slow.samples if s.row == "late"] == [(), ()]


def test_abort_is_over_with_the_calls_that_were_running(model_folder: Path) -> None:
    engine = make(model_folder)
    engine.abort(list(RAGGED))
    assert Status.ABORTED not in {s.status for s in engine.generate(ask(RAGGED))}
    running = engine.generate(ask(RAGGED))
    engine.abort(list(RAGGED))
    assert {s.status for s in running} == {Status.ABORTED}
    assert Status.ABORTED not in {s.status for s in engine.generate(ask(RAGGED))}


def test_two_generations_at_once(model_folder: Path) -> None:
    engine = make(model_folder)
    one, two = engine.generate(ask(RAGGED)), engine.generate(ask(RAGGED, step=1))
    mixed_one, mixed_two = [next(one)], [next(two)]
    mixed_one += one
    mixed_two += two
    assert by_name(mixed_one) == by_name(engine.generate(ask(RAGGED)))
    assert by_name(mixed_two) == by_name(engine.generate(ask(RAGGED, step=1)))


# --- What is refused --------------------------------------------------------------------------------------------------


def request(**changes: object) -> Request:
    fields = {
        "row": "r",
        "group": "r",
        "index": 0,
        "prompt_ids": (4,),
        "seed": sample_seed(0, 0, "r", 0),
        "sampling": Sampling(temperature=1.0, max_tokens=3),
    }
    return Request(**fields | changes)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([request(), request()], "Sample 0 of row r is asked for twice"),
        ([request(prompt_ids=())], "empty prompt"),
        ([request(prompt_ids=(4, 40))], r"from 4 to 40.*ends at 39"),
        ([request(prompt_ids=(-1,))], "from -1"),
        ([request(seed=-1)], "seed -1"),
        ([request(seed=2**64)], "seed 18446744073709551616"),
        ([request(sampling=Sampling(temperature=-1, max_tokens=3))], "temperature is -1"),
    ],
)
def test_requests_that_cannot_be_are_refused_when_asked(
    model_folder: Path, requests: list[Request], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make(model_folder).generate(requests)


def test_an_engine_without_a_model_says_so(model_folder: Path) -> None:
    engine = TransformersEngine(threads=1)
    assert not engine.health()
    for use in (lambda: engine.generate([]), lambda: engine.update_weights(0, {}), lambda: engine.version):
        with pytest.raises(RunError, match="Call load"):
            use()
    engine.load(model_folder, 0)
    assert engine.health()


def test_threads_are_set_where_the_work_is_done(model_folder: Path) -> None:
    before = torch.get_num_threads()
    try:
        engine = TransformersEngine(threads=2)
        engine.load(model_folder, 0)
        torch.set_num_threads(1)
        list(engine.generate(ask(RAGGED)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    with pytest.raises(UserError, match="threads is 0"):
        TransformersEngine(threads=0)
