"""What an evaluation says, and how sure it is.

Correct means status correct with the math score, whatever other rewards are mixed in (algorithms.md, section 6). 95 %
intervals: Wilson for one reply per prompt; otherwise the percentile bootstrap over prompts, since the replies to one
prompt are not independent. The value itself is never random: pass@k is the unbiased estimate, not a resampled best of
k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, TypedDict

from relax_core.rollout.types import Status

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DRAWS = 10_000
_CONFIDENCE = 0.95
_Z = NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2)
_CHUNK = 1 << 20  # indices held at once by the bootstrap: 8 MiB, whatever the number of prompts


class Interval(TypedDict):
    """A value with its 95 % interval over `n` prompts. All three are None where n is 0: nothing could be measured."""

    value: float | None
    low: float | None
    high: float | None
    n: int


Summary = dict[str, Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOutcome:
    """The replies to one prompt: three tuples of equal length, one entry per reply.

    correct: None where the gold answer cannot be verified. rewards: as the policy would be trained with.
    """

    row: str
    correct: tuple[bool | None, ...]
    rewards: tuple[float, ...]
    statuses: tuple[Status, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.correct), len(self.rewards), len(self.statuses)}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(
                f"prompt {self.row}: {len(self.correct)} correctness values, {len(self.rewards)} rewards and "
                f"{len(self.statuses)} statuses; give one of each for every reply, and at least one reply"
            )

    @property
    def verifiable(self) -> bool:
        return all(c is not None for c in self.correct)

    @property
    def withheld(self) -> bool:
        """A reply that was aborted or failed says nothing about the policy: the prompt is left out and counted."""
        return any(s in (Status.ABORTED, Status.FAILED) for s in self.statuses)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of `k` replies is correct, unbiased, from `n` drawn of which `c` are correct.

    1 - C(n-c, k) / C(n, k), Chen et al. 2021 (arXiv:2107.03374), equation 1; in integers up to the one division.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {n} replies with {c} correct: 0 <= c <= n and 1 <= k <= n must hold")
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def avg_at_k(correct: Sequence[bool]) -> float:
    """Share of correct replies among the k = len(correct) replies to one prompt."""
    if not correct:
        raise ValueError("avg@k needs at least one reply")
    return sum(correct) / len(correct)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float:
    """pass@k averaged over prompts; `counts` holds (n, c) for each prompt."""
    if not counts:
        raise ValueError(f"pass@{k} needs at least one prompt")
    return math.fsum(pass_at_k(n, c, k) for n, c in counts) / len(counts)


def wilson(successes: int, n: int) -> Interval:
    """A share with Wilson's 95 % score interval (Wilson 1927): right also near 0 and 1, where the normal one is not."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: 0 <= successes <= n must hold")
    if n == 0:
        return _nothing()
    share = successes / n
    shrink = 1 + _Z**2 / n
    centre = (share + _Z**2 / (2 * n)) / shrink
    half = _Z / shrink * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    # At 0 and n the bound is 0 or 1 exactly; in floating point it is so only nearly.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(value=share, low=low, high=high, n=n)


def bootstrap(values: Sequence[float], *, seed: int, draws: int = DRAWS) -> Interval:
    """The mean of one value per prompt, with the 95 % percentile interval over `draws` resamples of the prompts.

    The same seed and number of prompts give the same resamples, so that two values of one evaluation move together. A
    value that is not finite makes mean and interval NaN; it is not hidden.
    """
    import numpy as np

    if not values:
        return _nothing()
    x = np.asarray(values, dtype=np.float64)
    if not np.isfinite(x).all():
        return Interval(value=math.nan, low=math.nan, high=math.nan, n=len(x))
    low, high = np.quantile(_resampled_means(x, seed, draws), [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    value = math.fsum(values) / len(values)
    # The percentiles hold the mean; where all values are equal, rounding could put them beside it.
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value), n=len(x))


def paired_gain(before: Mapping[str, float], after: Mapping[str, float], *, seed: int) -> Interval:
    """Mean of after - before over the prompts (by row id) that both hold, bootstrapped over prompts.

    Pairing takes the difficulty of the prompts out of the comparison: the interval is narrower than what the two
    separate intervals suggest, and it is the right one for "did this policy get better on these prompts?".
    """
    rows = sorted(before.keys() & after.keys())
    return bootstrap([after[row] - before[row] for row in rows], seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transitions:
    """How many prompts went from right or wrong to right or wrong between two evaluations."""

    kept: int
    fixed: int
    broken: int
    missed: int


def transitions(before: Mapping[str, float], after: Mapping[str, float]) -> Transitions:
    """Count the prompts (by row id) that both evaluations hold; a prompt is right where all its replies are."""
    pairs = [(before[row] == 1, after[row] == 1) for row in before.keys() & after.keys()]
    return Transitions(
        kept=pairs.count((True, True)),
        fixed=pairs.count((False, True)),
        broken=pairs.count((True, False)),
        missed=pairs.count((False, False)),
    )


def accuracies(outcomes: Sequence[PromptOutcome]) -> dict[str, float]:
    """Share of correct replies per row id, without the rows that do not count: for `paired_gain` and `transitions`."""
    return {o.row: avg_at_k([c is True for c in o.correct]) for o in _counted(outcomes)}


def summarise(
    greedy: Sequence[PromptOutcome], sampled: Sequence[PromptOutcome] = (), *, seed: int, draws: int = DRAWS
) -> Summary:
    """All figures of one evaluation.

    greedy: one reply per prompt at temperature 0. sampled: k replies per prompt, the same k for all; either may be
    empty. Gives greedy_accuracy; avg@k and pass@1, 2, 4, ... k; mean_reward and truncated_ratio (of the sampled
    replies where there are any, else of the greedy ones); and two counts out of all prompts, without spread:
    unverifiable_rows (their gold cannot be verified: out of every accuracy and of the mean reward) and withheld_rows
    (a reply aborted or failed: out of everything).
    """
    k = _replies(sampled, "sampled")
    if greedy and _replies(greedy, "greedy") != 1:
        raise ValueError(
            f"greedy decoding gives one reply per prompt, not {len(greedy[0].correct)}: pass them as sampled"
        )
    summary: Summary = {}
    if greedy:
        summary["greedy_accuracy"] = _accuracy(greedy)
    if sampled:
        counts = [(k, sum(c is True for c in o.correct)) for o in _counted(sampled)]
        for name, tries in [(f"avg@{k}", 1), *((f"pass@{t}", t) for t in _tries(k))]:
            summary[name] = (
                _accuracy(sampled)
                if k == 1
                else bootstrap([pass_at_k(n, c, tries) for n, c in counts], seed=seed, draws=draws)
            )
    if outcomes := sampled or greedy:
        rewards = [math.fsum(o.rewards) / len(o.rewards) for o in _counted(outcomes)]
        summary["mean_reward"] = bootstrap(rewards, seed=seed, draws=draws)
        summary["truncated_ratio"] = _truncated(outcomes, seed, draws)
    everything = {o.row: o for o in (*greedy, *sampled)}
    withheld = {o.row for o in (*greedy, *sampled) if o.withheld}
    unverifiable = {o.row for o in (*greedy, *sampled) if not o.verifiable}
    summary["unverifiable_rows"] = _count(len(unverifiable), len(everything))
    summary["withheld_rows"] = _count(len(withheld), len(everything))
    return summary


def _resampled_means(x: NDArray[np.float64], seed: int, draws: int) -> NDArray[np.float64]:
    import numpy as np

    rng = np.random.Generator(np.random.PCG64(seed))
    means = np.empty(draws)
    rows = max(1, _CHUNK // len(x))
    for start in range(0, draws, rows):
        stop = min(start + rows, draws)
        # A row of the generator's stream is a resample, so the result does not depend on the size of a chunk.
        means[start:stop] = x[rng.integers(0, len(x), size=(stop - start, len(x)))].mean(axis=1)
    return means


def _replies(outcomes: Sequence[PromptOutcome], what: str) -> int:
    """The number of replies per prompt; it must be the same for all, or avg@k would have no k."""
    sizes = {len(o.correct) for o in outcomes}
    if len(sizes) > 1:
        odd = next(o for o in outcomes if len(o.correct) != len(outcomes[0].correct))
        raise ValueError(
            f"{what} evaluation: prompt {odd.row} has {len(odd.correct)} replies and prompt {outcomes[0].row} has "
            f"{len(outcomes[0].correct)}; draw the same number for every prompt"
        )
    rows = {o.row for o in outcomes}
    if len(rows) != len(outcomes):
        raise ValueError(f"{what} evaluation: {len(outcomes)} outcomes for {len(rows)} prompts; give one per prompt")
    return sizes.pop() if sizes else 0


def _counted(outcomes: Sequence[PromptOutcome]) -> list[PromptOutcome]:
    return [o for o in outcomes if o.verifiable and not o.withheld]


def _accuracy(outcomes: Sequence[PromptOutcome]) -> Interval:
    counted = _counted(outcomes)
    return wilson(sum(o.correct[0] is True for o in counted), len(counted))


def _truncated(outcomes: Sequence[PromptOutcome], seed: int, draws: int) -> Interval:
    shares = [sum(s is Status.TRUNCATED for s in o.statuses) / len(o.statuses) for o in outcomes if not o.withheld]
    if len(outcomes[0].statuses) == 1:
        return wilson(round(sum(shares)), len(shares))
    return bootstrap(shares, seed=seed, draws=draws)


def _tries(k: int) -> list[int]:
    """1, 2, 4, ... and k itself."""
    return sorted({2**i for i in range(k.bit_length()) if 2**i <= k} | {k})


def _count(value: int, n: int) -> Interval:
    return Interval(value=float(value), low=float(value), high=float(value), n=n)


def _nothing() -> Interval:
    return Interval(value=None, low=None, high=None, n=0)
