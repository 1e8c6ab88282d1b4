"""Claims about multi-head attention: its formula, and what one head cannot compute."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Bars, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, equal, near, true
from qkv.claims.experiment import Lab, max_diff, reference_attention
from qkv.nn import Dot, MultiHeadAttention

FAMILY = "heads"


def heads_formula(lab: Lab, dim: int, heads: int, tokens: int, beta: float) -> ExperimentResult:
    layer = lab.build(lambda: MultiHeadAttention(dim, heads))
    x = lab.draw(2, tokens, dim)
    sharper = lab.build(lambda: MultiHeadAttention(dim, heads, score=Dot(beta)))
    with lab.inside_layers(), torch.no_grad():
        output, sharp = layer(x), sharper(x)
    torch_output = torch_layer(layer)(x, x, x, need_weights=False)[0].detach()
    reference = reference_multi_head(layer, x)
    # projections as convolutions with kernel 1
    to_q = layer.to_q
    projected = to_q(x).detach()
    plain = F.conv1d(x.mT, to_q.weight[..., None], to_q.bias).mT.detach()
    copies = x.mT.repeat(1, heads, 1)  # the whole input, once for each head
    grouped = F.conv1d(copies, to_q.weight[..., None], to_q.bias, groups=heads).mT.detach()
    own = to_q.weight.unflatten(0, (heads, -1))  # head h of a chunked layer reads only slice h of the input
    slices = torch.stack([own[h][:, h * dim // heads : (h + 1) * dim // heads] for h in range(heads)]).flatten(0, 1)
    chunked = F.conv1d(x.mT, slices[..., None], to_q.bias, groups=heads).mT.detach()
    return ExperimentResult(
        {
            "difference from torch.nn.MultiheadAttention": max_diff(output, torch_output),
            "difference from loops": max_diff(output, reference),
            "projection − 1×1 convolution": max_diff(projected, plain),
            "projection − grouped convolution on h copies": max_diff(projected, grouped),
            "projection − grouped convolution on x (chunked heads)": max_diff(projected, chunked),
            "parameters of a projection": to_q.weight.numel(),
            "parameters of a chunked projection": slices.numel(),
        },
        (
            equal("equal to torch.nn.MultiheadAttention", max_diff(output, torch_output)),
            equal("equal to heads worked by loops, joined and projected", max_diff(output, reference)),
            equal("equal to the loops with another β", max_diff(sharp, reference_multi_head(sharper, x, beta))),
            equal("projections are 1×1 convolutions", max_diff(projected, plain)),
            equal("grouped convolutions on h copies of x are the same projections", max_diff(projected, grouped)),
            true(
                "grouped convolutions on x itself are another layer, if there is more than one group",
                heads == 1 or max_diff(projected, chunked) >= 0.1,
                "control",
            ),
        ),
        (
            Bars(
                "a projection as a convolution",
                "",
                "largest difference",
                ["1×1", "grouped, h copies", "grouped, x itself"],
                {
                    "difference": [
                        max_diff(projected, plain),
                        max_diff(projected, grouped),
                        max_diff(projected, chunked),
                    ]
                },
            ),
        ),
    )


def torch_layer(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's layer with the same weights."""
    copied = nn.MultiheadAttention(layer.dim, layer.heads, batch_first=True, dtype=torch.float64)
    parts = [part for part in (layer.to_q, layer.to_k, layer.to_v) if part is not None]
    with torch.no_grad():
        copied.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        copied.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        copied.out_proj.weight.copy_(layer.to_out.weight)
        copied.out_proj.bias.copy_(layer.to_out.bias)
    return copied.eval()


def reference_multi_head(layer: MultiHeadAttention, x: Tensor, beta: float | None = None) -> Tensor:
    """Multi-head attention head by head: slices of the projections, the triple loop, concatenated, projected."""
    dim, rows = layer.head_dim, []
    with torch.no_grad():
        projected = [part(x) for part in (layer.to_q, layer.to_k, layer.to_v) if part is not None]
        for row in range(len(x)):
            heads = []
            for h in range(layer.heads):
                q, k, v = (part[row, :, h * dim : (h + 1) * dim] for part in projected)
                heads.append(reference_attention(q, k, v, scale=beta)[0])
            rows.append(torch.cat(heads, -1))
        return layer.to_out(torch.stack(rows))


def heads_count(lab: Lab, tokens: int, dim: int, seeds: int, steps: int) -> ExperimentResult:
    best = {h: train_difference(lab, h, tokens, dim, seeds, steps) for h in (1, 2)}
    one, two = float(best[1].min()), float(best[2].min())
    # the least error of one head in closed form: weights p, q ≥ 0 on a and b, the best value map for them
    shares = torch.linspace(0, 1, 101, dtype=torch.float64)
    p, q = torch.meshgrid(shares, shares, indexing="ij")
    error = 1 - (p - q) ** 2 / (2 * (p**2 + q**2).clamp(min=1e-12))
    floor = float(error.min())
    return ExperimentResult(
        {
            "least relative squared error of one head, closed form": floor,
            f"one head, trained, relative squared error, best of {seeds}": one,
            f"two heads, trained, the same, best of {seeds}": two,
            "two heads, trained, the same, worst": float(best[2].max()),
        },
        (
            near("one head cannot do better than ½ (squared error)", floor, 0.5, 1e-12),
            at_least("trained, one head stays at ½ or above", one, 0.5 - 1e-9),
            at_most("trained, one head comes near ½", one, 0.53),
            at_most(f"trained, two heads reach 0 (best of {seeds})", two, 0.01),
        ),
        (
            Lines(
                "relative squared error after training, for each start",
                "start, sorted",
                "relative squared error",
                list(range(1, seeds + 1)),
                {
                    "one head": best[1].sort().values.tolist(),
                    "two heads": best[2].sort().values.tolist(),
                    "½": [0.5] * seeds,
                },
                roles={"½": "formula", "one head": "wrong", "two heads": "output"},
            ),
        ),
    )


def train_difference(lab: Lab, heads: int, tokens: int, dim: int, seeds: int, steps: int) -> Tensor:
    """Train heads to compute v_a − v_b where the query says which tokens a and b are; relative squared error of each
    start.

    Values are N(0, I), so the expected error follows from the weights and value maps without samples. All starts train
    at once: they are the batch axis.
    """
    pairs = [(a, b) for a in range(tokens) for b in range(tokens) if a != b]
    a, b = (torch.tensor(side) for side in zip(*pairs, strict=True))
    q, k = lab.draw(seeds, heads, len(pairs), dim), lab.draw(seeds, heads, tokens, dim)
    maps = lab.draw(seeds, heads, dim, dim) / dim**0.5
    parameters = [x.requires_grad_() for x in (q, k, maps)]
    eye = torch.eye(tokens, dtype=torch.float64).expand(seeds, heads, -1, -1)
    target = torch.zeros(len(pairs), tokens, dtype=torch.float64)
    target[torch.arange(len(pairs)), a], target[torch.arange(len(pairs)), b] = 1.0, -1.0
    goal = target[:, :, None, None] * torch.eye(dim, dtype=torch.float64)
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    error = torch.zeros(seeds)
    for _ in range(steps):
        weights = lab.attention(q, k, eye, scale=1.0)  # (starts, heads, pairs, tokens)
        made = torch.einsum("shpt,shxy->sptxy", weights, maps)
        error = (made - goal).square().sum((1, 2, 3, 4)) / goal.square().sum()
        optimizer.zero_grad()
        error.sum().backward()
        optimizer.step()
        schedule.step()
    return error.detach()


CLAIMS = (
    Claim(
        "heads-formula",
        FAMILY,
        "h heads of dim c/h, joined and projected, are torch.nn.MultiheadAttention; projections are 1×1 convolution.",
        "holds",
        "",
        heads_formula,
        (
            Knob("dim", 12, "model dim, a multiple of heads", (1, 128)),
            Knob("heads", 3, "heads", (1, 64)),
            Knob("tokens", 5, "tokens", (1, 64)),
            Knob("beta", 0.9, "another β", (-100, 1000)),
        ),
        ("wrong-axis", "uniform", "argmax", "beta-ignored", "beta-squared", "v-for-k", "k-for-v"),
        "As a plain convolution, or grouped on h copies, a projection is itself; grouped on x, with several groups, "
        "it is another layer.",
    ),
    Claim(
        "heads-count",
        FAMILY,
        "If only the query says which token is a and which b, one head cannot give v_a − v_b (relative squared error "
        "≥ ½ for independent values of equal variance); two can.",
        "holds",
        "",
        heads_count,
        (
            Knob("tokens", 4, "tokens", (2, 16)),
            Knob("dim", 4, "dimension of values and heads", (1, 16)),
            Knob("seeds", 6, "random starts; the best counts", (1, 100), long=20),
            Knob("steps", 400, "training steps", (1, 20_000), long=2000),
        ),
        ("uniform", "signed", "argmax"),
        "Every start of one head ends at ½ or above; of two heads the best reach 0, some stick.",
        cost="seconds",
        overturn={"steps": 300, "seeds": 3},
    ),
)
