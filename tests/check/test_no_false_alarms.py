"""Legitimate designs that once raised an alarm, each family in three styles of code."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract, run
from qkv.check.checks.positions import alibi_slopes

pytestmark = pytest.mark.long  # minutes in all

TEXTBOOK = Contract(kind="causal", scale="head", softmax="keys")
CAUSAL = Contract(kind="causal")


def tril(t, s=None):
    return torch.ones(t, s or t, dtype=torch.bool).tril((s or t) - t)


# -- a function that is causal by default ------------------------------------------------------------------------------


def causal_flag(q, k, v, causal=True):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores.masked_fill(~tril(*scores.shape[-2:]), -torch.inf) if causal else scores).softmax(-1) @ v


def causal_always(query, key, value):
    scores = torch.einsum("bhtd,bhsd->bhts", query, key) * query.size(-1) ** -0.5
    scores = scores + torch.zeros_like(scores).masked_fill(~tril(*scores.shape[-2:]), -torch.inf)
    return torch.einsum("bhts,bhsd->bhtd", torch.softmax(scores, dim=-1), value)


def causal_kernel(q, k, v, is_causal=True):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=tril(q.shape[-2], k.shape[-2]) if is_causal else None)


# -- ALiBi with six heads ----------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """Causal multi-head self-attention; subclasses change the scores or what surrounds them."""

    heads = 4

    def __init__(self, dim=48):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def weights(self, scores):
        return scores.masked_fill(~tril(scores.shape[-1]), -torch.inf).softmax(-1)

    def scores(self, q, k):
        return q @ k.mT * q.shape[-1] ** -0.5

    def forward(self, x):
        q, k, v = (self.split(part(x)) for part in (self.q, self.k, self.v))
        return self.o((self.weights(self.scores(q, k)) @ v).transpose(1, 2).flatten(2))


class Alibi(Layer):
    heads, form = 6, "the paper's formula"

    def scores(self, q, k):
        slopes = torch.tensor(alibi_slopes(self.heads)[self.form], dtype=q.dtype)[:, None, None]
        positions = torch.arange(q.shape[2])
        return super().scores(q, k) - slopes * (positions[:, None] - positions).abs()


class AlibiOfTheAuthors(Alibi):
    form = "the authors' code and BLOOM"


class AlibiOfMpt(Alibi):
    form = "MPT"


# -- RoPE for longer contexts ------------------------------------------------------------------------------------------


class Yarn(Layer):
    temperature = 1.0

    def frequencies(self, half):
        base = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        ramp = torch.linspace(0, 1, half, dtype=torch.float64)
        return base * (1 - ramp) + base / 4 * ramp

    def rotate(self, x):
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * self.frequencies(half)
        cos, sin = (self.temperature * part.to(x) for part in (angles.cos(), angles.sin()))
        a, b = x.split(half, dim=-1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)

    def scores(self, q, k):
        return super().scores(self.rotate(q), self.rotate(k))


class YarnTemperature(Yarn):
    temperature = 0.1 * math.log(4) + 1


class NtkByParts(Yarn):
    def frequencies(self, half):
        base = 500_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        return torch.where(torch.arange(half) < half // 2, base, base / 8)


# -- weights that are zero by design -----------------------------------------------------------------------------------


class SquaredRelu(Layer):
    def weights(self, scores):
        return scores.relu().square() * tril(scores.shape[-1]) / scores.shape[-1] ** 0


class ReluOverCount(Layer):
    heads = 1

    def weights(self, scores):
        count = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)[:, None]
        return F.relu(scores - 0.5) * tril(scores.shape[-1]) / count


class SparseWeights(Layer):
    def weights(self, scores):
        soft = super().weights(scores)
        kept = (soft - 0.05 * soft.amax(-1, keepdim=True)).relu()
        return kept / kept.sum(-1, keepdim=True)


# -- biases that a softmax cancels -------------------------------------------------------------------------------------


class KeyBias(Layer):
    pass


class BiasPerHead(Layer):
    def __init__(self, dim=48):
        super().__init__(dim)
        self.offset_bias = nn.Parameter(torch.zeros(self.heads))

    def scores(self, q, k):
        return super().scores(q, k) + self.offset_bias[:, None, None]


class TalkingHeads(Layer):
    def __init__(self, dim=48):
        super().__init__(dim)
        self.mix = nn.Linear(self.heads, self.heads)

    def scores(self, q, k):
        return self.mix(super().scores(q, k).movedim(1, -1)).movedim(-1, 1)


# -- a second output ---------------------------------------------------------------------------------------------------


class Pair(Layer):
    def __init__(self, dim=48):
        super().__init__(dim)
        self.gate = nn.Linear(dim, 1)

    def forward(self, x):
        return super().forward(x), self.gate(x)


class Named(Pair):
    def forward(self, x):
        out, gate = super().forward(x)
        return {"output": out, "gate": gate}


@dataclass
class Result:
    output: torch.Tensor
    gate: torch.Tensor


class Typed(Pair):
    def forward(self, x):
        return Result(*super().forward(x))


# -- others ------------------------------------------------------------------------------------------------------------


class Shaw(Layer):
    """Relative positions in keys and in values (Shaw et al., 2018)."""

    def __init__(self, dim=48):
        super().__init__(dim)
        self.key_table, self.value_table = (nn.Parameter(torch.randn(9, dim // self.heads)) for _ in range(2))

    def forward(self, x):
        q, k, v = (self.split(part(x)) for part in (self.q, self.k, self.v))
        positions = torch.arange(x.shape[1])
        distances = (positions - positions[:, None]).clamp(-4, 4) + 4
        scores = self.scores(q, k) + torch.einsum("bhtd,tsd->bhts", q, self.key_table[distances]) * q.shape[-1] ** -0.5
        weights = self.weights(scores)
        out = weights @ v + torch.einsum("bhts,tsd->bhtd", weights, self.value_table[distances])
        return self.o(out.transpose(1, 2).flatten(2))


class GroupedInOneProduct(nn.Module):
    def __init__(self, dim=64, heads=4, kv_heads=2):
        super().__init__()
        self.kv, self.d = kv_heads, dim // heads
        self.q, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.k, self.v = (nn.Linear(dim, kv_heads * self.d) for _ in range(2))

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.kv, -1, self.d))
        k, v = (part(x).unflatten(-1, (self.kv, self.d)) for part in (self.k, self.v))
        scores = torch.einsum("btgrd,bsgd->bgrts", q, k) / self.d**0.5
        weights = scores.masked_fill(~tril(x.shape[1]), -torch.inf).softmax(-1)
        return self.o(torch.einsum("bgrts,bsgd->btgrd", weights, v).flatten(2))


class LocalWindow(Layer):
    def weights(self, scores):
        return super().weights(scores.masked_fill(~tril(scores.shape[-1]).triu(-19), -torch.inf))


class PostNormEncoder(nn.Module):
    """Learned positions count padding, too: left padding changes the outputs by design."""

    def __init__(self, vocab_size=64, dim=32):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, dim), nn.Embedding(512, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 64, batch_first=True, dropout=0.1)

    def forward(self, input_ids, attention_mask=None):
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        padding = None if attention_mask is None else attention_mask == 0
        return self.layer(x, src_key_padding_mask=padding).nan_to_num(0.0)


ALIBI, ROTARY = Contract(kind="causal", position="alibi"), Contract(kind="causal", position="rotary")
DESIGNS = [
    (causal_flag, TEXTBOOK), (causal_always, TEXTBOOK), (causal_kernel, TEXTBOOK),
    (Alibi, ALIBI), (AlibiOfTheAuthors, ALIBI), (AlibiOfMpt, ALIBI),
    (Yarn, ROTARY), (YarnTemperature, ROTARY), (NtkByParts, ROTARY),
    (SquaredRelu, CAUSAL), (ReluOverCount, CAUSAL), (SparseWeights, CAUSAL),
    (KeyBias, TEXTBOOK), (BiasPerHead, TEXTBOOK), (TalkingHeads, CAUSAL),
    (Pair, TEXTBOOK), (Named, TEXTBOOK), (Typed, TEXTBOOK),
    (Shaw, Contract(kind="causal", position="relative")),
    (GroupedInOneProduct, Contract(kind="causal", scale="head", grouped="repeated")),
    (LocalWindow, None), (LocalWindow, Contract(kind="window", window=20)),
    (PostNormEncoder, Contract(kind="bidirectional", padding=True)),
]  # fmt: skip


@pytest.mark.parametrize(("design", "contract"), DESIGNS, ids=lambda part: getattr(part, "__name__", None))
def test_run_raises_no_alarm_for_a_legitimate_design(design, contract):
    report = run(design, contract)
    assert report.ok, ([(f.check, f.evidence) for f in report.failed], report.unproven)
