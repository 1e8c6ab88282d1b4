"""Sinusoidal positions in exact form: sin(p·10000^(−2i/c)) at feature 2i, the cosine at 2i + 1."""

from decimal import Decimal, localcontext
from fractions import Fraction

from qkv.byhand.number import DIGITS, Number, named
from qkv.byhand.reading import Rows


def sinusoids(tokens: int, width: int) -> Rows:
    """The positions of so many tokens, to be added to inputs of that width.

    >>> from qkv.byhand.matrices import Matrix
    >>> Matrix(sinusoids(2, 4)).exact[1]
    ['sin(1)', 'cos(1)', 'sin(1/100)', 'cos(1/100)']
    """
    return tuple(tuple(_wave(p, feature, width) for feature in range(width)) for p in range(tokens))


def _wave(position: int, feature: int, width: int) -> Number:
    name = "cos" if feature % 2 else "sin"
    if position == 0:
        return Number.of(feature % 2)
    power = Fraction(2 * (feature // 2), width)  # of 10000, below the bar
    with localcontext(DIGITS):
        angle = position * Decimal(10000) ** (-Decimal(power.numerator) / power.denominator)
        value = sine(angle + (quarter_turn() if feature % 2 else 0))
    tens = 4 * power
    if power == 0:
        text = latex = str(position)
    elif tens.denominator == 1:
        text = latex = str(Fraction(position, 10 ** int(tens)))
    else:
        text, latex = f"{position}/10000^({power})", f"{position}/10000^{{{power}}}"
    return named(f"{name}({text})", rf"\{name}({latex})", value)


def sine(angle: Decimal) -> Decimal:
    """sin by its series; 30 more digits pay for the cancellation of angles up to 40."""
    with localcontext(DIGITS) as context:
        context.prec += 30
        term = total = angle
        step = 1
        while abs(term) > Decimal("1e-85"):
            term *= -angle * angle / ((step + 1) * (step + 2))
            total += term
            step += 2
    return DIGITS.plus(total)


def quarter_turn() -> Decimal:
    """π/2 by Machin's formula: π/4 = 4 arctan(1/5) − arctan(1/239)."""
    with localcontext(DIGITS) as context:
        context.prec += 30
        return 2 * (4 * _arctan_of_inverse(5) - _arctan_of_inverse(239))


def _arctan_of_inverse(number: int) -> Decimal:
    power = total = Decimal(1) / number
    step = 1
    while abs(power) > Decimal("1e-88"):
        power /= -number * number
        step += 2
        total += power / step
    return total
