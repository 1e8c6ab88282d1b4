"""Exact numbers (fractions, square roots, powers of e) and how they are written: text, LaTeX, decimals.

A `Number` is a sum of terms fraction × √integer × atoms; an atom is e^(…), sin(…), cos(…) or 1/(a sum). Numbers are
closed under + and ×, so attention stays exact from its inputs to its output. A sum that grows too long to read is
replaced by one atom of 60 digits and is then written with ≈.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from math import gcd

CONTEXT = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
MAX_TERMS = 32  # a sum with more terms becomes one atom
MAX_PRODUCTS = 64  # so does a product of two sums with more pairs of terms
MAX_POWER = 100_000  # of e; a number with more digits takes too long to compare and to write
READABLE_TERMS = 8  # a sum with more terms is likely to be longer than MAX_TEXT
MAX_TEXT = 96  # characters; a longer number is written as ≈ and 20 digits


@dataclass(frozen=True)
class NamedFactor:
    """A named factor: `text` says what it is, `value` is its value to 60 digits."""

    text: str = field(compare=False)
    latex: str = field(compare=False)
    value: Decimal = field(compare=False)
    inverse: bool = False  # the atom is 1/text
    readable: bool = True
    denominator: "Number | None" = field(default=None, compare=False)  # of an inverse
    key: str = ""  # the text, whatever the order of its terms: e+1 and 1+e are equal

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.text)


Monomial = tuple[int, tuple[NamedFactor, ...]]  # the square-free integer under the root, and the atoms multiplied
UNIT: Monomial = (1, ())


@dataclass(frozen=True)
class Number:
    """Σ fraction · √radicand · atoms; the terms keep their order of insertion.

    >>> (Number.of(3) * Number.of(Fraction(1, 2)) * square_root(2)).decimal.__round__(6)
    Decimal('2.121320')
    """

    terms: Mapping[Monomial, Fraction]

    @staticmethod
    def of(value: int | Fraction) -> "Number":
        return Number({UNIT: Fraction(value)} if value else {})

    @cached_property
    def decimal(self) -> Decimal:
        """The value to 60 digits."""
        with localcontext(CONTEXT):
            total = Decimal(0)
            for (radicand, atoms), fraction in self.terms.items():
                term = Decimal(fraction.numerator) / Decimal(fraction.denominator)
                if radicand != 1:
                    term *= Decimal(radicand).sqrt()
                for atom in atoms:
                    term *= atom.value
                total += term
            return total

    @property
    def fraction(self) -> Fraction | None:
        """The number as a fraction, or None if it is irrational."""
        if not self.terms:
            return Fraction(0)
        return self.terms[UNIT] if set(self.terms) == {UNIT} else None

    def __add__(self, other: "Number") -> "Number":
        terms = dict(self.terms)
        for monomial, fraction in other.terms.items():
            _add_term(terms, monomial, fraction)
        return _limit_terms(terms)

    def __neg__(self) -> "Number":
        return Number({monomial: -fraction for monomial, fraction in self.terms.items()})

    def __sub__(self, other: "Number") -> "Number":
        return self + -other

    def __mul__(self, other: "Number") -> "Number":
        if len(self.terms) * len(other.terms) > MAX_PRODUCTS:
            return approximate(CONTEXT.multiply(self.decimal, other.decimal))
        terms: dict[Monomial, Fraction] = {}
        for (first_root, first_atoms), first in self.terms.items():
            for (second_root, second_atoms), second in other.terms.items():
                common = gcd(first_root, second_root)  # both are square-free
                root = first_root * second_root // common**2
                atoms = first_atoms + second_atoms
                if first_atoms and second_atoms:
                    atoms = tuple(sorted(atoms, key=lambda atom: (atom.inverse, atom.key)))
                _add_term(terms, (root, atoms), first * second * common)
        return _limit_terms(terms)

    def inverse(self) -> "Number":
        """1 / self; a sum or an atom becomes a denominator as it is."""
        if not self.terms:
            raise ZeroDivisionError("1/0 is not a number")
        if len(self.terms) == 1:
            ((radicand, atoms), fraction) = next(iter(self.terms.items()))
            if not atoms:
                return Number({(radicand, ()): 1 / (fraction * radicand)})
        with localcontext(CONTEXT):
            value = 1 / self.decimal
        key = to_text(Number(dict(sorted(self.terms.items(), key=lambda term: _text_term(*term)))))
        return _from_factor(NamedFactor(to_text(self), to_latex(self), value, True, is_readable(self), self, key))

    def reduce(self) -> "Number":
        """The same number with fractions of equal sums reduced: (2e+4)/(e+2) becomes 2. A long one becomes digits."""
        terms: dict[Monomial, Fraction] = {}
        for denominators, numerator in _group_by_denominator(self).items():
            below = denominators[0].denominator if len(denominators) == 1 else None
            if below is not None and set(below.terms) == set(numerator):
                ratios = {fraction / below.terms[monomial] for monomial, fraction in numerator.items()}
                if len(ratios) == 1:
                    _add_term(terms, UNIT, ratios.pop())
                    continue
            for (radicand, atoms), fraction in numerator.items():
                _add_term(terms, (radicand, atoms + denominators), fraction)
        if len(terms) > READABLE_TERMS and not is_readable(Number(terms)):
            return approximate(self.decimal)
        return Number(terms)


def _add_term(terms: dict[Monomial, Fraction], monomial: Monomial, fraction: Fraction) -> None:
    total = terms.get(monomial, Fraction(0)) + fraction
    if total:
        terms[monomial] = total
    else:
        terms.pop(monomial, None)


def _limit_terms(terms: Mapping[Monomial, Fraction]) -> Number:
    number = Number(terms)
    return number if len(terms) <= MAX_TERMS else approximate(number.decimal)


def _from_factor(atom: NamedFactor) -> Number:
    return Number({(1, (atom,)): Fraction(1)})


def _group_by_denominator(number: Number) -> dict[tuple[NamedFactor, ...], dict[Monomial, Fraction]]:
    """The terms without their inverse atoms, grouped by these."""
    groups: dict[tuple[NamedFactor, ...], dict[Monomial, Fraction]] = {}
    for (radicand, atoms), fraction in number.terms.items():
        below = tuple(atom for atom in atoms if atom.inverse)
        above = tuple(atom for atom in atoms if not atom.inverse)
        groups.setdefault(below, {})[radicand, above] = fraction
    return groups


def approximate(value: Decimal) -> Number:
    """A number known by its digits only."""
    text = f"≈{value:.40g}"
    return _from_factor(NamedFactor(text, text, value, readable=False)) if value else Number.of(0)


def named_number(text: str, latex: str, value: Decimal) -> Number:
    """A number with a name, such as sin(1)."""
    return _from_factor(NamedFactor(text, latex, value))


def square_root(value: int | Fraction) -> Number:
    """√value in lowest terms: squares are taken out of the root, and no root is left in the denominator."""
    value = Fraction(value)
    if value < 0:
        raise ValueError(f"√({value}) is not a real number: the root needs a number of at least 0")
    inside = value.numerator * value.denominator
    if inside > 10**12:
        raise ValueError(f"√({value}) is too long to solve by hand: roots take numbers up to a million")
    outside, radicand = _simplify_root(inside)
    return Number({(radicand, ()): Fraction(outside, value.denominator)} if outside and radicand else {})


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


def exponential(power: Number) -> Number:
    """e^power, kept as text next to its 60 digits.

    >>> to_text(exponential(Number.of(Fraction(-5, 2))))
    'e^(-5/2)'
    """
    if not power.terms:
        return Number.of(1)
    text = to_text(power)
    if abs(power.decimal) > MAX_POWER:
        size = "large" if power.decimal > 0 else "small"
        raise ValueError(f"e^({text}) is too {size} to compute: use smaller inputs or a smaller scale")
    value = CONTEXT.exp(power.decimal)
    name = f"e^{text}" if text.isdigit() else f"e^({text})"
    name = "e" if text == "1" else name
    return _from_factor(
        NamedFactor(name, "e" if text == "1" else f"e^{{{to_latex(power)}}}", value, readable=is_readable(power))
    )


def logarithm(number: Number) -> Number:
    """ln of a positive number.

    >>> to_text(logarithm(Number.of(Fraction(1, 2)))), to_text(logarithm(exponential(Number.of(2))))
    ('-ln(2)', '2')
    """
    with localcontext(CONTEXT):
        value = number.decimal.ln()
    fraction = number.fraction
    if fraction == 1:
        return Number.of(0)
    if fraction is not None and fraction < 1:
        return -logarithm(Number.of(1 / fraction))
    whole = value.to_integral_value()
    if abs(value - whole) < Decimal("1e-50"):
        return Number.of(int(whole))
    if not is_readable(number):
        return approximate(value)
    return named_number(f"ln({to_text(number)})", rf"\ln\left({to_latex(number)}\right)", value)


def to_text(number: Number) -> str:
    """The number as text: 3/2, 3√2/4, e^(3/2)/(e^(3/2)+e^8).

    >>> to_text(Number.of(Fraction(-3, 4)) * square_root(2) + Number.of(1))
    '-3√2/4+1'
    """
    exact = _write(number, _text_term, _text_fraction)
    has_names = all(atom.readable for _, atoms in number.terms for atom in atoms)
    return exact if has_names and len(exact) <= MAX_TEXT else f"≈{format_digits(number.decimal)}"


def to_latex(number: Number) -> str:
    """The number as LaTeX, for math mode."""
    if not is_readable(number):
        return rf"\approx {decimal_to_latex(format_digits(number.decimal, 8))}"
    return _write(number, _latex_term, _latex_fraction)


def is_readable(number: Number) -> bool:
    """Whether the number has an exact form that is short enough to read."""
    return not to_text(number).startswith("≈")


def as_factor(number: Number) -> str:
    """The number as a factor of a product: in brackets if it is negative or a sum.

    >>> as_factor(Number.of(-2))
    '(-2)'
    """
    text = to_text(number)
    return f"({text})" if text.startswith("-") or len(number.terms) > 1 else text


def as_latex_factor(number: Number) -> str:
    text = to_latex(number)
    return rf"\left({text}\right)" if text.startswith("-") or len(number.terms) > 1 else text


def short_factor(number: Number, places: int = 4) -> str:
    """A factor that may be long: its fraction if that is short, else its decimal."""
    text = to_text(number) if _is_short_fraction(number) else format_decimal(number.decimal, places)
    return f"({text})" if text.startswith("-") else text


def short_latex_factor(number: Number, places: int = 4) -> str:
    if _is_short_fraction(number):
        return as_latex_factor(number)
    text = decimal_to_latex(format_decimal(number.decimal, places))
    return rf"\left({text}\right)" if text.startswith("-") else text


def _is_short_fraction(number: Number) -> bool:
    return number.fraction is not None and len(to_text(number)) <= 8


def format_digits(value: Decimal, significant: int = 20) -> str:
    """A decimal with so many significant digits, in scientific notation where it is shorter.

    >>> format_digits(Decimal("0.000001234567"), 3), format_digits(Decimal("2.50"), 3), format_digits(Decimal(0))
    ('1.23e-6', '2.5', '0')
    """
    if not value:
        return "0"
    with localcontext(CONTEXT):
        exponent = value.adjusted()
        if -5 <= exponent < max(significant, 7):
            return _strip_zeros(f"{value:.{max(significant - 1 - exponent, 0)}f}")
        mantissa, power = f"{value:.{significant - 1}e}".split("e")
        return f"{_strip_zeros(mantissa)}e{int(power)}"


def format_decimal(value: Decimal, places: int = 4) -> str:
    """A decimal with so many places; 2.5 stays 2.5, and a tiny number keeps two digits.

    >>> format_decimal(Decimal("-1.99315")), format_decimal(Decimal("2.5")), format_decimal(Decimal("0.00000000022"))
    ('-1.9932', '2.5', '2.2e-10')
    """
    if not value or value.copy_abs() < Decimal("1e-40"):
        return "0"
    with localcontext(CONTEXT):
        if abs(value) >= 10**9:
            return format_digits(value, 5)
        rounded = value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN)
        if not rounded:
            return format_digits(value, 2)
        text = f"{rounded:f}"
        return _strip_zeros(text) if value == rounded else text


def decimal_to_latex(text: str) -> str:
    """The output of `format_digits` or `format_decimal` as LaTeX."""
    mantissa, found, power = text.partition("e")
    return rf"{mantissa}\cdot 10^{{{power}}}" if found else text


def _strip_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def _write(
    number: Number,
    write_term: Callable[[Monomial, Fraction], str],
    write_fraction: Callable[[str, NamedFactor, int, bool], str],
) -> str:
    """All terms; those with the same denominator share one fraction bar."""
    parts = []
    for denominators, terms in _group_by_denominator(number).items():
        text = _join(write_term(monomial, fraction) for monomial, fraction in terms.items())
        for atom, count in Counter(denominators).items():
            text = write_fraction(text, atom, count, len(terms) > 1)
        parts.append(text)
    return _join(parts) or "0"


def _text_fraction(top: str, below: NamedFactor, power: int, is_sum: bool) -> str:
    bottom = f"({below.text})^{power}" if power > 1 else f"({below.text})"
    return f"({top})/{bottom}" if is_sum else f"{top}/{bottom}"


def _latex_fraction(top: str, below: NamedFactor, power: int, is_sum: bool) -> str:
    bottom = rf"\left({below.latex}\right)^{{{power}}}" if power > 1 else below.latex
    return rf"\frac{{{top}}}{{{bottom}}}"


def _join(parts: Iterable[str]) -> str:
    return "".join(part if part.startswith("-") or not index else f"+{part}" for index, part in enumerate(parts))


def _text_term(monomial: Monomial, fraction: Fraction) -> str:
    radicand, atoms = monomial
    root = f"√{radicand}" if radicand != 1 else ""
    names = "·".join(_write_powers(atoms, lambda atom: atom.text, "{}^{}"))
    over = f"/{fraction.denominator}" if fraction.denominator != 1 else ""
    sign = "-" if fraction < 0 else ""
    numerator = str(abs(fraction.numerator))
    if numerator == "1" and (root or (names and not over)):
        numerator = ""
    between = "·" if names and (over or root) else ""
    return f"{sign}{numerator}{root}{over}{between}{names}"


def _latex_term(monomial: Monomial, fraction: Fraction) -> str:
    radicand, atoms = monomial
    root = rf"\sqrt{{{radicand}}}" if radicand != 1 else ""
    names = r"\,".join(_write_powers(atoms, lambda atom: atom.latex, "{{{}}}^{{{}}}"))
    sign = "-" if fraction < 0 else ""
    above = abs(fraction.numerator)
    top = f"{above if above != 1 else ''}{root}" or "1"
    if fraction.denominator != 1:
        number = rf"\frac{{{top}}}{{{fraction.denominator}}}"
    else:
        number = "" if top == "1" and names else top
    space = r"\," if number and names else ""
    return f"{sign}{number}{space}{names}"


def _write_powers(atoms: tuple[NamedFactor, ...], name: Callable[[NamedFactor], str], power: str) -> list[str]:
    """Each atom once, with its power: sin(1)^2."""
    counts = Counter(atoms)
    return [name(atom) if count == 1 else power.format(name(atom), count) for atom, count in counts.items()]
