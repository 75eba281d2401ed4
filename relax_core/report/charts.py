"""Pictures of a report: inline SVG from matplotlib, the same bytes for the same numbers, in the colours of the page.

A picture is drawn in stand-in colours which then become CSS variables of the page's style, so that one picture is
right in light and in dark. Figures are made without pyplot: nothing global is kept. Values that are not finite are
left out of lines and limits; the page says in words that a series diverged.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

from relax_core import paths
from relax_core.report.page import Html, h, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = Sequence[tuple[int, float]]

# Stand-in colour -> CSS variable of page.STYLE.
_INK, _SOFT, _GRID, _CARD = "#010203", "#010204", "#010205", "#010206"
_AFTER, _BEFORE, _TRAIN = "#010207", "#010208", "#010209"
_VARIABLES = {
    _INK: "ink",
    _SOFT: "soft",
    _GRID: "grid",
    _CARD: "card",
    _AFTER: "after",
    _BEFORE: "before",
    _TRAIN: "train",
}


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluated value with its interval."""

    step: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the before-and-after picture; a side that was not measured is None."""

    label: str
    before: Point | None
    after: Point | None


def use_own_cache() -> None:
    """Keep matplotlib's cache inside the artifacts: without this it writes to $HOME when it is first imported."""
    folder = paths.temporary() / "matplotlib"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MPLCONFIGDIR"] = str(folder)


def before_after(changes: Sequence[Change]) -> Html:
    """Shares before and after training, a row each, as points with 95 % intervals on an axis from 0 to 100 %."""

    def draw(ax: Axes) -> None:
        for y, change in enumerate(reversed(changes)):
            for point, colour, offset in ((change.before, _BEFORE, 0.14), (change.after, _AFTER, -0.14)):
                if point is None or not math.isfinite(point.value):
                    continue
                when = "before" if colour == _BEFORE else f"after step {point.step}"
                tip = (
                    f"{change.label} {when}: {percent(point.value)}, 95 % {percent(point.low)} to {percent(point.high)}"
                )
                line: dict[str, Any] = {"color": colour, "clip_on": False}
                ax.plot([point.low, point.high], [y + offset] * 2, lw=5, alpha=0.35, solid_capstyle="round", **line)
                ax.plot([point.value], [y + offset], "o", ms=9, mec=_CARD, mew=1.5, gid=_tip(tip), **line)
                ax.annotate(
                    percent(point.value),
                    (point.high, y + offset),
                    xytext=(9, 0),
                    textcoords="offset points",
                    va="center",
                    color=colour,
                    fontsize=10,
                    fontweight="bold",
                )
        ax.set_yticks(range(len(changes)), [c.label for c in reversed(changes)])
        ax.set_ylim(-0.6, len(changes) - 0.4)
        ax.set_xlim(0, 1)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100 %"])
        ax.grid(axis="x")
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="y", labelsize=10, labelcolor=_INK)

    label = "; ".join(
        f"{c.label}: {percent(c.before.value if c.before else None)} before, "
        f"{percent(c.after.value if c.after else None)} after"
        for c in changes
    )
    return _in_two_widths("before-after", 0.45 + 0.5 * len(changes), draw, label)


def learning_curve(reward: Series, accuracy: Sequence[Point]) -> Html:
    """Training reward per step with its moving mean, and held-out accuracy with its intervals, over the same steps."""

    def draw(ax: Axes) -> None:
        steps, values = _finite(reward)
        if steps:
            ax.plot(steps, values, color=_TRAIN, lw=1, alpha=0.35)
            window = smoothing_window(len(values))
            ax.plot(steps, moving_mean(values, window), color=_TRAIN, lw=2)
        points = [p for p in accuracy if math.isfinite(p.value)]
        if points:
            x = [p.step for p in points]
            ax.fill_between(x, [p.low for p in points], [p.high for p in points], color=_AFTER, alpha=0.14, lw=0)
            ax.plot(x, [p.value for p in points], color=_AFTER, lw=2)
            for p in points:
                tip = f"step {p.step}: accuracy {percent(p.value)}, 95 % {percent(p.low)} to {percent(p.high)}"
                ax.plot([p.step, p.step], [p.low, p.high], color=_AFTER, lw=1.6, alpha=0.7)
                ax.plot([p.step], [p.value], "o", color=_AFTER, ms=7, mec=_CARD, mew=1.3, gid=_tip(tip))
        # Rewards other than 0 and 1 are possible; accuracies lie in [0, 1].
        low = min([0.0, *values])
        high = max([1.0, *values])
        ax.set_ylim(low - 0.02 * (high - low), high + 0.03 * (high - low))
        ax.set_xlabel("step")
        ax.grid(axis="y")
        _whole_steps(ax)

    last = accuracy[-1] if accuracy else None
    label = f"Learning curve over {len(reward)} steps; last accuracy {percent(last.value if last else None)}"
    return _in_two_widths("learning-curve", 3.2, draw, label)


def small(name: str, series: Series) -> Html:
    """One metric over the steps, small, for a grid of such pictures."""

    def draw(ax: Axes) -> None:
        steps, values = _finite(series)
        ax.plot(steps, values, color=_AFTER, lw=1.5)
        if steps:
            ax.plot(
                steps[-1:],
                values[-1:],
                "o",
                color=_AFTER,
                ms=5,
                mec=_CARD,
                mew=1,
                gid=_tip(f"step {steps[-1]}: {number(values[-1])}"),
            )
            if min(values) == max(values):  # else matplotlib shows an offset of some 1e-17 beside a flat line
                margin = abs(values[0]) * 0.1 or 0.1
                ax.set_ylim(values[0] - margin, values[0] + margin)
        ax.locator_params(axis="y", nbins=4)
        ax.grid(axis="y")
        _whole_steps(ax, 4)
        ax.yaxis.set_major_formatter(lambda value, _position: number(value, 2))

    return _picture(f"metric-{name}", (3.2, 1.75), draw, f"{name} over {len(series)} steps")


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last `window` values (fewer at the start): it never looks ahead."""
    return [math.fsum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i - window + 1) : i + 1])]


def smoothing_window(n: int) -> int:
    """Of the moving mean in a learning curve of n steps: a tenth of the run, at least 1, at most 25 steps."""
    return max(1, min(25, n // 10))


def _finite(series: Series) -> tuple[list[int], list[float]]:
    kept = [(step, value) for step, value in series if math.isfinite(value)]
    return [step for step, _ in kept], [value for _, value in kept]


def _whole_steps(ax: Axes, ticks: int = 8) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(ticks, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


_TIP = "tip:"


def _tip(text: str) -> str:
    """An artist's gid that becomes a tooltip."""
    return _TIP + text


def _in_two_widths(name: str, height: float, draw: Callable[[Axes], None], label: str) -> Html:
    """A picture as wide as the page, and another that a narrow screen gets instead, where its text stays readable."""
    wide = _picture(name, (9.2, height), draw, label)
    narrow = _picture(f"{name}-narrow", (4.2, height), draw, label)
    return h("figure", h("div", wide, cls="wide"), h("div", narrow, cls="narrow"))


def _picture(name: str, inches: tuple[float, float], draw: Callable[[Axes], None], label: str) -> Html:
    use_own_cache()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_style(name)):
        figure = Figure(figsize=inches, layout="constrained")
        draw(figure.add_subplot())
        return _inline(figure, label)


def _style(name: str) -> dict[str, Any]:
    """matplotlib's settings. The salt differs per picture, so that ids are unique on a page and yet reproducible."""
    return {
        "svg.hashsalt": name,
        "svg.fonttype": "none",  # text stays text: sharp, searchable, in the page's font
        "font.family": "DejaVu Sans",  # matplotlib brings it: the layout is the same on every machine
        "font.size": 9.5,
        "text.color": _INK,
        "text.parse_math": False,  # a metric's name is no formula
        "axes.edgecolor": _GRID,
        "axes.labelcolor": _SOFT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.axisbelow": True,
        "axes.formatter.useoffset": False,
        "axes.xmargin": 0.03,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "grid.color": _GRID,
        "grid.linewidth": 0.9,
        "lines.solid_joinstyle": "round",
        "xtick.color": _GRID,
        "ytick.color": _GRID,
        "xtick.labelcolor": _SOFT,
        "ytick.labelcolor": _SOFT,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "path.simplify": True,
    }


def _inline(figure: Figure, label: str) -> Html:
    """The figure as an <svg> element for the middle of a page."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # A rule for every element would reach the rest of the page; page.STYLE has it for the elements of an svg.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    # A page holds many figures, and matplotlib names the groups of each alike; only gids of ours say something.
    svg = re.sub(r'<g id="[^"]*"/>\s*', "", svg)
    svg = re.sub(r'<g id="([^"]*)">', _group, svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return Html(svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1).strip())


def _group(match: re.Match[str]) -> str:
    text = match[1]
    return f"<g><title>{text.removeprefix(_TIP)}</title>" if text.startswith(_TIP) else "<g>"
