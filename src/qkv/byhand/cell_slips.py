"""Slips in one number of a step: a lost sign, a product left out, another row, digits exchanged, an addition."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array, Expression
from qkv.byhand.fraction_slips import wrong_sums
from qkv.byhand.numbers import format_digits

MAX_NAMES = 4  # of slips that give the same number
EQUALLY_LIKELY = 3.6  # bits: one number says little, so slips that differ by less are all named
WEAK = 7.0  # bits: a slip in one number that takes more is not certain
COPIED = ("line", "misread")  # families of slips that use one of many numbers: some of them may fit by chance
DOUBT = 4.0  # bits more that a number must tell to confirm one of these
FIRST_SLIP = 2.5  # bits: 2^(cost − 2.5) slips are at most as costly as this one
LOST_SIGN = "a lost minus sign"
EXTRA_SIGN = "a minus sign too many"
ONLY_HERE = 3.0  # bits: a slip in the formula of one number alone
HARD_PRODUCT = 21  # smaller products are known by heart
FEW_FRACTIONS = 8.5  # bits: a wrong rule for fractions, but only one number is a fraction
NOT_IDENTIFIED = "not identified"
OFF_BY = "an arithmetic error, or another number was copied"  # nothing more is known about a single number
Place = tuple[int, int, int]  # head, row, column


@dataclass(frozen=True)
class CellContext:
    """What one wrong number is compared with."""

    formula: Expression
    hidden: Mapping[str, Expression]  # the formulas of steps that were not written down
    values: Mapping[str, Array]  # one world
    right: Array  # the step computed from these, (heads, rows, columns)
    columns: bool
    others: tuple[tuple[str, float | int, Array], ...] = ()  # common slips in the formula, and the step with each


class NameCell:
    """Names of cells as the person counts them."""

    def __init__(self, step: str, rows: int, columns: bool) -> None:
        self.step, self.rows, self.columns = step, rows, columns

    def place(self, place: Place) -> tuple[int, int]:
        head, row, column = place
        row += head * self.rows
        return (column + 1, row + 1) if self.columns else (row + 1, column + 1)

    def __call__(self, place: Place) -> str:
        row, column = self.place(place)
        return f"{self.step}[{row},{column}]"


@dataclass(frozen=True)
class CellSlip:
    """A slip in one number; of one family only the most likely is named."""

    family: str
    name: str
    cost: float | int
    value: float  # the number that it gives, before rounding
    rare: bool = False  # not worth naming next to another one


def likely_cell_slips(
    contexts: Sequence[CellContext],
    place: Place,
    value: float,
    unit: float,
    decimal: bool = True,
    information: float = math.inf,
) -> list[CellSlip]:
    """The slips that most likely gave this number, the most likely first; one of each family.

    decimal: it may have a decimal point, unlike 5/2. information: the bits of its digits (see `information`).
    """
    best: dict[str, CellSlip] = {}
    contexts = [context for context in contexts if math.isfinite(context.right[place])]
    if not math.isfinite(value) or not contexts:
        return []
    for context in contexts:
        for slip in cell_slips(context, place, value, unit, decimal):
            if slip.family not in best or slip.cost < best[slip.family].cost:
                best[slip.family] = slip
    unknown = best.pop(OFF_BY)
    slips = sorted(best.values(), key=lambda slip: slip.cost)
    slips = [s for s in slips if s is slips[0] or (s.cost <= slips[0].cost + EQUALLY_LIKELY and not s.rare)]
    weak = not slips or slips[0].cost > WEAK or is_chance(slips[0].cost, information)
    weak = weak or (slips[0].family in COPIED and is_chance(slips[0].cost, information - DOUBT))
    if not slips or (weak and all(slip.family != "arithmetic" for slip in slips)):
        slips = [*slips[: MAX_NAMES - 1], unknown]  # one of many factors may have given this number by chance
    return slips[:MAX_NAMES]


def is_chance(cost: float | int, information: float) -> bool:
    """Whether one of all slips up to this cost may well give numbers with so many bits by chance."""
    return cost - FIRST_SLIP > information - 1


def cell_slips(
    context: CellContext, place: Place, value: float, unit: float, decimal: bool = True
) -> Iterator[CellSlip]:
    """Slips that give this number instead of the right one."""
    right = float(context.right[place])

    def fits(other: float) -> bool:
        return abs(value - other) <= unit / 2 * (1 + 1e-9) + 1e-9 * max(1.0, abs(other))

    if fits(-right) and right:
        yield CellSlip("sign", LOST_SIGN if right < 0 else EXTRA_SIGN, 3.5, -right)
    products = list(_products(context, place))
    terms = [(product.left, product.right) for product in products]
    bits = math.log2(max(1, len(terms)))
    for term in products:
        a, b = term.left, term.right
        product = a * b
        text = f"{_factor(b)}·{_factor(a)}" if context.columns else f"{_factor(a)}·{_factor(b)}"
        if not product:
            other = a or b
            if other and fits(right + other):
                name = f"the product {text} was taken as {_number(other)} instead of 0 (as if the factors were added)"
                yield CellSlip("added", name, 5.5 + bits, right + other)
            continue
        for factor, other, neighbors in ((a, b, term.near_left), (b, a, term.near_right)):
            for read, note, cost in misreadings(factor, neighbors):
                same = read in (0, factor, 2 * factor, -factor)  # named below: left out, twice, a sign
                if not same and fits(right + (read - factor) * other):
                    name = f"{_number(factor)} was read as {_number(read)} in the product {text}{note}"
                    family = "mixed number" if "·" in note else "misread"
                    yield CellSlip(family, name, cost + bits, right + (read - factor) * other)
        if fits(right - 2 * product):
            lost = f"{LOST_SIGN} in the product {text}" if min(a, b) < 0 else f"the product {text} has the wrong sign"
            yield CellSlip("sign", lost, 4 + bits, right - 2 * product)
        if fits(right - product) and len(terms) > 1:
            yield CellSlip("left out", f"the product {text} was left out", 4 + bits, right - product)
        if fits(right + product):
            yield CellSlip("twice", f"the product {text} was counted twice", 4.8 + bits, right + product)
        if fits(right - product + a + b):
            yield CellSlip("added", f"added instead of multiplied: {text}", 6.5 + bits, right - product + a + b)
        if fits(right - product + a) or fits(right - product + b):
            yield CellSlip("factor", f"only one factor of the product {text} was used", 7 + bits, value, rare=True)
        for difference in _table_slips(a, b):
            if fits(right + difference):
                name = f"{text} was taken as {_number(product + difference)} instead of {_number(product)}"
                yield CellSlip("table", name, 7 + bits, right + difference)
        for quotient in (a / b, b / a):
            if fits(right - product + quotient) and abs(quotient) != abs(product):
                yield CellSlip("divided", f"divided instead of multiplied: {text}", 7 + bits, value)
    for name, total, few in wrong_sums(terms):
        if fits(total):
            yield CellSlip("fractions", name, FEW_FRACTIONS if few else 5.5, total, rare=few)
    yield from _addends(context, place, fits)
    yield from _pairings(terms, fits)
    positive = sum(abs(a * b) for a, b in terms)
    if sum(a * b < 0 for a, b in terms) > 1 and fits(positive):
        yield CellSlip("sign", "all minus signs of the products were lost", 5.5, positive)
    yield from _other_lines(context, place, fits)
    for name, cost, other in context.others:
        if fits(float(other[place])) and not fits(right):
            yield CellSlip(f"formula: {name}", f"{name} (only here)", cost + ONLY_HERE, float(other[place]))
    yield from (slip for slip in _digit_slips(right, value, unit) if decimal or "point" not in slip.name)
    difference = value - (round(right / unit) * unit if unit else right)
    yield CellSlip(OFF_BY, f"{OFF_BY}: off by {_number(difference)}", 7.9, value, rare=True)
    for step in (1.0, 10.0, 0.1, 0.5, 2.0, 100.0, 0.01):
        if abs(abs(difference) - step) <= 1e-9 and step >= 10 * unit:
            rare = 0.0 if step in (1.0, 0.1) else 1.0
            yield CellSlip(
                "arithmetic", f"an arithmetic error: off by {_number(difference)}", 6.8 + rare, value, rare=bool(rare)
            )


def misreadings(number: float, neighbors: Iterable[float] = ()) -> Iterator[tuple[float, str, float]]:
    """What a factor is easily read as, why, and the bits to say so."""
    for neighbor in neighbors:
        yield neighbor, ": the entry next to it", 6.4
    if number == round(2 * number) / 2:
        yield from ((number + step, "", 6.6) for step in (1.0, -1.0))
    for factor, cost in ((10.0, 6.7), (0.1, 6.7), (100.0, 7.4), (0.01, 7.4)):
        yield number * factor, f": {factor if factor > 1 else 1 / factor:g} times too {_size(factor)}", cost
    fraction = Fraction(number).limit_denominator(12)
    if abs(float(fraction) - number) > 1e-9 or fraction.denominator == 1:
        return
    sign, (whole, part) = (-1 if number < 0 else 1), divmod(abs(fraction), 1)
    yield 1 / number, ": upside down", 6.7
    yield float(fraction.numerator), ": without its denominator", 7.0
    yield float(sign * fraction.denominator), ": the denominator", 7.6
    if whole:
        yield float(sign * whole * part), f": {whole} {part} is not {whole}·{part}", 6.6
        yield float(sign * whole), ": without its fraction", 7.0
        yield float(sign * part), ": only its fraction", 7.3


def _table_slips(left: float, right: float) -> tuple[float, ...]:
    """By how much a product of the multiplication table is easily wrong: 7·8 = 54."""
    hard = all(number == round(number) and 3 <= abs(number) <= 12 for number in (left, right))
    return (1.0, -1.0, 2.0, -2.0, 10.0, -10.0) if hard and abs(left * right) >= HARD_PRODUCT else ()


def _size(factor: float) -> str:
    return "large" if factor > 1 else "small"


def _addends(context: CellContext, place: Place, fits: Callable[[float], bool]) -> Iterator[CellSlip]:
    """Terms of a sum of exponentials left out, added twice or with the wrong sign."""
    formula, (head, row, _) = context.formula, place
    if formula.op != "total" or formula.args[0].op == "times" or formula.param != ("row", None):
        return
    right, terms = float(context.right[place]), ex.evaluate(formula.args[0], context.values)[0, head]
    written = formula.args[0].param if formula.args[0].op == "ref" else ""
    naming = NameCell(written, len(terms), context.columns)
    bits = math.log2(max(1, terms.shape[1]))
    for column, term in enumerate(terms[row].tolist()):
        name = naming((head, row, column)) if written else f"the term of key {column + 1}"
        for factor, what, cost in ((1, "was left out", 4.0), (-1, "was added twice", 4.8), (2, "was subtracted", 6.0)):
            if term and fits(right - factor * term):
                yield CellSlip("left out", f"{name} {what}", cost + bits, right - factor * term)


def _pairings(terms: list[tuple[float, float]], fits: Callable[[float], bool]) -> Iterator[CellSlip]:
    """The factors of a dot product paired in another order, or only the first products added."""
    left, right = [a for a, _ in terms], [b for _, b in terms]
    size = len(terms)
    if size < 2:
        return
    orders = {tuple(reversed(range(size))): "reverse order", (*range(1, size), 0): "an order shifted by one"}
    orders |= {(size - 1, *range(size - 1)): "an order shifted by one"}
    for order, name in orders.items():
        total = sum(a * right[k] for a, k in zip(left, order, strict=True))
        if fits(total):
            yield CellSlip("pairing", f"the factors were paired in {name}", 7.3, total)
    for count in range(1, size - 1):
        total = sum(a * b for a, b in terms[:count])
        if fits(total):
            what = f"{count} of {size} products were" if count > 1 else f"of {size} products was"
            yield CellSlip("left out", f"only the first {what} added", 7.2, total)


def _other_lines(context: CellContext, place: Place, fits: Callable[[float], bool]) -> Iterator[CellSlip]:
    """The number of another row, column or head."""
    head, rows = place[0], context.right.shape[1]
    first = (1, 1 + head * rows, 1)  # heads are written one below the other
    names = ("head", "column", "row") if context.columns else ("head", "row", "column")
    for axis, name in enumerate(names):
        size = context.right.shape[axis]
        for other in range(size):
            value = float(context.right[(*place[:axis], other, *place[axis + 1 :])])
            if other != place[axis] and fits(value) and not fits(0.0):
                used, wanted = other + first[axis], place[axis] + first[axis]
                text = f"{name} {used} was used instead of {name} {wanted}"
                yield CellSlip("line", text, 5 + math.log2(size), value)


def _digit_slips(right: float, value: float, unit: float) -> Iterator[CellSlip]:
    if right and value:
        for power in (-2, -1, 1, 2):
            shown = round(right / unit) * unit if unit else right  # people shift the digits that they wrote
            near = abs(value - right * 10.0**power) <= unit / 2 + 1e-9 * max(1.0, abs(value))
            if near or (shown and abs(value - shown * 10.0**power) <= 1e-9 * max(1.0, abs(value))):
                yield CellSlip(
                    "digits", "the decimal point is at the wrong place", 6, right * 10.0**power if near else value
                )
        if abs(value * right - 1) <= (unit / 2 * abs(right)) + 1e-9 and abs(abs(right) - 1) > 1e-9:
            yield CellSlip("digits", "the fraction is upside down", 6.5, 1 / right)
    places = max(0, -round(math.log10(unit))) if unit else 2
    shown, wrong = f"{abs(right):.{places}f}", f"{abs(value):.{places}f}"
    if value * right >= 0 and len(shown) == len(wrong) and shown != wrong:
        different = [k for k in range(len(shown)) if shown[k] != wrong[k]]
        if len(different) == 2:
            i, j = different
            if shown[i] == wrong[j] and shown[j] == wrong[i]:
                yield CellSlip("digits", "two digits are exchanged", 5.5, value)
        elif len(different) == 1 and unit and len(shown.replace(".", "").lstrip("0")) > 2:
            yield CellSlip("digits", "one digit is wrong", 7.2, value)


@dataclass(frozen=True)
class Product:
    """One product of a number that adds them up, with the entries next to its factors."""

    left: float
    right: float
    near_left: frozenset[float] = frozenset()
    near_right: frozenset[float] = frozenset()


def _products(context: CellContext, place: Place) -> Iterator[Product]:
    """The products that a number adds up; none if it is no dot product."""
    head, row, column = place
    formula = context.formula
    pieces = [formula]
    while pieces:
        part = pieces.pop()
        if part.op == "add":
            pieces += part.args
        elif part.op in ("masked", "patched"):
            pieces.append(part.args[0])
        elif part.op == "ref" and part.param in context.hidden:
            pieces.append(context.hidden[part.param])
        elif part.op == "join" and part.args[0].op == "matmul":
            left, right = (ex.evaluate(arg, context.values)[0] for arg in part.args[0].args)
            width = right.shape[-1]
            yield from _pair_up(left[column // width], right[column // width], row, column % width)
        elif part.op == "matmul":
            left, right = (ex.evaluate(arg, context.values)[0] for arg in part.args)
            yield from _pair_up(left[min(head, len(left) - 1)], right[min(head, len(right) - 1)], row, column)
        elif part.op == "total" and part.args[0].op == "times":
            left, right = (ex.evaluate(arg, context.values)[0, min(head, 99), row] for arg in part.args[0].args)
            yield from (Product(float(a), float(b)) for a, b in zip(left, right, strict=True))


def _pair_up(left: Array, right: Array, row: int, column: int) -> Iterator[Product]:
    """The products of a row of one matrix with a column of another."""
    for k in range(left.shape[1]):
        near = _next_to(left, row, k), _next_to(right, k, column)
        yield Product(float(left[row, k]), float(right[k, column]), *near)


def _next_to(matrix: Array, row: int, column: int) -> frozenset[float]:
    rows, columns = matrix.shape
    places = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
    return frozenset(float(matrix[i, j]) for i, j in places if 0 <= i < rows and 0 <= j < columns)


def _number(value: float) -> str:
    return format_digits(Decimal(repr(round(float(value), 10))), 4)


def _factor(value: float) -> str:
    return f"({_number(value)})" if value < 0 else _number(value)
