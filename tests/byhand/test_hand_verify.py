"""A person's working: what is right, the first wrong number, what follows from it, and the mistake by name.

The answers are worked here in plain floats, with the mistake made on purpose.
"""

import math

import pytest

from qkv.byhand import example, make_problem, verify, work_problem

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
def test_right_answers_are_accepted_at_the_rounding_at_which_they_are_written(places):
    answer = RIGHT | {"weights": text(WEIGHTS, places), "output": text(OUTPUT, places)}
    result = check(**answer)
    assert result.ok
    assert set(verdicts(result).values()) == {"right"}
    assert lines(result) == []


def test_exact_answers_are_accepted():
    worked = work_problem(example("three-tokens"))
    steps = ("queries", "keys", "values", "scores", "scaled", "weights", "output")
    assert check(**{step: getattr(worked, step).exact for step in steps}).ok
    assert check(scaled=[["3/(2√2)", "-5/(2√2)", "8/√2"], *worked.scaled.exact[1:]]).ok


def test_a_lost_minus_sign_is_named_and_what_follows_from_it_is_no_new_mistake():
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


def test_a_lost_minus_sign_inside_a_dot_product_is_named_with_its_product():
    scores = [["9/2", *S[0][1:]], *S[1:]]  # 1·3 + 3·(1/2) in place of 1·3 + 3·(-1/2)
    assert lines(check(scores=scores)) == [
        "scores[1,1]: expected 3/2, got 9/2: a lost minus sign in the product 3·(-0.5)"
    ]


def test_a_lost_minus_sign_in_the_inputs_is_found_where_it_shows_first():
    inputs = [[1, -1, 0, 2], [0, -1, 2, 1], [2, 2, -1, 0]]  # -2 became 2
    keys = times(inputs, [[1, -0.5], [0, 1], [0.5, -0.5], [1, 0.5]])
    assert first(check(keys=text(keys, 1))).mistake == "a lost minus sign in x[3,1]"


@pytest.mark.parametrize("shown", ["scaled", "weights", "output"])
def test_a_forgotten_scale_is_named_wherever_it_shows_first(shown):
    weights = softmax(floats(S))
    answer = {"scaled": S, "weights": text(weights), "output": text(times(weights, floats(V)))}
    steps = list(answer)[list(answer).index(shown) :]
    result = check(queries=Q, scores=S, **{step: answer[step] for step in steps})
    assert len(lines(result)) == 1
    assert lines(result)[0].endswith(": forgotten 1/√d: the scores were not scaled")
    assert first(result).step == shown
    assert all(verdicts(result)[step] == "follows" for step in steps[1:])


@pytest.mark.parametrize("written", [{"weights": text(WEIGHTS, 2)}, {"weights": text(WEIGHTS)}, {}])
def test_a_map_rounded_to_two_digits_before_the_last_product_is_named_and_accepted(written):
    rounded = [[round(value, 2) for value in row] for row in WEIGHTS]
    result = check(**written, output=text(times(rounded, floats(V))))
    assert len(lines(result)) == 1
    assert ": early rounding: the weights were rounded to two digits before the last product" in lines(result)[0]
    assert "accepted" in lines(result)[0]
    assert result.ok
    assert verdicts(result)["output"] == "rounded"


def test_the_textbook_map_rounded_first_gives_the_known_numbers():
    problem = example("three-tokens", beta="1")
    rounded = [[round(value, 2) for value in row] for row in softmax(floats(S))]
    output = times(rounded, floats(V))
    assert [round(value, 2) for value in output[2]] == [1.17, 0.21]
    result = verify(problem, {"weights": text(rounded, 2), "output": text(output, 2)})
    assert result.ok
    assert "early rounding" in lines(result)[0]


def test_early_rounding_beyond_the_tolerance_is_wrong():
    rounded = [[round(value, 1) for value in row] for row in WEIGHTS]
    answer = {"output": text(times(rounded, floats(V)))}
    strict, generous = (verify(example("three-tokens"), answer, tolerance) for tolerance in (0.02, 0.2))
    assert not strict.ok
    assert "rounded to one digit" in lines(strict)[0]
    assert generous.ok


@pytest.mark.parametrize("with_weights", [True, False])
def test_a_softmax_down_the_columns_is_named(with_weights):
    weights = turn(softmax(turn(SCALED)))
    answer = {"weights": text(weights)} if with_weights else {}
    result = check(**answer, output=text(times(weights, floats(V))))
    assert len(lines(result)) == 1
    assert lines(result)[0].endswith(": softmax over the wrong axis: down the columns instead of along the rows")


def test_one_over_d_is_told_from_one_over_the_root_of_d():
    assert first(check(scaled=text(scale(floats(S), 0.5)))).mistake == "1/d instead of 1/√d"


def test_keys_that_were_not_transposed_are_named():
    problem = make_problem({"q": "1 2; 3 4", "k": "1 3; 0 1", "v": "1; 2"})
    wrong = times([[1, 2], [3, 4]], [[1, 3], [0, 1]])
    result = verify(problem, {"scores": text(wrong, 0)})
    assert first(result).mistake == "K was not transposed"


def test_rows_for_columns_are_named_whether_square_or_not():
    assert first(check(queries=turn(Q))).mistake == "rows for columns: the matrix is transposed"
    assert first(check(scores=turn(S))).mistake.startswith("rows for columns")


def test_swapped_keys_and_values_are_named():
    assert first(check(keys=V)).mistake == "K and V swapped"
    assert first(check(queries=K)).mistake == "Q and K swapped"
    assert first(check(output=text(times(WEIGHTS, floats(K))))).mistake == "K and V swapped: the keys were averaged"


def test_a_forgotten_mask_is_named():
    scaled = work_problem(example("causal")).scaled.decimal
    result = verify(example("causal"), {"weights": text(softmax(scaled))})
    assert first(result).mistake == "forgotten mask"


def test_a_masked_score_may_be_written_as_minus_infinity():
    scaled = [["√2/2", "-inf", "−∞"], ["0", "√2/2", "-1e9"], ["√2/2", "√2/2", "√2"]]
    weights = text(work_problem(example("causal")).weights.decimal, 2)
    assert verify(example("causal"), {"scaled": scaled, "weights": weights}).ok


def test_exponentials_that_were_not_divided_are_named():
    powers = [[math.exp(value) for value in row] for row in SCALED]
    assert first(check(weights=text(powers))).mistake == "not divided by the sum: these are the exponentials"


def test_a_product_that_was_left_out_is_named():
    scores = [*S[:2], ["15/2", *S[2][1:]]]
    assert first(check(scores=scores)).mistake == "the product (-2)·(-0.5) was left out"


def test_a_number_without_a_known_mistake_is_still_named_by_its_place():
    scores = [["3/2", "7", "8"], *S[1:]]
    assert lines(check(scores=scores)) == ["scores[1,2]: expected -5/2, got 7"]


def test_two_separate_slips_get_a_line_each_and_the_first_is_first():
    scores = [["3/2", "5/2", "8"], ["-7/2", "-7/2", "6"], ["17/2", "8", "53/4"]]
    result = check(scores=scores)
    assert [line.split(":")[0] for line in lines(result)] == ["scores[1,2]", "scores[3,3]"]
    assert all(line.endswith("a lost minus sign") for line in lines(result))
    assert (first(result).row, first(result).column) == (1, 2)


def test_a_new_slip_after_an_earlier_one_is_measured_against_the_persons_own_numbers():
    queries = [["1", "3"], ["1", "1"], ["5/2", "-2"]]
    scores = text(times(floats(queries), turn(floats(K))), 2)
    scores[1][0] = "99"
    result = check(queries=queries, scores=scores)
    assert first(result).step == "queries"
    assert "scores[2,1]: expected 2.5 (from your own numbers before it), got 99" in lines(result)


def test_cells_are_named_as_the_column_convention_writes_them():
    problem = example("three-tokens", convention="columns")
    queries = turn([["1", "3"], ["1", "1"], ["5/2", "-2"]])
    result = verify(problem, {"queries": queries})
    assert (first(result).row, first(result).column) == (1, 2)
    weights = softmax(turn(SCALED))  # along the rows of Kᵀ Q
    assert first(verify(problem, {"weights": text(weights)})).mistake == (
        "softmax over the wrong axis: along the rows instead of down the columns"
    )


def test_heads_are_checked_one_after_another_and_the_last_matrix_too():
    worked = work_problem(example("two-heads"))
    assert verify(example("two-heads"), {"weights": worked.weights.exact, "output": worked.output.exact}).ok
    assert worked.unscaled is not None
    result = verify(example("two-heads"), {"output": text(worked.unscaled.decimal)})
    assert first(result).mistake == "forgotten 1/√d: the scores were not scaled"


def test_a_whole_number_among_decimals_is_read_at_their_rounding():
    assert check(weights=[["0.01", "0", "0.99"], ["0", "0", "1"], ["0.59", "0.41", "0"]]).ok


def test_a_table_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="weights: expected 3×3 numbers, got 2×2"):
        check(weights="1 2; 3 4")
