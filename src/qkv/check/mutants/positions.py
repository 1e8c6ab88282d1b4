"""Layers with rotary positions, slopes and sinks, with one mistake each.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from qkv.check.contract import COURSE
from qkv.check.mutants.mutant import mutant

ROTARY = replace(COURSE, position="rotary")
ALIBI = replace(COURSE, position="alibi")
GROUPED = replace(COURSE, grouped="repeated")


class RotaryLayer(nn.Module):
    """Causal self-attention with rotary positions and, perhaps, fewer heads of keys."""

    kv_heads = 4

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, d = heads, width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, self.kv_heads * d, bias=False) for _ in range(2))
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        places = torch.arange(t, dtype=x.dtype)
        q, k, v = (part(x).view(b, t, -1, c // self.heads).transpose(1, 2) for part in (self.wq, self.wk, self.wv))
        q, k, v = self.queries(q, places), self.shared(self.keys(k, places)), self.values(self.shared(v), places)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.bias(t).to(x)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return self.wo((self.softmax(scores) @ v).transpose(1, 2).reshape(b, t, c))

    def queries(self, x: Tensor, places: Tensor) -> Tensor:
        return turned(x, places)

    def keys(self, x: Tensor, places: Tensor) -> Tensor:
        return turned(x, places)

    def values(self, v: Tensor, places: Tensor) -> Tensor:
        return v

    def shared(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.heads // x.shape[1], dim=1)

    def bias(self, t: int) -> Tensor:
        return torch.zeros(1)

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


def turned(x: Tensor, places: Tensor, sign: float = 1.0) -> Tensor:
    """Neighbouring widths are turned together."""
    d = x.shape[-1]
    angles = sign * places[..., None] * 10_000.0 ** (-torch.arange(0, d, 2).to(x) / d)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], d // 2, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def turned_in_halves(x: Tensor, places: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    mixed = torch.stack((first, second), dim=-1).flatten(-2)
    out = turned(mixed, places).unflatten(-1, (-1, 2))
    return torch.cat((out[..., 0], out[..., 1]), dim=-1)


@mutant("rotary: half the widths", "rotary", ROTARY)
class HalfTheWidths(RotaryLayer):
    def queries(self, x: Tensor, places: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return torch.cat((turned(x[..., :half], places), x[..., half:]), dim=-1)

    keys = queries


@mutant("rotary: pairs mixed", "rotary", ROTARY)
class MixedPairs(RotaryLayer):
    def keys(self, x: Tensor, places: Tensor) -> Tensor:
        return turned_in_halves(x, places)


@mutant("rotary: keys one place on", "rotary", ROTARY)
class OnePlaceOn(RotaryLayer):
    def keys(self, x: Tensor, places: Tensor) -> Tensor:
        return turned(x, places + 1)


@mutant("rotary: keys the other way", "rotary", ROTARY)
class OtherWay(RotaryLayer):
    def keys(self, x: Tensor, places: Tensor) -> Tensor:
        return turned(x, places, -1.0)


@mutant("rotary: keys not turned", "rotary", ROTARY)
class KeysStill(RotaryLayer):
    def keys(self, x: Tensor, places: Tensor) -> Tensor:
        return x


@mutant("rotary: values turned", "rotary", ROTARY)
class ValuesTurned(RotaryLayer):
    def values(self, v: Tensor, places: Tensor) -> Tensor:
        return turned(v, places)


@mutant("rotary: by head instead of by place", "rotary", ROTARY)
class ByHead(RotaryLayer):
    def queries(self, x: Tensor, places: Tensor) -> Tensor:
        return turned(x.transpose(1, 2), torch.arange(x.shape[1]).to(places)).transpose(1, 2)

    keys = queries


@mutant("rotary: forgotten", "rotary", ROTARY)
class Forgotten(RotaryLayer):
    def queries(self, x: Tensor, places: Tensor) -> Tensor:
        return x

    keys = queries


@mutant("rotary: places in half precision", "rotary", ROTARY)
class HalfPlaces(RotaryLayer):
    def queries(self, x: Tensor, places: Tensor) -> Tensor:
        return turned(x, (places / 7).bfloat16().to(x) * 7)

    keys = queries


@mutant("rotary: stretched by the length", "rotary", ROTARY)
class Stretched(RotaryLayer):
    def queries(self, x: Tensor, places: Tensor) -> Tensor:
        return turned(x, places * 8 / len(places))

    keys = queries


class SlopedLayer(RotaryLayer):
    """A bias that falls with distance instead of rotary positions."""

    def queries(self, x: Tensor, places: Tensor) -> Tensor:
        return x

    keys = queries

    def slopes(self) -> Tensor:
        return 2.0 ** (-8 * torch.arange(1, self.heads + 1, dtype=torch.float64) / self.heads)

    def bias(self, t: int) -> Tensor:
        places = torch.arange(t)
        return -self.slopes()[:, None, None] * (places[:, None] - places[None, :])


@mutant("alibi: slopes off by one", "alibi", ALIBI)
class LateSlopes(SlopedLayer):
    def slopes(self) -> Tensor:
        return super().slopes() * 2.0 ** (8 / self.heads)


@mutant("alibi: sign turned", "alibi", ALIBI)
class TurnedSlopes(SlopedLayer):
    def slopes(self) -> Tensor:
        return -super().slopes()


class SinkLayer(SlopedLayer):
    """A learned score without a value takes part in the softmax."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.sinks = nn.Parameter(torch.zeros(heads))

    def softmax(self, scores: Tensor) -> Tensor:
        sink = self.sinks[None, :, None, None].expand(scores.shape[0], -1, scores.shape[2], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]


@mutant("sink dropped", "sink", replace(COURSE, softmax=None))
class SinkDropped(SinkLayer):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class GroupedLayer(RotaryLayer):
    kv_heads = 2


@mutant("grouped layer: heads tiled", "head layout", GROUPED)
class TiledHeads(GroupedLayer):
    def shared(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.heads // x.shape[1], 1, 1)


@mutant("grouped layer: values shared otherwise than keys", "head layout", GROUPED)
class SharedOtherwise(GroupedLayer):
    def values(self, v: Tensor, places: Tensor) -> Tensor:
        return v[:, [0, 2, 1, 3]]


@mutant("grouped layer: keys permuted for the wrong number of heads", "rotary", GROUPED, like=GroupedLayer)
class WronglyPermuted(GroupedLayer):
    def keys(self, x: Tensor, places: Tensor) -> Tensor:
        return turned_in_halves(x, places)
