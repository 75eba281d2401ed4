"""Metrics of a training rollout that every algorithm has, under the names of the source system."""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Sequence

from relax_core.evaluation.statistics import pass_at_k
from relax_core.rollout.types import Status

REPETITION_CHARACTERS = 200
REPETITION_RATIO = 10.0


def repeats_itself(text: str) -> bool:
    """Whether a reply goes round in circles: at least 200 characters that zlib makes more than ten times shorter."""
    raw = text.encode()
    return len(text) >= REPETITION_CHARACTERS and len(raw) / len(zlib.compress(raw, 6)) > REPETITION_RATIO


def rollout_metrics(
    *,
    rewards: Sequence[float],
    correct: Sequence[bool],
    groups: Sequence[str],
    lengths: Sequence[int],
    statuses: Sequence[Status],
    texts: Sequence[str],
) -> dict[str, float]:
    """Metrics of one rollout; every sequence has one entry per sample. An empty rollout has no metrics."""
    if not rewards:
        return {}
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    largest = max(len(m) for m in members.values())
    ks = [k for k in (1 << i for i in range(largest.bit_length())) if k <= largest]
    metrics = {
        "rollout/raw_reward": statistics.fmean(rewards),
        "rollout/response_len/mean": statistics.fmean(lengths),
        "rollout/response_len/median": float(statistics.median(lengths)),
        "rollout/response_len/max": float(max(lengths)),
        "rollout/response_len/min": float(min(lengths)),
        "rollout/truncated_ratio": statistics.fmean(s is Status.TRUNCATED for s in statuses),
        "rollout/zero_std/count": float(sum(len({rewards[i] for i in m}) == 1 for m in members.values())),
        "rollout/repetition_frac": statistics.fmean(repeats_itself(t) for t in texts),
    }
    for k in ks:
        able = [m for m in members.values() if len(m) >= k]
        metrics[f"rollout/passrate/pass@{k}"] = statistics.fmean(
            pass_at_k(len(m), sum(correct[i] for i in m), k) for m in able
        )
    return metrics
