r"""Equality of final answers by our own exact rules; golden pairs, hand-chosen pairs, and properties."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.rewards.equality import compare, equal, verifiable
from relax_core.rewards.exact import NotPlain, TooBig
from relax_core.rewards.latex import evaluate

GOLDEN = Path(__file__).parents[1] / "parity" / "golden" / "answers.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize("row", [row for row in ROWS if row["kind"] == "equal"], ids=lambda row: row["id"])
def test_golden_pairs(row: dict[str, object]) -> None:
    assert compare(row["a"], row["b"]) is row["equal"]
    assert compare(row["b"], row["a"]) is row["equal"]
    assert equal(row["a"], row["b"]) is row["equal"]


SAME = [
    # numbers
    ("0.5", ".5"), ("5.", "5"), ("-0", "0"), ("+7", "7"), ("016", "16"), ("1e3", "10^3"), ("10^{-3}", "0.001"),
    ("6.02 \\times 10^{23}", "6.02e23"), ("1.5x10^3", "1500"), ("0.\\overline{142857}", "\\frac17"), ("0.1\\overline{6}", "1/6"),
    ("3\\frac12", "3.5"), ("7 3/4", "31/4"), ("-1\\frac{1}{3}", "-\\frac43"), ("\\frac{-1}{-2}", "0.5"), ("5!", "120"),
    ("\\binom{5}{2}", "10"), ("2^{2^3}", "256"), ("2^10", "1024"), ("8^{\\frac{2}{3}}", "4"), ("\\sqrt[3]{-8}", "-2"),
    # roots, pi, letters
    ("\\sqrt{12}", "2\\sqrt3"), ("\\frac{1}{\\sqrt2}", "\\frac{\\sqrt2}{2}"), ("\\frac{1}{1+\\sqrt{2}}", "\\sqrt2-1"),
    ("\\sqrt{50}+\\sqrt{2}", "6\\sqrt2"), ("\\sqrt{0.25}", "1/2"), ("\\pi/4", "\\frac{\\pi}{4}"), ("2\\pi r", "2 r \\pi"),
    ("x^2-1", "(x-1)(x+1)"), ("\\frac{x+1}{x-1}", "1+\\frac{2}{x-1}"), ("(1+i)^2", "2i"), ("x_{1}", "x_1"),
    # percent, currency, units
    ("45\\%", "45"), ("45 percent", "45\\%"), ("\\$5", "5 dollars"), ("€5", "5 euros"), ("5 cm", "5"), ("5m", "5 m"),
    ("5 cm", "5 centimetres"), ("5\\,\\text{cm}^2", "5 square centimeters"), ("60 km/h", "60 kilometers per hour"),
    ("30^\\circ", "30 degrees"), ("12 apples", "12"), ("3 apples", "3 pears"), ("5 million", "5,000,000"), ("42nd", "42"),
    # groups
    ("(1,2)", "1, 2"), ("1,2", "2 and 1"), ("1,2", "\\{2,1\\}"), ("\\pm 3", "3,-3"), ("1\\pm\\sqrt2", "1-\\sqrt2, 1+\\sqrt2"),
    ("\\left[0,\\infty\\right)", "[0,+\\infty)"), ("(-\\infty,1)\\cup(2,\\infty)", "(2,\\infty)\\cup(-\\infty,1)"),
    ("\\{1\\}", "1"), ("\\emptyset", "\\{\\}"), ("(1,200)", "(1, 200)"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix} 1 & 2 \\\\ 3 & \\frac82 \\end{bmatrix}"),
    # names, choices, words
    ("x=5", "5"), ("y = 2x+3", "2x+3"), ("x=1,y=2", "(1,2)"), ("(x,y)=(1,2)", "(1,2)"), ("x \\in [0,1]", "[0,1]"), ("area = 5", "5"),
    ("\\text{(A)}", "A"), ("B)", "\\textbf{(B)}"), ("\\text{Monday}", "monday"), ("\\text{no solution}", "No solution"),
    # Unicode
    ("１２", "12"), ("−3", "-3"), ("3½", "3.5"), ("10⁻³", "0.001"), ("2√3", "\\sqrt{12}"), ("90°", "90"), ("2×3", "6"),
]  # fmt: skip

DIFFERENT = [
    ("1/3", "0.333333"), ("\\frac{\\sqrt{3}}{2}", "0.866"), ("\\pi", "3.14159"), ("\\frac{1}{23}", "\\frac{12}{3}"),
    ("45\\%", "0.45"), ("\\frac{9}{10}", "90\\%"), ("\\$5", "5 cents"), ("5 cm", "5 m"), ("5 cm^2", "5 cm"), ("30^{\\circ}", "30\\%"),
    ("(1,2)", "(2,1)"), ("(1,2)", "\\{1,2\\}"), ("[1,2]", "(1,2)"), ("(-\\infty, 2]", "(-\\infty,2)"), ("(1,200)", "1200"), ("0,5", "0.5"),
    ("1,2", "1,2,3"), ("1,1", "1,2"), ("x=3", "y=3"), ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ("even", "odd"), ("A", "B"), ("a", "A"), ("Tuesday", "4"), ("4", "\\text{four}"), ("2x", "x^2"), ("i", "-i"), ("2", "-2"),
    ("4", "9^{9^{9^9}}"), ("4", "99999999!"), ("4", "10^{10^{10}}"), ("4", "1e999999999"),
]  # fmt: skip

UNDECIDED = [
    ("\\sin x", "\\sin(x)"),
    ("x>3", "3<x"),
    ("xy", "yx"),
    ("1/2x", "x/2"),
    ("\\log_2 8", "3"),
    ("2\\frac{3}{2}", "3"),
    ("1/0", "2"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_same_answers(left: str, right: str) -> None:
    assert compare(left, right) is True
    assert compare(right, left) is True


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_answers(left: str, right: str) -> None:
    assert compare(left, right) is False
    assert compare(right, left) is False


@pytest.mark.parametrize(("left", "right"), UNDECIDED)
def test_what_we_do_not_decide(left: str, right: str) -> None:
    assert compare(left, right) is None
    assert compare(right, left) is None
    assert compare(left, left) is True


@pytest.mark.parametrize(
    "answer",
    [
        "5",
        "-3",
        "1/2",
        "\\frac34",
        "\\boxed{5}",
        "$x^2$",
        "\\sin x",
        "Evelyn",
        "A",
        "(1,2)",
        "no real solutions",
        "x>3",
        "5 cm",
        "1\\%",
    ],
)
def test_verifiable(answer: str) -> None:
    assert verifiable(answer)


@pytest.mark.parametrize(
    "answer",
    ["", "  ", "\\boxed{}", "nan", "None", "n/a", "...", "-", "\\frac{1", "x^{2}}", "9^{9^{9^9}}", "99999999!", "7" * 2000, "()",
     "We prove it by induction on n.", "\\text{See the diagram below, the answer is shown}", "the first, the second, and the third one of these"],
)  # fmt: skip
def test_not_verifiable(answer: str) -> None:
    assert not verifiable(answer)


@pytest.mark.parametrize(
    ("text", "number"), [("2\\sqrt[4]{16}", 4), ("-2^2", -4), ("2(3+4)", 14), ("1-\\frac{1}{2}-0.5", 0)]
)
def test_evaluate(text: str, number: int) -> None:
    assert evaluate(text).rational() == number


@pytest.mark.parametrize(
    "text", ["9^{99999}", "5000!", "\\binom{99999}{5}", "1e7000", "(10^{2000})^{10}", "2^{20000}\\cdot2^{20000}"]
)
def test_too_big(text: str) -> None:
    with pytest.raises(TooBig):
        evaluate(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1/0",
        "0^0",
        "0^{-1}",
        "1 2",
        "3!!",
        "2^x",
        "\\sqrt{x}",
        "\\sqrt{-1}",
        "(",
        "{" * 100 + "1" + "}" * 100,
        "a$",
    ],
)
def test_not_plain(text: str) -> None:
    with pytest.raises(NotPlain):
        evaluate(text)


_RATIONALS = st.fractions(min_value=-1000, max_value=1000, max_denominator=1000)


@given(_RATIONALS, _RATIONALS, st.sampled_from("+-*/"))
def test_arithmetic_is_that_of_fractions(left: Fraction, right: Fraction, sign: str) -> None:
    if sign == "/" and right == 0:
        return
    written = (
        f"\\frac{{{left.numerator}}}{{{left.denominator}}}{sign}(\\frac{{{right.numerator}}}{{{right.denominator}}})"
    )
    expected = {"+": left + right, "-": left - right, "*": left * right, "/": left / right if right else None}[sign]
    assert evaluate(written).rational() == expected


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**4))
def test_a_fraction_is_equal_in_every_writing(top: int, bottom: int) -> None:
    writings = [
        f"{top}/{bottom}",
        f"\\frac{{{top}}}{{{bottom}}}",
        f"\\dfrac{{{top * 3}}}{{{bottom * 3}}}",
        f"$ {top} / {bottom} $",
    ]
    assert all(compare(writings[0], other) for other in writings)
    assert compare(f"{top}/{bottom}", f"{top}/{bottom + 1}") is (top == 0)


_ANSWERS = st.one_of(
    st.sampled_from([text for pair in SAME + DIFFERENT + UNDECIDED for text in pair]),
    st.lists(
        st.sampled_from(
            [
                *"0123456789xyz.,+-*/^()[]{} =%$!",
                "\\frac",
                "\\sqrt",
                "\\pi",
                "\\pm",
                "\\cup",
                "\\{",
                "\\}",
                "\\text",
                " cm",
                " and ",
            ]
        ),
        max_size=20,
    ).map("".join),
    st.text(max_size=30),
)


@given(_ANSWERS, _ANSWERS)
@settings(max_examples=500, deadline=None)
def test_equality_is_symmetric_and_reflexive(left: str, right: str) -> None:
    assert compare(left, right) is compare(right, left)
    assert compare(left, left) is True


@pytest.mark.parametrize(
    "text",
    [
        "(" * 490 + "1" + ")" * 490,
        "{" * 499 + "}" * 499,
        "+".join(f"\\sqrt{{{999999937 - 2 * at}}}" for at in range(50)),
        "+".join(f"9^{{6000}}/7^{{{6000 + at}}}" for at in range(50)),
        "*".join(["(\\sqrt2+\\sqrt3+\\sqrt5+\\sqrt7+\\pi)"] * 30),
        "(a+b+c+d)^{64}",
        "^".join("9" * 100),
        "$" * 999,
        "\\frac" * 200,
        "1," * 499 + "1",
        ",".join(["\\pm 1"] * 150),
        "\\left" * 150,
        "ﷺ" * 900,
        "x=" * 400,
        "\\text{" * 160,
        "1 " * 499,
        "5" + " cm" * 300,
    ],
)
def test_hostile_answers_are_decided_quickly(text: str) -> None:
    started = time.perf_counter()
    compare("4", text)
    verifiable(text)
    assert time.perf_counter() - started < 2


def test_neither_math_verify_nor_sympy_is_imported() -> None:
    code = (
        "import sys; from relax_core.rewards.pool import Grader; from relax_core.rewards.equality import compare;"
        " assert compare('1/2', '0.5'); Grader().grade_many([('1/2', '\\\\boxed{0.5}')]);"
        " print([name for name in ('math_verify', 'sympy', 'pebble', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
