"""Designs that raised false alarms and bugs that were missed or misnamed, each in two or three styles of code."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract, run
from qkv.check.hypotheses.visibility import describe_visibility
from qkv.check.render import find_mistakes

TEXTBOOK = Contract(kind="causal", scale="head", softmax="keys")
ENCODER = Contract(kind="bidirectional", scale="head", softmax="keys")
CAUSAL = Contract(kind="causal")


def below(t, s=None):
    """(t, s): True up to the diagonal, which ends in the last key."""
    s = t if s is None else s
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)


class Layer(nn.Module):
    """Multi-head self-attention; subclasses write `attend(q, k, v)` for (b, h, t, d)."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Fused(nn.Module):
    """The same with one projection, and heads split by a reshape and a permutation."""

    def __init__(self, n_embd=32, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).reshape(b, t, 3, self.n_head, c // self.n_head).permute(2, 0, 3, 1, 4)
        return self.c_proj(self.attend(q, k, v).permute(0, 2, 1, 3).reshape(b, t, c))


def in_both(attend, name):
    """The attention in a layer with separate projections and in one with a fused projection."""
    attributes = {"attend": lambda self, q, k, v: attend(q, k, v)}
    return [type(f"{name}In{base.__name__}", (base,), dict(attributes)) for base in (Layer, Fused)]


# -- designs -----------------------------------------------------------------------------------------------------------


def rotate(x, base=10_000.0):
    t, d = x.shape[-2:]
    angles = torch.arange(t, dtype=torch.float64)[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def sink_by_concatenation(q, k, v):
    scores = (rotate(q) @ rotate(k).mT * q.shape[-1] ** -0.5).masked_fill(~below(q.shape[-2]), -torch.inf)
    return torch.cat((scores, scores.new_ones(*scores.shape[:-1], 1)), -1).softmax(-1)[..., :-1] @ v


def sink_by_one_more(q, k, v):
    scores = (rotate(q) @ rotate(k).mT * q.shape[-1] ** -0.5).masked_fill(~below(q.shape[-2]), -torch.inf)
    largest = scores.amax(-1, keepdim=True).clamp(min=0)
    powers = (scores - largest).exp()
    return powers / (powers.sum(-1, keepdim=True) + (-largest).exp()) @ v


def bias_by_key_position(q, k, v):
    slopes = 2.0 ** (-8 * torch.arange(1, q.shape[1] + 1) / q.shape[1])
    bias = slopes.to(q)[:, None, None] * torch.arange(k.shape[-2]).to(q)
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
    return scores.masked_fill(~below(q.shape[-2]), torch.finfo(q.dtype).min).softmax(-1) @ v


def online(q, k, v, block=24, minimum=-1e30):
    """Online softmax: weights are divided by their sum at the end."""
    total, out = torch.zeros_like(q[..., :1]), torch.zeros_like(q)
    largest = torch.full_like(total, minimum)
    places = torch.arange(q.shape[-2])
    for start in range(0, k.shape[-2], block):
        scores = q @ k[..., start : start + block, :].mT * q.shape[-1] ** -0.5
        hidden = places[start : start + block] > places[:, None]
        new = torch.maximum(largest, scores.masked_fill(hidden, minimum).amax(-1, keepdim=True))
        powers, factor = (scores - new).exp().masked_fill(hidden, 0.0), (largest - new).exp()
        total = total * factor + powers.sum(-1, keepdim=True)
        out = out * factor + powers @ v[..., start : start + block, :]
        largest = new
    return out / total


class NormedQueries(Layer):
    """Norms without gain and a scale of its own."""

    def attend(self, q, k, v):
        q, k = (F.rms_norm(rotate(x), x.shape[-1:]) for x in (q, k))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.15)


class NormedWithGain(Layer):
    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.q_norm, self.k_norm = nn.RMSNorm(dim // heads), nn.RMSNorm(dim // heads)

    def attend(self, q, k, v):
        q, k = rotate(self.q_norm(q)), rotate(self.k_norm(k))
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~below(q.shape[-2]), -torch.inf).softmax(-1) @ v


class OneProjectionForBoth(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.qk, self.v, self.o = heads, nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        qk, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.qk, self.v))
        return self.o(F.scaled_dot_product_attention(qk, qk, v, is_causal=True).transpose(1, 2).flatten(2))


class TwoPartsOfOneProjection(nn.Module):
    def __init__(self, d_model=32, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj, self.out_proj = nn.Linear(d_model, 2 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, c = x.shape
        qk, v = (part.reshape(b, t, self.n_heads, -1).transpose(1, 2) for part in self.in_proj(x).chunk(2, -1))
        scores = torch.einsum("bhid,bhjd->bhij", qk, qk) / math.sqrt(c // self.n_heads)
        weights = scores.masked_fill(~below(t), -1e30).softmax(-1)
        return self.out_proj(torch.einsum("bhij,bhjd->bihd", weights, v).reshape(b, t, c))


def positive(x):
    return F.elu(x) + 1


def linear_by_sums(q, k, v):
    q, k = positive(q), positive(k)
    sums = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
    return torch.einsum("bhtd,bhtde->bhte", q, sums) / (q * k.cumsum(2)).sum(-1, keepdim=True)


def linear_by_mask(q, k, v):
    weights = (positive(q) @ positive(k).mT) * below(q.shape[-2])
    return weights @ v / weights.sum(-1, keepdim=True)


def scale_by_position(q, k, v, trained=20):
    logs = torch.arange(1, q.shape[-2] + 1).log() / math.log(trained)
    return F.scaled_dot_product_attention(q * logs.clamp(min=1.0)[:, None].to(q), k, v, is_causal=True)


class Convolution(nn.Module):
    """Projections as convolutions of width 1, on (b, c, t)."""

    def __init__(self, channels=32, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        b, c, t = x.shape
        q, k, v = self.qkv(x).view(b, 3, self.heads, c // self.heads, t).unbind(1)
        weights = torch.einsum("bhdi,bhdj->bhij", q * (c // self.heads) ** -0.5, k).softmax(-1)
        return self.out(torch.einsum("bhij,bhdj->bhdi", weights, v).reshape(b, c, t))


class NormThatDependsOnTheDtype(nn.Module):
    """PyTorch chooses the epsilon of a norm by the dtype; small activations show it in float32."""

    def __init__(self, vocab_size=50, dim=32):
        super().__init__()
        self.tokens, self.norm, self.layer = nn.Embedding(vocab_size, dim), nn.RMSNorm(dim), Layer(dim)

    def forward(self, ids):
        return self.layer(self.norm(0.1 * self.tokens(ids))) @ self.tokens.weight.T


def blocks_of_eight(q, k, v):
    if q.shape[-2] % 8 or k.shape != q.shape:
        raise ValueError("the number of tokens must be a multiple of 8")
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def blocks_of_sixteen(query, key, value):
    b, h, t, d = query.shape
    blocks = query.view(b, h, t // 16, 16, d)  # raises for other lengths
    scores = torch.einsum("bhnid,bhjd->bhnij", blocks, key).flatten(2, 3) * d**-0.5
    return scores.masked_fill(~below(t), -torch.inf).softmax(-1) @ value


class TakesAddedMask(Layer):
    def forward(self, x, attn_mask=None):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = (scores if attn_mask is None else scores + attn_mask).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class TakesBlockedPairs(Layer):
    def forward(self, x, mask=None):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mask = None if mask is None else ~mask
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


def ragged(q, k, v, cu_seqlens):
    """Tokens of all rows one after the other; one set of borders, so as many queries as keys."""
    out = torch.empty_like(v)
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        a, b, c = (x[start:end].transpose(0, 1) for x in (q, k, v))
        out[start:end] = F.scaled_dot_product_attention(a, b, c).transpose(0, 1)
    return out


def ragged_by_mask(q, k, v, offsets):
    rows = torch.bucketize(torch.arange(len(q)), offsets[1:], right=True)
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(rows[:, None] != rows, -torch.inf).softmax(-1), v)


class LazyInFloat32(nn.Module):
    """Gets its weights in the first call, and casts its input to float32, as layers of Keras do."""

    def __init__(self, heads=4):
        super().__init__()
        self.heads, self.qkv, self.o = heads, None, None

    def forward(self, x):
        x = x.float()
        if self.qkv is None:
            self.qkv, self.o = nn.Linear(x.shape[-1], 3 * x.shape[-1]), nn.Linear(x.shape[-1], x.shape[-1])
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class LazyParametersInFloat32(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterDict()

    def forward(self, x):
        x = x.to(torch.float32)
        for name in "qkvo":
            if name not in self.weights:
                self.weights[name] = nn.Parameter(torch.randn(x.shape[-1], 4, x.shape[-1] // 4) / 5)
        q, k, v = (torch.einsum("btc,chd->bhtd", x, self.weights[name]) for name in "qkv")
        weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~below(x.shape[1]), -torch.inf).softmax(-1)
        return torch.einsum("bhtd,chd->btc", weights @ v, self.weights["o"])


ROTARY = Contract(kind="causal", scale="head", position="rotary")
DESIGNS = [
    *((layer, ROTARY) for layer in in_both(sink_by_concatenation, "Sink")),
    *((layer, ROTARY) for layer in in_both(sink_by_one_more, "SoftmaxPlusOne")),
    *((layer, Contract(kind="causal", position="alibi")) for layer in in_both(bias_by_key_position, "KeyPosition")),
    *((layer, TEXTBOOK) for layer in in_both(online, "Online")), (online, TEXTBOOK),
    (NormedQueries, Contract(kind="causal", scale=0.15)), (NormedWithGain, TEXTBOOK),
    (OneProjectionForBoth, TEXTBOOK), (TwoPartsOfOneProjection, TEXTBOOK),
    *((layer, CAUSAL) for attend in (linear_by_sums, linear_by_mask) for layer in in_both(attend, attend.__name__)),
    *((layer, CAUSAL) for layer in in_both(scale_by_position, "LogN")),
    (Convolution, ENCODER), (NormThatDependsOnTheDtype, TEXTBOOK),
    (ragged, ENCODER), (ragged_by_mask, ENCODER),
    (LazyInFloat32, CAUSAL), (LazyParametersInFloat32, CAUSAL),
    (blocks_of_eight, TEXTBOOK), (blocks_of_sixteen, TEXTBOOK),
    (TakesAddedMask, Contract(kind="bidirectional", mask="added")), (TakesBlockedPairs, Contract(mask="true-masks")),
]  # fmt: skip


@pytest.mark.parametrize(("design", "contract"), DESIGNS, ids=lambda part: getattr(part, "__name__", None))
def test_run_raises_no_alarm_for_a_design_in_an_unseen_style(design, contract):
    report = run(design, contract)
    assert report.ok, ([(f.check, f.evidence) for f in report.failed], report.unproven)


# -- bugs --------------------------------------------------------------------------------------------------------------


def chunks_without_offset(q, k, v, size=48):
    """From `size` queries on, in chunks, each masked as if it were the first."""
    parts = []
    for part in q.split(size, -2):
        hidden = torch.ones(part.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
        scores = (part @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        parts.append(scores.softmax(-1) @ v)
    return torch.cat(parts, -2)


def one_tile_masked(q, k, v, rows=32, columns=16):
    """Of the key tiles beside a query tile, only the one that starts where it starts is masked."""
    out = []
    for start in range(0, q.shape[-2], rows):
        end = min(start + rows, q.shape[-2])
        tiles = []
        for left in range(0, end, columns):
            scores = q[..., start:end, :] @ k[..., left : min(left + columns, end), :].mT * q.shape[-1] ** -0.5
            if left == start:
                inside = torch.arange(left, min(left + columns, end)) <= torch.arange(start, end)[:, None]
                scores = scores.masked_fill(~inside, -torch.inf)
            tiles.append(scores)
        out.append(torch.cat(tiles, -1).softmax(-1) @ v[..., :end, :])
    return torch.cat(out, -2)


def mask_enlarged_by_ones(q, k, v, built=40):
    t = q.shape[-2]
    mask = torch.ones(t, t, dtype=torch.bool)
    mask[:built, :built] = below(min(t, built))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def combined_by_maxima(q, k, v, size=48):
    outs, maxima = [], []
    for keys, values in zip(k.split(size, -2), v.split(size, -2), strict=True):
        scores = q @ keys.mT * q.shape[-1] ** -0.5
        outs.append(scores.softmax(-1) @ values)
        maxima.append(scores.amax(-1))
    return (torch.stack(maxima).softmax(0)[..., None] * torch.stack(outs)).sum(0)


def read_too_few_keys(q, k, v, causal=False, size=16):
    """The loop over key blocks ends at the block of the query's own number, whatever the number of keys."""
    t, s = q.shape[-2], k.shape[-2]
    if not causal:
        return F.scaled_dot_product_attention(q, k, v)
    mask = below(t, s)
    for start in range(0, t, size):
        mask[start : start + size, min(start + size, t) :] = False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def scale_by_length(q, k, v):
    factor = max(1.0, math.log(k.shape[-2]) / math.log(30))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=factor * q.shape[-1] ** -0.5)


def pairs_of_both_kinds(q, k, v, halves=True):
    """Angles laid out for one pairing of features, which are rotated in the other."""
    t, d = q.shape[-2:]
    angles = torch.arange(t)[:, None] * 10_000.0 ** (-torch.arange(0, d, 2) / d)
    angles = angles.repeat_interleave(2, -1) if halves else torch.cat((angles, angles), -1)
    cos, sin = angles.double().cos().to(q), angles.double().sin().to(q)

    def turn(x):
        if halves:
            other = torch.cat((-x[..., d // 2 :], x[..., : d // 2]), -1)
        else:
            other = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * cos + other * sin

    return F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)


def pairs_of_both_kinds_interleaved(q, k, v):
    return pairs_of_both_kinds(q, k, v, halves=False)


class Padded(Layer):
    """With a padding mask (b, t), 1 for real tokens; subclasses write `weigh(scores, real)`."""

    def forward(self, x, attention_mask=None):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        weights = scores.softmax(-1) if attention_mask is None else self.weigh(scores, attention_mask.bool())
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class PaddedTooLate(Padded):
    def weigh(self, scores, real):
        return scores.softmax(-1) * real[:, None, None]


class PaddedTooLateByHand(Padded):
    def weigh(self, scores, real):
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return torch.where(real[:, None, None], powers / powers.sum(-1, keepdim=True), 0.0)


class PaddedQueries(Padded):
    def weigh(self, scores, real):
        return scores.masked_fill(~real[:, None, :, None], -1e9).softmax(-1)


class PaddedWithZeros(Padded):
    def weigh(self, scores, real):
        return (scores * real[:, None, None]).softmax(-1)


class Decoder(nn.Module):
    """Learned positions and a KV cache; `start` gives the position of the first new token."""

    def __init__(self, vocab_size=50, dim=32, heads=4):
        super().__init__()
        self.heads, self.tokens, self.places = heads, nn.Embedding(vocab_size, dim), nn.Embedding(300, dim)
        self.qkv, self.o, self.head = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), nn.Linear(dim, vocab_size)

    def forward(self, ids, past=None):
        start = 0 if past is None else self.start(past[0].shape[2])
        x = self.tokens(ids) + self.places(torch.arange(start, start + ids.shape[1]))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=below(q.shape[2], k.shape[2]))
        return self.head(x + self.o(y.transpose(1, 2).flatten(2))), (k, v)


class PositionInItsBlock(Decoder):
    def start(self, cached):
        return cached % 16


class PositionThatStops(Decoder):
    def start(self, cached):
        return min(cached, 20)


class RollingCache(nn.Module):
    """A window of 12; the cache keeps `kept` tokens, and a step does not mask."""

    kept = 12

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, past=None):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        t, s = q.shape[2], k.shape[2]
        mask = below(t, s) if t == 1 else below(t, s) & ~below(t, s).tril(s - t - 12)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2)), (k[:, :, -self.kept :], v[:, :, -self.kept :])


class RollingCacheTooShort(RollingCache):
    kept = 9


class HandWritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~below(q.shape[-2]), -torch.inf)
        weights = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, weights = ctx.saved_tensors
        inner = gradient @ v.mT
        inner = weights * (inner - (inner * weights).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return inner @ k * q.shape[-1] ** -0.5, inner.mT @ q, weights.mT @ gradient


def scaled_twice_backward(q, k, v):
    return HandWritten.apply(q, k, v)


class ScalesItsInput(Layer):
    def forward(self, x):
        x *= 1.5
        return super().forward(x)


class CentersItsInput(Fused):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        x[:] = x - x.mean(-1, keepdim=True)
        return super().forward(x)


class NormedWithoutScale(NormedWithGain):
    def attend(self, q, k, v):
        q, k = self.q_norm(q), self.k_norm(k)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)


class KeysForBothOfThree(Layer):
    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(k, k, v, is_causal=True)


BIDIRECTIONAL = Contract(kind="bidirectional", scale="head", softmax="keys", padding=True)
PLAIN_ROTARY = Contract(kind="causal", scale="head", softmax="keys", position="rotary")
ROLLING = Contract(kind="window", window=12, cache=True)
CACHED = Contract(kind="causal", cache=True)
BUGS = [
    *((layer, TEXTBOOK, "block") for layer in in_both(chunks_without_offset, "Chunks")),
    (chunks_without_offset, TEXTBOOK, "block"),
    *((layer, TEXTBOOK, "leak") for layer in in_both(mask_enlarged_by_ones, "Enlarged")),
    *((layer, ENCODER, "block") for layer in in_both(combined_by_maxima, "Maxima")),
    (combined_by_maxima, ENCODER, "block"),
    (read_too_few_keys, Contract(scale="head", alignment="bottom-right"), "alignment"),
    (RollingCache, ROLLING, "window"), (RollingCacheTooShort, ROLLING, ("window", "cache order")),
    *((layer, TEXTBOOK, "leak") for layer in in_both(one_tile_masked, "Tiles")), (one_tile_masked, TEXTBOOK, "leak"),
    *((layer, CAUSAL, "scale") for layer in in_both(scale_by_length, "ByLength")), (scale_by_length, TEXTBOOK, "scale"),
    *((layer, PLAIN_ROTARY, "rotary") for layer in in_both(pairs_of_both_kinds, "Pairs")),
    *((layer, PLAIN_ROTARY, "rotary") for layer in in_both(pairs_of_both_kinds_interleaved, "PairsInterleaved")),
    (PaddedTooLate, BIDIRECTIONAL, "mask after softmax"), (PaddedTooLateByHand, BIDIRECTIONAL, "mask after softmax"),
    (PaddedQueries, BIDIRECTIONAL, "padding"), (PaddedWithZeros, BIDIRECTIONAL, "padding"),
    (PositionInItsBlock, CACHED, "positions with cache"), (PositionThatStops, CACHED, "positions with cache"),
    (scaled_twice_backward, TEXTBOOK, "wrong gradient"),
    *((layer, TEXTBOOK, "wrong gradient") for layer in in_both(scaled_twice_backward, "Backward")),
    (ScalesItsInput, TEXTBOOK, "input changed"), (CentersItsInput, TEXTBOOK, "input changed"),
    (NormedWithoutScale, TEXTBOOK, "scale"), (KeysForBothOfThree, TEXTBOOK, "inputs swapped"),
    (TakesBlockedPairs, Contract(mask="true-attends"), "mask polarity"),
]  # fmt: skip


@pytest.mark.parametrize(("bug", "contract", "family"), BUGS, ids=lambda part: getattr(part, "__name__", None))
def test_run_catches_and_names_a_bug_in_an_unseen_style(bug, contract, family):
    report = run(bug, contract)
    assert report.failed
    family = (family,) if isinstance(family, str) else family
    assert report.diagnosis is not None and report.diagnosis.family in family, report.diagnosis


# -- an optional context, returned weights, and functions with a bias --------------------------------------------------


class WithContext(Layer):
    """Attends to a context, or to itself; one query takes a path of its own."""

    def forward(self, x, context=None):
        context = x if context is None else context
        parts = ((self.q, x), (self.k, context), (self.v, context))
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part, y in parts)
        return self.o((self.one(q, k, v) if q.shape[2] == 1 else self.many(q, k, v)).transpose(1, 2).flatten(2))

    def many(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    one = many


class OneQueryUnscaled(WithContext):
    def one(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v


class OneQueryOverHeads(WithContext):
    def one(self, q, k, v):
        return ((q * k).sum(-1) * q.shape[-1] ** -0.5).softmax(1)[:, :, None] @ v


class ReturnsWeights(Layer):
    factor = 1.0

    def forward(self, x, return_weights=False):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        out = self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return (out, (self.factor * scores).softmax(-1)) if return_weights else out


class ReturnsOtherWeights(ReturnsWeights):
    factor = 2.0


class ReturnsMeanOfOtherWeights(Layer):
    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.o(out.transpose(1, 2).flatten(2)), (q @ k.mT).softmax(-1).mean(1)


@pytest.mark.parametrize("layer", [WithContext, ReturnsWeights])
def test_run_passes_a_context_and_returned_weights(layer):
    report = run(layer, ENCODER)
    assert report.ok, [(f.check, f.evidence) for f in report.failed]
    assert {"context", "returned weights"} & {f.check for f in report.findings if f.verdict == "pass"}


@pytest.mark.parametrize(
    ("layer", "check"),
    [
        (OneQueryUnscaled, "context"), (OneQueryOverHeads, "context"),
        (ReturnsOtherWeights, "returned weights"), (ReturnsMeanOfOtherWeights, "returned weights"),
    ],
)  # fmt: skip
def test_run_fails_one_query_on_a_context_and_weights_that_made_no_output(layer, check):
    assert check in [finding.check for finding in run(layer, ENCODER).failed]


def alibi_function(q, k, v, slope=-8.0):
    t, s, h = q.shape[-2], k.shape[-2], q.shape[1]
    slopes = 2.0 ** (slope * torch.arange(1, h + 1, dtype=q.dtype) / h)
    distance = torch.arange(s - t, s)[:, None] - torch.arange(s)
    scores = q @ k.mT * q.shape[-1] ** -0.5 - slopes[:, None, None] * distance.to(q)
    return scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v


def alibi_function_with_other_slopes(q, k, v):
    return alibi_function(q, k, v, slope=-4.0)


def test_run_judges_the_alibi_of_a_function():
    contract = Contract(kind="causal", scale="head", softmax="keys", position="alibi")
    assert run(alibi_function, contract).ok
    assert "alibi" in [finding.check for finding in run(alibi_function_with_other_slopes, contract).failed]


class Latents(Layer):
    """A few latents read a padded sequence: outputs belong to no input."""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.latents = nn.Parameter(torch.randn(5, dim))

    def forward(self, x, mask=None):
        parts = ((self.q, self.latents.expand(len(x), -1, -1)), (self.k, x), (self.v, x))
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part, y in parts)
        mask = None if mask is None else mask[:, None, None].expand(-1, 1, 5, -1)
        return self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).nan_to_num().transpose(1, 2).flatten(2))


class LatentsThatReadPadding(Latents):
    def forward(self, x, mask=None):
        return super().forward(x) if mask is None else super().forward(x, mask) + 0.1 * super().forward(x)


def test_run_judges_the_padding_of_latents():
    assert run(Latents, padding=True).ok
    assert run(LatentsThatReadPadding, padding=True).failed


def causal_from_the_start(q, k, v):
    """Right under a contract that says nothing of more keys than queries; wrong in 16 bits."""
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scale = q.shape[-1] ** (-0.5 if q.dtype.itemsize > 2 else -1.0)
    return (q @ k.mT * scale).masked_fill(~mask, -torch.inf).softmax(-1) @ v


def test_run_does_not_blame_an_alignment_that_was_not_promised():
    diagnosis = run(causal_from_the_start, TEXTBOOK).diagnosis
    assert diagnosis is not None and diagnosis.family == "scale"


class UnscaledKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        hidden = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
        scores = torch.einsum("bhtd,bhsd->bhts", query, key) / math.sqrt(query.shape[-1])
        weights = torch.softmax(scores.masked_fill(hidden, -1e9), -1)
        ctx.save_for_backward(query, key, value, weights)
        return torch.einsum("bhts,bhsd->bhtd", weights, value)

    @staticmethod
    def backward(ctx, upstream):
        query, key, value, weights = ctx.saved_tensors
        change = torch.einsum("bhtd,bhsd->bhts", upstream, value)
        change = weights * (change - torch.einsum("bhts,bhts->bht", weights, change)[..., None])
        to_query = torch.einsum("bhts,bhsd->bhtd", change, key) / math.sqrt(query.shape[-1])
        to_key = torch.einsum("bhts,bhtd->bhsd", change, query)
        return to_query, to_key, torch.einsum("bhts,bhtd->bhsd", weights, upstream)


def unscaled_keys(query, key, value):
    return UnscaledKeys.apply(query, key, value)


def plain(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unscaled_keys, "in the backward pass of UnscaledKeys, the gradient of key is √d times the derivative"),
        (scaled_twice_backward, "in the backward pass of HandWritten, the gradient of q is 1/√d of the derivative"),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_run_reports_one_mistake_for_a_wrong_factor_in_a_backward_pass(function, words):
    report = run(function, Contract(), like=plain)
    assert report.diagnosis is not None
    assert report.diagnosis.words.startswith(words), report.diagnosis
    vague = [f for f in report.failed if "gradient" in f.check + f.evidence and words not in (f.hint or "")]
    assert not vague
    assert sum("gradient" in mistake.fix for mistake in find_mistakes(report)) == 1


class TimeFirst(nn.Module):
    """On (t, b, c), with a padding mask under a name of its own."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def per_head(self, padding_mask):
        return padding_mask.repeat_interleave(self.heads, dim=0)

    def forward(self, x, source_padding_mask=None):
        """x: (seq_len, batch, dim); source_padding_mask: (batch, seq_len), True = padding."""
        t, b, c = x.shape
        q, k, v = (y.reshape(t, b * self.heads, -1).transpose(0, 1) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if source_padding_mask is not None:
            scores = scores.masked_fill(self.per_head(source_padding_mask)[:, None], -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(0, 1).reshape(t, b, c))


class TimeFirstTiled(TimeFirst):
    def per_head(self, padding_mask):
        return padding_mask.repeat(self.heads, 1)


class OnePaddingForAll(Layer):
    """The padding of any row is hidden in every row."""

    def forward(self, x, x_pad_mask=None):
        self.hidden = torch.zeros(x.shape[:2], dtype=torch.bool) if x_pad_mask is None else self.hide(x_pad_mask)
        return super().forward(x)

    def hide(self, mask):
        return mask.any(0, keepdim=True)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.where(self.hidden, -1e9, 0.0)[:, None, None].to(q)
        )


class PaddingOfEachRow(OnePaddingForAll):
    def hide(self, mask):
        return mask


@pytest.mark.parametrize(
    ("right", "wrong"), [(TimeFirst, TimeFirstTiled), (PaddingOfEachRow, OnePaddingForAll)], ids=lambda c: c.__name__
)
def test_run_recognizes_a_padding_mask_under_a_name_of_its_own(right, wrong):
    contract = Contract(kind="bidirectional", padding=True)
    passed = run(right, contract)
    assert passed.ok, passed.failed
    assert not passed.unproven
    report = run(wrong, contract)
    assert not report.unproven
    assert report.diagnosis is not None
    assert report.diagnosis.family == "padding", report.diagnosis
    assert "finite;" not in report.diagnosis.words


class TooShortBias(Layer):
    """ALiBi from a table of distances up to 31; keys farther away get a bias of 0."""

    def attend(self, q, k, v):
        t = q.shape[-2]
        distance = torch.arange(t)[:, None] - torch.arange(t)
        slopes = 2.0 ** (-8 / self.heads * torch.arange(1, self.heads + 1))
        bias = -slopes[:, None, None] * torch.where(distance < 32, distance, 0)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + bias.to(q)
        return scores.masked_fill(~below(t), -torch.inf).softmax(-1) @ v


class FilledBias(Layer):
    """ALiBi by key, cut from a table of 40 keys that is filled with zeros on the left."""

    def attend(self, q, k, v):
        t = q.shape[-2]
        slopes = 2.0 ** (-8 / self.heads * torch.arange(1, self.heads + 1))
        keys = F.pad(torch.arange(-39, 1), (max(t - 40, 0), 0))[-t:]
        bias = (slopes[:, None] * keys)[:, None] + torch.full((t, t), -torch.inf).triu(1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q))


@pytest.mark.parametrize("layer", [TooShortBias, FilledBias])
def test_run_does_not_call_a_large_bias_a_mask(layer):
    report = run(layer, Contract(kind="causal", scale="head", position="alibi"))
    assert report.diagnosis is not None
    assert "not see" not in report.diagnosis.words
    assert "bias" in report.diagnosis.words or not report.diagnosis.exact, report.diagnosis


def test_describe_visibility_names_a_large_bias_and_hidden_keys_apart():
    allowed = torch.ones(9, 9).tril()
    far, hidden = allowed.clone().double(), allowed.clone().double()
    far[1:, 1:] *= 1e-7
    hidden[1:, 1:] *= 1e-15
    words = describe_visibility([(far, allowed.bool())])
    assert words == ("scores changed", "a bias is added to the scores of 8 queries (up to 16.1, at the first key)")
    assert "not see" in describe_visibility([(hidden, allowed.bool())])[1]
