"""Claims about perturbations: what changes when a key or a query changes.

β is the inverse temperature of the softmax: `scale` in the code.
"""

import torch
from torch import Tensor

from qkv._figures import Bars, Heatmap, Histogram, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, equal, near, true
from qkv.claims.experiment import Lab, confidence_interval, max_diff, reference_attention
from qkv.nn.rope import Rope

FAMILY = "attention as a function"


def output_change(lab: Lab, q: Tensor, k: Tensor, v: Tensor, i: int, epsilon: Tensor, beta: float) -> Tensor:
    """Δh of every query when key i changes by epsilon."""
    after = k.clone()
    after[i] += epsilon
    return lab.attention(q, after, v, scale=beta) - lab.attention(q, k, v, scale=beta)


def perturb_key(lab: Lab, n: int, m: int, d: int, beta: float, sigma: float, draws: int) -> ExperimentResult:
    q, k, v, i = lab.draw(n, d), lab.draw(m, d), lab.draw(m, d), 1
    direction = lab.draw(d)
    h, weights = reference_attention(q, k, v, scale=beta)
    first = beta * weights[:, i : i + 1] * (v[i] - h) * (q @ direction)[:, None]
    sizes = [10.0**-e for e in range(1, 7)]
    errors = [max_diff(output_change(lab, q, k, v, i, s * direction, beta) / s, first) for s in sizes]
    inside = max_diff(
        output_change(lab, q, k, v, i, direction, beta),
        lab.attention(beta * q, k + direction * (torch.arange(m) == i)[:, None], v, scale=1.0)
        - lab.attention(beta * q, k, v, scale=1.0),
    )
    # the mean drift of the first output along v_i − h under noise; each noise is used with both signs
    noise = sigma * lab.draw(draws, d)
    noise = torch.cat((noise, -noise))
    keys = k.expand(2 * draws, -1, -1).clone()
    keys[:, i] += noise
    outs = lab.attention(q[:1].expand(2 * draws, -1, -1), keys, v.expand(2 * draws, -1, -1), scale=beta)[:, 0]
    shift, a = outs - h[0], weights[0, i]
    along = (shift @ (v[i] - h[0])) / (v[i] - h[0]).square().sum()
    drift = confidence_interval((along[:draws] + along[draws:]) / 2)
    predicted = float(0.5 * sigma**2 * beta**2 * q[0].square().sum() * a * (1 - 2 * a))
    across = direction - q[0] * (q[0] @ direction) / q[0].square().sum()
    far = k.clone()
    far[i] = -1e4 * q[0]
    central = v.clone()
    others = torch.arange(m) != i
    central[i] = (weights[0, others] @ v[others]) / weights[0, others].sum()
    still = {
        "q·ε = 0": output_change(lab, q[:1], k, v, i, across, beta),
        "α_i = 0": output_change(lab, q[:1], far, v, i, direction, beta),
        "v_i = h": output_change(lab, q[:1], k, central, i, direction, beta),
    }
    return ExperimentResult(
        {
            "error of the first order at ‖ε‖ = 1e-4": errors[3],
            "mean drift along v_i − h": drift,
            "½σ²β²‖q‖²α(1−2α)": predicted,
            **{f"movement where {case}": float(delta.abs().max()) for case, delta in still.items()},
        },
        (
            at_most("Δh = β α_i (v_i − h)(q·ε) to first order, every query", errors[3], 1e-2),
            at_most("the rest is of second order", errors[3] / errors[1], 0.02),
            near("mean drift over ½σ²β²‖q‖²α(1 − 2α)", drift["value"] / predicted, 1.0, 0.1),
            equal("β inside q equals β outside", inside),
            *(
                at_least(f"the output moves where {case}", float(delta.abs().max()), 1e-10, "beyond")
                for case, delta in still.items()
            ),
        ),
        (
            Lines(
                "error of the first-order formula",
                "size of ε",
                "|Δh/‖ε‖ − formula|",
                sizes,
                {"measured": errors, "∝ ε": [errors[0] * s / sizes[0] for s in sizes]},
                logx=True,
                logy=True,
                roles={"∝ ε": "formula", "measured": "key"},
            ),
            Histogram("drift under noise", "along v_i − h", "draws", {"Δh": along.tolist()}, roles={"Δh": "output"}),
        ),
    )


def perturb_query(lab: Lab, n: int, m: int, d: int, size: float) -> ExperimentResult:
    q, k, v, i = lab.draw(n, d), lab.draw(m, d), lab.draw(m, d), 2 % n
    change = torch.zeros(n, d, dtype=torch.float64)
    change[i] = size * lab.draw(d)
    before, after = (lab.attention(x, k, v, return_weights=True)[0] for x in (q, q + change))
    fused_before, fused_after = (lab.attention(x, k, v) for x in (q, q + change))
    movement = torch.stack(
        [
            (lab.attention(q + change.roll(j - i, 0), k, v, return_weights=True)[0] - before).norm(dim=-1)
            for j in range(n)
        ]
    )
    others = torch.arange(n) != i
    own = float((after[i] - before[i]).norm())
    whole = (lab.attention(q + change, q + change, q + change) - lab.attention(q, q, q))[others]
    same = torch.equal(before[others], after[others]) and torch.equal(fused_before[others], fused_after[others])
    return ExperimentResult(
        {
            "movement of its own output": own,
            "movement of the others": float((after - before)[others].abs().max()),
            "movement of the others when the token moves, as query, key and value": float(whole.abs().max()),
        },
        (
            true("all other rows are bit-identical", same),
            at_least("the output of the moved query moves", own, 1e-6),
            at_least("a token that moves as a key too moves the others", float(whole.abs().max()), 1e-9, "control"),
            equal(
                "the output equals the triple loop", max_diff(fused_before, reference_attention(q, k, v)[0]), "control"
            ),
        ),
        (Heatmap("outputs that change with a query", "output", "query changed", movement.tolist()),),
    )


def scale_key(lab: Lab, m: int, d: int, draws: int, alpha: float, beta: float) -> ExperimentResult:
    q, k = lab.draw(draws, 1, d), lab.draw(draws, m, d)
    scaled = k.clone()
    scaled[:, 0] *= alpha
    before, after = lab.weights(q, k, scale=beta)[:, 0, 0], lab.weights(q, scaled, scale=beta)[:, 0, 0]
    inside = lab.weights(beta * q, scaled, scale=1.0)[:, 0, 0]
    alignment = (q[:, 0] * k[:, 0]).sum(-1)
    free = (before > 1e-300) & (before < 1 - 1e-12)  # a weight of 0 or 1 cannot move in float64
    towards, away = ((after > before)[free & side].double() for side in (alignment > 0, alignment < 0))
    raised, raised_away = (float(side.sum()) / max(len(side), 1) for side in (towards, away))
    reference = reference_attention(q[0], scaled[0], scaled[0], scale=beta)[1][0, 0]
    return ExperimentResult(
        {
            "weight raised where q·k > 0": raised,
            "weight raised where q·k < 0": raised_away,
            "draws": draws,
        },
        (
            at_least(f"α = {alpha:g} raises the weight where q·k > 0, share of draws", raised, 1.0),
            at_least(f"α = {alpha:g} raises the weight where q·k < 0, share of draws", raised_away, 1.0, "beyond"),
            at_most(f"α = {alpha:g} raises no weight where q·k < 0, share raised", raised_away, 0.0),
            equal("β inside q equals β outside", max_diff(after, inside)),
            equal("the weight equals the triple loop", abs(float(after[0] - reference)), "control"),
        ),
        (
            Histogram(
                f"change of the weight when its key is multiplied by {alpha:g}",
                "after − before",
                "draws",
                {
                    "q·k > 0": (after - before)[alignment > 0].tolist(),
                    "q·k < 0": (after - before)[alignment < 0].tolist(),
                },
                roles={"q·k > 0": "key", "q·k < 0": "wrong"},
            ),
        ),
    )


def key_bias(lab: Lab, n: int, m: int, d: int, size: float) -> ExperimentResult:
    q, k, v = lab.draw(n, d), lab.draw(m, d), lab.draw(m, d)
    bias = lab.draw(d)
    bias *= size / bias.norm()
    before = lab.attention(q, k, v)
    shifted = bias.clone().requires_grad_()
    after = lab.attention(q, k + shifted, v)
    (gradient,) = torch.autograd.grad((after * lab.draw(n, d)).sum(), shifted)
    moved = {
        "key": max_diff(after.detach(), before),
        "query": max_diff(lab.attention(q + bias, k, v), before),
        "value": max_diff(lab.attention(q, k, v + bias), before),
    }
    value = max_diff(lab.attention(q, k, v + bias), before + bias)
    rotated = [lab.attention(Rope()(q), Rope()(keys), v) for keys in (k, k + bias)]
    moved["key, then RoPE"] = max_diff(*rotated)
    return ExperimentResult(
        {
            "movement with a bias of the keys": moved["key"],
            "gradient of that bias": float(gradient.abs().max()),
            "movement with a bias of the queries": moved["query"],
            "movement with a bias of the values, less the bias": value,
            "movement with a bias of the keys before RoPE": moved["key, then RoPE"],
        },
        (
            equal("a bias of the keys changes no output", moved["key"]),
            equal("the gradient of a bias of the keys is 0", float(gradient.abs().max())),
            equal("a bias of the values is added to every output", value),
            at_least("a bias of the queries changes outputs", moved["query"], 1e-6),
            equal("a bias of the keys before RoPE changes no output", moved["key, then RoPE"], "beyond"),
        ),
        (Bars("bias of the …", "", "largest movement", list(moved), {"movement": list(moved.values())}),),
    )


CLAIMS = (
    Claim(
        "perturb-key",
        FAMILY,
        "Moving key i by ε moves every output: Δh = β α_i (v_i − h)(q·ε), and noise leaves a mean drift.",
        "holds-if",
        "q·ε ≠ 0, α_i ≠ 0 and v_i ≠ h: where one is 0 the output stays",
        perturb_key,
        (
            Knob("n", 4, "queries", (1, 64)),
            Knob("m", 6, "keys", (2, 64)),
            Knob("d", 5, "dimension", (1, 64)),
            Knob("beta", 0.6, "inverse temperature", (0.01, 100)),
            Knob("sigma", 0.05, "s.d. of the noise", (1e-4, 10)),
            Knob("draws", 20000, "draws of the noise", (100, 100_000)),
        ),
        ("beta-ignored", "beta-squared", "uniform", "argmax", "wrong-axis", "v-for-k"),
        "The first-order formula is right up to a term of second order, which is what noise leaves behind.",
    ),
    Claim(
        "perturb-query",
        FAMILY,
        "Moving one query moves its own output only; all other rows stay the same to the last bit.",
        "holds",
        "",
        perturb_query,
        (
            Knob("n", 6, "queries", (2, 64)),
            Knob("m", 6, "keys", (1, 64)),
            Knob("d", 5, "dimension", (1, 64)),
            Knob("size", 1.0, "size of the move", (0, 1e6)),
        ),
        ("wrong-axis", "uniform", "v-for-k", "no-scale"),
        "Only the diagonal changes.",
    ),
    Claim(
        "scale-key",
        FAMILY,
        "Multiplying a key by α > 1 raises its weight.",
        "holds-if",
        "q·k > 0; where q·k < 0 the weight falls",
        scale_key,
        (
            Knob("m", 8, "keys", (1, 128)),
            Knob("d", 6, "dimension", (1, 128)),
            Knob("draws", 2000, "draws", (20, 10_000)),
            Knob("alpha", 2.0, "factor", (-1000, 1000)),
            Knob("beta", 0.7, "inverse temperature", (-100, 1000)),
        ),
        ("uniform", "beta-ignored", "beta-squared", "wrong-axis", "argmax", "v-for-k"),
        "The same factor raises the weight of a key that agrees with the query and lowers that of one that opposes it.",
    ),
    Claim(
        "key-bias",
        FAMILY,
        "A bias of the key projection changes no output and gets no gradient; one of the queries changes outputs, and "
        "one of the values is added to every output.",
        "holds-if",
        "the keys are not rotated afterwards: under RoPE the bias acts",
        key_bias,
        (
            Knob("n", 5, "queries", (1, 64)),
            Knob("m", 7, "keys", (2, 64)),
            Knob("d", 6, "dimension, even", (2, 64), step=2),
            Knob("size", 1.0, "length of the bias", (0.1, 10)),
        ),
        ("wrong-axis", "not-normalized", "signed", "k-for-v"),
        "Only the bias of the keys moves nothing, unless RoPE rotates it differently for each key.",
    ),
)
