"""Sampling the next token from logits: greedy, temperature, top-k, top-p (nucleus), min-p.

Axes: b batch · v vocabulary.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor


def choose_greedy(logits: Float[Tensor, "b v"]) -> Int[Tensor, " b"]:
    """The most likely token; the first of equals.

    >>> choose_greedy(torch.tensor([[0.0, 2.0, 1.0]])).tolist()
    [1]
    """
    return logits.argmax(-1)


LEAST_TEMPERATURE = 1e-30  # below it logits / temperature overflows in float32


def sample(
    logits: Float[Tensor, "b v"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: Generator | None = None,
) -> Int[Tensor, " b"]:
    """Draw a token from softmax(logits / temperature), after top-k, min-p and top-p in this order.

    A temperature of 0 is greedy.

    >>> sample(torch.tensor([[0.0, 9.0, 1.0]]), top_k=1).tolist()
    [1]
    """
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be 0 (greedy) or positive and finite, got {temperature}")
    if temperature == 0:
        return choose_greedy(logits)
    temperature = max(temperature, LEAST_TEMPERATURE)
    probabilities = sampling_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return torch.multinomial(probabilities, num_samples=1, generator=generator).squeeze(-1)


def sampling_probabilities(
    logits: Float[Tensor, "b v"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Float[Tensor, "b v"]:
    """The probabilities that `sample` draws from: removed tokens have 0, the rest sums to 1."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if min_p is not None:
        logits = keep_min_p(logits, min_p)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)
    return logits.softmax(-1)


def keep_top_k(logits: Float[Tensor, "b v"], k: int) -> Float[Tensor, "b v"]:
    """Keep the k highest logits, and those equal to the lowest of them; −∞ elsewhere."""
    if k < 1:
        raise ValueError(f"top_k must be at least 1, got {k}")
    lowest = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < lowest, float("-inf"))


def keep_top_p(logits: Float[Tensor, "b v"], p: float) -> Float[Tensor, "b v"]:
    """Nucleus sampling: keep the smallest set of most likely tokens whose probabilities reach p; −∞ elsewhere."""
    if not 0 < p <= 1:
        raise ValueError(f"top_p must be in (0, 1], got {p}")
    if p == 1:
        return logits  # sums of rounded probabilities reach 1 before the last token
    ordered, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    removed = (before >= p).scatter(-1, order, before >= p)
    return logits.masked_fill(removed, float("-inf"))


def keep_min_p(logits: Float[Tensor, "b v"], p: float) -> Float[Tensor, "b v"]:
    """Keep the tokens at least p times as likely as the most likely one; −∞ elsewhere."""
    if not 0 <= p <= 1:
        raise ValueError(f"min_p must be in [0, 1], got {p}")
    probabilities = logits.softmax(-1)
    return logits.masked_fill(probabilities < p * probabilities.amax(-1, keepdim=True), float("-inf"))
