"""The shell of a page: escaping, numbers as people read them."""

from __future__ import annotations

import math

import pytest

from relax_core.report.page import Html, breakable, details, facts, h, number, page, percent, seconds, section, table

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>\" onload=\"x"


def test_text_is_escaped_wherever_it_stands() -> None:
    made = [
        h("p", EVIL, title=EVIL),
        table([EVIL], [[EVIL]]),
        facts([(EVIL, EVIL)]),
        section(EVIL, EVIL, note=EVIL),
        details(EVIL, EVIL),
        breakable(EVIL),
        page(EVIL, EVIL, kicker=EVIL, lead=EVIL, foot=EVIL),
    ]
    for markup in made:
        assert "<script" not in markup
        assert "<img" not in markup
        assert '" onload="x' not in markup


def test_markup_is_kept_once() -> None:
    assert h("p", h("b", "a & b"), "<", None) == "<p><b>a &amp; b</b>&lt;</p>"
    assert h("i", cls="x", aria_label="y", title=None) == '<i class="x" aria-label="y"></i>'
    assert isinstance(h("br"), Html)
    assert h("br") == "<br>"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1.00"),
        (0.123456, "0.123"),
        (-0.0182, "−0.0182"),
        (12345.6, "12,346"),
        (2.08e-6, "2.08e−06"),
        (1.5e7, "1.50e+07"),
        (999.6, "1,000"),
        (math.nan, "diverged"),
        (-math.inf, "diverged"),
        (None, "–"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_shares_and_durations() -> None:
    assert percent(0.865) == "86.5 %"
    assert percent(math.nan) == "diverged"
    assert percent(None) == "–"
    assert [seconds(s) for s in (0.0724, 3.14159, 59.97, 97.0, 3725.0)] == [
        *("72 ms", "3.1 s", "1 min 00 s", "1 min 37 s", "1 h 02 min"),
    ]
    assert seconds(math.nan) == "diverged"
