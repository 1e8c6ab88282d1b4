"""`verify` finds one cause of many wrong numbers, and accepts the rounding of numbers that are not on a sheet.

The sheets are computed here with numpy, each step from the rounded numbers of the one before it.
"""

import numpy as np
import pytest

from qkv.byhand import make_problem, verify

FORWARD = {"x": [[-1, 1, 2], [0, 1, 1], [1, -1, 2]], "wq": [[-1, 0], [1, 1], [-1, 2]], "wk": [[-1, 1], [1, 1], [0, 1]]}
FORWARD |= {"wv": [[-1, -2], [2, 0], [1, 2]]}
SMALL = {"x": [[1, 0.5], [-1, 1]], "wq": [[1, 2], [0, 1]], "wk": [[1, 0], [2, -1]], "wv": [[1, 3], [-2, 1]]}
TARGETS = ([[1, 0], [0, 2], [-1, 1]], [[1, 0], [0, 2]])


def powers(t):
    return np.exp(t["scaled"])


def below_largest(t):
    return np.exp(t["scaled"] - t["scaled"].max(-1, keepdims=True))


STEPS = {
    "queries": lambda t: t["x"] @ t["wq"],
    "keys": lambda t: t["x"] @ t["wk"],
    "values": lambda t: t["x"] @ t["wv"],
    "scores": lambda t: t["queries"] @ t["keys"].T,
    "scaled": lambda t: t["scores"] / 2**0.5,
    "exponentials": powers,
    "sums": lambda t: t["exponentials"].sum(-1, keepdims=True),
    "weights": lambda t: t["exponentials"] / t["sums"],
    "output": lambda t: t["weights"] @ t["values"],
    "dO": lambda t: 2 * (t["output"] - t["target"]) / t["output"].size,
    "dA": lambda t: t["dO"] @ t["values"].T,
    "r": lambda t: (t["weights"] * t["dA"]).sum(-1, keepdims=True),
    "dZ": lambda t: t["weights"] * (t["dA"] - t["r"]),
    "dS": lambda t: t["dZ"] / 2**0.5,
}


def solve_with(settings, slips, places=3, hidden=(), misread=None):
    """The problem and the sheet of a person; misread: a matrix, a place and what was read there."""
    t = {name: np.array(table, float) for name, table in settings.items()}
    t["target"] = np.array(TARGETS[len(t["x"]) == 2], float)
    problem = make_problem(settings | {"loss": "mean-squared-error", "target": t["target"].tolist()})
    if misread:
        name, place, value = misread
        t[name][place] = value
    sheet = {}
    for name, compute in STEPS.items():
        table = slips.get(name, compute)(t)
        texts = [[f"{v:.{places}f}" if v != round(v) else f"{v:g}" for v in row] for row in table]
        t[name] = np.array([[float(cell) for cell in row] for row in texts])
        if name not in hidden:
            sheet[name] = texts
    return problem, sheet


def mistakes(problem, sheet):
    """Step and names of every mistake that is not accepted."""
    found = verify(problem, sheet)
    return [(m.step, (m.mistake, *m.alternatives)) for check in found.steps for m in check.remarks if not m.accepted]


def jacobian_with(on, off):
    """dZ by a wrong Jacobian, entry by entry."""

    def compute(t):
        table = np.zeros_like(t["weights"])
        for row, (a, gradient) in enumerate(zip(t["weights"], t["dA"], strict=True)):
            for i in range(len(a)):
                table[row, i] = sum((on(a[i]) if i == j else off(a[i], a[j])) * gradient[j] for j in range(len(a)))
        return table

    return compute


@pytest.mark.parametrize("settings", [FORWARD, SMALL], ids=["3 tokens", "2 tokens"])
@pytest.mark.parametrize(
    ("on", "off", "words"),
    [
        (lambda a: a * (1 - a), lambda a, b: a * b, "AᵢAⱼ off the diagonal instead of −AᵢAⱼ"),
        (lambda a: 0.0, lambda a, b: -a * b, "0 on the diagonal instead of Aᵢ(1 − Aᵢ)"),
        (lambda a: a, lambda a, b: -a * b, "Aᵢ on the diagonal instead of Aᵢ(1 − Aᵢ)"),
        (lambda a: a * (1 - a), lambda a, b: a * (1 - b), "Aᵢ(1 − Aⱼ) off the diagonal instead of −AᵢAⱼ"),
        (lambda a: 1 - a, lambda a, b: -a * b, "1 − Aᵢ on the diagonal instead of Aᵢ(1 − Aᵢ)"),
    ],
)
def test_verify_names_a_wrong_jacobian_of_the_softmax_for_the_whole_step(settings, on, off, words):
    ((step, names),) = mistakes(*solve_with(settings, {"dZ": jacobian_with(on, off)}, places=4))
    assert step == "dZ" and any(words in name for name in names), names


@pytest.mark.parametrize(
    ("settings", "misread", "words"),
    [
        (FORWARD, ("x", (1, 0), 5), "x[2,1] was read as 5 instead of 0"),
        (FORWARD, ("x", (0, 2), 4), "x[1,3] was read as 4 instead of 2"),
        (FORWARD, ("wq", (1, 0), 6), "wq[2,1] was read as 6 instead of 1"),
        (SMALL, ("x", (0, 1), 4), "x[1,2] was read as 4 instead of 1/2"),
    ],
)
def test_verify_names_one_misread_entry_that_several_products_read(settings, misread, words):
    ((_, names),) = mistakes(*solve_with(settings, {}, misread=misread))
    assert any(name.startswith(words) for name in names), names


@pytest.mark.parametrize("settings", [FORWARD, SMALL], ids=["3 tokens", "2 tokens"])
@pytest.mark.parametrize(
    ("words", "slips"),
    [
        ("instead of the exponents: β·e^s", {"exponentials": lambda t: np.exp(t["scores"]) / 2**0.5}),
        (
            "the maximum was subtracted in the exponentials, but not in the sums",
            {"exponentials": below_largest, "sums": lambda t: powers(t).sum(-1, keepdims=True)},
        ),
        (
            "the maximum was subtracted in the sums, but not in the exponentials",
            {"sums": lambda t: below_largest(t).sum(-1, keepdims=True)},
        ),
        (
            "no parentheses around the sum",
            {"weights": lambda t: powers(t) / powers(t)[:, :1] + powers(t)[:, 1:].sum(-1, keepdims=True)},
        ),
        ("summed over everything", {"sums": lambda t: np.full((len(t["x"]), 1), powers(t).sum())}),
        (
            "1/√d was applied only to the last product",
            {
                "scaled": lambda t: (
                    np.outer(t["queries"][:, 0], t["keys"][:, 0])
                    + np.outer(t["queries"][:, 1], t["keys"][:, 1]) / 2**0.5
                )
            },
        ),
    ],
)
def test_verify_names_slips_with_written_exponentials_and_sums(settings, words, slips):
    ((_, names),) = mistakes(*solve_with(settings, slips, places=4))
    assert any(words in name for name in names), names


@pytest.mark.parametrize("places", [3, 4])
def test_verify_names_the_sum_of_the_other_exponentials_although_the_sums_are_right(places):
    slips = {"weights": lambda t: t["exponentials"] / (t["sums"] - t["exponentials"])}
    ((step, names),) = mistakes(*solve_with(FORWARD, slips, places))
    assert (step, names[0]) == ("weights", "divided by the sum of the other exponentials")


def test_verify_lists_every_count_that_gives_the_same_factor():
    slips = {"dO": lambda t: 2 * (t["output"] - t["target"]) / 2}
    ((_, names),) = mistakes(*solve_with(SMALL, slips))
    assert any("factor 2/n = 2/4 is missing" in name for name in names)
    assert any("divided by 2, the number of tokens" in name for name in names)


@pytest.mark.parametrize(
    ("sheet", "words"),
    [
        ({"queries": [["5/7", "1"], ["1/2", "3/4"]]}, "fractions were added as (a + c)/(b + d)"),
        ({"queries": [["5/12", "1"], ["1/2", "3/4"]]}, "numerators were added over the product of the denominators"),
    ],
)
def test_verify_names_wrong_sums_of_fractions(sheet, words):
    settings = {"x": "2/3 3/4; 1/2 0", "wq": "1 3/2; 1 0", "wk": "1 0; 0 1", "wv": "1 0; 0 1"}
    ((_, names),) = mistakes(make_problem(settings), sheet)
    assert names[0].startswith(words)


@pytest.mark.parametrize("places", [2, 3])
def test_verify_accepts_small_exponentials_that_were_rounded_and_are_not_on_the_sheet(places):
    settings = {"q": [[1, 2], [-2, -1.5]], "k": [[2, 0.2], [1, 1]], "v": [[1, 2], [3, -1]], "scale": "1"}
    scores = np.array(settings["q"]) @ np.array(settings["k"]).T
    rounded = np.round(np.exp(scores), places)
    weights = np.round(rounded / rounded.sum(-1, keepdims=True), places)
    exact = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert np.abs(weights - exact).max() > 0.6 * 10.0**-places  # the last digit shows that they were rounded
    output = weights @ np.array(settings["v"])
    sheet = {
        name: [[f"{v:.{places}f}" for v in row] for row in t] for name, t in (("weights", weights), ("output", output))
    }
    assert verify(make_problem(settings), sheet).ok


def test_verify_does_not_accept_weights_of_0_because_exponentials_may_have_been_rounded_to_0():
    settings = {"q": [[-3, -2]], "k": [[2, 0.2], [1, 2]], "v": [[1], [3]], "scale": "1"}
    assert not verify(make_problem(settings), {"weights": "0.00 0.00"}).ok


def test_verify_says_perhaps_of_a_slip_in_one_number_among_others_without_a_cause():
    """Weights of 1 in a row make the wrong formula look like a lost sign there, but nowhere else."""
    problem, sheet = solve_with(FORWARD, {}, places=3)
    right = np.array([[float(cell) for cell in row] for row in sheet["dZ"]])
    wrong = right + np.array([[0, 0, 0], [0.37, -0.21, 0.45], [-0.18, 0.29, 0.33]])
    wrong[0, 0] = -right[0, 0]
    sheet["dZ"] = [[f"{value:.3f}" for value in row] for row in wrong]
    for step, names in mistakes(problem, {name: sheet[name] for name in sheet if name != "dS"}):
        assert step == "dZ" and (names[0] == "not identified" or names[0].startswith("perhaps"))
