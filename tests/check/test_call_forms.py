"""Unusual but common ways to be called are found without an adapter."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract
from qkv.check.calling import make_implementation

CAUSAL = Contract(kind="causal")


def sdpa(q, k, v, causal=True):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def packed(qkv, causal=False):
    return sdpa(*(x.transpose(1, 2) for x in qkv.unbind(2)), causal).transpose(1, 2)


def packed_channels(qkv, num_heads):
    b, t, _ = qkv.shape
    q, k, v = qkv.view(b, t, 3, num_heads, -1).permute(2, 0, 3, 1, 4)
    return sdpa(q, k, v).transpose(1, 2).reshape(b, t, -1)


def keyword_only(*, value, key, query, mask=None):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def merged(q, k, v, n_heads):
    q, k, v = (x.unflatten(-1, (n_heads, -1)).transpose(1, 2) for x in (q, k, v))
    return {"weights": q @ k.mT, "output": sdpa(q, k, v).transpose(1, 2).flatten(2)}


def ragged(q, k, v, cu_seqlens, max_seqlen, causal=False):
    rows = zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False)
    parts = [sdpa(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)), causal)[0].transpose(0, 1) for a, b in rows]
    return torch.cat(parts)


def ragged_packed(qkv, cu_seqlens, max_seqlen, causal=False):
    return ragged(*qkv.unbind(1), cu_seqlens, max_seqlen, causal)


def tokens_then_rows(query, key, value, mask=None):
    weights = torch.einsum("tbhd,sbhd->bhts", query, key) * query.shape[-1] ** -0.5
    if mask is not None:
        weights = weights.masked_fill(~mask, -torch.inf)
    return torch.einsum("bhts,sbhd->tbhd", weights.softmax(-1), value)


def with_lengths(q, k, v, valid_lens=None):
    mask = None
    if valid_lens is not None:
        mask = (torch.arange(k.shape[2]) < valid_lens[:, None])[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def in_numpy(q, k, v):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def of_weights(x, Wq, Wk, Wv):  # noqa: N803
    return sdpa(x @ Wq, x @ Wk, x @ Wv)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (packed, "packed(qkv) with (b, t, 3, h, d), causal=True"),
        (packed_channels, "packed_channels(qkv) with (b, t, 3·c)"),
        (keyword_only, "with (b, h, t, d), mask= a causal mask"),
        (merged, "with (b, t, c), which it splits into heads"),
        (ragged, "with (tokens of all rows, h, d), causal=True, padding as rows of unequal length"),
        (ragged_packed, "(qkv) with (tokens of all rows, 3, h, d), causal=True, padding as rows of unequal length"),
        (tokens_then_rows, "with (t, b, h, d), mask= a causal mask"),
        (with_lengths, "padding as valid_lens"),
        (in_numpy, "as arrays of numpy"),
        (of_weights, "vectors (b, t, c)"),
    ],
)
def test_make_implementation_finds_the_call_of_a_function(function, said):
    impl = make_implementation(function, function.__name__, CAUSAL)
    assert said in impl.how
    x = impl.random_input(2, 9, torch.Generator().manual_seed(0))
    out = impl.run(x)
    assert out.shape[:2] == (2, 9)
    assert torch.allclose(out[:1], impl.run(x[:1]), atol=1e-5)  # rows do not mix
    if impl.takes_padding:
        real = torch.ones(2, 9, dtype=torch.bool)
        real[0, 6:] = False
        assert torch.allclose(impl.run(x, real)[0, :6], impl.run(x[:1, :6])[0])


class Layer(nn.Module):
    def __init__(self, dim: int = 32, context: int | None = None):
        super().__init__()
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(context or dim, 2 * dim)

    def attend(self, x, memory=None, causal=False):
        k, v = self.kv(x if memory is None else memory).chunk(2, -1)
        return sdpa(self.q(x), k, v, causal)


def make_layer(dim, heads=4):
    class Made(Layer):
        def forward(self, x):
            return self.attend(x)

    return Made(dim)


def make_function(scale: float = 1.0):
    return lambda q, k, v: sdpa(q, k, v)


class KeywordOnly(Layer):
    def forward(self, *, query, key, value):
        return self.attend(query, key)


class Crossed(Layer):
    def __init__(self, dim, context_dim=48):
        super().__init__(dim, context_dim)

    def forward(self, x, context=None):
        return self.attend(x, context)


class SequenceFirst(Layer):
    def forward(self, x):
        return self.attend(x.transpose(0, 1)).transpose(0, 1)


class Multiple(Layer):
    def forward(self, x):
        assert x.shape[1] % 8 == 0, "in blocks of 8"
        return self.attend(x)


class Fixed(Layer):
    def __init__(self, dim: int = 32):
        super().__init__(dim)
        self.pos = nn.Parameter(torch.zeros(77, dim))

    def forward(self, x):
        return self.attend(x + self.pos)


@dataclass
class Settings:
    width: int = 24


@dataclass
class Result:
    loss: float
    states: torch.Tensor


class FromSettings(Layer):
    def __init__(self, settings: Settings):
        super().__init__(settings.width)

    def forward(self, x):
        return Result(0.0, self.attend(x))


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.LazyLinear(48)
        self.out = None

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        if self.out is None:
            self.out = nn.Linear(16, 16)
        return self.out(sdpa(q, k, v, False))


class Lengths(Layer):
    def forward(self, x, lengths):
        k, v = self.kv(x).chunk(2, -1)
        hidden = torch.arange(x.shape[1]) >= lengths[:, None]
        return ((self.q(x) @ k.mT).masked_fill(hidden[:, None], -1e30)).softmax(-1) @ v


class Perceiver(nn.Module):
    def __init__(self, input_dim, num_latents=5):
        super().__init__()
        self.latents, self.kv = nn.Parameter(torch.zeros(num_latents, 16)), nn.Linear(input_dim, 32)

    def forward(self, data):
        k, v = self.kv(data).chunk(2, -1)
        return sdpa(self.latents.expand(len(data), -1, -1), k, v, False)


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames, self.layer = nn.Conv1d(1, 32, 80, 40), Layer()

    def forward(self, waveform):
        return self.layer.attend(self.frames(waveform[:, None]).transpose(1, 2)).mean(1)


class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.layer = nn.Conv3d(3, 32, (2, 8, 8), (2, 8, 8)), Layer()

    def forward(self, clip):
        return self.layer.attend(self.patches(clip).flatten(2).transpose(1, 2))


class Dot(nn.Module):
    """No projections of its own."""

    def forward(self, queries, keys, values, mask=None):
        weights = (queries @ keys.mT).softmax(-1)
        return weights, weights @ values


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (make_layer, "vectors (b, t, c), built as make_layer(dim=32)"),
        (make_function, "(q, k, v) with (b, h, t, d), built as make_function()"),
        (KeywordOnly, "vectors (b, t, c) as query, key, value"),
        (Crossed, "context (b, s, c) of 48 features and x (b, t, c)"),
        (SequenceFirst, "vectors (t, b, c)"),
        (Multiple, "of lengths that are multiples of 8"),
        (Fixed, "of length 77 alone"),
        (FromSettings, "vectors (b, t, c), built as FromSettings(settings=Settings(width=24))"),
        (Lazy, "vectors (b, t, c)"),
        (Lengths, "padding as lengths"),
        (Perceiver, "vectors (b, t, c)"),
        (Wave, "waveforms (b, 3200), changed in 8 stretches of 400"),
        (Video, "video (b, 3, 4, 32, 32), changed frame by frame"),
        (Dot, "(q, k, v) with (b, h, t, d)"),
    ],
)
def test_make_implementation_finds_the_call_of_a_class_or_factory(target, said):
    impl = make_implementation(target, target.__name__, Contract())
    assert said in impl.how
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(0))
    first, again = impl.run(x), impl.run(x)
    assert torch.equal(first, again)
    alone = impl.run(x[:1])
    assert torch.allclose(first[:1], alone)  # rows are rows of the batch


def test_make_implementation_leaves_a_forgotten_batch_first_to_the_checks():
    class Forgotten(nn.Module):
        """Positions along the second axis, attention along the first: it mixes rows."""

        def __init__(self):
            super().__init__()
            self.table, self.pos = nn.Embedding(64, 32), nn.Parameter(torch.zeros(512, 32))
            self.attention = nn.MultiheadAttention(32, 4)

        def forward(self, idx):
            x = self.table(idx) + self.pos[: idx.shape[1]]
            return self.attention(x, x, x, need_weights=False)[0]

    assert "tokens (b, t)" in make_implementation(Forgotten, "Forgotten", Contract()).how


class ListedParameters(nn.Module):
    """A model of functions on parameters, among which the table of tokens is not the largest."""

    def __init__(self, vocab=50, dim=16):
        super().__init__()
        shapes = {"table": (vocab, dim), "places": (300, dim), "wide": (dim, 4 * dim), "narrow": (4 * dim, dim)}
        self.names = list(shapes)
        self.values = nn.ParameterList(torch.randn(shape) for shape in shapes.values())

    def forward(self, tokens):
        p = dict(zip(self.names, self.values, strict=True))
        x = p["table"][tokens] + p["places"][: tokens.shape[1]]
        return (x.cumsum(1) @ p["wide"]).tanh() @ p["narrow"] @ p["table"].T


class OneHot(nn.Module):
    """A model whose table is read by a product."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(50, 16)), nn.Parameter(torch.randn(16, 200))

    def forward(self, idx):
        return (F.one_hot(idx, 50).to(self.table) @ self.table).cumsum(-2) @ self.head


@pytest.mark.parametrize("model", [ListedParameters, OneHot])
def test_make_implementation_measures_the_vocabulary_of_tables_that_are_parameters(model):
    impl = make_implementation(model, model.__name__, CAUSAL)
    assert (impl.level, impl.vocab_size) == ("model", 50)
    assert "tokens (b, t)" in impl.how
