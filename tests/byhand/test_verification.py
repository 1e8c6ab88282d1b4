"""`verify`: what is right, the first wrong number, what follows from it, and the mistake by name.

The answers are computed here in plain floats, with the mistake made on purpose.
"""

import math

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
    assert lines(result) == ["queries[2,1]: expected -1, got 1: a lost minus sign"]
    assert [verdicts(result)[step] for step in ("keys", "scores", "scaled", "weights", "output")] == [
        *("right", "follows", "follows", "follows", "follows")
    ]
    assert not result.ok


def test_verify_names_the_product_with_a_lost_minus_sign():
    scores = [["9/2", *S[0][1:]], *S[1:]]  # 1·3 + 3·(1/2) instead of 1·3 + 3·(-1/2)
    assert lines(check(scores=scores)) == [
        "scores[1,1]: expected 3/2, got 9/2: a lost minus sign in the product 3·(-0.5)"
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
    assert first(check(keys=V)).mistake == "K and V swapped"
    assert first(check(queries=K)).mistake == "Q and K swapped"
    assert first(check(output=text(times(WEIGHTS, floats(K))))).mistake == "K and V swapped: the keys were averaged"


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
    assert lines(check(scores=scores)) == ["scores[1,2]: expected -5/2, got 7"]


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
    assert "scores[2,1]: expected 2.5 (from your own numbers before it), got 99" in lines(result)


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
