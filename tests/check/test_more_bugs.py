"""Bugs that only other inputs show: few key heads, padded sources, prompts padded on the left; each in two styles."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract, run
from qkv.check.checks.generate import generates_left_padded
from qkv.check.hypotheses.visibility import describe_visibility

TEXTBOOK = Contract(kind="causal", scale="head", softmax="keys")
PADDED = Contract(kind="causal", padding=True)


def below(t):
    return torch.ones(t, t, dtype=torch.bool).tril()


# -- a bias that gets as small as rounding is no mask ------------------------------------------------------------------


class SteepSlopes(nn.Module):
    """ALiBi whose slopes begin at 1."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        t = x.shape[1]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        slopes = 2.0 ** (-8 / self.heads * torch.arange(self.heads, dtype=x.dtype))
        distance = torch.arange(t) - torch.arange(t)[:, None]
        bias = (slopes[:, None, None] * distance).masked_fill(~below(t), -torch.inf)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))


class SteepLoop(nn.Module):
    """The same head by head, with eight heads."""

    def __init__(self, width=64):
        super().__init__()
        self.queries, self.keys, self.values, self.merge = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        n, outs, size = x.size(1), [], x.size(2) // 8
        parts = [layer(x).split(size, -1) for layer in (self.queries, self.keys, self.values)]
        for head, (q, k, v) in enumerate(zip(*parts, strict=True)):
            scores = q @ k.mT / math.sqrt(size)
            scores = scores - 0.5**head * (torch.arange(n)[:, None] - torch.arange(n)).to(x)
            outs.append(scores.masked_fill(~below(n), float("-inf")).softmax(-1) @ v)
        return self.merge(torch.cat(outs, -1))


@pytest.mark.parametrize("layer", [SteepSlopes, SteepLoop])
def test_run_names_steep_alibi_slopes_and_no_window(layer):
    report = run(layer, TEXTBOOK, position="alibi")
    assert report.diagnosis is not None
    assert report.diagnosis.family == "alibi", report.diagnosis
    assert "window" not in report.diagnosis.words


@pytest.mark.parametrize("slope", [0.75, 1.5])
def test_describe_visibility_tells_a_steep_bias_from_a_window(slope):
    t = 40
    distance = (torch.arange(t)[:, None] - torch.arange(t)).double()
    steep = (-slope * distance).exp().masked_fill(~below(t), 0.0)
    steep = torch.where(steep < 1e-13, 3e-15, steep).masked_fill(~below(t), 0.0)  # what rounding leaves of it
    described = describe_visibility([(steep, below(t))])
    assert described is not None
    assert described[0] == "scores changed", described
    window = torch.where(distance < 19, 1.0, 3e-15).double().masked_fill(~below(t), 0.0)
    assert describe_visibility([(window, below(t))]) == ("window", "queries from 19 on see a window of 19 keys only")


# -- a mask in some heads ----------------------------------------------------------------------------------------------


def first_heads_masked(q, k, v):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    masked = scores.masked_fill(~below(q.shape[2]), -torch.inf)
    return torch.cat((masked[:, :2], scores[:, 2:]), 1).softmax(-1) @ v


class OneHeadMasked(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.proj, self.merge = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.proj(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        outs = [F.scaled_dot_product_attention(q[:, h], k[:, h], v[:, h], is_causal=h == 0) for h in range(self.heads)]
        return self.merge(torch.cat(outs, -1))


@pytest.mark.parametrize(
    ("target", "heads"), [(first_heads_masked, "heads 2 and 3 of 4"), (OneHeadMasked, "heads 1, 2 and 3 of 4")]
)
def test_run_names_the_heads_without_a_mask(target, heads):
    report = run(target, TEXTBOOK)
    assert report.diagnosis is not None
    assert (report.diagnosis.family, report.diagnosis.exact) == ("leak", True)
    assert f"in {heads}, there is no causal mask" in report.diagnosis.words


# -- a hand-written backward pass with fewer key heads -----------------------------------------------------------------


class Grouped(torch.autograd.Function):
    """Causal grouped-query attention; `share` sums the gradients of query heads that share a key head."""

    @staticmethod
    def forward(ctx, q, k, v, share):
        rate = q.shape[1] // k.shape[1]
        wide = k.repeat_interleave(rate, 1), v.repeat_interleave(rate, 1)
        weights = (q @ wide[0].mT * q.shape[-1] ** -0.5).masked_fill(~below(q.shape[2]), -torch.inf).softmax(-1)
        ctx.save_for_backward(q, *wide, weights)
        ctx.share, ctx.groups = share, k.shape[1]
        return weights @ wide[1]

    @staticmethod
    def backward(ctx, g):
        q, k, v, weights = ctx.saved_tensors
        d = g @ v.mT
        ds = weights * (d - (d * weights).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ctx.share(ds.mT @ q, ctx.groups), ctx.share(weights.mT @ g, ctx.groups), None


def summed(x, groups):
    return x.unflatten(1, (groups, -1)).sum(2)


def summed_tiled(x, groups):
    return x.unflatten(1, (-1, groups)).sum(1)


def averaged(x, groups):
    return x.unflatten(1, (groups, -1)).mean(2)


class GroupedByHand(torch.autograd.Function):
    """The same, bidirectional, with einsum; key head of query head h: h mod groups."""

    @staticmethod
    def forward(ctx, query, key, value):
        b, h, t, d = query.shape
        q = query.reshape(b, h // key.shape[1], key.shape[1], t, d)
        weights = torch.einsum("brgtd,bgsd->brgts", q, key).div(math.sqrt(d)).softmax(-1)
        ctx.save_for_backward(q, key, value, weights)
        return torch.einsum("brgts,bgsd->brgtd", weights, value).reshape(b, h, t, d)

    @staticmethod
    def backward(ctx, grad):
        q, key, value, weights = ctx.saved_tensors
        g = grad.reshape(q.shape)
        d = torch.einsum("brgtd,bgsd->brgts", g, value)
        ds = weights * (d - (d * weights).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        dq = torch.einsum("brgts,bgsd->brgtd", ds, key).reshape(grad.shape)
        dk, dv = ds.mT @ q, weights.mT @ g
        groups = key.shape[1]
        dk, dv = (x.flatten(1, 2).unflatten(1, (groups, -1)).sum(2) for x in (dk, dv))  # as if they were repeated
        return dq, dk, dv


def repeated(q, k, v):
    return Grouped.apply(q, k, v, summed)


def repeated_summed_as_tiled(q, k, v):
    return Grouped.apply(q, k, v, summed_tiled)


def repeated_averaged(q, k, v):
    return Grouped.apply(q, k, v, averaged)


def tiled_summed_as_repeated(query, key, value):
    return GroupedByHand.apply(query, key, value)


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (repeated_summed_as_tiled, "causal", "summed over the wrong query heads (tiled instead of repeated)"),
        (repeated_averaged, "causal", "averaged over the query heads that share a key head, not summed"),
        (tiled_summed_as_repeated, "bidirectional", "summed over the wrong query heads (repeated instead of tiled)"),
    ],
)
def test_run_checks_gradients_with_fewer_key_heads(function, kind, words):
    report = run(function, Contract(kind=kind, scale="head", softmax="keys"))
    assert report.diagnosis is not None
    assert report.diagnosis.family == "wrong gradient"
    assert f"the gradients of k and v are {words}" in report.diagnosis.words
    assert report.diagnosis.condition == "with fewer key heads than query heads"


def test_run_passes_a_right_backward_pass_with_fewer_key_heads():
    report = run(repeated, TEXTBOOK)
    assert report.ok, report.failed
    assert any(finding.check == "gradient (fewer key heads)" for finding in report.findings)


# -- padding of a source that is marked by a token ---------------------------------------------------------------------

PAD_TOKEN = 0


class Reads(nn.Module):
    """Multi-head attention to a memory, with a mask."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, memory, mask=None):
        q, k, v = (
            layer(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, part in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Translator(nn.Module):
    """Pads are tokens PAD_TOKEN; subclasses say what of the source the decoder may see."""

    def __init__(self, vocab_size=60, dim=32):
        super().__init__()
        self.src_embedding, self.tgt_embedding = nn.Embedding(vocab_size, dim), nn.Embedding(vocab_size, dim)
        self.encode, self.decode, self.cross = Reads(dim), Reads(dim), Reads(dim)
        self.head = nn.Linear(dim, vocab_size)

    def shown(self, src):
        return (src != PAD_TOKEN)[:, None, None]

    def forward(self, src, tgt):
        x, y = self.src_embedding(src), self.tgt_embedding(tgt)
        x = x + self.encode(x, x, (src != PAD_TOKEN)[:, None, None])
        y = y + self.decode(y, y, below(tgt.shape[1]) & (tgt != PAD_TOKEN)[:, None, None])
        return self.head(y + self.cross(y, x, self.shown(src)))


class TranslatorCrossUnmasked(Translator):
    def shown(self, src):
        return None


class PackagedUnmasked(nn.Module):
    """The same with PyTorch's layers; the pad id is an argument."""

    def __init__(self, n_tokens=70, d_model=32, pad=1):
        super().__init__()
        self.pad_index = pad
        self.embed = nn.Embedding(n_tokens, d_model)
        self.encoder = nn.TransformerEncoderLayer(d_model, 4, 64, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(d_model, 4, 64, batch_first=True)
        self.out = nn.Linear(d_model, n_tokens)

    def forward(self, source, target):
        memory = self.encoder(self.embed(source), src_key_padding_mask=source == self.pad_index)
        causal = ~below(target.shape[1])
        hidden = self.decoder(
            self.embed(target), memory, tgt_mask=causal, tgt_key_padding_mask=target == self.pad_index
        )
        return self.out(hidden)


@pytest.mark.parametrize("model", [TranslatorCrossUnmasked, PackagedUnmasked])
def test_run_finds_source_padding_that_cross_attention_sees(model):
    report = run(model, PADDED)
    failed = {finding.check for finding in report.failed}
    assert any(check.startswith("source: padding") for check in failed), failed
    assert report.diagnosis is not None
    assert report.diagnosis.family == "padding"


def test_run_passes_source_padding_by_a_token():
    assert run(Translator, PADDED).ok


class SourceWithoutPadding(Translator):
    def forward(self, src, tgt):
        x, y = self.src_embedding(src), self.tgt_embedding(tgt)
        x = x + self.encode(x, x)
        y = y + self.decode(y, y, below(tgt.shape[1]) & (tgt != PAD_TOKEN)[:, None, None])
        return self.head(y + self.cross(y, x))


def test_run_does_not_pass_a_source_whose_padding_could_not_be_tested():
    report = run(SourceWithoutPadding, PADDED)
    assert not report.failed
    assert not report.ok
    assert "of the source" in report.unproven[0]


# -- positions that count the padding before a prompt ------------------------------------------------------------------


class PromptModel(nn.Module):
    """A language model with a token mask; `positions` makes the positions of tokens from it."""

    def __init__(self, vocab_size=60, dim=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, dim), nn.Embedding(300, dim)
        self.mix, self.head = Reads(dim), nn.Linear(dim, vocab_size)

    def positions(self, real):
        return torch.arange(real.shape[1])

    def forward(self, input_ids, attention_mask=None):
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.tokens(input_ids) + self.places(self.positions(real))
        return self.head(x + self.mix(x, x, below(input_ids.shape[1]) & real.bool()[:, None, None]))


class WithGenerate(PromptModel):
    def generate(self, input_ids, attention_mask, steps=4):
        for _ in range(steps):
            new = self(input_ids, attention_mask=attention_mask)[:, -1:].argmax(-1)
            input_ids = torch.cat((input_ids, new), 1)
            attention_mask = torch.cat((attention_mask, torch.ones_like(new)), 1)
        return input_ids


class CountsRealTokens(WithGenerate):
    def positions(self, real):
        return (real.long().cumsum(1) - 1).clamp(min=0)


class PadsItsPrompts(PromptModel):
    pad_id = 0

    def generate_batch(self, prompts, steps=4):
        longest = max(len(prompt) for prompt in prompts)
        rows = [[self.pad_id] * (longest - len(prompt)) + prompt for prompt in prompts]
        ids = torch.tensor(rows)
        for _ in range(steps):
            logits = self.forward(ids, (ids != self.pad_id).long())
            ids = torch.hstack((ids, logits[:, -1].argmax(-1, keepdim=True)))
        return ids[:, longest:]


class Samples(PromptModel):
    """Its generate takes one prompt, and its mask belongs to the sampling."""

    def generate(self, idx, steps=4):
        for _ in range(steps):
            order = self(idx)[:, -1].softmax(-1).sort(descending=True)
            mask = order.values.cumsum(-1) > 0.9
            mask = torch.cat((torch.zeros_like(mask[:, :1]), mask[:, :-1]), 1)
            new = order.values.masked_fill(mask, 0.0).multinomial(1)
            idx = torch.cat((idx, order.indices.gather(1, new)), 1)
        return idx


@pytest.mark.parametrize("model", [WithGenerate, PadsItsPrompts])
def test_run_fails_positions_that_count_padding_if_generate_pads_on_the_left(model):
    report = run(model, PADDED)
    assert [finding.check for finding in report.failed] == ["padding removed (left)"]
    assert report.diagnosis is not None
    assert "positions count padding: take them from the token mask, cumsum − 1" in report.diagnosis.words


@pytest.mark.parametrize("model", [PromptModel, Samples, CountsRealTokens])
def test_run_only_warns_of_such_positions_otherwise(model):
    report = run(model, PADDED)
    assert report.ok, report.failed
    assert not generates_left_padded(PromptModel())


# -- channels before positions -----------------------------------------------------------------------------------------


class ChannelsFirst(nn.Module):
    """Attention over the positions of (b, c, …), with a norm of groups and a residual."""

    def __init__(self, channels=32, heads=4, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm, self.qkv = nn.GroupNorm(8, channels), nn.Conv1d(channels, 3 * channels, 1)
        self.proj = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        flat = x.flatten(2) if x.ndim > 2 else x[..., None]
        q, k, v = self.qkv(self.norm(flat)).unflatten(1, (3, self.heads, -1)).unbind(1)  # (b, h, d, t)
        weights = (q.mT @ k * q.shape[2] ** -0.5).softmax(-1)
        return (flat + self.proj((v @ weights.mT).flatten(1, 2))).reshape(x.shape)


class MapsFirst(nn.Module):
    """The same on maps, with one head and convolutions for each role."""

    def __init__(self, in_channels=16):
        super().__init__()
        self.norm = nn.GroupNorm(4, in_channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(in_channels, in_channels, 1) for _ in range(4))

    def forward(self, x):
        normed = self.norm(x)
        q, k, v = (layer(normed).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        out = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return x + self.proj_out(out.transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("block", [ChannelsFirst, MapsFirst])
def test_run_takes_positions_after_channels_as_tokens(block):
    report = run(block, "encoder")
    assert report.kind == "bidirectional", report.how
    assert report.ok, (report.failed, report.unproven)


# -- padding of what a fixed number of queries reads -------------------------------------------------------------------


class Resampler(nn.Module):
    """Latents read media and themselves; subclasses say where the mask of the media goes."""

    def __init__(self, dim=32, latents=3):
        super().__init__()
        self.latents, self.read = nn.Parameter(torch.randn(latents, dim)), Reads(dim)

    def widen(self, mask):
        return F.pad(mask, (0, len(self.latents)), value=True)

    def forward(self, x, mask=None):
        latents = self.latents.expand(len(x), -1, -1)
        keys = torch.cat((x, latents), 1)
        return latents + self.read(latents, keys, None if mask is None else self.widen(mask)[:, None, None])


class ResamplerShifted(Resampler):
    def widen(self, mask):
        return F.pad(mask, (len(self.latents), 0), value=True)


class PoolShifted(nn.Module):
    """A class token comes first, and its key is counted last."""

    def __init__(self, d_model=24, heads=2):
        super().__init__()
        self.heads, self.cls = heads, nn.Parameter(torch.randn(1, 1, d_model))
        self.kv, self.q, self.out = nn.Linear(d_model, 2 * d_model), nn.Linear(d_model, d_model), nn.Linear(d_model, 8)

    def forward(self, features, key_padding_mask=None):
        cls = self.cls.expand(features.size(0), 1, -1)
        k, v = self.kv(torch.cat([cls, features], dim=1)).chunk(2, -1)
        q, k, v = (y.view(y.size(0), y.size(1), self.heads, -1).transpose(1, 2) for y in (self.q(cls), k, v))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.size(-1) ** 0.5
        if key_padding_mask is not None:
            hidden = torch.cat([key_padding_mask, torch.zeros_like(key_padding_mask[:, :1])], dim=1)
            scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("module", "more"), [(ResamplerShifted, "3 keys"), (PoolShifted, "1 key")])
def test_run_finds_a_padding_mask_that_is_shifted_beside_more_keys(module, more):
    report = run(module, padding=True)
    assert report.diagnosis is not None
    assert report.diagnosis.family == "padding"
    assert f"the padding mask is shifted by {more}" in report.diagnosis.words


def test_run_passes_a_resampler_that_hides_padding():
    report = run(Resampler, padding=True)
    assert report.ok, (report.failed, report.unproven)


# -- names -------------------------------------------------------------------------------------------------------------


class Heads(nn.Module):
    """Multi-head attention; subclasses say how q, k and v (b, h, t, d) meet."""

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


def rotated(x, places):
    angles = places.double()[:, None] * 10_000 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class TableGrows(Heads):
    """What is added to the table of positions begins at 0 again."""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.places = torch.arange(48)

    def attend(self, q, k, v):
        t = q.shape[2]
        if t > len(self.places):
            self.places = torch.cat((self.places, torch.arange(t - len(self.places))))
        q, k = (rotated(x, self.places[:t]) for x in (q, k))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class FarPlaces(Heads):
    """Positions from 40 on are those of a table for 25 more tokens."""

    def attend(self, q, k, v):
        places = torch.arange(q.shape[2])
        places = torch.where(places < 40, places, 25 + (places - 40) // 2)
        scores = rotated(q, places) @ rotated(k, places).mT * q.shape[-1] ** -0.5
        return scores.masked_fill(~below(len(places)), -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize(
    ("layer", "words"),
    [(TableGrows, "positions start again at 0 at token"), (FarPlaces, "token 40 as if it were at position 25")],
)
def test_run_finds_the_positions_of_far_tokens(layer, words):
    report = run(layer, TEXTBOOK, position="rotary")
    assert report.diagnosis is not None
    assert (report.diagnosis.family, report.diagnosis.exact) == ("rotary", True), report.diagnosis
    assert words in report.diagnosis.words


class SinkFirstDropped(Heads):
    """A sink's column is added last, and the first one is dropped."""

    def attend(self, q, k, v):
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~below(q.shape[2]), -torch.inf)
        sink = torch.zeros_like(scores[..., :1])
        return torch.cat((scores, sink), -1).softmax(-1)[..., 1:] @ v


class SinkLastDropped(Heads):
    """A sink's column is added first, and the last one is dropped."""

    def attend(self, q, k, v):
        weights = torch.einsum("bhtd,bhsd->bhts", q / math.sqrt(q.shape[-1]), k)
        weights = weights + torch.full_like(weights[0, 0], float("-inf")).triu(1)
        weights = torch.cat((torch.ones_like(weights[..., :1]), weights), dim=-1)
        return torch.einsum("bhts,bhsd->bhtd", weights.softmax(dim=-1)[..., :-1], v)


@pytest.mark.parametrize(("layer", "which"), [(SinkFirstDropped, "before"), (SinkLastDropped, "after")])
def test_run_names_weights_that_meet_the_next_value(layer, which):
    report = run(layer, kind="causal", softmax="keys")
    assert report.diagnosis is not None
    assert "weights are shifted by one key" in report.diagnosis.words, report.diagnosis
    assert f"the value of the key {which} it" in report.diagnosis.words


class OneOfTwoMaps(nn.Module):
    """The difference of two softmaxes, of which the second is not masked."""

    def __init__(self, dim=32, heads=2):
        super().__init__()
        self.heads, self.qk = heads, nn.Linear(dim, 2 * dim)
        self.v, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def maps(self, scores, mask):
        first, second = scores.unbind(2)
        return first.masked_fill(~mask, -torch.inf).softmax(-1), second.softmax(-1)

    def forward(self, x):
        q, k = self.qk(x).chunk(2, -1)
        q, k = (part.unflatten(-1, (self.heads, 2, -1)).permute(0, 2, 3, 1, 4) for part in (q, k))
        one, two = self.maps(q @ k.mT * q.shape[-1] ** -0.5, below(x.shape[1]))
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.out(((one - 0.3 * two) @ v).transpose(1, 2).flatten(2))


class FirstOfTwoMaps(OneOfTwoMaps):
    def maps(self, scores, mask):
        bias = torch.zeros_like(scores)
        bias[:, :, 1] = bias[:, :, 1].masked_fill(~mask, -1e30)
        both = [torch.softmax(part, dim=-1) for part in (scores + bias).unbind(2)]
        return both[0], both[1]


@pytest.mark.parametrize(("layer", "number"), [(OneOfTwoMaps, 2), (FirstOfTwoMaps, 1)])
def test_run_names_the_softmax_without_a_mask(layer, number):
    report = run(layer, kind="causal")
    assert report.diagnosis is not None
    assert f"of 2 softmaxes, number {number} has no causal mask" in report.diagnosis.words, report.diagnosis


class RelativeTable(Heads):
    """A bias by distance; `away` is the distance that its row is chosen by."""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.relative_bias = nn.Embedding(16, heads)

    def away(self, t):
        return torch.arange(t) - torch.arange(t)[:, None]

    def attend(self, q, k, v):
        t = q.shape[2]
        bias = self.relative_bias((-self.away(t)).clamp(0, 15)).permute(2, 0, 1)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + bias
        return scores.masked_fill(~below(t), -torch.inf).softmax(-1) @ v


class RelativeFlipped(RelativeTable):
    def away(self, t):
        return torch.arange(t)[:, None] - torch.arange(t)


class ParameterFlipped(Heads):
    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.rel_pos = nn.Parameter(torch.randn(heads, 64))

    def attend(self, q, k, v):
        t = q.shape[2]
        steps = torch.arange(t)
        rows = torch.maximum(steps[None, :] - steps[:, None], torch.zeros(1, dtype=torch.long)).clamp(max=63)
        mask = self.rel_pos[:, rows].masked_fill(~below(t), float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize(("layer", "name"), [(RelativeFlipped, "relative_bias.weight"), (ParameterFlipped, "rel_pos")])
def test_run_names_a_table_of_which_all_keys_use_one_row(layer, name):
    report = run(layer, TEXTBOOK)
    assert report.diagnosis is not None
    assert f"{name} is read, but the softmax cancels it" in report.diagnosis.words
    assert report.diagnosis.family == "positions"


@pytest.mark.parametrize("ahead", [2, 3])
def test_describe_visibility_counts_the_keys_ahead(ahead):
    solved = [(torch.ones(t, t).tril(ahead), below(t)) for t in (12, 33)]
    words = f"all queries see {ahead} keys ahead: the diagonal of the mask is shifted by {ahead}"
    assert describe_visibility(solved) == ("leak", words)


@pytest.mark.parametrize(("longest", "windows"), [(8, True), (12, False)])
def test_describe_visibility_says_if_only_short_sequences_have_no_mask(longest, windows):
    def mask(t):
        band = below(t).triu(1 - longest) if windows else below(t)
        return (torch.ones(t, t) if t <= longest else band).double()

    described = describe_visibility([(mask(t), below(t)) for t in (7, longest, 33)])
    assert described is not None
    assert f"there is no causal mask on this path (up to {longest} tokens at least, not at 33)" in described[1]


class RowPositions(nn.Module):
    """Positions are indexed by the row of the batch."""

    def __init__(self, vocab_size=50, dim=32):
        super().__init__()
        self.embed, self.mix = nn.Embedding(vocab_size, dim), Reads(dim)
        self.table = nn.Buffer(torch.randn(100, 1, dim))

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.table[: x.size(0)]
        return x + self.mix(x, x)


class RowBias(Heads):
    """Heads have a bias by row: positions run over the first axis."""

    def attend(self, q, k, v):
        places = torch.arange(q.shape[0], dtype=q.dtype)[:, None, None, None]
        return F.scaled_dot_product_attention(q + 0.1 * places, k, v)


@pytest.mark.parametrize("model", [RowPositions, RowBias])
def test_run_names_outputs_that_depend_on_the_row(model):
    report = run(model, kind="bidirectional")
    assert report.diagnosis is not None
    assert "by their place in the batch" in report.diagnosis.words
    assert report.diagnosis.family == "positions"


class Windows(Heads):
    """Tokens see each other within windows of four, shifted by two; `wraps` joins the first and the last."""

    wraps = False

    def attend(self, q, k, v):
        places = torch.arange(q.shape[2]) + 2
        windows = places // 4 % ((q.shape[2] + 3) // 4) if self.wraps else places // 4
        mask = windows[:, None] == windows
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class WindowsWrapped(Windows):
    wraps = True


class WindowsFewer(Windows):
    def attend(self, q, k, v):
        places = torch.arange(q.shape[2])
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores.masked_fill(places[:, None] // 2 != places // 2, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize(
    ("layer", "does"), [(WindowsWrapped, "output 0 sees tokens 10, 11"), (WindowsFewer, "output 2 does not see tokens")]
)
def test_run_names_tokens_that_only_one_of_two_sees(layer, does):
    report = run(layer, like=Windows)
    like = next(finding for finding in report.failed if finding.check == "like")
    assert "it sees other tokens than the reference" in (like.hint or "")
    assert does in (like.hint or "")


FILLED = """
import numpy as np

ARRAYS = "numpy"
DIM = 16

def build():
    return np.random.default_rng(0).standard_normal((3, DIM, DIM)) / 4

def call(weights, x):
    t, fill = x.shape[1], -x.shape[1] % 8
    x = np.concatenate((x, np.zeros_like(x[:, :1]).repeat(fill, 1)), 1)
    q, k, v = (x @ weight for weight in weights)
    scores = q @ k.swapaxes(1, 2) / 4
    scores[:, :, SEEN:] = -np.inf
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return (exps / exps.sum(-1, keepdims=True) @ v)[:, :t]
"""


@pytest.mark.parametrize(
    ("seen", "which"), [("t + 1", "one of their keys takes"), ("len(scores[0, 0])", "all of their keys take")]
)
def test_run_names_filled_tokens_that_are_visible(tmp_path, seen, which):
    adapter = tmp_path / "filled.py"
    adapter.write_text(FILLED.replace("SEEN", seen))
    report = run(None, adapter=adapter, kind="bidirectional")
    finding = next(finding for finding in report.failed if finding.check == "lengths agree")
    assert f"a multiple of 8 are not all masked: {which} part in the softmax" in (finding.hint or "")


def test_run_does_not_pass_what_it_could_not_compare_with_its_reference():
    class Refuses(Windows):
        def forward(self, x):
            if x.requires_grad:
                raise RuntimeError("no gradients here")
            return super().forward(x)

    report = run(Windows, like=Refuses())
    assert not report.ok
    assert any("like the reference" in missing for missing in report.unproven)
