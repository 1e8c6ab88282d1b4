"""Wrong causal self-attention layers with rotary positions, padding and a KV cache, with one mistake each.

`TextbookLayer` is the right implementation, written in steps that a mutant can get wrong one at a time.

Axes: b batch · h heads · t queries · s keys · d head dim · c model dim.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.contract import Contract
from qkv.check.mutants.attention import TextbookAttention
from qkv.check.mutants.suite import mutant

LAYER = Contract(kind="causal", cache=True, position="relative")

State = tuple[Tensor, Tensor]  # cached keys and values


class TextbookLayer(nn.Module):
    """Causal multi-head self-attention with a KV cache: forward(x, token_mask=None, cache=None) -> out, cache."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(
        self,
        x: Tensor,
        token_mask: Tensor | None = None,
        cache: State | None = None,
    ) -> tuple[Tensor, State]:
        q, k, v = (self.split(part(x)) for part in (self.to_q, self.to_k, self.to_v))
        offset = 0 if cache is None else cache[0].shape[2]
        q, k = self.rotate(q, offset), self.rotate(k, offset)
        if cache is not None:
            k, v = self.append(cache[0], k), self.append(cache[1], v)
        out = self.attend(q, k, v, token_mask, offset)
        return self.to_out(self.merge(out)), (k, v)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def append(self, before: Tensor, new: Tensor) -> Tensor:
        return torch.cat((before, new), dim=2)

    def rotate(self, x: Tensor, offset: int) -> Tensor:
        """Rotary positions, with pairs in halves."""
        half = x.shape[-1] // 2
        angles = self.angles(x.shape[-2], offset, half)
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def angles(self, t: int, offset: int, half: int) -> Tensor:
        positions = torch.arange(offset, offset + t, dtype=torch.float64)
        return positions[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        mask = None if token_mask is None else token_mask[:, None, None, :]
        return TextbookAttention()(q, k, v, mask, causal=True)


@mutant("cache: new keys in front", "cache order", LAYER)
class CacheOrder(TextbookLayer):
    def append(self, before: Tensor, new: Tensor) -> Tensor:
        return torch.cat((new, before), dim=2)


@mutant("cache: mask skipped", "mask with cache", LAYER)
class LayerMaskSkipped(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        if offset:
            return F.scaled_dot_product_attention(q, k, v)
        return super().attend(q, k, v, token_mask, offset)


@mutant("cache: mask aligned at the start", "mask with cache", LAYER)
class LayerTopLeft(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        if offset:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return super().attend(q, k, v, token_mask, offset)


@mutant("cache: no rotary offset", "positions with cache", LAYER)
class LayerNoOffset(TextbookLayer):
    def rotate(self, x: Tensor, offset: int) -> Tensor:
        return super().rotate(x, 0)


@mutant("cache: oldest dropped", "cache order", LAYER)
class LayerOldestDropped(TextbookLayer):
    def append(self, before: Tensor, new: Tensor) -> Tensor:
        return torch.cat((before[:, :, -6:], new), dim=2)


@mutant("cache: keys kept, values replaced", "cache order", LAYER)
class LayerValuesReplaced(TextbookLayer):
    def forward(self, x: Tensor, token_mask: Tensor | None = None, cache: State | None = None) -> tuple[Tensor, State]:
        out, (k, v) = super().forward(x, token_mask, cache)
        return out, (k, v.roll(1, dims=2))


@mutant("mask in training only", "no mask", LAYER)
class LayerTrainingOnly(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        if self.training:
            return super().attend(q, k, v, token_mask, offset)
        mask = None if token_mask is None else token_mask[:, None, None, :]
        return TextbookAttention()(q, k, v, mask)


@mutant("padding polarity swapped", "padding", LAYER)
class LayerPaddingSwapped(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        return super().attend(q, k, v, None if token_mask is None else ~token_mask, offset)


@mutant("padding ignored", "padding", LAYER)
class LayerPaddingIgnored(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        return super().attend(q, k, v, None, offset)


@mutant("padding on the queries", "padding", LAYER)
class LayerPaddingOnQueries(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        mask = None if token_mask is None else token_mask[:, None, :, None]
        return TextbookAttention()(q, k, v, mask, causal=True)


@mutant("padding mixed across rows", "padding", LAYER)
class LayerPaddingMixed(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        return super().attend(
            q, k, v, None if token_mask is None else token_mask | token_mask.roll(1, 0).any(0), offset
        )


@mutant("view without transpose", "heads mixed", LAYER)
class LayerViewOnly(TextbookLayer):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.heads, x.shape[1], -1)


@mutant("merge without transpose", "heads mixed", LAYER)
class LayerMergeOnly(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[2], -1)


@mutant("rotary on queries only", "rotary", LAYER)
class LayerQueriesOnly(TextbookLayer):
    def forward(self, x: Tensor, token_mask: Tensor | None = None, cache: State | None = None) -> tuple[Tensor, State]:
        q, k, v = (self.split(part(x)) for part in (self.to_q, self.to_k, self.to_v))
        offset = 0 if cache is None else cache[0].shape[2]
        q = self.rotate(q, offset)
        if cache is not None:
            k, v = self.append(cache[0], k), self.append(cache[1], v)
        return self.to_out(self.merge(self.attend(q, k, v, token_mask, offset))), (k, v)


@mutant("rotary on values too", "rotary", LAYER)
class LayerOnValues(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        return super().attend(q, k, self.rotate(v, 0), token_mask, offset)


@mutant("rotary rotates keys the other way", "rotary", LAYER)
class LayerOtherWay(TextbookLayer):
    def forward(self, x: Tensor, token_mask: Tensor | None = None, cache: State | None = None) -> tuple[Tensor, State]:
        q, k, v = (self.split(part(x)) for part in (self.to_q, self.to_k, self.to_v))
        offset = 0 if cache is None else cache[0].shape[2]
        q, k = self.rotate(q, offset), self.rotate_back(k, offset)
        if cache is not None:
            k, v = self.append(cache[0], k), self.append(cache[1], v)
        return self.to_out(self.merge(self.attend(q, k, v, token_mask, offset))), (k, v)

    def rotate_back(self, x: Tensor, offset: int) -> Tensor:
        half = x.shape[-1] // 2
        return self.rotate(torch.cat((x[..., :half], -x[..., half:]), dim=-1), offset) * torch.cat(
            (torch.ones(half), -torch.ones(half))
        ).to(x)


@mutant("rotary counted from the end", "rotary", LAYER)
class LayerFromTheEnd(TextbookLayer):
    def angles(self, t: int, offset: int, half: int) -> Tensor:
        return super().angles(t, offset, half) * (1 + 0.1 * t)


@mutant("rotary in low precision", "rotary", LAYER)
class LayerLowPrecision(TextbookLayer):
    def angles(self, t: int, offset: int, half: int) -> Tensor:
        return super().angles(t, offset, half).bfloat16().double()


@mutant("layer: dropout in eval", "random in eval", LAYER)
class LayerDropout(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        return F.dropout(super().merge(x), 0.1)


@mutant("layer: batch normalized", "batch mixed", LAYER)
class LayerBatchNormalized(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        out = super().merge(x)
        return (out - out.mean((0, 1))) / (out.std((0, 1), correction=0) + 1e-3)


@mutant("layer: keys detached", "detached", LAYER)
class LayerDetached(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        return super().attend(q, k.detach(), v, token_mask, offset)


@mutant("layer: a parameter that nothing reads", "unreached", LAYER)
class LayerUnread(TextbookLayer):
    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__(dim, heads)
        self.gate = nn.Linear(dim, dim)


@mutant("layer: input changed in place", "input changed", LAYER)
class LayerInPlace(TextbookLayer):
    def forward(self, x: Tensor, token_mask: Tensor | None = None, cache: State | None = None) -> tuple[Tensor, State]:
        with torch.no_grad():
            x -= x.mean(-1, keepdim=True)
        return super().forward(x, token_mask, cache)


@mutant("layer: window one too wide", "window", Contract(kind="window", window=4))
class LayerWindowTooWide(TextbookLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor | None, offset: int) -> Tensor:
        t, s = q.shape[2], k.shape[2]
        distance = torch.arange(t)[:, None] + s - t - torch.arange(s)
        allowed = (distance >= 0) & (distance <= 4)
        return TextbookAttention()(q, k, v, allowed if token_mask is None else allowed & token_mask[:, None, None, :])


@mutant("layer: norm over the sequence", "leak", LAYER)
class LayerSequenceNormalized(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        out = super().merge(x)
        return out / out.std(1, keepdim=True, correction=0).clamp(min=0.1)


@mutant("layer: rows of the batch mixed by a view", "batch mixed", replace(LAYER, cache=None))
class LayerBatchMixed(TextbookLayer):
    def merge(self, x: Tensor) -> Tensor:
        return super().merge(x).transpose(0, 1).reshape(x.shape[0], x.shape[2], -1)
