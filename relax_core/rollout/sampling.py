"""From logits to tokens: temperature, top-k, top-p, and the log-prob that the trainer will compute again.

For one row of logits z [V] and a temperature T > 0, p = softmax(z / T) in float32. Candidates are ranked by p, the
larger first, and equal ones by token id, the smaller first. Then

- top_k = k keeps the first k of the ranking (0 or k >= V: all);
- top_p = q keeps the tokens before which less than q of the mass lies: the shortest beginning of the ranking whose mass
  reaches q (1: all). The first token is always kept.

Both are measured on the full p and both must keep a token (SGLang's rule for the two together). The token is drawn from
p restricted to what was kept, in proportion, by inverting its cumulative sum in the order of token ids: the first token
whose cumulative mass exceeds u times the total. So a token without mass, or outside of what was kept, is never drawn,
and two runs with the same logits and the same u draw the same token.

Temperature 0 is greedy: the largest logit, among equal ones the smallest id; top_k and top_p change nothing then.

The log-prob is always that of the full softmax of logits / T (greedy: T = 1), whatever top_k and top_p removed: it is
the number that the trainer computes from the same logits, so with equal weights the ratio is exactly 1 (with top_k or
top_p that ratio is biased, and a run that uses them is told so).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relax_core.errors import UserError
from relax_core.rollout.types import Sampling


@dataclass(frozen=True, slots=True)
class Knobs:
    """The sampling parameters of B rows as tensors; None where no row uses the parameter.

    temperature: [B, 1] float32, 1 for greedy rows; greedy: [B] bool; top_p: [B, 1] float64; top_k: [B, 1] int64 (rows
    without a limit hold the largest integer).
    """

    temperature: Tensor | None
    greedy: Tensor | None
    top_p: Tensor | None
    top_k: Tensor | None

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device | str = "cpu") -> Knobs:
        def column(values: list[float] | list[int] | list[bool], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

        temperatures = [s.temperature or 1.0 for s in samplings]
        greedy = [s.temperature == 0 for s in samplings]
        top_p = [s.top_p for s in samplings]
        no_limit = torch.iinfo(torch.int64).max
        top_k = [s.top_k or no_limit for s in samplings]
        return cls(
            temperature=column(temperatures, torch.float32) if any(t != 1 for t in temperatures) else None,
            greedy=column(greedy, torch.bool).squeeze(1) if any(greedy) else None,
            top_p=column(top_p, torch.float64) if any(p < 1 for p in top_p) else None,
            top_k=column(top_k, torch.int64) if any(k < no_limit for k in top_k) else None,
        )

    def take(self, rows: Tensor) -> Knobs:
        """The knobs of some rows, [n] int64 indices."""

        def of_rows(column: Tensor | None) -> Tensor | None:
            return None if column is None else column.index_select(0, rows)

        return Knobs(of_rows(self.temperature), of_rows(self.greedy), of_rows(self.top_p), of_rows(self.top_k))


@dataclass(frozen=True, slots=True)
class Draw:
    """ids: [B] int64; log_probs: [B] float32, nats; finite: [B] bool, False where the logits of a row hold NaN or +inf
    or nothing but -inf, and the other two have no meaning."""

    ids: Tensor
    log_probs: Tensor
    finite: Tensor


def check(sampling: Sampling) -> None:
    """Refuse parameters outside of their range.

    Raises: UserError, naming the value and the range.
    """
    rules = [
        (math.isfinite(sampling.temperature) and sampling.temperature >= 0, "temperature", "at least 0 (0 is greedy)"),
        (0 < sampling.top_p <= 1, "top_p", "above 0 and at most 1 (1 is off)"),
        (sampling.top_k >= 0, "top_k", "at least 0 (0 is off)"),
        (sampling.max_tokens >= 1, "max_tokens", "at least 1"),
    ]
    for holds, name, rule in rules:
        if not holds:
            raise UserError(f"{name} is {getattr(sampling, name)}, and must be {rule}.")


def draw(logits: Tensor, uniforms: Tensor, knobs: Knobs) -> Draw:
    """Draw one token per row, as the module's text defines it.

    logits: [B, V], any float type; uniforms: [B] float64 from 0 to 1 - 2^-53, not looked at in greedy rows.
    """
    scaled = logits.float()
    if knobs.temperature is not None:
        scaled = scaled / knobs.temperature
    log_probs = torch.log_softmax(scaled, dim=-1)
    kept = log_probs.exp()
    if knobs.top_p is not None or knobs.top_k is not None:
        kept = torch.where(_candidates(kept, knobs), kept, 0.0)
    ids = _invert(kept, uniforms)
    if knobs.greedy is not None:
        ids = torch.where(knobs.greedy, logits.argmax(dim=-1), ids)
    chosen = log_probs.gather(1, ids.unsqueeze(1)).squeeze(1)
    # One NaN or +inf among the logits of a row makes each of its log-probs NaN, and so does -inf everywhere. A chosen
    # token has mass, so its log-prob is finite in every other row.
    return Draw(ids, chosen, torch.isfinite(chosen))


def _candidates(probs: Tensor, knobs: Knobs) -> Tensor:
    """Which tokens top_k and top_p keep: bool [B, V]."""
    ranked, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if knobs.top_k is not None:
        keep &= torch.arange(ranked.shape[1], device=ranked.device) < knobs.top_k
    if knobs.top_p is not None:
        mass = ranked.double().cumsum(dim=-1)
        before = torch.nn.functional.pad(mass[:, :-1], (1, 0))
        # A row whose top_p is 1 keeps everything, also where rounding lets the mass reach 1 early.
        keep &= (before < knobs.top_p) | (knobs.top_p >= 1)
    return torch.zeros_like(keep).scatter(1, order, keep)


def _invert(mass: Tensor, uniforms: Tensor) -> Tensor:
    """First index whose cumulative mass exceeds u times the total: [B, V], [B] -> [B]. Summed in float64."""
    cumulative = mass.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    # u is at most 1 - 2^-53, so u * total is below the total after rounding too, and the token found has mass.
    # In a row of NaN the answer is any number; it must only be an index.
    found = torch.searchsorted(cumulative, uniforms.unsqueeze(1) * total, right=True)
    return found.clamp_(max=mass.shape[1] - 1).squeeze(1)
