"""Claims about the transformer block: feed-forward network, residual connections and norms, attention dropout."""

import math

import torch
from torch import Tensor, nn

from qkv._figures import Bars, Histogram, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, equal, near
from qkv.claims.experiment import Lab, confidence_interval, max_diff
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
    return ExperimentResult(
        {
            "network − 1×1 convolution": max_diff(out, convolved),
            "all tokens − one by one": max_diff(out, one_by_one),
            f"XOR of a token's bits, with it (best of {seeds})": best["with"],
            f"XOR of a token's bits, without (best of {seeds})": best["without"],
        },
        (
            equal("equals two 1×1 convolutions", max_diff(out, convolved)),
            equal("each token by itself: the same network at each position", max_diff(out, one_by_one)),
            equal("commutes with a permutation", max_diff(permuted, out[:, order])),
            at_least("XOR of a token's bits is learned with it", best["with"], 1.0),
            at_most("and not without", best["without"], 0.76),
        ),
        (
            Bars(
                "XOR of two bits of one token",
                "",
                "accuracy",
                ["with feed-forward", "without"],
                {"accuracy": [best["with"], best["without"]]},
                level=(0.75, "best of any linear map"),
            ),
        ),
    )


def as_convolution(network: FeedForward, x: Tensor) -> Tensor:
    """The same weights as convolutions with kernel 1 over the tokens."""
    first, last = network.to_hidden, network.to_out
    mlp_dim = nn.functional.conv1d(x.mT, first.weight[..., None], first.bias)
    return nn.functional.conv1d(nn.functional.gelu(mlp_dim), last.weight[..., None], last.bias).mT


def train_xor(lab: Lab, kind: type[FeedForward] | None, mlp_dim: int, steps: int, start: int) -> float:
    """Train on the XOR of a token's two bits; returns the accuracy.

    Attention of a single token to itself is a linear map, so without the network the whole layer is linear.
    """
    tokens = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)[:, None] * 2 - 1
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


STACKS = {
    "both, pre-norm": {"residual": True, "norm": "pre"},
    "both, post-norm": {"residual": True, "norm": "post"},
    "no norm": {"residual": True, "norm": ""},
    "no residual": {"residual": False, "norm": "pre"},
    "neither": {"residual": False, "norm": ""},
}


def residual_norm(lab: Lab, depth: int, dim: int, tokens: int) -> ExperimentResult:
    gradients, diversity, deviations, means = {}, {}, {}, {}
    start = lab.draw(1, tokens, dim)
    with lab.inside_layers():
        for offset, (name, options) in enumerate(STACKS.items()):
            lab.progress(name)
            layers = lab.build(
                lambda options=options: nn.ModuleList(StackLayer(dim, **options) for _ in range(depth)), offset
            )
            x = start.clone().requires_grad_()
            y, diversity[name], deviations[name], means[name] = x, [], [], []
            for layer in layers:
                y = layer(y)
                diversity[name].append(token_diversity(y.detach()))
                deviations[name].append(float(y.detach().std()))
                means[name].append(float(y.detach().mean()))
            (found,) = torch.autograd.grad((y[0, -1] @ lab.draw(dim)), x)
            gradients[name] = float(found.norm())
    early = min(4, depth) - 1
    pre = "both, pre-norm"
    return ExperimentResult(
        {
            **{f"{name}: gradient at the input": value for name, value in gradients.items()},
            f"no residual: token diversity after {early + 1} layers": diversity["no residual"][early],
            f"{pre}: token diversity after {early + 1} layers": diversity[pre][early],
            f"{pre}: token diversity after {depth} layers": diversity[pre][-1],
            **{f"{name}: s.d. of activations after {depth} layers": values[-1] for name, values in deviations.items()},
            **{f"{name}: mean of activations after {depth} layers": values[-1] for name, values in means.items()},
        },
        (
            at_least("without norm the gradient explodes", gradients["no norm"], 1e4),
            at_most("without either it vanishes", gradients["neither"], 1e-10),
            near("with both, pre-norm, it is of ordinary size: log10", math.log10(gradients[pre]), 0.0, 3),
            at_most("without residual the gradient tells", gradients["no residual"], 1e-10, "beyond"),
            at_most("without residual tokens become identical in 4 layers", diversity["no residual"][early], 1e-6),
            at_least("with residual they stay different", diversity[pre][-1], 0.2),
        ),
        (
            Lines(
                "diversity of tokens",
                "layer",
                "relative distance from their mean",
                list(range(1, depth + 1)),
                {name: [max(v, 1e-17) for v in diversity[name]] for name in STACKS},
                logy=True,
                roles=_ROLES,
            ),
            Lines(
                "size of activations",
                "layer",
                "s.d.",
                list(range(1, depth + 1)),
                {name: [max(v, 1e-80) for v in deviations[name]] for name in STACKS},
                logy=True,
                roles=_ROLES,
            ),
        ),
    )


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
            near("on average they do", mean["value"], 1.0, slack),
            near("the fused path too", fused_mean["value"], 1.0, slack),
            near("its s.d. too", float(fused_sums.std()) / predicted, 1.0, 0.1),
            at_most("returned weights are before dropout", max_diff(returned, weights.expand_as(returned)), 1e-12),
        ),
        (Histogram("row sums after dropout", "sum of a row", "draws", {f"p = {p:g}": sums.tolist()}),),
    )


CLAIMS = (
    Claim(
        "feed-forward",
        FAMILY,
        "The feed-forward network is position-wise, the same at each position: two 1×1 convolutions. It adds "
        "non-linear functions of one token.",
        "holds",
        "",
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
        "Deep stacks need both: without norm gradients explode, without residual tokens become identical, without both "
        "gradients vanish.",
        "holds-if",
        "the diversity of tokens is measured, too: its gradient alone does not reveal the stack without residual",
        residual_norm,
        (
            Knob("depth", 64, "layers", (1, 128)),
            Knob("dim", 32, "model dim", (4, 128), step=4),
            Knob("tokens", 12, "tokens", (2, 128)),
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
