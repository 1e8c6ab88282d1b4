"""Encoder and decoder: who sees whom; and what dropout does to weights."""

import torch
from torch import Tensor, nn

from qkv._figures import Histogram, Map
from qkv.claims.claim import Claim, Knob, Lab, Measured, gap, interval
from qkv.claims.influence import influence
from qkv.claims.predicates import at_least, at_most, near
from qkv.claims.streaming import on_scale
from qkv.models import Seq2Seq, Seq2SeqConfig

FAMILY = "the transformer"


class Given(nn.Module):
    """Stands where token vectors are looked up and hands out vectors that were made before."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, tokens: Tensor) -> Tensor:
        return self.vectors[None]


def encoder_decoder(lab: Lab, source: int, target: int, layers: int) -> Measured:
    config = Seq2SeqConfig(
        vocab_size=11, dim=16, heads=2, encoder_layers=layers, decoder_layers=layers, dropout=0.0, tie_embeddings=False
    )
    model = lab.build(lambda: Seq2Seq(config)).eval()
    texts = torch.zeros(1, source, dtype=torch.long), torch.zeros(1, target, dtype=torch.long)
    vectors = lab.draw(source, 16), lab.draw(target, 16)

    def encode(x: Tensor) -> Tensor:
        model.source_tokens = Given(x)
        return model.encode(texts[0])[0]

    def decode(x: Tensor) -> Tensor:
        model.source_tokens, model.target_tokens = Given(x[:source]), Given(x[source:])
        return model(*texts)[0]

    with lab.inside_layers():
        encoder = influence(encode, vectors[0])
        both = influence(decode, torch.cat(vectors))
    memory, own = both[:, :source], both[:, source:]
    past = own[torch.ones(target, target).tril().bool()]
    future = own[torch.ones(target, target).triu(1).bool()]
    return Measured(
        {
            "encoder: least influence of any token on any other": float(encoder.min()),
            "decoder: least influence of the past": float(past.min()),
            "decoder: least influence of the source": float(memory.min()),
            "decoder: largest influence of the future": float(future.max()),
        },
        (
            at_least("every source token reaches every encoder state", float(encoder.min()), 1e-12),
            at_least("the decoder sees its past", float(past.min()), 1e-12),
            at_least("the decoder sees the whole source", float(memory.min()), 1e-12),
            at_most("the decoder does not see its future", float(future.max()), 0.0),
        ),
        (
            Map("encoder", "source token", "encoder state", on_scale(encoder)),
            Map("decoder, of its own tokens", "target token", "output", on_scale(own)),
            Map("decoder, of the source", "source token", "output", on_scale(memory)),
        ),
    )


def dropout_weights(lab: Lab, keys: int, p: float, draws: int) -> Measured:
    q, k = lab.draw(1, 4), lab.draw(keys, 4)
    eye = torch.eye(keys, dtype=torch.float64)
    q, k, eye = (x.expand(draws, -1, -1) for x in (q, k, eye))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        out, returned = lab.attention(q, k, eye, dropout_p=p, return_weights=True)
        fused = lab.attention(q, k, eye, dropout_p=p)
    sums, fused_sums = out.sum(-1).flatten(), fused.sum(-1).flatten()
    kept = lab.attention(q[:1], k[:1], eye[:1], return_weights=True)[1]
    predicted = float((p / (1 - p) * kept.square().sum()) ** 0.5)
    mean, fused_mean = interval(sums), interval(fused_sums)
    slack = 4 * predicted / draws**0.5
    return Measured(
        {
            "row sums after dropout, mean": mean,
            "row sums after dropout, s.d.": float(sums.std()),
            "√(p/(1−p) Σw²)": predicted,
            "returned weights: |sum − 1|": gap(returned.sum(-1), torch.ones(draws, 1, dtype=torch.float64)),
        },
        (
            at_least("rows after dropout do not sum to 1: s.d.", float(sums.std()), 0.2 * predicted),
            near("the s.d. is √(p/(1−p) Σw²)", float(sums.std()) / predicted, 1.0, 0.1),
            near("on average they do", mean["value"], 1.0, slack),
            near("the fused path too", fused_mean["value"], 1.0, slack),
            near("its s.d. too", float(fused_sums.std()) / predicted, 1.0, 0.1),
            at_most("returned weights are before dropout", gap(returned, kept.expand_as(returned)), 1e-12),
        ),
        (Histogram("row sums after dropout", "sum of a row", "draws", {f"p = {p:g}": sums.tolist()}),),
    )


CLAIMS = (
    Claim(
        "encoder-decoder",
        FAMILY,
        "An encoder's state sees every token; a decoder's output sees its past and the whole source, never its future.",
        "holds",
        "",
        encoder_decoder,
        (
            Knob("source", 6, "source tokens", (1, 64)),
            Knob("target", 7, "target tokens", (2, 64)),
            Knob("layers", 2, "layers of each", (1, 16)),
        ),
        ("unmasked", "mask-after-softmax", "mask-one-late", "itself"),
        "Influence measured by gradients: full, triangular, full.",
    ),
    Claim(
        "dropout-weights",
        FAMILY,
        "After attention dropout rows no longer sum to 1, though on average they do; weights returned are before it.",
        "holds",
        "",
        dropout_weights,
        (
            Knob("keys", 8, "keys", (1, 128)),
            Knob("p", 0.1, "dropout", (0.01, 0.99)),
            Knob("draws", 4000, "draws", (100, 100_000)),
        ),
        ("dropout-renormalised", "dropout-unscaled", "dropout-in-weights", "not-normalised"),
        "Row sums scatter around 1.",
    ),
)
