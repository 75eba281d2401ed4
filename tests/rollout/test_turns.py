from __future__ import annotations

import threading
import time

from relax_core.rollout.turns import Turns


def never() -> bool:
    return False


def run(target: object) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_a_visit_goes_before_the_next_step_of_a_loop_that_never_rests() -> None:
    turns, done = Turns(), threading.Event()
    inside = False
    overlaps, steps = 0, 0

    def loop() -> None:
        nonlocal inside, steps
        while not done.is_set():
            with turns.step(never) as taken:
                assert taken
                inside = True
                steps += 1
                time.sleep(0.0005)
                inside = False

    thread = run(loop)
    waits = []
    for _ in range(20):
        before = steps
        with turns.visit():
            waits.append(steps - before)
            overlaps += inside
            time.sleep(0.0005)
            overlaps += inside
    done.set()
    thread.join(timeout=10)
    assert overlaps == 0
    # The step that ran when the visit was asked for, and one whose beginning was counted late.
    assert max(waits) <= 2


def test_hold_stops_steps_until_release() -> None:
    turns, taken = Turns(), threading.Event()

    def one() -> None:
        with turns.step(never):
            taken.set()

    with turns.visit():
        turns.hold()
    thread = run(one)
    assert not taken.wait(0.03)
    turns.release()
    assert taken.wait(10)
    thread.join(timeout=10)


def test_a_waiting_step_that_is_no_longer_wanted_does_not_take_its_turn() -> None:
    turns, unwanted, answers = Turns(), threading.Event(), []

    def one() -> None:
        with turns.step(unwanted.is_set) as taken:
            answers.append(taken)

    with turns.visit():
        turns.hold()
    thread = run(one)
    with turns.noticed():
        unwanted.set()
    thread.join(timeout=10)
    assert answers == [False]


def test_a_step_that_fails_gives_its_turn_back() -> None:
    turns = Turns()
    try:
        with turns.step(never):
            raise ValueError
    except ValueError:
        pass
    with turns.step(never) as taken:
        assert taken
