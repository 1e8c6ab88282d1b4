"""Claims about the dense synthesizer, which does not compare queries with keys: associative recall."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Bars
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, near
from qkv.claims.experiment import Lab, mean_and_range, train_model
from qkv.nn import DenseSynthesizer, Dot, MultiHeadAttention, Score

FAMILY = "self-attention"


class RecallModel(nn.Module):
    """One attention layer over m key-value pairs and a last token that asks for the value of a key."""

    def __init__(self, score: Score, pairs: int, dim: int) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(pairs, dim), nn.Embedding(pairs, dim)
        self.positions, self.query_marker = nn.Embedding(pairs + 1, dim), nn.Parameter(torch.randn(dim))
        self.attention = MultiHeadAttention(dim, 1, score=score)
        self.read_out = nn.Linear(dim, pairs)

    def forward(self, keys: Tensor, values: Tensor, query_key: Tensor) -> Tensor:
        inputs = self.keys(keys) + self.values(values)
        x = torch.cat((inputs, (self.keys(query_key) + self.query_marker)[:, None]), 1)
        x = x + self.positions(torch.arange(x.shape[1]))
        return self.read_out(self.attention(x)[:, -1])


def recall_batch(
    generator: torch.Generator, count: int, pairs: int, kind: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys, values, the queried key, its value. kind: "distinct" values, "free" values, or a "fixed" order of keys."""

    def orders() -> Tensor:
        return torch.rand(count, pairs, generator=generator).argsort(1)

    keys = torch.arange(pairs).expand(count, -1) if kind == "fixed" else orders()
    values = torch.randint(0, pairs, (count, pairs), generator=generator) if kind == "free" else orders()
    query_key = torch.randint(0, pairs, (count,), generator=generator)
    answer = values[torch.arange(count), (keys == query_key[:, None]).int().argmax(1)]
    return keys, values, query_key, answer


def recall_accuracy(lab: Lab, score: Score, pairs: int, kind: str, steps: int, start: int) -> float:
    generator = torch.Generator().manual_seed(1000 * lab.seed + start)
    model = lab.build(lambda: RecallModel(score, pairs, 32), start, torch.float32)

    def loss(_: int) -> Tensor:
        *inputs, answer = recall_batch(generator, 96, pairs, kind)
        return F.cross_entropy(model(*inputs), answer)

    train_model(model, loss, steps, lr=1e-2)
    *inputs, answer = recall_batch(generator, 2000, pairs, kind)
    with torch.no_grad():
        return float((model(*inputs).argmax(-1) == answer).double().mean())


def most_frequent_share(pairs: int) -> float:
    """E[largest count]/m of m values drawn freely out of m: the best guess from the values without the keys."""
    total = 0.0
    for counts in partitions(pairs, pairs):
        ways = math.factorial(pairs)
        for count in counts:
            ways //= math.factorial(count)
        arrangements = math.factorial(pairs)
        for _, same in itertools.groupby(counts):
            arrangements //= math.factorial(len(list(same)))
        total += ways * arrangements * max(counts) / pairs
    return total / pairs**pairs


def partitions(total: int, parts: int, most: int | None = None) -> list[list[int]]:
    """All ways to write `total` as `parts` non-increasing numbers, zeros included."""
    most = total if most is None else most
    if parts == 0:
        return [[]] if total == 0 else []
    found = []
    for first in range(min(total, most), -1, -1):
        found += [[first, *rest] for rest in partitions(total - first, parts - 1, first)]
    return found


def synthesizer(lab: Lab, pairs: int, steps: int, seeds: int) -> ExperimentResult:
    cases = {
        "dot, random order": (Dot(), "distinct"),
        "dense, random order": (DenseSynthesizer(pairs + 1), "distinct"),
        "dense, free values": (DenseSynthesizer(pairs + 1), "free"),
        "dense, fixed order": (DenseSynthesizer(pairs + 1), "fixed"),
    }
    found = {}
    with lab.inside_layers():
        for name, (score, kind) in cases.items():
            lab.progress(name)
            found[name] = mean_and_range([recall_accuracy(lab, score, pairs, kind, steps, s) for s in range(seeds)])
    guess = most_frequent_share(pairs)
    return ExperimentResult(
        {**found, "1/m": 1 / pairs, "best guess with free values": guess},
        (
            at_least("dot attention looks the value up", found["dot, random order"]["low"], 0.95),
            near("a dense synthesizer stays at 1/m", found["dense, random order"]["value"], 1 / pairs, 0.04),
            at_most(
                "with free values a dense synthesizer does no better than the best guess",
                found["dense, free values"]["high"],
                guess + 0.04,
            ),
            at_most(
                "with a fixed order of keys a dense synthesizer stays at 1/m too",
                found["dense, fixed order"]["value"],
                1 / pairs + 0.04,
                "beyond",
            ),
        ),
        (
            Bars(
                f"looking up one of {pairs} values",
                "",
                "accuracy",
                list(found),
                {"accuracy": [f["value"] for f in found.values()]},
                level=(1 / pairs, "1/m"),
            ),
        ),
    )


CLAIMS = (
    Claim(
        "synthesizer",
        FAMILY,
        "One layer that compares queries with keys solves associative recall; one that predicts weights from the query "
        "alone stays at 1/m.",
        "holds-if",
        "the order of keys is random and values are distinct: with a fixed order the synthesizer solves it too",
        synthesizer,
        (
            Knob("pairs", 8, "pairs of key and value", (2, 24)),
            Knob("steps", 400, "training steps", (1, 50_000), long=3000),
            Knob("seeds", 2, "random starts", (1, 20), long=5),
        ),
        ("uniform", "itself"),
        "Dot attention finds the key; the dense synthesizer only where the key always stands in the same place.",
        cost="minutes",
        overturn={"seeds": 1},
    ),
)
