"""Wrong implementations that must overturn the claims that name them: wrong attentions and wrong other components.

The wrong attentions are the classes of the mutant suite (`qkv.check.mutants.attention`), called with the signature of
`qkv.attention`. Defined here are only the mistakes that the suite does not have.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.mutants import attention as suite
from qkv.check.mutants.attention import TextbookAttention
from qkv.nn import FeedForward, PatchEmbedding
from qkv.nn.block import Block
from qkv.nn.masks import Mask


class ScaleIgnored(TextbookAttention):
    def scale(self, q: Tensor, scale: float | Tensor | None) -> float | Tensor:
        return super().scale(q, None)


class ScaleSquared(TextbookAttention):
    def scale(self, q: Tensor, scale: float | Tensor | None) -> float | Tensor:
        return super().scale(q, scale) ** 2


class NeverHard(TextbookAttention):
    def one_hot(self, scores: Tensor) -> Tensor:
        return self.softmax(scores)


class NotNormalized(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.exp()


class Signed(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(scores.isneginf(), 0.0)


class OnlyItself(TextbookAttention):
    def softmax(self, scores: Tensor) -> Tensor:
        return (scores * 0 + torch.eye(*scores.shape[-2:], dtype=scores.dtype)).nan_to_num(0.0)


class DropoutRenormalized(TextbookAttention):
    def dropout(self, weights: Tensor, p: float) -> Tensor:
        dropped = F.dropout(weights, p)
        return dropped / dropped.sum(-1, keepdim=True)


class DropoutUnscaled(TextbookAttention):
    def dropout(self, weights: Tensor, p: float) -> Tensor:
        return F.dropout(weights, p) * (1 - p)


class DropoutInWeights(TextbookAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, dropout_p: float = 0.0, **options: Any):
        weights = F.dropout(super().attend(q, k, v, *args, **options)[1], dropout_p)
        return weights @ v, weights


def attention_from(implementation: TextbookAttention) -> Callable[..., Any]:
    """A function with the signature of `qkv.attention` that runs this implementation."""

    def attention(
        query, key, value, mask=None, *, bias=None, scale=None, causal=False, dropout_p=0.0, hard=False,
        return_weights=False,
    ):  # fmt: skip
        if isinstance(mask, Mask):
            mask = mask.to_dense()
        if bias is not None and not isinstance(bias, Tensor):
            bias = bias.tile(range(query.shape[-2]), range(key.shape[-2]))
        out, weights = implementation.attend(
            query, key, value, mask, causal, scale=scale, bias=bias, hard=hard, dropout_p=dropout_p
        )
        return (out, weights) if return_weights else out

    return attention


ATTENTIONS: dict[str, Callable[..., Any]] = {
    name: attention_from(implementation())
    for name, implementation in {
        "wrong-axis": suite.OverQueries,
        "no-scale": suite.NoScale,
        "scale-1/d": suite.Twice,
        "beta-ignored": ScaleIgnored,
        "beta-squared": ScaleSquared,
        "uniform": suite.Uniform,
        "argmax": suite.Hard,
        "never-hard": NeverHard,
        "not-normalized": NotNormalized,
        "no-shift": suite.NoMaximum,
        "signed": Signed,
        "itself": OnlyItself,
        "unmasked": suite.NoMask,
        "mask-after-softmax": suite.AfterSoftmax,
        "mask-one-late": suite.OneAhead,
        "v-for-k": suite.ValuesForKeys,
        "k-for-v": suite.KeysForValues,
        "dropout-renormalized": DropoutRenormalized,
        "dropout-unscaled": DropoutUnscaled,
        "dropout-in-weights": DropoutInWeights,
        "written-out": TextbookAttention,  # right, but it stores every weight: only its cost is wrong
    }.items()
}


class LinearFeedForward(FeedForward):
    """A feed-forward network without its non-linearity."""

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out(self.to_hidden(x))


class MixingFeedForward(FeedForward):
    """A feed-forward network that also reads the previous token."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + x.roll(1, dims=1))


class PositionDependentFeedForward(FeedForward):
    """A feed-forward network that differs between positions."""

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        return super().forward(x) * (1 + positions)


class RowsFirstPatches(PatchEmbedding):
    """Patches flattened as (row, column, channel) and multiplied by weights made for (channel, row, column)."""

    def forward(self, images: Tensor) -> Tensor:
        patches = F.unfold(images, self.patch_size, stride=self.patch_size).transpose(1, 2)
        patches = patches.unflatten(-1, (images.shape[1], -1)).transpose(-1, -2).flatten(-2)
        return F.linear(patches, self.convolution.weight.flatten(1), self.convolution.bias)


class FrozenPositions(nn.Embedding):
    """A position table that is not trained."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__(length, dim)
        self.weight.requires_grad_(False)


class StreamDropout(Block):
    """A pre-norm block that drops elements of the residual stream, not of what a sublayer adds to it."""

    def _residual(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor], *_: Any) -> Tensor:
        return self.dropout(x + branch(norm(x)))


class EvaluationDropout(Block):
    """A block that drops in evaluation, too."""

    def train(self, mode: bool = True) -> "EvaluationDropout":
        super().train(mode)
        self.dropout.train()
        return self


COMPONENTS: dict[str, Any] = {
    "dropout-on-stream": StreamDropout,
    "dropout-in-evaluation": EvaluationDropout,
    "no-warm-up": 0,
    "linear-feed-forward": LinearFeedForward,
    "mixing-feed-forward": MixingFeedForward,
    "feed-forward-by-position": PositionDependentFeedForward,
    "rows-first-patches": RowsFirstPatches,
    "learned-positions": "learned",
    "frozen-positions": FrozenPositions,
}


def wrong_implementation(name: str) -> dict[str, Any]:
    """The arguments of `qkv.claims.run` that replace the right implementation by this wrong one.

    >>> list(wrong_implementation("uniform")), list(wrong_implementation("linear-feed-forward"))
    (['attention'], ['component'])
    """
    if name in ATTENTIONS:
        return {"attention": ATTENTIONS[name]}
    if name in COMPONENTS:
        return {"component": COMPONENTS[name]}
    names = ", ".join([*ATTENTIONS, *COMPONENTS])
    raise ValueError(f"there is no wrong implementation {name!r}; expected one of {names}")
