r"""Reads normalised LaTeX or plain arithmetic into an exact value: `evaluate("2\\sqrt[4]{16}")` is 4.

Numbers (decimals, scientific notation, repeating decimals, mixed numbers), + - * / ^ !, fractions, roots, binomials,
letters, pi. What can be read in two ways (1/2x, two numbers side by side, words) raises NotPlain instead of being
guessed.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from relax_core.rewards.exact import MAX_BITS, NotPlain, TooBig, Value, bounded, rational_power

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?|\.\d+)(?:[eE](?P<exponent>[+-]?\d+)(?![\w.]))?"
    r"|(?P<command>\\[A-Za-z]+|\\[{}])"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<sign>\*\*|[-+*/^_!(){}\[\]]))"
)
_SIMPLE = re.compile(r"(-?)(?:([0-9]+(?:\.[0-9]+)?)(?:/([0-9]+))?|\\frac\{(-?[0-9]+)\}\{([0-9]+)\})")
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon"
    " phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_GREEK = frozenset(_GREEK_NAMES.split())
_MAX_DEPTH = 40
_MAX_FACTORIAL = 1_000


def tokens(text: str) -> list[tuple[str, str, bool]]:
    """(kind, text, whether a space stood before); NotPlain for a sign that is none of arithmetic."""
    found: list[tuple[str, str, bool]] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise NotPlain
        kind = token.lastgroup or ""
        if kind == "exponent":
            kind = "number"
        found.append((kind, text[token.start(kind) : token.end()], token.start(kind) > at))
        at = token.end()
    return found


def simple(text: str) -> Value | None:
    r"""An integer, a decimal, 3/4 or \frac{3}{4}, which most answers are, without reading token by token."""
    found = _SIMPLE.fullmatch(text)
    if found is None or (found[3] and not found[3].strip("0")) or (found[5] and not found[5].strip("0")):
        return None
    top, bottom = (found[4], found[5]) if found[4] else (found[2], found[3] or 1)
    value = Fraction(top) / int(bottom)
    return Value.of(-value if found[1] else value)


def number(text: str) -> Fraction:
    """A decimal, with or without an exponent, exactly."""
    if text.isdigit():
        return bounded(Fraction(int(text)))
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, part = mantissa.partition(".")
    power = int(exponent or 0) if len(exponent) < 9 else MAX_BITS
    return bounded(Fraction(int((whole + part) or 0), 10 ** len(part)) * rational_power(Fraction(10), power))


def evaluate(text: str) -> Value:
    """The value of a normalised text. Raises NotPlain (not read here) or TooBig (refused)."""
    reader = _Reader(tokens(text))
    value = reader.sum()
    if reader.at != len(reader.tokens):
        raise NotPlain
    return value


class _Reader:
    """Recursive descent over the tokens."""

    def __init__(self, items: list[tuple[str, str, bool]]) -> None:
        self.tokens = items
        self.at = 0
        self.depth = 0

    def peek(self, ahead: int = 0) -> str:
        position = self.at + ahead
        return self.tokens[position][1] if position < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        position = self.at + ahead
        return self.tokens[position][0] if position < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        """The next token if it is one of `wanted` (an empty text otherwise)."""
        if self.peek() in wanted and self.peek():
            self.at += 1
            return self.tokens[self.at - 1][1]
        return ""

    def expect(self, wanted: str) -> None:
        if not self.take(wanted):
            raise NotPlain

    def sum(self) -> Value:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise NotPlain
        total = self.product()
        while sign := self.take("+", "-"):
            term = self.product()
            total = total + term if sign == "+" else total + -term
        self.depth -= 1
        return total

    def product(self) -> Value:
        negative = False
        while sign := self.take("+", "-"):
            negative ^= sign == "-"
        result = self.power()
        divided = False
        while True:
            if self.take("*", "\\cdot", "\\times"):
                negative ^= bool(self.take("-"))
                result = result * self.power()
            elif self.take("/"):
                result = result / self.power()
                divided = True
            elif self.starts_factor():
                if divided:
                    raise NotPlain  # 1/2x: one half of x, or one over 2x?
                result = self.mixed(result)
            else:
                return -result if negative else result

    def starts_factor(self) -> bool:
        kind, text = self.kind(), self.peek()
        if kind == "command":
            return text not in ("\\}",)
        return kind in ("number", "word") or text in ("(", "{")

    def mixed(self, whole: Value) -> Value:
        r"""What follows a factor without a sign: a mixed number (3\frac12, 3 1/2) or a multiplication."""
        before = self.tokens[self.at - 1]
        if before[0] == "number" or self.kind() == "number":
            if before[0] == "number" and before[1].isdigit() and self.starts_mixed():
                fraction = self.simple_fraction()
                if not 0 < fraction < 1:
                    raise NotPlain
                return whole + Value.of(fraction)
            if self.kind() == "number":
                raise NotPlain  # two numbers side by side
        return whole * self.power()

    def starts_mixed(self) -> bool:
        first = self.at < 2 or self.tokens[self.at - 2][1] in ("(", "{", "-", "+")
        if self.peek() == "\\frac":
            shape = [self.peek(ahead) for ahead in range(1, 7)]
            plain = (
                shape[0] == shape[3] == "{"
                and shape[2] == shape[5] == "}"
                and shape[1].isdigit()
                and shape[4].isdigit()
            )
            if plain and not first:
                raise NotPlain
            return plain
        return first and self.peek().isdigit() and self.peek(1) == "/" and self.peek(2).isdigit() and self.kind(3) == ""

    def simple_fraction(self) -> Fraction:
        digits = [text for kind, text, _ in self.tokens[self.at : self.at + 7] if kind == "number"]
        self.at += 7 if self.peek() == "\\frac" else 3
        if int(digits[1]) == 0:
            raise NotPlain
        return Fraction(int(digits[0]), int(digits[1]))

    def power(self) -> Value:
        base = self.factorial()
        return base.power(self.exponent()) if self.take("^", "**") else base

    def exponent(self) -> Fraction:
        """A rational exponent: a group, or the whole number that stands there (2^10 is 1024), or a tower."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise NotPlain
        negative = bool(self.take("-"))
        value = self.atom()
        if self.peek() == "!":
            raise NotPlain
        if self.take("^", "**"):
            value = value.power(self.exponent())
        exponent = value.rational()
        if exponent is None:
            raise NotPlain
        self.depth -= 1
        return -exponent if negative else exponent

    def factorial(self) -> Value:
        value = self.atom()
        if not self.take("!"):
            return value
        whole = value.rational()
        if whole is None or whole.denominator > 1 or whole < 0 or self.peek() == "!":
            raise NotPlain
        if whole > _MAX_FACTORIAL:
            raise TooBig
        return Value.of(math.factorial(int(whole)))

    def atom(self) -> Value:
        kind, text = self.kind(), self.peek()
        self.at += 1
        if kind == "number":
            return Value.of(self.repeating(text))
        if text in ("(", "{"):
            value = self.sum()
            self.expect(")" if text == "(" else "}")
            return value
        if kind == "word":
            return self.word(text)
        if kind == "command":
            return self.command(text[1:])
        raise NotPlain

    def repeating(self, text: str) -> Fraction:
        r"""A number, or a repeating decimal such as 0.1\overline{6}."""
        value = number(text)
        if self.peek() != "\\overline":
            return value
        self.at += 1
        self.expect("{")
        digits = self.peek()
        if "." not in text or "e" in text.lower() or not digits.isdigit():
            raise NotPlain
        self.at += 1
        self.expect("}")
        places = len(text.partition(".")[2])
        return bounded(value + Fraction(int(digits), (10 ** len(digits) - 1) * 10**places))

    def word(self, text: str) -> Value:
        if text == "sqrt" and self.take("("):
            value = self.sum()
            self.expect(")")
            return value.power(Fraction(1, 2))
        if text == "pi":
            return Value.symbol("pi")
        if len(text) > 1:
            raise NotPlain
        return Value.symbol(text + self.index())

    def index(self) -> str:
        """A subscript belongs to the name of its letter: x_1, x_{12}."""
        if not self.take("_"):
            return ""
        braced = self.take("{")
        if self.kind() not in ("number", "word"):
            raise NotPlain
        name = self.peek()
        self.at += 1
        if braced:
            self.expect("}")
        elif len(name) > 1:
            raise NotPlain
        return "_" + name

    def group(self) -> Value:
        self.expect("{")
        value = self.sum()
        self.expect("}")
        return value

    def command(self, name: str) -> Value:
        if name == "frac":
            return self.group() / self.group()
        if name == "sqrt":
            degree: Fraction | None = Fraction(2)
            if self.take("["):
                degree = self.sum().rational()
                self.expect("]")
            if degree is None or degree.denominator > 1 or not 2 <= degree <= 100:
                raise NotPlain
            return self.group().power(1 / degree)
        if name == "binom":
            top, bottom = self.group().rational(), self.group().rational()
            if top is None or bottom is None or top.denominator > 1 or bottom.denominator > 1 or not 0 <= bottom <= top:
                raise NotPlain
            if top > _MAX_FACTORIAL:
                raise TooBig
            return Value.of(math.comb(int(top), int(bottom)))
        if name == "pi":
            return Value.symbol("pi")
        if name in _GREEK:
            return Value.symbol("\\" + name + self.index())
        raise NotPlain
