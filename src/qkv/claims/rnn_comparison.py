"""Claims about transformers compared with RNNs and MLPs: gradient paths, parameters, sequential steps."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from qkv._figures import Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, Real, at_least, at_most, equal, near
from qkv.claims.experiment import Lab, init_xavier, max_diff, mean_and_range
from qkv.models import (
    GPT,
    MLP,
    RNN,
    Encoder,
    EncoderConfig,
    GPTConfig,
    MLPConfig,
    RNNConfig,
    RNNSeq2Seq,
    RNNSeq2SeqConfig,
)
from qkv.nn import DenseSynthesizer, MultiHeadAttention

FAMILY = "the transformer"
SIDES = (8, 16, 24, 32)  # an MLP reads images: its length is side²


def path_length(lab: Lab, dim: int, longest: int, seeds: int) -> ExperimentResult:
    lengths = [n for n in (16, 32, 64, 128, 256, 512) if n <= longest]
    models = gradient_models(dim)
    curves: dict[str, list[list[float]]] = {name: [] for name in models}
    weights = []
    with lab.inside_layers():
        for start in range(seeds):
            x = lab.draw(1, lengths[-1], dim)
            for offset, (name, make) in enumerate(models.items()):
                lab.progress(f"{name}, start {start + 1} of {seeds}")
                model = lab.build(make, 10 * start + offset)
                inputs = [end_with_first(x[:, :n]) if name == SHARP else x[:, :n] for n in lengths]
                curves[name].append([last_to_first_gradient(model, tokens) for tokens in inputs])
                if name == SHARP:
                    weights.append(weight_on_first(lab, model, inputs[-1]))
    factors = {
        name: mean_and_range([math.exp(log_slope(lengths, curve)) for curve in curves[name]])
        for name in ("RNN", "LSTM", REPAIRED)
    }
    powers = {
        name: mean_and_range([log_slope([math.log(n) for n in lengths], curve) for curve in curves[name]])
        for name in TRANSFORMERS
    }
    last = {name: mean_and_range([curve[-1] for curve in found]) for name, found in curves.items()}
    weight = mean_and_range(weights)
    return ExperimentResult(
        {
            **{f"{name}: gradient at n = {lengths[-1]}": value for name, value in last.items()},
            **{f"{name}: exponent of n": value for name, value in powers.items()},
            **{f"{name}: factor a step": value for name, value in factors.items()},
            f"{SHARP}: weight on the first token at n = {lengths[-1]}": weight,
        },
        (
            at_most("RNN: falls exponentially, factor a step", factors["RNN"]["high"], 0.9),
            at_most("LSTM, forget gates near ½: falls exponentially, factor a step", factors["LSTM"]["high"], 0.9),
            at_least("LSTM, forget gates near 1: hardly falls, factor a step", factors[REPAIRED]["low"], 0.97),
            near("uniform attention: falls as 1/n, exponent", powers[UNIFORM]["value"], -1.0, 0.3),
            near("at initialization: falls about as 1/n, exponent", powers[INITIAL]["value"], -1.0, 0.5),
            at_least("at initialization: gradient at the longest", last[INITIAL]["low"], 1e-4),
            near("a sharply attending head: level, exponent", powers[SHARP]["value"], 0.0, 0.2),
            at_least("the sharp head attends to the first token, weight", weight["low"], 0.3, "control"),
            at_least(
                "a forget bias of 5 repairs the LSTM, by a factor of",
                (last[REPAIRED]["value"] + 1e-300) / (last["LSTM"]["value"] + 1e-300),
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
                {name: [max(c, 1e-180) for c in found[0]] for name, found in curves.items()},
                logx=True,
                logy=True,
                roles={"RNN": "wrong", "LSTM": "key", REPAIRED: "other", INITIAL: "query", SHARP: "output"},
            ),
        ),
        caption=f"RNN: a factor of {factors['RNN']['value']:.2g} a step; LSTM: {factors['LSTM']['value']:.2g}, with a "
        f"forget bias of 5 {factors[REPAIRED]['value']:.3g}. Transformer: n to the power of "
        f"{powers[UNIFORM]['value']:.2f} with uniform attention, {powers[INITIAL]['value']:.2f} at initialization, "
        f"{powers[SHARP]['value']:z.2f} through a head with a weight of {weight['value']:.2g} on the first token.",
    )


REPAIRED = "LSTM, forget bias 5"
INITIAL, UNIFORM, SHARP = "transformer at initialization", "transformer, uniform", "transformer, sharp head"
TRANSFORMERS = (INITIAL, UNIFORM, SHARP)


def gradient_models(dim: int) -> dict[str, Callable[[], nn.Module]]:
    """The models that are compared: recurrent ones, and a transformer with three kinds of attention."""

    def lstm(bias: float = 0.0) -> nn.LSTM:
        layer = nn.LSTM(dim, dim, batch_first=True)
        with torch.no_grad():
            layer.get_parameter("bias_hh_l0")[dim : 2 * dim] += bias  # the bias of the forget gate
        return layer

    def transformer(heads: int = 4, factor: float | None = None) -> nn.Module:
        """Queries and keys are `factor` times the token; None leaves them random."""
        model = init_xavier(Encoder(EncoderConfig(features=dim, dim=dim, layers=2, heads=heads, position="none")))
        for module in model.modules():
            if isinstance(module, MultiHeadAttention) and factor is not None:
                for projection in (module.to_q, module.to_k):
                    assert projection is not None
                    nn.init.zeros_(projection.bias)
                    projection.weight.data = factor * torch.eye(dim)
        return model

    return {
        "RNN": lambda: nn.RNN(dim, dim, batch_first=True),
        "LSTM": lstm,
        REPAIRED: lambda: lstm(5.0),
        INITIAL: transformer,
        UNIFORM: lambda: transformer(factor=0.0),
        SHARP: lambda: transformer(heads=1, factor=3.0),  # scores are 9 q·k/√dim: equal tokens find each other
    }


def end_with_first(x: Tensor) -> Tensor:
    """The same tokens, the last one replaced by a copy of the first: what a sharp head looks for."""
    return torch.cat((x[:, :-1], x[:, :1]), 1)


def weight_on_first(lab: Lab, model: nn.Module, x: Tensor) -> float:
    """The weight that the last query of the first layer gives to the first token."""
    found = []

    def recording(q: Tensor, k: Tensor, v: Tensor, *args, **options):
        weights = lab.attention(q, k, v, *args, **{**options, "return_weights": True})[1]
        found.append(float(weights[..., -1, 0].mean()))
        return lab.attention(q, k, v, *args, **options)

    with lab.inside_layers(recording), torch.no_grad():
        model(x)
    return found[0]


def last_to_first_gradient(model: nn.Module, x: Tensor) -> float:
    """The norm of the gradient of the last output (in one direction) with respect to the first input."""
    x = x.detach().requires_grad_()
    out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    last = out[0, -1]
    direction = torch.randn(last.shape, generator=torch.Generator().manual_seed(0), dtype=last.dtype)
    (found,) = torch.autograd.grad(last @ direction, x)
    return float(found[0, 0].norm())


def log_slope(x: Sequence[Real], y: Sequence[float]) -> float:
    """The least-squares slope of log y over x, without values that have underflowed."""
    kept = [(a, math.log(b)) for a, b in zip(x, y, strict=True) if b > 1e-250]
    if len(kept) < 2:
        return -math.inf
    xs, ys = (torch.tensor(side, dtype=torch.float64) for side in zip(*kept, strict=True))
    return float(((xs - xs.mean()) * (ys - ys.mean())).sum() / (xs - xs.mean()).square().sum())


def versus_rnn_mlp(lab: Lab, dim: int) -> ExperimentResult:
    position = "rope" if lab.component is None else lab.component
    lengths = [side * side for side in SIDES]

    def gpt(length: int, **options) -> int:
        config = {"position": position, **options}
        return GPT(GPTConfig(vocab_size=16, max_length=length, dim=dim, layers=1, heads=2, **config)).num_parameters

    sizes = {
        "transformer": [gpt(n) for n in lengths],
        "with a learned table": [gpt(n, position="learned") for n in lengths],
        "dense synthesizer": [gpt(n, position="none", score=DenseSynthesizer(n)) for n in lengths],
        "RNN": [
            RNN(RNNConfig(vocab_size=16, dim=dim, hidden_size=dim, layers=1, cell="rnn")).num_parameters
            for _ in lengths
        ],
        "MLP": [MLP(MLPConfig(image_size=s, channels=1, hidden_sizes=(dim,))).num_parameters for s in SIDES],
    }
    steps = sequential_steps(lab, dim)
    cells = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
    matrices = {name: count_matrices(cell, dim) for name, cell in cells.items()}
    attending_rnn = lab.build(lambda: RNNSeq2Seq(RNNSeq2SeqConfig(vocab_size=9, dim=8, hidden_size=8, dropout=0.0)))
    attending_output = attending_rnn(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]))

    def growth(name: str) -> float:
        return sizes[name][-1] / sizes[name][0]

    return ExperimentResult(
        {
            **{f"{name}: parameters at n = {lengths[0]}": found[0] for name, found in sizes.items()},
            **{f"{name}: parameters at n = {lengths[-1]}": found[-1] for name, found in sizes.items()},
            "RNN: sequential steps, n = 32": steps["RNN"][-1],
            "transformer: the same": steps["transformer"][-1],
            "weight matrices of a simple RNN layer": matrices["RNN"],
            "weight matrices of a GRU layer, two gates and candidate": matrices["GRU"],
            "weight matrices of an LSTM layer, three gates and candidate": matrices["LSTM"],
        },
        (
            near("transformer: parameters do not grow with n", growth("transformer"), 1.0, 0.0),
            near("RNN: parameters do not grow with n", growth("RNN"), 1.0, 0.0),
            at_least("MLP: parameters grow with n", growth("MLP"), 5.0),
            near(
                "transformer with a learned table: parameters do not grow with n",
                growth("with a learned table"),
                1.0,
                0.0,
                "beyond",
            ),
            near(
                "transformer with a dense synthesizer: parameters do not grow with n",
                growth("dense synthesizer"),
                1.0,
                0.0,
                "beyond",
            ),
            near("RNN: sequential steps grow with n", steps["RNN"][-1] / steps["RNN"][0], 4.0, 1.0),
            near(
                "transformer: sequential steps do not grow with n",
                steps["transformer"][-1] / steps["transformer"][0],
                1.0,
                0.0,
            ),
            near("a simple RNN has two weight matrices, input and recurrent", matrices["RNN"], 2, 0),
            near("an LSTM has two for each of its three gates and the candidate", matrices["LSTM"], 8, 0),
            equal("the loop whose steps were counted is the library's RNN", steps["difference"][0], "control"),
            at_most("an RNN can use attention: shape off by", abs(attending_output.shape[1] - 2), 0),
        ),
        (
            Lines("parameters", "length n", "parameters", lengths, sizes, logx=True, logy=True),
            Lines(
                "sequential steps",
                "length n",
                "longest chain of operations",
                [8, 16, 32],
                {"RNN": steps["RNN"], "transformer": steps["transformer"]},
                roles={"RNN": "value", "transformer": "output"},
            ),
        ),
    )


def count_matrices(cell: Callable[[int, int], nn.RNNBase], dim: int) -> int:
    """The dim×dim weight matrices of one recurrent layer; PyTorch stacks those of all gates."""
    return sum(p.shape[0] // dim for p in cell(dim, dim).parameters() if p.ndim == 2)


def sequential_steps(lab: Lab, dim: int) -> dict[str, list[Real]]:
    """The longest chain of operations from input to last output in the autograd graph."""
    fused = lab.build(lambda: nn.RNN(dim, dim, batch_first=True))
    model = lab.build(lambda: GPT(GPTConfig(vocab_size=16, dim=dim, layers=1, heads=2, position="rope")))
    found: dict[str, list[Real]] = {"RNN": [], "transformer": [], "difference": []}
    for n in (8, 16, 32):
        x = lab.draw(1, n, dim).requires_grad_()
        state, out = x.new_zeros(1, dim), []
        for t in range(n):
            state = torch.tanh(
                x[:, t] @ fused.weight_ih_l0.mT + fused.bias_ih_l0 + state @ fused.weight_hh_l0.mT + fused.bias_hh_l0
            )
            out.append(state)
        found["difference"].append(max_diff(torch.stack(out, 1).detach(), fused(x)[0].detach()))
        found["RNN"].append(longest_chain(state))
        tokens = torch.zeros(1, n, dtype=torch.long)
        with lab.inside_layers():
            found["transformer"].append(longest_chain(model(tokens)))
    return found


def longest_chain(out: Tensor) -> int:
    """The depth of the autograd graph of a tensor."""
    depth: dict[object, int] = {}
    stack: list[tuple[object, bool]] = [(out.grad_fn, False)]
    while stack:
        node, seen = stack.pop()
        if node is None or node in depth:
            continue
        before = [following for following, _ in getattr(node, "next_functions", ()) if following is not None]
        if seen:
            depth[node] = 1 + max((depth[other] for other in before), default=0)
        else:
            stack.append((node, True))
            stack.extend((other, False) for other in before)
    return max(depth.values())


CLAIMS = (
    Claim(
        "path-length",
        FAMILY,
        "From last output to first input the gradient falls exponentially in a simple RNN with a usual start and in an "
        "LSTM whose forget gates are near ½, and hardly in one whose gates are near 1; in a transformer it falls as "
        "1/n with uniform attention, as at initialization, and stays level through a head that attends sharply.",
        "holds",
        "",
        path_length,
        (
            Knob("dim", 32, "dim of all models", (4, 128), step=4),
            Knob("longest", 256, "longest sequence", (64, 512)),
            Knob("seeds", 3, "random starts", (1, 20), long=10),
        ),
        ("itself", "uniform"),
        "Exponential in a simple RNN; 1/n with uniform attention; level through a sharp head.",
        cost="seconds",
    ),
    Claim(
        "versus-rnn-mlp",
        FAMILY,
        "A transformer's parameters do not grow with length and its steps run in parallel; an MLP's parameters grow, "
        "an RNN's steps are sequential.",
        "holds-if",
        "positions are not learned: a learned table and a dense synthesizer grow with length",
        versus_rnn_mlp,
        (Knob("dim", 16, "dim of all models", (4, 128), step=4),),
        ("learned-positions",),
        "Parameters and sequential steps of the library's own models against length.",
    ),
)
