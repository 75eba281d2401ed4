"""The report of one run: did the policy get better, how sure is that, and from what did it come?

`RunReport` holds all that the page says and nothing that must be looked up, so `render` is a pure function and the
report of a run can be made again at any time from its ledger.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest

from relax_core.evaluation.statistics import Interval, Summary, Transitions
from relax_core.report.charts import Change, Point, Series, before_after, learning_curve, small, smoothing_window
from relax_core.report.page import (
    Html,
    Node,
    breakable,
    command,
    details,
    facts,
    h,
    join,
    number,
    page,
    percent,
    seconds,
    section,
    short,
    table,
)

HEADLINE = "greedy_accuracy"
REWARD = "rollout/raw_reward"
_ACCURACIES = ("greedy_accuracy", "avg@", "pass@")
_SHARES = (*_ACCURACIES, "truncated_ratio")
_COUNTS = {
    "unverifiable_rows": "have an answer that cannot be verified and count in no accuracy",
    "withheld_rows": "have a reply that was aborted or failed and count nowhere",
}
_MAIN = (  # metrics that are seen without unfolding anything
    *(REWARD, "rollout/response_len/mean", "rollout/truncated_ratio", "rollout/rloo/zero_adv_group_frac"),
    *("rollout/zero_std/count", "train/grad_norm", "train/train_rollout_logprob_abs_diff"),
)
_SHOWN = 4  # conversations; the others unfold


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply of a policy. extracted: the answer found in it, None if there is none. status: how it ended."""

    text: str
    extracted: str | None
    reward: float
    correct: bool | None
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One prompt of the evaluation set with the reply of the base model and of the trained policy."""

    row: str
    prompt: str
    answer: str
    before: Reply | None = None
    after: Reply | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """Where the data came from. rows: per split. rules: each cleaning rule with the rows that it changed or took."""

    name: str
    digest: str
    source: str
    source_digest: str
    rows: Mapping[str, int]
    rules: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of the resolved configuration and where its value came from (recipe, --set, environment, default ...)."""

    key: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Everything that the page says.

    status: finished, interrupted or failed. evaluations: (step, summary), the first at step 0 is the base model.
    gain, transitions: greedy accuracy of the last evaluation against the first, prompt by prompt. metrics: name ->
    (step, value). timings: stage -> seconds of each time it ran. open_mlflow, talk, again: commands to copy; None
    leaves the line out.
    """

    run_id: str
    name: str
    algorithm: str
    status: str
    seed: int
    started: datetime
    finished: datetime
    evaluations: Sequence[tuple[int, Summary]]
    gain: Interval | None
    transitions: Transitions | None
    metrics: Mapping[str, Series]
    timings: Mapping[str, Sequence[float]]
    conversations: Sequence[Conversation]
    dataset: DatasetFacts
    base_model: str
    base_model_digest: str
    policy_digest: str
    model_folder: str
    settings: Sequence[Setting]
    code_version: str
    packages: Mapping[str, str]
    again: str
    talk: str | None = None
    open_mlflow: str | None = None


def verdict(report: RunReport) -> str:
    """One sentence: held-out greedy accuracy before and after, and whether the change can be told from chance."""
    before, after = _ends(report, HEADLINE)
    if before is None or after is None:
        return "Nothing to compare: the run has no evaluation with a verifiable answer"
    if before is after:
        return f"Greedy accuracy is {percent(before.value)}; nothing was evaluated after it"
    sides = f"from {percent(before.value)} to {percent(after.value)}"
    ending = "; the run diverged" if diverged(report) else ""
    low, high = _change_bounds(report, before, after)
    if low > 0:
        return f"Greedy accuracy rose {sides}{ending}"
    if high < 0:
        return f"Greedy accuracy fell {sides}{ending}"
    return f"Greedy accuracy went {sides}: this cannot be told apart from no change{ending}"


def diverged(report: RunReport) -> dict[str, int]:
    """Metrics that were not finite somewhere, with the first step at which."""
    bad: dict[str, int] = {}
    for name, series in report.metrics.items():
        first = next((step for step, value in series if not math.isfinite(value)), None)
        if first is not None:
            bad[name] = first
    return bad


def render(report: RunReport) -> str:
    """The page as one HTML document. Equal reports give equal bytes."""
    return page(
        verdict(report),
        _hero(report),
        _learning(report),
        _conversations(report),
        _metrics(report),
        _timings(report),
        _what_ran(report),
        _lineage(report),
        kicker=f"{report.name} · seed {report.seed} · run {report.run_id[:12]}",
        lead=_lead(report),
        foot=f"Run {report.run_id} · code {report.code_version} · this page needs no network and runs no script",
    )


def _lead(report: RunReport) -> Html:
    steps = max((series[-1][0] for series in report.metrics.values() if series), default=0)
    took = (report.finished - report.started).total_seconds()
    colour = {"finished": "good", "failed": "bad"}.get(report.status, "warn")
    bad = diverged(report)
    return join(
        [
            h(
                "p",
                h("span", report.status, cls=f"badge {colour}"),
                *([" ", h("span", "diverged", cls="badge bad")] if bad else []),
                f" {report.algorithm}, {steps} updates in {seconds(took)}, "
                f"started {report.started:%Y-%m-%d %H:%M} {report.started.tzname() or ''}".rstrip(),
                cls="lead",
            ),
            h("p", "Not finite: ", ", ".join(f"{name} from step {step}" for name, step in bad.items()), cls="note")
            if bad
            else None,
        ]
    )


def _hero(report: RunReport) -> Html:
    before, after = _ends(report, HEADLINE)
    tiles: list[Html] = []
    if before is not None and after is not None:
        tiles = [
            _tile(percent(before.value), "before training", _range(before), "before"),
            _tile(percent(after.value), f"after step {after.step}", _range(after), "after"),
        ]
        if report.gain is not None and report.gain["value"] is not None:
            gain = report.gain
            bounds = f"{_points(gain['low'])} to {_points(gain['high'])}"
            tiles.append(_tile(_points(gain["value"]), "points, prompt by prompt", bounds, "gain"))
        tiles.append(_tile(str(_prompts(report)), "held-out prompts, never trained on", None, "prompts"))
    changes = _changes(report)
    return h(
        "div",
        h("div", *tiles, cls="tiles") if tiles else None,
        _legend(("before", "base model"), ("after", "trained policy")) if changes else None,
        before_after(changes) if changes else h("p", "No evaluation was recorded.", cls="note"),
        _prompt_by_prompt(report.transitions) if report.transitions is not None else None,
        cls="hero",
    )


def _prompt_by_prompt(moved: Transitions) -> Html | None:
    parts = [
        ("after", moved.fixed, "wrong, now right"),
        ("before", moved.kept, "right before and after"),
        ("bad", moved.broken, "right, now wrong"),
        ("none", moved.missed, "wrong before and after"),
    ]
    total = sum(count for _, count, _ in parts)
    if total == 0:
        return None
    bar = [h("span", cls=cls, style=f"width:{100 * count / total:.2f}%") for cls, count, _ in parts if count]
    return h(
        "div",
        h("h3", "Prompt by prompt"),
        h("div", *bar, cls="bar"),
        _legend(*((cls, f"{count} {what}") for cls, count, what in parts)),
    )


def _learning(report: RunReport) -> Html:
    reward = report.metrics.get(REWARD, ())
    accuracy = _curve(report, HEADLINE)
    names = [name for name in _summary_names(report) if name not in (*_COUNTS, "pass@1")]  # pass@1 is avg@k
    rows = [[step, *(_cell(name, summary.get(name)) for name in names)] for step, summary in report.evaluations]
    return section(
        "Learning curve",
        _legend(("train", "mean reward of the training samples"), ("after", "held-out greedy accuracy, 95 % interval")),
        learning_curve(reward, accuracy),
        h("h3", "Every evaluation") if rows else None,
        table(["step", *names], rows, numeric=len(names)) if rows else None,
        *_left_out(report),
        note=f"The faint line is each step, the strong one the mean of the last {smoothing_window(len(reward))} steps. "
        "Intervals: Wilson for one reply per prompt, otherwise a bootstrap over prompts. pass@1 is avg@k.",
    )


def _left_out(report: RunReport) -> list[Html]:
    """A sentence per kind of prompts that do not count, where there are any."""
    last = report.evaluations[-1][1] if report.evaluations else {}
    return [
        h("p", f"{last[name]['value']:.0f} of {last[name]['n']} prompts {what}.", cls="note")
        for name, what in _COUNTS.items()
        if name in last and last[name]["value"]
    ]


def _conversations(report: RunReport) -> Html | None:
    if not report.conversations:
        return None
    talks = [_conversation(c) for c in varied(report.conversations)]
    return section(
        "What it says",
        *talks[:_SHOWN],
        details(f"{len(talks) - _SHOWN} more", *talks[_SHOWN:]) if talks[_SHOWN:] else None,
        note="The base model and the trained policy on the same held-out prompts, greedy. One of each kind is first: "
        "fixed, broken, never right, always right.",
    )


def varied(talks: Sequence[Conversation]) -> list[Conversation]:
    """The same conversations, one of each kind in turn, so that the first few show failures as well as successes."""
    kinds: dict[tuple[bool, bool], list[Conversation]] = {
        kind: [] for kind in ((False, True), (True, False), (False, False), (True, True))
    }
    for talk in talks:
        kinds[_right(talk.before), _right(talk.after)].append(talk)
    return [talk for turn in zip_longest(*kinds.values()) for talk in turn if talk is not None]


def _right(reply: Reply | None) -> bool:
    return reply is not None and reply.correct is True


def _conversation(talk: Conversation) -> Html:
    sides = [
        _reply(side, title, cls)
        for side, title, cls in ((talk.before, "Before", "before"), (talk.after, "After", "after"))
    ]
    return h(
        "div",
        h("div", talk.prompt, h("small", f"right answer: {talk.answer}"), cls="prompt"),
        h("div", *sides, cls="pair"),
        cls="talk",
    )


def _reply(reply: Reply | None, title: str, cls: str) -> Html:
    if reply is None:
        return h("div", h("h3", title), h("p", "not recorded"), cls=f"reply {cls}")
    mark, colour = {True: ("✓ correct", "good"), False: ("✗ wrong", "bad"), None: ("unverifiable", "warn")}[
        reply.correct
    ]
    answer = f"answer {reply.extracted}" if reply.extracted is not None else "no answer found"
    return h(
        "div",
        h(
            "h3",
            title,
            h("span", mark, cls=f"badge {colour}"),
            h("span", reply.status, cls="badge warn") if reply.status != "completed" else None,
        ),
        h("pre", reply.text or "(empty)"),
        h("p", f"{answer} · reward {number(reply.reward)}"),
        cls=f"reply {cls}",
    )


def _metrics(report: RunReport) -> Html | None:
    series = {name: values for name, values in report.metrics.items() if values}
    if not series:
        return None
    bad = diverged(report)

    def picture(name: str) -> Html:
        values = series[name]
        now = h("span", number(values[-1][1]), cls="badge bad" if name in bad else None)
        return h("figure", h("figcaption", h("b", breakable(name)), now), small(name, values))

    groups: dict[str, list[str]] = {}
    for name in series:
        if name not in _MAIN:
            groups.setdefault(name.rpartition("/")[0] or name, []).append(name)
    return section(
        "Metrics",
        h("div", *(picture(name) for name in _MAIN if name in series), cls="grid"),
        *(
            details(
                f"{group}: {len(names)}", h("div", *map(picture, names), cls="grid"), opened=bool(bad.keys() & names)
            )
            for group, names in sorted(groups.items())
        ),
        note="Each over the steps of the run; the number is the last value.",
    )


def _timings(report: RunReport) -> Html | None:
    stages = {name: values for name, values in report.timings.items() if values}
    total = math.fsum(math.fsum(values) for values in stages.values())
    if not total > 0:
        return None
    longest = max(math.fsum(values) for values in stages.values())
    rows: list[list[Node]] = [
        [
            name,
            h("div", h("span", style=f"width:{100 * math.fsum(values) / longest:.1f}%", cls="train"), cls="bar"),
            f"{100 * math.fsum(values) / total:.0f} %",
            seconds(math.fsum(values)),
            len(values),
            seconds(statistics.median(values)),
        ]
        for name, values in stages.items()
    ]
    return section("Where the time went", table(["stage", "", "share", "total", "times", "median"], rows, numeric=4))


def _what_ran(report: RunReport) -> Html:
    commands: list[Node] = [h("h3", "The same run, or the rest of it"), command(report.again)]
    if report.talk is not None:
        commands += [h("h3", "Talk to the trained policy"), command(report.talk)]
    if report.open_mlflow is not None:
        commands += [h("h3", "Open it in MLflow"), command(report.open_mlflow)]
    settings = table(
        ["key", "value", "came from"], [[h("code", s.key), h("code", s.value), s.origin] for s in report.settings]
    )
    packages = table(["package", "version"], [[name, version] for name, version in sorted(report.packages.items())])
    return section(
        "What was run",
        *commands,
        facts([("trained policy", h("code", report.model_folder)), ("run", h("code", report.run_id))]),
        details(f"The resolved configuration: {len(report.settings)} keys", settings),
        details(f"Package versions: {len(report.packages)}", packages),
    )


def _lineage(report: RunReport) -> Html:
    data = report.dataset
    return section(
        "Where it came from",
        facts(
            [
                ("dataset", join([data.name, " ", short(data.digest)])),
                ("source", join([data.source, " ", short(data.source_digest)])),
                ("rows", ", ".join(f"{count:,} {split}" for split, count in data.rows.items())),
                ("base model", join([report.base_model, " ", short(report.base_model_digest)])),
                ("weights after training", short(report.policy_digest)),
                ("code", h("code", report.code_version)),
            ]
        ),
        details(
            f"Cleaning rules: {len(data.rules)}",
            table(
                ["rule", "rows changed or left out"], [[rule, f"{count:,}"] for rule, count in data.rules], numeric=1
            ),
        ),
        details("The digests in full (sha256 of the content)", table(["what", "digest"], _digests(report))),
    )


def _digests(report: RunReport) -> list[list[Node]]:
    whole = {
        "run": report.run_id,
        "dataset": report.dataset.digest,
        "source": report.dataset.source_digest,
        "base model": report.base_model_digest,
        "weights after training": report.policy_digest,
    }
    return [[what, h("code", digest)] for what, digest in whole.items()]


def _tile(value: str, what: str, interval: str | None, cls: str) -> Html:
    return h(
        "div", h("b", value), h("span", what), h("span", "95 %: ", interval) if interval else None, cls=f"tile {cls}"
    )


def _legend(*entries: tuple[str, str]) -> Html:
    return h("div", *(h("span", h("i", cls=cls), text) for cls, text in entries), cls="legend")


def _points(value: float | None) -> str:
    """A difference of shares in percentage points, with its sign."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{100 * value:+.1f}".replace("-", "−")


def _range(point: Point) -> str:
    return f"{_bare_percent(point.low)} to {percent(point.high)}"


def _bare_percent(value: float | None) -> str:
    return percent(value).removesuffix(" %")


def _cell(name: str, interval: Interval | None) -> Node:
    if interval is None:
        return "–"
    low, high = interval["low"], interval["high"]
    if name.startswith(_SHARES):
        value, bounds = percent(interval["value"]), f"{_bare_percent(low)} to {percent(high)}"
    else:
        value, bounds = number(interval["value"]), f"{number(low)} to {number(high)}"
    return value if interval["value"] is None else join([value, h("br"), h("small", bounds)])


def _point(step: int, interval: Interval | None) -> Point | None:
    """A measured value; None where nothing was measured."""
    if interval is None or interval["value"] is None or interval["low"] is None or interval["high"] is None:
        return None
    return Point(step, interval["value"], interval["low"], interval["high"])


def _curve(report: RunReport, name: str) -> list[Point]:
    points = (_point(step, summary.get(name)) for step, summary in report.evaluations)
    return [point for point in points if point is not None]


def _ends(report: RunReport, name: str) -> tuple[Point | None, Point | None]:
    """First and last value of a figure; the same one twice if there is only one."""
    curve = _curve(report, name)
    return (curve[0], curve[-1]) if curve else (None, None)


def _change_bounds(report: RunReport, before: Point, after: Point) -> tuple[float, float]:
    """95 % bounds of the change: the paired ones, else what the two separate intervals leave possible."""
    if report.gain is not None and report.gain["low"] is not None and report.gain["high"] is not None:
        return report.gain["low"], report.gain["high"]
    return after.low - before.high, after.high - before.low


def _changes(report: RunReport) -> list[Change]:
    changes: list[Change] = []
    for name in _summary_names(report):
        before, after = _ends(report, name)
        if name.startswith(_ACCURACIES) and name != "pass@1" and before is not None:  # pass@1 is avg@k
            changes.append(Change(name.replace("_", " "), before, None if after is before else after))
    return changes


def _summary_names(report: RunReport) -> list[str]:
    """Names of the figures in the order in which they first appear."""
    return list(dict.fromkeys(name for _, summary in report.evaluations for name in summary))


def _prompts(report: RunReport) -> int:
    return max(summary[HEADLINE]["n"] for _, summary in report.evaluations if HEADLINE in summary)
