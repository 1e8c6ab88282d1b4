"""Finding hand-written attention among the operations of a run: product, softmax, product.

Scores are followed forwards from every product that is not a projection; the softmax makes them a candidate; the
candidate is attention once its weights meet another product, with the values. What is known of a tensor is forgotten
with the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from qkv.interp.recording.score import Score
from qkv.interp.recording.structure import Added, understood
from qkv.interp.traces.lazy_weights import Recipe, Source, Written

PRODUCTS = ("mm", "bmm", "matmul", "baddbmm")
SOFTMAXES = ("_softmax", "_safe_softmax", "softmax")
COPIES = ("_to_copy", "clone", "detach", "alias", "contiguous", "lift_fresh")
DROPOUTS = ("native_dropout", "dropout", "mul", "mul_", "div", "div_", "bernoulli")
IN_PLACE = ("mul_", "div_", "add_", "sub_", "tanh_", "masked_fill_")
EDITS = ("masked_fill", "masked_fill_", "where", "nan_to_num", "cat", "slice", "expand")


@dataclass(frozen=True, eq=False)
class Candidate:
    """Weights that may turn out to be an attention's.

    recipe: of the weights, if there is one.
    weights: the weights, if this tensor is a view of them or comes after dropout; else it is they.
    last: whether keys are on the last axis.
    """

    recipe: Recipe | None
    weights: Tensor | None = None
    last: bool = True


class Follower:
    """Watches operations; says of each attention that it finds what its weights are.

    heads: tells how many heads the module that is being called has, if it says so.
    projects: tells whether a tensor is a parameter: a product with one is a projection.
    """

    def __init__(
        self,
        found: Callable[[Source, Tensor | None], object],
        heads: Callable[[], int | None],
        projects: Callable[[Tensor], bool],
    ) -> None:
        self._found, self._heads, self._projects = found, heads, projects
        self.scores = WeakTensorKeyDictionary()
        self.candidates = WeakTensorKeyDictionary()
        self._understood = WeakTensorKeyDictionary()
        self._flags = WeakTensorKeyDictionary()  # boolean masks, by the tensors of 0 and −∞ made of them

    def understand(self, added: Tensor, source: Tensor, t: int, s: int) -> Added:
        """The structure of what is added to scores; worked out once for a tensor that many layers share."""
        flags = self._flags.get(source)
        source = source if flags is None else flags
        owner = source if source._base is None else source._base  # each layer may take its own view of one mask
        known: dict[Any, Added] | None = self._understood.get(owner)
        if known is None:
            known = self._understood[owner] = {}
        key = (source.storage_offset(), tuple(source.shape), source.stride(), tuple(added.shape), t, s)
        if key not in known:
            known[key] = understood(added, t, s)
        return known[key]

    def wrote(self, places: list[int], name: str, target: Any) -> None:
        """Forget what was known of tensors that an operation has written over, but for a step that is followed."""
        followed = target if name in IN_PLACE else None
        for known in (self.scores, self.candidates, self._understood, self._flags):
            for tensor in [tensor for tensor in known if tensor.untyped_storage().data_ptr() in places]:
                if tensor is not followed:
                    del known[tensor]

    def after(self, name: str, arguments: tuple, named: dict[str, Any], output: Any) -> None:
        """Take note of one operation."""
        if name in PRODUCTS:
            self._product(name, arguments, named, output)
        elif name in SOFTMAXES:
            self._softmax(arguments[0], int(arguments[1]), output)
        elif name == "cat":
            self._cat(arguments, output)
        elif name == "where":
            self._where(arguments, output)
        elif self.scores.data or self.candidates.data:  # most operations of a fused model have nothing to be followed
            output = output[0] if isinstance(output, tuple) and output else output
            if arguments and isinstance(arguments[0], Tensor) and isinstance(output, Tensor):
                self._pass_on(name, arguments, named, output)

    def _product(self, name: str, arguments: tuple, named: dict[str, Any], output: Tensor) -> None:
        left, right = arguments[1:3] if name == "baddbmm" else arguments[:2]
        for operand, values in ((left, right), (right, left.mT)):
            candidate = self.candidates.get(operand)
            if candidate is not None:
                self._confirm(candidate, operand, values)
                return
        if left.ndim != right.ndim or left.ndim < 2 or self._projects(left) or self._projects(right):
            return
        score = Score.of(left, right, output)
        if name == "baddbmm":
            score = score.multiplied(float(named.get("alpha", 1)))
            score = None if score is None else score.plus(arguments[0], float(named.get("beta", 1)))
        if score is not None:
            self.scores[output] = score

    def _softmax(self, scores: Tensor, axis: int, weights: Tensor) -> None:
        axis %= scores.ndim
        score = self.scores.get(scores)
        recipe = None if score is None else score.recipe(axis, self._heads(), self.understand)
        last = axis == scores.ndim - 1
        if scores.ndim >= 2 and (last or axis == scores.ndim - 2):
            self.candidates[weights] = Candidate(recipe, last=last)

    def _confirm(self, candidate: Candidate, operand: Tensor, values: Tensor) -> None:
        """Weights have met values (…, s, d): they are an attention's."""
        recipe = candidate.recipe
        if recipe is not None and operand.numel() == torch.Size(recipe.shape).numel():
            self._found(recipe, _of_heads(values, recipe.shape))
            return
        weights = operand if candidate.weights is None else candidate.weights
        weights = weights if candidate.last else weights.mT
        while weights.ndim < 3:
            weights = weights.unsqueeze(0)
        if weights.ndim == 3:
            heads = self._heads() or 1
            weights = weights.unflatten(0, (-1, heads)) if weights.shape[0] % heads == 0 else weights.unsqueeze(1)
        written = Written(weights.flatten(1, -3))
        self._found(written, _of_heads(values, written.shape))

    def _pass_on(self, name: str, arguments: tuple, named: dict[str, Any], output: Tensor) -> None:
        """What is known of an operation's input, as it holds of its output."""
        given = arguments[0]
        score = self.scores.get(given)
        other = arguments[1] if len(arguments) > 1 else None
        if score is None and isinstance(other, Tensor) and name in ("add", "mul"):
            given, other, score = other, given, self.scores.get(other)
        elif score is not None and isinstance(other, Tensor) and other in self.scores:
            score = None
        if score is not None:
            new = _step(score, name, given, other, arguments, named, output)
            if new is not None:
                self.scores[output] = new
            elif output in self.scores:
                del self.scores[output]
        first, second = arguments[0], arguments[1] if len(arguments) > 1 else None  # pyright: ignore[reportGeneralTypeIssues]
        given, candidate = first, self.candidates.get(first)
        if candidate is None and isinstance(second, Tensor) and name == "mul":
            given, candidate = second, self.candidates.get(second)
        if candidate is None:
            return
        whole = given if candidate.weights is None else candidate.weights
        if name in COPIES or name in DROPOUTS or (_same_memory(given, output) and given.numel() == output.numel()):
            self.candidates[output] = (
                candidate if given is output else Candidate(candidate.recipe, whole, candidate.last)
            )
        elif name in EDITS and given is not output:
            self.candidates[output] = Candidate(candidate.recipe, last=candidate.last)

    def _cat(self, arguments: tuple, output: Tensor) -> None:
        parts, axis = arguments[0], arguments[1] if len(arguments) > 1 else 0
        if any(part in self.candidates for part in parts):
            self.candidates[output] = Candidate(None)
        score = self.scores.get(parts[0])
        if score is not None and len(parts) == 2 and axis in (-1, output.ndim - 1) and parts[1].shape[-1] == 1:
            score = score.with_sink(parts[1], tuple(output.shape))
            if score is not None:
                self.scores[output] = score

    def _where(self, arguments: tuple, output: Tensor) -> None:
        if len(arguments) < 3:
            return
        where, yes, no = arguments[:3]
        for value, other, flags in ((yes, no, lambda: ~where), (no, yes, lambda: where)):
            if not isinstance(value, Tensor):
                continue
            if value in self.candidates:
                self.candidates[output] = Candidate(self.candidates[value].recipe, last=self.candidates[value].last)
            score = self.scores.get(value)
            if score is not None and value.shape == output.shape and _is_number(other):
                self.scores[output] = score.filled(flags(), float(other))
        if _is_number(yes) and _is_number(no) and float(yes) == 0.0:
            self._flags[output] = where


def _step(
    score: Score, name: str, given: Tensor, other: Any, arguments: tuple, named: dict[str, Any], output: Tensor
) -> Score | None:
    """Scores after one operation on them; None if it is not one that attention knows."""
    if name in COPIES and output.shape == given.shape:
        return score
    if given is not output and _same_memory(given, output):
        layout = score.layout.viewed(given, output)
        return None if layout is None else Score(**{**vars(score), "layout": layout})
    if output.shape != given.shape:
        return None
    other = float(other) if isinstance(other, int) else other
    match name.removesuffix("_"):
        case "mul":
            return score.multiplied(other)
        case "div":
            return score.multiplied(1 / other)
        case "add":
            return score.plus(other, float(named.get("alpha", 1)))
        case "sub":
            return score.plus(other, -float(named.get("alpha", 1)))
        case "tanh":
            return score.squeezed()
        case "masked_fill":
            return score.filled(other, float(arguments[2]))
    return None


def _of_heads(values: Tensor, shape: tuple[int, int, int, int]) -> Tensor | None:
    """Values (…, s, d) as (b, h, s, d), as the weights of that shape are arranged; None if they do not fit."""
    b, h, _, s = shape
    if values.shape[-2] != s or values.shape[:-2].numel() != b * h:
        return None
    return values.reshape(b, h, *values.shape[-2:])


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) or (isinstance(x, Tensor) and x.ndim == 0)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
