from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from relax_core.rollout.seeds import _fractions, _mix, sample_seed, uniforms


def test_a_sample_seed_is_what_it_was_when_runs_were_made_with_it() -> None:
    assert sample_seed(7, 3, "row-a", 0) == 789523441012970637
    assert 0 <= sample_seed(7, 3, "row-a", 0) < 2**63


def test_every_part_of_a_sample_changes_its_seed() -> None:
    names = [
        (7, 3, "a", 0, 0),
        (8, 3, "a", 0, 0),
        (7, 4, "a", 0, 0),
        (7, 3, "b", 0, 0),
        (7, 3, "a", 1, 0),
        (7, 3, "a", 0, 1),
    ]
    assert len({sample_seed(*name) for name in names}) == len(names)


def test_parts_do_not_run_together() -> None:
    assert sample_seed(1, 11, "a", 0) != sample_seed(11, 1, "a", 0)
    assert sample_seed(0, 0, "a,1", 0) != sample_seed(0, 0, "a", 1)


def test_s22_seeds_are_of_the_sample_and_not_of_the_worker() -> None:
    rows = ["row-1", "row-2"]  # the same prompt text twice in the data: two rows
    one_worker = {(row, i): sample_seed(7, 3, row, i) for row in rows for i in range(4)}
    two_workers = {
        (row, i): sample_seed(7, 3, row, i) for worker in range(2) for i in range(4) for row in rows if i % 2 == worker
    }
    assert one_worker == two_workers
    assert len(set(one_worker.values())) == 8


def test_the_mixer_is_that_of_splitmix64() -> None:
    # The first outputs of SplitMix64 with seed 1234567, as published with the reference implementation.
    increments = np.array([(1234567 + k * 0x9E3779B97F4A7C15) % 2**64 for k in (1, 2, 3)], dtype=np.uint64)
    assert _mix(increments).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_uniform_depends_on_seed_and_position_alone() -> None:
    seeds = [sample_seed(0, 0, str(i), 0) for i in range(50)]
    together = uniforms(seeds, 5)
    assert together.dtype == np.float64
    assert [uniforms([seed], 5)[0] for seed in seeds] == together.tolist()
    assert uniforms(seeds[::-1], 5).tolist() == together[::-1].tolist()
    assert not set(uniforms(seeds, 6).tolist()) & set(together.tolist())


def test_uniforms_are_inside_of_the_open_interval() -> None:
    lowest, highest = _fractions(np.array([0, 2**64 - 1], dtype=np.uint64)).tolist()
    assert lowest == 2.0**-53
    assert highest == 1 - 2.0**-53 < 1
    extreme = uniforms([0, 1, 2**63 - 1, 2**64 - 1], 2**40)
    assert ((extreme > 0) & (extreme < 1)).all()


@pytest.mark.parametrize("seeds", [range(20000), [sample_seed(1, 2, str(i // 8), i % 8) for i in range(20000)]])
def test_uniforms_are_uniform_and_independent(seeds: list[int]) -> None:
    draws = np.stack([uniforms(seeds, position) for position in range(4)])
    for of_position in draws:
        assert stats.kstest(of_position, "uniform").pvalue > 1e-3
    # Neighbouring seeds and neighbouring positions: correlations of 20000 pairs have a spread of 0.007.
    assert abs(np.corrcoef(draws)[0, 1:]).max() < 0.03
    assert abs(np.corrcoef(draws[0, :-1], draws[0, 1:])[0, 1]) < 0.03


def test_seeds_an_increment_apart_do_not_share_a_sequence() -> None:
    seed = 12345
    shifted = (seed + 0x9E3779B97F4A7C15) % 2**64
    assert uniforms([seed], 1)[0] != uniforms([shifted], 0)[0]
