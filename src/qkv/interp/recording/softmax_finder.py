"""SoftmaxFinder: find hand-written attention among the operations of a run (matmul, softmax, matmul).

Scores are followed forward from every product that is not a projection. A softmax makes them candidate weights; the
candidate is attention once it is multiplied with values. What is known about a tensor is dropped with the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from qkv.interp.lazy_weights import DenseWeights, LazyWeights, WeightSource
from qkv.interp.recording.joining import TensorHolder
from qkv.interp.recording.mask_structure import AddedBias, analyze_bias
from qkv.interp.recording.symbolic_scores import SymbolicScores

PRODUCTS = ("mm", "bmm", "matmul", "baddbmm")
SOFTMAXES = ("_softmax", "_safe_softmax", "softmax")
COPIES = ("_to_copy", "clone", "detach", "alias", "contiguous", "lift_fresh")
DROPOUTS = ("native_dropout", "dropout", "mul", "mul_", "div", "div_", "bernoulli")
IN_PLACE = ("mul_", "div_", "add_", "sub_", "tanh_", "masked_fill_")
EDITS = ("masked_fill", "masked_fill_", "where", "nan_to_num", "cat", "slice", "expand")


@dataclass(frozen=True, eq=False)
class CandidateWeights:
    """The output of a softmax, which may be attention weights.

    lazy: the rule of the weights, if there is one.
    weights: the weights, if this tensor is a view of them or comes after dropout; otherwise the tensor itself.
    keys_last: whether keys are on the last axis.
    """

    lazy: LazyWeights | None
    weights: Tensor | None = None
    keys_last: bool = True


class SoftmaxFinder:
    """Watches operations and reports each attention it finds.

    report: called with the weights' source and the values of each attention.
    heads: returns the head count of the module being called, if it has one.
    is_parameter: whether a tensor is a parameter; a product with one is a projection.
    holder: holds the tensors of the recording, if there is one.
    """

    def __init__(
        self,
        report: Callable[[WeightSource, Tensor | None], object],
        heads: Callable[[], int | None],
        is_parameter: Callable[[Tensor], bool],
        holder: TensorHolder | None = None,
    ) -> None:
        self._report, self._heads, self._is_parameter = report, heads, is_parameter
        self._holder = TensorHolder() if holder is None else holder
        self.scores = WeakTensorKeyDictionary()
        self.candidates = WeakTensorKeyDictionary()
        self._analyzed = WeakTensorKeyDictionary()
        self._boolean_masks = WeakTensorKeyDictionary()  # by the tensors of 0 and −∞ made of them

    def analyze_bias(self, added: Tensor, source: Tensor, t: int, s: int) -> AddedBias:
        """Mask and bias in a tensor that is added to scores; computed once if several layers share the tensor."""
        boolean = self._boolean_masks.get(source)
        source = source if boolean is None else boolean
        owner = source if source._base is None else source._base  # each layer may take its own view of one mask
        known: dict[Any, AddedBias] | None = self._analyzed.get(owner)
        if known is None:
            known = self._analyzed[owner] = {}
        key = (source.storage_offset(), tuple(source.shape), source.stride(), tuple(added.shape), t, s)
        if key not in known:
            known[key] = analyze_bias(added, t, s)
        return known[key]

    def run(self, name: str, operator: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an operator; drop what was known about tensors it overwrites, except for an in-place step we follow."""
        storages = self._holder.before(operator, args, kwargs)
        if storages:
            self._forget(storages, args[0] if args and name in IN_PLACE else None)
        return operator(*args, **kwargs)

    def _forget(self, storages: list[int], followed: Any) -> None:
        for known in (self.scores, self.candidates, self._analyzed, self._boolean_masks):
            for tensor in [tensor for tensor in known if tensor.untyped_storage().data_ptr() in storages]:
                if tensor is not followed:
                    del known[tensor]

    def after(self, name: str, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        """Follow one operation."""
        if name in PRODUCTS:
            self._follow_product(name, args, kwargs, output)
        elif name in SOFTMAXES:
            self._follow_softmax(args[0], int(args[1]), output)
        elif name == "cat":
            self._follow_cat(args, output)
        elif name == "where":
            self._follow_where(args, output)
        elif self.scores.data or self.candidates.data:  # a fused model mostly has nothing to follow
            output = output[0] if isinstance(output, tuple) and output else output
            if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
                self._follow_scores(name, args, kwargs, output)
                self._follow_candidate(name, args, output)

    def _follow_product(self, name: str, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        left, right = args[1:3] if name == "baddbmm" else args[:2]
        for operand, values in ((left, right), (right, left.mT)):
            candidate = self.candidates.get(operand)
            if candidate is not None:
                self._confirm(candidate, operand, values)
                return
        if left.ndim != right.ndim or left.ndim < 2 or self._is_parameter(left) or self._is_parameter(right):
            return
        scores = SymbolicScores.from_product(left, right, output)
        if name == "baddbmm":
            scores = scores.multiply(float(kwargs.get("alpha", 1)))
            scores = None if scores is None else scores.add(args[0], float(kwargs.get("beta", 1)))
        if scores is not None:
            self.scores[output] = scores

    def _follow_softmax(self, scores: Tensor, axis: int, weights: Tensor) -> None:
        axis %= scores.ndim
        symbolic = self.scores.get(scores)
        lazy = None if symbolic is None else symbolic.lazy_weights(axis, self._heads(), self.analyze_bias)
        keys_last = axis == scores.ndim - 1
        if scores.ndim >= 2 and (keys_last or axis == scores.ndim - 2):
            self.candidates[weights] = CandidateWeights(lazy, keys_last=keys_last)

    def _confirm(self, candidate: CandidateWeights, operand: Tensor, values: Tensor) -> None:
        """Report a candidate that was multiplied with values (…, s, d): it is attention."""
        lazy = candidate.lazy
        if lazy is not None and operand.numel() == torch.Size(lazy.shape).numel():
            self._report(lazy, _split_values(values, lazy.shape))
            return
        weights = operand if candidate.weights is None else candidate.weights
        weights = weights if candidate.keys_last else weights.mT
        while weights.ndim < 3:
            weights = weights.unsqueeze(0)
        if weights.ndim == 3:
            heads = self._heads() or 1
            weights = weights.unflatten(0, (-1, heads)) if weights.shape[0] % heads == 0 else weights.unsqueeze(1)
        dense = DenseWeights(weights.flatten(1, -3))
        self._report(dense, _split_values(values, dense.shape))

    def _follow_scores(self, name: str, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
        """Update the scores that are an operation's first input (or the second, of add and mul)."""
        source, other = args[0], args[1] if len(args) > 1 else None
        scores = self.scores.get(source)
        if scores is None and isinstance(other, Tensor) and name in ("add", "mul"):
            source, other, scores = other, source, self.scores.get(other)
        elif scores is not None and isinstance(other, Tensor) and other in self.scores:
            scores = None
        if scores is None:
            return
        new = _apply_operation(scores, name, source, other, args, kwargs, output)
        if new is not None:
            self.scores[output] = new
        elif output in self.scores:
            del self.scores[output]

    def _follow_candidate(self, name: str, args: tuple, output: Tensor) -> None:
        """Pass candidate weights on through copies, views, dropout and edits."""
        source, other = args[0], args[1] if len(args) > 1 else None
        candidate = self.candidates.get(source)
        if candidate is None and isinstance(other, Tensor) and name == "mul":
            source, candidate = other, self.candidates.get(other)
        if candidate is None:
            return
        is_view = _share_storage(source, output) and source.numel() == output.numel()
        if name in COPIES or name in DROPOUTS or is_view:
            weights = source if candidate.weights is None else candidate.weights
            self.candidates[output] = candidate if source is output else replace(candidate, weights=weights)
        elif name in EDITS and source is not output:
            self.candidates[output] = replace(candidate, weights=None)

    def _follow_cat(self, args: tuple, output: Tensor) -> None:
        parts, axis = args[0], args[1] if len(args) > 1 else 0
        if any(part in self.candidates for part in parts):
            self.candidates[output] = CandidateWeights(None)
        scores = self.scores.get(parts[0])
        if scores is not None and len(parts) == 2 and axis in (-1, output.ndim - 1) and parts[1].shape[-1] == 1:
            scores = scores.append_sink(parts[1], tuple(output.shape))
            if scores is not None:
                self.scores[output] = scores

    def _follow_where(self, args: tuple, output: Tensor) -> None:
        if len(args) < 3:
            return
        where, yes, no = args[:3]
        for value, other, fill_where in ((yes, no, lambda: ~where), (no, yes, lambda: where)):
            if not isinstance(value, Tensor):
                continue
            if value in self.candidates:
                self.candidates[output] = replace(self.candidates[value], weights=None)
            scores = self.scores.get(value)
            if scores is not None and value.shape == output.shape and _is_number(other):
                self.scores[output] = scores.masked_fill(fill_where(), float(other))
        if _is_number(yes) and _is_number(no) and float(yes) == 0.0:
            self._boolean_masks[output] = where


def _apply_operation(
    scores: SymbolicScores, name: str, source: Tensor, other: Any, args: tuple, kwargs: dict[str, Any], output: Tensor
) -> SymbolicScores | None:
    """The scores after one operation; None if attention does not use that operation."""
    if name in COPIES and output.shape == source.shape:
        return scores
    if source is not output and _share_storage(source, output):
        layout = scores.layout.follow_view(source, output)
        return None if layout is None else replace(scores, layout=layout)
    if output.shape != source.shape:
        return None
    other = float(other) if isinstance(other, int) else other
    match name.removesuffix("_"):
        case "mul":
            return scores.multiply(other)
        case "div":
            return scores.multiply(1 / other)
        case "add":
            return scores.add(other, float(kwargs.get("alpha", 1)))
        case "sub":
            return scores.add(other, -float(kwargs.get("alpha", 1)))
        case "tanh":
            return scores.tanh()
        case "masked_fill":
            return scores.masked_fill(other, float(args[2]))
    return None


def _split_values(values: Tensor, shape: tuple[int, int, int, int]) -> Tensor | None:
    """Values (…, s, d) as (b, h, s, d), like the weights of that shape; None if they do not fit."""
    b, h, _, s = shape
    if values.shape[-2] != s or values.shape[:-2].numel() != b * h:
        return None
    return values.reshape(b, h, *values.shape[-2:])


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) or (isinstance(x, Tensor) and x.ndim == 0)


def _share_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
