r"""The built-in data: arithmetic problems with worked solutions, from a seed.

`item(seed, split, index)` is a pure function: a hash of its arguments drives every draw, so the same call gives the
same problem on every machine and Python. `problems(...)` streams distinct ones.

Levels
    1   one step, sums and differences within 20                       7+5=?            -> 7+5=12 \boxed{12}
    2   two digits (worked tens first), or two steps                   47+38=?          -> 70+15=85 \boxed{85}
    3   three steps, gcd, linear equations, one-sentence word problems 3x+4=19, x=?     -> 3x=15 x=5 \boxed{5}

All answers are non-negative integers, as canonical text ("85": no sign, no leading zero). Each level has several kinds
(`template_ids`); where pupils make a typical slip, sums with a carry and differences with a borrow are kinds of their own,
and their problems also hold the work with that slip (47+38=? -> 70+15=75 \boxed{75}).

Splits never overlap: a digest of the problem, not of the seed, says to which split it belongs, so no seed of one split
can draw a problem of another. `warmup` is what the base model learns from, `train` what a run draws its prompts from
(and holds out its evaluation prompts from), `test` is touched by neither. The digest is of the problem up to the order
of the operands of a sum or product: with 5+7 in one split, 7+5 is not in another, and a stream holds only one of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from relax_core.errors import DataError

Split = Literal["warmup", "train", "test"]
LEVELS = (1, 2, 3)

# Upper ends of the shares of the problem space, in thousandths.
_SHARES: dict[Split, tuple[int, int]] = {"warmup": (0, 400), "train": (400, 950), "test": (950, 1000)}

# A stream that meets so many repeats in a row has found practically all problems that there are.
_PATIENCE = 2000

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question with its answer.

    question: what is asked, without any instruction about the form of the answer. answer: the integer, canonical text.
    solution: worked, ends in \\boxed{answer}. slip: the same with the typical wrong answer, None where there is none.
    template_id: the kind of problem; a caller can hold out whole kinds. key: what makes it distinct (the question up to the
    order of operands).
    """

    question: str
    answer: str
    solution: str
    slip: str | None
    level: int
    template_id: str
    key: str


class Draws:
    """Uniform integers from a hash of a name: the same on every machine, and independent of the library's generators."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]. The bias of taking 64 bits modulo the range is below 1e-15 for our ranges."""
        self._count += 1
        digest = hashlib.sha256(f"{self._name}/{self._count}".encode()).digest()
        return low + int.from_bytes(digest[:8], "big") % (high - low + 1)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.between(0, len(options) - 1)]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What a template draws. work: the steps up to the last "=". key: "" means the question itself."""

    question: str
    work: str
    answer: int
    key: str = ""
    slip: int | None = None

    def solution(self, answer: int) -> str:
        return f"{self.work}{answer} \\boxed{{{answer}}}"


def _sum_to_20(d: Draws) -> _Drawn:
    total = d.between(0, 20)
    a = d.between(0, total)
    b = total - a
    return _Drawn(f"{a}+{b}=?", f"{a}+{b}=", total, f"{min(a, b)}+{max(a, b)}")


def _difference_to_20(d: Draws) -> _Drawn:
    a = d.between(0, 20)
    b = d.between(0, a)
    return _Drawn(f"{a}-{b}=?", f"{a}-{b}=", a - b)


def _two_digit_sum(d: Draws) -> _Drawn:
    """Two-digit numbers with a sum of at most 99, no carry."""
    tens, ones = d.between(2, 9), d.between(0, 9)
    tens_b, ones_b = d.between(1, tens - 1), d.between(0, ones)
    return _column_sum(10 * (tens - tens_b) + ones - ones_b, 10 * tens_b + ones_b)


def _two_digit_sum_with_carry(d: Draws) -> _Drawn:
    """Two-digit numbers with a sum of at most 99 whose ones carry."""
    tens, ones = d.between(2, 8), d.between(10, 18)
    tens_b, ones_b = d.between(1, tens - 1), d.between(ones - 9, 9)
    return _column_sum(10 * (tens - tens_b) + ones - ones_b, 10 * tens_b + ones_b)


def _column_sum(a: int, b: int) -> _Drawn:
    """Tens and ones first, then both together: 47+38 is 70+15. The slip loses the carried ten."""
    tens, ones = (a // 10 + b // 10) * 10, a % 10 + b % 10
    slip = tens + ones % 10 if ones > 9 else None
    return _Drawn(f"{a}+{b}=?", f"{tens}+{ones}=", a + b, f"{min(a, b)}+{max(a, b)}", slip)


def _two_digit_difference(d: Draws) -> _Drawn:
    """Two-digit numbers, nothing borrowed."""
    tens, ones = d.between(1, 9), d.between(0, 9)
    return _column_difference(10 * tens + ones, 10 * d.between(1, tens) + d.between(0, ones))


def _two_digit_difference_with_borrow(d: Draws) -> _Drawn:
    """Two-digit numbers whose ones borrow."""
    tens, ones = d.between(2, 9), d.between(0, 8)
    return _column_difference(10 * tens + ones, 10 * d.between(1, tens - 1) + d.between(ones + 1, 9))


def _column_difference(a: int, b: int) -> _Drawn:
    """Takes the tens away first: 85-38 is 55-8. The slip borrows a ten and does not pay for it."""
    rest, ones = a - b // 10 * 10, b % 10
    slip = rest // 10 * 10 + (rest - ones) % 10 if rest % 10 < ones else None
    return _Drawn(f"{a}-{b}=?", f"{rest}-{ones}=", a - b, slip=slip)


def _two_steps(d: Draws) -> _Drawn:
    """One-digit numbers, a sum and a difference."""
    a, b = d.between(1, 9), d.between(1, 9)
    c = d.between(1, min(9, a + b))
    return _Drawn(f"{a}+{b}-{c}=?", f"{a + b}-{c}=", a + b - c, f"{min(a, b)}+{max(a, b)}-{c}")


def _product_and_sum(d: Draws) -> _Drawn:
    a, b, c = d.between(2, 9), d.between(2, 9), d.between(1, 9)
    product = a * b
    return _Drawn(f"{a}*{b}+{c}=?", f"{product}+{c}=", product + c, f"{min(a, b)}*{max(a, b)}+{c}")


def _three_steps(d: Draws) -> _Drawn:
    a, b = d.between(1, 20), d.between(1, 20)
    c = d.between(1, min(20, a + b))
    e = d.between(1, 20)
    first, second = a + b, a + b - c
    work = f"{a}+{b}={first} {first}-{c}={second} {second}+{e}="
    return _Drawn(f"{a}+{b}-{c}+{e}=?", work, second + e, f"{min(a, b)}+{max(a, b)}-{c}+{e}")


def _gcd(d: Draws) -> _Drawn:
    """Euclid's steps, written out."""
    a, b = d.between(2, 99), d.between(2, 99)
    high, low = max(a, b), min(a, b)
    steps = [f"gcd({high},{low})"]
    while low:
        high, low = low, high % low
        steps.append(f"gcd({high},{low})")
    return _Drawn(f"gcd({a},{b})=?", f"{'='.join(steps)}=", math.gcd(a, b), f"gcd({min(a, b)},{max(a, b)})")


def _linear(d: Draws) -> _Drawn:
    a, x, b = d.between(2, 9), d.between(0, 12), d.between(1, 20)
    return _Drawn(f"{a}x+{b}={a * x + b}, x=?", f"{a}x={a * x} x=", x)


_NAMES = ("Ada", "Bo", "Cem", "Dana", "Eli", "Fay", "Gus", "Hana", "Ira", "Jun")
_THINGS = ("pens", "apples", "shells", "coins", "books", "stamps", "eggs", "cards")


def _bought_and_gave(d: Draws) -> _Drawn:
    name, thing = d.choice(_NAMES), d.choice(_THINGS)
    a, b = d.between(2, 30), d.between(2, 30)
    c = d.between(1, a + b)
    question = f"{name} has {a} {thing}, buys {b} more and gives {c} away. How many {thing} are left?"
    return _Drawn(question, f"{a}+{b}={a + b} {a + b}-{c}=", a + b - c)


def _boxes(d: Draws) -> _Drawn:
    name, thing = d.choice(_NAMES), d.choice(_THINGS)
    n, each, loose = d.between(2, 9), d.between(2, 9), d.between(1, 9)
    question = f"{name} fills {n} boxes with {each} {thing} each and keeps {loose} {thing} loose. How many in all?"
    return _Drawn(question, f"{n}*{each}={n * each} {n * each}+{loose}=", n * each + loose)


def _shared(d: Draws) -> _Drawn:
    name, thing = d.choice(_NAMES), d.choice(_THINGS)
    friends, each, left = d.between(2, 9), d.between(2, 9), d.between(0, 9)
    total = friends * each + left
    question = f"{name} has {total} {thing}, keeps {left} and shares the rest among {friends} friends. How many each?"
    return _Drawn(question, f"{total}-{left}={total - left} {total - left}/{friends}=", each)


def _more_than(d: Draws) -> _Drawn:
    first = d.between(0, len(_NAMES) - 1)
    name, other = _NAMES[first], _NAMES[(first + d.between(1, len(_NAMES) - 1)) % len(_NAMES)]
    thing, a, more = d.choice(_THINGS), d.between(2, 40), d.between(1, 20)
    question = f"{name} has {a} {thing}. {other} has {more} more than {name}. How many do they have together?"
    return _Drawn(question, f"{a}+{more}={a + more} {a}+{a + more}=", 2 * a + more)


_TEMPLATES: dict[int, dict[str, Callable[[Draws], _Drawn]]] = {
    1: {"sum20": _sum_to_20, "difference20": _difference_to_20},
    2: {
        "sum99": _two_digit_sum,
        "sum99_carry": _two_digit_sum_with_carry,
        "difference99": _two_digit_difference,
        "difference99_borrow": _two_digit_difference_with_borrow,
        "two_steps": _two_steps,
    },
    3: {
        "three_steps": _three_steps,
        "product_sum": _product_and_sum,
        "gcd": _gcd,
        "linear": _linear,
        "word_bought": _bought_and_gave,
        "word_boxes": _boxes,
        "word_shared": _shared,
        "word_more": _more_than,
    },
}


def template_ids(levels: Sequence[int] = LEVELS) -> tuple[str, ...]:
    """The kinds of problems of these levels."""
    return tuple(name for level in levels for name in _TEMPLATES[level])


def split_of(key: str) -> Split:
    """The split that a problem belongs to, from the digest of its key alone."""
    thousandth = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 1000
    return next(split for split, (low, high) in _SHARES.items() if low <= thousandth < high)


def item(seed: int, split: Split, index: int, *, templates: Sequence[str] = ()) -> Problem:
    """Problem `index` of the endless stream of a seed, a split and the kinds (none named: all of them).

    Two indices can give the same problem; see `problems`.
    """
    kinds = _kinds(templates)
    attempt = 0
    while True:
        draws = Draws(f"arithmetic/{seed}/{split}/{index}/{attempt}")
        level, template_id = draws.choice(kinds)
        drawn = _TEMPLATES[level][template_id](draws)
        key = drawn.key or drawn.question
        if split_of(key) == split:
            return Problem(
                question=drawn.question,
                answer=str(drawn.answer),
                solution=drawn.solution(drawn.answer),
                slip=None if drawn.slip is None else drawn.solution(drawn.slip),
                level=level,
                template_id=template_id,
                key=key,
            )
        attempt += 1


def _kinds(templates: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """(level, template id) of the named templates, in the order of the table whatever order they are named in."""
    known = tuple((level, name) for level, of_level in _TEMPLATES.items() for name in of_level)
    if unknown := sorted(set(templates) - {name for _, name in known}):
        raise DataError(f"templates: {unknown} do not exist; choose from {[name for _, name in known]}")
    return tuple((level, name) for level, name in known if not templates or name in templates)


def problems(
    seed: int,
    split: Split,
    count: int | None = None,
    *,
    levels: Sequence[int] = LEVELS,
    templates: Sequence[str] = (),
) -> Iterator[Problem]:
    """`count` distinct problems (no two of the same key) in the order of their first index; None: all that are found.

    templates: the kinds, all of the named levels if none are named; a named one must be of these levels.
    Raises DataError for what does not exist, a negative count, or more problems than there are.
    """
    if unknown := sorted(set(levels) - set(LEVELS)):
        raise DataError(f"levels: {unknown} do not exist; choose from {list(LEVELS)}")
    if not levels:
        raise DataError(f"levels is empty: name at least one of {list(LEVELS)}")
    if count is not None and count < 0:
        raise DataError(f"count={count}: ask for 0 problems or more")
    if strangers := sorted(set(templates) - set(template_ids(levels))):
        raise DataError(
            f"templates: {strangers} are not of levels {list(levels)}; choose from {list(template_ids(levels))}"
        )
    return _distinct(seed, split, count, tuple(templates) or template_ids(levels))


def _distinct(seed: int, split: Split, count: int | None, templates: Sequence[str]) -> Iterator[Problem]:
    seen: set[str] = set()
    index = repeats = 0
    while count is None or len(seen) < count:
        problem = item(seed, split, index, templates=templates)
        index += 1
        if problem.key not in seen:
            seen.add(problem.key)
            repeats = 0
            yield problem
        elif (repeats := repeats + 1) >= _PATIENCE:
            if count is None:
                return
            raise DataError(
                f"count={count}: the {split} split of {list(templates)} holds only about {len(seen)} distinct problems; "
                "ask for fewer, or add a level or template"
            )
