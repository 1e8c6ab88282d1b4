"""`verify` names the slip: one test for each family, on sheets computed here with numpy and the slip on purpose.

Each slip replaces the computation of one or more steps; everything after it is computed from the wrong numbers, as a
person would. Every sheet is tried with numbers that are carried on rounded and unrounded.
"""

import numpy as np
import pytest

from qkv.byhand import make_problem, solve_problem, verify

PLAIN = {"x": [[1, 2, 0], [-1, 1, 1], [2, 0, -1]], "wq": [[1, 0], [0.5, -1], [0, 2]], "wk": [[0, 1], [1, -0.5], [1, 1]]}
PLAIN |= {"wv": [[2, -1], [0, 3], [-1, 0.5]]}
SQUARE = {"x": [[1, 2], [-1, 1], [2, 0]], "wq": [[1, 0.5], [-1, 1]], "wk": [[0, 1], [1, -0.5]], "wv": [[2, -1], [0, 3]]}
CAUSAL = PLAIN | {"causal": True}
HEADS = {"x": [[1, 0, -1, 1], [0, 1, 1, -1], [1, 1, 0, 1]], "heads": 2}
HEADS |= {"wq": [[1, 0, 0.5, 1], [0, 1, -1, 0], [1, -1, 1, 0], [0, 0, 1, 1]]}
HEADS |= {"wk": [[0, 1, 1, 0], [1, 0, 0.5, -1], [1, 1, 0, 1], [0, -1, 1, 1]]}
HEADS |= {"wv": [[1, 2, 0, -1], [0, 1, 1, 3], [2, 0, -1, 1], [1, -1, 2, 0]]}
POSITIONS = {name: HEADS[name] for name in ("x", "wq", "wk", "wv")} | {"positions": "sinusoidal"}
LOSS = SQUARE | {"loss": "squared-error", "target": [[1, 0], [0, 2], [-1, 1]]}
MASKED_LOSS = LOSS | {"causal": True}
MEAN_LOSS = LOSS | {"loss": "mean-squared-error"}
MEAN = SQUARE | {"loss": "mean"}
CLASSES = SQUARE | {"loss": "cross-entropy", "target": "2 - 1"}
HEADS_WO = HEADS | {"wo": [[1, 0, 2], [0.5, 1, -1], [-1, 2, 0], [0, 1, 1.5]]}
HEADS_WO_LOSS = HEADS_WO | {"loss": "half-squared-error", "target": [[1, 0, 2], [0, 1, 1], [-1, 2, 0]]}
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
        case "half-squared-error":
            return output - np.array(target)
    return 2 * (output - np.array(target)) / output.size


STEPS = {
    "queries": lambda t: t["inputs"] @ t["wq"],
    "keys": lambda t: t["inputs"] @ t["wk"],
    "values": lambda t: t["inputs"] @ t["wv"],
    "scores": lambda t: split(t["queries"], t["heads"]) @ flip(split(t["keys"], t["heads"])),
    "scaled": lambda t: t["scores"] * t["beta"],
    "weights": lambda t: normalize(powers_of(t)),
    "concatenated": lambda t: join(t["weights"] @ split(t["values"], t["heads"])),
    "output": lambda t: t["concatenated"] @ t["wo"] if "wo" in t else t["concatenated"],
    "probabilities": lambda t: normalize(np.exp(t["output"])),
    "dO": gradient_of_loss,
    "dW_O": lambda t: t["concatenated"].T @ t["dO"],
    "dH": lambda t: t["dO"] @ t["wo"].T if "wo" in t else t["dO"],
    "dV": lambda t: join(flip(t["weights"]) @ split(t["dH"], t["heads"])),
    "dA": lambda t: split(t["dH"], t["heads"]) @ flip(split(t["values"], t["heads"])),
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
ONLY_WITH_WO = ("concatenated", "dW_O", "dH")


def calculate(settings, slips, places, carry):
    """The sheet of a person who makes these slips, as rows of text by step."""
    t = {name: np.array(settings[name], float) for name in ("x", "wq", "wk", "wv", "wo") if name in settings}
    t |= {"settings": settings, "heads": settings.get("heads", 1)}
    t["beta"] = (t["wq"].shape[1] / t["heads"]) ** -0.5
    t["inputs"] = t["x"] + sinusoids() if "positions" in settings else t["x"]
    tokens = len(t["x"])
    t["mask"] = np.tril(np.ones((tokens, tokens))) if settings.get("causal") else np.ones((tokens, tokens))
    sheet = {}
    for name, compute in STEPS.items():
        if "loss" not in settings and name == "probabilities":
            break
        if name == "dW_O" and "wo" not in settings:
            continue
        table = slips.get(name, compute)(t)
        texts = [[f"{value:.{places}f}" for value in row] for row in table.reshape(-1, table.shape[-1])]
        if carry and name not in (*EXACT, *HIDDEN) and ("wo" in settings or name not in ONLY_WITH_WO):
            table = np.array([[float(cell) for cell in row] for row in texts]).reshape(table.shape)
        t[name] = table
        if name not in HIDDEN and ("wo" in settings or name not in ONLY_WITH_WO):
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


def blocks(matrix, *factors):
    """The columns of each head times a number."""
    return join(split(matrix, 2) * np.array(factors, float)[:, None, None])


def sinusoids(first=0, exchanged=False):
    angles = (np.arange(3)[:, None] + first) * 10000.0 ** (-2 * (np.arange(4) // 2) / 4)
    return np.where(np.arange(4) % 2 != exchanged, np.cos(angles), np.sin(angles))


def projections(inputs, *names):
    """The projections of other inputs than x plus positions."""
    weights = {"queries": "wq", "keys": "wk", "values": "wv"}
    return {name: (lambda t, w=weights[name]: inputs(t) @ t[w]) for name in names}


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
        {"weights": lambda t: wrong_row(t, 1, lambda p: p / (p.sum() + 1.3))},
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
    "1/√d was applied again, to the scaled scores": (
        PLAIN,
        {"weights": lambda t: normalize(np.exp(t["scaled"] * t["beta"]))},
    ),
    "the maximum was subtracted only in the numerators": (
        PLAIN,
        {"weights": lambda t: STEPS["weights"](t) / np.exp(t["scaled"].max(-1, keepdims=True))},
    ),
    "forgotten 1/√d only in the sums": (
        PLAIN,
        {"weights": lambda t: powers_of(t) / np.exp(t["scores"]).sum(-1, keepdims=True)},
    ),
    "forgotten 1/√d only in the numerators": (
        CAUSAL,
        {"weights": lambda t: np.exp(t["scores"]) * t["mask"] / powers_of(t).sum(-1, keepdims=True)},
    ),
    "a sigmoid of each score": (PLAIN, {"weights": lambda t: 1 / (1 + np.exp(-t["scaled"]))}),
    "masked with +∞ instead of −∞": (
        CAUSAL,
        {"weights": lambda t: normalize(np.exp(np.where(t["mask"] > 0, t["scaled"], 50)))},
    ),
    "the mask was added to the scores as 1 and 0": (
        CAUSAL,
        {"weights": lambda t: normalize(np.exp(t["scaled"] + t["mask"]))},
    ),
    "key 1 masked for every query": (CAUSAL, {"weights": lambda t: normalize(np.exp(t["scaled"]) * [0, 1, 1])}),
    "X Xᵀ: W_Q and W_K were not used": (PLAIN, {"scores": lambda t: (t["x"] @ t["x"].T)[None]}),
    "not divided by the sums: the exponentials were used as weights": (
        PLAIN,
        {"output": lambda t: powers_of(t)[0] @ t["values"]},
    ),
    "the positions were counted from 1 instead of 0": (
        POSITIONS,
        projections(lambda t: t["x"] + sinusoids(1), "queries", "keys", "values"),
    ),
    "sine and cosine are exchanged": (
        POSITIONS,
        projections(lambda t: t["x"] + sinusoids(0, True), "queries", "keys", "values"),
    ),
    "the positions were not added for Q and K": (POSITIONS, projections(lambda t: t["x"], "queries", "keys")),
    "softmax over the keys of all heads together": (
        HEADS,
        {"weights": lambda t: np.exp(t["scaled"]) / np.exp(t["scaled"]).sum((0, 2), keepdims=True)},
    ),
    "softmax over the heads": (
        HEADS,
        {"weights": lambda t: np.exp(t["scaled"]) / np.exp(t["scaled"]).sum(0, keepdims=True)},
    ),
}

FORWARD |= {  # heads
    "head 2 is missing: its part of the heads' outputs was not used": (
        HEADS_WO,
        {"output": lambda t: blocks(t["concatenated"], 1, 0) @ t["wo"]},
    ),
    "head 1 is missing: its output was taken as 0": (
        HEADS_WO,
        {"concatenated": lambda t: blocks(STEPS["concatenated"](t), 0, 1)},
    ),
    "the heads of the heads' outputs are in the wrong order: 2, 1": (
        HEADS_WO,
        {"output": lambda t: join(split(t["concatenated"], 2)[::-1]) @ t["wo"]},
    ),
    "the heads' outputs of head 1 used for head 2": (
        HEADS_WO,
        {"output": lambda t: join(split(t["concatenated"], 2)[[0, 0]]) @ t["wo"]},
    ),
    "the heads were added up instead of put side by side": (
        HEADS_WO,
        {"output": lambda t: np.tile(split(t["concatenated"], 2).sum(0), 2) @ t["wo"]},
    ),
    "the heads were averaged instead of put side by side in the heads' outputs, and only the rows of head 1": (
        HEADS_WO,
        {"output": lambda t: split(t["concatenated"], 2).mean(0) @ t["wo"][:2]},
    ),
    "the weights were averaged over the heads": (
        HEADS,
        {"output": lambda t: join(t["weights"].mean(0, keepdims=True) @ split(t["values"], 2))},
    ),
    "the heads of Q are in the wrong order": (HEADS, {"queries": lambda t: join(split(STEPS["queries"](t), 2)[::-1])}),
    "V of head 2 used for head 1": (HEADS, {"values": lambda t: join(split(STEPS["values"](t), 2)[[1, 1]])}),
}
FORWARD |= {  # number by number, and with the input
    "negative numbers were set to 0": (PLAIN, {"scores": lambda t: np.maximum(STEPS["scores"](t), 0)}),
    "negative numbers of the scaled scores were set to 0": (
        CAUSAL,
        {"weights": lambda t: normalize(np.exp(np.maximum(t["scaled"], 0)) * t["mask"])},
    ),
    "each number was squared": (PLAIN, {"scaled": lambda t: STEPS["scaled"](t) ** 2}),
    "all minus signs were lost": (PLAIN, {"scores": lambda t: np.abs(STEPS["scores"](t))}),
    "numbers were clipped to −1 … 1": (PLAIN, {"scaled": lambda t: np.clip(STEPS["scaled"](t), -1, 1)}),
    "each number was rounded to a whole number": (
        PLAIN,
        {"scaled": lambda t: np.floor(STEPS["scaled"](t) + 0.5)},
    ),
    "X was subtracted from the output": (SQUARE, {"output": lambda t: t["concatenated"] - t["x"]}),
    "X was added to the output": (SQUARE, {"output": lambda t: t["concatenated"] + t["x"]}),
    "2 times too large": (SQUARE, {"output": lambda t: 2 * t["concatenated"]}),
    "1 was added to every number": (PLAIN, {"queries": lambda t: STEPS["queries"](t) + 1}),
    "0.5 was subtracted from every number": (PLAIN, {"scaled": lambda t: STEPS["scaled"](t) - 0.5}),
    "the same numbers were added to every row, as by a bias: 1, -2": (
        PLAIN,
        {"values": lambda t: np.add(STEPS["values"](t), [1, -2])},
    ),
}
FORWARD |= {
    f"masked with {fill} instead of −∞: e^": (
        CAUSAL,
        {
            "scaled": lambda t, fill=fill: np.where(t["mask"] > 0, STEPS["scaled"](t), fill),
            "weights": lambda t: normalize(np.exp(t["scaled"])),
        },
    )
    for fill in (0, -10)
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
    "r was not multiplied by the weights": (LOSS, {"dZ": lambda t: t["weights"] * t["dA"] - t["r"]}),
    "1/√d was applied again, to dS": (
        LOSS,
        {step: (lambda t, step=step: t["beta"] * STEPS[step](t)) for step in ("dQ", "dK")},
    ),
    "−1/p at the class of the target": (
        CLASSES,
        {"dO": lambda t: np.array([[0, -0.5], [0, 0], [-0.5, 0]]) / t["probabilities"]},
    ),
    "divided by 3, the number of tokens, instead of by 2, the number of tokens with a loss": (
        CLASSES,
        {"dO": lambda t: gradient_of_loss(t) * 2 / 3},
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
BACKWARD |= {
    "only the target was multiplied by 2, not the output": (
        LOSS,
        {"dO": lambda t: t["output"] - 2 * np.array(LOSS["target"])},
    ),
    "only the output was multiplied by 2, not the target": (
        LOSS,
        {"dO": lambda t: 2 * t["output"] - np.array(LOSS["target"])},
    ),
    "target minus output: a wrong sign, and the factor is missing": (
        LOSS,
        {"dO": lambda t: np.array(LOSS["target"]) - t["output"]},
    ),
    "set to 0 where the scaled score is not positive": (
        LOSS,
        {"dZ": lambda t: STEPS["dZ"](t) * (t["scaled"] > 0)},
    ),
    "dA was not multiplied by the weights": (LOSS, {"dZ": lambda t: t["dA"] - t["weights"] * t["r"]}),
    "head 2 is missing in every term": (
        HEADS_LOSS,
        {"dX": lambda t: sum(blocks(t[f"d{n.upper()}"], 1, 0) @ t[f"w{n}"].T for n in "qkv")},
    ),
    "head 2 is missing: its part of dH was taken as 0": (
        HEADS_WO_LOSS,
        {"dH": lambda t: blocks(STEPS["dH"](t), 1, 0)},
    ),
    "divided by 3: the mean of the 3 products instead of their sum": (
        LOSS,
        {"dW_V": lambda t: STEPS["dW_V"](t) / 3},
    ),
    "only the diagonal of the weightsᵀ was used": (
        LOSS,
        {"dV": lambda t: (t["weights"][0] * np.eye(3)).T @ t["dO"]},
    ),
    "the heads of dO are in the wrong order: 2, 1": (
        HEADS_LOSS,
        {
            "dV": lambda t: join(flip(t["weights"]) @ split(t["dO"], 2)[::-1]),
            "dA": lambda t: split(t["dO"], 2)[::-1] @ flip(split(t["values"], 2)),
        },
    ),
    "dO was added to dX": (LOSS, {"dX": lambda t: STEPS["dX"](t) + t["dO"]}),
}
CASES = [(name, *case) for name, case in (FORWARD | BACKWARD).items()]


def remarks_of(result):
    return [remark for check in result.steps for remark in check.remarks if not remark.accepted]


def both_ways(cases):
    """Each case with numbers carried on unrounded or rounded, in turn; the other way in the long tests."""
    for index, case in enumerate(cases):
        for carry in (False, True):
            marks = [] if carry == bool(index % 2) else [pytest.mark.long]
            yield pytest.param(*case, carry, id=f"{case[0]}-{'rounded' if carry else 'unrounded'}", marks=marks)


@pytest.mark.parametrize("carry", [False, True], ids=["unrounded", "rounded"])
@pytest.mark.parametrize(
    "settings", list({id(settings): settings for _, settings, _ in CASES}.values()), ids=lambda s: "-".join(map(str, s))
)
def test_verify_accepts_the_right_sheets_of_all_families(settings, carry):
    assert verify(make_problem(settings), calculate(settings, {}, 4, carry)).ok


@pytest.mark.parametrize(("mistake", "settings", "slips", "carry"), list(both_ways(CASES)))
def test_verify_names_the_slip_once(mistake, settings, slips, carry):
    problem = make_problem(settings)
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


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        ("5/2", "2.5 was read as 1 in the product 2.5·2: 2 1/2 is not 2·1/2"),
        ("101/2", "10 times too large"),
        ("13/10", "upside down"),
        ("1/2", "the product 2.5·2 was left out"),
    ],
)
def test_verify_names_a_misread_factor_of_one_product(wrong, mistake):
    problem = make_problem({"x": "5/2 1; -1 3/2", "wq": "1 0; 0 1", "wk": "1 1; 0 1", "wv": "2 1; 1/2 -2"})
    values = [[wrong, "1/2"], ["-5/4", "-4"]]
    (remark,) = remarks_of(verify(problem, {"values": values}))
    assert any(mistake in name for name in (remark.mistake, *remark.alternatives)), remark.sentence


def test_verify_names_a_decimal_point_at_the_wrong_place_of_the_digits_that_were_written():
    sheet = calculate(PLAIN, {}, 4, carry=False)
    assert sheet["weights"][1][1] == "0.0929"
    sheet["weights"][1][1] = "0.9290"
    (remark,) = remarks_of(verify(make_problem(PLAIN), sheet))
    assert remark.mistake == "the decimal point is at the wrong place"


def test_verify_reads_a_weight_in_percent_as_ten_times_too_large():
    problem = make_problem({"q": "1 0; 1 1/2", "k": "3 1; 0 1; 1 -1", "v": "1 2; -2 1; 3 -3", "scale": "1"})
    weights = np.array([[0.84, 0.04, 0.11], [0.91, 0.05, 0.05]])
    output = weights @ [[1, 2], [-2, 1], [3, -3]]
    output[0, 0] += 9 * 0.04 * -2
    percent = [[f"{100 * value:.0f}%" for value in row] for row in weights]
    written = [[f"{value:.2f}" for value in row] for row in output]
    (remark,) = remarks_of(verify(problem, {"weights": percent, "output": written}))
    assert "0.04 was read as 0.4 in the product 0.04·(-2): 10 times too large" in remark.sentence


WIDE = {"x": [[1, 2, 0], [-1, 1, 1]], "heads": 2, "loss": "half-squared-error"}
WIDE |= {"wq": [[1, 0, 2, 1], [0, 1, -1, 0], [1, 1, 0, 2]], "wk": [[0, 1, 1, 0], [1, 0, 0, -1], [1, 1, 0, 1]]}
WIDE |= {"wv": [[1, 2, 0, -1], [0, 1, 1, 3], [2, 0, -1, 1]], "target": [[1, 0, 2, 0], [0, 1, 0, -1]]}
WIDE |= {"wo": [[1, 0, 2, -1], [0, 1, 1, 0], [2, -1, 0, 1], [1, 1, 0, 0.5]]}


def test_verify_tries_slips_whose_shapes_fit_only_in_some_steps():
    """With W_O not transposed in dH, dX cannot have its weight matrices not transposed: 3 inputs, 4 outputs."""
    solution = solve_problem(make_problem(WIDE))
    sheet = {"dO": [[f"{value:.3f}" for value in row] for row in solution.gradients["dO"].decimal]}
    gradient = np.array(sheet["dO"], float) @ np.array(WIDE["wo"], float)
    sheet["dH"] = [[f"{value:.3f}" for value in row] for row in gradient]
    (remark,) = remarks_of(verify(solution.problem, sheet))
    assert remark.mistake == "W_O was not transposed"
    d_x = solution.gradients["dX"].decimal
    rest = {"dX": [[f"{value:.3f}" for value in row] for row in d_x]}
    assert remarks_of(verify(solution.problem, sheet | rest))[0].mistake == "W_O was not transposed"


@pytest.mark.parametrize("places", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_verify_adds_no_slips_for_hidden_steps_that_were_rounded(seed, places):
    """The heads' outputs are rounded but not written; each head's output in the wrong place is the only slip."""
    random = np.random.default_rng(seed)
    settings = HEADS | {"wo": random.integers(-4, 5, (4, 2)) / 2}
    settings["wo"] = settings["wo"].tolist()
    sheet = calculate(HEADS, {}, places, carry=True)
    weights = np.array(sheet["weights"], float).reshape(2, 3, 3)
    values = split(np.array(sheet["values"], float), 2)
    heads = np.floor((weights @ values)[::-1] * 10**places + 0.5) / 10**places
    sheet["output"] = [[f"{value:.{places}f}" for value in row] for row in join(heads) @ np.array(settings["wo"])]
    (remark,) = remarks_of(verify(make_problem(settings), sheet))
    assert "wrong order" in remark.sentence


def test_verify_says_perhaps_for_slips_that_explain_little_of_a_step():
    sheet = calculate(PLAIN, {}, 3, carry=False)
    weights = [["0.611", "0.207", "0.182"], ["0.155", "0.742", "0.103"], ["0.377", "0.219", "0.404"]]
    found = remarks_of(verify(make_problem(PLAIN), {"scores": sheet["scores"], "weights": weights}))
    assert [remark.mistake for remark in found] == ["not identified"]
    assert "8 more numbers of this step are wrong" in found[0].note


def test_verify_mentions_accepted_rounding_once():
    sheet = calculate(LOSS, {}, 2, carry=True)
    result = verify(make_problem(LOSS), sheet)
    assert result.ok
    assert sum(len(check.remarks) for check in result.steps) == 1
    assert [check.verdict for check in result.steps].count("rounded") > 2


def with_noise(settings, step, places, seed, count=None):
    """A sheet with random numbers added to a step, or to `count` of its numbers."""
    random = np.random.default_rng(seed)

    def compute(t):
        right = STEPS[step](t)
        off = np.round(random.normal(size=right.shape) * right.std(), places)
        off[off == 0] = 1
        if count is not None:
            off *= random.permutation(np.arange(off.size) < count).reshape(off.shape)
        return right + off

    sheet = calculate(settings, {step: compute}, 2, carry=False)
    return {
        name: [[f"{float(cell):g}" for cell in row] for row in rows] if name in EXACT else rows
        for name, rows in sheet.items()
    }


@pytest.mark.parametrize(
    ("settings", "step", "places", "count"),
    [
        (PLAIN, "scores", 0, 3),
        (PLAIN, "queries", 0, None),
        (PLAIN, "output", 2, None),
        (HEADS_WO, "output", 2, 3),
        (LOSS, "dO", 2, None),
    ],
)
def test_verify_does_not_explain_random_numbers_one_by_one(settings, step, places, count):
    for seed in (0, 1):
        found = remarks_of(verify(make_problem(settings), with_noise(settings, step, places, seed, count)))
        assert [(remark.step, remark.mistake) for remark in found] == [(step, "not identified")]


def test_verify_adds_no_slips_after_numbers_that_are_not_identified():
    """The output was computed from unrounded weights that nothing explains: its last digits differ, no more."""
    random = np.random.default_rng(3)
    weights = normalize(random.random((1, 3, 3)))
    sheet = calculate(PLAIN, {"weights": lambda t: weights}, 4, carry=False)
    found = remarks_of(verify(make_problem(PLAIN), sheet))
    assert [(remark.step, remark.mistake) for remark in found] == [("weights", "not identified")]


def test_verify_names_a_copied_row_of_two_short_numbers():
    problem = make_problem({"x": "1 2; -1/2 1; 2 -1", "wq": "1/2 1; 1 -1/2", "wk": "1 0; 0 1", "wv": "1 0; 0 1"})
    assert remarks_of(verify(problem, {"queries": [["5/2", "0"], ["3/4", "-1"], ["0", "5/2"]]})) == []
    (remark,) = remarks_of(verify(problem, {"queries": [["5/2", "0"], ["3/4", "-1"], ["3/4", "-1"]]}))
    assert "row 2 of Q copied in place of row 3" in remark.sentence


def test_verify_names_a_product_of_the_multiplication_table_beside_another_slip():
    problem = make_problem({"q": "6 2; 3 9", "k": "7 1; 5 4", "v": "1 2; 0 3", "scale": "1/50"})
    (remark,) = remarks_of(verify(problem, {"scores": [["46", "38"], ["30", "51"]]}))
    assert remark.sentence == (
        "scores[1,1]: expected 44, got 46: the product 2·1 was counted twice (or: 6·7 was taken as 44 instead of 42)"
    )


def test_verify_names_the_product_with_the_only_minus_sign():
    problem = make_problem({"x": "3 -2 1; 1 1 4", "wq": "0 2; 1 1; 1 3", "wk": "1 0; 0 1; 2 1", "wv": "1; 1; 1"})
    (remark,) = remarks_of(verify(problem, {"queries": [["3", "7"], ["5", "15"]]}))
    assert remark.mistake == "a lost minus sign in the product (-2)·1"


def test_verify_shows_a_number_that_the_slip_changes():
    problem = make_problem(
        {"q": "1 0; 1/2 3/2; 1 -1", "k": "3/4 -1/4; 3/4 -1; 0 5/4", "v": "1 2; 1 1/2; 0 3/4", "scale": "1/2"}
    )
    scores = np.array([[1, 0], [0.5, 1.5], [1, -1]]) @ np.array([[0.75, -0.25], [0.75, -1], [0, 1.25]]).T
    weights = normalize(np.exp(scores))
    output = weights @ [[1, 0.5], [1, 2], [0, 0.75]]
    sheet = {name: [[f"{v:.4f}" for v in row] for row in table] for name, table in (("scores", scores),)}
    sheet |= {name: [[f"{v:.4f}" for v in row] for row in t] for name, t in (("weights", weights), ("output", output))}
    _, remark = remarks_of(verify(problem, sheet))
    assert "rows 1 and 2 of V are exchanged" in remark.sentence
    assert (remark.step, remark.row, remark.column) == ("output", 2, 2)


def test_verify_says_in_which_hidden_step_numbers_were_changed():
    sheet = calculate(HEADS_LOSS, {"r": lambda t: np.maximum(STEPS["r"](t), 0)}, 4, carry=False)
    (remark,) = remarks_of(verify(make_problem(HEADS_LOSS), sheet))
    assert "negative numbers of the row sums r were set to 0" in remark.sentence


FIVE = {"q": [[1, 0.5], [-1, 1], [0.5, 2], [2, -1], [0, 1]], "k": [[1, 0], [0, 1.5], [-1, 1], [1, 1], [0.5, -1]]}
FIVE |= {"v": [[1, 0], [0, 2], [-1, 1], [3, 1], [0.5, -2]]}
DISTANCE = np.arange(5)[:, None] - np.arange(5)[None, :]  # how far back each key is


def five(slips):
    """The scores, scaled scores, weights and output of a person who makes these slips, with four digits."""
    q, k, v = (np.array(FIVE[name]) for name in ("q", "k", "v"))
    t = {"scores": slips.get("scores", lambda t: q @ k.T)({})}
    t["scaled"] = slips.get("scaled", lambda t: t["scores"] / 2**0.5)(t)
    t["weights"] = slips.get("weights", lambda t: normalize(np.exp(t["scaled"])))(t)
    t["output"] = t["weights"] @ v
    return {name: [[f"{value:.4f}" for value in row] for row in table] for name, table in t.items()}


def with_one(change, row, column):
    """The scaled scores with one number changed."""

    def compute(t):
        scaled = t["scores"] / 2**0.5
        scaled[row, column] = change(t["scores"][row, column])
        return scaled

    return compute


def one_at_the_largest(t):
    return (t["scaled"] == t["scaled"].max(-1, keepdims=True)).astype(float)


@pytest.mark.parametrize(
    ("given", "seen", "mistake"),
    [
        ((0, 1), (0, 2), "another mask: each query sees its own key and the 2 keys before it"),
        ((0, 2), (0, 1), "another mask: each query sees its own key and the key before it"),
        ((-1, 1), (-2, 1), "another mask: each query sees its own key and the key before it and the 2 keys after it"),
        ((-1, 1), (-4, 0), "another mask: each query sees its own key and all keys after it"),
        ((0, 2), (0, 4), "a causal mask instead of the given one"),
    ],
)
def test_verify_says_which_keys_a_wrong_mask_lets_each_query_see(given, seen, mistake):
    right, wrong = ((low <= DISTANCE) & (high >= DISTANCE) for low, high in (given, seen))
    settings = FIVE | {"mask": right.astype(int).tolist()}
    sheet = five({"weights": lambda t: normalize(np.exp(t["scaled"]) * wrong)})
    found = remarks_of(verify(make_problem(settings), sheet))
    assert [remark.step for remark in found] == ["weights"]
    assert mistake in (found[0].mistake, *found[0].alternatives)


@pytest.mark.parametrize(
    ("slips", "mistakes"),
    [
        (
            {"weights": lambda t: normalize(np.exp(2 * t["scaled"]))},
            ["e^(2x) instead of e^x", "the scaled scores were"],
        ),
        ({"weights": one_at_the_largest}, ["the largest score got weight 1 instead of a softmax"]),
        ({"scaled": lambda t: 1.1 * t["scores"] / 2**0.5}, ["every number is 1.1 times the right one"]),
        ({"scaled": with_one(lambda score: score, 2, 1)}, ["forgotten 1/√d: the scores were not scaled (only here)"]),
        (
            {"scores": lambda t: np.sum(FIVE["q"], 1)[:, None] + np.sum(FIVE["k"], 1)[None, :]},
            ["Q and Kᵀ: factors were added instead of multiplied"],
        ),
        (
            {"scores": lambda t: np.sum(FIVE["q"], 1)[:, None] * np.sum(FIVE["k"], 1)[None, :]},
            ["Q and Kᵀ: the sums of the factors were multiplied"],
        ),
    ],
)
def test_verify_names_a_slip_and_every_one_that_fits_as_well(slips, mistakes):
    found = remarks_of(verify(make_problem(FIVE), five(slips)))
    assert len(found) == 1
    names = (found[0].mistake, *found[0].alternatives)
    assert len(names) == len(mistakes)
    for mistake in mistakes:
        assert any(name.startswith(mistake) for name in names), names


def test_verify_names_two_slips_in_the_gradient_of_a_cross_entropy():
    counted = calculate(CLASSES, {}, 4, False)

    def not_averaged(t):
        classes = np.array([[0, 1], [0, 0], [1, 0]])
        return t["probabilities"] - classes

    sheet = counted | calculate(CLASSES, {"dO": not_averaged}, 4, False)
    names = [remark.mistake for remark in remarks_of(verify(make_problem(CLASSES), sheet))]
    assert len(names) == 2
    assert any(name.startswith("the mean was forgotten: not divided by m = 2") for name in names)
    assert "tokens without a class were not left out" in names


def test_verify_names_the_forgotten_row_sum_of_a_single_number():
    def one_without(t):
        table = STEPS["dZ"](t)
        table[0, 1, 2] = (t["weights"] * t["dA"])[0, 1, 2]
        return table

    found = remarks_of(verify(make_problem(LOSS), calculate(LOSS, {"dZ": one_without}, 4, False)))
    assert [(remark.step, remark.row, remark.column) for remark in found] == [("dZ", 2, 3)]
    assert found[0].mistake.startswith("the row sums r were not subtracted")
    assert found[0].mistake.endswith("(only here)")


@pytest.mark.parametrize("heads", [HEADS_WO, HEADS_WO_LOSS], ids=["forward", "loss"])
@pytest.mark.parametrize("after", [False, True])
def test_verify_names_sums_taken_from_the_next_row(heads, after):
    def shifted(t):
        return powers_of(t) / np.roll(powers_of(t).sum(-1, keepdims=True), -1 if after else 1, -2)

    (remark,) = remarks_of(verify(make_problem(heads), calculate(heads, {"weights": shifted}, 4, carry=True)))
    assert f"each row was divided by the sum of the row {'after' if after else 'before'} it" in remark.mistake


@pytest.mark.parametrize("head", [0, 1])
def test_verify_restricts_a_slip_to_one_of_the_heads_that_are_side_by_side(head):
    def wrong(t):
        weights = flip(t["weights"]).copy()
        weights[head] = t["weights"][head]
        return join(weights @ split(t["dH"], 2))

    (remark,) = remarks_of(verify(make_problem(HEADS_WO_LOSS), calculate(HEADS_WO_LOSS, {"dV": wrong}, 4, carry=True)))
    assert remark.mistake == f"the weights were not transposed (only in head {head + 1})"


@pytest.mark.parametrize(
    ("mistake", "slips"),
    [
        ("dK used instead of dQ", {"dW_Q": lambda t: t["x"].T @ t["dK"]}),
        ("dV W_Vᵀ was added twice", {"dX": lambda t: STEPS["dX"](t) + t["dV"] @ t["wv"].T}),
    ],
)
def test_verify_names_a_slip_at_the_end_of_a_long_sheet_of_rounded_numbers(mistake, slips):
    """Looking for slips in steps that were only rounded leaves enough of the search for the wrong one."""
    (remark,) = remarks_of(verify(make_problem(HEADS_WO_LOSS), calculate(HEADS_WO_LOSS, slips, 3, carry=True)))
    assert remark.mistake.startswith(mistake)
