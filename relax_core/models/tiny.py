r"""The built-in base model `tiny`: small enough to train in seconds, real enough to be loaded by every engine.

Qwen3 architecture (2 layers, width 128, 0.46 M parameters, float32, tied embeddings), a character-level tokenizer, and a
short supervised warm-up on worked solutions. What leaves room for reinforcement learning is the corpus: a problem with a
typical slip (a carry that is forgotten, as pupils do) is written out wrongly in `slip_share` of the cases. So the base
model has learned both ways: greedy it slips, sampled it is right now and then, and a reward that checks the answer is all
that tells the two apart. Where half of the problems carry it answers near 50 %. This is learning that generalises (no
problem of the corpus is one that a run trains or evaluates on), but it is the unlearning of one systematic error, not the
acquisition of arithmetic from nothing; that takes more than 60 updates. Measured with benchmarks/bare_loop.py at a learning
rate of 1e-4, greedy accuracy on 200 held-out sums before and after 60 updates of 16 x 8, run seeds 0, 1, 2:
base seed 0 0.475 to 0.955, 0.985, 0.960; base seed 1 0.485 to 0.990, 0.990, 0.980.

Deterministic for (seed, problems, warm-up, threads); the global random state is neither read nor changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from relax_core.data.arithmetic import Problem
from relax_core.errors import ModelError
from relax_core.models import tiny_tokenizer

MAX_POSITIONS = 256
_IGNORED = -100  # the label that torch's cross entropy leaves out
_CHECK_TOKENS = 14
_INIT_STD = 0.06  # three times the usual: at this width and length of training it learns about twice as fast


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The supervised warm-up: AdamW, linear rise of the learning rate over lr_warmup_steps, then a linear fall.

    slip_share: the part of the solutions of problems with a slip that is written out with it.
    """

    steps: int = 250
    batch_size: int = 64
    lr: float = 3e-3
    lr_warmup_steps: int = 20
    clip_grad: float = 1.0
    slip_share: float = 0.65


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What the warm-up ended with. loss: nats per token of the last batch. accuracy: greedy, share of `checked` problems."""

    parameters: int
    steps: int
    loss: float
    accuracy: float
    checked: int


Progress = Callable[[int, int, float], None]


def build(
    folder: Path,
    *,
    seed: int,
    problems: Sequence[Problem],
    check: Sequence[Problem],
    prompt_template: str,
    warm_up: WarmUp,
    threads: int = 2,
    progress: Progress | None = None,
) -> Metrics:
    """Make the model from `problems`, measure it on `check`, and leave a Hugging Face folder.

    problems, check: of splits that do not overlap ("warmup" and "test"). prompt_template: the text of a prompt, with
    "{question}" in it. progress(step, steps, loss) is called every ten steps. Raises ModelError for values that cannot work.
    """
    _check_arguments(problems, prompt_template, warm_up)
    tokenizer = tiny_tokenizer.build(MAX_POSITIONS)
    with _threads(threads):
        model = initial_model(tokenizer, seed)
        loss = _train(model, _Corpus(tokenizer, problems, prompt_template), warm_up, seed, progress)
        accuracy = greedy_accuracy(model, tokenizer, check, prompt_template) if check else float("nan")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Metrics(
        parameters=sum(p.numel() for p in model.parameters()),
        steps=warm_up.steps,
        loss=loss,
        accuracy=accuracy,
        checked=len(check),
    )


def _check_arguments(problems: Sequence[Problem], prompt_template: str, warm_up: WarmUp) -> None:
    if not problems:
        raise ModelError("problems is empty: the base model needs worked problems to learn from")
    if "{question}" not in prompt_template:
        raise ModelError(f"prompt_template={prompt_template!r} has no {{question}}: put it where the question belongs")
    if warm_up.steps < 1 or warm_up.batch_size < 1:
        raise ModelError(f"steps={warm_up.steps}, batch_size={warm_up.batch_size}: both must be at least 1")
    if not 0 <= warm_up.slip_share <= 1:
        raise ModelError(f"slip_share={warm_up.slip_share} is not a share: use a value from 0 to 1")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The number of threads changes the order of sums, so it belongs to what was asked for; put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def initial_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """The model before any training: weights normal, norms 1, drawn from a generator of its own."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=448,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        attn_implementation="eager",
        dtype="float32",
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights, which are replaced below
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, _INIT_STD, generator=generator)
    return model


class _Corpus:
    """Prompts with their solutions as right-padded rows; two variants of each problem: right, and with its slip.

    ids, labels: [problems, 2, longest]. Labels are set on the solution and its end token only. A problem without a slip
    has the right solution twice.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem], prompt_template: str) -> None:
        rows = []
        for problem in problems:
            prompt = _encode(tokenizer, _prompt(prompt_template, problem))
            for text in (problem.solution, problem.slip or problem.solution):
                rows.append((prompt, [*_encode(tokenizer, text), tokenizer.eos_token_id]))
        longest = max(len(prompt) + len(solution) for prompt, solution in rows)
        if longest > MAX_POSITIONS:
            raise ModelError(
                f"a problem takes {longest} tokens and the model has {MAX_POSITIONS} positions: shorten it"
            )
        ids = torch.full((len(rows), longest), tokenizer.pad_token_id)
        labels = torch.full((len(rows), longest), _IGNORED)
        for i, (prompt, solution) in enumerate(rows):
            end = len(prompt) + len(solution)
            ids[i, :end] = torch.tensor(prompt + solution)
            labels[i, len(prompt) : end] = torch.tensor(solution)
        self.ids = ids.view(len(problems), 2, longest)
        self.labels = labels.view(len(problems), 2, longest)

    def batches(
        self, size: int, slip_share: float, generator: torch.Generator
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Endless (ids, labels), each [size, longest]: problems with replacement, each with its slip by chance."""
        while True:
            rows = torch.randint(len(self.ids), (size,), generator=generator)
            slips = (torch.rand(size, generator=generator) < slip_share).long()
            yield self.ids[rows, slips], self.labels[rows, slips]


def _train(model: Qwen3ForCausalLM, corpus: _Corpus, warm_up: WarmUp, seed: int, progress: Progress | None) -> float:
    """The warm-up in place. Returns the loss of the last batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=warm_up.lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _lr_factor(step, warm_up))
    # Another stream than that of the weights: one generator may not be seeded twice with the same number.
    batches = corpus.batches(warm_up.batch_size, warm_up.slip_share, torch.Generator().manual_seed(seed + 2**32))
    model.train()
    loss = torch.zeros(())
    for step in range(1, warm_up.steps + 1):
        ids, labels = next(batches)
        # Right padding needs no attention mask: no real token looks at what follows it.
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), warm_up.clip_grad)
        optimizer.step()
        schedule.step()
        if progress is not None and (step % 10 == 0 or step == warm_up.steps):
            progress(step, warm_up.steps, loss.item())
    model.eval()
    return loss.item()


def _lr_factor(step: int, warm_up: WarmUp) -> float:
    """Factor on the learning rate for the step after `step` steps: up to 1, then down to a twentieth at the last one."""
    rise = (step + 1) / max(1, warm_up.lr_warmup_steps)
    fall = 1.0 - 0.95 * step / max(1, warm_up.steps - 1)
    return min(1.0, rise) * max(0.05, fall)


@torch.no_grad()
def greedy_accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem], prompt_template: str
) -> float:
    """Share of the problems whose greedy response ends by itself in the right box, within 14 tokens."""
    right = 0
    for start in range(0, len(problems), 200):
        chunk = problems[start : start + 200]
        inputs = tokenizer([_prompt(prompt_template, p) for p in chunk], padding=True, return_tensors="pt")
        out = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=False,
            max_new_tokens=_CHECK_TOKENS,
        )
        texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :])
        right += sum(
            f"{tiny_tokenizer.BOXED}{p.answer}}}{tiny_tokenizer.EOS}" in text
            for p, text in zip(chunk, texts, strict=True)
        )
    return right / len(problems)


def _prompt(template: str, problem: Problem) -> str:
    return template.replace("{question}", problem.question)


def _encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids
