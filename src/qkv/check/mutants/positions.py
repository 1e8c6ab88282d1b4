"""Wrong layers with rotary positions, ALiBi slopes, attention sinks or grouped-query attention.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from qkv.check.contract import TEXTBOOK
from qkv.check.mutants.suite import mutant

ROTARY = replace(TEXTBOOK, position="rotary")
ALIBI = replace(TEXTBOOK, position="alibi")
GROUPED = replace(TEXTBOOK, grouped="repeated")


class RotaryLayer(nn.Module):
    """Causal self-attention with rotary positions and, optionally, fewer key heads (grouped-query attention)."""

    kv_heads = 4

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, d = heads, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, self.kv_heads * d, bias=False) for _ in range(2))
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        positions = torch.arange(t, dtype=x.dtype)
        q, k, v = (part(x).view(b, t, -1, c // self.heads).transpose(1, 2) for part in (self.wq, self.wk, self.wv))
        q, k, v = (
            self.queries(q, positions),
            self.repeat_heads(self.keys(k, positions)),
            self.values(self.repeat_heads(v), positions),
        )
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.bias(t).to(x)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return self.wo((self.softmax(scores) @ v).transpose(1, 2).reshape(b, t, c))

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, positions)

    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, positions)

    def values(self, v: Tensor, positions: Tensor) -> Tensor:
        return v

    def repeat_heads(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.heads // x.shape[1], dim=1)

    def bias(self, t: int) -> Tensor:
        return torch.zeros(1)

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


def rotate(x: Tensor, positions: Tensor, sign: float = 1.0) -> Tensor:
    """Rotary positions with interleaved pairs."""
    d = x.shape[-1]
    angles = sign * positions[..., None] * 10_000.0 ** (-torch.arange(0, d, 2).to(x) / d)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], d // 2, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def rotate_halves(x: Tensor, positions: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    mixed = torch.stack((first, second), dim=-1).flatten(-2)
    out = rotate(mixed, positions).unflatten(-1, (-1, 2))
    return torch.cat((out[..., 0], out[..., 1]), dim=-1)


@mutant("rotary: half the features", "rotary", ROTARY)
class HalfTheFeatures(RotaryLayer):
    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return torch.cat((rotate(x[..., :half], positions), x[..., half:]), dim=-1)

    keys = queries


@mutant("rotary: pairs mixed", "rotary", ROTARY)
class RotaryMixedPairs(RotaryLayer):
    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate_halves(x, positions)


@mutant("rotary: keys one position on", "rotary", ROTARY)
class OnePositionOn(RotaryLayer):
    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, positions + 1)


@mutant("rotary: keys the other way", "rotary", ROTARY)
class RotaryOtherWay(RotaryLayer):
    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, positions, -1.0)


@mutant("rotary: keys not rotated", "rotary", ROTARY)
class RotaryKeysUnrotated(RotaryLayer):
    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        return x


@mutant("rotary: values rotated", "rotary", ROTARY)
class ValuesRotated(RotaryLayer):
    def values(self, v: Tensor, positions: Tensor) -> Tensor:
        return rotate(v, positions)


@mutant("rotary: by head instead of by position", "rotary", ROTARY)
class RotaryByHead(RotaryLayer):
    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x.transpose(1, 2), torch.arange(x.shape[1]).to(positions)).transpose(1, 2)

    keys = queries


@mutant("rotary: forgotten", "rotary", ROTARY)
class RotaryForgotten(RotaryLayer):
    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    keys = queries


@mutant("rotary: positions in half precision", "rotary", ROTARY)
class HalfPrecisionPositions(RotaryLayer):
    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, (positions / 7).bfloat16().to(x) * 7)

    keys = queries


@mutant("rotary: stretched by the length", "rotary", ROTARY)
class RotaryStretched(RotaryLayer):
    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, positions * 8 / len(positions))

    keys = queries


class SlopedLayer(RotaryLayer):
    """ALiBi: a bias that falls with distance, instead of rotary positions."""

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    keys = queries

    def slopes(self) -> Tensor:
        return 2.0 ** (-8 * torch.arange(1, self.heads + 1, dtype=torch.float64) / self.heads)

    def bias(self, t: int) -> Tensor:
        positions = torch.arange(t)
        return -self.slopes()[:, None, None] * (positions[:, None] - positions[None, :])


@mutant("alibi: slopes off by one", "alibi", ALIBI)
class LateSlopes(SlopedLayer):
    def slopes(self) -> Tensor:
        return super().slopes() * 2.0 ** (8 / self.heads)


@mutant("alibi: sign flipped", "alibi", ALIBI)
class NegatedSlopes(SlopedLayer):
    def slopes(self) -> Tensor:
        return -super().slopes()


class SinkLayer(SlopedLayer):
    """An attention sink: a learned score without a value takes part in the softmax."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__(dim, heads)
        self.sinks = nn.Parameter(torch.zeros(heads))

    def softmax(self, scores: Tensor) -> Tensor:
        sink = self.sinks[None, :, None, None].expand(scores.shape[0], -1, scores.shape[2], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]


@mutant("sink dropped", "sink", replace(TEXTBOOK, softmax=None))
class SinkDropped(SinkLayer):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class GroupedLayer(RotaryLayer):
    kv_heads = 2


@mutant("grouped layer: heads tiled", "head layout", GROUPED)
class TiledHeads(GroupedLayer):
    def repeat_heads(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.heads // x.shape[1], 1, 1)


@mutant("grouped layer: values shared otherwise than keys", "head layout", GROUPED)
class SharedOtherwise(GroupedLayer):
    def values(self, v: Tensor, positions: Tensor) -> Tensor:
        return v[:, [0, 2, 1, 3]]


@mutant("grouped layer: keys permuted for the wrong number of heads", "rotary", GROUPED, reference=GroupedLayer)
class WronglyPermuted(GroupedLayer):
    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate_halves(x, positions)
