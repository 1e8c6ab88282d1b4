"""Designs and ways to call them that raised false alarms, and bugs that were missed or named vaguely."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract, run
from qkv.check.shapes import describe_condition

CAUSAL = Contract(kind="causal")
SCALED = Contract(kind="causal", scale="head")
TEXTBOOK = Contract(kind="causal", scale="head", softmax="keys")


class Layer(nn.Module):
    """Multi-head self-attention; subclasses change the scores or which pairs are visible."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def visible(self, i, j):
        return j <= i

    def scores(self, q, k):
        return q @ k.mT * q.shape[-1] ** -0.5

    def change(self, scores):
        return scores

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(t)
        scores = self.scores(q, k).masked_fill(~self.visible(i[:, None], i), -torch.inf)
        return self.out((self.change(scores).softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class SoftCap(Layer):
    def scores(self, q, k):
        return 20 * torch.tanh(super().scores(q, k) / 20)


class RelativeContent(Layer):
    """Shaw et al. and Transformer-XL: a bias that depends on the query and on the distance."""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.table = nn.Parameter(torch.randn(9, dim // heads))

    def scores(self, q, k):
        i = torch.arange(q.shape[2])
        near = (i[:, None] - i).clamp(-4, 4) + 4
        return (q @ k.mT + torch.einsum("bhid,ijd->bhij", q, self.table[near])) * q.shape[-1] ** -0.5


class BlockSparse(Layer):
    def visible(self, i, j):
        a, b = i // 16, j // 16
        return (j <= i) & ((b == 0) | (b >= a - 1))


class Dilated(Layer):
    def visible(self, i, j):
        return (j <= i) & ((i - j) % 2 == 0)


class TopK(Layer):
    def change(self, scores):
        least = scores.topk(min(4, scores.shape[-1]), -1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf)


class FewerKeyHeads(nn.Module):
    """As many key heads as query heads unless told otherwise."""

    def __init__(self, dim=32, n_heads=4, n_kv_heads=None):
        super().__init__()
        self.heads, self.groups = n_heads, n_kv_heads or n_heads
        d = dim // n_heads
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * self.groups * d), nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q = self.q(x).view(b, t, self.groups, -1, c // self.heads)
        k, v = self.kv(x).view(b, t, 2, self.groups, -1).unbind(2)
        scores = torch.einsum("btgrd,bsgd->bgrts", q, k) / math.sqrt(c // self.heads)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        return self.out(torch.einsum("bgrts,bsgd->btgrd", scores.softmax(-1), v).reshape(b, t, c))


class TakesTables(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.qkv, self.out = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, *, cos, sin):
        b, t, c = hidden_states.shape
        q, k, v = self.qkv(hidden_states).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin for x in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(b, t, c)), None


def always_causal(q, k, v):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    t, s = scores.shape[-2:]
    return scores.masked_fill(torch.ones(t, s, dtype=torch.bool).triu(s - t + 1), -torch.inf).softmax(-1) @ v


def square_only(q, k, v):
    """Written for as many keys as queries: with more keys its output has a row for each key."""
    out = torch.zeros_like(v)
    for i in range(q.shape[2]):
        weights = (q[:, :, i : i + 1] @ k[:, :, : i + 1].mT / q.shape[-1] ** 0.5).softmax(-1)
        out[:, :, i] = (weights @ v[:, :, : i + 1])[:, :, 0]
    return out


def narrow_window(q, k, v):
    i = torch.arange(q.shape[2])
    mask = (i[:, None] >= i) & (i[:, None] - i < 4)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def keyword_only(*, queries, keys, values, attend_mask=None):
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    if attend_mask is not None:
        scores = torch.where(attend_mask, scores, -1e30)
    return {"output": scores.softmax(-1) @ values, "weights": scores.softmax(-1)}


def added_mask(q, k, v, bias=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return (scores if bias is None else scores + bias).softmax(-1) @ v


class RealTokens(Layer):
    """padding_mask is True for real tokens, which its name does not say."""

    def forward(self, x, padding_mask=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = self.scores(q, k)
        if padding_mask is not None:
            scores = scores.masked_fill(~padding_mask.bool()[:, None, None], -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class PadId(nn.Module):
    """Token 0 is padding; no argument says so."""

    def __init__(self, vocab_size=40, dim=32, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.embed, self.layer = nn.Embedding(vocab_size, dim), RealTokens(dim)

    def keep(self, ids):
        return ids != self.pad_id

    def forward(self, ids):
        return self.layer(self.embed(ids), self.keep(ids))


class Windows(nn.Module):
    """Windows of 4 × 4 of a feature map (b, c, y, x)."""

    def __init__(self, dim=16):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        b, c, h, w = x.shape
        rows = x.view(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
        q, k, v = self.qkv(rows).chunk(3, -1)
        out = self.mix((q @ k.mT * c**-0.5).softmax(-1)) @ v
        return out.view(b, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)

    def mix(self, weights):
        return weights


DESIGNS = [
    (SoftCap, SCALED),
    (RelativeContent, SCALED),
    (BlockSparse, CAUSAL),
    (Dilated, SCALED),
    (TopK, CAUSAL),
    (FewerKeyHeads, Contract(kind="causal", scale="head", softmax="keys", grouped="repeated")),
    (TakesTables, Contract(kind="causal", scale="head", softmax="keys", position="rotary")),
    (always_causal, Contract(kind="causal", scale="head", alignment="bottom-right")),
    (square_only, TEXTBOOK),
    (narrow_window, Contract(kind="window", window=4, scale="head")),
    (keyword_only, Contract(kind="bidirectional", scale="head", mask="true-attends")),
    (added_mask, Contract(kind="bidirectional", scale="head", mask="added")),
    (RealTokens, Contract(kind="bidirectional", padding=True)),
    (PadId, Contract(kind="bidirectional", padding=True)),
    (Windows, Contract()),
]


@pytest.mark.parametrize(("design", "contract"), DESIGNS, ids=lambda part: getattr(part, "__name__", None))
def test_run_proves_the_promises_of_a_design(design, contract):
    report = run(design, contract)
    assert report.ok, [report.unproven, *((f.check, f.evidence) for f in report.failed)]


class CapAfterMask(Layer):
    def __init__(self, dim=32, heads=4, cap=8.0):
        super().__init__(dim, heads)
        self.cap = cap

    def change(self, scores):
        return self.cap * torch.tanh(scores.clamp(min=-1e30) / self.cap)


class CountsRealTokens(PadId):
    def keep(self, ids):
        return torch.arange(ids.shape[1]) < (ids != self.pad_id).sum(1, keepdim=True)


class MixedWindows(Windows):
    def mix(self, weights):
        n = weights.shape[0] // 4  # rows of the batch and windows are read in the wrong order
        return weights.view(n, 4, 16, 16).roll(1, 0).reshape_as(weights) if n > 1 else weights


class HalfPositions(TakesTables):
    """Its own tables, with positions in the dtype of the activations."""

    def forward(self, hidden_states):
        x = hidden_states
        angles = torch.arange(x.shape[1]).to(x.dtype)[:, None] * (10_000 ** (-torch.arange(0, 8, 2) / 8)).to(x.dtype)
        angles = torch.cat((angles, angles), -1).double()
        return super().forward(x, cos=angles.cos().to(x.dtype), sin=angles.sin().to(x.dtype))


def skipped_tiles(q, k, v):
    t, s = q.shape[2], k.shape[2]
    i, j = torch.arange(t)[:, None] + s - t, torch.arange(s)
    mask = (j <= i) & (j // 16 * 16 <= (i - s + t) // 32 * 32 + s - t)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def mask_lost_by_one_query(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=None if q.shape[2] == 1 else mask)


def raw_strides(q, k, v):
    k = k.as_strided(k.shape, torch.empty(k.shape).stride())
    return always_causal(q, k, v)


def filled_block(q, k, v):
    """Zeros that fill the last block of 16 keys take part in the softmax."""
    k, v = (F.pad(x, (0, 0, 0, -x.shape[2] % 16)) for x in (k, v))
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


BUGS = [
    (CapAfterMask, CAUSAL, "mask not −∞", "soft cap is applied after the mask"),
    (CountsRealTokens, Contract(kind="bidirectional", padding=True), "padding", "padding is taken to be on the right"),
    (MixedWindows, Contract(), "batch mixed", ""),
    (HalfPositions, SCALED, "low precision", ""),
    (skipped_tiles, TEXTBOOK, "block", "are skipped"),
    (mask_lost_by_one_query, Contract(mask="true-attends"), "mask dropped", "mask is ignored"),
    (raw_strides, SCALED, "strides", ""),
    (filled_block, Contract(scale="head"), "block", ""),
]


@pytest.mark.parametrize(("bug", "contract", "family", "words"), BUGS, ids=lambda part: getattr(part, "__name__", None))
def test_run_names_the_bug(bug, contract, family, words):
    report = run(bug, contract)
    assert not report.ok
    assert report.diagnosis is not None
    assert (report.diagnosis.family, words in report.diagnosis.words) == (family, True), report.diagnosis


def test_describe_condition_names_the_block_size():
    assert describe_condition(lambda n: n <= 32 or n % 16 == 0) == (
        "for lengths that are not multiples of 16 from 33 tokens on"
    )
    assert describe_condition(lambda n: None) == ""


def shares(heads, groups, *, tiled):
    """Key heads (b, g, s, d) for each of the query heads, written with an index."""
    index = torch.arange(heads)
    return index % groups if tiled else index // (heads // groups)


def one_query_tiled(q, k, v):
    """Grouped-query attention whose path for decoding shares key heads in another order."""
    index = shares(q.shape[1], k.shape[1], tiled=q.shape[2] == 1)
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    scores = (q @ k[:, index].mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v[:, index]


def wide_groups_tiled(query, key, value):
    """Groups of three or more query heads are repeated in another order, by a reshape."""
    b, h, t, d = query.shape
    g, s = key.shape[1:3]
    if h // g > 2:
        key, value = (torch.cat([x] * (h // g), dim=1) for x in (key, value))
    else:
        key, value = (x[:, :, None].expand(b, g, h // g, s, d).reshape(b, h, s, d) for x in (key, value))
    hidden = torch.full((t, s), -torch.inf, dtype=query.dtype).triu(s - t + 1)
    return (torch.einsum("bhtd,bhsd->bhts", query, key) / d**0.5 + hidden).softmax(-1) @ value


@pytest.mark.parametrize(
    ("function", "condition"),
    [(one_query_tiled, "for one query on more keys"), (wide_groups_tiled, "with 6 query heads and 2 key heads")],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_run_compares_how_heads_are_shared_at_one_query_and_other_head_counts(function, condition):
    for grouped in ("repeated", None):
        report = run(function, replace(TEXTBOOK, grouped=grouped))
        found = next(f for f in report.findings if f.check == "grouped heads")
        assert (found.verdict, found.family) == ("fail", "head layout"), found
        assert condition.split()[-2] in found.condition
    assert run(always_causal, TEXTBOOK).ok
