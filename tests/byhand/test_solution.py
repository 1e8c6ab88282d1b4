"""`solve` against textbook numbers, a plain triple loop, and the library in float64."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.byhand import EXAMPLES, example, solve, solve_problem
from qkv.nn.attention import attention


def plain_attention(q, k, v, scale, mask=None):
    """Attention by loops over Python floats."""
    out = []
    for i, query in enumerate(q):
        powers = []
        for j, key in enumerate(k):
            score = 0.0
            for a, b in zip(query, key, strict=True):
                score += float(a) * float(b)
            powers.append(math.exp(scale * score) if mask is None or mask[i][j] else 0.0)
        total = sum(powers) or 1.0
        out.append([sum(p / total * float(row[c]) for p, row in zip(powers, v, strict=True)) for c in range(len(v[0]))])
    return out


def close(left, right, tolerance=1e-12):
    return all(
        abs(a - b) <= tolerance for one, other in zip(left, right, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_solve_three_tokens_gives_every_number_of_the_textbook():
    solution = solve_problem(example("three-tokens"))
    assert solution.queries.exact == [["1", "3"], ["-1", "1"], ["5/2", "-2"]]
    assert solution.keys.exact == [["3", "-1/2"], ["2", "-3/2"], ["-5/2", "7/2"]]
    assert solution.values.exact == [["5/2", "-3/2"], ["-1", "3"], ["-2", "-3"]]
    assert solution.scores.exact == [["3/2", "-5/2", "8"], ["-7/2", "-7/2", "6"], ["17/2", "8", "-53/4"]]
    assert solution.scaled.exact[0] == ["3√2/4", "-5√2/4", "4√2"]
    scaled = [(-1.9545, -2.9815), (-1.9934, -2.9910), (1.0562, 0.3563)]
    unscaled = [(-1.9932, -2.9976), (-1.9996, -2.9994), (1.1786, 0.1989)]
    assert [tuple(round(number, 4) for number in row) for row in solution.output.decimal] == scaled
    assert solution.unscaled is not None
    assert [tuple(round(number, 4) for number in row) for row in solution.unscaled.decimal] == unscaled


def test_solve_three_tokens_attend_little_to_themselves():
    weights = solve_problem(example("three-tokens", scale="1")).weights
    own = [weights.decimal[i][i] for i in range(3)]
    assert [f"{number:.1e}" for number in own] == ["1.5e-03", "7.5e-05", "2.2e-10"]
    assert weights.exact[0][0] == "e^(3/2)/(e^(3/2)+e^(-5/2)+e^8)"


def test_solve_weights_equal_the_softmax_in_floats():
    scores = [1.5, -2.5, 8.0]
    expected = [math.exp(score) / math.fsum(map(math.exp, scores)) for score in scores]
    assert close([solve_problem(example("three-tokens", scale="1")).weights.decimal[0]], [expected], 1e-15)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("convention", ["rows", "columns"])
def test_solve_agrees_with_float64_for_each_example_and_convention(name, convention):
    solution = solve_problem(example(name, convention=convention))
    assert solution.agreement.agrees
    assert solution.agreement.difference <= 1e-12


@pytest.mark.parametrize("name", EXAMPLES)
def test_solve_in_the_column_convention_gives_the_transposes(name):
    rows, columns = (solve_problem(example(name, convention=convention)) for convention in ("rows", "columns"))
    for step in ("queries", "keys", "values", "scores", "scaled", "weights", "output"):
        assert [list(row) for row in zip(*getattr(rows, step).exact, strict=True)] == getattr(columns, step).exact


def test_solve_columns_of_weights_sum_to_one_in_the_column_convention():
    weights = solve_problem(example("three-tokens", convention="columns")).weights.decimal
    assert [sum(column) for column in zip(*weights, strict=True)] == pytest.approx([1, 1, 1])


def test_solve_copies_for_a_sharp_query_and_averages_for_a_balanced_one():
    assert solve_problem(example("copy")).output.decimal[0] == pytest.approx([5, -3], abs=1e-3)
    assert solve_problem(example("average")).output.decimal[0] == pytest.approx([2, 1], abs=1e-9)
    assert solve(q="0 0", k="1 2; 3 4; 5 6", v="1; 2; 4").output.exact == [["7/3"]]


def test_solve_causal_first_token_copies_itself_exactly():
    solution = solve_problem(example("causal"))
    assert solution.weights.exact[0] == ["1", "0", "0"]
    assert solution.output.exact[0] == ["1", "0"]


def test_solve_gives_zero_weights_and_output_to_a_fully_masked_query():
    solution = solve("1 2; 3 4", mask="0 0; 1 1")
    assert solution.weights.exact[0] == ["0", "0"]
    assert solution.output.exact[0] == ["0", "0"]
    assert solution.agreement.difference <= 1e-12


def test_solve_causal_is_bottom_right_aligned():
    solution = solve(q="1; 1", k="1; 2; 3", v="1; 10; 100", causal=True)
    assert [[number > 0 for number in row] for row in solution.weights.decimal] == [[True, True, False], [True] * 3]


def test_solve_two_heads_equals_two_attentions_concatenated_and_projected():
    q, k, v = [[1, 2, 0, 1], [0, 1, 1, 1]], [[1, 0, 2, 1], [1, 1, 0, 1]], [[1, 2, 3, 4], [5, 6, 7, 8]]
    wo = [[1, 0], [0, 1], [1, 1], [2, -1]]
    solution = solve(q=q, k=k, v=v, wo=wo, heads=2)
    parts = []
    for h in (0, 2):
        one, two, three = ([row[h : h + 2] for row in matrix] for matrix in (q, k, v))
        parts.append(plain_attention(one, two, three, 2**-0.5))
    joined = [one + two for one, two in zip(*parts, strict=True)]
    mixed = [[sum(a * wo[c][d] for c, a in enumerate(row)) for d in range(2)] for row in joined]
    assert close(solution.output.decimal, mixed)
    assert (len(solution.scores.exact), len(solution.scores.exact[0])) == (4, 2)  # the heads one after another


@pytest.mark.parametrize(
    ("scale", "value"), [("1/sqrt(2)", 2**-0.5), ("1", 1), ("0.25", 0.25), ("1/3", 1 / 3), ("0", 0)]
)
def test_solve_reads_scale_as_fraction_decimal_or_root(scale, value):
    q, k, v = [[1, 2]], [[1, 0], [0, 1]], [[1], [3]]
    assert close(solve(q=q, k=k, v=v, scale=scale).output.decimal, plain_attention(q, k, v, value))


def test_solve_adds_sinusoidal_positions_to_the_inputs():
    solution = solve("1 0 2 1; 0 1 1 1; 1 1 0 0", positions="sinusoidal")
    x = [[1, 0, 2, 1], [0, 1, 1, 1], [1, 1, 0, 0]]
    waves = [[f(p / 10000 ** (2 * i / 4)) for i in range(2) for f in (math.sin, math.cos)] for p in range(3)]
    inputs = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(x, waves, strict=True)]
    assert close(solution.queries.decimal, inputs)
    assert close(solution.output.decimal, plain_attention(inputs, inputs, inputs, 0.5))
    assert solution.queries.exact[1][:2] == ["sin(1)", "1+cos(1)"]


def test_solve_adds_given_positions():
    with_positions = solve("1 0; 0 1", positions="0 1/2; 1 0")
    assert with_positions.queries.exact == [["1", "1/2"], ["1", "1"]]
    assert with_positions.output.exact == solve("1 1/2; 1 1").output.exact


def test_solution_to_dict_has_the_same_fields():
    solution = solve_problem(example("two-heads"))
    content = solution.to_dict()
    for step in ("queries", "keys", "values", "scores", "scaled", "weights", "output"):
        assert content[step] == {"exact": getattr(solution, step).exact, "decimal": getattr(solution, step).decimal}


def test_solve_allows_for_float64_rounding_of_large_numbers():
    solution = solve(q="1000 -1000", k="1000 999; 999 1000", v="1; 2", scale="1")
    assert solution.agreement.agrees
    assert solution.weights.decimal[0][0] == pytest.approx(1.0)


small = st.fractions(min_value=-2, max_value=2, max_denominator=4)


@st.composite
def problems(draw):
    heads = draw(st.integers(1, 2))
    t, s, d, e, c = (draw(st.integers(1, 3)) for _ in range(5))

    def matrix(rows, columns):
        return [[draw(small) for _ in range(columns)] for _ in range(rows)]

    settings = {"heads": heads, "causal": draw(st.booleans())}
    if draw(st.booleans()):
        s = t
        settings |= {
            "x": matrix(t, c),
            "wq": matrix(c, heads * d),
            "wk": matrix(c, heads * d),
            "wv": matrix(c, heads * e),
        }
    else:
        settings |= {"q": matrix(t, heads * d), "k": matrix(s, heads * d), "v": matrix(s, heads * e)}
    if draw(st.booleans()):
        settings["wo"] = matrix(heads * e, 2)
    if draw(st.booleans()):
        settings["mask"] = [[draw(st.integers(0, 1)) for _ in range(s)] for _ in range(t)]
    if draw(st.booleans()):
        settings["scale"] = draw(small)
    return settings


def float64_attention(x=None, wq=None, wk=None, wv=None, q=None, k=None, v=None, wo=None, heads=1, **rest):
    """The library's attention, called here anew."""

    def tensor(rows):
        return torch.tensor([[float(cell) for cell in row] for row in rows], dtype=torch.float64)

    if x is not None:
        q, k, v = (tensor(x) @ tensor(w) for w in (wq, wk, wv))
    else:
        q, k, v = (tensor(m) for m in (q, k, v))
    scale = None if "scale" not in rest else float(rest["scale"])
    mask = torch.tensor(rest["mask"]).bool() if "mask" in rest else torch.ones(len(q), len(k)).bool()
    if rest["causal"]:
        mask = mask.tril(len(k) - len(q))
    parts = [m.chunk(heads, dim=-1) for m in (q, k, v)]
    outs = [attention(a, b, c, scale=scale, mask=mask) for a, b, c in zip(*parts, strict=True)]
    out = torch.cat(outs, dim=-1)
    return (out if wo is None else out @ tensor(wo)).tolist()


@settings(max_examples=25, deadline=None)
@given(problems())
def test_solve_equals_float64_attention_to_1e_12(problem):
    solution = solve(**problem)
    assert solution.agreement.difference <= 1e-12
    assert close(solution.output.decimal, float64_attention(**problem))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(small, min_size=2, max_size=2), min_size=1, max_size=3))
def test_solve_scores_are_exact_fractions(x):
    scores = solve(x).scores.exact
    assert [[Fraction(text) for text in row] for row in scores] == [
        [sum(a * b for a, b in zip(one, two, strict=True)) for two in x] for one in x
    ]
