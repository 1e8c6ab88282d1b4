"""Exact numbers: arithmetic, parsing, text, LaTeX and decimals."""

import math
import os
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.byhand.numbers import Number, exponential, format_decimal, format_digits, square_root, to_latex, to_text
from qkv.byhand.parsing import parse_matrix, parse_number
from qkv.byhand.problem import half_pi, sine

fractions = st.fractions(min_value=-5, max_value=5, max_denominator=9)
parts = st.tuples(fractions, fractions, st.integers(0, 12))


def surd(whole, factor, radicand):
    return Number.of(whole) + Number.of(factor) * square_root(radicand)


@settings(max_examples=40, deadline=None)
@given(parts, parts)
def test_number_sums_and_products_equal_their_decimals(first, second):
    a, b = surd(*first), surd(*second)
    assert math.isclose((a + b).decimal, a.decimal + b.decimal, abs_tol=1e-25)
    assert math.isclose((a * b).decimal, a.decimal * b.decimal, abs_tol=1e-25)
    assert (a - a).fraction == 0


@settings(max_examples=40, deadline=None)
@given(parts)
def test_parse_number_reads_to_text_back_as_the_same_number(given):
    number = surd(*given)
    assert parse_number(to_text(number)) == number


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2 1/2", "5/2"),
        ("-2 1/2", "-5/2"),
        ("0.125", "1/8"),
        ("−3", "-3"),
        ("1e-2", "1/100"),
        (".5", "1/2"),
        ("√8", "2√2"),
        ("sqrt(1/2)", "√2/2"),
        ("3/(2√2)", "3√2/4"),
        ("3*sqrt(2)/4", "3√2/4"),
        ("(1+√2)^2", "3+2√2"),
        ("e", "e"),
        ("exp(-5/2)", "e^(-5/2)"),
        ("e^(3/2)/(e^(3/2)+e^8)", "e^(3/2)/(e^(3/2)+e^8)"),
        ("1/(1+√2)", "1/(1+√2)"),
    ],
)
def test_parse_number_reads_numbers_as_people_write_them(text, written):
    assert to_text(parse_number(text)) == written


@pytest.mark.parametrize(
    "text", ["abc", "", "1..2", "1 2", "nan", "inf", "2 1/2 1/3", "(1", "1e999", "9" * 500, "2^99"]
)
def test_parse_number_rejects_other_text_in_one_sentence(text):
    with pytest.raises(ValueError, match="expected a number such as") as error:
        parse_number(text, "x[1,2]")
    assert str(error.value).startswith("x[1,2]: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("text", ["1/0", "1/(2-2)", "2 1/0", "3/0.0"])
def test_parse_number_names_a_division_by_zero(text):
    with pytest.raises(ValueError, match="divides by zero"):
        parse_number(text)


@pytest.mark.parametrize(
    "text",
    ["1 -1; 0 2", "1, -1; 0, 2", "[[1, -1], [0, 2]]", "1 -1\n0 2", "[1 -1; 0 2]", "1.0 -1.0 ; 0 4/2;"],
)
def test_parse_matrix_accepts_several_notations(text):
    assert parse_matrix(text, "x") == parse_matrix([[1, -1], [0, 2]], "x")


def test_parse_matrix_reads_mixed_numbers_between_commas():
    assert parse_matrix("2 1/2, 1; 0, -1 1/3", "x")[1][1] == Number.of(Fraction(-4, 3))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits processor time in a process of its own")
@pytest.mark.parametrize("text", ["1" + " " * 900_000 + "x, 3", "1 ]" + " " * 900_000 + "x"])
def test_parse_matrix_is_not_kept_busy_by_a_long_gap(text):
    """One answer would keep a whole class from being graded: it took hours."""
    import resource

    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))  # it takes less than a second
        try:
            parse_matrix(text, "x")
        except ValueError:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_parse_matrix_rejects_a_large_matrix_with_the_limit():
    with pytest.raises(ValueError, match="100×100: by hand goes up to 16×16"):
        parse_matrix([[1] * 100] * 100, "x")


def test_parse_matrix_names_the_row_of_a_ragged_matrix():
    with pytest.raises(ValueError, match="row 1 has 2 numbers, row 2 has 1"):
        parse_matrix("1 2; 3", "x")


def test_exponential_rejects_powers_that_are_too_large():
    with pytest.raises(ValueError, match="use smaller inputs"):
        exponential(Number.of(10**30))


def test_number_reduce_gives_one_for_a_sum_over_itself():
    total = exponential(Number.of(2)) + Number.of(1)
    assert to_text((total * total.inverse()).reduce()) == "1"


def test_number_replaces_a_long_sum_by_digits():
    total = Number.of(0)
    for power in range(1, 60):
        total = total + exponential(Number.of(Fraction(1, power)))
    assert to_text(total).startswith("≈")
    assert math.isclose(total.decimal, sum(math.exp(1 / power) for power in range(1, 60)))


def test_sine_is_right_to_fifty_digits():
    expected = Decimal("0.84147098480789650665250232163029899962256306079837")
    assert abs(sine(Decimal(1)) - expected) < Decimal("1e-49")
    assert abs(sine(half_pi()) - 1) < Decimal("1e-58")


def test_to_latex_writes_roots_and_fractions():
    assert to_latex(parse_number("-3√2/4")) == r"-\frac{3\sqrt{2}}{4}"
    assert to_latex(parse_number("e^(1/2)/(e^(1/2)+1)")) == r"\frac{e^{\frac{1}{2}}}{e^{\frac{1}{2}}+1}"


def test_format_decimal_and_format_digits_keep_significant_digits():
    assert format_decimal(Decimal("0.5")) == "0.5"
    assert format_decimal(Decimal("-13.25")) == "-13.25"
    assert format_decimal(Decimal("1.23456")) == "1.2346"
    assert format_decimal(Decimal("0.00000123")) == "1.2e-6"
    assert format_digits(Decimal("123456789"), 3) == "1.23e8"
