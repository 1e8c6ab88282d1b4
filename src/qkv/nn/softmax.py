"""From scores to weights: the soft choice, the hard choice, and what happens when nothing may be chosen.

Axes: b batch · h heads · t queries · s keys.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def soft_choice(
    scores: Float[Tensor, "*batch t s"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*batch t s"]:
    """exp(score) / Σ exp(score) over the allowed keys; a row with none is 0 and has finite gradients.

    >>> soft_choice(torch.zeros(1, 2), torch.tensor([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    if mask is None:
        return scores.softmax(-1)
    nothing = ~mask.any(-1, keepdim=True)
    # A row without any key is levelled and emptied afterwards: a softmax over −∞ alone is NaN.
    weights = scores.masked_fill(~mask, float("-inf")).masked_fill(nothing, 0.0).softmax(-1)
    return weights.masked_fill(nothing, 0.0)


def hard_choice(
    scores: Float[Tensor, "*batch t s"], mask: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*batch t s"]:
    """1 on the highest allowed score (the first of equals), 0 elsewhere; a row with none is 0.

    >>> hard_choice(torch.tensor([[1.0, 3.0, 2.0]])).tolist()
    [[0.0, 1.0, 0.0]]
    """
    masked = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    chosen = torch.zeros_like(scores).scatter(-1, masked.argmax(-1, keepdim=True), 1.0)
    return chosen if mask is None else chosen.masked_fill(~mask.any(-1, keepdim=True), 0.0)
