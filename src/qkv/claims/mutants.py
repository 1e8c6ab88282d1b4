"""Wrong attentions, and wrong parts around it: each must overturn the claims that name it.

An attention here takes what `qkv.attention` takes. All are one plain implementation with one thing wrong.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.nn import FeedForward, PatchEmbedding
from qkv.nn.heads import repeat_heads
from qkv.nn.masks import Mask

Weigh = Callable[[Tensor], Tensor]
Beta = Callable[[Any, int], Any]


def given_beta(beta: Any, width: int) -> Any:
    """As it should be: d^-½ if not given."""
    return width**-0.5 if beta is None else beta


def soft(scores: Tensor) -> Tensor:
    """As it should be, with rows of nothing left at 0."""
    return scores.softmax(-1).nan_to_num(0.0)


def wrong_attention(
    *,
    beta: Beta = given_beta,
    weigh: Weigh = soft,
    masking: str = "before",
    swap: str = "",
    dropping: str = "",
    hardness: bool = True,
) -> Callable[..., Any]:
    """Plain attention with the steps given; all defaults are right."""
    chosen_beta = beta

    def attention(
        q, k, v, mask=None, *, bias=None, scale=None, causal=False, dropout_p=0.0, hard=False, return_weights=False
    ):
        if q.ndim == 4:
            k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        keys = _fit(v, k.shape[-1]) if swap == "v for k" else k
        values = _fit(k, v.shape[-1]) if swap == "k for v" else v
        scores = (q @ keys.mT) * chosen_beta(scale, q.shape[-1])
        if bias is not None:
            t, s = scores.shape[-2:]
            scores = scores + (bias if isinstance(bias, Tensor) else bias.tile(range(t), range(s)))
        rule = _mask(mask, causal, scores, late=masking == "one late")
        if rule is not None and masking in ("before", "one late"):
            scores = scores.masked_fill(~rule, float("-inf"))
        chosen = _argmax(scores) if hard and hardness else weigh(scores)
        if rule is not None and masking == "after":
            chosen = chosen.masked_fill(~rule, 0.0)
        dropped = _drop(chosen, dropout_p, dropping)
        out = dropped @ values
        return (out, dropped if dropping == "returned" else chosen) if return_weights else out

    return attention


def _drop(weights: Tensor, dropout: float, dropping: str) -> Tensor:
    if dropping == "unscaled":
        return F.dropout(weights, dropout) * (1 - dropout)
    dropped = F.dropout(weights, dropout)
    return dropped / dropped.sum(-1, keepdim=True) if dropping == "renormalised" else dropped


def _fit(x: Tensor, width: int) -> Tensor:
    return x[..., :width] if x.shape[-1] >= width else F.pad(x, (0, width - x.shape[-1]))


def _mask(allowed: Mask | Tensor | None, causal: bool, scores: Tensor, *, late: bool) -> Tensor | None:
    t, s = scores.shape[-2:]
    mask = None if allowed is None else allowed.dense() if isinstance(allowed, Mask) else allowed
    if causal:
        past = torch.ones(t, s, dtype=torch.bool).tril(s - t)
        mask = past if mask is None else mask & past
    if mask is not None and late:  # each query also sees the key after the last that it may see
        mask = mask | F.pad(mask[..., :-1], (1, 0))
    return mask


def _argmax(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)


def _itself(scores: Tensor) -> Tensor:
    return (scores * 0 + torch.eye(*scores.shape[-2:], dtype=scores.dtype)).nan_to_num(0.0)


def _uniform(scores: Tensor) -> Tensor:
    return torch.where(scores.isneginf(), scores, scores * 0).softmax(-1).nan_to_num(0.0)


def _signed(scores: Tensor) -> Tensor:
    return scores.masked_fill(scores.isneginf(), 0.0)


ATTENTIONS: dict[str, Callable[..., Any]] = {
    "wrong-axis": wrong_attention(weigh=lambda s: s.softmax(-2)),
    "no-scale": wrong_attention(beta=lambda b, d: 1.0 if b is None else b),
    "scale-1/d": wrong_attention(beta=lambda b, d: 1 / d if b is None else b),
    "beta-ignored": wrong_attention(beta=lambda b, d: d**-0.5),
    "beta-squared": wrong_attention(beta=lambda b, d: given_beta(b, d) ** 2),
    "uniform": wrong_attention(weigh=_uniform),
    "argmax": wrong_attention(weigh=_argmax),
    "never-hard": wrong_attention(hardness=False),
    "not-normalised": wrong_attention(weigh=lambda s: s.exp()),
    "no-shift": wrong_attention(weigh=lambda s: s.exp() / s.exp().sum(-1, keepdim=True)),
    "signed": wrong_attention(weigh=_signed),
    "itself": wrong_attention(weigh=_itself),
    "unmasked": wrong_attention(masking="none"),
    "mask-after-softmax": wrong_attention(masking="after"),
    "mask-one-late": wrong_attention(masking="one late"),
    "v-for-k": wrong_attention(swap="v for k"),
    "k-for-v": wrong_attention(swap="k for v"),
    "dropout-renormalised": wrong_attention(dropping="renormalised"),
    "dropout-unscaled": wrong_attention(dropping="unscaled"),
    "dropout-in-weights": wrong_attention(dropping="returned"),
    "written-out": wrong_attention(),  # right, but it stores every weight: the cost is what is wrong
}


class LinearFeedForward(FeedForward):
    """A feed-forward network that forgot its non-linearity."""

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out(self.to_hidden(x))


class MixingFeedForward(FeedForward):
    """A feed-forward network that reads the token before, too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + x.roll(1, dims=1))


class PlacedFeedForward(FeedForward):
    """A feed-forward network that is another one at each position."""

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        return super().forward(x) * (1 + places)


class RowsFirstPatches(PatchEmbedding):
    """Patches flattened as (row, column, channel) and multiplied by weights made for (channel, row, column)."""

    def forward(self, images: Tensor) -> Tensor:
        patches = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)
        patches = patches.unflatten(-1, (images.shape[1], -1)).transpose(-1, -2).flatten(-2)
        return F.linear(patches, self.convolution.weight.flatten(1), self.convolution.bias)


class ShuffledTable(nn.Embedding):
    """A table of positions that learns nothing."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__(length, width)
        self.weight.requires_grad_(False)


PARTS: dict[str, Any] = {
    "linear-feed-forward": LinearFeedForward,
    "mixing-feed-forward": MixingFeedForward,
    "feed-forward-by-place": PlacedFeedForward,
    "rows-first-patches": RowsFirstPatches,
    "learned-positions": "learned",
    "frozen-positions": ShuffledTable,
}


def replacing(name: str) -> dict[str, Any]:
    """The arguments of `qkv.claims.run` that put this wrong implementation in the place of the right one.

    >>> list(replacing("uniform")), list(replacing("linear-feed-forward"))
    (['attention'], ['part'])
    """
    if name in ATTENTIONS:
        return {"attention": ATTENTIONS[name]}
    if name in PARTS:
        return {"part": PARTS[name]}
    raise ValueError(f"there is no wrong implementation {name!r}; there are {', '.join([*ATTENTIONS, *PARTS])}")
