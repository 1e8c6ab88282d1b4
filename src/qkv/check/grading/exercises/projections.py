"""Find the projections of an attention layer among its parameters, whatever they are called.

A layout says where queries, keys, values and the output are: separate or fused matrices, transposed or not, with the
heads outside or inside, one matrix for all heads or one for each. The right layout is the one with which the formula
gives the layer's own output; a layer with a known mistake is recognized by the formula with that mistake.

Axes: h heads · d head dim · c model dim, the input features of a projection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

ROLES = ("query", "key", "value", "output")
View = Callable[[Tensor], Tensor]
NAMED = {
    "query": r"(^|[._])(q|wq|w_q|query|queries|to_q|q_proj|linear_q|fc_q|q_linear)([._]|$|s\b)",
    "key": r"(^|[._])(k|wk|w_k|key|keys|to_k|k_proj|linear_k|fc_k|k_linear)([._]|$|s\b)",
    "value": r"(^|[._])(v|wv|w_v|value|values|to_v|v_proj|linear_v|fc_v|v_linear)([._]|$|s\b)",
    "output": r"(^|[._])(o|wo|w_o|out|proj|to_out|out_proj|c_proj|o_proj|output|fc_out|linear_o|out_linear)([._]|$)",
}


@dataclass(frozen=True)
class Projection:
    """Where a projection is: views of its weights as (h, d, c), or (c, h, d) for the output, and of its bias (h, d)."""

    weights: tuple[tuple[str, View], ...]
    biases: tuple[tuple[str, View], ...] = ()

    def read(self, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        found = [view(weights[name].detach()) for name, view in self.weights]
        offsets = [view(weights[name].detach()) for name, view in self.biases]
        return torch.cat(found), torch.cat(offsets) if offsets else None

    def write(self, weights: dict[str, Tensor], matrix: Tensor) -> dict[str, Tensor]:
        """The weights with this matrix, and a bias of zero."""
        changed, start = dict(weights), 0
        for name, view in self.weights:
            changed[name] = changed[name].detach().clone()
            target = view(changed[name])
            target.copy_(matrix[start : start + len(target)])
            start += len(target)
        for name, view in self.biases:
            changed[name] = changed[name].detach().clone()
            view(changed[name]).zero_()
        return changed


Layout = dict[str, Projection]
MAX_WRONG_LAYOUTS = 60  # tried with mistakes


def layouts(weights: dict[str, Tensor], dim: int, heads: int, *, with_output: bool = True) -> Iterator[Layout]:
    """Every layout that the sizes of the parameters allow, those that their names suggest first."""
    for inner in _inner_sizes(weights, dim, heads):
        finder = _Finder(weights, dim, heads, inner)
        for inside in (False, True):
            for transposed in (False, True):
                yield from finder.fused(inside, transposed, with_output)
                yield from finder.separate(inside, transposed, with_output)
        yield from finder.by_head(with_output)


def _inner_sizes(weights: dict[str, Tensor], dim: int, heads: int) -> list[int]:
    """The model dim, and other sizes of all heads together: an output projection maps them to the model dim."""
    found = {size for weight in weights.values() if weight.ndim == 2 and dim in weight.shape for size in weight.shape}
    return [dim, *sorted(size for size in found if size != dim and size % heads == 0)]


class _Finder:
    def __init__(self, weights: dict[str, Tensor], dim: int, heads: int, inner: int | None = None) -> None:
        self.inner = dim if inner is None else inner
        self.dim, self.heads, self.head_dim = dim, heads, self.inner // heads
        self.shapes = {name: tuple(value.shape) for name, value in weights.items()}

    def of_shape(self, *shape: int) -> list[str]:
        return [name for name, found in self.shapes.items() if found == shape]

    def bias(self, name: str, view: View, size: int) -> tuple[tuple[str, View], ...]:
        """The bias of the same layer."""
        for other in (re.sub(r"weight$", "bias", name), re.sub(r"(^|[._])(w|W)", r"\1b", name)):
            if other != name and self.shapes.get(other) == (size,):
                return ((other, view),)
        return ()

    def separate(self, inside: bool, transposed: bool, with_output: bool) -> Iterator[Layout]:
        roles = ROLES if with_output else ROLES[:3]
        names = self.of_shape(*self.sizes(transposed))
        if self.inner != self.dim:
            outputs = self.outputs(transposed) if with_output else [None]
            found = [(*order, *([out] if out else [])) for order in permutations(names[:4], 3) for out in outputs]
        else:
            found = list(permutations(names, len(roles))) if len(names) <= 6 else []
        for order in sorted(found, key=lambda order: -_name_score(order, roles)):
            yield {role: self.square(role, name, inside, transposed) for role, name in zip(roles, order, strict=True)}

    def sizes(self, transposed: bool) -> tuple[int, int]:
        return (self.dim, self.inner) if transposed else (self.inner, self.dim)

    def outputs(self, transposed: bool) -> list[str]:
        return self.of_shape(*self.sizes(not transposed))

    def square(self, role: str, name: str, inside: bool, transposed: bool) -> Projection:
        h, d = self.heads, self.head_dim
        size = self.dim if role == "output" else self.inner

        def view(weight: Tensor) -> Tensor:
            matrix = weight.mT if transposed else weight
            if role == "output":
                return matrix.unflatten(1, (d, h)).transpose(1, 2) if inside else matrix.unflatten(1, (h, d))
            return matrix.unflatten(0, (d, h)).transpose(0, 1) if inside else matrix.unflatten(0, (h, d))

        def offset(bias: Tensor) -> Tensor:
            if role == "output":
                return bias
            return bias.unflatten(0, (d, h)).mT if inside else bias.unflatten(0, (h, d))

        return Projection(((name, view),), self.bias(name, offset, size))

    def fused(self, inside: bool, transposed: bool, with_output: bool) -> Iterator[Layout]:
        """One matrix for queries, keys and values, or one for keys and values, in any order."""
        c, n = self.dim, self.inner
        outputs = self.outputs(transposed) if with_output else [""]
        for name in self.of_shape(3 * n, c) + self.of_shape(c, 3 * n):
            is_transposed = self.shapes[name][0] == c
            for output in outputs:
                for axis in (0, 1, 2):
                    for order in permutations(range(3)):
                        parts = {
                            role: self.part(name, i, 3, axis, inside, is_transposed)
                            for role, i in zip(ROLES[:3], order, strict=True)
                        }
                        yield parts | self.output(output, inside, transposed)
        for name in self.of_shape(2 * n, c):
            queries = self.of_shape(*self.sizes(transposed))
            for query, output in ((q, o) for q in queries for o in outputs if q != o):
                for axis in (0, 1):
                    for order in ((0, 1), (1, 0)):
                        parts = {
                            role: self.part(name, i, 2, axis, inside, False)
                            for role, i in zip(ROLES[1:3], order, strict=True)
                        }
                        parts["query"] = self.square("query", query, inside, transposed)
                        yield parts | self.output(output, inside, transposed)

    def output(self, name: str, inside: bool, transposed: bool) -> Layout:
        return {"output": self.square("output", name, inside, transposed)} if name else {}

    def part(self, name: str, index: int, count: int, axis: int, inside: bool, transposed: bool) -> Projection:
        """One of several projections that are rows of one matrix: (3 h d), (h 3 d) or (h d 3)."""
        sizes = [self.head_dim, self.heads] if inside else [self.heads, self.head_dim]
        sizes.insert(axis, count)

        def cut(tensor: Tensor) -> Tensor:
            found = tensor.unflatten(0, tuple(sizes)).select(axis, index)
            return found.transpose(0, 1) if inside else found

        def view(weight: Tensor) -> Tensor:
            return cut(weight.mT if transposed else weight)

        return Projection(((name, view),), self.bias(name, cut, count * self.inner))

    def by_head(self, with_output: bool) -> Iterator[Layout]:
        """One matrix for each head: a list of linear layers, or a parameter with an axis for heads."""
        h, d, c = self.heads, self.head_dim, self.dim
        groups: dict[tuple[str, str], list[str]] = {}  # names that differ in one number, wherever it is
        for name in self.of_shape(d, c):
            for number in re.finditer(r"\d+", name):
                groups.setdefault((name[: number.start()], name[number.end() :]), []).append(name)
        lists = [names for names in groups.values() if len(names) == h]
        views: dict[tuple[int, ...], View] = {
            (h, c, d): lambda weight: weight.transpose(1, 2),
            (h, d, c): lambda weight: weight,
            (c, h, d): lambda weight: weight.permute(1, 2, 0),
        }
        options: list[tuple[str, Projection]] = [
            (names[0], Projection(tuple((name, _one_head) for name in names), self._head_biases(names)))
            for names in lists
        ]
        for shape, view in views.items():
            options += [(name, Projection(((name, view),))) for name in self.of_shape(*shape)]
        outputs: list[Layout] = [{}]
        if with_output:
            outputs = [self.output(name, False, flag) for flag in (False, True) for name in self.outputs(flag)]
        for chosen in sorted(permutations(options, 3), key=lambda each: -_name_score([n for n, _ in each], ROLES[:3])):
            for output in outputs:
                yield {role: part for role, (_, part) in zip(ROLES[:3], chosen, strict=True)} | output

    def _head_biases(self, names: list[str]) -> tuple[tuple[str, View], ...]:
        return tuple(found for name in names for found in self.bias(name, _one_head, self.head_dim))


def _one_head(tensor: Tensor) -> Tensor:
    return tensor[None]


def _name_score(names: tuple[str, ...] | list[str], roles: tuple[str, ...]) -> int:
    return sum(bool(re.search(NAMED[role], name.lower())) for role, name in zip(roles, names, strict=True))


def named_layout(weights: dict[str, Tensor], parts: dict[str, str], dim: int, heads: int) -> Layout | None:
    """The layout of linear layers with these names; None if one is missing or has another shape."""
    finder = _Finder(weights, dim, heads)
    names = {role: f"{name}.weight" for role, name in parts.items()}
    if any(finder.shapes.get(name) != (dim, dim) for name in names.values()):
        return None
    return {role: finder.square(role, name, False, False) for role, name in names.items()}


@dataclass(frozen=True)
class Variant:
    """The formula, or the formula with one mistake: words and the usual fix."""

    words: str = ""
    fix: str = ""
    scale: str = "head"
    mask: str = "as promised"
    softmax: str = "keys"
    split: str = "right"
    project: bool = True


RIGHT = Variant()
MISTAKES = (
    Variant("the scale 1/√d is missing", "divide q·k by √(head dim) before the softmax", scale="one"),
    Variant("the scale is 1/√(model dim)", "divide by √(head dim): each head has its own, smaller dim", scale="model"),
    Variant("the scale is 1/d: the root is missing", "divide q·k by √(head dim), not by the head dim", scale="square"),
    Variant("q·k is multiplied by √d", "divide by √(head dim)", scale="inverse"),
    Variant("the mask is missing", "fill scores of later tokens with −∞ before the softmax", mask="none"),
    Variant("a causal mask is applied", "remove the mask: every token may attend to every token", mask="causal"),
    Variant("the mask hides the past, not the future", "keep key ≤ query: tril, not triu", mask="reversed"),
    Variant("the mask is off by one: the next token is visible", "use tril(), not tril(1)", mask="next"),
    Variant("the mask is applied after the softmax", "fill scores with −∞ before the softmax", mask="after"),
    Variant("masked scores are 0", "fill masked scores with −∞, not 0", mask="zero"),
    Variant("the softmax is over the queries", "take the softmax over the keys: dim=-1", softmax="queries"),
    Variant("the softmax is over the heads", "take the softmax over the keys: dim=-1", softmax="heads"),
    Variant("there is no softmax", "apply a softmax over the keys", softmax="none"),
    Variant("heads are split without a transpose: tokens mix", "use view(b, t, h, d).transpose(1, 2)", split="tokens"),
    Variant("heads are merged without a transpose", "use transpose(1, 2).reshape(b, t, c) after them", split="merge"),
    Variant("heads are split and merged without a transpose: each gets a part of the tokens",
            "use view(b, t, h, d).transpose(1, 2) before, and transpose(1, 2).reshape(b, t, c) after", split="both"),
    Variant("there is one head only", "split the projections into heads", split="one"),
    Variant("the output projection is missing", "apply the output projection to the merged heads", project=False),
)  # fmt: skip


def attention_of(x: Tensor, layout: Layout, weights: dict[str, Tensor], variant: Variant, *, causal: bool) -> Tensor:
    """Multi-head attention of x (b, t, c) with these weights, right or with a mistake."""
    b, t, c = x.shape
    found = []
    for role in ROLES[:3]:
        matrix, bias = layout[role].read(weights)
        out = torch.einsum("btc,hdc->bhtd", x, matrix.to(x.dtype))
        found.append(out if bias is None else out + bias.to(x.dtype)[None, :, None])
    h, d = found[0].shape[1], found[0].shape[-1]
    if variant.split in ("tokens", "both"):
        found = [each.transpose(1, 2).reshape(b, h, t, d) for each in found]
    if variant.split == "one":
        found = [each.transpose(1, 2).reshape(b, 1, t, h * d) for each in found]
    q, k, v = found
    d = q.shape[-1]
    scale = {"head": d**-0.5, "one": 1.0, "model": c**-0.5, "square": 1 / d, "inverse": d**0.5}[variant.scale]
    mixed = _mix(q @ k.mT * scale, v, variant, causal=causal)
    merged = mixed.reshape(b, t, -1) if variant.split in ("merge", "both") else mixed.transpose(1, 2).reshape(b, t, -1)
    if "output" not in layout or not variant.project:
        return merged
    matrix, bias = layout["output"].read(weights)
    out = merged @ matrix.flatten(1).to(x.dtype).mT
    return out if bias is None else out + bias.to(x.dtype)


def _mix(scores: Tensor, v: Tensor, variant: Variant, *, causal: bool) -> Tensor:
    t = scores.shape[-1]
    ones = torch.ones(t, t, dtype=torch.bool)
    future = {
        "as promised": ones.triu(1) if causal else ~ones,
        "none": ~ones, "causal": ones.triu(1), "reversed": ones.tril(-1), "next": ones.triu(2),
        "after": ones.triu(1), "zero": ones.triu(1),
    }[variant.mask]  # fmt: skip
    if variant.mask != "after":
        scores = scores.masked_fill(future, 0.0 if variant.mask == "zero" else float("-inf"))
    axis = {"keys": -1, "queries": -2, "heads": 1, "none": 0}[variant.softmax]
    weights = scores.nan_to_num(neginf=0.0) if variant.softmax == "none" else scores.softmax(axis)
    if variant.mask == "after":
        weights = weights.masked_fill(future, 0.0)
    return weights.nan_to_num() @ v


def explain_attention(
    x: Tensor,
    found: Tensor,
    weights: dict[str, Tensor],
    candidates: list[Layout],
    limit: float,
    *,
    causal: bool,
    finish: Callable[[Tensor], Tensor] = lambda out: out,
) -> tuple[Layout, Variant] | None:
    """The layout and the variant of the formula that give this output; the right formula is tried first.

    finish: what happens to the output of attention before it is compared.
    """
    usable = [
        variant
        for variant in MISTAKES
        if not (variant.mask == "none" and not causal) and not (variant.mask == "causal" and causal)
    ]
    size = found.abs().max().clamp(min=1e-12)
    for variant in (RIGHT, *usable):
        for layout in candidates if variant is RIGHT else candidates[:MAX_WRONG_LAYOUTS]:
            if not variant.project and layout["query"].read(weights)[0].flatten(0, 1).shape[0] != found.shape[-1]:
                continue
            guess = finish(attention_of(x, layout, weights, variant, causal=causal))
            if float((guess - found).abs().max() / size) <= limit:
                return layout, variant
    return None
