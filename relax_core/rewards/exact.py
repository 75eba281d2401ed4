r"""Exact arithmetic on what a final answer can hold: rationals, roots, pi, letters.

A value is a quotient of two sums. A sum maps monomials to rational coefficients; a monomial is a product of powers of
primes (exponents strictly between 0 and 1: the roots), of letters and of pi (whole exponents). Roots of this form are
linearly independent over the rationals (Besicovitch 1940), so two sums are the same number exactly when they hold the
same terms, and two quotients are compared by multiplying crosswise. Nothing is rounded. Pi, e and other letters are
unknowns; i squared is -1.

Every operation is bounded: a number may have MAX_BITS bits and a sum MAX_TERMS terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

Base = int | str
Monomial = frozenset[tuple[Base, Fraction]]
Terms = dict[Monomial, Fraction]

MAX_BITS = 20_000
MAX_TERMS = 200
MAX_FACTORED = 10**9  # trial division up to its root: about a millisecond
ONE: Monomial = frozenset()


class NotPlain(Exception):
    """The text is outside what is decided here; math-verify may still read it."""


class TooBig(Exception):
    """A power or factorial that nobody should compute: the answer is refused."""


def bounded(number: Fraction) -> Fraction:
    """The number itself, or TooBig."""
    if number.numerator.bit_length() > MAX_BITS or number.denominator.bit_length() > MAX_BITS:
        raise TooBig
    return number


def _merge(left: Monomial, right: Monomial) -> tuple[Fraction, Monomial]:
    """The product of two monomials as coefficient and monomial."""
    if not left:
        return Fraction(1), right
    if not right:
        return Fraction(1), left
    powers: dict[Base, Fraction] = dict(left)
    for base, exponent in right:
        powers[base] = powers.get(base, Fraction(0)) + exponent
    return _canonical(powers)


def _canonical(powers: dict[Base, Fraction]) -> tuple[Fraction, Monomial]:
    """Whole powers of primes move to the coefficient, i squared is -1, zero exponents go."""
    coefficient = Fraction(1)
    kept: list[tuple[Base, Fraction]] = []
    for base, exponent in powers.items():
        rest = exponent
        if isinstance(base, int):
            whole = exponent.numerator // exponent.denominator
            coefficient *= rational_power(Fraction(base), whole)
            rest = exponent - whole
        elif base == "i":
            rest = exponent % 4
            if rest >= 2:
                coefficient, rest = -coefficient, rest - 2
        if rest:
            kept.append((base, rest))
    return coefficient, frozenset(kept)


def rational_power(base: Fraction, exponent: int) -> Fraction:
    """base ** exponent, refused before it is computed if it would be too big; 0 to a power below 1 is undefined."""
    if base == 0:
        if exponent <= 0:
            raise NotPlain
        return base
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and (bits - 1) * abs(exponent) > MAX_BITS:
        raise TooBig
    if abs(base) == 1:
        exponent %= 2
    return bounded(Fraction(base**exponent))


def _product(left: Terms, right: Terms) -> Terms:
    if len(left) * len(right) > 4 * MAX_TERMS:
        raise NotPlain
    result: Terms = {}
    for left_key, left_number in left.items():
        for right_key, right_number in right.items():
            coefficient, key = _merge(left_key, right_key)
            _add(result, key, coefficient * left_number * right_number)
    return result


def _add(terms: Terms, key: Monomial, number: Fraction) -> None:
    total = bounded(terms.get(key, Fraction(0)) + number)
    if total:
        terms[key] = total
    else:
        terms.pop(key, None)
    if len(terms) > MAX_TERMS:
        raise NotPlain


def _factors(number: int) -> dict[int, int]:
    """Prime factors of a number of at most MAX_FACTORED."""
    if number > MAX_FACTORED:
        raise NotPlain
    found: dict[int, int] = {}
    prime = 2
    while prime * prime <= number:
        while number % prime == 0:
            found[prime] = found.get(prime, 0) + 1
            number //= prime
        prime += 1 if prime == 2 else 2
    if number > 1:
        found[number] = found.get(number, 0) + 1
    return found


def _whole_root(number: int, index: int) -> int | None:
    """The index-th root of a number >= 0 where it is whole."""
    if number < 2 or index == 1:
        return number
    low, high = 1, 1 << (number.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**index <= number else (low, middle - 1)
    return low if low**index == number else None


@dataclass(frozen=True, slots=True)
class Value:
    """top / bottom; bottom is never the empty (zero) sum."""

    top: Terms
    bottom: Terms

    @staticmethod
    def of(number: Fraction | int) -> Value:
        """A rational number."""
        number = bounded(Fraction(number))
        return Value({ONE: number} if number else {}, {ONE: Fraction(1)})

    @staticmethod
    def symbol(name: str) -> Value:
        """A letter or a named constant."""
        return Value({frozenset({(name, Fraction(1))}): Fraction(1)}, {ONE: Fraction(1)})

    def rational(self) -> Fraction | None:
        """The value as a rational number, None if it is none (or not plainly one)."""
        if set(self.top) <= {ONE} and set(self.bottom) == {ONE}:
            return self.top.get(ONE, Fraction(0)) / self.bottom[ONE]
        return None

    def __neg__(self) -> Value:
        return Value({key: -number for key, number in self.top.items()}, self.bottom)

    def __add__(self, other: Value) -> Value:
        if self.bottom == other.bottom:
            top = dict(self.top)
            for key, number in other.top.items():
                _add(top, key, number)
            return Value(top, self.bottom)
        top = _product(self.top, other.bottom)
        for key, number in _product(other.top, self.bottom).items():
            _add(top, key, number)
        return Value(top, _product(self.bottom, other.bottom))

    def __mul__(self, other: Value) -> Value:
        return Value(_product(self.top, other.top), _product(self.bottom, other.bottom))

    def __truediv__(self, other: Value) -> Value:
        if not other.top:
            raise NotPlain  # division by zero
        result = self * Value(other.bottom, other.top)
        if len(result.bottom) == 1:  # one term divides each term: keeps denominators short
            ((key, number),) = result.bottom.items()
            inverse = dict(key)
            coefficient, monomial = _canonical({base: -exponent for base, exponent in inverse.items()})
            return Value(_product(result.top, {monomial: coefficient / number}), {ONE: Fraction(1)})
        return result

    def power(self, exponent: Fraction) -> Value:
        """The value to a rational power; roots of rational numbers only, the real and (for even roots) positive one."""
        if exponent.denominator > 1:
            return self._root(exponent.denominator).power(Fraction(exponent.numerator))
        whole = exponent.numerator
        if whole < 0:
            return Value.of(1) / self.power(Fraction(-whole))
        if not self.top and whole == 0:
            raise NotPlain
        return Value(_terms_power(self.top, whole), _terms_power(self.bottom, whole))

    def _root(self, index: int) -> Value:
        number = self.rational()
        if number is None or index > 100:
            raise NotPlain
        if number < 0:
            if index % 2 == 0:
                raise NotPlain
            return -Value.of(-number)._root(index)
        top, bottom = _whole_root(number.numerator, index), _whole_root(number.denominator, index)
        if top is not None and bottom is not None:
            return Value.of(Fraction(top, bottom))
        powers: dict[Base, Fraction] = {}
        for sign, part in ((1, number.numerator), (-1, number.denominator)):
            for prime, count in _factors(part).items():
                powers[prime] = Fraction(sign * count, index)
        coefficient, monomial = _canonical(powers)
        return Value({monomial: coefficient}, {ONE: Fraction(1)})

    def same(self, other: Value) -> bool:
        """Exact equality."""
        if self.bottom == other.bottom:
            return self.top == other.top
        return _product(self.top, other.bottom) == _product(other.top, self.bottom)


def _terms_power(terms: Terms, exponent: int) -> Terms:
    if len(terms) <= 1:
        result: Terms = {}
        for key, number in terms.items():
            if abs(exponent) > 10**6 and key:
                raise NotPlain
            coefficient, monomial = _canonical({base: power * exponent for base, power in key})
            result[monomial] = bounded(coefficient * rational_power(number, exponent))
        return result if terms or exponent else {ONE: Fraction(1)}
    if exponent > 64:
        raise NotPlain
    result = {ONE: Fraction(1)}
    for _ in range(exponent):
        result = _product(result, terms)
    return result
