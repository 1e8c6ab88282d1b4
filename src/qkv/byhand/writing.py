"""How a number is written: as text, as LaTeX, as a decimal."""

from collections import Counter
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction

from qkv.byhand.number import DIGITS, Atom, Monomial, Number

READABLE = 96  # characters; what is longer is written as ≈ and 20 digits


def plain(number: Number) -> str:
    """The number as text: 3/2, 3√2/4, e^(3/2)/(e^(3/2)+e^8).

    >>> from qkv.byhand.number import square_root
    >>> plain(Number.of(Fraction(-3, 4)) * square_root(2) + Number.of(1))
    '-3√2/4+1'
    """
    exact = _write(number, _plain_term, _plain_bar)
    return exact if _has_names(number) and len(exact) <= READABLE else f"≈{digits(number.decimal)}"


def latex(number: Number) -> str:
    """The number as LaTeX, for math mode."""
    if not readable(number):
        return rf"\approx {latex_decimal(digits(number.decimal, 8))}"
    return _write(number, _latex_term, _latex_bar)


def readable(number: Number) -> bool:
    """Whether the number can be written exactly, in a length that people read."""
    return not plain(number).startswith("≈")


def in_product(number: Number) -> str:
    """The number as a factor: in brackets if it is negative or a sum.

    >>> in_product(Number.of(-2))
    '(-2)'
    """
    text = plain(number)
    return f"({text})" if text.startswith("-") or len(number.terms) > 1 else text


def in_latex_product(number: Number) -> str:
    text = latex(number)
    return rf"\left({text}\right)" if text.startswith("-") or len(number.terms) > 1 else text


def digits(value: Decimal, significant: int = 20) -> str:
    """A decimal with so many significant digits; e-notation only where it helps.

    >>> digits(Decimal("0.000001234567"), 3), digits(Decimal("2.50"), 3), digits(Decimal(0))
    ('1.23e-6', '2.5', '0')
    """
    if not value:
        return "0"
    with localcontext(DIGITS):
        exponent = value.adjusted()
        if -5 <= exponent < max(significant, 7):
            text = f"{value:.{max(significant - 1 - exponent, 0)}f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
        mantissa, power = f"{value:.{significant - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(power)}"


def fixed(value: Decimal, places: int = 4) -> str:
    """A decimal with so many places, as people write results; 2.5 stays 2.5, tiny ones keep two digits.

    >>> fixed(Decimal("-1.99315")), fixed(Decimal("2.5")), fixed(Decimal("0.00000000022"))
    ('-1.9932', '2.5', '2.2e-10')
    """
    if not value or abs(value) < Decimal("1e-40"):
        return "0"
    with localcontext(DIGITS):
        if abs(value) >= 10**9:
            return digits(value, 5)
        rounded = value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN)
        if not rounded:
            return digits(value, 2)
        text = f"{rounded:f}"
        return text.rstrip("0").rstrip(".") if value == rounded and "." in text else text


def short(number: Number, places: int = 4) -> str:
    """A factor that may be long: its fraction if it is one, else its decimal."""
    text = plain(number)
    if number.fraction is None or len(text) > 8:
        text = fixed(number.decimal, places)
    return f"({text})" if text.startswith("-") else text


def short_latex(number: Number, places: int = 4) -> str:
    text = short(number, places)
    if number.fraction is not None and len(plain(number)) <= 8:
        return in_latex_product(number)
    scientific = latex_decimal(text.strip("()"))
    return rf"\left({scientific}\right)" if text.startswith("(") else scientific


def latex_decimal(text: str) -> str:
    """A decimal as `digits` and `fixed` write it, for LaTeX."""
    mantissa, found, power = text.partition("e")
    return rf"{mantissa}\cdot 10^{{{power}}}" if found else text


def _has_names(number: Number) -> bool:
    return all(atom.readable for _, atoms in number.terms for atom in atoms)


def _write(
    number: Number,
    term: Callable[[Monomial, Fraction], str],
    bar: Callable[[str, Atom, bool], str],
) -> str:
    """The terms, those under the same fraction bar together; bar(top, below, whether the top is a sum)."""
    groups: dict[tuple[Atom, ...], dict[Monomial, Fraction]] = {}
    for (radicand, atoms), fraction in number.terms.items():
        below = tuple(atom for atom in atoms if atom.inverse)
        above = tuple(atom for atom in atoms if not atom.inverse)
        groups.setdefault(below, {})[radicand, above] = fraction
    parts = []
    for below, terms in groups.items():
        top = _join(term(monomial, fraction) for monomial, fraction in terms.items())
        for atom in below:
            top = bar(top, atom, len(terms) > 1)
        parts.append(top)
    return _join(parts) or "0"


def _plain_bar(top: str, below: Atom, is_sum: bool) -> str:
    return f"({top})/({below.text})" if is_sum else f"{top}/({below.text})"


def _latex_bar(top: str, below: Atom, is_sum: bool) -> str:
    return rf"\frac{{{top}}}{{{below.latex}}}"


def _join(parts: Iterable[str]) -> str:
    return "".join(part if part.startswith("-") or not index else f"+{part}" for index, part in enumerate(parts))


def _plain_term(monomial: Monomial, fraction: Fraction) -> str:
    radicand, atoms = monomial
    root = f"√{radicand}" if radicand != 1 else ""
    names = "·".join(_powers(atoms, lambda atom: atom.text, "{}^{}"))
    over = f"/{fraction.denominator}" if fraction.denominator != 1 else ""
    sign = "-" if fraction < 0 else ""
    above = abs(fraction.numerator)
    if not root and not names:
        return f"{sign}{above}{over}"
    number = f"{above if above != 1 else ''}{root}" if root else f"{above}" if above != 1 or over else ""
    if not names:
        return f"{sign}{number}{over}"
    return f"{sign}{number}{over}·{names}" if over or root else f"{sign}{number}{names}"


def _latex_term(monomial: Monomial, fraction: Fraction) -> str:
    radicand, atoms = monomial
    root = rf"\sqrt{{{radicand}}}" if radicand != 1 else ""
    names = r"\,".join(_powers(atoms, lambda atom: atom.latex, "{{{}}}^{{{}}}"))
    sign = "-" if fraction < 0 else ""
    above = abs(fraction.numerator)
    top = f"{above if above != 1 else ''}{root}" or "1"
    if fraction.denominator != 1:
        number = rf"\frac{{{top}}}{{{fraction.denominator}}}"
    else:
        number = "" if top == "1" and names else top
    space = r"\," if number and names else ""
    return f"{sign}{number}{space}{names}"


def _powers(atoms: tuple[Atom, ...], name: Callable[[Atom], str], power: str) -> list[str]:
    """Each atom once, with its power: sin(1)^2."""
    counts = Counter(atoms)
    return [name(atom) if count == 1 else power.format(name(atom), count) for atom, count in counts.items()]
