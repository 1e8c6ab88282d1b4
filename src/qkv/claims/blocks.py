"""Claims about the transformer block: feed-forward network, residual connections and norms, attention dropout."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv._figures import Bars, Histogram, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, equal, near
from qkv.claims.experiment import Lab, confidence_interval, max_diff, mean_and_range
from qkv.nn import FeedForward, MultiHeadAttention

FAMILY = "the transformer"


def feed_forward(lab: Lab, dim: int, mlp_dim: int, tokens: int, steps: int, seeds: int) -> ExperimentResult:
    kind = FeedForward if lab.component is None else lab.component
    network = lab.build(lambda: kind(dim, mlp_dim))
    x = lab.draw(2, tokens, dim)
    out = network(x).detach()
    one_by_one = torch.cat([network(x[:, t : t + 1]) for t in range(tokens)], 1).detach()
    convolved = as_convolution(network, x).detach()
    order = torch.randperm(tokens, generator=lab.generator)
    permuted = network(x[:, order]).detach()
    best = {"with": 0.0, "without": 0.0}
    for start in range(seeds):
        for name in best:
            best[name] = max(best[name], train_xor(lab, kind if name == "with" else None, mlp_dim, steps, start))
    norm_only = xor_by_layer_norm()
    return ExperimentResult(
        {
            "network − 1×1 convolution": max_diff(out, convolved),
            "all tokens − one by one": max_diff(out, one_by_one),
            f"XOR of a token's bits, with it (best of {seeds})": best["with"],
            f"XOR of a token's bits, without (best of {seeds})": best["without"],
            "XOR of a token's bits, by a layer norm and linear maps": norm_only,
        },
        (
            equal("equals two 1×1 convolutions", max_diff(out, convolved)),
            equal("each token by itself: the same network at each position", max_diff(out, one_by_one)),
            equal("commutes with a permutation", max_diff(permuted, out[:, order])),
            at_least("XOR of a token's bits is learned with it", best["with"], 1.0),
            at_most("XOR of a token's bits is not learned without it", best["without"], 0.76),
            at_most("XOR is not solved by a layer norm and linear maps either", norm_only, 0.76, "beyond"),
        ),
        (
            Bars(
                "XOR of two bits of one token",
                "",
                "accuracy",
                ["with feed-forward", "without", "layer norm only"],
                {"accuracy": [*best.values(), norm_only]},
                level=(0.75, "best of any linear map"),
            ),
        ),
        f"XOR is asked of one token without a norm, where the rest of the layer is linear: {best['without']:.2g} of "
        f"the answers are right without the network, {norm_only:.2g} with a layer norm in its place",
    )


def as_convolution(network: FeedForward, x: Tensor) -> Tensor:
    """The same weights as convolutions with kernel 1 over the tokens."""
    first, last = network.to_hidden, network.to_out
    mlp_dim = nn.functional.conv1d(x.mT, first.weight[..., None], first.bias)
    return nn.functional.conv1d(nn.functional.gelu(mlp_dim), last.weight[..., None], last.bias).mT


def xor_by_layer_norm() -> float:
    """The accuracy of XOR by a layer norm between two linear maps: it divides by a deviation that differs.

    With s = b_1 + b_2 the features (s, −s, 1, −1) have the deviation √((s² + 1)/2): 0.71 for unequal bits, 1.58 for
    equal ones.

    >>> xor_by_layer_norm()
    1.0
    """
    total = XOR_BITS.sum(-1)
    features = torch.stack((total, -total, torch.ones_like(total), -torch.ones_like(total)), -1)
    read_out = nn.functional.layer_norm(features, (4,))[:, 2] > 1.0
    return float((read_out == (XOR_BITS[:, 0] != XOR_BITS[:, 1])).double().mean())


XOR_BITS = torch.tensor([[-1, -1], [-1, 1], [1, -1], [1, 1]], dtype=torch.float64)


def train_xor(lab: Lab, kind: type[FeedForward] | None, mlp_dim: int, steps: int, start: int) -> float:
    """Train on the XOR of a token's two bits; returns the accuracy.

    Attention of a single token to itself is a linear map, so without the network the whole layer is linear.
    """
    tokens = XOR_BITS[:, None]
    target = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    model = lab.build(lambda: XorLayer(kind, mlp_dim), offset=start)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        loss = nn.functional.binary_cross_entropy_with_logits(model(tokens), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(((model(tokens) > 0) == (target > 0.5)).double().mean())


class XorLayer(nn.Module):
    """An embedding of two bits, the linear part of attention, optionally a feed-forward network, and a read-out."""

    def __init__(self, kind: type[FeedForward] | None, mlp_dim: int) -> None:
        super().__init__()
        self.embed, self.mix = nn.Linear(2, 8), nn.Linear(8, 8)
        self.network = None if kind is None else kind(8, mlp_dim)
        self.read_out = nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.mix(x)
        if self.network is not None:
            x = x + self.network(x)
        return self.read_out(x)[:, 0, 0]


class StackLayer(nn.Module):
    """One layer of a stack, with or without its residual connection and its norm."""

    def __init__(self, dim: int, *, residual: bool, norm: str) -> None:
        super().__init__()
        self.parts = nn.ModuleList((MultiHeadAttention(dim, 4), FeedForward(dim, 2 * dim)))
        self.residual, self.norm = residual, norm

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x_in = nn.functional.layer_norm(x, x.shape[-1:]) if self.norm == "pre" else x
            output = part(x_in)
            x = x + output if self.residual else output
            x = nn.functional.layer_norm(x, x.shape[-1:]) if self.norm == "post" else x
        return x


PRE, POST = "both, pre-norm", "both, post-norm"
STACKS = {
    "both, pre-norm": {"residual": True, "norm": "pre"},
    "both, post-norm": {"residual": True, "norm": "post"},
    "no norm": {"residual": True, "norm": ""},
    "no residual": {"residual": False, "norm": "pre"},
    "neither": {"residual": False, "norm": ""},
}


SHALLOW = 4  # layers: tokens without residual connections are alike by then, gradients have not yet vanished


def residual_norm(lab: Lab, depth: int, dim: int, tokens: int, seeds: int) -> ExperimentResult:
    runs = {name: [] for name in STACKS}
    with lab.inside_layers():
        for start in range(seeds):
            lab.progress(f"start {start + 1} of {seeds}")
            x, direction = lab.draw(1, tokens, dim), lab.draw(dim)
            for offset, (name, options) in enumerate(STACKS.items()):
                layers = lab.build(
                    lambda options=options: nn.ModuleList(StackLayer(dim, **options) for _ in range(depth)),
                    10 * start + offset,
                )
                runs[name].append(run_stack(layers, x, direction))
    early = min(SHALLOW, depth)
    ratios, early_ratios = (
        {name: geometric_mean([getattr(run, at) / getattr(pre, at) for run, pre in zip(found, runs[PRE], strict=True)])
         for name, found in runs.items() if name != PRE}
        for at in ("gradient", "early_gradient")
    )  # fmt: skip
    deep, collapsed = (
        {name: mean_and_range([run.diversity[at] for run in found]) for name, found in runs.items()}
        for at in (depth - 1, early - 1)
    )
    kept = min(deep[name]["low"] for name in (PRE, POST)) / max(deep["no residual"]["high"], 1e-300)
    first = {name: found[0] for name, found in runs.items()}
    alone, growth = "no residual", "no norm"
    return ExperimentResult(
        {
            f"{PRE}: gradient at the input": geometric_mean([run.gradient for run in runs[PRE]]),
            **{f"{name}: gradient relative to that": ratio for name, ratio in ratios.items()},
            **{f"{name}: the same after {early} layers": ratio for name, ratio in early_ratios.items()},
            **{f"{name}: token diversity, {early} layers": collapsed[name] for name in (PRE, POST, alone)},
            **{f"{name}: token diversity, {depth} layers": deep[name] for name in (PRE, POST, alone)},
            **{f"{name}: activation s.d., {depth} layers": run.deviations[-1] for name, run in first.items()},
            **{f"{name}: activation mean, {depth} layers": run.means[-1] for name, run in first.items()},
        },
        (
            at_most(
                "without residual the gradient vanishes: its ratio to pre-norm with both", ratios[alone]["high"], 1e-2
            ),
            at_least("without norm the gradient explodes: the same ratio", ratios[growth]["low"], 1e2),
            at_most(
                "without residual and norm the gradient vanishes: the same ratio", ratios["neither"]["high"], 1e-10
            ),
            at_least("post-norm keeps the gradient: the same ratio", ratios[POST]["low"], 1e-2),
            at_most("post-norm does not let the gradient explode: the same ratio", ratios[POST]["high"], 1e2),
            near(
                "with both, pre-norm, the gradient is of ordinary size: log10", math.log10(first[PRE].gradient), 0.0, 3
            ),
            at_most(
                f"after {early} layers the gradient has vanished without residual",
                early_ratios[alone]["high"],
                1e-2,
                "beyond",
            ),
            at_least(
                f"after {early} layers the gradient has exploded without norm",
                early_ratios[growth]["low"],
                1e2,
                "beyond",
            ),
            at_most(f"without residual tokens are alike after {early} layers", collapsed[alone]["high"], 1e-6),
            at_least("with both, pre- or post-norm, tokens stay different: relative diversity", kept, 1e6),
        ),
        (
            Lines(
                "diversity of tokens",
                "layer",
                "relative distance from their mean",
                list(range(1, depth + 1)),
                {name: [max(v, 1e-17) for v in run.diversity] for name, run in first.items()},
                logy=True,
                roles=_ROLES,
            ),
            Lines(
                "size of activations",
                "layer",
                "s.d.",
                list(range(1, depth + 1)),
                {name: [max(v, 1e-80) for v in run.deviations] for name, run in first.items()},
                logy=True,
                roles=_ROLES,
            ),
        ),
        f"the stack is deep: relative to a pre-norm stack with both, the gradient at the input is "
        f"{ratios[alone]['value']:.2g} without residual and {ratios[growth]['value']:.2g} without norm after {depth} "
        f"layers, but {early_ratios[alone]['value']:.2g} and {early_ratios[growth]['value']:.2g} after {early}",
        f"Without residual connections the tokens' diversity is {collapsed[alone]['value']:.1g} after {early} layers; "
        f"with both it is {deep[PRE]['value']:.2g} (pre-norm) and {deep[POST]['value']:.2g} (post-norm) after {depth}.",
    )


@dataclass(frozen=True)
class StackRun:
    """One pass through a stack: gradients at the input after all and after SHALLOW layers; statistics by layer."""

    gradient: float
    early_gradient: float
    diversity: list[float]
    deviations: list[float]
    means: list[float]


def run_stack(layers: nn.ModuleList, x: Tensor, direction: Tensor) -> StackRun:
    x = x.clone().requires_grad_()
    y, states = x, []
    for layer in layers:
        y = layer(y)
        states.append(y)
    early, last = (
        float(torch.autograd.grad(state[0, -1] @ direction, x, retain_graph=True)[0].norm())
        for state in (states[min(SHALLOW, len(states)) - 1], states[-1])
    )
    states = [state.detach() for state in states]
    return StackRun(
        last,
        early,
        [token_diversity(state) for state in states],
        [float(state.std()) for state in states],
        [float(state.mean()) for state in states],
    )


def geometric_mean(samples: list[float]) -> dict[str, float]:
    """The geometric mean of a few runs, with the lowest and the highest."""
    value = math.exp(sum(math.log(max(sample, 1e-300)) for sample in samples) / len(samples))
    low, high = min(samples), max(samples)
    return {"value": min(max(value, low), high), "low": low, "high": high}


_ROLES = {
    "both, pre-norm": "query",
    "both, post-norm": "other",
    "no norm": "key",
    "no residual": "wrong",
    "neither": "output",
}


def token_diversity(x: Tensor) -> float:
    """The distance of tokens from their mean, relative to their size: 0 where all are equal."""
    return float((x - x.mean(1, keepdim=True)).norm() / x.norm().clamp(min=1e-300))


def dropout_weights(lab: Lab, keys: int, p: float, draws: int) -> ExperimentResult:
    q, k = lab.draw(1, 4), lab.draw(keys, 4)
    eye = torch.eye(keys, dtype=torch.float64)
    q, k, eye = (x.expand(draws, -1, -1) for x in (q, k, eye))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        out, returned = lab.attention(q, k, eye, dropout_p=p, return_weights=True)
        fused = lab.attention(q, k, eye, dropout_p=p)
    sums, fused_sums = out.sum(-1).flatten(), fused.sum(-1).flatten()
    weights = lab.attention(q[:1], k[:1], eye[:1], return_weights=True)[1]
    predicted = float((p / (1 - p) * weights.square().sum()) ** 0.5)
    mean, fused_mean = confidence_interval(sums), confidence_interval(fused_sums)
    slack = 4 * predicted / draws**0.5
    return ExperimentResult(
        {
            "row sums after dropout, mean": mean,
            "row sums after dropout, s.d.": float(sums.std()),
            "√(p/(1−p) Σw²)": predicted,
            "returned weights: |sum − 1|": max_diff(returned.sum(-1), torch.ones(draws, 1, dtype=torch.float64)),
        },
        (
            at_least("rows after dropout do not sum to 1: s.d.", float(sums.std()), 0.2 * predicted),
            near("the s.d. is √(p/(1−p) Σw²)", float(sums.std()) / predicted, 1.0, 0.1),
            near("on average rows sum to 1", mean["value"], 1.0, slack),
            near("on average rows of the fused path sum to 1", fused_mean["value"], 1.0, slack),
            near("the s.d. of the fused path is the same", float(fused_sums.std()) / predicted, 1.0, 0.1),
            at_most("returned weights are before dropout", max_diff(returned, weights.expand_as(returned)), 1e-12),
        ),
        (Histogram("row sums after dropout", "sum of a row", "draws", {f"p = {p:g}": sums.tolist()}),),
    )


CLAIMS = (
    Claim(
        "feed-forward",
        FAMILY,
        "The feed-forward network is position-wise, the same at each position: two 1×1 convolutions. It adds "
        "non-linear functions of one token: a layer without it does not learn XOR of a token's bits.",
        "holds-if",
        "XOR is asked of one token without a norm, where the rest of the layer is linear; a layer norm can do it, too",
        feed_forward,
        (
            Knob("dim", 6, "model dim", (1, 256)),
            Knob("mlp_dim", 16, "hidden dimension", (1, 1024)),
            Knob("tokens", 5, "tokens", (1, 256)),
            Knob("steps", 120, "training steps for XOR", (0, 10_000)),
            Knob("seeds", 2, "random starts; the best counts", (1, 20)),
        ),
        ("linear-feed-forward", "mixing-feed-forward", "feed-forward-by-position"),
        "Without the network a token's bits are only combined linearly.",
        cost="seconds",
    ),
    Claim(
        "residual-norm",
        FAMILY,
        "Deep stacks need residual connections and norms (pre- or post-norm): without residuals the gradient at the "
        "input vanishes and tokens become identical, without norm it explodes, without both it vanishes.",
        "holds-if",
        "the stack is deep",
        residual_norm,
        (
            Knob("depth", 64, "layers", (1, 128)),
            Knob("dim", 32, "model dim", (4, 128), step=4),
            Knob("tokens", 12, "tokens", (2, 128)),
            Knob("seeds", 3, "random starts", (1, 20), long=10),
        ),
        ("itself", "argmax"),
        "Without residual connections, tokens collapse into one within a few layers.",
        cost="seconds",
    ),
    Claim(
        "dropout-weights",
        FAMILY,
        "After attention dropout rows no longer sum to 1, only on average; returned weights are before dropout.",
        "holds",
        "",
        dropout_weights,
        (
            Knob("keys", 8, "keys", (1, 128)),
            Knob("p", 0.1, "dropout", (0.01, 0.99)),
            Knob("draws", 4000, "draws", (100, 100_000)),
        ),
        ("dropout-renormalized", "dropout-unscaled", "dropout-in-weights", "not-normalized"),
        "Row sums vary around 1.",
    ),
)
