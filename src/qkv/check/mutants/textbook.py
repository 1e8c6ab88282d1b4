"""The textbook's attention, written plainly, in steps that a mutant can get wrong one at a time.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

import math

import torch
from torch import Tensor, nn


class TextbookAttention:
    """A function attention(q, k, v, mask=None, causal=False); True = may attend."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        k, v = self.shared(k, q.shape[1]), self.shared(v, q.shape[1])
        scores = self.scores(q, k)
        allowed = self.allowed(scores, mask, causal)
        return self.mixed(self.weights(scores, allowed), v)

    def shared(self, x: Tensor, heads: int) -> Tensor:
        return x.repeat_interleave(heads // x.shape[1], dim=1)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * self.scale(q)

    def scale(self, q: Tensor) -> float:
        return 1 / math.sqrt(q.shape[-1])

    def past(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool).tril(s - t)

    def allowed(self, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
        allowed = self.past(*scores.shape[-2:]) if causal else None
        if mask is not None:
            allowed = mask if allowed is None else allowed & mask
        return allowed

    def weights(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is None:
            return self.softmax(scores)
        nothing = ~allowed.any(-1, keepdim=True)
        scores = self.hidden(scores, allowed | nothing)
        return self.softmax(scores).masked_fill(nothing, 0.0)

    def hidden(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, float("-inf"))

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v


class TextbookLayer(nn.Module):
    """Causal multi-head self-attention with a cache: forward(x, present=None, cache=None) -> out, cache."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def forward(
        self,
        x: Tensor,
        present: Tensor | None = None,
        cache: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = (self.split(part(x)) for part in (self.to_q, self.to_k, self.to_v))
        offset = 0 if cache is None else cache[0].shape[2]
        q, k = self.turned(q, offset), self.turned(k, offset)
        if cache is not None:
            k, v = self.joined(cache[0], k), self.joined(cache[1], v)
        out = self.attend(q, k, v, present, offset)
        return self.to_out(self.merge(out)), (k, v)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def joined(self, before: Tensor, new: Tensor) -> Tensor:
        return torch.cat((before, new), dim=2)

    def turned(self, x: Tensor, offset: int) -> Tensor:
        """Rotary positions, in halves."""
        half = x.shape[-1] // 2
        angles = self.angles(x.shape[-2], offset, half).to(x)
        first, second = x[..., :half], x[..., half:]
        return torch.cat(
            (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), dim=-1
        )

    def angles(self, t: int, offset: int, half: int) -> Tensor:
        places = torch.arange(offset, offset + t, dtype=torch.float64)
        return places[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, present: Tensor | None, offset: int) -> Tensor:
        mask = None if present is None else present[:, None, None, :]
        return TextbookAttention()(q, k, v, mask, causal=True)
