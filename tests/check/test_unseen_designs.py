"""Designs that could not be measured, or calls that failed: each correct one beside a twin with one bug."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract, run

TEXTBOOK = Contract(kind="causal", scale="head", softmax="keys")
SCALED = Contract(kind="causal", scale="head")
ROTARY = Contract(kind="causal", scale="head", softmax="keys", position="rotary")


def below(t, s=None):
    """(t, s): True up to the diagonal, which ends in the last key."""
    s = t if s is None else s
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)


# -- rotary tables that are complex buffers ----------------------------------------------------------------------------


class ComplexTable(nn.Module):
    """(b, h, t, d) rotated by a complex buffer."""

    turns = staticmethod(lambda table: (table, table))

    def __init__(self, dim=32, heads=4, longest=512):
        super().__init__()
        self.heads, d = heads, dim // heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        angles = torch.outer(torch.arange(longest).double(), 1e4 ** (-torch.arange(0, d, 2).double() / d))
        self.register_buffer("cis", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x):
        t = x.shape[1]
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        for_queries, for_keys = self.turns(self.cis[:t])
        q, k = self.rotate(q, for_queries), self.rotate(k, for_keys)
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def rotate(self, x, turns):
        wide = x.double() if x.dtype == torch.float64 else x.float()
        return torch.view_as_real(torch.view_as_complex(wide.unflatten(-1, (-1, 2))) * turns).flatten(-2).to(x)


class ComplexTokensFirst(ComplexTable):
    """The same by real arithmetic on (b, t, h, d), from the real and imaginary part of the buffer."""

    def rotate(self, x, turns):
        a, b = x.transpose(1, 2).unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = turns.real[:, None].to(x), turns.imag[:, None].to(x)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).transpose(1, 2)


@pytest.mark.parametrize("base", [ComplexTable, ComplexTokensFirst])
def test_a_complex_table_of_rope_stays_complex(base):
    assert run(base, ROTARY).ok
    bad = type(f"{base.__name__}Conjugated", (base,), {"turns": staticmethod(lambda table: (table, table.conj()))})
    report = run(bad, ROTARY)
    assert not report.ok
    assert report.diagnosis is not None and report.diagnosis.family == "rotary"


# -- query heads that share key heads ----------------------------------------------------------------------------------


def one_head_by_einsum(q, k, v):
    """q (b, h, t, d), k and v (b, 1, s, d)."""
    scores = torch.einsum("bhid,bjd->bhij", q, k.squeeze(1)) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~below(*scores.shape[-2:]), -torch.inf).softmax(-1)
    return torch.einsum("bhij,bjd->bhid", weights, v.squeeze(1))


def one_head_tokens_second(query, key, value):
    """query (b, t, h, d), key and value (b, s, d)."""
    scores = torch.einsum("bihd,bjd->bhij", query, key) / math.sqrt(query.shape[-1])
    scores = scores + torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype).triu(
        1 + key.shape[1] - query.shape[1]
    )
    return torch.einsum("bhij,bjd->bihd", scores.softmax(-1), value)


def two_query_heads_for_a_key_head(q, k, v, n_rep=2):
    k, v = (x.repeat_interleave(n_rep, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=below(q.shape[2], k.shape[2]))


SHARING = [one_head_by_einsum, one_head_tokens_second, two_query_heads_for_a_key_head]


@pytest.mark.parametrize("function", SHARING)
def test_functions_with_fewer_key_heads_are_called(function):
    assert run(function, TEXTBOOK).ok


@pytest.mark.parametrize("function", SHARING)
def test_a_scale_that_is_wrong_with_several_query_heads_is_caught(function):
    axis = 2 if function is one_head_tokens_second else 1
    several = 2 if function is two_query_heads_for_a_key_head else 1

    def wrong(q, k, v):
        return function(q * 0.9 if q.shape[axis] > several else q, k, v)

    assert "formula" in [finding.check for finding in run(wrong, TEXTBOOK).failed]


# -- chunks and prefixes in functions ----------------------------------------------------------------------------------


def chunks_by_loop(q, k, v, size=32):
    parts = (x.split(size, 2) for x in (q, k, v))
    return torch.cat([F.scaled_dot_product_attention(*part, is_causal=True) for part in zip(*parts, strict=True)], 2)


def chunks_by_mask(q, k, v, size=4):
    place = torch.arange(q.shape[2])
    seen = below(q.shape[2]) & (place[:, None] // size == place // size)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v


def prefix_by_mask(q, k, v, prefix=5):
    seen = below(q.shape[2]) | (torch.arange(q.shape[2]) < prefix)
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, torch.finfo(q.dtype).min).softmax(-1) @ v


@pytest.mark.parametrize(
    ("function", "kind"), [(chunks_by_loop, "chunked"), (chunks_by_mask, "chunked"), (prefix_by_mask, "prefix")]
)
def test_functions_with_chunks_and_prefixes_follow_the_formula_at_every_shape(function, kind):
    contract = Contract(kind=kind, scale="head", softmax="keys")
    assert run(function, contract).ok

    def scaled_when_long(q, k, v):
        return function(q * 0.9 if q.shape[2] > 48 else q, k, v)

    assert "formula (shapes)" in [finding.check for finding in run(scaled_when_long, contract).failed]


def test_a_window_is_a_design_where_no_kind_is_promised():
    def windowed(q, k, v):
        far = ~below(q.shape[2], k.shape[2]).triu(k.shape[2] - q.shape[2] - 19)
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(far, -torch.inf).softmax(-1) @ v

    assert run(windowed, scale="head").ok


# -- the scale of latent and differential attention --------------------------------------------------------------------


class Latent(nn.Module):
    """Keys from a normed latent beside a rotated part that all heads share; concatenated."""

    dims = staticmethod(lambda plain, rotated: plain + rotated)

    def __init__(self, dim=64, heads=4, plain=16, rotated=8, rank=20):
        super().__init__()
        self.heads, self.plain, self.rotated = heads, plain, rotated
        self.wq = nn.Linear(dim, heads * (plain + rotated), bias=False)
        self.down, self.shared = nn.Linear(dim, rank, bias=False), nn.Linear(dim, rotated, bias=False)
        self.norm = nn.LayerNorm(rank)
        self.up_k, self.up_v = nn.Linear(rank, heads * plain, bias=False), nn.Linear(rank, heads * 12, bias=False)
        self.o = nn.Linear(heads * 12, dim, bias=False)

    def rotate(self, x):
        place = torch.arange(x.shape[2], dtype=torch.float64)[:, None]
        angles = place * 1e4 ** (-torch.arange(0, self.rotated, 2, dtype=torch.float64) / self.rotated)
        a, b = x.chunk(2, -1)
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, -1).transpose(1, 2)
        latent = self.norm(self.down(x))
        k = self.up_k(latent).view(b, t, self.heads, -1).transpose(1, 2)
        v = self.up_v(latent).view(b, t, self.heads, -1).transpose(1, 2)
        q_plain, q_rotated = q.split((self.plain, self.rotated), -1)
        scale = self.dims(self.plain, self.rotated) ** -0.5
        scores = self.score(q_plain, self.rotate(q_rotated), k, self.rotate(self.shared(x)[:, None]), scale)
        y = scores.masked_fill(~below(t), -torch.inf).softmax(-1) @ v
        return self.o(y.transpose(1, 2).flatten(2))

    def score(self, q, q_rotated, k, k_rotated, scale):
        k_rotated = k_rotated.expand(-1, self.heads, -1, -1)
        return torch.cat((q, q_rotated), -1) @ torch.cat((k, k_rotated), -1).mT * scale


class LatentSum(Latent):
    """The same as a sum of two products."""

    def score(self, q, q_rotated, k, k_rotated, scale):
        return (q @ k.mT + torch.einsum("bhid,bjd->bhij", q_rotated, k_rotated[:, 0])) * scale


class Differential(nn.Module):
    """softmax(q₁k₁) − λ softmax(q₂k₂), as one product of twice the heads."""

    dims = staticmethod(lambda own: own)

    def __init__(self, dim=48, heads=3):
        super().__init__()
        self.heads, self.d = heads, dim // heads // 2
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.share = nn.Parameter(torch.full((heads, 1, 1), 0.5))

    def forward(self, x):
        q, k = (part(x).unflatten(-1, (2 * self.heads, -1)).transpose(1, 2) for part in (self.q, self.k))
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        weights = self.difference(q * self.dims(self.d) ** -0.5, k, ~below(x.shape[1]))
        return self.o(F.rms_norm(weights @ v, (2 * self.d,)).transpose(1, 2).flatten(2))

    def difference(self, q, k, hidden):
        pair = (q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1).unflatten(1, (self.heads, 2))
        return pair[:, :, 0] - self.share * pair[:, :, 1]


class DifferentialPairs(Differential):
    """The same as two products."""

    def difference(self, q, k, hidden):
        one, two = ((q[:, n::2] @ k[:, n::2].mT).masked_fill(hidden, -torch.inf).softmax(-1) for n in (0, 1))
        return one - self.share * two


@pytest.mark.parametrize(
    ("base", "wrong"),
    [
        (Latent, lambda plain, rotated: plain),
        (LatentSum, lambda plain, rotated: plain),
        (Differential, lambda own: 2 * own),
        (DifferentialPairs, lambda own: 2 * own),
    ],
)
def test_the_scale_of_latent_and_differential_attention_is_measured(base, wrong):
    assert run(base, SCALED).ok
    report = run(type(f"{base.__name__}Scaled", (base,), {"dims": staticmethod(wrong)}), SCALED)
    assert report.diagnosis is not None and report.diagnosis.family == "scale"


# -- tables by distance ------------------------------------------------------------------------------------------------


class ClippedTable(nn.Module):
    """A learned bias by distance, clipped at 32 on both sides, as rows of a table of 65."""

    def __init__(self, dim=32, heads=4, most=32):
        super().__init__()
        self.heads, self.most = heads, most
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.zeros(2 * most + 1, heads))

    def bias(self, t):
        place = torch.arange(t)
        return self.table[(place - place[:, None]).clamp(-self.most, self.most) + self.most].permute(2, 0, 1)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.bias(x.shape[1])
        return self.o((scores.masked_fill(~below(x.shape[1]), -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2))


class ClippedEmbedding(ClippedTable):
    """The same with an embedding."""

    def __init__(self, dim=32, heads=4, most=32):
        super().__init__(dim, heads, most)
        del self.table
        self.rows = nn.Embedding(2 * most + 1, heads)

    def bias(self, t):
        place = torch.arange(t)
        return self.rows(torch.clip(place[None] - place[:, None], -self.most, self.most) + self.most).movedim(-1, 0)


@pytest.mark.parametrize("layer", [ClippedTable, ClippedEmbedding])
@pytest.mark.parametrize("position", ["relative", None])
def test_a_table_by_distance_may_be_clipped(layer, position):
    assert run(layer, TEXTBOOK, position=position).ok


# -- losses that need a mask -------------------------------------------------------------------------------------------


def loss_by_log_softmax(logits, tokens, answer_mask):
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    weights = answer_mask[:, 1:].to(chosen)
    return -(chosen * weights).sum() / weights.sum()


def loss_by_lengths(logits, targets, lengths):
    keep = torch.arange(targets.shape[1]) < lengths[:, None]
    return F.cross_entropy(logits.flatten(0, 1), targets.masked_fill(~keep, -100).flatten())


def loss_off_by_one(logits, tokens, answer_mask):
    each = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    weights = answer_mask[:, :-1].flatten().to(each)
    return (each * weights).sum() / weights.sum()


def loss_of_the_prompt(logits, tokens, answer_mask):
    return loss_by_log_softmax(logits, tokens, 1 - answer_mask.double())


def loss_one_too_many(logits, targets, lengths):
    return loss_by_lengths(logits, targets, lengths + 1)


def test_losses_with_a_required_mask_are_called():
    assert run(loss_by_log_softmax, loss="next").ok
    assert run(loss_by_lengths, loss="same").ok


@pytest.mark.parametrize(
    ("function", "loss", "words"),
    [
        (loss_off_by_one, "next", "off by one"),
        (loss_of_the_prompt, "next", "inverted"),
        (loss_one_too_many, "same", "cut or shifted"),
    ],
)
def test_a_wrong_mask_of_a_loss_is_named(function, loss, words):
    cause = run(function, loss=loss).diagnosis
    assert cause is not None and cause.family == "loss mask" and words in cause.words
