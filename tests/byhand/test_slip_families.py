"""`verify` names the slip: one test for each family, on sheets computed here with numpy and the slip on purpose.

Each slip replaces the computation of one or more steps; everything after it is computed from the wrong numbers, as a
person would. Every sheet is tried with numbers that are carried on rounded and unrounded.
"""

import numpy as np
import pytest

from qkv.byhand import make_problem, verify

PLAIN = {"x": [[1, 2, 0], [-1, 1, 1], [2, 0, -1]], "wq": [[1, 0], [0.5, -1], [0, 2]], "wk": [[0, 1], [1, -0.5], [1, 1]]}
PLAIN |= {"wv": [[2, -1], [0, 3], [-1, 0.5]]}
SQUARE = {"x": [[1, 2], [-1, 1], [2, 0]], "wq": [[1, 0.5], [-1, 1]], "wk": [[0, 1], [1, -0.5]], "wv": [[2, -1], [0, 3]]}
CAUSAL = PLAIN | {"causal": True}
HEADS = {"x": [[1, 0, -1, 1], [0, 1, 1, -1], [1, 1, 0, 1]], "heads": 2}
HEADS |= {"wq": [[1, 0, 0.5, 1], [0, 1, -1, 0], [1, -1, 1, 0], [0, 0, 1, 1]]}
HEADS |= {"wk": [[0, 1, 1, 0], [1, 0, 0.5, -1], [1, 1, 0, 1], [0, -1, 1, 1]]}
HEADS |= {"wv": [[1, 2, 0, -1], [0, 1, 1, 3], [2, 0, -1, 1], [1, -1, 2, 0]]}
LOSS = SQUARE | {"loss": "squared-error", "target": [[1, 0], [0, 2], [-1, 1]]}
MASKED_LOSS = LOSS | {"causal": True}
MEAN_LOSS = LOSS | {"loss": "mean-squared-error"}
MEAN = SQUARE | {"loss": "mean"}
CLASSES = SQUARE | {"loss": "cross-entropy", "target": "2 - 1"}
HEADS_LOSS = HEADS | {"loss": "upstream", "upstream": [[1, 0, 2, -1], [0, 1, 1, 0], [-1, 2, 0, 1]]}


def split(matrix, heads):
    return np.stack(np.split(matrix, heads, 1))


def join(heads):
    return np.concatenate(list(heads), 1)


def flip(heads):
    return np.swapaxes(heads, -1, -2)


def normalize(powers):
    return powers / powers.sum(-1, keepdims=True)


def powers_of(t):
    return np.exp(t["scaled"]) * t["mask"]


def gradient_of_loss(t):
    settings, output = t["settings"], t["output"]
    target = settings.get("target")
    match settings["loss"]:
        case "upstream":
            return np.array(settings["upstream"], float)
        case "cross-entropy":
            classes = target.split()
            one_hot = np.array([[float(c == str(k + 1)) for k in range(output.shape[1])] for c in classes])
            counts = np.array([[float(c != "-")] for c in classes])
            return (t["probabilities"] - one_hot) * counts / counts.sum()
        case "mean":
            return np.full_like(output, 1 / output.size)
        case "squared-error":
            return 2 * (output - np.array(target))
    return 2 * (output - np.array(target)) / output.size


STEPS = {
    "queries": lambda t: t["x"] @ t["wq"],
    "keys": lambda t: t["x"] @ t["wk"],
    "values": lambda t: t["x"] @ t["wv"],
    "scores": lambda t: split(t["queries"], t["heads"]) @ flip(split(t["keys"], t["heads"])),
    "scaled": lambda t: t["scores"] * t["beta"],
    "weights": lambda t: normalize(powers_of(t)),
    "output": lambda t: join(t["weights"] @ split(t["values"], t["heads"])),
    "probabilities": lambda t: normalize(np.exp(t["output"])),
    "dO": gradient_of_loss,
    "dV": lambda t: join(flip(t["weights"]) @ split(t["dO"], t["heads"])),
    "dA": lambda t: split(t["dO"], t["heads"]) @ flip(split(t["values"], t["heads"])),
    "r": lambda t: (t["weights"] * t["dA"]).sum(-1, keepdims=True),
    "dZ": lambda t: t["weights"] * (t["dA"] - t["r"]),
    "dS": lambda t: t["dZ"] * t["beta"],
    "dQ": lambda t: join(t["dS"] @ split(t["keys"], t["heads"])),
    "dK": lambda t: join(flip(t["dS"]) @ split(t["queries"], t["heads"])),
    "dW_Q": lambda t: t["x"].T @ t["dQ"],
    "dW_K": lambda t: t["x"].T @ t["dK"],
    "dW_V": lambda t: t["x"].T @ t["dV"],
    "dX": lambda t: t["dQ"] @ t["wq"].T + t["dK"] @ t["wk"].T + t["dV"] @ t["wv"].T,
}
EXACT = ("queries", "keys", "values", "scores")
HIDDEN = ("probabilities", "r")


def calculate(settings, slips, places, carry):
    """The sheet of a person who makes these slips, as rows of text by step."""
    t = {name: np.array(settings[name], float) for name in ("x", "wq", "wk", "wv")}
    t |= {"settings": settings, "heads": settings.get("heads", 1)}
    t["beta"] = (t["wq"].shape[1] / t["heads"]) ** -0.5
    tokens = len(t["x"])
    t["mask"] = np.tril(np.ones((tokens, tokens))) if settings.get("causal") else np.ones((tokens, tokens))
    sheet = {}
    for name, compute in STEPS.items():
        if "loss" not in settings and name == "probabilities":
            break
        table = slips.get(name, compute)(t)
        texts = [[f"{value:.{places}f}" for value in row] for row in table.reshape(-1, table.shape[-1])]
        if carry and name not in (*EXACT, *HIDDEN):
            table = np.array([[float(cell) for cell in row] for row in texts]).reshape(table.shape)
        t[name] = table
        if name not in HIDDEN:
            sheet[name] = texts
    return sheet


def wrong_row(t, row, change):
    table = STEPS["weights"](t)
    table[:, row] = change(powers_of(t)[:, row])
    return table


def deal(matrix):
    return np.stack([matrix[:, 0::2], matrix[:, 1::2]])


def misread_x(name, row, column, value):
    def compute(t):
        x = t["x"].copy()
        x[row, column] = value
        return x @ t[name]

    return compute


FORWARD = {  # the slip by name, the problem, the steps that it changes
    "x[2,2] was read as 2 instead of 1 when computing K": (PLAIN, {"keys": misread_x("wk", 1, 1, 2)}),
    "row 3 was divided by the sum of row 2": (
        PLAIN,
        {"weights": lambda t: wrong_row(t, 2, lambda p: p / powers_of(t)[:, 1].sum())},
    ),
    "every row was divided by the sum of row 2": (
        PLAIN,
        {"weights": lambda t: powers_of(t) / powers_of(t)[:, 1:2].sum(-1, keepdims=True)},
    ),
    "the sum of the exponentials of row 2 was taken as": (
        PLAIN,
        {"weights": lambda t: wrong_row(t, 1, lambda p: p / (p.sum() + 1))},
    ),
    "the exponential of key 3 in row 2 was taken as": (
        PLAIN,
        {"weights": lambda t: wrong_row(t, 1, lambda p: normalize(p * [1, 1, 1.7]))},
    ),
    "the exponential of key 2 in row 1 was left out": (
        PLAIN,
        {"weights": lambda t: wrong_row(t, 0, lambda p: normalize(p * [1, 0, 1]))},
    ),
    "divided by the root of the sum of squares": (
        PLAIN,
        {"weights": lambda t: powers_of(t) / np.sqrt((powers_of(t) ** 2).sum(-1, keepdims=True))},
    ),
    "a causal mask was applied although there is none": (
        PLAIN,
        {"weights": lambda t: normalize(powers_of(t) * np.tril(np.ones((3, 3))))},
    ),
    "masked with -1 instead of −∞": (
        CAUSAL,
        {"weights": lambda t: normalize(np.exp(np.where(t["mask"] > 0, t["scaled"], -1)))},
    ),
    "the number in row 2, column 3 was not masked": (
        CAUSAL,
        {"weights": lambda t: normalize(np.exp(t["scaled"]) * [[1, 0, 0], [1, 1, 1], [1, 1, 1]])},
    ),
    "e^x of a negative x was taken as 0": (
        PLAIN,
        {"weights": lambda t: normalize(np.where(t["scaled"] < 0, 0, np.exp(t["scaled"])))},
    ),
    "softmax over the wrong axis: row 1 was divided by the sum of column 1": (
        PLAIN,
        {"weights": lambda t: powers_of(t) / flip(powers_of(t).sum(-2, keepdims=True))},
    ),
    "the weights in percent were used as numbers": (PLAIN, {"output": lambda t: 100 * t["weights"][0] @ t["values"]}),
    "not added up: only the product number 2 of each dot product was used": (
        PLAIN,
        {"output": lambda t: t["weights"][0][:, 1:2] @ t["values"][1:2]},
    ),
    "2 was read as 3 in the product 2·0.5": (
        PLAIN,
        {"queries": lambda t: STEPS["queries"](t) + np.array([[0.5, 0], [0, 0], [0, 0]])},
    ),
    "the product 0·(-1) was taken as -1 instead of 0": (
        PLAIN,
        {"queries": lambda t: STEPS["queries"](t) - np.array([[0, 0], [0, 0], [0, 1]])},
    ),
    "the plain average of V": (PLAIN, {"output": lambda t: np.repeat(t["values"].mean(0, keepdims=True), 3, 0)}),
    "the sum of V without weights": (PLAIN, {"output": lambda t: np.repeat(t["values"].sum(0, keepdims=True), 3, 0)}),
    "the row of V with the largest weight": (PLAIN, {"output": lambda t: t["values"][t["weights"][0].argmax(-1)]}),
    "the columns were dealt to the heads in turn (1, 3 | 2, 4)": (
        HEADS,
        {
            "scores": lambda t: deal(t["queries"]) @ flip(deal(t["keys"])),
            "output": lambda t: join(t["weights"] @ deal(t["values"])),
        },
    ),
    "the weights of head 1 used for head 2": (
        HEADS,
        {"output": lambda t: join(t["weights"][[0, 0]] @ split(t["values"], 2))},
    ),
    "softmax over the heads": (
        HEADS,
        {"weights": lambda t: np.exp(t["scaled"]) / np.exp(t["scaled"]).sum(0, keepdims=True)},
    ),
}


def ignored_mask(t):
    weights = normalize(np.exp(t["scaled"]))
    return weights * (t["dA"] - (weights * t["dA"]).sum(-1, keepdims=True))


BACKWARD = {
    "the factor 2 of the squared error is missing": (LOSS, {"dO": lambda t: gradient_of_loss(t) / 2}),
    "the squared error itself instead of its gradient": (LOSS, {"dO": lambda t: (gradient_of_loss(t) / 2) ** 2}),
    "the mean was forgotten: not divided by n = 6": (MEAN_LOSS, {"dO": lambda t: gradient_of_loss(t) * 6}),
    "the mean was forgotten: not divided by n = 6, the number of outputs": (
        MEAN,
        {"dO": lambda t: gradient_of_loss(t) * 6},
    ),
    "masked numbers are −r instead of 0": (
        MASKED_LOSS,
        {"dZ": lambda t: np.where(t["mask"] > 0, STEPS["dZ"](t), -t["r"])},
    ),
    "summed over the wrong axis: row 1 uses the sum of column 1": (
        LOSS,
        {"r": lambda t: flip((t["weights"] * t["dA"]).sum(-2, keepdims=True))},
    ),
    "the mean was forgotten: not divided by m = 2": (CLASSES, {"dO": lambda t: gradient_of_loss(t) * 2}),
    "forgotten the target": (CLASSES, {"dO": lambda t: t["probabilities"] * [[0.5], [0], [0.5]]}),
    "tokens without a class were not left out": (
        CLASSES,
        {"dO": lambda t: gradient_of_loss(t) + t["probabilities"] * [[0], [0.5], [0]]},
    ),
    "the mask was ignored in the gradient of the softmax": (MASKED_LOSS, {"dZ": ignored_mask}),
    "the mean of dA was subtracted": (
        LOSS,
        {"dZ": lambda t: t["weights"] * (t["dA"] - t["dA"].mean(-1, keepdims=True))},
    ),
    "dQ and dK are in each other's place": (LOSS, {"dQ": STEPS["dK"], "dK": STEPS["dQ"]}),
    "Q and K exchanged in the backward pass": (
        LOSS,
        {"dQ": lambda t: t["dS"][0] @ t["queries"], "dK": lambda t: t["dS"][0].T @ t["keys"]},
    ),
    "W_Q, W_K and W_V were not transposed": (
        LOSS,
        {"dX": lambda t: t["dQ"] @ t["wq"] + t["dK"] @ t["wk"] + t["dV"] @ t["wv"]},
    ),
    "dK W_Kᵀ was added twice": (LOSS, {"dX": lambda t: STEPS["dX"](t) + t["dK"] @ t["wk"].T}),
    "dV W_Vᵀ was subtracted": (LOSS, {"dX": lambda t: STEPS["dX"](t) - 2 * t["dV"] @ t["wv"].T}),
    "forgotten the weight matrices": (LOSS, {"dX": lambda t: t["dQ"] + t["dK"] + t["dV"]}),
    "forgotten 1/√d: the scores were not scaled, nor were their gradients": (
        LOSS,
        {"scaled": lambda t: t["scores"], "dS": lambda t: t["dZ"]},
    ),
    "the heads of dO are in the wrong order": (
        HEADS_LOSS,
        {"dA": lambda t: split(t["dO"], 2)[::-1] @ flip(split(t["values"], 2))},
    ),
}
CASES = [(name, *case) for name, case in (FORWARD | BACKWARD).items()]


def remarks_of(result):
    return [remark for check in result.steps for remark in check.remarks if not remark.accepted]


@pytest.mark.parametrize("carry", [False, True], ids=["unrounded", "rounded"])
@pytest.mark.parametrize(("mistake", "settings", "slips"), CASES, ids=[name for name, *_ in CASES])
def test_verify_names_the_slip_once(mistake, settings, slips, carry):
    problem = make_problem(settings)
    assert verify(problem, calculate(settings, {}, 4, carry)).ok
    sheet = calculate(settings, slips, 4, carry)
    found = remarks_of(verify(problem, sheet))
    shown = {"r": "dZ"}.get(next(iter(slips)), next(iter(slips)))  # r is not written down
    assert [remark.step for remark in found] == [shown]
    names = (found[0].mistake, *found[0].alternatives)
    assert any(name.startswith(mistake) for name in names), names


@pytest.mark.parametrize("hidden", [("scaled",), ("scaled", "weights"), ("scores", "scaled", "weights")])
@pytest.mark.parametrize("places", [2, 3])
def test_verify_names_a_slip_before_hidden_steps_that_were_rounded(hidden, places):
    sheet = calculate(PLAIN, {"scaled": lambda t: t["scores"]}, places, carry=True)
    result = verify(make_problem(PLAIN), {step: rows for step, rows in sheet.items() if step not in hidden})
    (remark,) = remarks_of(result)
    assert remark.mistake == "forgotten 1/√d: the scores were not scaled"


def test_verify_says_that_only_the_written_number_is_wrong():
    sheet = calculate(PLAIN, {}, 4, carry=False)
    sheet["scores"][1][2] = "-" + sheet["scores"][1][2]
    (remark,) = remarks_of(verify(make_problem(PLAIN), sheet))
    assert (remark.step, remark.row, remark.column) == ("scores", 2, 3)
    assert remark.note == "the numbers after it were computed with the right one"


def test_verify_names_the_first_number_that_is_rounded_too_far():
    sheet = calculate(PLAIN, {"output": lambda t: np.round(t["weights"][0], 1) @ t["values"]}, 3, carry=False)
    result = verify(
        make_problem(PLAIN), sheet | {"weights": [[f"{float(v):.1f}" for v in r] for r in sheet["weights"]]}
    )
    (remark,) = remarks_of(result)
    exact = calculate(PLAIN, {}, 3, carry=False)["output"]
    far = [(i, j) for i in range(3) for j in range(2) if abs(float(exact[i][j]) - float(sheet["output"][i][j])) > 0.021]
    assert (remark.row - 1, remark.column - 1) == far[0]
    assert "rounded to one digit" in remark.mistake


PAIRS = [
    ("x[2,2] was read as 2 instead of 1 when computing K", "the plain average of V"),
    ("row 3 was divided by the sum of row 2", "x[2,2] was read as 2 instead of 1 when computing K"),
    ("the factor 2 of the squared error is missing", "W_Q, W_K and W_V were not transposed"),
    ("dQ and dK are in each other's place", "the mean of dA was subtracted"),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_verify_names_two_slips_of_different_steps(pair):
    every = FORWARD | BACKWARD
    (settings, slips), (_, more) = (every[name] for name in pair)
    sheet = calculate(settings, slips | more, 4, carry=False)
    found = remarks_of(verify(make_problem(settings), sheet))
    assert len(found) == 2
    for name in pair:
        assert any(name in remark.sentence for remark in found), name
