"""The vocabulary of a rollout: what is asked of an engine and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Why a sample ended."""

    COMPLETED = "completed"  # the model ended it with an end-of-sequence token
    TRUNCATED = "truncated"  # it hit the length limit
    ABORTED = "aborted"  # somebody ended it
    FAILED = "failed"  # the engine could not finish it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    temperature 0 is greedy (log-probs are then those at temperature 1); top_k 0 is off; max_tokens counts the end token.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sample to draw. (row, index) is unique within a call; `seed` alone decides the draws."""

    row: str
    group: str
    index: int
    prompt_ids: tuple[int, ...]
    seed: int
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What an engine returns for a request: the drawn tokens, end token included.

    log_probs: of the full softmax of logits / temperature, nats, one per token. versions: the policy version (number of
    updates) that drew each token.
    """

    row: str
    group: str
    index: int
    seed: int
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    status: Status
    versions: tuple[int, ...]
