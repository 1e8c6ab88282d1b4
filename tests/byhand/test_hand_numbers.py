"""Exact numbers: arithmetic, reading, writing."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.byhand.number import Number, exponential, square_root
from qkv.byhand.positions import quarter_turn, sine
from qkv.byhand.reading import read_matrix, read_number
from qkv.byhand.writing import digits, fixed, latex, plain

fractions = st.fractions(min_value=-5, max_value=5, max_denominator=9)
parts = st.tuples(fractions, fractions, st.integers(0, 12))


def surd(whole, factor, radicand):
    return Number.of(whole) + Number.of(factor) * square_root(radicand)


@settings(max_examples=60, deadline=None)
@given(parts, parts)
def test_sums_and_products_are_worth_what_decimals_say(first, second):
    a, b = surd(*first), surd(*second)
    assert math.isclose((a + b).decimal, a.decimal + b.decimal, abs_tol=1e-25)
    assert math.isclose((a * b).decimal, a.decimal * b.decimal, abs_tol=1e-25)
    assert (a - a).fraction == 0


@settings(max_examples=60, deadline=None)
@given(parts)
def test_what_is_written_reads_back_as_the_same_number(given):
    number = surd(*given)
    assert read_number(plain(number)) == number


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
def test_numbers_are_read_as_people_write_them(text, written):
    assert plain(read_number(text)) == written


@pytest.mark.parametrize(
    "text", ["abc", "", "1..2", "1 2", "nan", "inf", "2 1/2 1/3", "(1", "1e999", "9" * 500, "2^99"]
)
def test_what_is_no_number_is_refused_in_one_sentence(text):
    with pytest.raises(ValueError, match="expected a number such as") as error:
        read_number(text, "x[1,2]")
    assert str(error.value).startswith("x[1,2]: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("text", ["1/0", "1/(2-2)", "2 1/0", "3/0.0"])
def test_a_division_by_zero_is_named(text):
    with pytest.raises(ValueError, match="divides by zero"):
        read_number(text)


@pytest.mark.parametrize(
    "text",
    ["1 -1; 0 2", "1, -1; 0, 2", "[[1, -1], [0, 2]]", "1 -1\n0 2", "[1 -1; 0 2]", "1.0 -1.0 ; 0 4/2;"],
)
def test_a_matrix_may_be_written_in_several_ways(text):
    assert read_matrix(text, "x") == read_matrix([[1, -1], [0, 2]], "x")


def test_mixed_numbers_stand_between_commas():
    assert read_matrix("2 1/2, 1; 0, -1 1/3", "x")[1][1] == Number.of(Fraction(-4, 3))


def test_a_hundred_by_a_hundred_is_refused_with_the_limit():
    with pytest.raises(ValueError, match="100×100: by hand goes up to 16×16"):
        read_matrix([[1] * 100] * 100, "x")


def test_a_ragged_matrix_names_the_row():
    with pytest.raises(ValueError, match="row 1 has 2 numbers, row 2 has 1"):
        read_matrix("1 2; 3", "x")


def test_exponentials_that_no_computer_holds_are_refused():
    with pytest.raises(ValueError, match="use smaller inputs"):
        exponential(Number.of(10**30))


def test_a_sum_over_itself_is_one():
    total = exponential(Number.of(2)) + Number.of(1)
    assert plain((total * total.inverse()).reduced()) == "1"


def test_a_long_sum_is_carried_on_as_digits():
    total = Number.of(0)
    for power in range(1, 60):
        total = total + exponential(Number.of(Fraction(1, power)))
    assert plain(total).startswith("≈")
    assert math.isclose(total.decimal, sum(math.exp(1 / power) for power in range(1, 60)))


def test_sines_are_right_to_fifty_digits():
    expected = Decimal("0.84147098480789650665250232163029899962256306079837")
    assert abs(sine(Decimal(1)) - expected) < Decimal("1e-49")
    assert abs(sine(quarter_turn()) - 1) < Decimal("1e-58")


def test_numbers_have_a_latex_form():
    assert latex(read_number("-3√2/4")) == r"-\frac{3\sqrt{2}}{4}"
    assert latex(read_number("e^(1/2)/(e^(1/2)+1)")) == r"\frac{e^{\frac{1}{2}}}{e^{\frac{1}{2}}+1}"


def test_decimals_keep_what_matters():
    assert fixed(Decimal("0.5")) == "0.5"
    assert fixed(Decimal("-13.25")) == "-13.25"
    assert fixed(Decimal("1.23456")) == "1.2346"
    assert fixed(Decimal("0.00000123")) == "1.2e-6"
    assert digits(Decimal("123456789"), 3) == "1.23e8"
