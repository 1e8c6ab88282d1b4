"""Known mistakes of functions, tried as hypotheses: one that gives exactly the same output is named.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.diagnosis import Diagnosis
from qkv.check.functions import HEADS, WIDTH
from qkv.check.subject import Subject

Guess = tuple[str, str, Tensor]  # the family, words, and what the mistake would give


def explained(subject: Subject, contract: Contract) -> Diagnosis | None:
    """What the mistake is, if one of the known ones explains the output to rounding."""
    if subject.attend is None:
        return None
    causal = contract.kind == "causal" and (subject.flag is not None or subject.masked)
    t = 7
    generator = torch.Generator().manual_seed(19)
    q, k, v = (torch.randn(2, HEADS, t, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    past = torch.ones(t, t, dtype=torch.bool).tril() if causal else torch.ones(t, t, dtype=torch.bool)
    with torch.no_grad():
        given = past if causal and subject.flag is None else None
        out = subject.attend(q.clone(), k.clone(), v.clone(), given, causal=causal and subject.flag is not None)
        if _same(out, (WIDTH**-0.5 * q @ k.mT).masked_fill(~past, float("-inf")).softmax(-1) @ v):
            return None  # this is right: what is wrong lies elsewhere
        for family, words, guess in hypotheses(q, k, v, past, causal):
            if _same(out, guess):
                return Diagnosis(family, words)
    return None


def hypotheses(q: Tensor, k: Tensor, v: Tensor, past: Tensor, causal: bool) -> Iterator[Guess]:
    """What each known mistake would give, in words and in numbers; the correct output is not among them."""
    scale = WIDTH**-0.5
    scores = scale * q @ k.mT

    def soft(x: Tensor, allowed: Tensor = past) -> Tensor:
        return x.masked_fill(~allowed, float("-inf")).softmax(-1)

    if causal:
        yield from _mask_mistakes(scores, v, past)
    for words, other in {
        "the scale is missing": 1.0,
        "the scale is 1/d: the square root is missing, or 1/√d is applied twice": 1.0 / WIDTH,
        "the scale is √d, inverted": WIDTH**0.5,
        "the scale is 1/√(number of keys)": k.shape[-2] ** -0.5,
        "the scale is log 2 / √d: powers of 2 instead of e": WIDTH**-0.5 * 0.6931471805599453,
        "the scale is 1/√(model width), not of a head's width": (HEADS * WIDTH) ** -0.5,
    }.items():
        yield "scale", words, soft(other * q @ k.mT) @ v
    yield "inputs swapped", "keys stand where values should", soft(scores) @ k
    yield "inputs swapped", "values stand where keys should", soft(scale * q @ v.mT) @ v
    yield "inputs swapped", "queries and keys are swapped", soft(scores.mT) @ v
    hidden = scores.masked_fill(~past, float("-inf"))
    over_queries = "the softmax is over the queries"
    yield "softmax axis", over_queries, hidden.softmax(-2) @ v
    yield "softmax axis", over_queries, scores.softmax(-2).masked_fill(~past, 0.0) @ v
    yield (
        "softmax axis",
        "the softmax is over queries and keys together",
        hidden.flatten(-2).softmax(-1).view_as(hidden) @ v,
    )
    over_heads = "the softmax is over the heads"
    yield "softmax axis", over_heads, scores.softmax(1).masked_fill(~past, 0.0) @ v
    yield "softmax replaced", "each weight is a sigmoid", hidden.sigmoid() @ v
    powers = (scores - scores.amax(-1, keepdim=True)).exp().masked_fill(~past, 0.0)
    yield (
        "softmax replaced",
        "weights are powers that are never divided by their sum",
        scores.exp().masked_fill(~past, 0.0) @ v,
    )
    yield "softmax replaced", "weights are powers that are never divided by their sum", powers @ v
    yield "softmax replaced", "each weight is a ReLU", hidden.relu() @ v
    squares = hidden.relu() ** 2
    yield "softmax replaced", "each weight is a squared ReLU", squares @ v
    yield "softmax replaced", "the softmax is missing", scores.masked_fill(~past, 0.0) @ v
    yield "scores changed", "weights are all equal: the scores do not enter", soft(0 * scores) @ v
    best = F.one_hot(hidden.argmax(-1), hidden.shape[-1]).to(v)
    yield "softmax replaced", "only the best key counts, a hard choice", best @ v
    unit = scale * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    yield "scores changed", "queries and keys are normalised to length 1 first", soft(unit) @ v
    yield "heads mixed", "weights are averaged over the heads", soft(scores).mean(1, keepdim=True) @ v
    yield "heads mixed", "heads are summed", (soft(scores) @ v).sum(1, keepdim=True).expand_as(v)
    for bound in (1.0, 5.0, 10.0):
        yield "scores changed", f"scores are clipped at ±{bound:g}", soft(scores.clamp(-bound, bound)) @ v
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        yield "low precision", f"the softmax is computed in {name}", hidden.to(dtype).softmax(-1).to(v) @ v


def _mask_mistakes(scores: Tensor, v: Tensor, past: Tensor) -> Iterator[Guess]:
    t = scores.shape[-1]
    ones = torch.ones(t, t, dtype=torch.bool)

    def masked(allowed: Tensor) -> Tensor:
        nothing = ~allowed.any(-1, keepdim=True)
        return scores.masked_fill(~(allowed | nothing), float("-inf")).softmax(-1).masked_fill(nothing, 0.0) @ v

    yield "no mask", "there is no causal mask on this path", scores.softmax(-1) @ v
    yield "mask off by one", "a query does not see itself", masked(ones.tril(-1))
    yield "mask off by one", "a query sees one key ahead", masked(ones.tril(1))
    yield "mask transposed", "the mask is transposed", masked(ones.triu())
    after = "the mask is applied after the softmax"
    yield "mask after softmax", after, scores.softmax(-1).masked_fill(~past, 0.0) @ v
    for number in (1.0, 2.0, 4.0, 5.0, 8.0, 10.0, 20.0, 50.0, 100.0):
        words = f"masked scores are not −∞ but {{}} {number:g}"
        yield "mask not −∞", words.format("lower by"), (scores - number * (~past).to(scores)).softmax(-1) @ v
        yield "mask not −∞", words.format("−"), scores.masked_fill(~past, -number).softmax(-1) @ v
    yield (
        "mask not −∞",
        "masked scores are multiplied by 0, which is a score like any other",
        (scores * past).softmax(-1) @ v,
    )
    for size in range(2, 6):
        place = torch.arange(t) // size
        words = f"the mask is cut into blocks of {size}: within a block the future is seen"
        yield "leak", words, masked(place[None, :] <= place[:, None])


def _same(out: Tensor, guess: Tensor) -> bool:
    return out.shape == guess.shape and float((out - guess).abs().max()) <= 1e-9 * (float(guess.abs().max()) or 1.0)
