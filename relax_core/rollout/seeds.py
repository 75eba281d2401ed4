"""Randomness of a rollout: a seed per sample, and a uniform number per (seed, position) that depends on nothing else.

No generator object is kept and no global state is touched, so the draw of a token is the same in any batch, in any
order, on any worker, and again after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from relax_core import digests

# SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014): the increment is the odd
# number next to 2^64 / golden ratio, the two multipliers are those of Stafford's mixer 13.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def sample_seed(run_seed: int, step: int, row: str, index: int, attempt: int = 0) -> int:
    """The seed of one sample, 63 bits, from what the sample is and never from where or when it is drawn.

    row: id of the prompt's row (two rows with the same text keep two seeds); index: sample within the group; attempt:
    how often the group was drawn before in this step.
    """
    name = ["sample", int(run_seed), int(step), row, int(index), int(attempt)]
    return int(digests.of_value(name)[:16], 16) >> 1


def uniforms(seeds: Sequence[int] | npt.NDArray[np.uint64], position: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in the open interval (0, 1), one for each seed: number `position` of the seed's own sequence.

    The sequence is SplitMix64 read by its counter: mix(mix(seed) + (position + 1) * increment). The seed is mixed
    first, so that seeds which lie a multiple of the increment apart do not share a shifted sequence. The upper 52 bits
    are used, plus a half: every value is exact in float64, symmetric about 1/2, and neither 0 nor 1.

    seeds: [B], below 2^64; position: from 0. Returns float64 [B].
    """
    counter = np.uint64(((position + 1) * int(_INCREMENT)) & 0xFFFFFFFFFFFFFFFF)
    return _fractions(_mix(_mix(np.atleast_1d(np.asarray(seeds, dtype=np.uint64))) + counter))


def _fractions(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Random bits as numbers in (0, 1)."""
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The output function of SplitMix64, modulo 2^64."""
    z = (z ^ (z >> np.uint64(30))) * _MULTIPLIER_1
    z = (z ^ (z >> np.uint64(27))) * _MULTIPLIER_2
    return z ^ (z >> np.uint64(31))
