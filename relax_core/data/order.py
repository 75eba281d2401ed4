"""Which prompts a step asks: a pure function of the run seed and the step, so that a stopped run goes on with the
same ones.

The rows are walked in epochs, each in its own shuffled order. A batch may reach from one epoch into the next; it
never holds a row twice.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from relax_core import digests
from relax_core.errors import DataError


def prompts_of_step(n_rows: int, batch: int, step: int, seed: int) -> list[int]:
    """Indices of the rows that step `step` asks (steps count from 1: step k makes policy version k), in order.

    n_rows: rows of the training side. batch: prompts per step. Raises DataError if the batch is larger than the
    training side.
    """
    check_batch(n_rows, batch)
    if step < 1:
        raise ValueError(f"step {step}: steps count from 1")
    start = (step - 1) * batch
    epoch, offset = divmod(start, n_rows)
    head = _order(n_rows, batch, epoch, seed)[offset : offset + batch]
    if len(head) == batch:
        return [int(i) for i in head]
    tail = _order(n_rows, batch, epoch + 1, seed)[: batch - len(head)]
    return [int(i) for i in (*head, *tail)]


def check_batch(n_rows: int, batch: int) -> None:
    """Raise DataError unless a batch of distinct prompts can be drawn."""
    if not 1 <= batch <= n_rows:
        raise DataError(
            f"rollout_batch_size {batch} with {n_rows} training prompts: a step asks each prompt at most once. "
            "Lower rollout_batch_size or add data"
        )


def _order(n_rows: int, batch: int, epoch: int, seed: int) -> npt.NDArray[np.int64]:
    """The order of an epoch: shuffled, then such that a batch that began in the epoch before repeats none of its rows.

    The rows at the end of the epoch before that share a batch with the first ones of this one are passed over until
    that batch is full. This touches only the first `batch` places, so that where n_rows >= 2 batch - 1 the end of an
    epoch never depends on it and one step back is enough; a smaller training side is walked from its first epoch.
    """
    first = 0 if n_rows < 2 * batch - 1 else max(epoch - 1, 0)
    order = _shuffled(n_rows, first, seed)
    for current in range(first + 1, epoch + 1):
        begun = current * n_rows % batch  # rows of the batch under way that the epochs before have given
        order = _without_repeats(_shuffled(n_rows, current, seed), order[n_rows - begun :], batch - begun)
    return order


def _without_repeats(order: npt.NDArray[np.int64], taken: npt.NDArray[np.int64], missing: int) -> npt.NDArray[np.int64]:
    """`order` with its first `missing` rows that are not in `taken` moved to the front; the rest keeps its order."""
    reach = missing + len(taken)  # among so many rows, at least `missing` are free
    free = np.flatnonzero(~np.isin(order[:reach], taken))[:missing]
    return np.concatenate([order[free], np.delete(order, free)])


@lru_cache(maxsize=4)
def _shuffled(n_rows: int, epoch: int, seed: int) -> npt.NDArray[np.int64]:
    """A permutation from a hash, not from a library's generator: the same with every version and on every machine."""
    key = np.uint64(int(digests.of_value(["prompt order", seed, epoch])[:16], 16))
    with np.errstate(over="ignore"):  # splitmix64, whose sums wrap around
        z = key + np.arange(1, n_rows + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    order = np.argsort(z, kind="stable").astype(np.int64)
    order.setflags(write=False)
    return order
