"""Causal self-attention layers with rotary positions, padding and a cache, with one mistake each.

Axes: b batch · h heads · t queries · s keys · d head width · c model width.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.contract import Contract
from qkv.check.mutants.mutant import mutant
from qkv.check.mutants.textbook import TextbookAttention, TextbookLayer

LAYER = Contract(kind="causal", cache=True, position="relative")


@mutant("cache: new keys in front", "cache order", LAYER)
class CacheOrder(TextbookLayer):
    def joined(self, before: Tensor, new: Tensor) -> Tensor:
        return torch.cat((new, before), dim=2)


@mutant("cache: mask skipped", "mask with cache", LAYER)
class MaskSkipped(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        if offset:
            return F.scaled_dot_product_attention(q, k, v)
        return super().attend(q, k, v, present, offset)


@mutant("cache: mask aligned at the start", "mask with cache", LAYER)
class TopLeft(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        if offset:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return super().attend(q, k, v, present, offset)


@mutant("cache: no rotary offset", "positions with cache", LAYER)
class NoOffset(TextbookLayer):
    def turned(self, x: Tensor, offset: int) -> Tensor:
        return super().turned(x, 0)


@mutant("cache: oldest dropped", "cache order", LAYER)
class OldestDropped(TextbookLayer):
    def joined(self, before: Tensor, new: Tensor) -> Tensor:
        return torch.cat((before[:, :, -6:], new), dim=2)


@mutant("cache: keys kept, values replaced", "cache order", LAYER)
class ValuesReplaced(TextbookLayer):
    def forward(self, x: Tensor, present: Tensor | None = None, cache: tuple[Tensor, Tensor] | None = None):
        out, (k, v) = super().forward(x, present, cache)
        return out, (k, v.roll(1, dims=2))


@mutant("mask in training only", "no mask", LAYER)
class TrainingOnly(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        if self.training:
            return super().attend(q, k, v, present, offset)
        mask = None if present is None else present[:, None, None, :]
        return TextbookAttention()(q, k, v, mask)


@mutant("padding polarity swapped", "padding", LAYER)
class PaddingSwapped(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        return super().attend(q, k, v, None if present is None else ~present, offset)


@mutant("padding ignored", "padding", LAYER)
class PaddingIgnored(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        return super().attend(q, k, v, None, offset)


@mutant("padding on the queries", "padding", LAYER)
class PaddingOnQueries(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        mask = None if present is None else present[:, None, :, None]
        return TextbookAttention()(q, k, v, mask, causal=True)


@mutant("padding mixed across rows", "padding", LAYER)
class PaddingMixed(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        return super().attend(q, k, v, None if present is None else present | present.roll(1, 0).any(0), offset)


@mutant("view without transpose", "heads mixed", LAYER)
class ViewOnly(TextbookLayer):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.heads, x.shape[1], -1)


@mutant("merge without transpose", "heads mixed", LAYER)
class MergeOnly(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[2], -1)


@mutant("rotary on queries only", "rotary", LAYER)
class QueriesOnly(TextbookLayer):
    def forward(self, x: Tensor, present: Tensor | None = None, cache: tuple[Tensor, Tensor] | None = None):
        q, k, v = (self.split(part(x)) for part in (self.to_q, self.to_k, self.to_v))
        offset = 0 if cache is None else cache[0].shape[2]
        q = self.turned(q, offset)
        if cache is not None:
            k, v = self.joined(cache[0], k), self.joined(cache[1], v)
        return self.to_out(self.merge(self.attend(q, k, v, present, offset))), (k, v)


@mutant("rotary on values too", "rotary", LAYER)
class OnValues(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        return super().attend(q, k, self.turned(v, 0), present, offset)


@mutant("rotary turns keys the other way", "rotary", LAYER)
class OtherWay(TextbookLayer):
    def forward(self, x: Tensor, present: Tensor | None = None, cache: tuple[Tensor, Tensor] | None = None):
        q, k, v = (self.split(part(x)) for part in (self.to_q, self.to_k, self.to_v))
        offset = 0 if cache is None else cache[0].shape[2]
        q, k = self.turned(q, offset), self.turned_back(k, offset)
        if cache is not None:
            k, v = self.joined(cache[0], k), self.joined(cache[1], v)
        return self.to_out(self.merge(self.attend(q, k, v, present, offset))), (k, v)

    def turned_back(self, x: Tensor, offset: int) -> Tensor:
        half = x.shape[-1] // 2
        return self.turned(torch.cat((x[..., :half], -x[..., half:]), dim=-1), offset) * torch.cat(
            (torch.ones(half), -torch.ones(half))
        ).to(x)


@mutant("rotary counted from the end", "rotary", LAYER)
class FromTheEnd(TextbookLayer):
    def angles(self, t: int, offset: int, half: int) -> Tensor:
        return super().angles(t, offset, half) * (1 + 0.1 * t)


@mutant("rotary in low precision", "rotary", LAYER)
class LowPrecision(TextbookLayer):
    def angles(self, t: int, offset: int, half: int) -> Tensor:
        return super().angles(t, offset, half).bfloat16().double()


@mutant("layer: dropout in eval", "random in eval", LAYER)
class LayerDropout(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        return F.dropout(super().merge(x), 0.1)


@mutant("layer: batch normalised", "batch mixed", LAYER)
class LayerBatchNormalised(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        out = super().merge(x)
        return (out - out.mean((0, 1))) / (out.std((0, 1), correction=0) + 1e-3)


@mutant("layer: keys detached", "detached", LAYER)
class LayerDetached(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        return super().attend(q, k.detach(), v, present, offset)


@mutant("layer: a parameter that nothing reads", "unreached", LAYER)
class Unread(TextbookLayer):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.gate = nn.Linear(width, width)


@mutant("layer: input changed in place", "input changed", LAYER)
class LayerInPlace(TextbookLayer):
    def forward(self, x: Tensor, present: Tensor | None = None, cache: tuple[Tensor, Tensor] | None = None):
        with torch.no_grad():
            x -= x.mean(-1, keepdim=True)
        return super().forward(x, present, cache)


@mutant("layer: window one too wide", "window", Contract(kind="window", window=4))
class WindowTooWide(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        t, s = q.shape[2], k.shape[2]
        distance = torch.arange(t)[:, None] + s - t - torch.arange(s)
        allowed = (distance >= 0) & (distance <= 4)
        return TextbookAttention()(q, k, v, allowed if present is None else allowed & present[:, None, None, :])


@mutant("layer: norm over the sequence", "leak", LAYER)
class SequenceNormalised(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        out = super().merge(x)
        return out / out.std(1, keepdim=True, correction=0).clamp(min=0.1)


@mutant("layer: rows of the batch mixed by a view", "batch mixed", replace(LAYER, cache=None))
class BatchMixed(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        return super().merge(x).transpose(0, 1).reshape(x.shape[0], x.shape[2], -1)
