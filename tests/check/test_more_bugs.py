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
