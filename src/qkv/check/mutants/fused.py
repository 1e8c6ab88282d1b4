"""Causal layers with one fused projection, written another way than the textbook's, with one mistake each.

Axes: b batch · h heads · t queries · s keys · d head width · c model width.
"""

import torch
from torch import Tensor, nn

from qkv.check.contract import COURSE
from qkv.check.mutants.mutant import mutant


class FusedLayer(nn.Module):
    """q, k, v from one Linear; einsum; scores are filled with −∞."""

    def __init__(self, dim: int = 32, n_head: int = 4) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.cut(self.qkv(x).view(b, t, 3, self.n_head, c // self.n_head))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.scale(q)
        later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        return self.proj(self.gather(self.weights(scores, later), v))

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = x.unbind(2)
        return q, k, v

    def scale(self, q: Tensor) -> float:
        return q.shape[-1] ** -0.5

    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return scores.masked_fill(later, float("-inf")).softmax(-1)

    def gather(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


@mutant("fused: scale by the model's width", "scale", COURSE)
class ModelScale(FusedLayer):
    def scale(self, q: Tensor) -> float:
        return (q.shape[-1] * self.n_head) ** -0.5


@mutant("fused: scale missing", "scale", COURSE)
class NoScale(FusedLayer):
    def scale(self, q: Tensor) -> float:
        return 1.0


@mutant("fused: scale twice", "scale", COURSE)
class TwiceScaled(FusedLayer):
    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().cut(x)
        return q * q.shape[-1] ** -0.5, k, v


@mutant("fused: scale by the length", "scale", COURSE)
class LengthScale(FusedLayer):
    def scale(self, q: Tensor) -> float:
        return float(q.shape[1]) ** -0.5


@mutant("fused: softmax over the queries", "softmax axis", COURSE)
class OverQueries(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return scores.masked_fill(later, float("-inf")).softmax(-2)


@mutant("fused: softmax over the heads", "softmax axis", COURSE)
class OverHeads(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return scores.softmax(1).masked_fill(later, 0.0)


@mutant("fused: mask after the softmax", "mask after softmax", COURSE)
class AfterSoftmax(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return scores.softmax(-1).masked_fill(later, 0.0)


@mutant("fused: mask filled with −10", "mask not −∞", COURSE)
class FilledTen(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return scores.masked_fill(later, -10.0).softmax(-1)


@mutant("fused: mask added as −1", "mask not −∞", COURSE)
class AddedOne(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return (scores - later.to(scores)).softmax(-1)


@mutant("fused: mask multiplied by 0", "mask not −∞", COURSE)
class TimesZero(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return (scores * ~later).softmax(-1)


@mutant("fused: mask one ahead", "mask off by one", COURSE)
class OneAhead(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return super().weights(scores, later.triu(2))


@mutant("fused: mask transposed", "mask transposed", COURSE)
class Transposed(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return super().weights(scores, later.mT)


@mutant("fused: sigmoid", "softmax replaced", COURSE)
class Sigmoid(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return scores.sigmoid().masked_fill(later, 0.0)


@mutant("fused: powers not divided", "softmax replaced", COURSE)
class Powers(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return (scores - scores.amax(-1, keepdim=True)).exp().masked_fill(later, 0.0)


@mutant("fused: softmax in half precision", "low precision", COURSE)
class HalfPrecision(FusedLayer):
    def weights(self, scores: Tensor, later: Tensor) -> Tensor:
        return super().weights(scores.to(torch.bfloat16), later).to(scores)


@mutant("fused: weights averaged over heads", "heads mixed", COURSE)
class Averaged(FusedLayer):
    def gather(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().gather(weights.mean(1, keepdim=True).expand_as(weights), v)


@mutant("fused: heads summed", "heads mixed", COURSE)
class Summed(FusedLayer):
    def gather(self, weights: Tensor, v: Tensor) -> Tensor:
        out = torch.einsum("bhij,bjhd->bihd", weights, v)
        return out.sum(2).repeat(1, 1, self.n_head)


@mutant("fused: view without transpose", "heads mixed", COURSE)
class ViewOnly(FusedLayer):
    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, t, _, h, d = x.shape
        q, k, v = (part.reshape(b, h, t, d).transpose(1, 2) for part in x.unbind(2))
        return q, k, v


@mutant("fused: keys are the queries' features", "inputs swapped", COURSE)
class SameFeatures(FusedLayer):
    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[:, :, 0], x[:, :, 0], x[:, :, 2]


@mutant("fused: keys detached", "detached", COURSE)
class Detached(FusedLayer):
    def cut(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().cut(x)
        return q, k.detach(), v
