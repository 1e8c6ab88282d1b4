"""Choosing the next token from logits.

Axes: b batch · v vocabulary.
"""

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor


def greedy(logits: Float[Tensor, "b v"]) -> Int[Tensor, " b"]:
    """The likeliest token; the first of equals.

    >>> greedy(torch.tensor([[0.0, 2.0, 1.0]])).tolist()
    [1]
    """
    return logits.argmax(-1)


def sample(
    logits: Float[Tensor, "b v"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: Generator | None = None,
) -> Int[Tensor, " b"]:
    """Draw a token from the softmax of logits / temperature, cut down first by top-k, then min-p, then top-p.

    A temperature of 0 is the greedy choice.

    >>> sample(torch.tensor([[0.0, 9.0, 1.0]]), top_k=1).tolist()
    [1]
    """
    if temperature < 0:
        raise ValueError(f"temperature is 0 (greedy) or a positive number; got {temperature}")
    if temperature == 0:
        return greedy(logits)
    return torch.multinomial(
        kept_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
        num_samples=1,
        generator=generator,
    ).squeeze(-1)


def kept_probabilities(
    logits: Float[Tensor, "b v"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Float[Tensor, "b v"]:
    """The probabilities that sampling draws from: what was cut is 0, the rest sums to 1."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if min_p is not None:
        logits = keep_min_p(logits, min_p)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)
    return logits.softmax(-1)


def keep_top_k(logits: Float[Tensor, "b v"], k: int) -> Float[Tensor, "b v"]:
    """The k highest logits, and those equal to the lowest of them; −∞ elsewhere."""
    if k < 1:
        raise ValueError(f"top_k keeps at least 1 token; got {k}")
    lowest = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < lowest, float("-inf"))


def keep_top_p(logits: Float[Tensor, "b v"], p: float) -> Float[Tensor, "b v"]:
    """The smallest set of likeliest tokens whose probabilities reach p; −∞ elsewhere."""
    if not 0 < p <= 1:
        raise ValueError(f"top_p is a share of the probability, above 0 and up to 1; got {p}")
    if p == 1:
        return logits  # sums of rounded probabilities reach 1 before the last token
    ordered, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    beyond = (before >= p).scatter(-1, order, before >= p)
    return logits.masked_fill(beyond, float("-inf"))


def keep_min_p(logits: Float[Tensor, "b v"], p: float) -> Float[Tensor, "b v"]:
    """The tokens at least p times as likely as the likeliest; −∞ elsewhere."""
    if not 0 <= p <= 1:
        raise ValueError(f"min_p is a share of the highest probability, from 0 to 1; got {p}")
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < p * probabilities.amax(-1, keepdim=True), float("-inf"))
