"""`verify` tells no stories: arbitrary wrong numbers get a specific cause only rarely, however few digits there are.

A cause is specific if it is not "not identified" and no plain arithmetic error. The sheets are computed here with
numpy: one step has arbitrary numbers, and everything after it follows from these.
"""

import numpy as np
import pytest

from qkv.byhand import make_problem, verify
from qkv.byhand.chance import evidence
from qkv.byhand.sheet import read_step

PLAIN = ("not identified", "an arithmetic error")
SHARE = 1 / 8  # of the sheets with arbitrary numbers may get a specific cause


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def arbitrary_weights(random, shape, places):
    """Rows of rounded numbers that add up to 1."""
    shares = random.uniform(0.1, 1.1, shape)
    weights = np.round(shares / shares.sum(-1, keepdims=True), places)
    weights[:, -1] = np.round(1 - weights[:, :-1].sum(-1), places)
    return weights


def sheet_with(step, queries, keys, places, seed, beta=2**-0.5):
    """A problem and a sheet on which one step has arbitrary wrong numbers."""
    random = np.random.default_rng([seed, queries, keys, places])
    q, k = (np.round(random.uniform(-2, 2, (n, 2)), 1) for n in (queries, keys))
    v, target = np.round(random.uniform(-2, 2, (keys, 2)), 1), np.round(random.uniform(-2, 2, (queries, 2)), 1)

    def noise(right, digits):
        return np.round(right + random.choice([-1, 1], right.shape) * random.uniform(0.1, 1.5, right.shape), digits)

    scores = q @ k.T
    if step == "scores":
        scores = noise(scores, 2)
    weights = arbitrary_weights(random, (queries, keys), places) if step == "weights" else softmax(scores * beta)
    output = weights @ v
    if step == "output":
        output = noise(output, places)
    d_output = 2 * (output - target)
    d_weights = d_output @ v.T
    d_scaled = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    if step == "dZ":
        d_scaled = noise(d_scaled, places)
    tables = {"weights": weights, "output": output}
    if step == "scores":
        tables = {"scores": scores} | tables
    problem = {"q": q, "k": k, "v": v}
    if step == "dZ":
        tables |= {"dO": d_output, "dA": d_weights, "dZ": d_scaled, "dQ": beta * d_scaled @ k}
        problem |= {"loss": "squared-error", "target": target}
    sheet = {name: [[f"{value:.{places}f}" for value in row] for row in table] for name, table in tables.items()}
    return make_problem(
        {name: value if isinstance(value, str) else value.tolist() for name, value in problem.items()}
    ), sheet


def specific_causes(step, result):
    """The causes named for a step with arbitrary numbers; numbers near the right ones may count as right."""
    return [
        remark.mistake
        for check in result.steps
        for remark in check.remarks
        if check.step == step and remark.kind == "slip" and not remark.mistake.startswith(PLAIN)
    ]


KINDS = [  # step, queries, keys, digits
    ("weights", 1, 2, 2),
    ("weights", 2, 2, 2),
    ("weights", 2, 2, 3),
    ("weights", 3, 3, 2),
    ("output", 3, 3, 2),
    ("scores", 2, 2, 2),
    ("dZ", 2, 2, 3),
]


def count_named(kinds, seeds):
    sheets = [(kind[0], *sheet_with(*kind, seed)) for kind in kinds for seed in seeds]
    return [causes for step, problem, sheet in sheets if (causes := specific_causes(step, verify(problem, sheet)))]


def test_verify_rarely_names_a_cause_of_arbitrary_numbers():
    assert len(count_named(KINDS, range(3))) <= 1


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_verify_names_a_cause_of_few_sheets_with_arbitrary_numbers(kind):
    assert len(count_named([kind], range(100, 125))) <= SHARE * 25


def test_verify_calls_an_output_right_that_follows_from_weights_without_a_known_cause():
    problem = make_problem({"q": "1 0.3; -0.4 1", "k": "0.5 1; 1.2 -0.7", "v": "1 -0.8; -0.3 1.6"})
    weights = np.array([[0.29, 0.71], [0.83, 0.17]])
    output = weights @ [[1, -0.8], [-0.3, 1.6]]
    sheet = {
        name: [[f"{v:.2f}" for v in row] for row in table] for name, table in (("weights", weights), ("output", output))
    }
    steps = {check.step: check for check in verify(problem, sheet).steps}
    assert [remark.mistake for remark in steps["weights"].remarks] == ["not identified"]
    assert steps["output"].remarks == () and steps["output"].wrong == 0


@pytest.mark.parametrize(
    ("factor", "mistake"),
    [(1.0, "forgotten 1/√d"), (0.5, "1/d instead of 1/√d")],
)
@pytest.mark.parametrize("places", [2, 3])
def test_verify_names_common_slips_also_in_rows_of_two_weights(factor, mistake, places):
    q, k = np.array([[1.0, 2.0], [-1.0, 0.5]]), np.array([[0.5, 1.0], [1.5, -0.5]])
    weights = softmax(q @ k.T * factor)
    problem = make_problem({"q": q.tolist(), "k": k.tolist(), "v": [[1], [2]]})
    (remark,) = verify(problem, {"weights": [[f"{v:.{places}f}" for v in row] for row in weights]}).steps[0].remarks
    assert remark.mistake.startswith(mistake)


def test_evidence_of_a_row_that_adds_up_to_1_is_that_of_its_other_numbers():
    rows = read_step("weights", "0.25 0.75; 0.31 0.69", (1, 2, 2), columns=False)
    told = np.full((1, 2, 2), 6.0)
    assert evidence(rows, np.ones((1, 2, 2), bool), told) == 12
    loose = read_step("output", "0.25 0.75; 0.31 0.69", (1, 2, 2), columns=False)
    assert evidence(loose, np.ones((1, 2, 2), bool), told) == 24


def test_verify_says_perhaps_if_a_slip_fits_but_too_few_digits_confirm_it():
    problem = make_problem({"q": "1 0", "k": "1 0; 0 1", "v": "4; 8"})
    (remark,) = verify(problem, {"weights": "0.62 0.38"}).steps[0].remarks  # softmax(1/2, 0)
    assert remark.mistake == "not identified"
    assert "perhaps" in remark.note and "1/d instead of 1/√d" in remark.note and "too few digits to tell" in remark.note
    (remark,) = verify(problem, {"weights": "0.62246 0.37754"}).steps[0].remarks
    assert "1/d instead of 1/√d" in (remark.mistake, *remark.alternatives)


def test_verify_names_no_rounding_that_the_numbers_do_not_confirm():
    problem = make_problem({"q": "0.9 -1.3", "k": "1.4 0.6; -0.8 1.7", "v": "1; 2"})
    exact = softmax(np.array([[0.9, -1.3]]) @ np.array([[1.4, 0.6], [-0.8, 1.7]]).T * 2**-0.5)[0]
    for off in (0.05, 0.07, 0.09):
        weights = [[f"{exact[0] - off:.2f}", f"{exact[1] + off:.2f}"]]
        (remark,) = verify(problem, {"weights": weights}).steps[0].remarks
        assert "early rounding" not in remark.mistake
