"""The order of prompts: pure, in epochs, without repeats in a batch, and the same after a stop."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relax_core.data import order
from relax_core.data.order import prompts_of_step
from relax_core.errors import DataError


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    n_rows = draw(st.integers(1, 40))
    return n_rows, draw(st.integers(1, n_rows))


@settings(deadline=None)
@given(sizes(), st.integers(0, 2**63), st.integers(1, 25))
@example((6, 4), 0, 12)  # fewer rows than two batches: an epoch's end depends on its start
@example((7, 4), 0, 14)  # just enough
def test_batches_hold_no_row_twice_and_epochs_each_row_once(size: tuple[int, int], seed: int, steps: int) -> None:
    n_rows, batch = size
    drawn = [prompts_of_step(n_rows, batch, step, seed) for step in range(1, steps + 1)]
    assert all(len(set(rows)) == batch == len(rows) for rows in drawn)
    stream = [row for rows in drawn for row in rows]
    assert set(stream) <= set(range(n_rows))
    for start in range(0, len(stream) - n_rows + 1, n_rows):
        assert sorted(stream[start : start + n_rows]) == list(range(n_rows))


@settings(deadline=None)
@given(sizes(), st.integers(0, 2**63))
def test_a_step_needs_no_step_before_it(size: tuple[int, int], seed: int) -> None:
    n_rows, batch = size
    forward = [prompts_of_step(n_rows, batch, step, seed) for step in range(1, 13)]
    order._shuffled.cache_clear()
    backward = [prompts_of_step(n_rows, batch, step, seed) for step in range(12, 0, -1)]
    assert backward[::-1] == forward


@pytest.mark.parametrize("stop", [2, 3, 6])
def test_s26_a_stop_anywhere_changes_nothing(stop: int) -> None:
    unbroken = [prompts_of_step(6, 2, step, 11) for step in range(1, 7)]
    order._shuffled.cache_clear()
    resumed = [prompts_of_step(6, 2, step, 11) for step in range(stop + 1, 7)]
    assert resumed == unbroken[stop:]
    assert Counter(row for rows in unbroken for row in rows) == dict.fromkeys(range(6), 2)  # 12 rows: 2 epochs


def test_the_order_is_that_of_every_machine_and_version() -> None:
    # Written down from the first version; another order would change every run.
    assert [prompts_of_step(6, 2, step, 0) for step in range(1, 7)] == GOLDEN


def test_epochs_and_seeds_differ() -> None:
    epochs = [tuple(prompts_of_step(50, 50, step, 0)) for step in range(1, 6)]
    assert len(set(epochs)) == 5
    assert prompts_of_step(50, 50, 1, 0) != prompts_of_step(50, 50, 1, 1)


def test_every_row_comes_first_about_equally_often() -> None:
    firsts = Counter(prompts_of_step(8, 1, 1, seed)[0] for seed in range(4000))
    assert all(400 < firsts[row] < 600 for row in range(8))  # 500 expected, standard deviation 21


def test_a_large_batch_is_refused() -> None:
    with pytest.raises(DataError, match="rollout_batch_size 16 with 3 training prompts"):
        prompts_of_step(3, 16, 1, 0)
    with pytest.raises(DataError, match="rollout_batch_size 0"):
        prompts_of_step(3, 0, 1, 0)


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="steps count from 1"):
        prompts_of_step(3, 1, 0, 0)


GOLDEN = [[2, 3], [1, 4], [5, 0], [2, 5], [4, 3], [0, 1]]
