"""Claims about a worked example, and about two bugs that run without an error.

β is the inverse temperature of the softmax: `scale` in the code.
"""

import math
from fractions import Fraction
from itertools import product

import torch
from torch import Tensor

from qkv._figures import Bars, Heatmap
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, equal, near, true
from qkv.claims.experiment import Lab, max_diff, reference_attention, reference_softmax

FAMILY = "worked"
Matrix = list[list[Fraction]]

TOKENS = "1 -1 0 2; 0 -1 2 1; -2 2 -1 0"
W_Q = "0 1; 1 0; -1/2 0; 1 1"
W_K = "1 -1/2; 0 1; 1/2 -1/2; 1 1/2"
W_V = "1 1/2; -1/2 0; -1 2; 1/2 -1"
SCORES = "3/2 -5/2 8; -7/2 -7/2 6; 17/2 8 -53/4"
OUTPUT = {
    "without the scale": [[-1.9932, -2.9976], [-1.9996, -2.9994], [1.1786, 0.1989]],
    "with 1/√d": [[-1.9545, -2.9815], [-1.9934, -2.9910], [1.0562, 0.3563]],
}


def matrix(text: str) -> Matrix:
    """
    >>> matrix("1/2 1; 0 2")[0]
    [Fraction(1, 2), Fraction(1, 1)]
    """
    return [[Fraction(cell) for cell in row.split()] for row in text.split(";")]


def multiply(a: Matrix, b: Matrix) -> Matrix:
    return [
        [sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in zip(*b, strict=True)]
        for row in a
    ]


def as_tensor(a: Matrix) -> Tensor:
    return torch.tensor([[float(cell) for cell in row] for row in a], dtype=torch.float64)


def worked_example(lab: Lab, scale: float) -> ExperimentResult:
    x = matrix(TOKENS)
    q, k, v = (multiply(x, matrix(w)) for w in (W_Q, W_K, W_V))
    scores = multiply(q, [list(column) for column in zip(*k, strict=True)])
    tensors = [as_tensor(part) for part in (q, k, v)]
    errors, printed, diagonals = {}, {}, {}
    for name, scale_argument in (("without the scale", scale), ("with 1/√d", None)):
        factor = 2**-0.5 if scale_argument is None else scale_argument
        weights = [reference_softmax([float(s) * factor for s in row]) for row in scores]
        exact = [
            [math.fsum(w * float(value[e]) for w, value in zip(row, v, strict=True)) for e in (0, 1)] for row in weights
        ]
        out, weights_found = lab.attention(*tensors, return_weights=True, scale=scale_argument)
        errors[name] = max(
            max_diff(out, torch.tensor(exact, dtype=torch.float64)),
            max_diff(weights_found, torch.tensor(weights, dtype=torch.float64)),
        )
        printed[name] = max_diff(out, torch.tensor(OUTPUT[name], dtype=torch.float64))
        diagonals[name] = weights_found.diagonal()
    rounded = lab.weights(tensors[0], tensors[1], scale=scale).mul(100).round().div(100) @ tensors[2]
    inside = max_diff(
        lab.attention(1.7 * tensors[0], tensors[1], tensors[2], scale=1.0), lab.attention(*tensors, scale=1.7)
    )
    maps = {"weights, unscaled": scale, "weights, with 1/√d": 2**-0.5}
    diagonal = diagonals["without the scale"]
    return ExperimentResult(
        {
            **{f"weight of token {i + 1} on itself, unscaled": float(diagonal[i]) for i in range(3)},
            "largest weight of a token on itself, scaled": float(diagonals["with 1/√d"].max()),
            "third output if the map is rounded first, 1": float(rounded[2, 0]),
            "third output if the map is rounded first, 2": float(rounded[2, 1]),
            "difference from the exact scores": max(errors.values()),
        },
        (
            true("scores are the textbook's fractions", scores == matrix(SCORES)),
            equal("weights and output follow from them", max(errors.values())),
            at_most("unscaled output as printed", printed["without the scale"], 5.1e-5),
            at_most("scaled output as printed", printed["with 1/√d"], 5.1e-5),
            at_most("no token attends mainly to itself", float(diagonal.max()), 0.01),
            at_least("no weight is 0", float(diagonal.min()), 1e-12),
            near("rounding the map first gives 1.17", float(rounded[2, 0]), 1.17, 0.005),
            near("rounding the map first gives 0.21", float(rounded[2, 1]), 0.21, 0.005),
            equal("β inside q equals β outside", inside),
        ),
        tuple(
            Heatmap(title, "key token", "query token", lab.weights(*tensors[:2], scale=factor).tolist(), 1.0, [*"123"])
            for title, factor in maps.items()
        ),
    )


def batch_transpose(lab: Lab, size: int, d: int) -> ExperimentResult:
    x = lab.draw(size, size, size)  # batch = length = dim: the only case in which x @ x.T has the right shape
    right = lab.attention(x, x, x)
    reference = torch.stack([reference_attention(row, row, row)[0] for row in x])
    reversed_ = x.permute(2, 1, 0)  # what .T does to a tensor of three axes
    scale = size**-0.5
    mixed = (x @ reversed_ * scale).softmax(-1) @ x
    meant = (x @ x.transpose(1, 2) * scale).softmax(-1) @ x
    wrong_axis = (x @ x.transpose(1, 2) * scale).softmax(1)
    y = x.clone().requires_grad_()
    leaks = {}
    for name, axes in (("T", (2, 1, 0)), ("transpose(1, 2)", (0, 2, 1))):
        out = ((y @ y.permute(*axes) * scale).softmax(-1) @ y)[0]
        (found,) = torch.autograd.grad((out * lab.draw(size, size)).sum(), y)
        leaks[name] = [float(part.norm()) for part in found]
    shapes = {(b, t, d): shape_of_reversed_product(b, t, d) for b, t in product((1, 2, 3, d), repeat=2)}
    runs = {sizes for sizes, shape in shapes.items() if shape is not None}
    expected = {(b, t, d) for b, t, _ in shapes if t == d and (b in (1, d) or d == 1)}
    right_shape = {sizes for sizes in runs if shapes[sizes] == (*sizes[:2], sizes[1])}
    return ExperimentResult(
        {
            ".T − transpose(1, 2)": max_diff(mixed, meant),
            "influence of another row of the batch through .T": max(leaks["T"][1:]),
            "influence of another row through transpose(1, 2)": max(leaks["transpose(1, 2)"][1:]),
            "softmax over the wrong axis: farthest row sum from 1": max_diff(
                wrong_axis.sum(-1), torch.ones(size, size).double()
            ),
            "softmax over the wrong axis: farthest column sum from 1": max_diff(
                wrong_axis.sum(1), torch.ones(size, size).double()
            ),
        },
        (
            equal("x @ x.T scores each text with itself", max_diff(mixed, meant)),
            at_most("x @ x.T scores each text with itself alone", max(leaks["T"][1:]), 0.0),
            true("x @ x.T runs only where l = d and b is d or 1, or d is 1", runs == expected, "control"),
            true("x @ x.T has the shape (b, l, l) only where b = l = d", right_shape == {(d, d, d)}, "control"),
            equal("attention is transpose(1, 2)", max_diff(right, meant), "control"),
            equal("x @ x.transpose(1, 2) equals the triple loop, text by text", max_diff(right, reference), "control"),
            at_most("transpose(1, 2) keeps texts apart", max(leaks["transpose(1, 2)"][1:]), 0.0, "control"),
        ),
        (
            Bars(
                "influence on the first text of the batch",
                "text of the batch",
                "gradient",
                [str(i) for i in range(size)],
                leaks,
                roles={"T": "wrong", "transpose(1, 2)": "output"},
            ),
        ),
    )


def shape_of_reversed_product(b: int, t: int, d: int) -> tuple[int, ...] | None:
    """The shape of x @ x.T for x of shape (b, t, d), .T reversing all axes; None if it is a shape error.

    >>> shape_of_reversed_product(1, 4, 4), shape_of_reversed_product(3, 4, 4)
    ((4, 4, 1), None)
    """
    x = torch.zeros(b, t, d)
    try:
        return tuple((x @ x.permute(2, 1, 0)).shape)
    except RuntimeError:
        return None


CLAIMS = (
    Claim(
        "worked-example",
        FAMILY,
        "The textbook's three tokens: exact fractions up to the scores, then the printed output; no token attends "
        "mainly to itself.",
        "holds",
        "",
        worked_example,
        (Knob("scale", 1.0, "factor of q·k in the unscaled case", (-100, 1000)),),
        ("wrong-axis", "no-scale", "scale-1/d", "beta-ignored", "beta-squared", "uniform", "argmax", "v-for-k"),
        "Tokens 1 and 2 attend to token 3, token 3 to the others. Lighter is larger; each row sums to 1.",
    ),
    Claim(
        "batch-transpose",
        FAMILY,
        "For a batch (b, l, d), x @ x.T scores each text with itself, as x @ x.transpose(1, 2) does.",
        "fails",
        ".T reverses all three axes: at b = l = d it mixes the batch in; at other sizes it is a shape error with bmm, "
        "and with @ too unless l = d and b or d is 1, where the result has another shape than (b, l, l)",
        batch_transpose,
        (
            Knob("size", 4, "batch = length = dim, where .T runs", (2, 24)),
            Knob("d", 5, "dim of the batches whose shapes are tried", (1, 64)),
        ),
        ("wrong-axis", "no-scale", "scale-1/d", "uniform", "argmax", "beta-squared"),
        "Through .T other texts of the batch reach the first one.",
    ),
)
