"""Claims about self-attention: permutation equivariance, and what queries, keys and values can express.

β is the inverse temperature of the softmax: `scale` in the code.
"""

import math

import torch
from torch import Tensor

from qkv._figures import Bars, Heatmap, Lines
from qkv.claims.claim import EQUAL, Claim, ExperimentResult, Knob, at_least, at_most, equal, near, true
from qkv.claims.experiment import Lab, max_diff, reference_attention
from qkv.nn.positions import sinusoidal

FAMILY = "self-attention"


def equivariance(lab: Lab, n: int, d: int) -> ExperimentResult:
    x, w_q, w_k, w_v = lab.draw(n, d), *(lab.draw(d, d) / d**0.5 for _ in range(3))
    order = torch.randperm(n, generator=lab.generator)
    while torch.equal(order, torch.arange(n)):
        order = torch.randperm(n, generator=lab.generator)

    def attend(x: Tensor, **options) -> Tensor:
        return lab.attention(x @ w_q, x @ w_k, x @ w_v, **options)

    def equivariance_error(change) -> float:
        return max_diff(change(x[order]), change(x)[order])

    places = sinusoidal(n, d, dtype=torch.float64)
    out = attend(x)
    weights = lab.weights(x @ w_q, x @ w_k)
    permuted = lab.weights(x[order] @ w_q, x[order] @ w_k)
    reference = reference_attention(x @ w_q, x @ w_k, x @ w_v)[0]
    plain = equivariance_error(attend)
    found = {"none": plain, "positions": equivariance_error(lambda y: attend(y + places))}
    found["causal mask"] = equivariance_error(lambda y: attend(y, causal=True))
    return ExperimentResult(
        {
            "‖f(Px) − P f(x)‖": plain,
            "map of Px − P·map·Pᵀ": max_diff(permuted, weights[order][:, order]),
            "map of Px − map": max_diff(permuted, weights),
            "with positions": found["positions"],
            "with a causal mask": found["causal mask"],
        },
        (
            equal("permuting the tokens permutes the outputs", plain),
            equal("the map becomes P S Pᵀ", max_diff(permuted, weights[order][:, order])),
            at_least("the map does not stay S", max_diff(permuted, weights), 1e-3),
            equal("the output equals the triple loop", max_diff(out, reference)),
            at_least("positions break equivariance", found["positions"], 1e-3, "control"),
            at_least("a causal mask breaks equivariance", found["causal mask"], 1e-3, "control"),
        ),
        (
            Heatmap("map of x", "key", "query", weights.tolist()),
            Heatmap("map of Px", "key", "query", permuted.tolist()),
            Bars("‖f(Px) − P f(x)‖", "", "largest difference", list(found), {"difference": list(found.values())}),
        ),
    )


def basis(lab: Lab) -> Tensor:
    """u_a, u_b, u_c, u_d: four orthonormal vectors."""
    return lab.orthonormal(4, 6)


def values_only(lab: Lab, beta: float) -> ExperimentResult:
    a, b, c, d = basis(lab)
    x = torch.stack((d + b, a, c + b))
    # vectors of length β with scale 1, or of length 1 with scale β²: the same numbers
    long = lab.attention(beta * x, beta * x, beta * x, scale=1.0)[1] / beta
    short = lab.attention(x, x, x, scale=beta**2)[1]
    error = float((short - a).norm())
    distances, own, other = {}, {}, {}
    for name, extra, token in (("u_d", d, 0), ("u_c", c, 2)):
        changed = x.clone()
        changed[1] += extra
        out, weights = lab.attention(changed, changed, changed, scale=beta**2, return_weights=True)
        distances[name] = float((out[1] - b).norm())
        own[name], other[name] = float((out[1] - a - extra).norm()), float(weights[1, token])
    reference = reference_attention(x, x, x, scale=beta**2)[0][1]
    betas = [1.0, 2.0, 3.0, 4.0, 5.0]
    errors = [float((lab.attention(x, x, x, scale=s**2)[1] - a).norm()) for s in betas]
    closed = [math.sqrt(10) / (math.exp(s**2) + 2) for s in betas]
    return ExperimentResult(
        {
            f"‖c_2 − u_a‖/β at β = {beta:g}": error,
            "closed form √10/(e^β² + 2)": math.sqrt(10) / (math.exp(beta**2) + 2),
            **{f"‖c_2 − u_b‖/β after adding {name} to x_2": value for name, value in distances.items()},
            **{f"‖c_2 − (u_a + {name})‖/β there": value for name, value in own.items()},
            "weight on x_1 after adding u_d": other["u_d"],
            "weight on x_3 after adding u_c": other["u_c"],
        },
        (
            near("‖c_2 − u_a‖/β is √10/(e^β²+2)", error, math.sqrt(10) / (math.exp(beta**2) + 2), 1e-12),
            at_most("c_2 ≈ u_a", error, 1e-3),
            at_least("adding u_d or u_c to x_2 does not give u_b", min(distances.values()), 0.5),
            at_most("adding u_d or u_c to x_2 gives u_a + u_d or u_a + u_c", max(own.values()), 1e-3),
            equal("β in the vectors equals β as an argument", max_diff(long, short)),
            equal("the output equals the triple loop", max_diff(short, reference), "control"),
        ),
        (
            Lines(
                "how well x_2 returns u_a",
                "β",
                "‖c_2 − u_a‖/β",
                betas,
                {"measured": errors, "√10/(e^β²+2)": closed},
                logy=True,
                roles={"√10/(e^β²+2)": "formula", "measured": "output"},
            ),
        ),
    )


def kqv(lab: Lab, beta: float) -> ExperimentResult:
    a, b, c, d = basis(lab)
    x = torch.stack((d + b, a, c + b))  # times β, below
    value = torch.outer(b, b) - torch.outer(c, c)
    query = torch.outer(d, a) + torch.outer(c, d)

    def compute(strength: float, attention, *, divide: bool = False) -> Tensor:
        """The outputs over β, for vectors u of length β = `strength`; `divide`: with Q/β² instead of Q."""
        tokens, factor = strength * x, 1.0 if divide else strength**2
        q, k, v = tokens @ (factor * query).mT, tokens, tokens @ value.mT
        return attention(q, k, v, scale=1.0) / strength

    out = compute(beta, lab.attention)
    outside = lab.attention(x @ query.mT, x, x @ value.mT, scale=beta**4)
    errors = float((out[1] - b).norm()), float((out[0] - (b - c)).norm())
    reference = compute(beta, lambda *qkv, scale: reference_attention(*qkv, scale=scale)[0])
    betas = [1.0, 1.25, 1.5, 1.75, 2.0]
    curve = [float((compute(s, lab.attention)[1] - b).norm()) for s in betas]
    divided = [float((compute(s, lab.attention, divide=True)[1] - b).norm()) for s in (beta, 5.0)]
    weights = lab.weights(x @ query.mT, x, scale=beta**4)
    return ExperimentResult(
        {
            f"‖c_2 − u_b‖/β at β = {beta:g}": errors[0],
            f"‖c_1 − (u_b − u_c)‖/β at β = {beta:g}": errors[1],
            f"with Q/β²: ‖c_2 − u_b‖/β at β = {beta:g}": divided[0],
            "with Q/β²: ‖c_2 − u_b‖/β at β = 5": divided[1],
        },
        (
            at_most("c_2 ≈ u_b", errors[0], 1e-5),
            at_most("c_1 ≈ u_b − u_c", errors[1], 1e-5),
            at_most("β in the vectors equals β as an argument", max_diff(out, outside), max(EQUAL, 1e-15 * beta**4)),
            equal("the output equals the triple loop", max_diff(out, reference), "control"),
        ),
        (
            Lines("‖c_2 − u_b‖/β", "β", "relative error", betas, {"c_2": curve}, logy=True, roles={"c_2": "output"}),
            Heatmap(
                "attention weights",
                "as keys",
                "as queries",
                matrix=weights.tolist(),
                vmax=1.0,
                labels=("x₁", "x₂", "x₃"),
            ),
        ),
    )


IDENTITY = 0.999  # the lowest weight of a token on itself that counts as the identity


def sufficient_beta(n: int, cosine: float) -> float:
    """The β at which n unit vectors, no two with a larger cosine, attend to themselves with a weight of IDENTITY.

    >>> round(sufficient_beta(8, 0.0), 2)
    8.85
    """
    if n == 1:
        return 0.0
    odds = IDENTITY / (1 - IDENTITY)
    return math.log(odds * (n - 1)) / (1 - cosine) if cosine < 1 - 1e-12 else math.inf


def identity(lab: Lab, n: int, d: int, beta: float) -> ExperimentResult:
    x = lab.orthonormal(n, d)

    def lowest(tokens: Tensor, b: float) -> float:
        return float(lab.weights(tokens, tokens, scale=b).diagonal().min())

    def bound(count: int, cosine: float, b: float) -> float:
        return 1 / (1 + (count - 1) * math.exp(-b * (1 - cosine)))

    formula = max(
        max_diff(weights.diagonal(), torch.full((n,), bound(n, 0.0, b), dtype=torch.float64))
        for b in (0.5, 1.0, 3.0, beta)
        for weights in (lab.weights(x, x, scale=b), lab.weights(b * x, x, scale=1.0))
    )
    low, high = lowest(x, 1.0), lowest(x, beta)
    order = torch.randperm(n, generator=lab.generator)
    v = lab.draw(n, d)
    moved = lab.attention(x, x[order], v, scale=beta)
    inverse = max_diff(moved, v[order.argsort()])
    count = 4 * d
    crowd = torch.nn.functional.normalize(lab.draw(count, d), dim=-1)
    cosine = float((crowd @ crowd.mT).fill_diagonal_(-1).max())
    needed, crowd_needed = sufficient_beta(n, 0.0), sufficient_beta(count, cosine)
    crowded = lowest(crowd, beta)
    separate = lowest(crowd, crowd_needed) if math.isfinite(crowd_needed) else math.nan
    below = max(bound(count, cosine, b) - lowest(crowd, b) for b in (0.5, 3.0, 30.0, abs(beta)))
    mixed = lab.attention(crowd, crowd, crowd)
    betas = [b / 2 for b in range(31)]
    far = [crowd_needed * step / 20 if math.isfinite(crowd_needed) else float(step) for step in range(31)]
    group = f"{count} random unit vectors in {d} dimensions"
    need = f"need β ≥ {crowd_needed:.3g} at most" if math.isfinite(crowd_needed) else "never separate: two coincide"
    condition = (
        f"β(1 − ρ) ≥ log({IDENTITY / (1 - IDENTITY):.0f}(n − 1)), where ρ is the largest cosine of two tokens: "
        f"n = {n} orthonormal (ρ = 0) need β ≥ {needed:.3g}, and at β = 1 the diagonal is {low:.3g}; {group} "
        f"(ρ = {cosine:.3g}) {need}, and at β = {beta:g} their lowest is {crowded:.3g}"
    )
    return ExperimentResult(
        {
            "diagonal at β = 1": low,
            f"diagonal at β = {beta:g}": high,
            f"β at which it is {IDENTITY:g}": needed,
            "K = permuted Q: distance from the inverse permutation": inverse,
            f"{group}: largest cosine": cosine,
            f"{group}: lowest diagonal at β = {beta:g}": crowded,
            f"{group}: β that suffices for {IDENTITY:g}": crowd_needed,
            f"{group}: lowest diagonal there": separate,
        },
        (
            equal("the diagonal is e^β/(e^β + n − 1)", formula),
            at_least("attention is the identity", high, IDENTITY),
            at_least("attention is the identity at β = 1", low, IDENTITY, "beyond"),
            at_most("with n > d the diagonal is below 1/(1 + (n − 1)e^(−β(1 − ρ))), by", below, 1e-12),
            at_least("with n > d at the β of their margin", separate, IDENTITY)
            if math.isfinite(crowd_needed)
            else true("with n > d at the β of their margin: two coincide", True),
            at_least("attention is the identity with n > d at the same β", crowded, IDENTITY, "beyond"),
            at_most("K = permuted Q gives the inverse permutation", inverse, 0.01),
            equal(
                "the crowd's output equals the triple loop",
                max_diff(mixed, reference_attention(crowd, crowd, crowd)[0]),
                "control",
            ),
        ),
        (
            Lines(
                "weight of each token on itself",
                "β",
                "diagonal",
                betas,
                {
                    "measured": [float(lab.weights(x, x, scale=b).diagonal().mean()) for b in betas],
                    "e^β/(e^β+n−1)": [bound(n, 0.0, b) for b in betas],
                },
                roles={"e^β/(e^β+n−1)": "formula"},
            ),
            Lines(
                f"{count} tokens in {d} dimensions",
                "β",
                "lowest diagonal",
                far,
                {
                    "measured": [lowest(crowd, b) for b in far],
                    "bound by the margin": [bound(count, cosine, b) for b in far],
                },
                roles={"bound by the margin": "formula"},
            ),
            Heatmap("K = permuted Q", "key", "query", lab.weights(x, x[order], scale=beta).tolist(), 1.0),
        ),
        condition,
        f"Orthonormal tokens attend to themselves from β = {needed:.3g}; {group} {need}. Permuted keys give the "
        "inverse permutation.",
    )


CLAIMS = (
    Claim(
        "equivariance",
        FAMILY,
        "Without positions and causal mask, permuting the tokens permutes the outputs; the map becomes P S Pᵀ.",
        "holds",
        "no positions and no causal mask: either breaks it",
        equivariance,
        (Knob("n", 6, "tokens", (2, 128)), Knob("d", 8, "dimension", (1, 128))),
        ("wrong-axis", "uniform", "argmax", "no-scale", "v-for-k", "unmasked"),
        "The map of permuted tokens is the map with rows and columns permuted, not the same map.",
    ),
    Claim(
        "values-only",
        FAMILY,
        "With v = k = q = x = (u_d + u_b, u_a, u_c + u_b) and ‖u‖ = β, c_2 ≈ u_a; adding u_d (or u_c) to x_2 makes it "
        "u_a + u_d (or u_a + u_c), not u_b.",
        "holds",
        "",
        values_only,
        (Knob("beta", 5.0, "length of the vectors", (0.1, 26)),),
        ("uniform", "beta-ignored", "beta-squared", "wrong-axis"),
        "The error relative to β falls as e^(−β²).",
    ),
    Claim(
        "kqv",
        FAMILY,
        "For ‖u‖ = β, V = (u_b u_bᵀ − u_c u_cᵀ)/β², K = I, Q = u_d u_aᵀ + u_c u_dᵀ give c_2 ≈ u_b and c_1 ≈ u_b − u_c: "
        "the scores are β⁴ on the wanted token and 0 elsewhere.",
        "holds",
        "",
        kqv,
        (Knob("beta", 2.0, "length of the vectors", (0.1, 26)),),
        ("uniform", "beta-ignored", "beta-squared", "wrong-axis", "v-for-k", "k-for-v"),
        "x_2 attends to x_1 and x_1 to x_3; the value matrix does the rest.",
    ),
    Claim(
        "identity",
        FAMILY,
        "Self-attention of unit vectors is the identity: the diagonal is at least 1/(1 + (n − 1)e^(−β(1 − ρ))), with ρ "
        "the largest cosine of two tokens; for orthonormal ones it is e^β/(e^β + n − 1).",
        "holds-if",
        "the margin β(1 − ρ) is large against log(n − 1); n ≤ d is not needed",
        identity,
        (
            Knob("n", 8, "tokens", (1, 64)),
            Knob("d", 8, "dimension, at least the number of tokens", (1, 64)),
            Knob("beta", 12.0, "inverse temperature", (-100, 1000)),
        ),
        ("uniform", "beta-ignored", "beta-squared", "argmax", "v-for-k", "wrong-axis"),
        "The diagonal rises with β; tokens that are more alike need a larger β.",
    ),
)
