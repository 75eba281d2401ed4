r"""The grading pool: order, limits, kills, and that nothing stays behind. math-verify runs for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relax_core.rewards.equality import equal
from relax_core.rewards.grading import Grade, GradeStatus
from relax_core.rewards.pool import Grader

GOLDEN = Path(__file__).parents[1] / "parity" / "golden" / "answers.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text().splitlines()]

SLOW = "\\sum_{n=1}^{10^{9}} \\sin n"  # no shape that is refused, and far beyond any limit
HANGS = ("\\sin x", f"\\boxed{{{SLOW}}}")
ASKED = ("\\sin x", "\\boxed{\\sin(x)}")  # correct, and only math-verify can tell


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(workers=2, limit_s=2.5) as pool:
        yield pool


def family(grader: Grader) -> list[psutil.Process]:
    """The server of a grader and everything below it."""
    assert grader._server is not None
    server = psutil.Process(grader._server.pid)
    return [server, *server.children(recursive=True)]


def the_worker(grader: Grader) -> psutil.Process:
    """A worker: a child of the fork server, which is a child of the server."""
    assert grader._server is not None
    server = grader._server.pid
    return next(process for process in family(grader)[1:] if process.ppid() != server)


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def statuses(grades: list[Grade]) -> list[str]:
    return [grade.status.value for grade in grades]


def test_golden_rows(grader: Grader) -> None:
    rows = [row for row in ROWS if row["kind"] == "grade"]
    grades = grader.grade_many([(row["gold"], row["response"]) for row in rows])
    assert [grade.score for grade in grades] == [row["score"] for row in rows]
    pairs = [row for row in ROWS if row["kind"] == "equal"]
    assert grader.equal_many([(row["a"], row["b"]) for row in pairs]) == [row["equal"] for row in pairs]


def test_every_status_in_its_place(grader: Grader) -> None:
    pairs = [
        ("4", "\\boxed{4}"),
        ASKED,
        ("x<5", "\\boxed{5>x}"),
        ("\\log_2 8", "\\boxed{3}"),
        ("\\log_2 8", "\\boxed{4}"),
        ("4", "nothing"),
        ("\\sin x", "\\boxed{\\frac{}{}}"),
        HANGS,
        ("\\frac{\\sin}{}", "\\boxed{5}"),
        ("\\sin x", "\\boxed{\\cos x}"),
        ("\\sin x", "\\boxed{1/0}"),
        ASKED,
    ]
    expected = "correct correct correct correct incorrect no_answer error timeout unverifiable incorrect error correct"
    assert statuses(grader.grade_many(pairs)) == expected.split()
    assert grader.grade_many([]) == []


def test_power_tower() -> None:
    """S-08: within 5 s 1, 0, 1; the middle ones named, and no process was needed for them."""
    replies = ["\\boxed{4}", "\\boxed{\\frac{9^{9^{9^{9}}}-9}{8}}", "\\boxed{4}", "\\boxed{99999999!}"]
    with Grader() as grader:
        started = time.perf_counter()
        grades = grader.grade_many([("4", reply) for reply in replies])
        assert time.perf_counter() - started < 1
        assert grader._server is None
    assert [grade.score for grade in grades] == [1, 0, 1, 0]
    assert statuses(grades) == ["correct", "timeout", "correct", "timeout"]


def test_an_answer_that_hangs_costs_its_limit_and_its_worker_is_replaced(grader: Grader) -> None:
    grader.grade_many([ASKED])
    before = {process.pid for process in family(grader)}
    started = time.perf_counter()
    grades = grader.grade_many([HANGS, ASKED, ("\\sin x", f"\\boxed{{2{SLOW}}}"), ASKED])
    took = time.perf_counter() - started
    assert statuses(grades) == ["timeout", "correct", "timeout", "correct"]
    assert 2.5 < took < 15
    started = time.perf_counter()
    assert statuses(grader.grade_many([ASKED])) == ["correct"]
    assert time.perf_counter() - started < 2
    after = {process.pid for process in family(grader)}
    assert len(after) == len(before)
    assert after != before


def test_the_memory_of_a_worker_is_limited() -> None:
    with Grader(workers=1, memory_mb=700) as grader:
        assert statuses(grader.grade_many([ASKED])) == ["correct"]
        assert the_worker(grader).rlimit(psutil.RLIMIT_AS) == (700 << 20, 700 << 20)


def test_a_killed_worker_and_a_killed_server_are_replaced() -> None:
    with Grader(workers=1) as grader:
        assert statuses(grader.grade_many([ASKED])) == ["correct"]
        worker = the_worker(grader)
        worker.kill()
        worker.wait(5)
        server = grader._server
        assert statuses(grader.grade_many([ASKED])) == ["correct"]
        assert grader._server is server  # one more worker, not the whole pool again
        old = family(grader)
        os.kill(grader._server.pid, signal.SIGKILL)
        assert statuses(grader.grade_many([ASKED])) == ["correct"]
        psutil.wait_procs(old, timeout=5)
        assert running(old) == []


def test_nothing_is_left_after_close() -> None:
    with Grader() as grader:
        grader.grade_many([ASKED])
        processes = family(grader)
        assert len(processes) >= 4
    assert running(processes) == []
    grader.close()
    assert statuses(grader.grade_many([ASKED])) == ["correct"]  # it can be used again
    grader.close()


def test_nothing_is_left_when_the_caller_is_killed() -> None:
    code = (
        "import time\nfrom relax_core.rewards.pool import Grader\ngrader = Grader(limit_s=1)\n"
        f"grader.grade_many([{ASKED!r}])\nprint(grader._server.pid, flush=True)\n"
        f"grader.grade_many([{HANGS!r}])\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        server = psutil.Process(int(caller.stdout.readline()))
        processes = [server, *server.children(recursive=True)]
        caller.kill()
    psutil.wait_procs(processes, timeout=15)
    assert running(processes) == []


def test_from_threads(grader: Grader) -> None:
    """Signal-based time-outs do not fire off the main thread; ours do not need them."""
    found: dict[int, list[str]] = {}

    def work(number: int) -> None:
        hangs = ("\\sin x", f"\\boxed{{{number + 2}{SLOW}}}")
        found[number] = statuses(grader.grade_many([ASKED, hangs, (str(number), f"\\boxed{{{number}}}")]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: ["correct", "timeout", "correct"] for number in range(2)}


@pytest.mark.slow
def test_inside_a_ray_actor(tmp_path: Path) -> None:
    """In a process of its own, so that this test leaves no Ray behind in pytest's."""
    code = f"""
import ray
from relax_core.rewards.pool import Grader
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
@ray.remote
class Actor:
    def grade(self):
        with Grader(workers=1, limit_s=3) as grader:
            return [grade.status.value for grade in grader.grade_many([{ASKED!r}, {HANGS!r}, ('4', '\\\\boxed{{4}}')])]
print(ray.get(Actor.remote().grade.remote()))
ray.shutdown()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.strip().endswith("['correct', 'timeout', 'correct']"), done.stderr


def test_equal_asks_math_verify_by_itself() -> None:
    assert equal("\\log_2 8", "3") is True
    assert equal("4", "9^{9^{9^9}}") is False


def test_equality_is_symmetric_where_math_verify_is_not(grader: Grader) -> None:
    pairs = [("x>3", "(3,\\infty)"), ("(3,\\infty)", "x>3"), ("\\log_2 8", "4"), ("4", "\\log_2 8")]
    assert grader.equal_many(pairs) == [True, True, False, False]


def test_many_integers_take_no_process_and_no_time() -> None:
    with Grader() as grader:
        pairs = [
            (str(number), f"Some words. So the answer is \\boxed{{{number + number % 2}}}.") for number in range(128)
        ]
        times = []
        for _ in range(5):
            started = time.perf_counter()
            grades = grader.grade_many(pairs)
            times.append(time.perf_counter() - started)
        assert grader._server is None
    assert [grade.score for grade in grades] == [float(number % 2 == 0) for number in range(128)]
    assert min(times) < 0.002


_HOSTILE = st.one_of(
    st.text(max_size=300),
    st.lists(
        st.sampled_from(
            [*"0123456789xyn+-*/^_=<>!(){}[],.&|%$ \n\x00", "\\frac", "\\sqrt", "\\int", "\\sum_{n=1}^{", "\\sin", "\\log", "\\text{", "\\{",
             "\\}", "\\begin{matrix}", "\\end{matrix}", "^{9", "9999", "!", "\\binom", "\\lim", "\\pm", "\\cup", "\\infty", "ﷺ", "\ud800"]
        ),
        max_size=60,
    ).map("".join),
    st.builds(lambda base, height: "^{".join([base] * height) + "}" * (height - 1), st.sampled_from("29xn"), st.integers(1, 300)),
    st.builds(lambda number, marks: f"\\sin({number}{'!' * marks})", st.integers(0, 10**12), st.integers(1, 4)),
    st.builds(lambda depth: "{" * depth + "1" + "}" * depth, st.integers(0, 100_000)),
    st.builds(lambda sign, count: sign * count, st.sampled_from(["(", "\\frac", "a", "-", "\\boxed{", "1,"]), st.integers(0, 200_000)),
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(_HOSTILE, min_size=10, max_size=10))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_hostile_replies(grader: Grader, contents: list[str]) -> None:
    pairs = [(("\\sin x", "4", "x<5")[at % 3], f"\\boxed{{{content}}}") for at, content in enumerate(contents)]
    pairs.append(ASKED)
    grades = grader.grade_many(pairs)
    assert len(grades) == len(pairs)
    assert grades[-1].status is GradeStatus.CORRECT
    assert len(family(grader)) <= 6  # server, tracker, fork server, two workers, and one that is being replaced
