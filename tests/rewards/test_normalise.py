r"""One writing for many spellings; idempotent on whatever comes."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relax_core.rewards.normalise import MAX_ANSWER, normalise


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        # S-02: only groups of three after one to three digits are thousands
        ("0,1", "0, 1"),
        ("3,11,33", "3, 11, 33"),
        ("115,000", "115000"),
        ("-1,234,567", "-1234567"),
        ("12,34", "12, 34"),
        ("2,500.75", "2500.75"),
        ("1,000", "1000"),
        ("0,100", "0, 100"),
        ("1{,}000", "1000"),
        ("1\\,000\\,000", "1000000"),
        ("1 000 000", "1000000"),
        ("(1,200)", "(1, 200)"),
        ("(1,200, 3)", "(1200, 3)"),
        # S-03 and S-04: shorthand
        ("\\sqrt[3]5", "\\sqrt[3]{5}"),
        ("\\sqrt7", "\\sqrt{7}"),
        ("\\sqrt[3]{27}", "\\sqrt[3]{27}"),
        ("\\frac34", "\\frac{3}{4}"),
        ("\\frac3{4}", "\\frac{3}{4}"),
        ("\\frac{3}4", "\\frac{3}{4}"),
        ("\\tfrac34", "\\frac{3}{4}"),
        ("\\frac{\\sqrt3}2", "\\frac{\\sqrt{3}}{2}"),
        ("\\frac\\pi2", "\\frac{\\pi}{2}"),
        # S-06: percent and dollars
        ("45\\%", "45%"),
        ("$45$", "45"),
        ("$45", "\\$45"),
        ("\\$45", "\\$45"),
        # delimiters, sizes, fonts, ends
        ("\\(\\left( 1 , 2 \\right)\\)", "(1, 2)"),
        ("\\mathrm{cm}", "\\text{cm}"),
        ("12.", "12"),
        ("x \\neq 2", "x \\ne 2"),
        ("x\\geqslant\\lbrace 1\\rbrace", "x\\ge\\{1\\}"),
        ("\\pi\\!x", "\\pi x"),
        ("**5**", "5"),
        ("\\boxed{5}", "{5}"),
        ("1 \\\\ \\frac12 \\\\", "1 \\\\ \\frac{1}{2}"),
        # Unicode
        ("−５", "-5"),
        ("１，０００．５", "1000.5"),
        ("x²", "x^{2}"),
        ("√7", "\\sqrt{7}"),
        ("∛27", "\\sqrt[3]{27}"),
        ("3½", "3\\frac{1}{2}"),
        ("90°", "90^{\\circ}"),
        ("٤٢", "42"),
        ("1\u200b2", "12"),
    ],
)
def test_normalise(answer: str, written: str) -> None:
    assert normalise(answer) == written


def test_over_long_answers_are_only_trimmed() -> None:
    text = "\\frac12" * MAX_ANSWER
    assert normalise(f" {text} ") == text


_PIECES = [
    *"0123456789abxyzeim .,;:+-*/^_=<>()[]{}$%!|&~'\n\t",
    *(
        "\\frac",
        "\\dfrac",
        "\\sqrt",
        "\\left",
        "\\right",
        "\\text",
        "\\mathrm",
        "\\boxed",
        "\\pi",
        "\\circ",
        "\\degree",
    ),
    *(
        "\\,",
        "\\!",
        "\\;",
        "\\ ",
        "\\\\",
        "\\{",
        "\\}",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        "\\%",
        "\\$",
        "{,}",
        "000",
        "\\le",
        "\\leq",
    ),
    *(
        "−",
        "×",
        "·",
        "½",
        "⅓",
        "²",
        "³",
        "₁",
        "√",
        "∛",
        "°",
        "π",
        "∞",
        "±",
        "５",
        "，",
        "％",
        "ﷺ",
        "\u200b",
        "⁄",
        "٣",
        "¾",
        "\ud800",
    ),
    *("\\div", "\\ast", "\\percent", "\\lbrace", "\\quad", "\\binom", "\\operatorname", "10^", "**", "x10"),
]


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(_PIECES), max_size=40).map("".join)))
@settings(max_examples=500, deadline=None)
@example("\\sqrt[3]5")
@example("\\\\!frac12")
@example("1\\,000\\,00")
@example("((1,000)")
def test_normalise_is_idempotent(answer: str) -> None:
    once = normalise(answer)
    assert normalise(once) == once
