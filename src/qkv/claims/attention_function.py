"""Claims about attention as a function: shapes, weights as a distribution, β and entropy, the scale 1/√d.

β is the inverse temperature of the softmax: `scale` in the code.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from qkv._figures import Heatmap, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, equal, near, true
from qkv.claims.experiment import Lab, confidence_interval, max_diff, reference_attention

FAMILY = "attention as a function"


def shapes(lab: Lab, n: int, m: int, d: int, t: int, beta: float) -> ExperimentResult:
    queries, keys, values = lab.draw(d, n), lab.draw(d, m), lab.draw(t, m)  # columns, as textbooks write them
    columns = values @ (beta * keys.mT @ queries).softmax(0)
    rows = lab.attention(queries.mT, keys.mT, values.mT, scale=beta)
    beta_inside = lab.attention(beta * queries.mT, keys.mT, values.mT, scale=1.0)
    default = lab.attention(queries.mT, keys.mT, values.mT)
    reference, weights = reference_attention(queries.mT, keys.mT, values.mT, scale=beta)
    reference_default = reference_attention(queries.mT, keys.mT, values.mT)[0]
    inputs, matrix = lab.draw(d, n), lab.draw(d, d)
    try:
        _ = inputs @ matrix  # inputs as columns, the matrix as for rows
        mixed = n == d
    except RuntimeError:
        mixed = True
    square = lab.draw(d, d)
    silent = max_diff(square @ matrix, (matrix.mT @ square))
    return ExperimentResult(
        {
            "rows − columns": max_diff(rows.mT, columns),
            "rows − loops": max_diff(rows, reference),
            "β inside q − β outside": max_diff(rows, beta_inside),
            "default scale − loops": max_diff(default, reference_default),
            "error where mixing shapes goes unnoticed (n = d)": silent,
        },
        (
            true("H is t×n", tuple(rows.mT.shape) == (t, n)),
            at_most("rows and columns agree", max_diff(rows.mT, columns), 1e-13),
            equal("rows equal the triple loop", max_diff(rows, reference)),
            equal("β inside q equals β outside", max_diff(rows, beta_inside)),
            equal("the default equals the loop with d^-½", max_diff(default, reference_default)),
            true("columns times a matrix for rows is a shape error", mixed, "control"),
        ),
        (Heatmap("weights softmax(β KᵀQ), as rows", "key", "query", weights.tolist(), 1.0),),
    )


def distribution(lab: Lab, largest: float, rows: int) -> ExperimentResult:
    lowest, off, sums = math.inf, 0.0, {}
    for m in (1, 2, 10, 100, 1000):
        for scale in (0.0, 1.0, 100.0, largest):
            scores = lab.draw(m, rows) * scale
            scores[0] = scale  # the largest score does occur
            weights = lab.weights(torch.eye(rows, dtype=torch.float64), scores, scale=1.0)
            lowest = min(lowest, float(weights.min()))
            error = float((weights.sum(-1) - 1).abs().nan_to_num(math.inf).max())
            off, sums[m] = max(off, error), max(sums.get(m, 0.0), error)
    masked = lab.weights(lab.draw(8, 4), lab.draw(8, 4), causal=True)
    off = max(off, float((masked.sum(-1) - 1).abs().max()))
    raw = torch.tensor([largest, 0.0], dtype=torch.float64).exp()
    ulp = torch.finfo(torch.float64).eps
    unshifted = raw / raw.sum()
    return ExperimentResult(
        {"lowest weight": lowest, "largest |sum − 1|, in ulp": off / ulp, "exp without the shift": float(unshifted[0])},
        (
            at_least("weights are not negative", lowest, 0.0),
            at_most("weights sum to 1, in ulp", off / ulp, 16),
            true("exp without the shift is not a number", bool(unshifted.isnan().any()), "control"),
        ),
        (
            Lines(
                "how far sums are from 1",
                "keys m",
                "largest |sum − 1|, in ulp",
                list(sums),
                {"measured": [e / ulp for e in sums.values()], "bound": [16.0] * len(sums)},
                logx=True,
                roles={"bound": "formula"},
            ),
        ),
    )


def entropy(weights: Tensor) -> Tensor:
    return -torch.special.xlogy(weights, weights).sum(-1)


def entropy_and_beta(lab: Lab, m: int, d: int, high: float) -> ExperimentResult:
    q, k = lab.draw(1, d), lab.draw(m, d) / d**0.5
    scores = (q @ k.mT)[0]
    betas = torch.linspace(0, high, 41, dtype=torch.float64)
    curve, slopes, closed, outside = [], [], [], 0.0
    for value in betas.tolist():
        beta = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        weights = lab.weights(q, k, scale=beta)[0]
        beta_inside = lab.weights(q * value, k, scale=1.0)[0]
        outside = max(outside, max_diff(weights.detach(), beta_inside))
        h = entropy(weights)
        slope = torch.autograd.grad(h, beta, allow_unused=True)[0] if h.requires_grad else None
        slopes.append(0.0 if slope is None else float(slope))
        exact = (value * scores).softmax(-1)
        closed.append(-value * float((exact * scores**2).sum() - (exact * scores).sum() ** 2))
        curve.append(float(h.detach()))
    slope_error = max(abs(a - b) for a, b in zip(slopes, closed, strict=True))
    rise = max(after - before for before, after in pairwise(curve))
    sharp = lab.weights(q, k, scale=1e6)[0]
    tied = torch.cat((k[scores.argmax()][None].expand(2, -1), k))[:, :]
    shared = lab.weights(q, tied, scale=1e6)[0]
    reference = reference_attention(q, k, torch.eye(m, dtype=torch.float64), scale=high)[1]
    return ExperimentResult(
        {
            "entropy at β = 0": curve[0],
            "log m": math.log(m),
            f"entropy at β = {high:g}": curve[-1],
            "largest |dS/dβ + β Var(score)|": slope_error,
            "largest weight at β = 1e6": float(sharp.max()),
            "weight of each of three tied keys": float(shared[0]),
        },
        (
            at_most("entropy never rises with β", rise, 1e-12),
            at_most("dS/dβ = −β Var(score)", slope_error, 1e-9),
            near("β = 0 gives log m", curve[0], math.log(m), 1e-12),
            near("β → ∞ gives a one-hot row", float(sharp.max()), 1.0, 1e-12),
            near("three ties share equally", float(shared[:2].max()), 1 / 3, 1e-12),
            equal("β inside q equals β outside", outside),
            equal("the weights equal the triple loop", max_diff(lab.weights(q, k, scale=high), reference), "control"),
        ),
        (
            Lines("entropy of the weights", "β", "entropy S", betas.tolist(), {"measured": curve}),
            Lines(
                "its slope",
                "β",
                "dS/dβ",
                betas.tolist(),
                {"measured": slopes, "−β Var(score)": closed},
                roles={"−β Var(score)": "formula"},
            ),
        ),
    )


def scale(lab: Lab, m: int, draws: int, mean: float) -> ExperimentResult:
    dims = (4, 16, 64, 256, 1024, 4096)
    ratios, shifted, deviation, raw, scaled = [], [], [], [], []
    for d in dims:
        plain, higher = score_variances(lab, d, mean)
        ratios.append(plain / d)
        shifted.append(higher / d)
        groups = max(20, 16_000 // d, 640 // m)  # the norms of short vectors vary, and two scores have a noisy variance
        q, k = lab.draw(groups, draws // 20, d), lab.draw(groups, m, d)
        weights = lab.weights(q, k).flatten(0, 1)
        deviation.append(float(weights.log().var(-1).mean() ** 0.5))
        raw.append(saturation(lab.weights(q, k, scale=1.0).flatten(0, 1)))
        scaled.append(saturation(weights))
    worst = max(ratios, key=lambda r: abs(r - 1))
    level = max(s["gradient"] for s in scaled) / max(min(s["gradient"] for s in scaled), 1e-300)
    return ExperimentResult(
        {
            "Var(q·k)/d, farthest from 1": worst,
            "Var(q·k)/d with means 1 higher": shifted[-1],
            "largest weight unscaled, d = 4": raw[0]["largest"],
            "largest weight unscaled, d = 4096": raw[-1]["largest"],
            "median gradient w.r.t. scores unscaled, d = 4": raw[0]["gradient"],
            "median gradient w.r.t. scores unscaled, d = 4096": raw[-1]["gradient"],
            "mean gradient unscaled, d = 4": raw[0]["mean"],
            "mean gradient unscaled, d = 16": raw[1]["mean"],
            "largest weight scaled, d = 4096": scaled[-1]["largest"],
            "s.d. of the library's scores, lowest": min(deviation),
            "s.d. of the library's scores, highest": max(deviation),
        },
        (
            near("Var(q·k) = d", worst, 1.0, 0.02),
            near("Var(q·k) = d when the means are 1 higher", shifted[-1], 1.0, 0.02, "beyond"),
            near("scores by default have s.d. 1: lowest", min(deviation), 1.0, 0.05),
            near("scores by default have s.d. 1: highest", max(deviation), 1.0, 0.05),
            at_least("unscaled, the largest weight nears 1", raw[-1]["largest"], 0.9),
            at_most(
                "unscaled, the median gradient vanishes", raw[-1]["gradient"] / max(raw[0]["gradient"], 1e-300), 0.05
            ),
            at_most("scaled, the gradient stays level", level, 1.4),
        ),
        (
            Lines(
                "largest weight",
                "dimension d",
                "mean over draws",
                dims,
                {"unscaled": [r["largest"] for r in raw], "scaled by 1/√d": [s["largest"] for s in scaled]},
                logx=True,
                roles={"unscaled": "wrong"},
            ),
            Lines(
                "gradient through the softmax",
                "dimension d",
                "median ‖∂w/∂scores‖",
                dims,
                {"unscaled": [r["gradient"] for r in raw], "scaled by 1/√d": [s["gradient"] for s in scaled]},
                logx=True,
                roles={"unscaled": "wrong"},
            ),
        ),
        f"the entries of q and k are independent with variance 1 and mean 0: with a mean of {mean:g} the variance is "
        f"{worst:.3g} d, with {mean + 1:g} it is {shifted[-1]:.3g} d",
    )


def score_variances(lab: Lab, d: int, mean: float) -> tuple[float, float]:
    """The variance of q·k over pairs, and the same with means 1 higher.

    All pairs within a group count: where d is large, few vectors give many nearly independent pairs.
    """
    size = min(max(8, d // 8), 128)
    groups = min(max(12, 1_000_000 // d // size), 10_000)
    q, k = lab.draw(groups, size, d) + mean, lab.draw(groups, size, d) + mean
    return float((q @ k.mT).var()), float(((q + 1) @ (k + 1).mT).var())


def saturation(weights: Tensor) -> dict[str, float]:
    """The largest weight, and the size of the softmax's Jacobian ‖diag(w) − w wᵀ‖."""
    squares = weights**2
    size = (squares.sum(-1) - 2 * (weights**3).sum(-1) + squares.sum(-1) ** 2).clamp(min=0).sqrt()
    return {
        "largest": confidence_interval(weights.max(-1).values)["value"],
        "gradient": float(size.median()),
        "mean": float(size.mean()),
    }


CLAIMS = (
    Claim(
        "shapes",
        FAMILY,
        "H = V softmax(β KᵀQ) is t×n; it is the same written with rows or with columns, and equals three plain loops.",
        "holds",
        "",
        shapes,
        (
            Knob("n", 4, "queries", (1, 64)),
            Knob("m", 6, "keys", (1, 64)),
            Knob("d", 5, "dimension of queries and keys", (1, 64)),
            Knob("t", 3, "dimension of values", (1, 64)),
            Knob("beta", 0.7, "inverse temperature", (-100, 1000)),
        ),
        ("wrong-axis", "no-scale", "scale-1/d", "beta-ignored", "beta-squared", "uniform", "argmax", "v-for-k"),
        "The weights: each row is one query's distribution over the keys.",
    ),
    Claim(
        "distribution",
        FAMILY,
        "The weights of a query are not negative and sum to 1, whatever the scores.",
        "holds",
        "",
        distribution,
        (Knob("largest", 1e4, "largest score", (0, 1e15)), Knob("rows", 4, "queries in each case", (1, 64))),
        ("not-normalized", "no-shift", "wrong-axis", "mask-after-softmax", "signed"),
        "The largest distance of a row's sum from 1, in units of the last place.",
    ),
    Claim(
        "beta",
        FAMILY,
        "Raising β never raises the entropy of the weights: from log m at 0 down to a one-hot row; ties share.",
        "holds",
        "",
        entropy_and_beta,
        (
            Knob("m", 12, "keys", (1, 256)),
            Knob("d", 8, "dimension", (1, 256)),
            Knob("high", 12.0, "highest β of the curve", (0, 1000)),
        ),
        ("beta-ignored", "beta-squared", "uniform", "argmax", "wrong-axis"),
        "Entropy falls with β; its slope is −β times the variance of the scores under the weights.",
    ),
    Claim(
        "scale",
        FAMILY,
        "Var(q·k) = d, so without 1/√d the softmax saturates as d grows and its gradient vanishes.",
        "holds-if",
        "the entries of q and k are independent with mean 0 and variance 1",
        scale,
        (
            Knob("m", 64, "keys", (2, 256)),
            Knob("draws", 200, "draws for each dimension", (20, 1000)),
            Knob("mean", 0.0, "mean of the entries", (-100, 100)),
        ),
        ("no-scale", "scale-1/d", "uniform"),
        "Unscaled, one key takes all the weight and the gradient vanishes; scaled, both stay constant.",
    ),
)
