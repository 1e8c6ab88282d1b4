"""Bugs that other checks misname or miss: leaks outside attention, rare calls, short caches, masks of batches."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import run


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    """Causal self-attention; subclasses change what goes in (`prepare`) or how q, k, v are combined (`combine`)."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.inputs, self.merged = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def prepare(self, x):
        return x

    def combine(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        q, k, v = (split(part, self.heads) for part in self.inputs(self.prepare(x)).chunk(3, -1))
        return self.merged(merge(self.combine(q, k, v)))


# -- leaks outside attention -------------------------------------------------------------------------------------------


class Centered(SelfAttention):
    def prepare(self, x):
        return x - x.mean(dim=1, keepdim=True)


class NormedOverTime(SelfAttention):
    def prepare(self, x):
        return F.normalize(x, dim=1) * 3


class LooksAhead(SelfAttention):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(24, 24, 3, padding=1)

    def prepare(self, x):
        return x + self.mix(x.transpose(1, 2)).transpose(1, 2)


class LinearWithTotal(SelfAttention):
    def combine(self, q, k, v):
        q, k = q.exp(), k.exp()
        products = (q @ k.mT).tril() @ v
        return products / (q * k.mean(dim=2, keepdim=True)).sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("module", "operation", "code"),
    [
        (Centered, "mean", "return x - x.mean(dim=1, keepdim=True)"),
        (NormedOverTime, "normalize", "return F.normalize(x, dim=1) * 3"),
        (LooksAhead, "conv1d", "self.mix(x.transpose(1, 2))"),
        (LinearWithTotal, "mean", "return products / (q * k.mean(dim=2, keepdim=True))"),
    ],
)
def test_a_leak_outside_attention_is_named_with_its_line(module, operation, code):
    found = run(module, kind="causal").diagnosis
    assert found.family == "leak"
    assert f"`{operation}`" in found.words
    assert code in found.line


class Leaky(SelfAttention):
    def combine(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class NormedOverBatch(SelfAttention):
    def prepare(self, x):
        return F.batch_norm(x.flatten(0, 1), None, None, training=True).view_as(x)


class ScaledByAll(SelfAttention):
    def prepare(self, x):
        return x / x.abs().mean()


@pytest.mark.parametrize(("module", "code"), [(NormedOverBatch, "batch_norm"), (ScaledByAll, "x.abs().mean()")])
def test_an_operation_over_tokens_and_rows_explains_the_leak_and_the_batch(module, code):
    report = run(module(), causal=True)
    assert report.diagnosis.family == "batch mixed" and code in report.diagnosis.line


def test_a_missing_mask_is_not_called_an_operation_outside_attention():
    assert run(Leaky, kind="causal", scale="head").diagnosis.family == "no mask"


# -- a single query ----------------------------------------------------------------------------------------------------


def aligned_at_end(t, s):
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)


def single_query_by_flag(q, k, v):
    if q.shape[2] == 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=aligned_at_end(q.shape[2], k.shape[2]))


def single_query_by_position(q, k, v, softcap=40.0):
    t, s = q.shape[2], k.shape[2]
    first = 0 if t == 1 else s - t
    scores = softcap * torch.tanh(torch.einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5 / softcap)
    later = torch.arange(s) > (torch.arange(t) + first)[:, None]
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("function", [single_query_by_flag, single_query_by_position])
@pytest.mark.parametrize("promises", [{"kind": "causal"}, {"kind": "causal", "alignment": "bottom-right"}])
def test_one_query_must_be_aligned_like_several(function, promises):
    report = run(function, **promises)
    assert "alignment" in [finding.check for finding in report.failed]
    assert (report.diagnosis.family, report.diagnosis.condition) == ("alignment", "for one query on more keys")


def single_query_without_mask(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


def test_one_query_that_sees_everything_passes_without_a_promised_alignment():
    assert run(single_query_without_mask, kind="causal", scale="head").ok


# -- grouped-query attention -------------------------------------------------------------------------------------------


def groups_read_out_in_another_order(q, k, v):
    b, h, t, d = q.shape
    groups = k.shape[1]
    q = q.unflatten(1, (groups, h // groups))
    out = F.scaled_dot_product_attention(q, k[:, :, None].expand_as(q), v[:, :, None].expand_as(q), is_causal=True)
    return out.transpose(1, 2).reshape(b, h, t, d)


def groups_made_by_stride(q, k, v):
    rate = q.shape[1] // k.shape[1]
    outs = []
    for group in range(k.shape[1]):
        scores = torch.einsum("bhtd,bsd->bhts", q[:, group :: k.shape[1]], k[:, group]) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~aligned_at_end(*scores.shape[-2:]), -torch.inf).softmax(-1)
        outs.append(torch.einsum("bhts,bsd->bhtd", weights, v[:, group]))
    assert all(out.shape[1] == rate for out in outs)
    return torch.cat(outs, dim=1)


@pytest.mark.parametrize("function", [groups_read_out_in_another_order, groups_made_by_stride])
def test_query_heads_that_change_places_are_caught(function):
    report = run(function, kind="causal", scale="head", grouped="repeated")
    assert not report.ok
    assert report.diagnosis.family == "head layout"


# -- masks with moderate numbers ---------------------------------------------------------------------------------------


def filled_with(number):
    def attend(q, k, v, mask=None):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores if mask is None else scores.masked_fill(~mask, number)
        return scores.softmax(-1) @ v

    return attend


def lowered_by(number):
    def attend(query, key, value):
        scores = torch.einsum("bthd,bshd->bhts", query, key) / query.shape[-1] ** 0.5
        t, s = scores.shape[-2:]
        weights = (scores + number * ~aligned_at_end(t, s)).softmax(-1)
        return torch.einsum("bhts,bshd->bthd", weights, value)

    return attend


@pytest.mark.parametrize(
    ("function", "promises"),
    [
        (filled_with(-60.0), {"mask": "true-attends"}),
        (filled_with(-200.0), {"mask": "true-attends"}),
        (lowered_by(-100.0), {"kind": "causal"}),
    ],
)
def test_masks_with_moderate_numbers_are_caught_by_large_scores(function, promises):
    report = run(function, **promises)
    assert "mask, large scores" in [finding.check for finding in report.failed]
    assert report.diagnosis.family == "mask not −∞"


@pytest.mark.parametrize(
    ("function", "promises"),
    [(filled_with(-1e4), {"mask": "true-attends"}), (lowered_by(-1e9), {"kind": "causal"})],
)
def test_masks_with_large_numbers_pass(function, promises):
    assert run(function, **promises).ok


# -- training ----------------------------------------------------------------------------------------------------------


class AheadInTraining(SelfAttention):
    rate = 0.2

    def combine(self, q, k, v):
        t = q.shape[2]
        if not self.training:
            return super().combine(q, k, v)
        keep = torch.ones(t, t, dtype=torch.bool).tril(1)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).where(keep, -torch.inf).softmax(-1)
        return F.dropout(weights, self.drop_rate, self.training) @ v

    def __init__(self):
        super().__init__()
        self.drop_rate = 0.2


class OpenInTraining(SelfAttention):
    def __init__(self):
        super().__init__()
        self.after = nn.Dropout(0.1)

    def combine(self, q, k, v):
        return self.after(F.scaled_dot_product_attention(q, k, v, is_causal=not self.training))


@pytest.mark.parametrize(("module", "family"), [(AheadInTraining, "mask off by one"), (OpenInTraining, "no mask")])
def test_a_mask_bug_of_training_is_not_blamed_on_dropout(module, family):
    found = run(module, kind="causal", scale="head").diagnosis
    assert (found.family, found.condition, found.exact) == (family, "in training", True)


# -- padding -----------------------------------------------------------------------------------------------------------


class Padded(SelfAttention):
    """Bidirectional attention with a mask of real tokens; subclasses make the mask (b·h, t, s) or (b, 1, 1, s)."""

    def forward(self, x, token_mask=None):
        q, k, v = (split(part, self.heads) for part in self.inputs(x).chunk(3, -1))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if token_mask is not None:
            scores = scores.masked_fill(~self.visible(token_mask, scores), torch.finfo(scores.dtype).min)
        return self.merged(merge(scores.softmax(-1) @ v))


class MixedHeads(Padded):
    def visible(self, token_mask, scores):
        b, h, t, s = scores.shape
        return token_mask[:, None].expand(b, t, s).repeat(h, 1, 1).view(b, h, t, s)


class FromLengths(Padded):
    def visible(self, token_mask, scores):
        ends = token_mask.sum(-1).tolist()
        return torch.stack([torch.arange(scores.shape[-1]) < end for end in ends])[:, None, None]


class LastStaysVisible(Padded):
    def visible(self, token_mask, scores):
        keep = token_mask.clone()
        keep[:, -1] = True
        return keep[:, None, None]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (MixedHeads, "repeated over heads and rows in another order"),
        (FromLengths, "padding is taken to be on the right"),
        (LastStaysVisible, "padding stays visible (key 11)"),
    ],
)
def test_wrong_padding_masks_are_told_apart(module, words):
    found = run(module, kind="bidirectional", padding=True).diagnosis
    assert found.family == "padding"
    assert words in found.words


class Reader(nn.Module):
    """An encoder–decoder on tokens whose cross-attention may ignore the source mask."""

    def __init__(self, ignores=True):
        super().__init__()
        self.ignores = ignores
        self.words, self.out = nn.Embedding(30, 24), nn.Linear(24, 30)
        self.own, self.cross = (nn.MultiheadAttention(24, 2, batch_first=True) for _ in range(2))
        self.read = nn.MultiheadAttention(24, 2, batch_first=True)

    def forward(self, src, tgt, src_mask=None):
        hidden = None if src_mask is None else (src_mask == 0).masked_fill((src_mask == 0).all(-1, keepdim=True), False)
        source, x = self.words(src), self.words(tgt)
        source = source + self.read(source, source, source, key_padding_mask=hidden)[0]
        later = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], dtype=x.dtype)
        x = x + self.own(x, x, x, attn_mask=later)[0]
        return self.out(x + self.cross(x, source, source, key_padding_mask=None if self.ignores else hidden)[0])


@pytest.mark.parametrize("ignores", [True, False])
def test_a_source_mask_that_cross_attention_ignores_is_caught(ignores):
    report = run(Reader(ignores=ignores), kind="causal", padding=True)
    failed = [finding.check for finding in report.failed if "content" in finding.check]
    assert bool(failed) == ignores
    assert all(check.startswith("source: padding content") for check in failed)


def packed_attention(q, k, v, cu_seqlens, skip=1):
    """Causal attention of packed rows; the mask skips some boundaries at the end."""
    ends = cu_seqlens[1 : len(cu_seqlens) - skip]
    row = (torch.arange(len(q))[:, None] >= ends[None]).sum(1)
    keep = (row[:, None] == row[None]) & aligned_at_end(len(q), len(q))
    weights = (torch.einsum("thd,shd->hts", q, k) / q.shape[-1] ** 0.5).masked_fill(~keep, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, v)


def packed_one_boundary_short(q, k, v, cu_seqlens):
    return packed_attention(q, k, v, cu_seqlens, skip=2)


def test_packed_sequences_that_see_each_other_are_named():
    assert run(packed_attention, kind="causal", scale="head").ok
    assert "packed sequences see each other" in run(packed_one_boundary_short, kind="causal").diagnosis.words


# -- short caches and part of the head dim -----------------------------------------------------------------------------


def turn(x, places, dims, *, mixed=False):
    """RoPE on the first dims in halves; mixed: with angles laid out in neighboring pairs."""
    angles = places[:, None] * 10_000.0 ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    angles = angles.repeat_interleave(2, -1) if mixed else torch.cat((angles, angles), -1)
    part, rest = x[..., :dims], x[..., dims:]
    a, b = part.chunk(2, -1)
    return torch.cat((part * angles.cos().to(x) + torch.cat((-b, a), -1) * angles.sin().to(x), rest), -1)


class WindowWithCache(SelfAttention):
    """A window of 6 keys; the cache keeps `kept` of them and counts positions by all tokens or by what it keeps."""

    def __init__(self, kept=6, counts_kept=False):
        super().__init__(dim=32, heads=4)
        self.kept, self.counts_kept = kept, counts_kept

    def forward(self, x, cache=None):
        q, k, v = (split(part, self.heads) for part in self.inputs(x).chunk(3, -1))
        k_old, v_old, places_old, start = cache if cache is not None else (k[:, :, :0], v[:, :, :0], torch.arange(0), 0)
        places = torch.arange(start, start + x.shape[1])
        q, k = turn(q, places, 8), turn(k, places, 8)
        k, v, known = torch.cat((k_old, k), 2), torch.cat((v_old, v), 2), torch.cat((places_old, places))
        distance = places[:, None] - known
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=(distance >= 0) & (distance < 6))
        end = min(start + x.shape[1], self.kept) if self.counts_kept else start + x.shape[1]
        k, v, known = k[:, :, -self.kept :], v[:, :, -self.kept :], known[-self.kept :]
        return self.merged(merge(out)), (k, v, known, end)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"kept": 4}, "the cache keeps 4"), ({"kept": 6, "counts_kept": True}, "positions stop growing at 6")],
)
def test_a_cache_of_a_window_is_judged_by_the_keys_that_the_window_sees(options, words):
    assert run(WindowWithCache(kept=6), kind="window", window=6, cache=True).ok
    assert words in run(WindowWithCache(**options), kind="window", window=6, cache=True).diagnosis.words


class PartlyRotated(SelfAttention):
    def __init__(self, mixed=True):
        super().__init__(dim=48, heads=3)
        self.rotary_dims, self.mixed = 8, mixed

    def combine(self, q, k, v):
        places = torch.arange(q.shape[2])
        q, k = (turn(x, places, self.rotary_dims, mixed=self.mixed) for x in (q, k))
        return super().combine(q, k, v)


def test_mixed_pairs_in_a_part_of_the_head_dim_are_explained_exactly():
    assert run(PartlyRotated(mixed=False), kind="causal", scale="head", position="relative").ok
    found = run(PartlyRotated(), kind="causal", scale="head", position="relative").diagnosis
    assert found.exact
    assert "angles are laid out in pairs (i, i + 1)" in found.words


class MixedHeadsOfLayers(nn.Module):
    """The same mistake around nn.MultiheadAttention: each token may also see itself."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))

    def forward(self, x, pad_mask=None):
        """pad_mask: True = padding."""
        hidden = None
        if pad_mask is not None:
            t = x.shape[1]
            hidden = (pad_mask[:, None] & ~torch.eye(t, dtype=torch.bool)).repeat(4, 1, 1)
        for layer in (self.first, self.second):
            x = x + layer(x, x, x, attn_mask=hidden)[0]
        return x


def test_masks_that_rows_get_from_each_other_are_named_around_pytorchs_layer():
    found = run(MixedHeadsOfLayers, kind="bidirectional", padding=True).diagnosis
    assert "rows get each other's" in found.words


class Chunked(SelfAttention):
    """Causal within chunks of 24 tokens; `overlap` keys of the chunk before are seen, too."""

    def __init__(self, overlap=0):
        super().__init__()
        self.overlap = overlap

    def combine(self, q, k, v):
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        mask = (j <= i) & (j >= i // 24 * 24 - self.overlap)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_chunks_that_are_longer_than_the_map_are_found_in_longer_sequences():
    assert run(Chunked(), kind="chunked").ok
    assert "kind" in {finding.check for finding in run(Chunked(overlap=1), kind="chunked").failed}
    assert "kind" in {finding.check for finding in run(SelfAttention(), kind="chunked").failed}
