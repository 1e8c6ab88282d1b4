"""Claims about what attention can select: one value, the mean of some, the mean of all; soft or hard attention.

β is the inverse temperature of the softmax: `scale` in the code.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv._figures import Bars, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, equal, near, true
from qkv.claims.experiment import Lab, max_diff, reference_attention

FAMILY = "attention as a function"
ROUNDING = 1e-17  # smaller values are drawn as this


def copy_error(lab: Lab, q: Tensor, k: Tensor, v: Tensor, j: int, beta: float) -> tuple[float, float, float]:
    """‖h − v_j‖ by the attention under test, its bound, and the difference between β inside q and as scale."""
    h = lab.attention(q[None], k, v, scale=beta)[0]
    inside = lab.attention(beta * q[None], k, v, scale=1.0)[0]
    margins = beta * (k[j] - k) @ q
    margin = float(margins[torch.arange(len(k)) != j].min())
    bound = (len(k) - 1) * math.exp(-margin) * float((v - v[j]).norm(dim=-1).max())
    return float((h - v[j]).norm()), bound, max_diff(h, inside)


def copy(lab: Lab, m: int, d: int, beta: float) -> ExperimentResult:
    k, v, j = F.normalize(lab.draw(m, d), dim=-1), lab.draw(m, d), 3
    q = k[j]
    betas = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0]
    errors, bounds, insides = zip(*(copy_error(lab, q, k, v, j, b) for b in betas), strict=True)
    error, bound, _ = copy_error(lab, q, k, v, j, beta)
    excess = max(e - b for e, b in zip(errors, bounds, strict=True))
    # a key inside the convex hull of the others never gets more than half of the weight, for any query
    hull = torch.cat((k[:-1], k[:-1].mean(0, keepdim=True)))
    hull_weights = lab.weights(50 * lab.draw(2000, d), hull, scale=1.0)[:, -1]
    # keys that do not oppose the query, and a large key that does
    aligned = q + 0.3 * F.normalize(lab.draw(m, d), dim=-1)
    aligned[j] = 1.5 * q
    aligned_error = float((lab.attention(q[None], aligned, v, scale=100.0)[0] - v[j]).norm())
    large = k.clone()
    large[0] = 10 * F.normalize(-q + 0.1 * k[0], dim=-1)
    towards, away = (float(lab.weights(sign * q[None], large, scale=beta)[0, 0]) for sign in (-1, 1))
    one_hot = F.one_hot(torch.tensor([j]), m).double() @ v
    pooled = float((v.max(0).values - v).norm(dim=-1).min())
    reference = reference_attention(q[None], k, v, scale=beta)[0]
    return ExperimentResult(
        {
            f"‖h − v_j‖ at β = {beta:g}": error,
            "its bound": bound,
            "‖h − v_j‖ at β = 0.5": errors[0],
            "largest weight of a key inside the hull": float(hull_weights.max()),
            "‖h − v_j‖ when no key opposes the query, β = 100": aligned_error,
            "weight of a large key where q·k > 0": towards,
            "weight of a large key where q·k < 0": away,
            "distance of max pooling from the nearest value": pooled,
        },
        (
            at_most("‖h − v_j‖ stays under its bound", excess, 1e-12),
            at_most("the copy is good", error, 1e-3),
            at_most("the copy is good at β = 0.5", errors[0], 1e-3, "beyond"),
            at_most("a key inside the hull is never copied", float(hull_weights.max()), 0.5 + 1e-12),
            at_most("the copy is good although no key opposes the query", aligned_error, 1e-3),
            at_least("a large key is copied where q·k > 0", towards, 0.99),
            at_most("a large key is not copied where q·k < 0", away, 0.01),
            equal("β inside q equals β outside", max(insides)),
            equal("a linear layer copies with a one-hot row", max_diff(one_hot[0], v[j]), "control"),
            at_least("max pooling returns none of the values", pooled, 0.1, "control"),
            equal(
                "the output equals the triple loop",
                max_diff(lab.attention(q[None], k, v, scale=beta), reference),
                "control",
            ),
        ),
        (
            Lines(
                "how good the copy is",
                "β",
                "‖h − v_j‖",
                betas,
                {
                    "measured": [max(e, ROUNDING) for e in errors],
                    "(m−1) e^(−margin) max‖v_i − v_j‖": [max(b, ROUNDING) for b in bounds],
                },
                logx=True,
                logy=True,
                roles={"(m−1) e^(−margin) max‖v_i − v_j‖": "formula"},
            ),
        ),
        "β(k_j − k_i)·q is large for every other key (k_j is a vertex of the keys' convex hull): the error is "
        f"{error:.2g} at β = {beta:g}, {errors[0]:.2g} at β = 0.5",
    )


def average(lab: Lab, m: int, d: int, beta: float) -> ExperimentResult:
    k, v = lab.orthonormal(m, d), lab.draw(m, d)

    def closed(b: float, s: int) -> float:
        return 1 / (s + (m - s) * math.exp(-b))

    worst = 0.0
    for b in (0.5, 3.0, beta):
        for s in (2, 3):
            q = k[:s].sum(0, keepdim=True)
            for weights in (lab.weights(b * q, k, scale=1.0), lab.weights(q, k, scale=b)):
                worst = max(worst, max_diff(weights[0, :s], torch.full((s,), closed(b, s), dtype=torch.float64)))
    q = k[:2].sum(0, keepdim=True)
    plain, default = float(lab.weights(beta * q, k, scale=1.0)[0, 0]), float(lab.weights(beta * q, k)[0, 0])
    h = lab.attention(beta * q, k, v, scale=1.0)
    betas = [b / 2 for b in range(41)]
    curve = [float(lab.weights(b * q, k, scale=1.0)[0, 0]) for b in betas]
    return ExperimentResult(
        {
            "weight of each of the two, scale 1": plain,
            "weight with 1/√d": default,
            "largest difference from e^β/(m−s+s·e^β)": worst,
            "‖h − ½(v_a + v_b)‖": float((h[0] - v[:2].mean(0)).norm()),
        },
        (
            equal("weights are e^β/(m−s+s·e^β), s = 2 and 3", worst),
            near("the two have half of the weight each", plain, 0.5, 0.01),
            equal("with 1/√d, β acts as β/√d", abs(default - closed(beta / d**0.5, 2))),
            equal(
                "the output equals the triple loop",
                max_diff(h, reference_attention(beta * q, k, v, scale=1.0)[0]),
                "control",
            ),
        ),
        (
            Lines(
                "weight of each of the two selected keys",
                "β",
                "weight",
                betas,
                {"scale 1": curve, "with 1/√d": [closed(b / d**0.5, 2) for b in betas], "½": [0.5] * len(betas)},
                roles={"with 1/√d": "wrong", "½": "formula"},
            ),
        ),
    )


def diffuse(lab: Lab, n: int, m: int, d: int, beta: float) -> ExperimentResult:
    q, k, v = lab.draw(n, d), lab.draw(m, d), lab.draw(m, d)
    mean = torch.tensor([[math.fsum(column) / m for column in v.mT.tolist()]], dtype=torch.float64).expand(n, -1)
    outside, inside = lab.attention(q, k, v, scale=beta), lab.attention(beta * q, k, v, scale=1.0)
    pooled = F.avg_pool1d(v.mT[None], m)[0].mT.expand(n, -1)
    linear = F.linear(v.mT, torch.full((1, m), 1 / m, dtype=torch.float64)).mT.expand(n, -1)
    betas = [0.0, 0.1, 0.3, 1.0, 3.0]
    drift = [max_diff(lab.attention(q, k, v, scale=b), mean) for b in betas]
    zero_query = lab.attention(0 * q, k, v, scale=0.6)
    other = lab.attention(q, k, v, scale=0.6)
    return ExperimentResult(
        {
            f"difference from the plain mean at β = {beta:g}": max_diff(outside, mean),
            "difference from average pooling": max_diff(outside, pooled),
            "difference from a linear layer with equal weights": max_diff(outside, linear),
            "difference from the mean at β = 1": drift[3],
        },
        (
            equal(f"β = {beta:g} gives the plain mean", max_diff(outside, mean)),
            equal("a query of 0 gives the plain mean", max_diff(zero_query, mean)),
            equal("β inside q equals β outside", max_diff(outside, inside)),
            equal("the output equals average pooling", max_diff(outside, pooled)),
            equal("the output equals a linear layer with equal weights", max_diff(outside, linear)),
            at_least("another β is not the mean", drift[3], 1e-3, "control"),
            equal(
                "the output equals the triple loop",
                max_diff(other, reference_attention(q, k, v, scale=0.6)[0]),
                "control",
            ),
        ),
        (Lines("distance from the plain mean", "β", "largest difference", betas, {"output": drift}),),
    )


def hard_soft(lab: Lab, n: int, d: int, beta: float) -> ExperimentResult:
    x, memory = lab.draw(n, d), lab.draw(n + 2, d)
    numbers, limits = {}, []
    for kind, (k, v) in {"self": (x, x), "cross": (memory, memory * 2)}.items():
        soft = lab.attention(x, k, v, scale=beta)
        hard = lab.attention(x, k, v, scale=beta, hard=True)
        picked = v[(x @ k.mT).argmax(-1)]
        limits += [max_diff(soft, hard), max_diff(hard, picked)]
        numbers[f"{kind}: hard − soft at β = {beta:g}"] = max_diff(soft, hard)
        numbers[f"{kind}: hard − soft at β = 1"] = max_diff(lab.attention(x, k, v, scale=1.0), hard)
    gradients = {}
    for hard in (False, True):
        q, k, v = (part.clone().requires_grad_() for part in (x, memory, memory * 2))
        out = lab.attention(q, k, v, scale=0.5, hard=hard).square().sum()
        found = torch.autograd.grad(out, (q, k, v), allow_unused=True)
        gradients[hard] = [0.0 if g is None else float(g.norm()) for g in found]
    ones = torch.ones(2, d, dtype=torch.float64)  # a sum of ones has no rounding error: the two scores are equal
    values = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    soft_tie = float(lab.attention(ones[:1], ones, values, scale=beta))
    hard_tie = float(lab.attention(ones[:1], ones, values, scale=beta, hard=True))
    reference = reference_attention(x, memory, memory * 2, scale=0.5)[0]
    return ExperimentResult(
        {
            **numbers,
            "hard: ‖gradient w.r.t. q‖": gradients[True][0],
            "hard: ‖gradient w.r.t. k‖": gradients[True][1],
            "hard: ‖gradient w.r.t. v‖": gradients[True][2],
            "soft: ‖gradient w.r.t. q‖": gradients[False][0],
            "on a tie, soft gives": soft_tie,
            "on a tie, hard gives": hard_tie,
        },
        (
            equal("hard is the limit of soft, and picks the best key", max(limits)),
            at_most("hard has no gradient w.r.t. q and k", max(gradients[True][:2]), 0.0),
            at_least("hard has one w.r.t. v", gradients[True][2], 1e-3),
            at_least("soft has one w.r.t. all three", min(gradients[False]), 1e-3),
            near("soft shares a tie", soft_tie, 0.5, 1e-12),
            equal("hard is the limit of soft on a tie", abs(soft_tie - hard_tie), "beyond"),
            true("hard picks one of a tie", hard_tie in (0.0, 1.0)),
            equal(
                "soft equals the triple loop",
                max_diff(lab.attention(x, memory, memory * 2, scale=0.5), reference),
                "control",
            ),
        ),
        (
            Bars(
                "gradients",
                "",
                "norm",
                ["q", "k", "v"],
                {"soft": gradients[False], "hard": gradients[True]},
                roles={"hard": "wrong"},
            ),
        ),
    )


CLAIMS = (
    Claim(
        "copy",
        FAMILY,
        "Attention copies one value: ‖h − v_j‖ ≤ (m−1)·e^(−margin)·max‖v_i − v_j‖.",
        "holds-if",
        "β(k_j − k_i)·q is large for every other key (k_j is a vertex of the keys' convex hull)",
        copy,
        (
            Knob("m", 10, "keys", (4, 256)),
            Knob("d", 16, "dimension", (1, 256)),
            Knob("beta", 50.0, "inverse temperature of the copy", (0, 1000)),
        ),
        ("uniform", "beta-ignored", "beta-squared", "wrong-axis", "v-for-k", "k-for-v"),
        "The error of the copy falls exponentially with β, under its bound.",
    ),
    Claim(
        "average",
        FAMILY,
        "A query β(k_a + k_b) on orthonormal keys gives two values the weight e^β/(m−2+2e^β) each: for large β their "
        "average.",
        "holds",
        "",
        average,
        (
            Knob("m", 10, "keys", (3, 256)),
            Knob("d", 16, "dimension, at least the number of keys", (3, 256)),
            Knob("beta", 10.0, "strength of the query", (-100, 1000)),
        ),
        ("uniform", "no-scale", "scale-1/d", "beta-ignored", "beta-squared", "wrong-axis", "v-for-k", "argmax"),
        "Two keys share the weight as β grows; with the default 1/√d the same β gives less.",
    ),
    Claim(
        "diffuse",
        FAMILY,
        "With β = 0 attention is the plain mean of the values: average pooling, a linear layer with equal weights.",
        "holds",
        "",
        diffuse,
        (
            Knob("n", 3, "queries", (1, 128)),
            Knob("m", 7, "keys", (1, 128)),
            Knob("d", 5, "dimension", (1, 128)),
            Knob("beta", 0.0, "inverse temperature", (-100, 1000)),
        ),
        ("argmax", "wrong-axis", "beta-ignored", "not-normalized", "k-for-v", "uniform"),
        "The output leaves the mean as β leaves 0.",
    ),
    Claim(
        "hard-soft",
        FAMILY,
        "Self or cross, soft or hard: hard attention is the limit of soft, and passes no gradient to queries and keys.",
        "holds-if",
        "no two best keys tie: on a tie hard picks one, soft shares",
        hard_soft,
        (
            Knob("n", 5, "tokens", (1, 128)),
            Knob("d", 8, "dimension", (1, 128)),
            Knob("beta", 1e5, "inverse temperature of the limit", (0, 1e9)),
        ),
        ("never-hard", "uniform", "beta-ignored", "wrong-axis", "argmax", "v-for-k"),
        "The gradients of each kind of attention: hard attention only trains the values.",
    ),
)
