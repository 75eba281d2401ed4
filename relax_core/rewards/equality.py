r"""Are two final answers the same answer? Decided exactly by our own code wherever that is possible, in microseconds.

`compare` answers True, False, or None where only a computer algebra system can tell (functions, inequalities,
equations). `equal` asks math-verify for these, in a process that can be killed. The rules of the reading (units,
percent, lists, sets, names) are policy and written in docs/rewards.md. This module imports neither math-verify nor
sympy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from relax_core.rewards.boxed import last_boxed
from relax_core.rewards.exact import NotPlain, TooBig, Value
from relax_core.rewards.latex import evaluate, simple
from relax_core.rewards.normalise import MAX_ANSWER, group_end, normalise


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value with the unit that stands at it; "" is none, or one that is not known."""

    value: Value
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Word:
    """Words, compared without regard to case and spaces."""

    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers. kind: "list" (no brackets), "set", "union", the two brackets of a tuple or interval, or "matrix
    RxC".
    """

    kind: str
    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """`x = 5`: an answer that says what it is the value of."""

    name: str
    answer: Answer


Answer = Scalar | Word | Group | Named

_UNIT_NAMES = {
    "%": "% percent pct percentage",
    "deg": "degree degrees deg",
    "rad": "radian radians rad",
    "dollar": "dollar dollars usd bucks buck",
    "cent": "cent cents",
    "euro": "euro euros eur €",
    "pound": "£ gbp",
    "yen": "yen ¥ jpy",
    "rupee": "rupee rupees ₹ inr",
    "yuan": "yuan rmb",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "inch": "inch inches in",
    "foot": "foot feet ft",
    "yard": "yard yards yd",
    "mile": "mile miles mi",
    "g": "g gram grams",
    "mg": "mg milligram milligrams",
    "kg": "kg kilogram kilograms",
    "lb": "lb lbs pounds pound",
    "oz": "oz ounce ounces",
    "l": "l L liter liters litre litres",
    "ml": "ml mL milliliter milliliters millilitre millilitres",
    "s": "s sec second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years yr yrs",
    "unit": "unit units",
    "mph": "mph",
    "kph": "kph kmh",
    "n": "N newton newtons",
    "j": "J joule joules",
    "w": "W watt watts",
    "hz": "Hz hertz",
}
_UNITS = {name: unit for unit, names in _UNIT_NAMES.items() for name in names.split()}
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
# Words that change what a number says; never dropped as if they were a unit.
_RESERVED_WORDS = (
    "or and to if when where for is are not no than less more least most about approximately between mod of times plus"
    " minus over by at with from but except only none half third quarter quarters thirds undefined infinity negative"
    " positive pi"
)
_FUNCTION_NAMES = "sin cos tan cot sec csc log ln exp sqrt mod gcd lcm max min lim det arcsin arccos arctan"
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_RESERVED = _FUNCTIONS | frozenset(_RESERVED_WORDS.split())
_MISSING = frozenset(("nan", "null", "none", "n/a", "na", "unknown", "?", "-", "proof", "see solution", "[]", "{}"))
_MAX_WORDS = 4  # a longer gold in words is prose

# (a letter, perhaps with an index or an argument) or (a label: a word, or a tuple of letters), then = and the answer
_NAME = re.compile(
    r"(?:((?:[A-Za-z]|\\[a-zA-Z]+)(?:_(?:\w|\{\w+\}))?(?:\([a-z]\))?)|[A-Za-z]{2,12}|\([a-z](?:, [a-z])+\))"
    r" ?(?:=|\\approx ?|\\in(?![A-Za-z]) ?)(.+)"
)
_RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|approx|in|to|mapsto)(?![A-Za-z])")
_LEAD = re.compile(r"(?:=|\\(?:approx|therefore|Rightarrow|implies)(?![A-Za-z])) ?")
_CHOICE = re.compile(r"([A-Z])\)")
_AND = re.compile(r",? and |,? or |;")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_CURRENCY = re.compile(r"(-?)(\\\$|[€£¥₹])(.+)")
_UNIT_PART = re.compile(r"([A-Za-z€£¥₹%]+)(?:\^\{?([23])\}?)?")
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_WORDS = re.compile(r"[A-Za-z]{2,}")
_FORMULA = re.compile(r"[\\^_=<>|+*]")
_WORD = re.compile(r"[A-Za-z]{3,}|\b[Nn][Oo]\b")
_BRACKETS = {"(": ")", "[": "]", "\\{": "\\}"}
_HOPELESS = re.compile(
    r"\d{4,}\s*[)}]*\s*!"  # a huge factorial
    r"|!\s*[)}]*\s*!"  # a factorial of a factorial
    r"|\^\s*\{?-?\d{5,}"  # a huge power
    r"|(?:\^[\s{(]*[^\s{}()^+\-*/,=]+[\s{(]*){3}"  # a tower of three powers
    r"|\\uparrow"
)


def hopeless(text: str) -> bool:
    """Whether a normalised answer has a shape that may keep a computer algebra system busy for ever: it is refused
    unread.
    """
    return len(text) > MAX_ANSWER or text.count("{") + text.count("(") > 120 or bool(_HOPELESS.search(text))


def plain(answer: str) -> str:
    """The normalised answer; where a gold still stands in its box or in the text of a solution, what the box holds."""
    return normalise(last_boxed(answer) or answer if "box" in answer else answer)


@lru_cache(maxsize=8192)
def read(text: str) -> Answer | type[NotPlain] | type[TooBig]:
    """A normalised text as an answer, or the exception that says why it is not read here."""
    if len(text) > MAX_ANSWER:
        return TooBig
    try:
        return _read(text, 0)
    except NotPlain:
        return TooBig if hopeless(text) else NotPlain
    except TooBig:
        return TooBig


def _read(text: str, depth: int) -> Answer:
    if depth > 8 or not text:
        raise NotPlain
    if (value := simple(text)) is not None:
        return Scalar(value)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _matrix(matrix[2], depth)
    if "\\begin" in text:
        raise NotPlain
    text = _TEXT.sub(r" \1 ", text).strip()
    text = re.sub(r" ?\^ ?", "^", re.sub(r" {2,}", " ", text))
    text = _LEAD.sub("", text, count=1) if _LEAD.match(text) else text
    text = _CHOICE.sub(r"\1", text) if _CHOICE.fullmatch(text) else text
    named = _NAME.fullmatch(text)
    if named and not _RELATION.search(named[2]) and len(_split(text)) == 1:
        inner = _read(named[2].strip(), depth + 1)
        return Named(re.sub("[{}]", "", named[1]), inner) if named[1] else inner
    if "\\cup" in text:
        return Group("union", tuple(_read(part.strip(), depth + 1) for part in re.split(r"\\cup(?![A-Za-z])", text)))
    parts = _split(text)
    if len(parts) > 1:
        return Group("list", tuple(item for part in parts for item in _items(part, depth)))
    group = _bracketed(text, depth)
    if group is not None:
        return group
    if "\\pm" in text:
        return Group("list", tuple(_items(text, depth)))
    return _scalar(text)


def _matrix(body: str, depth: int) -> Answer:
    rows = [row.split("&") for row in re.split(r"\\\\", body.strip().removesuffix("\\\\"))]
    if len({len(row) for row in rows}) != 1:
        raise NotPlain
    cells = tuple(_read(normalise(cell), depth + 1) for row in rows for cell in row)
    return Group(f"matrix {len(rows)}x{len(rows[0])}", cells)


def _items(part: str, depth: int) -> list[Answer]:
    r"""One item of a list; a \pm stands for two."""
    if part.count("\\pm") != 1:
        return [_read(part, depth + 1)]
    return [_read(normalise(part.replace("\\pm", sign)).removeprefix("+"), depth + 1) for sign in ("+", "-")]


def _split(text: str) -> list[str]:
    """The parts between commas, semicolons, "and" and "or" that stand outside all brackets."""
    if ", " not in text and not _AND.search(text):
        return [text]
    parts: list[str] = []
    depth = start = at = 0
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            depth += (text[at : at + 2] == "\\{") - (text[at : at + 2] == "\\}")
            at += 2
            continue
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            separator = _AND.match(text, at) or re.compile(", ").match(text, at)
            if separator:
                parts.append(text[start:at])
                start = at = separator.end()
                continue
        at += 1
    parts.append(text[start:])
    if depth != 0 or not all(part.strip() for part in parts):
        raise NotPlain
    return [part.strip() for part in parts]


def _bracketed(text: str, depth: int) -> Group | Answer | None:
    """A tuple, interval, set, or a single answer in brackets; None if the text is none of these."""
    opening = "\\{" if text.startswith("\\{") else text[:1]
    closing = next((end for end in ("\\}", ")", "]") if text.endswith(end)), "")
    if opening not in _BRACKETS or not closing or not _one_pair(text, len(opening)):
        return None
    inner = text[len(opening) : -len(closing)].strip()
    if (opening == "\\{") != (closing == "\\}"):
        raise NotPlain
    if not inner:
        return Group("set", ()) if opening == "\\{" else None
    parts = _split(inner)
    if len(parts) == 1:
        if opening == "\\{" and "\\pm" in inner:
            return Group("set", tuple(_items(inner, depth)))
        return _read(inner, depth + 1) if _BRACKETS[opening] == closing else None
    items = tuple(item for part in parts for item in _items(part, depth))
    return Group("set" if opening == "\\{" else opening + closing, items)


def _one_pair(text: str, start: int) -> bool:
    """Whether the bracket before `start` is closed by the last sign of the text and not earlier."""
    depth = 1
    at = start
    while at < len(text):
        sign = text[at : at + 2] if text[at] == "\\" else text[at]
        depth += (sign in ("(", "[", "{", "\\{")) - (sign in (")", "]", "}", "\\}"))
        at += len(sign)
        if depth == 0:
            return at == len(text)
    return False


def _scalar(text: str) -> Answer:
    if text in ("\\emptyset", "\\varnothing"):
        return Group("set", ())
    if text in ("\\infty", "+\\infty", "-\\infty"):
        return Scalar(-Value.symbol("\\infty") if text[0] == "-" else Value.symbol("\\infty"))
    try:
        return Scalar(evaluate(text))
    except NotPlain:
        measured = _measured(text)
    if measured is not None:
        return measured
    if _is_words(text):
        return Word(re.sub(r"[\s$()]+", "", text).casefold())
    raise NotPlain


def _measured(text: str) -> Scalar | None:
    """A number with a currency sign before or a unit behind it."""
    money = _CURRENCY.fullmatch(text)
    if money:
        unit = {"\\$": "dollar"}.get(money[2]) or _UNITS[money[2]]
        inner = _scalar(money[1] + money[3].strip())
        return Scalar(inner.value, unit) if isinstance(inner, Scalar) and inner.unit in ("", unit) else None
    for at in [found.end() for found in re.finditer(r"[\d)}\]!]|\\pi(?![A-Za-z])", text)][::-1]:
        suffix = text[at:].strip()
        if not suffix:
            continue
        unit_scale = _unit(suffix, spaced=text[at] == " ")
        if unit_scale is None:
            continue
        unit, scale = unit_scale
        try:
            return Scalar(evaluate(text[:at]) * Value.of(scale), unit)
        except NotPlain:
            continue
    return None


def _unit(suffix: str, *, spaced: bool) -> tuple[str, int] | None:
    """(unit, scale) of what stands behind a number; unit "" for words that are no known unit; None if it is no unit at
    all.
    """
    if suffix in ("%", "\\%"):
        return "%", 1
    if suffix in ("^{\\circ}", "{^{\\circ}}"):
        return "deg", 1
    if not spaced and suffix in ("st", "nd", "rd", "th"):
        return "", 1
    if suffix in ("^{\\circ}C", "^{\\circ}F", "^{\\circ} C", "^{\\circ} F"):
        return "deg" + suffix[-1], 1
    words = suffix.split()
    scale = _SCALES.get(words[0].casefold(), 1)
    if scale > 1:
        words = words[1:]
        if not words:
            return "", scale
    phrase = (
        " ".join(words)
        .replace(" per ", "/")
        .replace("square ", "square_")
        .replace("cubic ", "cubic_")
        .replace("sq ", "square_")
    )
    names = [_unit_name(part) for part in re.split(r"[/·]|\\cdot ?", phrase)]
    if all(names) and (spaced or len(suffix) > 1):
        return "/".join(name or "" for name in names), scale
    vague = re.fullmatch(r"[A-Za-z]{2,}(?:[ -][A-Za-z]{2,}){0,2}", " ".join(words))
    if spaced and vague and not _RESERVED & set(suffix.casefold().replace("-", " ").split()):
        return "", scale
    return None


def _unit_name(text: str) -> str | None:
    """The canonical name of one unit with its power, None if it is not known."""
    power = {"square": 2, "cubic": 3}.get(text.partition("_")[0], 1)
    if power > 1:
        text = text.partition("_")[2]
    part = _UNIT_PART.fullmatch(text.strip())
    if not part:
        return None
    unit = _UNITS.get(part[1]) or (_UNITS.get(part[1].casefold()) if len(part[1]) > 1 else None)
    power = int(part[2]) if part[2] else power
    return None if unit is None else unit + (str(power) if power > 1 else "")


def _is_words(text: str) -> bool:
    """Whether a text is words and no formula."""
    words = _WORD.findall(text)
    return bool(words) and not _FORMULA.search(text) and not any(word.casefold() in _FUNCTIONS for word in words)


def _same(left: Answer, right: Answer) -> bool:
    if isinstance(left, Named) or isinstance(right, Named):
        if isinstance(left, Named) and isinstance(right, Named) and left.name != right.name:
            return False
        return _same(
            left.answer if isinstance(left, Named) else left, right.answer if isinstance(right, Named) else right
        )
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        return (left.unit == right.unit or not left.unit or not right.unit) and left.value.same(right.value)
    if isinstance(left, Word) and isinstance(right, Word):
        if left.text != right.text and len(left.text) < 5 and sorted(left.text) == sorted(right.text):
            raise NotPlain  # words, or products of the same letters?
        return left.text == right.text
    if isinstance(left, Group) and isinstance(right, Group):
        return _same_group(left, right)
    return False


def _same_group(left: Group, right: Group) -> bool:
    if len(left.items) != len(right.items):
        return False
    kinds = {left.kind, right.kind}
    if kinds <= {"list", "set", "union"} and (len(kinds) == 1 or "union" not in kinds):
        return _same_unordered(left.items, right.items)
    if len(kinds) == 1 or kinds == {"list", "()"}:
        return all(_same(a, b) for a, b in zip(left.items, right.items, strict=True))
    return False


def _same_unordered(left: Sequence[Answer], right: Sequence[Answer]) -> bool:
    """Whether the items can be paired off."""
    rest = list(right)
    for item in left:
        partner = next((at for at, other in enumerate(rest) if _same(item, other)), None)
        if partner is None:
            return False
        del rest[partner]
    return True


def _compact(text: str) -> str:
    r"""Without \text and without the spaces that do not keep two numbers apart."""
    return re.sub(r"(?<!\d) | (?!\d)", "", _TEXT.sub(r"\1", text))


def compare_plain(left: str, right: str) -> bool | None:
    """`compare` of two texts that are normalised already. Raises TooBig where one is refused by its shape and they
    differ.
    """
    if left == right:
        return True
    a, b = read(left), read(right)
    if a is TooBig or b is TooBig:
        raise TooBig
    if _compact(left) == _compact(right):
        return True
    if isinstance(a, type) or isinstance(b, type):
        return None
    try:
        return _same(a, b)
    except NotPlain:
        return None


def compare(left: str, right: str) -> bool | None:
    """Whether two final answers are the same; None where math-verify has to be asked, and False where a shape is
    refused.
    """
    try:
        return compare_plain(plain(left), plain(right))
    except TooBig:
        return False


def equal(left: str, right: str) -> bool:
    """Whether two final answers are the same; symmetric.

    What our own rules do not decide goes to math-verify in a process of its own, which costs a second or two: for many
    such pairs use `Grader.equal_many`. An answer that cannot be read within the limits equals nothing but itself.
    """
    decided = compare(left, right)
    if decided is not None:
        return decided
    from relax_core.rewards.pool import Grader  # here, since the pool imports this module

    with Grader(workers=1) as grader:
        return grader.equal_many([(left, right)])[0]


def verifiable(answer: str) -> bool:
    """Whether an answer can serve as gold: a value, a group of values, a formula that math-verify may read, or at most
    four words.
    """
    text = plain(answer)
    if not text or text.casefold() in _MISSING:
        return False
    found = read(text)
    if isinstance(found, type):
        return found is NotPlain and _balanced(text) and _few_words(text)
    return _words_are_few(found, text)


def _words_are_few(found: Answer, text: str) -> bool:
    if isinstance(found, Group):
        return not any(isinstance(item, Word) for item in found.items) or _few_words(text)
    return not isinstance(found, Word) or _few_words(text)


def _few_words(text: str) -> bool:
    """Prose is no gold: it would only ever equal itself."""
    words = _WORDS.findall(re.sub(r"\\[A-Za-z]+", " ", text))
    return len(words) <= _MAX_WORDS and bool(re.search(r"[A-Za-z0-9]", text))


def _balanced(text: str) -> bool:
    return group_end("{" + text + "}", 0) == len(text) + 2
