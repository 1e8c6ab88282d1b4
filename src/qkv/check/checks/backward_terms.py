"""The term that is wrong in the gradient of attention: the backward pass is written down with one bug at a time.

With weights P, the gradient g of the output and dP = g·vᵀ, the gradient of the scores is
dS = P ⊙ (dP − rowsum(P ⊙ dP)); those of q, k and v are dS·k·scale, dSᵀ·q·scale and Pᵀ·g.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

BLOCKS = (2, 4, 8, 16, 32, 64)
CLOSE = 1e-6


def weighted_gradients(out: Tensor, weights: Tensor, inputs: list[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of the sum of out · weights; passing weights to autograd.grad would import sympy."""
    with torch.enable_grad():
        return torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)


@dataclass(frozen=True, eq=False)
class Attention:
    """Queries, keys and values (b, h, t, d) of softmax attention, as many heads of each, its scale and its weights."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    weights: Tensor

    @property
    def unmasked(self) -> dict[str, Tensor]:
        """The weights as a backward pass has them that computes them again without the mask."""
        scores = self.q @ self.k.mT * self.scale
        hidden = self.weights == 0
        total = scores.masked_fill(hidden, float("-inf")).logsumexp(-1, keepdim=True)
        return (
            {"": (scores - total).exp(), ", nor is it in their sum": scores.softmax(-1)} if bool(hidden.any()) else {}
        )


def name_term(apply: Callable[..., Any], arguments: list[Any], place: int) -> str:
    """What is wrong with the gradient of an argument, in words that follow "is"; "" if that is not known.

    Args:
        apply: computes attention from arguments, the first three of which are q, k and v. place: 0, 1 or 2 of these.
    """
    parts = arguments[:3]
    if place > 2 or any(not isinstance(x, Tensor) or x.ndim not in (3, 4) or x.dtype != torch.float64 for x in parts):
        return ""
    leaves = [x.clone().requires_grad_() for x in parts]
    with torch.enable_grad():
        out = apply(*leaves, *arguments[3:])
    out = out[0] if isinstance(out, tuple) else out
    for swaps in (False, True) if out.ndim == 4 else (False,):  # heads may come after the tokens

        def view(x: Tensor, swaps: bool = swaps) -> Tensor:
            x = x.detach()[:, None] if x.ndim == 3 else x.detach()
            return x.transpose(1, 2) if swaps else x

        q, k, v = map(view, parts)
        found = _read(q, k, v, view(out), [x for x in arguments[3:] if isinstance(x, Tensor)])
        if found is None:
            continue
        generator = torch.Generator().manual_seed(18)
        weights = torch.randn(out.shape, generator=generator, dtype=torch.float64)
        gradient = weighted_gradients(out, weights, leaves)[place]
        if gradient is None:
            return ""
        return _match(found, view(gradient), view(weights), place)
    return ""


def _read(q: Tensor, k: Tensor, v: Tensor, out: Tensor, masks: list[Tensor]) -> Attention | None:
    """The attention that gives an output; None if it is not softmax attention with a usual mask."""
    t, s = q.shape[2], k.shape[2]
    if q.shape[-1] != k.shape[-1] or q.shape[1] % k.shape[1] or k.shape[:3] != v.shape[:3]:
        return None
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    full = torch.ones(t, s, dtype=torch.bool)
    shown = [full, full.tril(s - t), *(one for x in masks if x.dtype == torch.bool for one in (x, ~x))]
    for scale in (q.shape[-1] ** -0.5, 1.0):
        for mask in shown:
            try:
                weights = (q @ k.mT * scale).masked_fill(~mask, float("-inf")).softmax(-1).nan_to_num()
            except RuntimeError:  # a mask of another shape
                continue
            if weights.shape[2:] == (t, s) and _same(weights @ v, out):
                return Attention(q, k, v, scale, weights)
    return None


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) <= CLOSE * float(b.abs().max().clamp(min=1e-300))


def _match(found: Attention, gradient: Tensor, g: Tensor, place: int) -> str:
    """The first wrong formula that gives the gradient; else where the gradient is right, if it is so anywhere."""
    for words, formula in _formulas(found, g, place):
        for by, how in (
            (1.0, ""),
            (1 / found.scale, "; and the scale is missing"),
            (found.scale, "; and it is scaled twice"),
        ):
            usual = by == 1.0 or place < 2
            if usual and any(_same(shared * by, gradient) for shared in _shared(formula, gradient.shape[1])):
                return f"wrong: {words}{how}"
    right = _gradient(found, g, place)
    sums = next(_shared(right, gradient.shape[1]))
    off = (sums - gradient).abs().amax((0, 1, 3)) > CLOSE * float(sums.abs().max())
    tokens = (~off).nonzero()[:, 0].tolist()
    if not 0 < len(tokens) < len(off):
        return ""
    run = tokens == list(range(tokens[0], tokens[-1] + 1))
    where = f"{tokens[0]} to {tokens[-1]}" if run and len(tokens) > 1 else ", ".join(map(str, tokens[:8]))
    return f"right for {'token' if len(tokens) == 1 else 'tokens'} {where} only, of {len(off)}"


def _shared(x: Tensor, heads: int) -> Iterator[Tensor]:
    """The gradient of as many key heads as there are: summed over the query heads that share one comes first."""
    if x.shape[1] == heads:
        yield x
    elif x.shape[1] % heads == 0:
        groups = x.unflatten(1, (heads, -1))
        yield groups.sum(2)
        yield groups[:, :, 0]
        yield groups[:, :, -1]


def _gradient(
    found: Attention,
    g: Tensor,
    place: int,
    rows: slice = slice(None),
    columns: slice = slice(None),
    summed: Tensor | None = None,
) -> Tensor:
    """The gradient of q, k or v, from some queries and keys only; summed: another row-sum term."""
    p, d = found.weights, g @ found.v.mT
    ds = p * (d - ((p * d).sum(-1, keepdim=True) if summed is None else summed)) * found.scale
    kept = torch.zeros(p.shape[-2:], dtype=p.dtype)
    kept[rows, columns] = 1.0
    if place == 2:
        return (p * kept).mT @ g
    return (ds * kept) @ found.k if place == 0 else (ds * kept).mT @ found.q


def _formulas(found: Attention, g: Tensor, place: int) -> Iterator[tuple[str, Tensor]]:
    """Wrong gradients in words."""
    p, d = found.weights, g @ found.v.mT
    if place < 2:
        summed, seen = (p * d).sum(-1, keepdim=True), (p > 0).to(p)
        scores = {
            "the softmax's row-sum term is missing: dS is P ⊙ dP instead of P ⊙ (dP − rowsum(P ⊙ dP))": p * d,
            "the softmax's row-sum term has the wrong sign: dS is P ⊙ (dP + rowsum(P ⊙ dP))": p * (d + summed),
            "the softmax's row-sum term is rowsum(dP), without the weights P": p
            * (d - (d * seen).sum(-1, keepdim=True)),
            "the softmax's row-sum term is summed over queries, not over keys": p * (d - (p * d).sum(-2, keepdim=True)),
            "the softmax's row-sum term is a mean over keys, not a sum": p * (d - (p * d).mean(-1, keepdim=True)),
            "the softmax's row-sum term is not multiplied by P: dS is P ⊙ dP − rowsum(P ⊙ dP)": p * d - summed * seen,
            "the derivative of the softmax is left out: dS is dP": d * seen,
            "the weights P are missing in the derivative of the softmax: dS is dP − rowsum(P ⊙ dP)": (d - summed)
            * seen,
            "only the diagonal of the softmax's derivative is used: dS is P ⊙ (1 − P) ⊙ dP": p * (1 - p) * d,
        }
        if g.shape == found.v.shape:
            other = (g * found.v).sum(-1, keepdim=True)
            scores["the softmax's row-sum term is rowsum(g ⊙ v), not rowsum(g ⊙ out)"] = p * (d - other)
        for words, ds in scores.items():
            yield words, (ds @ found.k if place == 0 else ds.mT @ found.q) * found.scale
        if p.shape[-1] == p.shape[-2]:
            ds = p * (d - summed) * found.scale
            yield "dS is transposed, or is not where it should be", ds.mT @ found.k if place == 0 else ds @ found.q
    elif p.shape[-1] == p.shape[-2]:
        yield "the weights are not transposed: it is P·g instead of Pᵀ·g", p @ g
    for more, again in found.unmasked.items():
        forgotten = f"the mask is not applied where the weights are computed again{more}"
        yield forgotten, _gradient(replace(found, weights=again), g, place, summed=(p * d).sum(-1, keepdim=True))
        if more:
            yield forgotten, _gradient(replace(found, weights=again), g, place)
    size = p.shape[-1 if place == 0 else -2]
    what = "keys" if place == 0 else "queries"
    parts: dict[tuple[int, int], str] = {}
    for n in (n for n in BLOCKS if n < size):
        last = (size - 1) // n * n
        lost = (
            f"only the last block of {what}, from {last} on, contributes: blocks overwrite the gradient of those before"
        )
        parts.setdefault((last, size), lost)
        parts.setdefault((0, last), f"the last block of {what}, from {last} on, does not contribute")
        parts.setdefault((0, n), f"only the first {n} {what} contribute")
    for ends, words in parts.items():
        part = slice(*ends)
        rows, columns = (slice(None), part) if place == 0 else (part, slice(None))
        yield words, _gradient(found, g, place, rows, columns)
    if place and found.weights.shape[1] > 1:
        yield (
            "that of one query head only, not the sum over the query heads that share a key head",
            _gradient(found, g, place),
        )
