"""How far gradients travel: over time, and over depth."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from qkv._figures import Lines
from qkv.claims.claim import Claim, Knob, Lab, Measured
from qkv.claims.predicates import Real, at_least, at_most, near
from qkv.models import Encoder, EncoderConfig
from qkv.nn import FeedForward, MultiHeadAttention

FAMILY = "the transformer"


def path_length(lab: Lab, width: int, longest: int) -> Measured:
    lengths = [n for n in (16, 32, 64, 128, 256, 512) if n <= longest]

    def lstm(bias: float = 0.0) -> nn.LSTM:
        layer = nn.LSTM(width, width, batch_first=True)
        with torch.no_grad():
            layer.get_parameter("bias_hh_l0")[width : 2 * width] += bias  # the forget gate's part
        return layer

    config = EncoderConfig(features=width, dim=width, layers=2, heads=4, position="none")
    models: dict[str, Callable[[], nn.Module]] = {
        "RNN": lambda: nn.RNN(width, width, batch_first=True),
        "LSTM": lstm,
        "LSTM, forget bias 5": lambda: lstm(5.0),
        "transformer": lambda: spread_out(Encoder(config)),
    }
    curves: dict[str, list[float]] = {}
    x = lab.draw(1, lengths[-1], width)
    with lab.inside_layers():
        for offset, (name, make) in enumerate(models.items()):
            lab.note(name)
            model = lab.build(make, offset)
            curves[name] = [first_to_last(model, x[:, :n]) for n in lengths]
    rnn, lstm_curve = (slope(lengths, curves[name]) for name in ("RNN", "LSTM"))
    power = slope([math.log(n) for n in lengths], curves["transformer"])
    return Measured(
        {
            **{f"{name}: gradient at n = {lengths[-1]}": curve[-1] for name, curve in curves.items()},
            "transformer: exponent of n": power,
            "RNN: factor a step": math.exp(rnn),
            "LSTM: factor a step": math.exp(lstm_curve),
        },
        (
            at_most("RNN: falls exponentially, factor a step", math.exp(rnn), 0.9),
            at_most("LSTM: falls exponentially, factor a step", math.exp(lstm_curve), 0.9),
            near("transformer: falls as a power of n, about 1/n", power, -1.0, 0.5),
            at_least("transformer: gradient at the longest", curves["transformer"][-1], 1e-4),
            at_least(
                "a forget bias of 5 mends the LSTM, by a factor of",
                (curves["LSTM, forget bias 5"][-1] + 1e-300) / (curves["LSTM"][-1] + 1e-300),
                1e10,
                "control",
            ),
        ),
        (
            Lines(
                "gradient from the last output to the first input",
                "length n",
                "‖∂ out_n / ∂ x_1‖",
                lengths,
                {name: [max(c, 1e-180) for c in curve] for name, curve in curves.items()},
                logx=True,
                logy=True,
                roles={"RNN": "wrong", "LSTM": "key", "LSTM, forget bias 5": "other", "transformer": "query"},
            ),
        ),
    )


def spread_out(model: nn.Module) -> nn.Module:
    """Weights of the size that keeps variances, as other libraries start with."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    return model


def first_to_last(model: nn.Module, x: Tensor) -> float:
    """The norm of the gradient of the last output (in one direction) with respect to the first input."""
    x = x.detach().requires_grad_()
    out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    last = out[0, -1]
    direction = torch.randn(last.shape, generator=torch.Generator().manual_seed(0), dtype=last.dtype)
    (found,) = torch.autograd.grad(last @ direction, x)
    return float(found[0, 0].norm())


def slope(x: Sequence[Real], y: Sequence[float]) -> float:
    """The least-squares slope of log y over x; values that have underflowed are left out."""
    kept = [(a, math.log(b)) for a, b in zip(x, y, strict=True) if b > 1e-250]
    if len(kept) < 2:
        return -math.inf
    xs, ys = (torch.tensor(side, dtype=torch.float64) for side in zip(*kept, strict=True))
    return float(((xs - xs.mean()) * (ys - ys.mean())).sum() / (xs - xs.mean()).square().sum())


class Layer(nn.Module):
    """One layer of a stack, with or without its way around and its norm."""

    def __init__(self, width: int, *, residual: bool, norm: str) -> None:
        super().__init__()
        self.parts = nn.ModuleList((MultiHeadAttention(width, 4), FeedForward(width, 2 * width)))
        self.residual, self.norm = residual, norm

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            read = nn.functional.layer_norm(x, x.shape[-1:]) if self.norm == "pre" else x
            made = part(read)
            x = x + made if self.residual else made
            x = nn.functional.layer_norm(x, x.shape[-1:]) if self.norm == "post" else x
        return x


STACKS = {
    "both, pre-norm": {"residual": True, "norm": "pre"},
    "both, post-norm": {"residual": True, "norm": "post"},
    "no norm": {"residual": True, "norm": ""},
    "no residual": {"residual": False, "norm": "pre"},
    "neither": {"residual": False, "norm": ""},
}


def residual_norm(lab: Lab, depth: int, width: int, tokens: int) -> Measured:
    gradients, diversity, deviations, means = {}, {}, {}, {}
    start = lab.draw(1, tokens, width)
    with lab.inside_layers():
        for offset, (name, options) in enumerate(STACKS.items()):
            lab.note(name)
            layers = lab.build(
                lambda options=options: nn.ModuleList(Layer(width, **options) for _ in range(depth)), offset
            )
            x = start.clone().requires_grad_()
            y, diversity[name], deviations[name], means[name] = x, [], [], []
            for layer in layers:
                y = layer(y)
                diversity[name].append(token_diversity(y.detach()))
                deviations[name].append(float(y.detach().std()))
                means[name].append(float(y.detach().mean()))
            (found,) = torch.autograd.grad((y[0, -1] @ lab.draw(width)), x)
            gradients[name] = float(found.norm())
    early = min(4, depth) - 1
    pre = "both, pre-norm"
    return Measured(
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
            at_most("without residual tokens become alike in 4 layers", diversity["no residual"][early], 1e-6),
            at_least("with residual they stay apart", diversity[pre][-1], 0.2),
        ),
        (
            Lines(
                "how different tokens are",
                "layer",
                "spread around their mean",
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
    """How far tokens stand from their mean, relative to their size: 0 where all are alike."""
    return float((x - x.mean(1, keepdim=True)).norm() / x.norm().clamp(min=1e-300))


CLAIMS = (
    Claim(
        "path-length",
        FAMILY,
        "From last output to first input the gradient falls exponentially in an RNN, as a power of n in a transformer.",
        "holds",
        "",
        path_length,
        (
            Knob("width", 32, "width of all models", (4, 128), step=4),
            Knob("longest", 256, "longest sequence", (64, 512)),
        ),
        ("itself",),
        "Exponential against polynomial: not level, but never out of reach.",
        cost="seconds",
    ),
    Claim(
        "residual-norm",
        FAMILY,
        "Deep stacks need both: without norm gradients explode, without residual tokens become alike, without both "
        "gradients vanish.",
        "holds-if",
        "it is measured by the diversity of tokens too: by its gradient alone the stack without residual is not told",
        residual_norm,
        (
            Knob("depth", 64, "layers", (1, 128)),
            Knob("width", 32, "width", (4, 128), step=4),
            Knob("tokens", 12, "tokens", (2, 128)),
        ),
        ("itself", "argmax"),
        "Without a way around, tokens collapse into one within a few layers.",
        cost="seconds",
    ),
)
