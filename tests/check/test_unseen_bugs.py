"""Bugs that were missed or misnamed: far out, after earlier calls, in one dtype, under padding; each in two styles."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract, run

TEXTBOOK = Contract(kind="causal", scale="head", softmax="keys")
ENCODER = Contract(kind="bidirectional", scale="head", softmax="keys")
ALIBI = Contract(kind="causal", scale="head", softmax="keys", position="alibi")
RELATIVE = Contract(kind="causal", scale="head", softmax="keys", position="relative")


def below(t, s=None):
    """(t, s): True up to the diagonal, which ends in the last key."""
    s = t if s is None else s
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)


class Layer(nn.Module):
    """Causal attention with a bias (h, t, t); subclasses write `bias`, `mask` or `attend`."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def attend(self, q, k, v):
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.bias(q.shape[2]).to(q)
        return scores.masked_fill(~self.mask(q.shape[2]), -torch.inf).softmax(-1) @ v

    def bias(self, t):
        return torch.zeros(t, t)

    def mask(self, t):
        return below(t)


class Fused(Layer):
    """The same with a fused projection and a fused kernel."""

    def __init__(self, n_embd=32, n_head=4):
        super().__init__(n_embd, n_head)
        del self.q, self.k, self.v
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.o(self.attend(q, k, v).transpose(1, 2).reshape(b, t, c))

    def attend(self, q, k, v):
        mask = self.bias(q.shape[2]).to(q).masked_fill(~self.mask(q.shape[2]), -math.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def cause_of(target, contract, **options):
    report = run(target, contract, **options)
    assert not report.ok
    assert report.diagnosis is not None
    return report.diagnosis


def made(base, **parts):
    return type(f"{base.__name__}With{'And'.join(parts)}", (base,), parts)


# -- far positions -----------------------------------------------------------------------------------------------------


def alibi(self, t, change=lambda distance: distance):
    place = torch.arange(t)
    slopes = 2.0 ** (-8 * torch.arange(1, self.heads + 1, dtype=torch.float64) / self.heads)
    return -slopes[:, None, None] * change(place[:, None] - place)


@pytest.mark.parametrize("base", [Layer, Fused])
@pytest.mark.parametrize(
    ("change", "words", "condition"),
    [
        (lambda distance: distance.clamp(max=48), "clamped at 48", ""),
        (lambda distance: distance.clamp(max=101), "clamped at 101", ""),
        (lambda distance: distance % 128, "distances wrap: in the bias they start again after 128", ""),
        (lambda distance: distance.to(torch.int8), "distances wrap", "from 129 tokens on"),
    ],
)
def test_alibi_is_compared_at_every_distance(base, change, words, condition):
    assert run(made(base, bias=alibi), ALIBI).ok
    cause = cause_of(made(base, bias=lambda self, t: alibi(self, t, change)), ALIBI)
    assert cause.family == "alibi"
    assert words in cause.words and cause.condition == condition


@pytest.mark.parametrize("base", [Layer, Fused])
def test_positions_that_are_clamped_are_told_from_distances(base):
    def bias(self, t):
        place = torch.arange(t).clamp(max=70)
        return 0.1 * torch.sin(place[:, None] - place).expand(self.heads, t, t)

    cause = cause_of(made(base, bias=bias), RELATIVE)
    assert cause.family == "positions" and cause.condition == "from 72 tokens on"
    assert "all tokens from position 70 on" in cause.words


@pytest.mark.parametrize("base", [Layer, Fused])
def test_a_bias_of_distances_that_depends_on_the_length_is_caught(base):
    def bias(self, t):
        distance = (torch.arange(t)[:, None] - torch.arange(t) - t // 64).abs()
        return -0.1 * distance.expand(self.heads, t, t)

    contract = Contract(kind="bidirectional", scale="head", position="relative")
    everything = {"mask": lambda self, t: torch.ones(t, t, dtype=torch.bool)}
    assert cause_of(made(base, bias=bias, **everything), contract).family == "positions"


@pytest.mark.parametrize("base", [Layer, Fused])
def test_queries_that_are_rotated_alone_behind_a_norm_are_caught(base):
    def rotate(x):
        t, d = x.shape[-2:]
        angles = torch.arange(t)[:, None] * 1e4 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        a, b = x.chunk(2, -1)
        return torch.cat(
            (a * angles.cos().to(x) - b * angles.sin().to(x), b * angles.cos().to(x) + a * angles.sin().to(x)), -1
        )

    def attend(self, q, k, v):
        q, k = F.layer_norm(q, q.shape[-1:]), F.layer_norm(k, k.shape[-1:])
        return base.attend(self, rotate(q), k, v)

    cause = cause_of(made(base, attend=attend), Contract(kind="causal", position="relative"))
    assert cause.family == "rotary"


@pytest.mark.parametrize("base", [Layer, Fused])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_a_mask_of_small_integers_is_named(base, dtype):
    def mask(self, t):
        place = torch.arange(t).to(dtype)
        return place <= place[:, None]

    cause = cause_of(made(base, mask=mask), TEXTBOOK)
    assert cause.exact and cause.words.endswith(
        f"positions in {str(dtype).removeprefix('torch.')}: they overflow and wrap"
    )


# -- what earlier calls leave behind -----------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [Layer, Fused])
def test_a_stored_mask_that_is_cut_wrongly_is_a_bug_of_state_not_of_the_mask(base):
    def mask(self, t):
        if not hasattr(self, "stored") or len(self.stored) < t:
            self.stored = below(t)
        return self.stored[-t:, :t]

    cause = cause_of(made(base, mask=mask), TEXTBOOK)
    assert cause.family == "state" and "`self.stored`" in cause.words


@pytest.mark.parametrize("base", [Layer, Fused])
def test_old_keys_that_only_a_single_token_sees_are_a_bug_of_state(base):
    def attend(self, q, k, v):
        t = q.shape[2]
        if t > 1:
            self.old = k[:1].detach()
            return base.attend(self, q, k, v)
        old = getattr(self, "old", k)[:, :, 1:].expand(len(k), -1, -1, -1).to(k)
        k, v = torch.cat((k, old), 2), torch.cat((v, old), 2)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    cause = cause_of(made(base, attend=attend), TEXTBOOK)
    assert cause.family == "state" and "single token" in cause.condition


# -- padding, rows and caches ------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """An encoder on tokens; `hidden` is what the mask of real tokens hides."""

    def __init__(self, vocab_size=70, dim=32, heads=4):
        super().__init__()
        self.heads, self.embedding, self.o = heads, nn.Embedding(vocab_size, dim), nn.Linear(dim, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, input_ids, attention_mask=None):
        h = self.embedding(input_ids)
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        q, k, v = (part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return h + self.o(self.attend(q, k, v, real[:, None, None].bool()).transpose(1, 2).flatten(2))

    def attend(self, q, k, v, real):
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~real, -1e4).softmax(-1) @ v


def by_fill(self, q, k, v, real):
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(real, -1e4).softmax(-1) @ v


def by_sum(self, q, k, v, real):
    return (q @ k.mT / q.shape[-1] ** 0.5 + real.to(q) * torch.finfo(q.dtype).min).softmax(-1) @ v


@pytest.mark.parametrize("attend", [by_fill, by_sum])
def test_an_inverted_padding_mask_is_not_taken_for_equal_weights(attend):
    assert run(Encoder, ENCODER, padding=True).ok
    cause = cause_of(made(Encoder, attend=attend), ENCODER, padding=True)
    assert cause.family == "padding" and "inverted" in cause.words


def last_row_of_odd_lengths_is_left_out(q, k, v):
    t = q.shape[2]
    pairs = [F.scaled_dot_product_attention(q[:, :, r : r + 2], k, v) for r in range(0, t - 1, 2)]
    return F.scaled_dot_product_attention(q, k, v) if t == 1 else F.pad(torch.cat(pairs, 2), (0, 0, 0, t % 2))


def last_row_of_odd_lengths_is_cleared(q, k, v):
    out = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
    keep = torch.arange(q.shape[2]) < max(q.shape[2] // 2 * 2, 1)
    return out * keep[:, None]


@pytest.mark.parametrize("function", [last_row_of_odd_lengths_is_left_out, last_row_of_odd_lengths_is_cleared])
def test_a_query_that_is_not_computed_is_told_from_one_that_sees_nothing(function):
    cause = cause_of(function, ENCODER)
    assert cause.words == "the output of the last query is 0: it is not computed"
    assert cause.condition == "for odd lengths"


class Cached(nn.Module):
    """A layer with a cache of keys and values, masked top-left where a piece has several tokens."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.qkv, self.o = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, layer_past=None):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if layer_past is not None:
            k, v = torch.cat((layer_past[0], k), 2), torch.cat((layer_past[1], v), 2)
        return self.o(self.attend(q, k, v).transpose(1, 2).flatten(2)), (k, v)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


def top_left_by_mask(self, q, k, v):
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril() | (torch.tensor(q.shape[2]) == 1)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("target", [Cached, made(Cached, attend=top_left_by_mask)])
def test_pieces_of_several_tokens_that_are_aligned_top_left_are_named(target):
    cause = cause_of(target, TEXTBOOK, cache=True)
    assert cause.family == "mask with cache" and "top-left" in cause.words


# -- one dtype ---------------------------------------------------------------------------------------------------------


def no_mask_in_bfloat16(q, k, v):
    mask = None if q.dtype == torch.bfloat16 else below(q.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class NoMaskInBfloat16(Layer):
    def mask(self, t):
        return torch.ones(t, t, dtype=torch.bool) if self.o.weight.dtype == torch.bfloat16 else below(t)


@pytest.mark.parametrize("target", [no_mask_in_bfloat16, NoMaskInBfloat16])
def test_a_missing_mask_in_one_dtype_is_not_a_number_of_zero(target):
    cause = cause_of(target, TEXTBOOK)
    assert (cause.family, cause.condition) == ("no mask", "in bfloat16")


def products_in_bfloat16(q, k, v):
    low = torch.bfloat16 if q.dtype == torch.float16 else q.dtype
    scores = (q.to(low) @ k.to(low).mT).to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
    return scores.masked_fill(~below(q.shape[2], k.shape[2]), -torch.inf).softmax(-1).to(v) @ v


def inputs_in_bfloat16(q, k, v):
    if q.dtype == torch.float16:
        q, k = q.bfloat16().half(), k.bfloat16().half()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=below(q.shape[2], k.shape[2]))


@pytest.mark.parametrize(
    ("function", "what"), [(products_in_bfloat16, "queries and keys"), (inputs_in_bfloat16, "queries and keys")]
)
def test_what_is_held_in_too_few_bits_is_named(function, what):
    cause = cause_of(function, TEXTBOOK)
    assert (cause.family, cause.condition) == ("low precision", "in float16")
    assert cause.words.startswith(what) and "bfloat16" in cause.words


def unshifted_softmax(self, q, k, v):
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~below(q.shape[2]), -torch.inf)
    powers = scores.exp()
    return powers / powers.sum(-1, keepdim=True) @ v if q.dtype == torch.float16 else scores.softmax(-1) @ v


@pytest.mark.parametrize("base", [Layer, Fused])
def test_an_exponential_that_overflows_in_float16_is_named(base):
    cause = cause_of(made(base, attend=unshifted_softmax), TEXTBOOK)
    assert (cause.family, cause.condition) == ("overflow", "in float16")


# -- long sources ------------------------------------------------------------------------------------------------------


class Cross(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.q, self.kv, self.o = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, context):
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q(x), *self.kv(context).chunk(2, -1))
        )
        return self.o(F.scaled_dot_product_attention(q, *self.cut(k, v)).transpose(1, 2).flatten(2))

    def cut(self, k, v):
        return k, v


@pytest.mark.parametrize(
    "cut", [lambda self, k, v: (k[:, :, :40], v[:, :, :40]), lambda self, k, v: (k[:, :, -100:], v[:, :, -100:])]
)
def test_a_long_source_that_is_cut_is_caught(cut):
    contract = Contract(kind="bidirectional", scale="head")
    assert run(Cross, contract).ok
    assert cause_of(made(Cross, cut=cut), contract).family == "cross attention"


def test_an_output_that_is_always_nan_is_not_random():
    target = made(Layer, bias=lambda self, t: torch.full((t, t), -math.inf))
    assert cause_of(target, TEXTBOOK).family not in ("random in eval", "state")
