"""Wrong attention functions: attention(q, k, v, mask, causal) with one mistake each.

`TextbookAttention` is the right implementation, written in steps that a mutant can get wrong one at a time. The claims
use these classes, too, through `attend`, which takes the other options of `qkv.attention`.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.contract import TEXTBOOK
from qkv.check.mutants.suite import mutant

ENCODER = replace(TEXTBOOK, kind="bidirectional")
Choose = Callable[[Tensor], Tensor]


class TextbookAttention:
    """Attention as in the textbook; mask: True = may attend."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        return self.attend(q, k, v, mask, causal)[0]

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        *,
        scale: float | Tensor | None = None,
        bias: Tensor | None = None,
        hard: bool = False,
        dropout_p: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Output and weights. Inputs are (b, h, t, d), or fewer axes without heads."""
        q, k, v = self.inputs(q, k, v)
        if q.ndim == 4:
            k, v = self.repeat_heads(k, q.shape[1]), self.repeat_heads(v, q.shape[1])
        scores = self.scores(q, k, self.scale(q, scale))
        if bias is not None:
            scores = scores + bias
        mask = self.combined_mask(scores, mask, causal)
        weights = self.weights(scores, mask, self.one_hot if hard else self.softmax)
        return self.average(self.dropout(weights, dropout_p), v), weights

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v

    def repeat_heads(self, x: Tensor, heads: int) -> Tensor:
        return x.repeat_interleave(heads // x.shape[1], dim=1)

    def scale(self, q: Tensor, scale: float | Tensor | None) -> float | Tensor:
        return 1 / math.sqrt(q.shape[-1]) if scale is None else scale

    def scores(self, q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) * scale

    def causal_mask(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool).tril(s - t)

    def combined_mask(self, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
        if not causal:
            return mask
        past = self.causal_mask(*scores.shape[-2:])
        return past if mask is None else past & mask

    def weights(self, scores: Tensor, mask: Tensor | None, choose: Choose) -> Tensor:
        if mask is None:
            return choose(scores)
        nothing = ~mask.any(-1, keepdim=True)
        return choose(self.masked(scores, mask | nothing)).masked_fill(nothing, 0.0)

    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, float("-inf"))

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def one_hot(self, scores: Tensor) -> Tensor:
        return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores)

    def dropout(self, weights: Tensor, p: float) -> Tensor:
        return F.dropout(weights, p) if p else weights

    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v


def match_dim(x: Tensor, other: Tensor) -> Tensor:
    """x with as many features as `other`: cut, or padded with zeros."""
    return F.pad(x, (0, other.shape[-1] - x.shape[-1]))


@mutant("mask strict", "mask off by one", TEXTBOOK)
class Strict(TextbookAttention):
    def causal_mask(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool).tril(s - t - 1)


@mutant("mask one ahead", "mask off by one", TEXTBOOK)
class OneAhead(TextbookAttention):
    def combined_mask(self, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
        mask = super().combined_mask(scores, mask, causal)
        return None if mask is None else mask | F.pad(mask[..., :-1], (1, 0))


@mutant("mask missing", "no mask", TEXTBOOK)
class NoMask(TextbookAttention):
    def combined_mask(self, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
        return None


@mutant("mask transposed", "mask transposed", TEXTBOOK)
class Transposed(TextbookAttention):
    def causal_mask(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool).triu(s - t)


@mutant("mask in blocks of four", "leak", TEXTBOOK)
class Blocks(TextbookAttention):
    def causal_mask(self, t: int, s: int) -> Tensor:
        return torch.arange(s)[None] // 4 <= (torch.arange(t)[:, None] + s - t) // 4


@mutant("mask soft, −4", "mask not −∞", TEXTBOOK)
class Soft(TextbookAttention):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores - 4.0 * (~mask).to(scores)


@mutant("mask filled with −5", "mask not −∞", TEXTBOOK)
class FilledFive(TextbookAttention):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, -5.0)


@mutant("mask multiplied by 0", "mask not −∞", TEXTBOOK)
class TimesZero(TextbookAttention):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores * mask


@mutant("mask after the softmax", "mask after softmax", TEXTBOOK)
class AfterSoftmax(TextbookAttention):
    def weights(self, scores: Tensor, mask: Tensor | None, choose: Choose) -> Tensor:
        weights = choose(scores)
        return weights if mask is None else weights * mask


@mutant("mean of the sequence added", "leak", TEXTBOOK)
class MeanLeak(TextbookAttention):
    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v + 0.1 * v.mean(-2, keepdim=True)


@mutant("softmax over the queries", "softmax axis", TEXTBOOK)
class OverQueries(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


@mutant("softmax over the heads", "softmax axis", ENCODER)
class OverHeads(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(1)


@mutant("sigmoid instead of softmax", "softmax replaced", TEXTBOOK)
class Sigmoid(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.sigmoid()


@mutant("no maximum subtracted", "overflow", TEXTBOOK)
class NoMaximum(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        powers = scores.exp()
        return powers / powers.sum(-1, keepdim=True)


@mutant("NaN for a row with nothing", "fully masked row", TEXTBOOK)
class NanRow(TextbookAttention):
    def weights(self, scores: Tensor, mask: Tensor | None, choose: Choose) -> Tensor:
        return choose(scores if mask is None else self.masked(scores, mask))


@mutant("NaN overwritten in the output only", "fully masked row", TEXTBOOK)
class NanGradient(TextbookAttention):
    def weights(self, scores: Tensor, mask: Tensor | None, choose: Choose) -> Tensor:
        if mask is not None:
            scores = scores + torch.zeros(mask.shape).to(scores).masked_fill(~mask, float("-inf"))
        return choose(scores).nan_to_num(0.0)


@mutant("batch mean mixed in", "batch mixed", TEXTBOOK)
class BatchMean(TextbookAttention):
    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ (v + 0.1 * v.mean(0, keepdim=True))


@mutant("batch normalized", "batch mixed", TEXTBOOK)
class BatchNormalized(TextbookAttention):
    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        return (out - out.mean(0)) / (out.std(0, correction=0) + 1e-3)


@mutant("dropout in eval", "random in eval", TEXTBOOK)
class DropoutInEval(TextbookAttention):
    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        return F.dropout(weights, 0.1) @ v


@mutant("weights detached", "detached", TEXTBOOK)
class DetachedWeights(TextbookAttention):
    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights.detach() @ v


@mutant("keys detached", "detached", TEXTBOOK)
class DetachedKeys(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
        return super().scores(q, k.detach(), scale)


@mutant("scale missing", "scale", TEXTBOOK)
class NoScale(TextbookAttention):
    def scale(self, q: Tensor, scale: float | Tensor | None) -> float | Tensor:
        return 1.0 if scale is None else scale


@mutant("scale by the model dim", "scale", TEXTBOOK)
class ModelScale(TextbookAttention):
    def scale(self, q: Tensor, scale: float | Tensor | None) -> float | Tensor:
        return 1 / math.sqrt(q.shape[1] * q.shape[-1]) if scale is None else scale


@mutant("scale inverted", "scale", TEXTBOOK)
class Inverted(TextbookAttention):
    def scale(self, q: Tensor, scale: float | Tensor | None) -> float | Tensor:
        return math.sqrt(q.shape[-1]) if scale is None else scale


@mutant("scale twice", "scale", TEXTBOOK)
class Twice(TextbookAttention):
    def scale(self, q: Tensor, scale: float | Tensor | None) -> float | Tensor:
        return 1 / q.shape[-1] if scale is None else scale


@mutant("heads summed", "heads mixed", TEXTBOOK)
class HeadsSummed(TextbookAttention):
    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        return (weights @ v).sum(1, keepdim=True).expand(v.shape[0], weights.shape[1], -1, -1)


@mutant("weights averaged over heads", "heads mixed", TEXTBOOK)
class HeadsAveraged(TextbookAttention):
    def average(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights.mean(1, keepdim=True) @ v


@mutant("input changed in place", "input changed", TEXTBOOK)
class InPlace(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
        with torch.no_grad():
            q.mul_(scale)
        return q @ k.transpose(-2, -1)


@mutant("mask polarity swapped", "mask polarity", replace(ENCODER, mask="true-attends"))
class Swapped(TextbookAttention):
    def combined_mask(self, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
        return super().combined_mask(scores, None if mask is None else ~mask, causal)


@mutant("causal aligned at the start", "alignment", replace(TEXTBOOK, alignment="bottom-right"))
class TopLeft(TextbookAttention):
    def causal_mask(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool).tril()


@mutant("grouped heads tiled", "head layout", replace(TEXTBOOK, grouped="repeated"))
class Tiled(TextbookAttention):
    def repeat_heads(self, x: Tensor, heads: int) -> Tensor:
        return x.repeat(1, heads // x.shape[1], 1, 1)


@mutant("grouped keys repeated, values tiled", "head layout", replace(TEXTBOOK, grouped="repeated"))
class Mismatched(TextbookAttention):
    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v.repeat(1, q.shape[1] // v.shape[1], 1, 1)


@mutant("values for keys", "inputs swapped", TEXTBOOK)
class ValuesForKeys(TextbookAttention):
    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, match_dim(v, k), v


@mutant("keys for values", "inputs swapped", TEXTBOOK)
class KeysForValues(TextbookAttention):
    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, match_dim(k, v)


@mutant("queries and keys swapped", "inputs swapped", ENCODER)
class QueriesAndKeysSwapped(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
        return super().scores(k, q, scale) if q.shape == k.shape else super().scores(q, k, scale)


@mutant("scores clipped at ±1", "scores changed", TEXTBOOK)
class Clipped(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
        return super().scores(q, k, scale).clamp(-1, 1)


@mutant("cosine instead of dot product", "scores changed", TEXTBOOK)
class Cosine(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
        return super().scores(F.normalize(q, dim=-1), F.normalize(k, dim=-1), scale)


@mutant("softmax in half precision", "low precision", TEXTBOOK)
class HalfSoftmax(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.bfloat16().softmax(-1).to(scores)


@mutant("hard choice instead of soft", "softmax replaced", TEXTBOOK)
class Hard(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return self.one_hot(scores)


@mutant("uniform weights", "scores changed", TEXTBOOK)
class Uniform(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
        return 0.0 * super().scores(q, k, scale)


@mutant("cross mask dropped", "mask dropped", ENCODER)
class CrossMaskDropped(TextbookAttention):
    def combined_mask(self, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
        return super().combined_mask(scores, mask if scores.shape[-1] == scores.shape[-2] else None, causal)


@mutant("softmax over queries and keys together", "softmax axis", ENCODER)
class Together(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.flatten(-2).softmax(-1).view_as(scores)


@mutant("ReLU instead of softmax", "softmax replaced", TEXTBOOK)
class Relu(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.relu()


@mutant("powers of 2 instead of e", "scale", TEXTBOOK)
class PowersOfTwo(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        powers = torch.exp2(scores - scores.amax(-1, keepdim=True))
        return powers / powers.sum(-1, keepdim=True)


@mutant("scale by the number of keys", "scale", TEXTBOOK)
class KeyScale(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor, scale: float | Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) / math.sqrt(k.shape[-2])


@mutant("mask on the first head only", "leak", TEXTBOOK)
class FirstHeadOnly(TextbookAttention):
    def masked(self, scores: Tensor, mask: Tensor) -> Tensor:
        return torch.cat((super().masked(scores[:, :1], mask), scores[:, 1:]), dim=1)
