"""What a trainer is told and given. Plain values: they can be pickled to a worker, and importing them imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Ids = Sequence[int] | np.ndarray
Floats = Sequence[float] | np.ndarray

LR_DECAY_STYLES = ("constant", "linear", "cosine")
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """AdamW and its learning rate.

    Update k (1 for the first) runs at lr * k / lr_warmup_iters up to k = lr_warmup_iters; from there the rate stays (constant)
    or falls to min_lr, which update total_steps has (linear, cosine). clip_grad: largest gradient norm, 0 is off.
    weight_decay holds for matrices only, never for norms and biases.
    """

    lr: float
    min_lr: float
    lr_warmup_iters: int
    lr_decay_style: str
    total_steps: int
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    clip_grad: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """How a trainer runs.

    micro_batch_size: responses per forward and backward pass; it bounds memory and never changes the result beyond rounding.
    dtype: of the weights, one of `DTYPES`. threads: CPU threads of the worker (they change the order of sums). seed: start of
    the worker's random state.
    """

    optimizer: OptimizerSpec
    micro_batch_size: int
    dtype: str = "float32"
    threads: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """The responses of one optimizer step, ragged: entry i of every list belongs to response i.

    prompt_ids: at least one token. response_ids: the drawn tokens, possibly none. Everything else has one value per response
    token: masks (1 counts, 0 does not), advantages, rollout_log_probs (as the engine returned them), old_log_probs (the
    trainer's own before the first update of the rollout; None: the objective needs none), ref_log_probs (of the reference
    policy; None: there is no KL). Values where the mask is 0 are never looked at.
    """

    prompt_ids: Sequence[Ids]
    response_ids: Sequence[Ids]
    masks: Sequence[Ids]
    advantages: Sequence[Floats]
    rollout_log_probs: Sequence[Floats]
    old_log_probs: Sequence[Floats] | None = None
    ref_log_probs: Sequence[Floats] | None = None
