"""Exact numbers: sums of fraction × square root × atoms, where an atom is e^(…), sin(…), cos(…) or 1/(a sum).

They are closed under + and ×, so that attention stays exact from its inputs to its output. A sum that grows
too long to be read is carried on as one atom of 60 digits, and is then written with ≈.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Overflow, localcontext
from fractions import Fraction
from functools import cached_property
from math import gcd

DIGITS = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
MOST_TERMS = 32  # a longer sum is not read by anybody: it goes on as one atom
MOST_PRODUCTS = 64  # nor is a product of two sums with more pairs of terms than this


@dataclass(frozen=True)
class Atom:
    """A number with a name: `text` says what it is, `value` what it is worth to 60 digits."""

    text: str
    latex: str = field(compare=False)
    value: Decimal = field(compare=False)
    inverse: bool = False  # the text is what stands under the fraction bar
    readable: bool = True
    below: "Number | None" = field(default=None, compare=False)  # what an inverse is the inverse of


Monomial = tuple[int, tuple[Atom, ...]]  # the square-free number under the root, and the atoms multiplied
PLAIN: Monomial = (1, ())


@dataclass(frozen=True)
class Number:
    """Σ fraction · √radicand · atoms; the terms keep the order in which they came.

    >>> (Number.of(3) * Number.of(Fraction(1, 2)) * square_root(2)).decimal.__round__(6)
    Decimal('2.121320')
    """

    terms: Mapping[Monomial, Fraction]

    @staticmethod
    def of(value: int | Fraction) -> "Number":
        return Number({PLAIN: Fraction(value)} if value else {})

    @cached_property
    def decimal(self) -> Decimal:
        """The number to 60 digits."""
        with localcontext(DIGITS):
            total = Decimal(0)
            for (radicand, atoms), fraction in self.terms.items():
                part = Decimal(fraction.numerator) / Decimal(fraction.denominator)
                part = part if radicand == 1 else part * Decimal(radicand).sqrt()
                for atom in atoms:
                    part *= atom.value
                total += part
            return total

    @property
    def fraction(self) -> Fraction | None:
        """The number as a fraction, if it is one."""
        if not self.terms:
            return Fraction(0)
        return self.terms[PLAIN] if set(self.terms) == {PLAIN} else None

    def __add__(self, other: "Number") -> "Number":
        terms = dict(self.terms)
        for monomial, fraction in other.terms.items():
            _collect(terms, monomial, fraction)
        return _settled(terms)

    def __neg__(self) -> "Number":
        return Number({monomial: -fraction for monomial, fraction in self.terms.items()})

    def __sub__(self, other: "Number") -> "Number":
        return self + -other

    def __mul__(self, other: "Number") -> "Number":
        if len(self.terms) * len(other.terms) > MOST_PRODUCTS:
            return approximate(DIGITS.multiply(self.decimal, other.decimal))
        terms: dict[Monomial, Fraction] = {}
        for (first_root, first_atoms), first in self.terms.items():
            for (second_root, second_atoms), second in other.terms.items():
                outside = gcd(first_root, second_root)  # both are square-free
                root = first_root * second_root // outside**2
                atoms = first_atoms + second_atoms
                if first_atoms and second_atoms:
                    atoms = tuple(sorted(atoms, key=lambda atom: (atom.inverse, atom.text)))
                _collect(terms, (root, atoms), first * second * outside)
        return _settled(terms)

    def inverse(self) -> "Number":
        """1 / self; a sum, or an atom, goes under a fraction bar as it is."""
        if not self.terms:
            raise ZeroDivisionError("1/0 is not a number")
        if len(self.terms) == 1:
            ((radicand, atoms), fraction) = next(iter(self.terms.items()))
            if not atoms:
                return Number({(radicand, ()): 1 / (fraction * radicand)})
        from qkv.byhand.writing import (  # writing reads numbers, numbers name their atoms
            latex,
            plain,
            readable,
        )

        with localcontext(DIGITS):
            value = 1 / self.decimal
        return _atom(Atom(plain(self), latex(self), value, True, readable(self), self))

    def reduced(self) -> "Number":
        """The same number with (2e+4)/(e+2) written as 2."""
        groups: dict[tuple[Atom, ...], dict[Monomial, Fraction]] = {}
        for (radicand, atoms), fraction in self.terms.items():
            bars = tuple(atom for atom in atoms if atom.inverse)
            groups.setdefault(bars, {})[radicand, tuple(atom for atom in atoms if not atom.inverse)] = fraction
        terms: dict[Monomial, Fraction] = {}
        for bars, above in groups.items():
            below = bars[0].below if len(bars) == 1 else None
            if below is not None and set(below.terms) == set(above):
                ratios = {fraction / below.terms[monomial] for monomial, fraction in above.items()}
                if len(ratios) == 1:
                    _collect(terms, PLAIN, ratios.pop())
                    continue
            for (radicand, atoms), fraction in above.items():
                _collect(terms, (radicand, atoms + bars), fraction)
        return Number(terms)


def _collect(terms: dict[Monomial, Fraction], monomial: Monomial, fraction: Fraction) -> None:
    total = terms.get(monomial, Fraction(0)) + fraction
    if total:
        terms[monomial] = total
    else:
        terms.pop(monomial, None)


def _settled(terms: Mapping[Monomial, Fraction]) -> Number:
    number = Number(terms)
    return number if len(terms) <= MOST_TERMS else approximate(number.decimal)


def _atom(atom: Atom) -> Number:
    return Number({(1, (atom,)): Fraction(1)})


def _simplify_root(radicand: int) -> tuple[int, int]:
    """√radicand = outside · √inside with the smallest inside.

    >>> _simplify_root(72)
    (6, 2)
    """
    outside, factor = 1, 2
    while factor * factor <= radicand:
        if radicand % (factor * factor):
            factor += 1
        else:
            radicand //= factor * factor
            outside *= factor
    return outside, radicand


def approximate(value: Decimal) -> Number:
    """A number known by its digits alone."""
    text = f"≈{value:.40g}"
    return _atom(Atom(text, text, value, readable=False)) if value else Number.of(0)


def square_root(value: int | Fraction) -> Number:
    """√value, with squares taken out of the root and none left below the bar."""
    value = Fraction(value)
    if value < 0:
        raise ValueError(f"√({value}) is not a real number: a root needs a number that is not negative")
    inside = value.numerator * value.denominator
    if inside > 10**12:
        raise ValueError(f"√({value}) is too long to work by hand: a root takes numbers up to a million")
    outside, radicand = _simplify_root(inside)
    return Number({(radicand, ()): Fraction(outside, value.denominator)} if outside and radicand else {})


def exponential(power: Number) -> Number:
    """e^power, kept as text beside its 60 digits.

    >>> from qkv.byhand.writing import plain
    >>> plain(exponential(Number.of(Fraction(-5, 2))))
    'e^(-5/2)'
    """
    from qkv.byhand.writing import latex, plain, readable

    if not power.terms:
        return Number.of(1)
    try:
        value = DIGITS.exp(power.decimal)
    except Overflow:
        raise ValueError(
            f"e^({plain(power)}) is beyond any computer's range: use smaller inputs or a smaller beta"
        ) from None
    text = plain(power)
    return _atom(
        Atom(
            "e" if text == "1" else f"e^{text}" if text.isdigit() else f"e^({text})",
            f"e^{{{latex(power)}}}",
            value,
            readable=readable(power),
        )
    )


def named(text: str, latex: str, value: Decimal) -> Number:
    """A number that is known by a name, such as sin(1)."""
    return _atom(Atom(text, latex, value))
