"""Pictures: reproducible, in the page's colours, with nothing that is not finite."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from relax_core.report import charts
from relax_core.report.charts import Change, Point, before_after, learning_curve, moving_mean, small, smoothing_window


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAX_ARTIFACTS", str(tmp_path))
    monkeypatch.setenv("MPLCONFIGDIR", "overwritten")
    return tmp_path


def svgs(markup: str) -> list[ElementTree.Element]:
    found = re.findall(r"<svg .*?</svg>", markup, flags=re.DOTALL)
    return [ElementTree.fromstring(svg) for svg in found]


def texts(markup: str) -> list[str]:
    return [e.text or "" for svg in svgs(markup) for e in svg.iter() if e.tag.endswith("}text")]


CHANGES = [
    Change("accuracy", Point(0, 0.5, 0.4, 0.6), Point(60, 0.875, 0.8, 1.0)),
    Change("other", Point(0, 0.1, 0, 0.2), None),
]


def test_before_and_after_show_their_numbers_and_intervals() -> None:
    markup = before_after(CHANGES)
    assert {"accuracy", "50.0 %", "87.5 %", "10.0 %"} <= set(texts(markup))
    assert "accuracy after step 60: 87.5 %, 95 % 80.0 % to 100.0 %</title>" in markup
    assert len(svgs(markup)) == 2  # wide, and for a phone


def test_same_numbers_same_bytes() -> None:
    assert before_after(CHANGES) == before_after(CHANGES)
    assert small("m", [(1, 1.0), (2, 2.0)]) == small("m", [(1, 1.0), (2, 2.0)])
    assert "<dc:date>" not in before_after(CHANGES)


def test_colours_are_those_of_the_page() -> None:
    markup = before_after(CHANGES) + learning_curve([(1, 0.5), (2, 0.6)], [Point(0, 0.5, 0.4, 0.6)])
    assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", markup)) <= {
        "none",
        *(f"var(--{name})" for name in ("ink", "soft", "grid", "card", "after", "before", "train")),
    }
    assert "<style" not in markup


def test_ids_are_unique_across_the_pictures_of_a_page() -> None:
    series = [(1, 0.5), (2, 0.6)]
    markup = before_after(CHANGES) + learning_curve(series, []) + small("a", series) + small("b", series)
    ids = re.findall(r'\bid="([^"]*)"', markup)
    assert ids
    assert len(ids) == len(set(ids))


def test_values_that_are_not_finite_are_left_out() -> None:
    markup = small("loss", [(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)])
    assert "nan" not in markup.lower()
    assert "step 4: 2.00" in markup
    point = Point(3, math.nan, math.nan, math.nan)
    assert "nan" not in learning_curve([(1, -math.inf), (2, 0.5)], [point]).lower()
    assert "nan" not in before_after([Change("x", point, point)]).lower()


def test_empty_and_flat_series_are_drawn() -> None:
    assert svgs(small("m", []))
    assert svgs(small("m", [(1, math.nan)]))
    assert svgs(learning_curve([], []))
    assert "e−" not in "".join(texts(small("m", [(1, 0.3), (2, 0.3)])))


def test_rewards_outside_zero_and_one_stay_inside_the_picture() -> None:
    assert "−2" in "".join(texts(learning_curve([(1, -2.0), (2, 3.0)], [])))


def test_names_are_text_not_markup() -> None:
    evil = "</title><script>$x$ & <b>"
    markup = small(evil, [(1, 1.0)]) + before_after([Change(evil, Point(0, 0.5, 0.4, 0.6), None)])
    assert "<script" not in markup
    assert "<b>" not in markup
    assert evil in texts(markup)


def test_moving_mean_looks_back_only() -> None:
    assert moving_mean([1.0, 3.0, 5.0, 100.0], 3) == [1.0, 2.0, 3.0, 36.0]
    assert [smoothing_window(n) for n in (0, 5, 60, 1000)] == [1, 1, 6, 25]


def test_matplotlib_writes_inside_the_artifacts_only(tmp_path: Path) -> None:
    """In a process of its own: the cache's place is decided when matplotlib is first imported."""
    home, store = tmp_path / "home", tmp_path / "store"
    home.mkdir()
    code = "from relax_core.report.charts import small; small('m', [(1, 1.0)])"
    environment = {"HOME": str(home), "RELAX_ARTIFACTS": str(store), "PATH": os.environ["PATH"]}
    root = Path(charts.__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, check=True, timeout=120)
    assert not list(home.iterdir())
    assert (store / "tmp" / "matplotlib").is_dir()
