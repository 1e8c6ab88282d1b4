"""The name of a bug that shows under a condition says what is wrong and when: lengths, pieces of a cache, modes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import run
from qkv.check.checks.backward_terms import name_term


def rotate(x, places, base=1e4, dtype=torch.float64):
    dims = x.shape[-1]
    frequencies = base ** (-torch.arange(0, dims, 2, dtype=dtype) / dims)
    angles = places.to(dtype)[:, None] * frequencies
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attend(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Fused(nn.Module):
    """Self-attention with one projection; `mix` gets q, k and v (b, h, t, d)."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def parts(self, x):
        return [y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)]

    def forward(self, x):
        return self.out(self.mix(*self.parts(x)).transpose(1, 2).flatten(2))

    def mix(self, q, k, v):
        return attend(q, k, v, torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril())


# -- lengths that are filled -------------------------------------------------------------------------------------------


class FillsToEven(Fused):
    def forward(self, x):
        t = x.shape[1]
        return super().forward(F.pad(x, (0, 0, 0, t % 2)))[:, :t]

    def mix(self, q, k, v):
        return attend(q, k, v)


class FillsToEights(nn.Module):
    """Three projections, and loops over heads."""

    def __init__(self, width=24, n_heads=3):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        x = torch.cat((x, x.new_zeros(b, -t % 8, c)), 1)
        parts = [w(x).chunk(self.n_heads, -1) for w in (self.wq, self.wk, self.wv)]
        heads = [(q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v for q, k, v in zip(*parts, strict=True)]
        return self.wo(torch.cat(heads, -1)[:, :t])


@pytest.mark.parametrize(("target", "when"), [(FillsToEven, "odd lengths"), (FillsToEights, "not multiples of 8")])
def test_tokens_that_fill_a_length_are_named(target, when):
    cause = run(target, "encoder").diagnosis
    assert cause.exact
    assert "added to fill the length are not masked" in cause.words
    assert when in cause.condition


class LooksBack(Fused):
    """Causal in blocks, each with the block before it; the first one gets the last."""

    size = 8

    def forward(self, x):
        b, t, c = x.shape
        n, h = -(-t // self.size), self.heads
        blocks = F.pad(x, (0, 0, 0, n * self.size - t)).view(b, n, self.size, c)
        q, k, v = (y.unflatten(-1, (h, -1)).transpose(2, 3) for y in self.qkv(blocks).chunk(3, -1))  # (b, n, h, s, d)
        k, v = (torch.cat((y.roll(1, 1), y), 3) for y in (k, v))
        i, j = torch.arange(self.size)[:, None], torch.arange(-self.size, self.size)
        out = attend(q, k, v, (j <= i) & ((j >= 0) | torch.tensor(n > 1)))
        return self.out(out.transpose(2, 3).reshape(b, n * self.size, c)[:, :t])


def test_a_look_back_that_wraps_around_is_named():
    cause = run(LooksBack, kind="causal").diagnosis
    assert cause.exact
    assert "the first 8 queries see later keys" in cause.words
    assert "wraps around" in cause.words
    assert cause.condition == "from 9 tokens on"


# -- float32 inside ----------------------------------------------------------------------------------------------------


class WideWindow(Fused):
    """Angles are computed in float32, as usual."""

    window = 18

    def mix(self, q, k, v):
        places = torch.arange(q.shape[2])
        distance = places[:, None] - places
        q, k = (rotate(x, places, dtype=torch.float32) for x in (q, k))
        return attend(q, k, v, (distance >= 0) & (distance <= self.window))


class WideWindowInFloat32Softmax(WideWindow):
    def mix(self, q, k, v):
        places = torch.arange(q.shape[2])
        distance = places[:, None] - places
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores.masked_fill((distance < 0) | (distance > self.window), -math.inf)
        return scores.softmax(-1, dtype=torch.float32).to(v) @ v


@pytest.mark.parametrize("target", [WideWindow, WideWindowInFloat32Softmax])
def test_a_window_off_by_one_is_named_although_parts_are_computed_in_float32(target):
    cause = run(target, kind="window", window=18).diagnosis
    assert cause.exact
    assert cause.words == "queries see a window of 19, required: 18"


# -- a prefix ----------------------------------------------------------------------------------------------------------


class Prefix(Fused):
    def mix(self, q, k, v):
        t = q.shape[2]
        return attend(q, k, v, self.mask(torch.arange(t)[:, None], torch.arange(t)))

    def mask(self, i, j):
        return (j <= i) | (j < 5)


class PrefixSwapped(Prefix):
    def mask(self, i, j):
        return (j <= i) | (i < 5)


class PrefixUnseen(Prefix):
    def mask(self, i, j):
        return ((j <= i) & (j >= 5)) | ((i < 5) & (j < 5))


class PrefixScaledTwice(Prefix):
    def mix(self, q, k, v):
        return super().mix(q if torch.is_grad_enabled() else q * q.shape[-1] ** -0.5, k, v)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (PrefixSwapped, "the first 5 tokens (the prefix) see every token"),
        (PrefixUnseen, "tokens after the prefix of 5 do not see it"),
    ],
)
def test_a_wrong_prefix_is_named(target, words):
    assert words in run(target, kind="prefix").diagnosis.words


def test_a_bug_beside_a_right_prefix_is_identified():
    assert run(Prefix, kind="prefix", scale="head").ok
    cause = run(PrefixScaledTwice, kind="prefix", scale="head").diagnosis
    assert cause.exact
    assert cause.words.startswith("the scale is 1/d")
    assert cause.condition == "without gradients"


# -- positions ---------------------------------------------------------------------------------------------------------


class StretchedBase(Fused):
    def mix(self, q, k, v):
        t = q.shape[2]
        q, k = (rotate(x, torch.arange(t), 1e4 * max(1, t / 40) ** 1.3) for x in (q, k))
        return super().mix(q, k, v)


class SqueezedPositions(Fused):
    def mix(self, q, k, v):
        t = q.shape[2]
        q, k = (rotate(x, torch.arange(t) * min(1, 40 / t)) for x in (q, k))
        return super().mix(q, k, v)


@pytest.mark.parametrize(
    ("target", "words"),
    [(StretchedBase, "the base of RoPE depends on the sequence length"),
     (SqueezedPositions, "the step of positions depends on the sequence length")],
)  # fmt: skip
def test_angles_that_depend_on_the_length_are_fitted(target, words):
    cause = run(target, kind="causal", position="relative").diagnosis
    assert cause.exact
    assert cause.words.startswith(words)
    assert cause.condition == "from 41 tokens on"


class ShortAlibi(Fused):
    def bias(self, i, j):
        return (i - j) * (i - j < 24)

    def mix(self, q, k, v):
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])
        slopes = 2.0 ** (-2.0 * torch.arange(1, 5, dtype=q.dtype))
        bias = -slopes[:, None, None] * self.bias(i, j)
        return attend(q, k, v, bias.to(q).masked_fill(j > i, -math.inf))


class WrappedAlibi(ShortAlibi):
    def bias(self, i, j):
        return (i - j) % 24


@pytest.mark.parametrize(
    ("target", "words"),
    [(ShortAlibi, "keys that are 24 or more behind a query get no bias"),
     (WrappedAlibi, "distances wrap: in the bias they start again after 24")],
)  # fmt: skip
def test_an_alibi_table_that_is_too_short_is_named(target, words):
    cause = run(target, kind="causal", scale="head", position="alibi").diagnosis
    assert cause.exact
    assert words in cause.words


# -- a cache -----------------------------------------------------------------------------------------------------------


class Cached(Fused):
    """A cache that is passed in and returned; one new token has a path of its own."""

    rotary_dims = 4

    def turn(self, x, places, dims):
        return torch.cat((rotate(x[..., :dims], places), x[..., dims:]), -1)

    def one(self, q, k, v, places):
        return self.turn(q, places, self.rotary_dims), self.turn(k, places, self.rotary_dims), v

    def forward(self, x, past_kv=None):
        q, k, v = self.parts(x)
        old = 0 if past_kv is None else past_kv[0].shape[2]
        places = torch.arange(old, old + x.shape[1])
        if past_kv is not None and x.shape[1] == 1:
            q, k, v = self.one(q, k, v, places)
        else:
            q, k, v = Cached.one(self, q, k, v, places)
        if past_kv is not None:
            k, v = torch.cat((past_kv[0], k), 2), torch.cat((past_kv[1], v), 2)
        mask = torch.arange(k.shape[2]) <= places[:, None]
        return self.out(attend(q, k, v, mask).transpose(1, 2).flatten(2)), (k, v)


class RotatesAllOfOne(Cached):
    def one(self, q, k, v, places):
        return rotate(q, places), rotate(k, places), v


class ScalesOneTwice(Cached):
    def one(self, q, k, v, places):
        q, k, v = super().one(q, k, v, places)
        return q * q.shape[-1] ** -0.5, k, v


class RotatesQueryOnly(Cached):
    def one(self, q, k, v, places):
        return super().one(q, k, v, places)[0], k, v


@pytest.mark.parametrize(
    ("target", "words"),
    [(RotatesAllOfOne, "all of the head dim is rotated, not only its first 4 dims"),
     (ScalesOneTwice, "the scale is 1/d"), (RotatesQueryOnly, "only queries are rotated")],
)  # fmt: skip
def test_a_bug_of_the_path_for_one_new_token_is_named(target, words):
    assert run(Cached, kind="causal", cache=True).ok
    cause = run(target, kind="causal", position="relative", cache=True).diagnosis
    assert cause.exact
    assert cause.words.startswith("with one new token and a cache: ")
    assert words in cause.words


class ScalesLongTwice(Cached):
    def one(self, q, k, v, places):
        q, k, v = super().one(q, k, v, places)
        return (q * q.shape[-1] ** -0.5 if int(places[0]) >= 30 else q), k, v


def test_a_bug_from_some_number_of_cached_tokens_on_is_named():
    cause = run(ScalesLongTwice, kind="causal", cache=True).diagnosis
    assert cause.exact
    assert cause.words.startswith("with one new token and a cache, once 30 tokens are cached: the scale is 1/d")


RING = """
import torch
from torch import nn
import torch.nn.functional as F

WINDOW = 16

class Ring(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def rotate(self, x, first):
        d = x.shape[-1]
        places = torch.arange(first, first + x.shape[2]).double()
        angles = places[:, None] * 1e4 ** (-torch.arange(0, d, 2).double() / d)
        a, b = x.chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).to(x)

    def forward(self, x, ring=None):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        start = 0 if ring is None else ring["count"]
        if ring is not None:
            new = k, v
            if ring["k"] is not None:
                n = min(start, WINDOW)
                held = [ring[name][:, :, :n] for name in "kv"]
                if start > WINDOW:
                    held = [ORDER(y, start % WINDOW) for y in held]
                k, v = torch.cat((held[0], k), 2), torch.cat((held[1], v), 2)
            for name, part in zip("kv", new):
                if ring[name] is None:
                    ring[name] = part.new_zeros(*part.shape[:2], WINDOW, part.shape[3])
                for i in range(part.shape[2]):
                    ring[name][:, :, (start + i) % WINDOW] = part[:, :, i].detach()
            ring["count"] = start + x.shape[1]
        first = start + x.shape[1] - k.shape[2]
        q, k = self.rotate(q, start), self.rotate(k, first)
        gap = torch.arange(start, start + x.shape[1])[:, None] - torch.arange(first, start + x.shape[1])
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=(gap >= 0) & (gap < WINDOW))
        return self.out(out.transpose(1, 2).flatten(2))

def call(target, x):
    return target(x)

def start_cache(target, batch):
    return {"k": None, "v": None, "count": 0}

def step(target, x, cache):
    return target(x, cache), cache
"""


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("y.roll(-s, 2)", ""),
        ("y", "in the order of slots, not of tokens"),
        ("y.roll(1 - s, 2)", "one slot off: the newest comes first"),
        ("y.roll(-s - 1, 2)", "one slot off: the oldest comes last"),
    ],
)
def test_a_ring_that_is_read_in_a_wrong_order_is_named(order, words, tmp_path):
    file = tmp_path / "ring.py"
    file.write_text(RING.replace("ORDER(y, start % WINDOW)", f"(lambda y, s: {order})(y, start % WINDOW)"))
    report = run(f"{file}:Ring", adapter=file, kind="window", window=16, cache=True)
    if not words:
        assert report.ok
        return
    assert report.diagnosis.exact
    assert report.diagnosis.words.startswith("once the ring of 16 slots has wrapped")
    assert words in report.diagnosis.words


# -- padding and another sequence --------------------------------------------------------------------------------------


class ForgetsPadding(Fused):
    """The mask reaches short sequences only."""

    def forward(self, x, attention_mask=None):
        q, k, v = self.parts(x)
        t = x.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        if attention_mask is not None and t <= 48:
            mask = mask & attention_mask[:, None, None].bool() | torch.eye(t, dtype=torch.bool)
        return self.out(attend(q, k, v, mask).transpose(1, 2).flatten(2))


class ForgetsPaddingInBothDirections(FillsToEights):
    def forward(self, x, attention_mask=None):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)) for w in (self.wq, self.wk, self.wv))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        if attention_mask is not None and x.shape[1] < 40:
            scores = scores.masked_fill(~attention_mask.bool()[:, None, None], -1e9)
        return self.wo(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2))


@pytest.mark.parametrize(
    ("target", "kind", "first"),
    [(ForgetsPadding, "causal", 49), (ForgetsPaddingInBothDirections, "bidirectional", 40)],
)
def test_padding_that_only_long_sequences_ignore_is_named(target, kind, first):
    cause = run(target, kind=kind, padding=True).diagnosis
    assert cause.exact
    assert cause.words == "the padding mask never reaches the scores"
    assert cause.condition == f"with padding, from {first} tokens on"


class Translator(nn.Module):
    """The keys and values of the source are kept, whatever the source is."""

    def __init__(self, vocab=40, dim=32, heads=4):
        super().__init__()
        self.heads, self.kept = heads, None
        self.src, self.tgt = nn.Embedding(vocab, dim), nn.Embedding(vocab, dim)
        self.own, self.cross = nn.Linear(dim, 3 * dim), nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, vocab)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def memory(self, src):
        if self.kept is None or self.kept[0].shape[2] != src.shape[1] or len(self.kept[0]) != len(src):
            self.kept = tuple(self.split(w(self.src(src))) for w in self.cross[1:])
        return self.kept

    def forward(self, src, tgt):
        x = self.tgt(tgt)
        q, k, v = (self.split(y) for y in self.own(x).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        k, v = self.memory(src)
        return self.out(x + attend(self.split(self.cross[0](x)), k, v).transpose(1, 2).flatten(2))


class TranslatorInInference(Translator):
    def memory(self, src):
        if torch.is_grad_enabled():
            self.kept = None
        return super().memory(src)


@pytest.mark.parametrize(("target", "when"), [(Translator, ""), (TranslatorInInference, "without gradients")])
def test_a_source_that_is_kept_for_another_one_is_named(target, when):
    cause = run(target, kind="causal").diagnosis
    assert cause.family == "state"
    assert "`self.kept`" in cause.words
    assert cause.condition == when


# -- a mode ------------------------------------------------------------------------------------------------------------


class MaskedInTraining(nn.Module):
    """One projection for attention and the MLP, so that its parts cannot be told apart."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads, self.all = heads, nn.Linear(dim, 5 * dim)
        self.out = nn.Linear(2 * dim, dim)

    def masks(self):
        return self.training

    def forward(self, x):
        *parts, a, b = self.all(x).chunk(5, -1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.masks())
        return self.out(torch.cat((out.transpose(1, 2).flatten(2), a * b.sigmoid()), -1))


class MaskedWithGradients(MaskedInTraining):
    def masks(self):
        return torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("target", "when"), [(MaskedInTraining, "in eval mode"), (MaskedWithGradients, "without gradients")]
)
def test_the_mode_in_which_the_future_leaks_is_named(target, when):
    cause = run(target, "textbook").diagnosis
    assert cause.family == "no mask"
    assert cause.condition == when


# -- backward passes ---------------------------------------------------------------------------------------------------


class Written(torch.autograd.Function):
    """Causal attention; `wrong` is one bug of its backward pass."""

    @staticmethod
    def forward(ctx, q, k, v, wrong):
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        p = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~keep, -math.inf).softmax(-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.wrong = wrong
        return p @ v

    @staticmethod
    def backward(ctx, *gradients):
        (g,) = gradients
        q, k, v, p = ctx.saved_tensors
        by_weights = g @ v.mT
        total = (by_weights * p).sum(-1, keepdim=True)
        if ctx.wrong == "no row sum":
            total = 0.0
        if ctx.wrong == "sum over queries":
            total = (by_weights * p).sum(-2, keepdim=True)
        scores = p * (by_weights - total) * q.shape[-1] ** -0.5
        if ctx.wrong == "no mask again":
            all_scores = q @ k.mT * q.shape[-1] ** -0.5
            p = (all_scores - all_scores.masked_fill(p == 0, -math.inf).logsumexp(-1, keepdim=True)).exp()
            scores = p * (by_weights - total) * q.shape[-1] ** -0.5
        if ctx.wrong == "by values":
            scores = p * (by_weights - (g * v).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        rows = slice(12, None) if ctx.wrong == "last block" else slice(None)
        k_gradient = scores[..., rows, :].mT @ q[..., rows, :]
        v_gradient = p @ g if ctx.wrong == "not transposed" else p.mT @ g
        return scores @ k, k_gradient, v_gradient, None


@pytest.mark.parametrize("ndim", [3, 4])
@pytest.mark.parametrize(
    ("wrong", "place", "words"),
    [
        ("no row sum", 0, "row-sum term is missing"),
        ("no row sum", 1, "row-sum term is missing"),
        ("sum over queries", 1, "summed over queries"),
        ("last block", 1, "only the last block of queries, from 12 on, contributes"),
        ("no mask again", 0, "the mask is not applied where the weights are computed again"),
        ("no mask again", 2, "the mask is not applied where the weights are computed again"),
        ("by values", 1, "rowsum(g ⊙ v), not rowsum(g ⊙ out)"),
        ("not transposed", 2, "the weights are not transposed"),
    ],
)
def test_the_wrong_term_of_a_backward_pass_is_named(wrong, place, words, ndim):
    parts = [torch.randn(2, 3, 14, 6, dtype=torch.float64).flatten(0, 4 - ndim) for _ in range(3)]
    assert words in name_term(Written.apply, [*parts, wrong], place)


def test_no_term_is_named_for_a_function_that_is_not_attention():
    parts = [torch.randn(2, 3, 14, 6, dtype=torch.float64) for _ in range(3)]
    assert name_term(lambda q, k, v: q * k + v, parts, 0) == ""
