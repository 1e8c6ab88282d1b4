"""Wrong causal layers with one fused projection, written in another way than the textbook layer.

Axes: b batch · h heads · t queries · s keys · d head dim · c model dim.
"""

import torch
from torch import Tensor, nn

from qkv.check.contract import TEXTBOOK
from qkv.check.mutants.suite import mutant


class FusedLayer(nn.Module):
    """q, k, v from one Linear; einsum; scores are filled with −∞."""

    def __init__(self, dim: int = 32, n_head: int = 4) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.split(self.qkv(x).view(b, t, 3, self.n_head, c // self.n_head))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.scale(q)
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        return self.proj(self.average(self.weights(scores, future), v))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = x.unbind(2)
        return q, k, v

    def scale(self, q: Tensor) -> float:
        return q.shape[-1] ** -0.5

    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return scores.masked_fill(future, float("-inf")).softmax(-1)

    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)


@mutant("fused: scale by the model dim", "scale", TEXTBOOK)
class FusedModelScale(FusedLayer):
    def scale(self, q: Tensor) -> float:
        return (q.shape[-1] * self.n_head) ** -0.5


@mutant("fused: scale missing", "scale", TEXTBOOK)
class FusedNoScale(FusedLayer):
    def scale(self, q: Tensor) -> float:
        return 1.0


@mutant("fused: scale twice", "scale", TEXTBOOK)
class FusedTwiceScaled(FusedLayer):
    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        return q * q.shape[-1] ** -0.5, k, v


@mutant("fused: scale by the length", "scale", TEXTBOOK)
class FusedLengthScale(FusedLayer):
    def scale(self, q: Tensor) -> float:
        return float(q.shape[1]) ** -0.5


@mutant("fused: softmax over the queries", "softmax axis", TEXTBOOK)
class FusedOverQueries(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return scores.masked_fill(future, float("-inf")).softmax(-2)


@mutant("fused: softmax over the heads", "softmax axis", TEXTBOOK)
class FusedOverHeads(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return scores.softmax(1).masked_fill(future, 0.0)


@mutant("fused: mask after the softmax", "mask after softmax", TEXTBOOK)
class FusedAfterSoftmax(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return scores.softmax(-1).masked_fill(future, 0.0)


@mutant("fused: mask filled with −10", "mask not −∞", TEXTBOOK)
class FusedFilledTen(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return scores.masked_fill(future, -10.0).softmax(-1)


@mutant("fused: mask added as −1", "mask not −∞", TEXTBOOK)
class FusedAddedOne(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return (scores - future.to(scores)).softmax(-1)


@mutant("fused: mask multiplied by 0", "mask not −∞", TEXTBOOK)
class FusedTimesZero(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return (scores * ~future).softmax(-1)


@mutant("fused: mask one ahead", "mask off by one", TEXTBOOK)
class FusedOneAhead(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return super().weights(scores, future.triu(2))


@mutant("fused: mask transposed", "mask transposed", TEXTBOOK)
class FusedTransposed(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return super().weights(scores, future.mT)


@mutant("fused: sigmoid", "softmax replaced", TEXTBOOK)
class FusedSigmoid(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return scores.sigmoid().masked_fill(future, 0.0)


@mutant("fused: powers not divided", "softmax replaced", TEXTBOOK)
class FusedPowers(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return (scores - scores.amax(-1, keepdim=True)).exp().masked_fill(future, 0.0)


@mutant("fused: softmax in half precision", "low precision", TEXTBOOK)
class FusedHalfPrecision(FusedLayer):
    def weights(self, scores: Tensor, future: Tensor) -> Tensor:
        return super().weights(scores.to(torch.bfloat16), future).to(scores)


@mutant("fused: weights averaged over heads", "heads mixed", TEXTBOOK)
class FusedAveraged(FusedLayer):
    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().average(weights.mean(1, keepdim=True).expand_as(weights), v)


@mutant("fused: heads summed", "heads mixed", TEXTBOOK)
class FusedSummed(FusedLayer):
    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        out = torch.einsum("bhij,bjhd->bihd", weights, v)
        return out.sum(2).repeat(1, 1, self.n_head)


@mutant("fused: view without transpose", "heads mixed", TEXTBOOK)
class FusedViewOnly(FusedLayer):
    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, t, _, h, d = x.shape
        q, k, v = (part.reshape(b, h, t, d).transpose(1, 2) for part in x.unbind(2))
        return q, k, v


@mutant("fused: keys are the queries' features", "inputs swapped", TEXTBOOK)
class FusedSameFeatures(FusedLayer):
    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[:, :, 0], x[:, :, 0], x[:, :, 2]


@mutant("fused: keys detached", "detached", TEXTBOOK)
class FusedDetached(FusedLayer):
    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().split(x)
        return q, k.detach(), v
