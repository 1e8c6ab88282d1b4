"""The feed-forward network: position-wise, and what it is for."""

import torch
from torch import Tensor, nn

from qkv._figures import Bars
from qkv.claims.claim import Claim, Knob, Lab, Measured, gap
from qkv.claims.predicates import at_least, at_most, equal
from qkv.nn import FeedForward

FAMILY = "the transformer"


def feed_forward(lab: Lab, width: int, hidden: int, tokens: int, steps: int, seeds: int) -> Measured:
    kind = FeedForward if lab.part is None else lab.part
    network = lab.build(lambda: kind(width, hidden))
    x = lab.draw(2, tokens, width)
    out = network(x).detach()
    one_by_one = torch.cat([network(x[:, t : t + 1]) for t in range(tokens)], 1).detach()
    convolved = as_convolution(network, x).detach()
    order = torch.randperm(tokens, generator=lab.generator)
    permuted = network(x[:, order]).detach()
    best = {"with": 0.0, "without": 0.0}
    for start in range(seeds):
        for name in best:
            best[name] = max(best[name], learn_xor(lab, kind if name == "with" else None, hidden, steps, start))
    return Measured(
        {
            "network − 1×1 convolution": gap(out, convolved),
            "all tokens − one by one": gap(out, one_by_one),
            f"XOR of a token's bits, with it (best of {seeds})": best["with"],
            f"XOR of a token's bits, without (best of {seeds})": best["without"],
        },
        (
            equal("equals two 1×1 convolutions", gap(out, convolved)),
            equal("each token by itself: the same network at each position", gap(out, one_by_one)),
            equal("commutes with a permutation", gap(permuted, out[:, order])),
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
    """The same weights as convolutions of width 1 over the tokens."""
    first, last = network.to_hidden, network.to_out
    hidden = nn.functional.conv1d(x.mT, first.weight[..., None], first.bias)
    return nn.functional.conv1d(nn.functional.gelu(hidden), last.weight[..., None], last.bias).mT


def learn_xor(lab: Lab, kind: type[FeedForward] | None, hidden: int, steps: int, start: int) -> float:
    """The accuracy reached on the XOR of a token's two bits.

    A token by itself: attention to itself alone is a linear map, so without the network the whole layer is linear.
    """
    tokens = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)[:, None] * 2 - 1
    wanted = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    model = lab.build(lambda: XorLayer(kind, hidden), offset=start)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        loss = nn.functional.binary_cross_entropy_with_logits(model(tokens), wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return float(((model(tokens) > 0) == (wanted > 0.5)).double().mean())


class XorLayer(nn.Module):
    """Two bits to a width, attention's linear part, perhaps a feed-forward network, and a read-out."""

    def __init__(self, kind: type[FeedForward] | None, hidden: int) -> None:
        super().__init__()
        self.embed, self.mix = nn.Linear(2, 8), nn.Linear(8, 8)
        self.network = None if kind is None else kind(8, hidden)
        self.read = nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.mix(x)
        if self.network is not None:
            x = x + self.network(x)
        return self.read(x)[:, 0, 0]


CLAIMS = (
    Claim(
        "feed-forward",
        FAMILY,
        "The feed-forward network is position-wise, the same at each position: two 1×1 convolutions. It makes what a "
        "token holds non-linear.",
        "holds",
        "",
        feed_forward,
        (
            Knob("width", 6, "width", (1, 256)),
            Knob("hidden", 16, "hidden width", (1, 1024)),
            Knob("tokens", 5, "tokens", (1, 256)),
            Knob("steps", 120, "training steps for XOR", (0, 10_000)),
            Knob("seeds", 2, "starts; the best counts", (1, 20)),
        ),
        ("linear-feed-forward", "mixing-feed-forward", "feed-forward-by-place"),
        "Without the network a token's bits cannot be combined beyond a linear map.",
        cost="seconds",
    ),
)
