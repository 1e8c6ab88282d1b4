"""Functions attention(q, k, v, mask, causal) with one mistake each.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.contract import COURSE
from qkv.check.mutants.mutant import mutant
from qkv.check.mutants.textbook import TextbookAttention

ENCODER = replace(COURSE, kind="bidirectional")


@mutant("mask strict", "mask off by one", COURSE)
class Strict(TextbookAttention):
    def past(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool).tril(s - t - 1)


@mutant("mask one ahead", "mask off by one", COURSE)
class OneAhead(TextbookAttention):
    def past(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool).tril(s - t + 1)


@mutant("mask missing", "no mask", COURSE)
class NoMask(TextbookAttention):
    def past(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool)


@mutant("mask transposed", "mask transposed", COURSE)
class Transposed(TextbookAttention):
    def past(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool).triu(s - t)


@mutant("mask in blocks of four", "leak", COURSE)
class Blocks(TextbookAttention):
    def past(self, t: int, s: int) -> Tensor:
        return torch.arange(s)[None] // 4 <= (torch.arange(t)[:, None] + s - t) // 4


@mutant("mask soft, −4", "mask not −∞", COURSE)
class Soft(TextbookAttention):
    def hidden(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores - 4.0 * (~allowed).to(scores)


@mutant("mask filled with −5", "mask not −∞", COURSE)
class FilledFive(TextbookAttention):
    def hidden(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -5.0)


@mutant("mask multiplied by 0", "mask not −∞", COURSE)
class TimesZero(TextbookAttention):
    def hidden(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores * allowed


@mutant("mask after the softmax", "mask after softmax", COURSE)
class AfterSoftmax(TextbookAttention):
    def weights(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        weights = self.softmax(scores)
        return weights if allowed is None else weights * allowed


@mutant("mean of the sequence added", "leak", COURSE)
class MeanLeak(TextbookAttention):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v + 0.1 * v.mean(-2, keepdim=True)


@mutant("softmax over the queries", "softmax axis", COURSE)
class OverQueries(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(-2)


@mutant("softmax over the heads", "softmax axis", ENCODER)
class OverHeads(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(1)


@mutant("sigmoid instead of softmax", "softmax replaced", COURSE)
class Sigmoid(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.sigmoid()


@mutant("no maximum subtracted", "overflow", COURSE)
class NoMaximum(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        powers = scores.exp()
        return powers / powers.sum(-1, keepdim=True)


@mutant("NaN for a row with nothing", "fully masked row", COURSE)
class NanRow(TextbookAttention):
    def weights(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return self.softmax(scores if allowed is None else self.hidden(scores, allowed))


@mutant("NaN overwritten in the output only", "fully masked row", COURSE)
class NanGradient(TextbookAttention):
    def weights(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        if allowed is not None:
            scores = scores + torch.zeros(allowed.shape).to(scores).masked_fill(~allowed, float("-inf"))
        return self.softmax(scores).nan_to_num(0.0)


@mutant("batch mean mixed in", "batch mixed", COURSE)
class BatchMean(TextbookAttention):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ (v + 0.1 * v.mean(0, keepdim=True))


@mutant("batch normalised", "batch mixed", COURSE)
class BatchNormalised(TextbookAttention):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        return (out - out.mean(0)) / (out.std(0, correction=0) + 1e-3)


@mutant("dropout in eval", "random in eval", COURSE)
class Dropout(TextbookAttention):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return F.dropout(weights, 0.1) @ v


@mutant("weights detached", "detached", COURSE)
class DetachedWeights(TextbookAttention):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights.detach() @ v


@mutant("keys detached", "detached", COURSE)
class DetachedKeys(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k.detach())


@mutant("scale missing", "scale", COURSE)
class NoScale(TextbookAttention):
    def scale(self, q: Tensor) -> float:
        return 1.0


@mutant("scale by the model's width", "scale", COURSE)
class ModelScale(TextbookAttention):
    def scale(self, q: Tensor) -> float:
        return 1 / math.sqrt(q.shape[1] * q.shape[-1])


@mutant("scale inverted", "scale", COURSE)
class Inverted(TextbookAttention):
    def scale(self, q: Tensor) -> float:
        return math.sqrt(q.shape[-1])


@mutant("scale twice", "scale", COURSE)
class Twice(TextbookAttention):
    def scale(self, q: Tensor) -> float:
        return 1 / q.shape[-1]


@mutant("heads summed", "heads mixed", COURSE)
class HeadsSummed(TextbookAttention):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return (weights @ v).sum(1, keepdim=True).expand(v.shape[0], weights.shape[1], -1, -1)


@mutant("weights averaged over heads", "heads mixed", COURSE)
class HeadsAveraged(TextbookAttention):
    def mixed(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights.mean(1, keepdim=True) @ v


@mutant("input changed in place", "input changed", COURSE)
class InPlace(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        with torch.no_grad():
            q.mul_(self.scale(q))
        return q @ k.transpose(-2, -1)


@mutant("mask polarity swapped", "mask polarity", replace(ENCODER, mask="true-attends"))
class Swapped(TextbookAttention):
    def allowed(self, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
        return super().allowed(scores, None if mask is None else ~mask, causal)


@mutant("causal aligned at the start", "alignment", replace(COURSE, alignment="bottom-right"))
class TopLeft(TextbookAttention):
    def past(self, t: int, s: int) -> Tensor:
        return torch.ones(t, s, dtype=torch.bool).tril()


@mutant("grouped heads tiled", "head layout", replace(COURSE, grouped="repeated"))
class Tiled(TextbookAttention):
    def shared(self, x: Tensor, heads: int) -> Tensor:
        return x.repeat(1, heads // x.shape[1], 1, 1)


@mutant("grouped keys repeated, values tiled", "head layout", replace(COURSE, grouped="repeated"))
class Mismatched(TextbookAttention):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        return super().__call__(q, k, v.repeat(1, q.shape[1] // v.shape[1], 1, 1), mask, causal)


@mutant("values for keys", "inputs swapped", COURSE)
class ValuesForKeys(TextbookAttention):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        return super().__call__(q, v, v, mask, causal)


@mutant("keys for values", "inputs swapped", COURSE)
class KeysForValues(TextbookAttention):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        return super().__call__(q, k, k, mask, causal)


@mutant("queries and keys swapped", "inputs swapped", ENCODER)
class QueriesAndKeysSwapped(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(k, q) if q.shape == k.shape else super().scores(q, k)


@mutant("scores clipped at ±1", "scores changed", COURSE)
class Clipped(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k).clamp(-1, 1)


@mutant("cosine instead of dot product", "scores changed", COURSE)
class Cosine(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(F.normalize(q, dim=-1), F.normalize(k, dim=-1))


@mutant("softmax in half precision", "low precision", COURSE)
class HalfSoftmax(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.bfloat16().softmax(-1).to(scores)


@mutant("hard choice instead of soft", "softmax replaced", COURSE)
class Hard(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return F.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores)


@mutant("uniform weights", "scores changed", COURSE)
class Uniform(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return 0.0 * super().scores(q, k)


@mutant("cross mask dropped", "mask dropped", ENCODER)
class CrossMaskDropped(TextbookAttention):
    def allowed(self, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
        return super().allowed(scores, mask if scores.shape[-1] == scores.shape[-2] else None, causal)


@mutant("softmax over queries and keys together", "softmax axis", ENCODER)
class Together(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.flatten(-2).softmax(-1).view_as(scores)


@mutant("ReLU instead of softmax", "softmax replaced", COURSE)
class Relu(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.relu()


@mutant("powers of 2 instead of e", "scale", COURSE)
class PowersOfTwo(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        powers = torch.exp2(scores - scores.amax(-1, keepdim=True))
        return powers / powers.sum(-1, keepdim=True)


@mutant("scale by the number of keys", "scale", COURSE)
class KeyScale(TextbookAttention):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-2, -1) / math.sqrt(k.shape[-2])


@mutant("mask on the first head only", "leak", COURSE)
class FirstHeadOnly(TextbookAttention):
    def hidden(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return torch.cat((super().hidden(scores[:, :1], allowed), scores[:, 1:]), dim=1)
