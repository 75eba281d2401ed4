"""The page of a run: what it says first, that it is whole, self-contained and harmless."""

from __future__ import annotations

import dataclasses
import math
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from relax_core.evaluation.statistics import Transitions, paired_gain, wilson
from relax_core.report.run_report import (
    Conversation,
    DatasetFacts,
    Reply,
    RunReport,
    Setting,
    diverged,
    render,
    varied,
    verdict,
)

START = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
EVIL = "</pre><script>alert(1)</script>"


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAX_ARTIFACTS", str(tmp_path))


def talk(row: str, before: bool | None, after: bool | None, text: str = "2+2=4") -> Conversation:
    def reply(correct: bool | None) -> Reply:
        return Reply(text=text, extracted="4", reward=float(correct is True), correct=correct, status="completed")

    return Conversation(row=row, prompt=f"prompt {row}", answer="4", before=reply(before), after=reply(after))


def report(**changes: object) -> RunReport:
    before = {f"r{i}": float(i < 100) for i in range(200)}
    after = {f"r{i}": float(i < 172) for i in range(200)}
    whole = RunReport(
        run_id="a" * 64,
        name="rloo:tiny",
        algorithm="rloo",
        status="finished",
        seed=3,
        started=START,
        finished=START + timedelta(seconds=97),
        evaluations=[(0, {"greedy_accuracy": wilson(100, 200)}), (60, {"greedy_accuracy": wilson(172, 200)})],
        gain=paired_gain(before, after, seed=0),
        transitions=Transitions(kept=100, fixed=72, broken=0, missed=28),
        metrics={"rollout/raw_reward": [(1, 0.4), (60, 0.9)], "train/grad_norm": [(1, 0.5), (60, 0.25)]},
        timings={"rollout": [1.0, 1.0, 2.0], "update": [4.0], "unused": []},
        conversations=[talk("one", False, True), talk("two", True, True)],
        dataset=DatasetFacts(
            name="arithmetic",
            digest="d" * 64,
            source="built-in generator",
            source_digest="e" * 64,
            rows={"train": 4000, "evaluate": 200},
            rules=[("duplicate prompt", 321)],
        ),
        base_model="tiny",
        base_model_digest="b" * 64,
        policy_digest="f" * 64,
        model_folder="artifacts/runs/aaa/model",
        settings=[Setting(key="optimizer.lr", value="0.001", origin="recipe tiny")],
        code_version="c0de",
        packages={"torch": "2.13.0"},
        again="pyflyte run workflows/rloo.py rloo",
        talk="relax sample aaa '2+2'",
        open_mlflow="mlflow server",
    )
    return dataclasses.replace(whole, **changes)


class Checker(HTMLParser):
    """Collects text, and refuses markup that is not well nested, that runs something or that fetches something."""

    VOID = frozenset({"meta", "br", "wbr", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "img", "iframe", "link", "object", "embed", "form", "base"}, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in {"src", "srcset", "action"}, name
            if name.endswith("href"):
                assert (value or "").startswith("#"), value
            if name == "id":
                self.ids.append(value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(html: str) -> str:
    """The text of a page, checked on the way."""
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert not checker.open
    assert len(checker.ids) == len(set(checker.ids))
    assert not re.search(r"@import|url\((?!#)", html)
    return re.sub(r"\s+", " ", " ".join(checker.words))  # no-break spaces too


def test_the_verdict_stands_first_and_everything_is_there() -> None:
    text = read(render(report()))
    assert text.index("Greedy accuracy rose from 50.0 % to 86.0 %") < 200
    for part in (
        *("50.0 %", "43.1 to 56.9 %", "86.0 %", "+36.0", "200", "60 updates in 1 min 37 s"),
        *("72 wrong, now right", "0 right, now wrong", "prompt one", "reward 1.00", "train/ grad_ norm"),
        *("rollout", "50 %", "4.0 s", "built-in generator", "4,000 train", "duplicate prompt", "321"),
        *("pyflyte run workflows/rloo.py rloo", "relax sample aaa '2+2'", "mlflow server", "artifacts/runs/aaa/model"),
        *("optimizer.lr", "recipe tiny", "torch", "2.13.0", "c0de", *(sign * 64 for sign in "abdef")),
    ):
        assert part in text, part


def test_equal_reports_give_equal_bytes() -> None:
    assert render(report()) == render(report())


def test_light_dark_and_narrow_screens() -> None:
    html = render(report())
    assert "@media(prefers-color-scheme:dark)" in html
    assert "@media(max-width:40rem)" in html
    assert 'name="viewport"' in html


def test_a_change_within_chance_is_not_called_a_rise() -> None:
    close = [(0, {"greedy_accuracy": wilson(100, 200)}), (60, {"greedy_accuracy": wilson(104, 200)})]
    gain = {"value": 0.02, "low": -0.03, "high": 0.07, "n": 200}
    words = "Greedy accuracy went from 50.0 % to 52.0 %: this cannot be told apart from no change"
    assert verdict(report(evaluations=close, gain=gain)) == words
    assert verdict(report(evaluations=close, gain=None)) == words
    fell = {"value": -0.1, "low": -0.15, "high": -0.05, "n": 200}
    assert verdict(report(evaluations=close[::-1], gain=fell)) == "Greedy accuracy fell from 52.0 % to 50.0 %"


def test_without_evaluations_or_with_one_the_page_still_reads() -> None:
    nothing = {"greedy_accuracy": wilson(0, 0)}
    for evaluations in ([], [(0, nothing)], [(0, nothing), (60, nothing)]):
        bare = report(evaluations=evaluations, gain=None, transitions=None, conversations=[], metrics={}, timings={})
        assert "Nothing to compare" in read(render(bare))
    one = report(evaluations=[(0, {"greedy_accuracy": wilson(100, 200)})], gain=None, transitions=None)
    assert "Greedy accuracy is 50.0 %; nothing was evaluated after it" in read(render(one))


def test_a_diverged_run_is_shown_as_such() -> None:
    metrics = {"train/loss": [(1, 0.1), (2, math.nan)], "train/kl": [(1, math.inf)], "train/lr": [(1, 0.1)]}
    bad = report(metrics=metrics, status="failed")
    assert diverged(bad) == {"train/loss": 2, "train/kl": 1}
    text = read(render(bad))
    assert "to 86.0 %; the run diverged" in text
    assert "Not finite: train/loss from step 2, train/kl from step 1" in text
    assert text.count("diverged") >= 3


def test_no_number_that_is_not_finite_breaks_the_page() -> None:
    odd = {"value": math.nan, "low": math.nan, "high": math.nan, "n": 3}
    evaluations = [(0, {"greedy_accuracy": odd, "mean_reward": odd}), (1, {"greedy_accuracy": odd})]
    text = read(render(report(evaluations=evaluations, gain=odd, timings={"x": [math.nan]})))
    assert "nan" not in text.lower()


def test_prompts_and_replies_are_text() -> None:
    evil = Conversation(
        row=EVIL,
        prompt=EVIL,
        answer=EVIL,
        before=Reply(text=EVIL, extracted=EVIL, reward=0.0, correct=None, status=EVIL),
    )
    text = read(render(report(conversations=[evil], name=EVIL, again=EVIL, model_folder=EVIL)))
    assert text.count("alert(1)") >= 8
    assert "not recorded" in text
    assert "unverifiable" in text


def test_the_first_conversations_show_failures_too() -> None:
    talks = [
        *(talk(f"right{i}", True, True) for i in range(9)),
        talk("broken", True, False),
        talk("fixed", False, True),
    ]
    mixed = varied(talks)
    assert [t.row for t in mixed[:3]] == ["fixed", "broken", "right0"]
    assert sorted(t.row for t in mixed) == sorted(t.row for t in talks)


def test_prompts_that_do_not_count_are_said() -> None:
    count = {"value": 3.0, "low": 3.0, "high": 3.0, "n": 200}
    last = {"greedy_accuracy": wilson(172, 197), "unverifiable_rows": count, "withheld_rows": {**count, "value": 0.0}}
    text = read(render(report(evaluations=[(0, {"greedy_accuracy": wilson(100, 197)}), (60, last)])))
    assert "3 of 200 prompts have an answer that cannot be verified" in text
    assert "aborted" not in text
