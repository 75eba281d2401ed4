"""The base model `tiny`: loads everywhere, reads any text, repeats bit for bit, and learns."""

from __future__ import annotations

import dataclasses
import string
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_core import digests
from relax_core.data import arithmetic
from relax_core.errors import ModelError
from relax_core.models import tiny, tiny_tokenizer

TEMPLATE = "{question} Use \\boxed{}."
SHORT = tiny.WarmUp(steps=3, batch_size=4, lr_warmup_steps=2)


def some_problems(
    split: arithmetic.Split, count: int, templates: tuple[str, ...] = ("sum99", "sum99_carry")
) -> list[arithmetic.Problem]:
    return list(arithmetic.problems(0, split, count, templates=templates))


def build(folder: Path, *, seed: int = 0, warm_up: tiny.WarmUp = SHORT, threads: int = 1) -> tiny.Metrics:
    return tiny.build(
        folder,
        seed=seed,
        problems=some_problems("warmup", 20),
        check=some_problems("test", 5),
        prompt_template=TEMPLATE,
        warm_up=warm_up,
        threads=threads,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    build(path)
    return path


def test_folder_loads_with_the_auto_classes(folder: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.float32
    assert 0.45e6 < sum(p.numel() for p in model.parameters()) < 0.5e6
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert len(tokenizer) == model.config.vocab_size == 100
    assert len(tokenizer) % 4 == 0  # splits over 2 or 4 tensor-parallel ranks without padding
    for config in (model.config, model.generation_config):
        assert (config.eos_token_id, config.pad_token_id, config.bos_token_id) == (
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
            None,
        )
    ids = tokenizer("7+5=? Use \\boxed{}.", return_tensors="pt")["input_ids"]
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] <= ids.shape[1] + 3


def test_tokenizer_round_trip(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = string.printable.replace("\t", "").replace("\r", "").replace("\x0b", "").replace("\x0c", "")
    text = f"  two  spaces , and a comma .\n{text} \\boxed{{85}} \\boxed \\box{{ don't "
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text


def test_boxed_is_one_token_and_the_rest_are_characters(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("70+15=85 \\boxed{85}") == [*"70+15=85 ", "\\boxed{", *"85}"]
    assert tokenizer.chat_template is None


def test_unknown_characters_become_unk(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("é\t7")["input_ids"]
    assert ids == [tokenizer.unk_token_id, tokenizer.unk_token_id, tokenizer.convert_tokens_to_ids("7")]
    assert tokenizer("")["input_ids"] == []


def test_special_tokens_are_dropped_on_request(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer.pad_token_id, *tokenizer("85")["input_ids"], tokenizer.eos_token_id]
    assert tokenizer.decode(ids) == "<pad>85<eos>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "85"


def test_solutions_of_two_digit_problems_fit_in_14_tokens() -> None:
    tokenizer = tiny_tokenizer.build(tiny.MAX_POSITIONS)
    for problem in arithmetic.problems(0, "train", 400, levels=[1, 2]):
        for text in (problem.solution, problem.slip or ""):
            assert len(tokenizer(text)["input_ids"]) + 1 <= 14, problem


def test_same_seed_same_bytes_other_seed_other_weights(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)
    state = torch.random.get_rng_state()
    build(tmp_path / "same")
    assert torch.equal(torch.random.get_rng_state(), state)
    build(tmp_path / "other", seed=1)
    assert digests.of_tree(tmp_path / "same") == digests.of_tree(folder)
    assert digests.of_file(tmp_path / "other/model.safetensors") != digests.of_file(folder / "model.safetensors")


def test_threads_are_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    build(tmp_path / "m", threads=before + 1)
    assert torch.get_num_threads() == before


def test_corpus_labels_the_solution_only() -> None:
    tokenizer = tiny_tokenizer.build(tiny.MAX_POSITIONS)
    [problem] = (p for p in some_problems("train", 600) if p.key == "15+28")
    corpus = tiny._Corpus(tokenizer, [problem], TEMPLATE)
    for variant, solution in enumerate(("30+13=43 \\boxed{43}", "30+13=33 \\boxed{33}")):
        labels = corpus.labels[0, variant]
        assert tokenizer.decode(labels[labels != tiny._IGNORED]) == f"{solution}<eos>"
        assert tokenizer.decode(corpus.ids[0, variant]) == f"{problem.question} Use \\boxed{{}}.{solution}<eos>"


def test_slips_come_at_their_share() -> None:
    tokenizer = tiny_tokenizer.build(tiny.MAX_POSITIONS)
    problems = some_problems("warmup", 20, ("sum99_carry",))
    corpus = tiny._Corpus(tokenizer, problems, TEMPLATE)
    right = {tuple(row.tolist()) for row in corpus.ids[:, 0]}
    for share, low, high in ((0.0, 0, 0), (0.65, 580, 720), (1.0, 1000, 1000)):
        ids, _ = next(corpus.batches(1000, share, torch.Generator().manual_seed(0)))
        assert low <= sum(tuple(row.tolist()) not in right for row in ids) <= high


def test_learning_rate_rises_then_falls() -> None:
    warm_up = tiny.WarmUp(steps=101, lr_warmup_steps=4)
    factors = [tiny._lr_factor(step, warm_up) for step in range(101)]
    assert factors[0] == pytest.approx(0.25)
    assert factors[50] == pytest.approx(1 - 0.95 * 0.5)
    assert factors[100] == pytest.approx(0.05)


def test_it_learns_and_reports(tmp_path: Path) -> None:
    # Twenty problems, learned by heart: enough to see that data, labels, optimizer and check fit together.
    seen: list[tuple[int, int]] = []
    problems = some_problems("train", 20, ("sum20",))
    metrics = tiny.build(
        tmp_path / "m",
        seed=0,
        problems=problems,
        check=problems,
        prompt_template=TEMPLATE,
        warm_up=tiny.WarmUp(steps=80, batch_size=32),
        threads=1,
        progress=lambda step, steps, loss: seen.append((step, steps)),
    )
    assert metrics.accuracy > 0.9 and metrics.loss < 0.1
    assert (metrics.steps, metrics.checked) == (80, 20)
    assert seen == [(step, 80) for step in range(10, 81, 10)]


def test_an_untrained_model_answers_nothing() -> None:
    tokenizer = tiny_tokenizer.build(tiny.MAX_POSITIONS)
    assert tiny.greedy_accuracy(tiny.initial_model(tokenizer, 0), tokenizer, some_problems("test", 10), TEMPLATE) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problems": []}, "problems is empty"),
        ({"prompt_template": "7+5"}, r"prompt_template='7\+5' has no \{question\}"),
        ({"warm_up": dataclasses.replace(SHORT, steps=0)}, "steps=0"),
        ({"warm_up": dataclasses.replace(SHORT, slip_share=1.5)}, "slip_share=1.5 is not a share"),
        ({"prompt_template": "{question}" + "." * 300}, "has 256 positions"),
    ],
)
def test_what_cannot_work_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    arguments: dict[str, object] = {
        "seed": 0,
        "problems": some_problems("warmup", 4),
        "check": [],
        "prompt_template": TEMPLATE,
        "warm_up": SHORT,
    }
    with pytest.raises(ModelError, match=message):
        tiny.build(tmp_path / "m", **(arguments | change))  # type: ignore[arg-type]
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_the_base_model_answers_near_half_of_new_problems(tmp_path: Path) -> None:
    metrics = tiny.build(
        tmp_path / "m",
        seed=0,
        problems=list(arithmetic.problems(0, "warmup", templates=["sum99", "sum99_carry"])),
        check=list(arithmetic.problems(0, "train", 200, templates=["sum99", "sum99_carry"])),
        prompt_template=TEMPLATE,
        warm_up=tiny.WarmUp(),
    )
    assert 0.4 <= metrics.accuracy <= 0.6
