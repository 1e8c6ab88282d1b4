"""Transformer, RNN and MLP: parameters and sequential steps against length."""

import torch
from torch import Tensor, nn

from qkv._figures import Lines
from qkv.claims.claim import Claim, Knob, Lab, Measured, gap
from qkv.claims.predicates import Real, at_least, at_most, equal, near
from qkv.models import GPT, MLP, RNN, GPTConfig, MLPConfig, RNNConfig, RNNSeq2Seq, RNNSeq2SeqConfig
from qkv.nn import DenseSynthesizer

FAMILY = "the transformer"
SIDES = (8, 16, 24, 32)  # an MLP reads pictures: its length is side²


def versus(lab: Lab, width: int) -> Measured:
    position = "rope" if lab.part is None else lab.part
    lengths = [side * side for side in SIDES]

    def gpt(length: int, **options) -> int:
        config = {"position": position, **options}
        return GPT(GPTConfig(vocab_size=16, max_length=length, dim=width, layers=1, heads=2, **config)).num_parameters

    sizes = {
        "transformer": [gpt(n) for n in lengths],
        "with a learned table": [gpt(n, position="learned") for n in lengths],
        "dense synthesizer": [gpt(n, position="none", score=DenseSynthesizer(n)) for n in lengths],
        "RNN": [
            RNN(RNNConfig(vocab_size=16, dim=width, hidden_size=width, layers=1, cell="rnn")).num_parameters
            for _ in lengths
        ],
        "MLP": [MLP(MLPConfig(image_size=s, channels=1, hidden_sizes=(width,))).num_parameters for s in SIDES],
    }
    steps = sequential_steps(lab, width)
    matrices = [p for p in nn.RNN(width, width).parameters() if p.ndim == 2]
    attending = lab.build(lambda: RNNSeq2Seq(RNNSeq2SeqConfig(vocab_size=9, dim=8, hidden_size=8, dropout=0.0)))
    carried = attending(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]))

    def growth(name: str) -> float:
        return sizes[name][-1] / sizes[name][0]

    return Measured(
        {
            **{f"{name}: parameters at n = {lengths[0]}": found[0] for name, found in sizes.items()},
            **{f"{name}: parameters at n = {lengths[-1]}": found[-1] for name, found in sizes.items()},
            "RNN: steps that wait for one another, n = 32": steps["RNN"][-1],
            "transformer: the same": steps["transformer"][-1],
            "weight matrices of an RNN": len(matrices),
        },
        (
            near("transformer: parameters do not grow with n", growth("transformer"), 1.0, 0.0),
            near("RNN: nor do they", growth("RNN"), 1.0, 0.0),
            at_least("MLP: they do", growth("MLP"), 5.0),
            near("with a learned table they do not grow either", growth("with a learned table"), 1.0, 0.0, "beyond"),
            near("with a dense synthesizer they do not", growth("dense synthesizer"), 1.0, 0.0, "beyond"),
            near("RNN: sequential steps grow with n", steps["RNN"][-1] / steps["RNN"][0], 4.0, 1.0),
            near("transformer: they do not", steps["transformer"][-1] / steps["transformer"][0], 1.0, 0.0),
            near("an RNN has two weight matrices, input and recurrent", len(matrices), 2, 0),
            equal("the loop whose steps were counted is the library's RNN", steps["difference"][0], "control"),
            at_most("an RNN can carry attention: shape off by", abs(carried.shape[1] - 2), 0),
        ),
        (
            Lines("parameters", "length n", "parameters", lengths, sizes, logx=True, logy=True),
            Lines(
                "steps that wait for one another",
                "length n",
                "longest chain of operations",
                [8, 16, 32],
                {"RNN": steps["RNN"], "transformer": steps["transformer"]},
                roles={"RNN": "value", "transformer": "output"},
            ),
        ),
    )


def sequential_steps(lab: Lab, width: int) -> dict[str, list[Real]]:
    """The longest chain of operations from input to last output, in the graph that autograd records."""
    fused = lab.build(lambda: nn.RNN(width, width, batch_first=True))
    model = lab.build(lambda: GPT(GPTConfig(vocab_size=16, dim=width, layers=1, heads=2, position="rope")))
    found: dict[str, list[Real]] = {"RNN": [], "transformer": [], "difference": []}
    for n in (8, 16, 32):
        x = lab.draw(1, n, width).requires_grad_()
        state, out = x.new_zeros(1, width), []
        for t in range(n):
            state = torch.tanh(
                x[:, t] @ fused.weight_ih_l0.mT + fused.bias_ih_l0 + state @ fused.weight_hh_l0.mT + fused.bias_hh_l0
            )
            out.append(state)
        found["difference"].append(gap(torch.stack(out, 1).detach(), fused(x)[0].detach()))
        found["RNN"].append(longest_chain(state))
        tokens = torch.zeros(1, n, dtype=torch.long)
        with lab.inside_layers():
            found["transformer"].append(longest_chain(model(tokens)))
    return found


def longest_chain(out: Tensor) -> int:
    """The depth of the recorded graph behind a tensor."""
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
        "versus-rnn-mlp",
        FAMILY,
        "A transformer's parameters do not grow with length and its steps do not wait for one another; an MLP's "
        "parameters grow, an RNN's steps wait.",
        "holds-if",
        "positions are not learned one by one: a learned table and a dense synthesizer grow with length",
        versus,
        (Knob("width", 16, "width of all models", (4, 128), step=4),),
        ("learned-positions",),
        "Parameters and sequential steps of the library's own models against length.",
    ),
)
