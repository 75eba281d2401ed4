r"""The last box: both commands, nested braces, no braces, incomplete and hostile ones."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.rewards import boxed
from relax_core.rewards.boxed import last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        # S-01: two boxes are never joined
        ("So it is \\boxed{612}. Let me check: 6+1+2=9.\n\n**Final Answer**\n\\boxed{612}", "612"),
        ("first I got \\boxed{5}, that was wrong, so \\boxed{7}", "7"),
        # S-05: no braces, spaces, empty, cut off
        ("... so the largest is $\\boxed 8$.", "8"),
        ("$\\boxed8$", "8"),
        ("\\boxed -3.", "-3"),
        ("\\boxed 1,234.", "1,234"),
        ("$\\boxed\\frac12$", "\\frac12"),
        ("$\\boxed\\frac{1}{2}$", "\\frac{1}{2}"),
        ("$\\boxed x$", "x"),
        ("\\boxed{ 8 }", "8"),
        ("\\boxed {8}", "8"),
        ("\\boxed\n{8}", "8"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{}", None),
        ("\\boxed{  }", None),
        ("\\boxed{12", None),
        # S-07: both commands
        ("\\fbox{19}", "19"),
        ("\\fbox{\\frac{2}{3}}", "\\frac{2}{3}"),
        ("\\boxed{4} ... \\fbox{9}", "9"),
        ("\\fbox{19", None),
        # the last complete, non-empty one
        ("\\boxed{4} and \\boxed{12", "4"),
        ("\\boxed{4} and \\boxed{}", "4"),
        ("\\boxed{4} and \\boxed", "4"),
        ("\\boxed{12 \\boxed{4}", "4"),
        ("\\boxed{x \\boxed{}}", "x \\boxed{}"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{1 + \\fbox{5}, 2}", "5"),
        ("\\boxed{1 + \\fbox{x^{2}}, 2}", "x^{2}"),
        # braces that open nothing
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\left\\{1\\right.}", "\\left\\{1\\right."),
        ("} } \\boxed{3} } {", "3"),
        ("{ { \\boxed{3}", "3"),
        ("\\boxed{a \\\\ {b}}", "a \\\\ {b}"),
        # not a box
        ("in \\boxedform{5}", None),
        ("write it in \\boxed form", None),
        ("boxed{5}", None),
        ("", None),
        # escaped once too often
        ("\\\\boxed{5}", "5"),
        ("a \\\\\\boxed{5}", "5"),
    ],
)
def test_last_boxed(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


_PIECES = ["\\boxed", "\\fbox", "{", "}", "\\{", "\\\\", " ", "1", "x", "\\frac", "$"]


@given(st.lists(st.sampled_from(_PIECES), max_size=40).map("".join))
@settings(max_examples=300, deadline=None)
def test_the_short_way_finds_what_the_scan_finds(text: str) -> None:
    assert last_boxed(text) == boxed._scan(text)


@given(
    st.lists(
        st.sampled_from(["\\boxed{1}", "\\fbox{x^{2}}", "\\boxed{}", "\\boxed{3", "{", "text", "\\boxed 8$"]),
        max_size=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_a_box_at_the_end_is_the_answer(parts: list[str]) -> None:
    assert last_boxed("".join(parts) + "\\boxed{42}") == "42"


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 150_000,
        "\\boxed{" * 75_000 + "}" * 75_000,
        "\\boxed{}" * 125_000,
        "\\boxed{ }" * 120_000,
        "{" * 1_000_000 + "\\boxed{",
        "\\" * 1_000_000 + "boxed",
        "\\boxed" + " " * 1_000_000,
        "\\boxed" * 160_000,
        "\\boxed\\a{" * 110_000,
        "\\boxed{" + "a" * 1_000_000,
        "\\fbox{\\boxed{" * 70_000 + "}" * 100_000,
    ],
)
def test_hostile_megabytes_take_linear_time(text: str) -> None:
    started = time.perf_counter()
    last_boxed(text)
    assert time.perf_counter() - started < 5  # a quadratic scan takes minutes
