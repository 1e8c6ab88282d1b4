"""Claims about one head or two with noisy keys: means, variances, and a common wrong answer.

β is the strength of a query, as in q = β μ. All calculations use scale 1.
"""

import torch
from torch import Tensor

from qkv._figures import Bars, Histogram, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_most, equal, near
from qkv.claims.experiment import Lab, confidence_interval, max_diff, reference_attention

FAMILY = "heads"
KEYS, DIM = 8, 16


def noisy_keys(lab: Lab, mu: Tensor, alpha: float, draws: int, *, stretched: bool) -> Tensor:
    """Keys around their means with covariance αI; key a's also varies along μ_a: αI + ½μ_aμ_aᵀ."""
    keys = mu + alpha**0.5 * lab.draw(draws, *mu.shape)
    if stretched:
        keys[:, 0] += lab.draw(draws, 1) * 0.5**0.5 * mu[0]
    return keys


def attend(lab: Lab, q: Tensor, keys: Tensor) -> Tensor:
    """The weights of one query for the keys of each draw."""
    return lab.weights(q.expand(len(keys), 1, -1), keys, scale=1.0)[:, 0]


def reference_control(lab: Lab, q: Tensor, keys: Tensor, beta: float):
    """Control: the attention under test equals the reference, with β inside the query and as scale."""
    v = torch.eye(KEYS, dtype=torch.float64)
    reference = reference_attention(beta * q[None], keys[0], v, scale=1.0)[1][0]
    return equal(
        "weights equal the triple loop, β inside q and outside",
        max(
            max_diff(attend(lab, beta * q, keys[:1])[0], reference),
            max_diff(lab.weights(q[None], keys[0], scale=beta)[0], reference),
        ),
        "control",
    )


def variance_ratio(weights: Tensor, others: Tensor) -> float:
    """The variance of one output over that of another, summed over features, for orthonormal values."""
    return float(weights.var(0).sum() / others.var(0).sum())


def calm_head(lab: Lab, alpha: float, beta: float, draws: int) -> ExperimentResult:
    mu = lab.orthonormal(KEYS, DIM)
    q = mu[0] + mu[1]
    keys = noisy_keys(lab, mu, alpha, draws, stretched=False)
    weights = attend(lab, beta * q, keys)
    worst = float((weights[:, :2] - 0.5).abs().max())
    deviation, predicted = float(weights[:, 0].std()), 0.5 * beta * alpha**0.5
    noises = [10.0**e for e in range(-8, 1)]
    curve = [
        float((attend(lab, beta * q, noisy_keys(lab, mu, a, 500, stretched=False))[:, :2] - 0.5).abs().max())
        for a in noises
    ]
    return ExperimentResult(
        {
            "farthest weight from ½": worst,
            "s.d. of the weight": deviation,
            "½β√α": predicted,
            "αβ²": alpha * beta**2,
            "farthest weight from ½ at αβ² = 100": curve[-1],
        },
        (
            at_most("both weights are ½ every time", worst, 0.01),
            near("the s.d. of the weight is ½β√α", deviation / predicted, 1.0, 0.1),
            reference_control(lab, q, keys, beta),
        ),
        (
            Lines(
                "farthest weight from ½",
                "αβ²",
                "over 500 draws",
                [a * beta**2 for a in noises],
                {"one head": curve},
                logx=True,
                roles={"one head": "output"},
            ),
        ),
    )


def one_head_variance(lab: Lab, alpha: float, beta: float, draws: int) -> ExperimentResult:
    mu = lab.orthonormal(KEYS, DIM)
    q = mu[0] + mu[1]
    keys = noisy_keys(lab, mu, alpha, draws, stretched=True)
    variances, samples = {}, {}
    for b in (2.0, 5.0, 10.0, 100.0, beta):
        samples[b] = attend(lab, b * q, keys)[:, 0]
        variances[b] = confidence_interval((samples[b] - samples[b].mean()) ** 2)
    dips, shares = {}, {}
    for b in (1.5, 2.0, beta):
        weights = attend(lab, b * q, keys)[:, :2]
        shares[b] = weights[:, 0] / weights.sum(-1)  # of a among a and b: the other keys take weight at a small β
        dips[b] = density_at_half(shares[b])
    measured = f"at β = {beta:g} the share of v_a is at ½ with {dips[beta]:.2f} of its largest density"
    return ExperimentResult(
        {
            **{f"weight variance at β = {b:g}": found for b, found in variances.items()},
            **{f"variance of 1/(1 + e^(−βε)) at β = {b:g}": logistic_variance(b) for b in (2.0, 5.0)},
            **{f"density of the share of v_a at ½ over its peak, β = {b:g}": dips[b] for b in (beta, 2.0, 1.5)},
        },
        (
            near(
                "variance at β = 5 is that of a logistic normal", variances[5.0]["value"], logistic_variance(5.0), 0.006
            ),
            near("variance at β = 10", variances[10.0]["value"], logistic_variance(10.0), 0.006),
            near("variance nears ¼", variances[100.0]["value"], 0.25, 0.015),
            at_most("the output flips: two peaks, a dip at ½", dips[beta], 0.6),
            at_most("two peaks at β = 1.5", dips[1.5], 0.6, "beyond"),
            reference_control(lab, q, keys, 3.0),
        ),
        (
            Histogram(
                "the share of v_a among a and b, draw by draw",
                "share",
                "draws",
                {f"β = {b:g}": shares[b].tolist() for b in (1.5, beta)},
                roles={f"β = {beta:g}": "output"},
            ),
        ),
        f"β is well above 2, where it is flat around ½: {measured}; at 1.5 it has a single peak ({dips[1.5]:.2f})",
        f"The share of v_a among a and b: {measured}, at 1.5 with {dips[1.5]:.2f}.",
    )


def logistic_variance(beta: float) -> float:
    """The variance of 1/(1 + e^(−βε)) with ε ~ N(0, ½), by quadrature: one head with two keys and nothing else.

    >>> round(logistic_variance(2.0), 3), round(logistic_variance(10.0), 3)
    (0.068, 0.195)
    """
    noise = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    density = (-0.5 * noise**2).exp() / (-0.5 * noise**2).exp().sum()
    weight = (beta * noise * 0.5**0.5).sigmoid()
    return float((density * weight**2).sum() - (density * weight).sum() ** 2)


def density_at_half(samples: Tensor) -> float:
    """The frequency of values near ½, relative to the most frequent of 15 bins."""
    counts = torch.histc(samples, 15, 0.0, 1.0)
    return float(counts[7] / counts.max())


def average_two_heads(lab: Lab, first: Tensor, second: Tensor, keys: Tensor) -> Tensor:
    return 0.5 * (attend(lab, first, keys) + attend(lab, second, keys))


def two_heads(lab: Lab, alpha: float, beta: float, draws: int) -> ExperimentResult:
    mu = lab.orthonormal(KEYS, DIM)
    keys = noisy_keys(lab, mu, alpha, draws, stretched=True)
    one = attend(lab, beta * (mu[0] + mu[1]), keys)
    two = average_two_heads(lab, beta * mu[0], beta * mu[1], keys)
    good = keys[:, 0] @ mu[0] > 0
    lost = confidence_interval((~good).double())
    ratio, kept = variance_ratio(two, one), variance_ratio(two[good], one[good])
    bad = confidence_interval(two[~good][:, 0])
    betas = [2.0, 5.0, 10.0, 20.0, 50.0]
    curves: dict[str, list[float]] = {"all draws": [], "where q·k_a > 0": []}
    for b in betas:
        single, double = attend(lab, b * (mu[0] + mu[1]), keys), average_two_heads(lab, b * mu[0], b * mu[1], keys)
        curves["all draws"].append(variance_ratio(double, single))
        curves["where q·k_a > 0"].append(variance_ratio(double[good], single[good]))
    return ExperimentResult(
        {
            "variance ratio, all draws": ratio,
            "variance ratio where q·k_a > 0": kept,
            "share of draws with q·k_a < 0": lost,
            "weight of v_a there": bad,
            "variance ratio, all draws, by quadrature for α → 0": two_heads_ratio(beta, pointing=False),
            "the same where q·k_a > 0": two_heads_ratio(beta, pointing=True),
        },
        (
            at_most("two heads vary less", ratio, 0.1),
            at_most("far less where q·k_a > 0", kept, 0.02),
            near("mean weight of v_a where q·k_a > 0", float(two[good][:, 0].mean()), 0.5, 0.02),
            near("mean weight of v_a where q·k_a < 0", bad["value"], 0.5, 0.02, "beyond"),
            near("q·k_a < 0 in 7.86 % of draws", lost["value"], 0.0786, 0.009, "control"),
            reference_control(lab, mu[0], keys, 3.0),
        ),
        (
            Lines(
                "variance of two heads over that of one",
                "β",
                "ratio",
                betas,
                curves,
                logy=True,
                roles={"all draws": "wrong", "where q·k_a > 0": "output"},
            ),
        ),
        f"q·k_a > 0; in {100 * lost['value']:.1f} % of draws it is not: there v_a gets {bad['value']:.2g}",
    )


def two_heads_ratio(beta: float, *, pointing: bool) -> float:
    """The variance ratio of two heads to one as α → 0, by quadrature over ε, k_a = (1 + ε)μ_a with ε ~ N(0, ½).

    pointing: only over the draws with 1 + ε > 0, where q·k_a > 0.

    >>> round(two_heads_ratio(20.0, pointing=False), 4), round(two_heads_ratio(20.0, pointing=True), 4)
    (0.0512, 0.0094)
    """
    noise = torch.linspace(-8, 8, 200_001, dtype=torch.float64)
    length = 1 + noise * 0.5**0.5
    density = (-0.5 * noise**2).exp() * (length > 0 if pointing else torch.ones_like(length))
    density = density / density.sum()
    none = torch.zeros_like(length)

    def weights(score_a: Tensor, score_b: Tensor) -> Tensor:
        return torch.stack((score_a, score_b, *[none] * (KEYS - 2))).softmax(0)

    def variance(outputs: Tensor) -> float:
        return float((density * outputs**2).sum() - ((density * outputs).sum(1) ** 2).sum())

    one = weights(beta * length, none + beta)
    two = 0.5 * (weights(beta * length, none) + weights(none, none + beta))
    return variance(two) / variance(one)


def two_heads_wrong(lab: Lab, alpha: float, beta: float, draws: int) -> ExperimentResult:
    mu = lab.orthonormal(KEYS, DIM)
    first, second = mu[0] + mu[1], mu[0] - mu[1]
    calm_keys = noisy_keys(lab, mu, alpha, 200, stretched=False)
    calm = average_two_heads(lab, beta * first, beta * second, calm_keys).mean(0)
    keys = noisy_keys(lab, mu, alpha, draws, stretched=True)
    wrong = average_two_heads(lab, beta * first, beta * second, keys)
    one = attend(lab, beta * first, keys)
    ratio = variance_ratio(wrong, one)
    right = average_two_heads(lab, beta * mu[0], beta * mu[1], calm_keys).mean(0)
    mean = wrong.mean(0)
    sharper = average_two_heads(lab, 10 * beta * first, 10 * beta * second, keys)
    return ExperimentResult(
        {
            "weight of v_a, calm keys": float(calm[0]),
            "weight of v_b, calm keys": float(calm[1]),
            "weight of v_a, noisy key a": float(mean[0]),
            "weight of v_b, noisy key a": float(mean[1]),
            "variance ratio to one head": ratio,
            f"weight of v_a, noisy key a, β = {10 * beta:g}": float(sharper[:, 0].mean()),
        },
        (
            near("the output is ½(v_a + v_b): weight of v_a", float(calm[0]), 0.5, 0.01),
            near("the counter-example ¾ v_a + ¼ v_b: weight of v_b", float(calm[1]), 0.25, 0.002, "control"),
            near("the counter-example ¾ v_a + ¼ v_b: weight of v_a", float(calm[0]), 0.75, 0.002, "control"),
            near("q_1 = βμ_a, q_2 = βμ_b give ½: weight of v_a", float(right[0]), 0.5, 0.01, "control"),
            reference_control(lab, first, keys, 3.0),
        ),
        (
            Bars(
                "mean weight of each value",
                "",
                "weight",
                ["v_a", "v_b", "all others"],
                {
                    "q = β(μ_a ± μ_b)": [float(calm[0]), float(calm[1]), float(calm[2:].sum())],
                    "q = βμ_a, βμ_b": [float(right[0]), float(right[1]), float(right[2:].sum())],
                },
                level=(0.5, "requested"),
                roles={"q = β(μ_a ± μ_b)": "wrong", "q = βμ_a, βμ_b": "output"},
            ),
        ),
    )


def _knobs(alpha: float, beta: float, draws: int) -> tuple[Knob, ...]:
    return (
        Knob("alpha", alpha, "variance of the keys", (1e-12, 100)),
        Knob("beta", beta, "strength of the query", (0.01, 1000)),
        Knob("draws", draws, "draws of the keys", (100, 200_000), long=10 * draws),
    )


CLAIMS = (
    Claim(
        "calm-head",
        FAMILY,
        "With keys N(μ_i, αI), β well above log m and αβ² ≪ 1, one query β(μ_a + μ_b) gives ½(v_a + v_b) every time "
        "(8 keys).",
        "holds",
        "",
        calm_head,
        _knobs(1e-8, 10.0, 2000),
        ("uniform", "beta-ignored", "argmax", "wrong-axis", "v-for-k"),
        "The average is kept as long as αβ² is small, and lost when it is not.",
    ),
    Claim(
        "one-head-variance",
        FAMILY,
        "If key a also varies along itself (αI + ½μ_aμ_aᵀ), one head's output flips between v_a and v_b (8 keys).",
        "holds-if",
        "β is well above 2: below, the weight has a single peak",
        one_head_variance,
        _knobs(1e-6, 10.0, 20000),
        ("uniform", "beta-ignored", "argmax", "wrong-axis", "v-for-k"),
        "The share of v_a among a and b is near 0 or near 1; at β = 1.5 it has a single peak.",
    ),
    Claim(
        "two-heads",
        FAMILY,
        "Two heads with q_1 = βμ_a and q_2 = βμ_b give ½(v_a + v_b) with far less variance than one (8 keys, "
        "orthonormal values).",
        "holds-if",
        "q·k_a > 0; where it is not, head 1 attends to everything else",
        two_heads,
        _knobs(1e-6, 20.0, 20000),
        ("uniform", "beta-ignored", "argmax", "wrong-axis", "v-for-k"),
        "Two heads vary far less than one; most of what is left comes from the draws that point away.",
    ),
    Claim(
        "two-heads-wrong",
        FAMILY,
        "Two heads with q_1 = β(μ_a + μ_b) and q_2 = β(μ_a − μ_b) give ½(v_a + v_b).",
        "fails",
        "they give ¾ v_a + ¼ v_b: the first head averages, the second picks v_a alone",
        two_heads_wrong,
        _knobs(1e-6, 10.0, 20000),
        ("uniform", "beta-ignored", "wrong-axis", "argmax", "v-for-k"),
        "The wrong answer leans towards v_a; one head for each key gives the requested average.",
    ),
)
