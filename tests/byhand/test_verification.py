"""`verify`: what is right, the first wrong number, what follows from it, and the mistake by name.

The answers are computed here in plain floats, with the mistake made on purpose.
"""

import math
from random import Random

import pytest

from qkv.byhand import example, make_problem, solve_problem, verify

Q = [["1", "3"], ["-1", "1"], ["5/2", "-2"]]
K = [["3", "-1/2"], ["2", "-3/2"], ["-5/2", "7/2"]]
V = [["5/2", "-3/2"], ["-1", "3"], ["-2", "-3"]]
S = [["3/2", "-5/2", "8"], ["-7/2", "-7/2", "6"], ["17/2", "8", "-53/4"]]


def number(text):
    above, _, below = text.partition("/")
    return int(above) / int(below or 1)


def floats(matrix):
    return [[number(text) for text in row] for row in matrix]


def times(left, right):
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)] for row in left
    ]


def turn(matrix):
    return [list(row) for row in zip(*matrix, strict=True)]


def scale(matrix, factor):
    return [[factor * value for value in row] for row in matrix]


def softmax(matrix):
    return [[math.exp(value) / sum(map(math.exp, row)) for value in row] for row in matrix]


def text(matrix, places=4):
    return [[f"{value:.{places}f}" for value in row] for row in matrix]


SCALED = scale(floats(S), 2**-0.5)
WEIGHTS = softmax(SCALED)
OUTPUT = times(WEIGHTS, floats(V))
RIGHT = {"queries": Q, "keys": K, "values": V, "scores": S, "scaled": text(SCALED), "weights": text(WEIGHTS)}
RIGHT["output"] = text(OUTPUT)


def check(**answer):
    return verify(example("three-tokens"), answer)


def verdicts(result):
    return {check.step: check.verdict for check in result.steps}


def first(result):
    assert result.first is not None
    return result.first


def lines(result):
    return [remark.sentence for check in result.steps for remark in check.remarks]


@pytest.mark.parametrize("places", [1, 2, 4, 8])
def test_verify_accepts_right_answers_at_the_precision_written(places):
    answer = RIGHT | {"weights": text(WEIGHTS, places), "output": text(OUTPUT, places)}
    result = check(**answer)
    assert result.ok
    assert set(verdicts(result).values()) == {"right"}
    assert lines(result) == []


def test_verify_accepts_exact_answers():
    solution = solve_problem(example("three-tokens"))
    steps = ("queries", "keys", "values", "scores", "scaled", "weights", "output")
    assert check(**{step: getattr(solution, step).exact for step in steps}).ok
    assert check(scaled=[["3/(2√2)", "-5/(2√2)", "8/√2"], *solution.scaled.exact[1:]]).ok


def test_verify_names_a_lost_minus_sign_once_and_accepts_what_follows_from_it():
    queries = [["1", "3"], ["1", "1"], ["5/2", "-2"]]
    scores = times(floats(queries), turn(floats(K)))
    weights = softmax(scale(scores, 2**-0.5))
    answer = RIGHT | {"queries": queries, "scores": text(scores, 2), "scaled": text(scale(scores, 2**-0.5))}
    result = check(**answer | {"weights": text(weights), "output": text(times(weights, floats(V)))})
    assert lines(result) == [
        "queries[2,1]: expected -1, got 1: a lost minus sign (or: column 2 was used instead of column 1)"
    ]
    assert [verdicts(result)[step] for step in ("keys", "scores", "scaled", "weights", "output")] == [
        *("right", "follows", "follows", "follows", "follows")
    ]
    assert not result.ok


def test_verify_names_the_product_with_a_lost_minus_sign():
    scores = [["9/2", *S[0][1:]], *S[1:]]  # 1·3 + 3·(1/2) instead of 1·3 + 3·(-1/2)
    assert lines(check(scores=scores)) == [
        "scores[1,1]: expected 3/2, got 9/2: a lost minus sign in the product 3·(-0.5) "
        "(or: the product 1·3 was counted twice)"
    ]


def test_verify_finds_a_lost_minus_sign_in_the_inputs():
    inputs = [[1, -1, 0, 2], [0, -1, 2, 1], [2, 2, -1, 0]]  # -2 became 2
    keys = times(inputs, [[1, -0.5], [0, 1], [0.5, -0.5], [1, 0.5]])
    assert first(check(keys=text(keys, 1))).mistake == "a lost minus sign in x[3,1]"


@pytest.mark.parametrize("shown", ["scaled", "weights", "output"])
def test_verify_names_a_forgotten_scale_at_any_step(shown):
    weights = softmax(floats(S))
    answer = {"scaled": S, "weights": text(weights), "output": text(times(weights, floats(V)))}
    steps = list(answer)[list(answer).index(shown) :]
    result = check(queries=Q, scores=S, **{step: answer[step] for step in steps})
    assert len(lines(result)) == 1
    assert lines(result)[0].endswith(": forgotten 1/√d: the scores were not scaled")
    assert first(result).step == shown
    assert all(verdicts(result)[step] == "follows" for step in steps[1:])


@pytest.mark.parametrize("written", [{"weights": text(WEIGHTS, 2)}, {"weights": text(WEIGHTS)}, {}])
def test_verify_names_and_accepts_weights_rounded_to_two_digits(written):
    rounded = [[round(value, 2) for value in row] for row in WEIGHTS]
    result = check(**written, output=text(times(rounded, floats(V))))
    assert len(lines(result)) == 1
    assert ": early rounding: the weights were rounded to two digits before the last product" in lines(result)[0]
    assert "accepted" in lines(result)[0]
    assert result.ok
    assert verdicts(result)["output"] == "rounded"


def test_verify_accepts_the_textbook_output_of_rounded_weights():
    problem = example("three-tokens", scale="1")
    rounded = [[round(value, 2) for value in row] for row in softmax(floats(S))]
    output = times(rounded, floats(V))
    assert [round(value, 2) for value in output[2]] == [1.17, 0.21]
    result = verify(problem, {"weights": text(rounded, 2), "output": text(output, 2)})
    assert result.ok
    assert "early rounding" in lines(result)[0]


def test_verify_rejects_early_rounding_beyond_the_tolerance():
    rounded = [[round(value, 1) for value in row] for row in WEIGHTS]
    answer = {"output": text(times(rounded, floats(V)))}
    strict, generous = (verify(example("three-tokens"), answer, tolerance) for tolerance in (0.02, 0.2))
    assert not strict.ok
    assert "rounded to one digit" in lines(strict)[0]
    assert generous.ok


@pytest.mark.parametrize("with_weights", [True, False])
def test_verify_names_a_softmax_down_the_columns(with_weights):
    weights = turn(softmax(turn(SCALED)))
    answer = {"weights": text(weights)} if with_weights else {}
    result = check(**answer, output=text(times(weights, floats(V))))
    assert len(lines(result)) == 1
    assert lines(result)[0].endswith(": softmax over the wrong axis: down the columns instead of along the rows")


def test_verify_tells_one_over_d_from_one_over_root_d():
    assert first(check(scaled=text(scale(floats(S), 0.5)))).mistake == "1/d instead of 1/√d"


def test_verify_names_keys_that_were_not_transposed():
    problem = make_problem({"q": "1 2; 3 4", "k": "1 3; 0 1", "v": "1; 2"})
    wrong = times([[1, 2], [3, 4]], [[1, 3], [0, 1]])
    result = verify(problem, {"scores": text(wrong, 0)})
    assert first(result).mistake == "K was not transposed"


def test_verify_names_transposed_matrices_square_or_not():
    assert first(check(queries=turn(Q))).mistake == "rows for columns: the matrix is transposed"
    assert first(check(scores=turn(S))).mistake.startswith("rows for columns")


def test_verify_names_swapped_keys_and_values():
    assert first(check(keys=V)).mistake == "W_V used instead of W_K"
    assert first(check(queries=K, keys=Q)).mistake == "W_Q and W_K exchanged"
    assert first(check(keys=K, values=V, output=text(times(WEIGHTS, floats(K))))).mistake == "K used instead of V"


def test_verify_names_a_forgotten_mask():
    scaled = solve_problem(example("causal")).scaled.decimal
    result = verify(example("causal"), {"weights": text(softmax(scaled))})
    assert first(result).mistake == "forgotten mask"


def test_verify_accepts_minus_infinity_for_a_masked_score():
    scaled = [["√2/2", "-inf", "−∞"], ["0", "√2/2", "-1e9"], ["√2/2", "√2/2", "√2"]]
    weights = text(solve_problem(example("causal")).weights.decimal, 2)
    assert verify(example("causal"), {"scaled": scaled, "weights": weights}).ok


def test_verify_names_exponentials_that_were_not_normalized():
    powers = [[math.exp(value) for value in row] for row in SCALED]
    assert first(check(weights=text(powers))).mistake == "not divided by the sum: these are the exponentials"


def test_verify_names_a_product_that_was_left_out():
    scores = [*S[:2], ["15/2", *S[2][1:]]]
    assert first(check(scores=scores)).mistake == "the product (-2)·(-0.5) was left out"


def test_verify_gives_the_place_of_a_number_without_a_known_mistake():
    scores = [["3/2", "7", "8"], *S[1:]]
    assert lines(check(scores=scores)) == [
        "scores[1,2]: expected -5/2, got 7: an arithmetic error, or another number was copied: off by 9.5"
    ]


def test_verify_reports_two_separate_slips_in_order():
    scores = [["3/2", "5/2", "8"], ["-7/2", "-7/2", "6"], ["17/2", "8", "53/4"]]
    result = check(scores=scores)
    assert [line.split(":")[0] for line in lines(result)] == ["scores[1,2]", "scores[3,3]"]
    assert all(line.endswith("a lost minus sign") for line in lines(result))
    assert (first(result).row, first(result).column) == (1, 2)


def test_verify_compares_a_later_slip_with_the_persons_own_numbers():
    queries = [["1", "3"], ["1", "1"], ["5/2", "-2"]]
    scores = text(times(floats(queries), turn(floats(K))), 2)
    scores[1][0] = "99"
    result = check(queries=queries, scores=scores)
    assert first(result).step == "queries"
    start = "scores[2,1]: expected 2.5 (from your own numbers before it), got 99: an arithmetic error"
    assert any(line.startswith(start) for line in lines(result))


def test_verify_names_cells_in_the_column_convention():
    problem = example("three-tokens", convention="columns")
    queries = turn([["1", "3"], ["1", "1"], ["5/2", "-2"]])
    result = verify(problem, {"queries": queries})
    assert (first(result).row, first(result).column) == (1, 2)
    weights = softmax(turn(SCALED))  # along the rows of Kᵀ Q
    assert first(verify(problem, {"weights": text(weights)})).mistake == (
        "softmax over the wrong axis: along the rows instead of down the columns"
    )


def test_verify_checks_several_heads_and_the_output_projection():
    solution = solve_problem(example("two-heads"))
    assert verify(example("two-heads"), {"weights": solution.weights.exact, "output": solution.output.exact}).ok
    assert solution.unscaled is not None
    result = verify(example("two-heads"), {"output": text(solution.unscaled.decimal)})
    assert first(result).mistake == "forgotten 1/√d: the scores were not scaled"


def test_verify_reads_an_integer_among_decimals_at_their_precision():
    assert check(weights=[["0.01", "0", "0.99"], ["0", "0", "1"], ["0.59", "0.41", "0"]]).ok


def test_verify_rejects_a_matrix_of_another_shape():
    with pytest.raises(ValueError, match="weights: expected 3×3 numbers, got 2×2"):
        check(weights="1 2; 3 4")


@pytest.mark.parametrize("scale_given", ["", "1"])
@pytest.mark.parametrize("written", ["fractions", "decimals"])
@pytest.mark.parametrize("steps", [("scores", "weights", "output"), ("scores", "scaled", "weights", "output")])
def test_verify_explains_a_lost_sign_no_scale_and_a_rounded_map_in_one_sheet(scale_given, written, steps):
    wrong = [["3/2", "5/2", "8"], *S[1:]]  # 5/2 for -5/2
    weights = softmax(floats(wrong))
    rounded = [[round(value, 2) for value in row] for row in weights]
    scores = wrong if written == "fractions" else [[f"{number(cell):g}" for cell in row] for row in wrong]
    answer = {"scores": scores, "scaled": scores, "weights": text(weights, 2)}
    answer["output"] = text(times(rounded, floats(V)), 2)
    changes = {"scale": scale_given} if scale_given else {}
    result = verify(example("three-tokens", **changes), {step: answer[step] for step in steps})
    found = lines(result)
    assert found[0].startswith("scores[1,2]: expected -5/2, got ") and found[0].endswith(": a lost minus sign")
    assert "early rounding: the weights were rounded to two digits before the last product" in found[-1]
    assert "accepted" in found[-1]
    if scale_given:
        assert len(found) == 2
    else:
        assert len(found) == 3
        assert found[1].endswith(": forgotten 1/√d: the scores were not scaled")
        assert found[1].startswith("scaled" if "scaled" in steps else "weights")
    assert sum(check.wrong for check in result.steps if check.step in ("scores", "output")) == 1


def test_verify_takes_exact_decimals_as_exact():
    scores = [["1.5", "-2.5", "8"], ["-3.5", "-3.5", "6"], ["8.5", "8", "-13.25"]]
    scaled = text(SCALED, 3)
    scaled[0][1] = "-1.74"  # -2.46/√2: within the rounding of -2.5, had it been rounded
    result = check(scores=scores, scaled=scaled)
    assert first(result).step == "scaled"
    assert [c.wrong for c in result.steps] == [0, 1]


def test_verify_calls_only_cells_that_the_slip_reaches_carried_forward():
    queries = [["1", "3"], ["1", "1"], ["5/2", "-2"]]  # the slip is in row 2
    scores = [list(row) for row in text(times(floats(queries), turn(floats(K))), 2)]
    scores[0][1] = "2.50"  # another slip, in row 1
    result = check(queries=queries, scores=scores)
    step = result.steps[1]
    assert (step.follows, step.wrong) == (3, 1)
    assert step.remarks[0].mistake == "a lost minus sign"
    assert (step.remarks[0].row, step.remarks[0].column) == (1, 2)


CAUSAL = {"x": "1 0; 0 1; 1 1", "wq": "2 1; -1 1", "wk": "1 -1; 1 2", "wv": "1 2; 3 -1", "causal": True}
HEADS = {"x": "1 0 2 -1; 0 1 -2 1; 1 1 0 1", "wq": "1 0 0 1; 0 1 1 0; 0 0 1 0; 1 0 0 0", "heads": 2}
HEADS |= {"wk": "1 0 0 0; 0 1 0 1; 0 0 1 0; 0 1 0 1", "wv": "1 0 0 2; 0 1 1 0; 0 1 0 1; 1 0 1 0"}


def solved(settings):
    solution = solve_problem(make_problem(settings))
    return solution.problem, {
        name: getattr(solution, name).decimal for name in ("values", "scores", "scaled", "weights")
    }


def normalize(rows):
    return [[value / sum(row) for value in row] for row in rows]


EXPONENTIALS = {
    "2^x instead of e^x": lambda x: 2**x,
    "e^(−x) instead of e^x": lambda x: math.exp(-x),
    "e⁰ was taken as 0": lambda x: math.exp(x) if x else 0.0,
    "no exponentials": lambda x: x,
}


@pytest.mark.parametrize("mistake", EXPONENTIALS)
@pytest.mark.parametrize("places", [2, 4])
def test_verify_names_wrong_exponentials(mistake, places):
    problem, right = solved({"q": "1 0; 2 1", "k": "1 2; 0 1; 2 1", "v": "1 0; 2 1; 0 3"})
    weights = normalize([[EXPONENTIALS[mistake](value) for value in row] for row in right["scaled"]])
    output = times(weights, right["values"])
    result = verify(problem, {"weights": text(weights, places), "output": text(output, places)})
    assert len([line for line in lines(result) if "accepted" not in line]) == 1
    assert first(result).mistake.startswith(mistake)
    assert verdicts(result)["output"] != "wrong"


MASKS = {
    "the mask is off by one: each query also sees the next key": [[1, 1, 0], [1, 1, 1], [1, 1, 1]],
    "the mask is off by one: no query sees its own key": [[0, 0, 0], [1, 0, 0], [1, 1, 0]],
    "rows for columns: the mask was transposed": [[1, 1, 1], [0, 1, 1], [0, 0, 1]],
}


@pytest.mark.parametrize("mistake", MASKS)
def test_verify_names_wrong_masks(mistake):
    problem, right = solved(CAUSAL)
    rows = [
        [math.exp(value) * flag for value, flag in zip(*pair, strict=True)]
        for pair in zip(right["scaled"], MASKS[mistake], strict=True)
    ]
    weights = [[value / (sum(row) or 1) for value in row] for row in rows]
    result = verify(problem, {"weights": text(weights, 3), "output": text(times(weights, right["values"]), 3)})
    assert lines(result)[0].split(": ", 2)[2].startswith(mistake)
    assert len(lines(result)) == 1


def test_verify_names_a_mask_that_shows_in_the_scaled_scores():
    problem, right = solved(CAUSAL)
    scaled = [
        [f"{value:.3f}" if j < i else "-inf" for j, value in enumerate(row)] for i, row in enumerate(right["scaled"])
    ]
    assert first(verify(problem, {"scaled": scaled})).mistake == "the mask is off by one: no query sees its own key"


@pytest.mark.parametrize("places", [2, 4])
@pytest.mark.parametrize("mistake", [name for name in MASKS if "own key" not in name])
def test_verify_names_a_mask_that_leaves_numbers_in_place_of_minus_infinity(mistake, places):
    problem, right = solved(CAUSAL)
    scaled = [
        [f"{value:.{places}f}" if flag else "-inf" for value, flag in zip(*pair, strict=True)]
        for pair in zip(right["scaled"], MASKS[mistake], strict=True)
    ]
    result = verify(problem, {"scaled": scaled})
    assert mistake in first(result).sentence
    assert len(lines(result)) == 1


def test_verify_gives_the_place_of_one_number_in_place_of_minus_infinity():
    problem, right = solved(CAUSAL)
    scaled = [
        [f"{value:.3f}" if j <= i else "-inf" for j, value in enumerate(row)] for i, row in enumerate(right["scaled"])
    ]
    scaled[0][2] = "5.125"
    remark = first(verify(problem, {"scaled": scaled}))
    assert (remark.row, remark.column, remark.mistake) == (1, 3, "not identified")


def test_verify_names_heads_that_are_joined_wrongly():
    problem, right = solved(HEADS)
    weights, values = right["weights"], right["values"]
    parts = [times(weights[3 * h : 3 * h + 3], [row[2 * h : 2 * h + 2] for row in values]) for h in range(2)]
    exchanged = [b + a for a, b in zip(*parts, strict=True)]
    interleaved = [[a[0], b[0], a[1], b[1]] for a, b in zip(*parts, strict=True)]
    for output, mistake in ((exchanged, "wrong order: 2, 1"), (interleaved, "interleaved instead of concatenated")):
        assert mistake in first(verify(problem, {"output": text(output, 3)})).mistake


def test_verify_restricts_a_slip_to_the_rows_that_have_it():
    scaled = [SCALED[0], floats(S)[1], SCALED[2]]
    result = check(scores=S, scaled=text(scaled, 3), weights=text(softmax(scaled), 3))
    assert first(result).mistake == "forgotten 1/√d: the scores were not scaled (only in row 2)"
    assert verdicts(result)["weights"] == "follows"


def test_verify_prefers_a_slip_to_rounding():
    """Both maps are the same at one digit; the output tells that the scale is missing."""
    problem = make_problem({"q": "1 1", "k": "3 0; -2 0", "v": "10 -7; 30 5"})
    weights = softmax([[3.0, -2.0]])
    answer = {"weights": text(weights, 1), "output": text(times(weights, [[10, -7], [30, 5]]), 3)}
    assert first(verify(problem, answer)).mistake == "forgotten 1/√d: the scores were not scaled"


def test_verify_takes_a_number_that_was_corrected_later_as_right():
    scores = [["3/2", "5/2", "8"], *S[1:]]
    result = check(scores=scores, scaled=text(SCALED), weights=text(WEIGHTS))
    assert [check.verdict for check in result.steps] == ["wrong", "right", "right"]


def test_verify_says_not_identified_where_no_slip_explains_the_numbers():
    problem = make_problem({"q": "1 0; 2 1", "k": "1 2; 0 1; 2 1", "v": "1; 2; 0"})
    weights = [["0.11", "0.53", "0.36"], ["0.47", "0.16", "0.37"]]
    (line,) = lines(verify(problem, {"weights": weights}))
    assert line.endswith(": not identified; 5 more numbers of this step are wrong")


def test_verify_reads_percent_and_heads_side_by_side():
    assert check(weights=[["1%", "0%", "99%"], ["0%", "0%", "100%"], ["59%", "41%", "0%"]]).ok
    problem, right = solved(HEADS)
    beside = [a + b for a, b in zip(right["weights"][:3], right["weights"][3:], strict=True)]
    assert verify(problem, {"weights": text(beside, 3)}).ok


@pytest.mark.parametrize("seed", range(8))
def test_verify_accepts_right_sheets_however_they_are_rounded(seed):
    random = Random(seed)
    n, d = random.choice([2, 3]), random.choice([1, 2, 3])
    q, k, v = ([[random.randint(-4, 4) / 2 for _ in range(d)] for _ in range(n)] for _ in range(3))
    places, carry = random.choice([2, 3, 4]), random.choice([True, False])

    def write(rows):
        return [[round(value, places) for value in row] for row in rows] if carry else rows

    scaled = write(scale(times(q, turn(k)), d**-0.5))
    weights = write(softmax(scaled))
    output = times(weights, v)
    problem = make_problem(
        {name: [[str(x) for x in row] for row in rows] for name, rows in (("q", q), ("k", k), ("v", v))}
    )
    cut = random.choice([True, False])  # digits cut off instead of rounded

    def show(rows):
        if not cut:
            return text(rows, places)
        return [
            [f"{math.trunc(value * 10**places + math.copysign(1e-6, value)) / 10**places}" for value in row]
            for row in rows
        ]

    result = verify(problem, {"scaled": show(scaled), "weights": show(weights), "output": show(output)})
    assert result.ok, lines(result)
    assert not any(remark.kind == "slip" for step in result.steps for remark in step.remarks)


GRADIENTS = {"q": "1 0; 2 1; -1 1", "k": "1 2; 0 1; 2 -1", "v": "1 0; 2 1; 0 3", "upstream": "1 2; -1 0; 2 1"}


def backward(**wrong):
    """The steps of the backward pass in floats; `wrong` replaces the formula of a step."""
    q, k, v, d_out = (
        [[float(x) for x in row.split()] for row in GRADIENTS[name].split(";")] for name in ("q", "k", "v", "upstream")
    )
    beta = 2**-0.5
    a = softmax(scale(times(q, turn(k)), beta))
    rules = {
        "dV": lambda t: times(turn(a), d_out),
        "dA": lambda t: times(d_out, turn(v)),
        "r": lambda t: [[sum(x * y for x, y in zip(*pair, strict=True))] for pair in zip(a, t["dA"], strict=True)],
        "dZ": lambda t: [
            [w * (g - r[0]) for w, g in zip(row, gradient, strict=True)]
            for row, gradient, r in zip(a, t["dA"], t["r"], strict=True)
        ],
        "dS": lambda t: scale(t["dZ"], beta),
        "dQ": lambda t: times(t["dS"], k),
        "dK": lambda t: times(turn(t["dS"]), q),
    } | {name: (lambda t, rule=rule: rule(t, a, q, k, v, d_out)) for name, rule in wrong.items()}
    tables = {}
    for name, rule in rules.items():
        tables[name] = rule(tables)
    return tables


def by_number(function, *tables):
    return [[function(*cells) for cells in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]


WRONG_GRADIENTS = {
    "the row sums r were not subtracted": {"dZ": lambda t, a, *_: by_number(lambda w, g: w * g, a, t["dA"])},
    "only the diagonal of the softmax's Jacobian": {
        "dZ": lambda t, a, *_: by_number(lambda w, g: w * (1 - w) * g, a, t["dA"])
    },
    "the factor the weights is missing": {
        "dZ": lambda t, a, *_: [[g - r[0] for g in row] for row, r in zip(t["dA"], t["r"], strict=True)]
    },
    "forgotten 1/√d: dZ was not scaled": {"dS": lambda t, *_: t["dZ"]},
    "the weights were not transposed": {"dV": lambda t, a, q, k, v, d_out: times(a, d_out)},
    "dS was not transposed": {"dK": lambda t, a, q, *_: times(t["dS"], q)},
    "Q used instead of K": {"dQ": lambda t, a, q, *_: times(t["dS"], q)},
    "the difference was taken the wrong way round": {
        "dZ": lambda t, a, *_: [
            [w * (r[0] - g) for w, g in zip(row, gradient, strict=True)]
            for row, gradient, r in zip(a, t["dA"], t["r"], strict=True)
        ]
    },
}


@pytest.mark.parametrize("mistake", WRONG_GRADIENTS)
def test_verify_names_slips_in_the_backward_pass(mistake):
    problem = make_problem(GRADIENTS)
    assert verify(problem, {name: text(rows) for name, rows in backward().items()}).ok
    tables = backward(**WRONG_GRADIENTS[mistake])
    result = verify(problem, {name: text(rows) for name, rows in tables.items()})
    assert first(result).mistake.startswith(mistake)
    assert len([line for line in lines(result) if "accepted" not in line]) == 1
    assert first(result).step == next(iter(WRONG_GRADIENTS[mistake]))


def test_verify_names_a_path_that_is_missing_in_a_gradient():
    settings = {"x": "1 2; 0 1; -1 1", "wq": "1 0; 1 2", "wk": "2 1; 0 -1", "wv": "1 1; 0 2", "loss": "sum"}
    solution = solve_problem(make_problem(settings))
    tables = {name: matrix.decimal for name, matrix in solution.gradients.items()}
    missing = times(tables["dV"], turn([[1, 1], [0, 2]]))
    d_x = by_number(lambda a, b: a - b, tables["dX"], missing)
    result = verify(solution.problem, {"dQ": text(tables["dQ"]), "dK": text(tables["dK"]), "dX": text(d_x)})
    assert first(result).mistake == "forgotten dV W_Vᵀ: not added"
