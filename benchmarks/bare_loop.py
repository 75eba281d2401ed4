"""RLOO as a bare torch loop: the yardstick of benchmarks/step.py.

What a careful person writes in an afternoon: one process, a Hugging Face model with eager attention, sampling with a
key-value cache over the whole batch (prompts left-padded, each repeated n times), one forward and backward over all
responses, gradient clipping, fused AdamW. No ledger, no engine, no checkpoints, no ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True, slots=True)
class Rollout:
    """Responses to prompts. Rows are samples, those of one prompt adjacent.

    ids: [rows, prompt + response] tokens, prompts left-padded, responses right-padded. attention: the same shape, True at
    real tokens. width: columns of the prompt. log_probs: [rows, response], of the sampled tokens, 0 at padding.
    """

    ids: torch.Tensor
    attention: torch.Tensor
    width: int
    log_probs: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """[rows, response], True at sampled tokens (the end token is one of them)."""
        return self.attention[:, self.width :]

    def responses(self) -> list[list[int]]:
        """The tokens of each response."""
        lengths = self.mask.sum(1).tolist()
        return [row[:n] for row, n in zip(self.ids[:, self.width :].tolist(), lengths, strict=True)]


def _left_pad(prompts: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(p) for p in prompts)
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
    lengths = torch.tensor([len(p) for p in prompts])
    return ids, torch.arange(width) >= width - lengths[:, None]


def _positions(attention: torch.Tensor) -> torch.Tensor:
    return (attention.cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    n: int,
    *,
    max_tokens: int,
    eos: int,
    pad: int,
    generator: torch.Generator,
    temperature: float = 1.0,
) -> Rollout:
    """n responses to each prompt; temperature 0 is greedy (log-probs are then those at temperature 1)."""
    ids, attention = (t.repeat_interleave(n, 0) for t in _left_pad(prompts, pad))
    width = ids.shape[1]
    cache = DynamicCache(config=model.config)
    running = torch.ones(len(ids), dtype=torch.bool)
    inputs, positions = ids, _positions(attention)
    log_probs = []
    for _ in range(max_tokens):
        out = model(input_ids=inputs, attention_mask=attention, position_ids=positions, cache=cache, logits_to_keep=1)
        log_p = torch.log_softmax(out.logits[:, -1].float() / (temperature or 1.0), -1)
        token = log_p.argmax(-1) if temperature == 0 else torch.multinomial(log_p.exp(), 1, generator=generator)[:, 0]
        log_probs.append(torch.where(running, log_p.gather(1, token[:, None])[:, 0], 0.0))
        inputs = torch.where(running, token, pad)[:, None]
        ids, attention = torch.cat([ids, inputs], 1), torch.cat([attention, running[:, None]], 1)
        positions = positions[:, -1:] + 1
        running = running & (token != eos)
        if not running.any():
            break
    return Rollout(ids, attention, width, torch.stack(log_probs, 1))


def leave_one_out(rewards: torch.Tensor) -> torch.Tensor:
    """[groups, n] rewards to advantages: each reward less the mean of the others of its group."""
    n = rewards.shape[1]
    return rewards - (rewards.sum(1, keepdim=True) - rewards) / (n - 1)


def update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    advantages: torch.Tensor,
    *,
    clip_grad: float = 1.0,
    temperature: float = 1.0,
) -> float:
    """One policy-gradient step on -A log p, mean over all valid tokens. advantages: [rows]. Returns the gradient norm."""
    # The last column is nobody's input; the logits of column c predict column c + 1.
    out = model(
        input_ids=rollout.ids[:, :-1],
        attention_mask=rollout.attention[:, :-1],
        position_ids=_positions(rollout.attention[:, :-1]),
        use_cache=False,
        logits_to_keep=rollout.ids.shape[1] - rollout.width,
    )
    log_p = torch.log_softmax(out.logits.float() / temperature, -1)
    token_log_p = log_p.gather(2, rollout.ids[:, rollout.width :, None])[:, :, 0]
    loss = torch.where(rollout.mask, -advantages[:, None] * token_log_p, 0.0).sum() / rollout.mask.sum()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad)
    optimizer.step()
    return float(norm)


def step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    prompts: Sequence[Sequence[int]],
    n: int,
    reward: Callable[[int, list[int]], float],
    *,
    max_tokens: int,
    eos: int,
    pad: int,
    generator: torch.Generator,
    clip_grad: float = 1.0,
) -> tuple[float, float]:
    """Generate, score, advantages, update. reward(prompt index, response tokens). Returns mean reward, gradient norm."""
    rollout = sample(model, prompts, n, max_tokens=max_tokens, eos=eos, pad=pad, generator=generator)
    rewards = torch.tensor([reward(i // n, r) for i, r in enumerate(rollout.responses())]).view(len(prompts), n)
    norm = update(model, optimizer, rollout, leave_one_out(rewards).flatten(), clip_grad=clip_grad)
    return float(rewards.mean()), norm
