"""Recorder of check: attention inside any module, right or wrong, as numbers (interp's assumes it is right).

Every product of two activations is followed until it multiplies a third, the values. `qkv.interp.record` keeps what
correct attention needs; this recorder asks what wrong attention does, so it assumes nothing: the softmax may run over
any axis or be missing, and whatever happens in between is kept as numbers.

Axes: b batch · h heads · t queries · s keys · d head dim · e value dim · n features.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from qkv._operators import OperatorWatcher
from qkv.interp.recording.kernels import READERS, bind_arguments, read_sdpa
from qkv.interp.recording.module_stack import ModuleStack
from qkv.interp.recording.symbolic_scores import AxisLayout, AxisPart, rearrange

SoftmaxAxis = Literal["keys", "queries", "heads or batch"]

PRODUCTS = ("mm", "bmm", "baddbmm", "addmm")
SOFTMAXES = ("_softmax", "_safe_softmax", "softmax")
REDUCTIONS = ("mean", "sum")
FUSED = "the attention runs in a fused operator, {}: its inside is not visible"


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """One attention of a run, in one form whatever its code looks like; all tensors are float64.

    Args:
        name: the module that it runs in. order: its position among all recorded operations.
        product: q·k, before anything is done to it.
        scores: the input of the softmax; None if there was no softmax.
        soft: the output of the softmax.
        weights: what multiplied the values. The keys are, by definition, what is summed over.
        axis: the axis of the softmax. precision: its dtype.
        dropped: whether dropout changed the weights.
        averaged: whether the weights were reduced over the heads.
        parts: the products whose sum is `product`, if scores are a sum, as of parts with and without positions.
        kernel: the name of the operator, if a single one did everything.
    """

    name: str
    order: int
    queries: Tensor
    keys: Tensor
    values: Tensor
    output: Tensor
    product: Tensor
    scores: Tensor | None
    soft: Tensor | None
    weights: Tensor
    axis: SoftmaxAxis | None
    precision: torch.dtype | None
    dropped: bool = False
    averaged: bool = False
    parts: tuple[Tensor, ...] = ()
    kernel: str | None = None

    @property
    def heads(self) -> int:
        return self.product.shape[1]

    @property
    def head_dim(self) -> int:
        return self.queries.shape[-1]

    @property
    def mask(self) -> Tensor | None:
        """(b, h, t, s): which scores the softmax can see; None without a softmax."""
        return None if self.scores is None else self.scores > masked_below(self.product)

    @property
    def attended(self) -> Tensor:
        """(b, h, t, s): which weights are not zero."""
        return self.weights.abs() > 1e-30


@dataclass(frozen=True, eq=False)
class ProjectionRecord:
    """A product with a parameter: its input (…, c), its output (…, n) and its position in the order.

    Args:
        storage: the memory address of the parameter.
    """

    name: str
    order: int
    given: Tensor
    output: Tensor
    storage: int = 0


@dataclass(frozen=True)
class Recording:
    """Everything recorded in one run; `refused` says why nothing could be recorded.

    Args:
        unfinished: softmaxes whose weights could not be followed to the values (as differences of two): without those.
    """

    attentions: tuple[AttentionRecord, ...] = ()
    projections: tuple[ProjectionRecord, ...] = ()
    refused: str | None = None
    unfinished: tuple[AttentionRecord, ...] = ()


def masked_below(product: Tensor) -> float:
    """Scores below this are so far under all products that the softmax makes them 0."""
    size = float(product.abs().max()) if product.numel() else 1.0
    return -max(100.0 * size, 1e3)


@contextmanager
def record_attention(module: nn.Module | None, batch: int) -> Iterator[list[Recording]]:
    """Record what runs inside the block; the recording is in the list when the block ends."""
    if "torch._dynamo" in sys.modules:  # the target is compiled: keep the compiler out of the recorder
        setattr(AttentionRecorder, "__torch_dispatch__", torch._dynamo.disable(_DISPATCH))  # noqa: B010
    recorder, found = AttentionRecorder(module, batch), []
    with recorder.stack, recorder:
        yield found
    unfinished = recorder.read_unfinished()
    found.append(Recording(tuple(recorder.attentions), tuple(recorder.projections), recorder.refused, unfinished))


@dataclass(frozen=True, eq=False)
class ProductTrace:
    """What is known of a tensor that a product became.

    Args:
        start: the axes of the product. layout: where they are now; None once that is lost.
        scores, soft, axis, precision: the input, output, axis and dtype of the softmax, if there was one.
        soft_layout: the axes of `scores` and `soft`.
    """

    left: Tensor
    right: Tensor
    product: Tensor
    start: AxisLayout
    layout: AxisLayout | None
    scores: Tensor | None = None
    soft: Tensor | None = None
    soft_layout: AxisLayout | None = None
    axis: int | None = None
    precision: torch.dtype | None = None
    dropped: bool = False
    averaged: bool = False
    parts: tuple[Tensor, ...] = ()

    def plus(self, other: ProductTrace, value: Tensor) -> ProductTrace | None:
        """The trace of the sum of two products; None if their rows cannot be matched. value: what `other` became."""
        if self.soft is not None or other.soft is not None or self.layout is None:
            return None
        for rows in (lambda x: x, lambda x: x.unflatten(-2, (-1, value.shape[1])).transpose(-2, -3)):
            try:
                product, left = (rows(x).reshape(*self.left.shape[:-1], -1) for x in (other.product, other.left))
                right = other.right.flatten(0, -3).repeat_interleave(
                    self.right[..., 0, 0].numel() // len(other.right), 0
                )
                right = right.reshape(*self.right.shape[:-2], *right.shape[-2:])
                ratio = value.double().reshape(product.shape) / product
            except (RuntimeError, ZeroDivisionError, IndexError):  # no such arrangement
                continue
            if float((ratio - ratio.flatten()[0]).abs().max()) <= 1e-6 * float(ratio.abs().max()):
                return replace(
                    self,
                    left=torch.cat((self.left, left), -1),
                    right=torch.cat((self.right, right), -2),
                    product=self.product + product,
                    parts=(*(self.parts or (self.product,)), product),
                )
        return None


class AttentionRecorder(OperatorWatcher):
    """The dispatch mode behind `record_attention`."""

    supports_higher_order_operators = True

    def __init__(self, module: nn.Module | None, batch: int) -> None:
        super().__init__()
        self.stack = ModuleStack(module)
        self.batch = batch
        self.attentions: list[AttentionRecord] = []
        self.projections: list[ProjectionRecord] = []
        self.refused: str | None = None
        self._traces = WeakTensorKeyDictionary()
        self._constants = WeakTensorKeyDictionary()  # made of parameters and buffers alone
        self._projected = WeakTensorKeyDictionary()  # outputs of projections, until their bias is added
        self._softmaxes: list[tuple[str, int, ProductTrace]] = []  # with their module and their order
        self._finished: list[Tensor] = []  # the products of the attentions that were recorded
        self._order = 0
        tensors = [] if module is None else [*module.parameters(), *module.buffers()]
        self._stored = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", str(func)).split(".")[0]
        adds = name in ("baddbmm", "addmm")
        operands = args[-2:] if adds else args[:2]
        raw = operands[0] @ operands[1] if adds else None
        output = func(*args, **named)
        self._order += 1
        if name in READERS:
            self._record_kernel(name, bind_arguments(func, args, named), output)
        elif name in PRODUCTS:
            self._record_product(operands, output if raw is None or self._is_constant(operands[1]) else raw, output)
        else:
            if name == "convolution" and self._is_constant(args[1]) and not self._is_constant(args[0]):
                self._record_convolution(args[0], args[1], output)
            self._follow(name, args, named, output)
        return output

    # -- products ------------------------------------------------------------------------------------------------

    def _record_product(self, operands: tuple, raw: Tensor, output: Tensor) -> None:
        """With a parameter it is a projection, with a traced product it gathers values; others begin a trace."""
        left, right = operands
        if self._is_constant(left) or self._is_constant(right):
            given, parameter = (left, right) if self._is_constant(right) else (right, left)
            if not self._is_constant(given):
                self._projected[output] = len(self.projections)
                storage = parameter.untyped_storage().data_ptr()
                self.projections.append(
                    ProjectionRecord(self.stack.name, self._order, _copy(given), _copy(output), storage)
                )
            return
        for place, operand in enumerate((left, right)):
            trace = self._traces.get(operand)
            if trace is not None:
                self._record_attention(trace, operand, operands[1 - place], place, output)
                return
        if left.is_floating_point():
            layout = AxisLayout.from_shape(tuple(output.shape))
            self._traces[output] = ProductTrace(_copy(left), _copy(right), _copy(raw), layout, layout)

    def _record_convolution(self, given: Tensor, weight: Tensor, output: Tensor) -> None:
        """A convolution with a parameter is a projection; positions become rows, channels features."""
        if given.ndim < 3 or given.shape[0] != output.shape[0]:
            return
        before, after = (_copy(x.flatten(2).transpose(1, 2)) for x in (given, output))
        storage = weight.untyped_storage().data_ptr()
        self.projections.append(ProjectionRecord(self.stack.name, self._order, before, after, storage))

    def _record_attention(
        self, trace: ProductTrace, weights: Tensor, other: Tensor, place: int, output: Tensor
    ) -> None:
        """The weights meet the values: everything is brought to (b, h, t, s)."""
        summed = weights.ndim - 1 if place == 0 else weights.ndim - 2
        layout, kept, others = trace.layout, _copy(weights), _copy(other)
        if layout is None:
            if kept.shape != trace.product.shape:  # reduced, and not expanded again
                return
            layout = trace.start
        keys = layout.find(summed)
        if keys is None:
            return
        axes = layout.axes
        batch = tuple(part for atoms in trace.start.axes[:-2] for atom in atoms for part in layout.split_parts(atom))
        row, column = trace.start.axes[-2], trace.start.axes[-1]
        inner = (AxisPart("inner", others.shape[-1 if place == 0 else -2]),)
        free = axes[-2] if place == 0 else axes[-1]
        value_axes = (*axes[:-2], axes[summed], inner) if place == 0 else (*axes[:-2], inner, axes[summed])
        output_axes = (*axes[:-2], free, inner) if place == 0 else (*axes[:-2], inner, free)

        def arrange(x: Tensor, x_axes: tuple, order: tuple) -> Tensor:
            return self._split_heads(rearrange(x, x_axes, layout, order), batch)

        try:
            whole = (*trace.start.axes[:-2], row, column)
            product, *parts = (arrange(x, whole, (batch, row, column)) for x in (trace.product, *trace.parts))
            weights = arrange(kept, axes, (batch, row, column))
            values = arrange(others, value_axes, (batch, axes[summed], inner))
            out = arrange(_copy(output), output_axes, (batch, free, inner))
            scores, soft = (self._arrange_soft(trace, x, batch, row, column) for x in (trace.scores, trace.soft))
        except (RuntimeError, KeyError, ValueError, IndexError):  # an arrangement that cannot be followed
            return
        queries, keys_ = (self._split_heads(x.reshape(-1, *x.shape[-2:]), batch) for x in (trace.left, trace.right.mT))
        self._finished.append(trace.product)
        if keys == "row":
            queries, keys_ = keys_, queries
            product, weights, parts = product.mT, weights.mT, [part.mT for part in parts]
            scores, soft = (None if x is None else x.mT for x in (scores, soft))
        self.attentions.append(
            AttentionRecord(
                name=self.stack.name,
                order=self._order,
                queries=queries,
                keys=keys_,
                values=values,
                output=out,
                product=product,
                scores=scores,
                soft=soft,
                weights=weights,
                axis=_softmax_axis(trace, keys),
                precision=trace.precision,
                dropped=trace.dropped,
                averaged=trace.averaged,
                parts=tuple(parts),
            )
        )

    def read_unfinished(self) -> tuple[AttentionRecord, ...]:
        """The softmaxes over keys whose weights met no values in a way that could be followed."""
        found = []
        for name, order, trace in self._softmaxes:
            layout = trace.soft_layout
            if layout is None or any(trace.product is product for product in self._finished):
                continue
            batch = tuple(
                part for atoms in trace.start.axes[:-2] for atom in atoms for part in layout.split_parts(atom)
            )
            row, column = trace.start.axes[-2:]
            try:
                product = self._split_heads(
                    rearrange(trace.product, trace.start.axes, layout, (batch, row, column)), batch
                )
                scores, soft = (self._arrange_soft(trace, x, batch, row, column) for x in (trace.scores, trace.soft))
                queries, keys = (
                    self._split_heads(x.reshape(-1, *x.shape[-2:]), batch) for x in (trace.left, trace.right.mT)
                )
            except (RuntimeError, KeyError, ValueError, IndexError):  # an arrangement that cannot be followed
                continue
            if soft is None or _softmax_axis(trace, "column") != "keys":
                continue
            none = keys[..., :0]
            found.append(
                AttentionRecord(
                    name, order, queries, keys, none, none, product, scores, soft, soft, "keys", trace.precision
                )
            )
        return tuple(found)

    def _arrange_soft(
        self, trace: ProductTrace, x: Tensor | None, batch: tuple, row: tuple, column: tuple
    ) -> Tensor | None:
        layout = trace.soft_layout
        if x is None or layout is None:
            return None
        parts = tuple(part for atoms in trace.start.axes[:-2] for atom in atoms for part in layout.split_parts(atom))
        return self._split_heads(rearrange(x, layout.axes, layout, (parts, row, column)), batch)

    def _split_heads(self, x: Tensor, batch: tuple[AxisPart, ...]) -> Tensor:
        """(b·h, …) as (b, h, …); where heads come first, the two axes are swapped."""
        sizes = [atom.size for atom in batch]
        x = x.double()
        if len(sizes) == 2 and sizes[0] != self.batch and sizes[1] == self.batch:
            return x.unflatten(0, (sizes[0], sizes[1])).transpose(0, 1)
        if x.shape[0] % self.batch:
            return x.unsqueeze(1)
        return x.unflatten(0, (self.batch, -1))

    # -- everything in between -----------------------------------------------------------------------------------

    def _follow(self, name: str, args: tuple, named: dict[str, Any], output: Any) -> None:
        """An operation between the product and the values: remember what it did to the traced tensor."""
        given = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
        out = output[0] if isinstance(output, tuple) and output else output
        if given and all(self._is_constant(x) for x in given):
            for made in tree_leaves(output):
                if isinstance(made, Tensor):
                    self._constants[made] = True
            return
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return
        self._add_bias(name, given, out)
        traced = [x for x in given if x in self._traces]
        if not traced:
            return
        traced.sort(key=lambda x: x.shape != out.shape)
        before = traced[0]
        trace: ProductTrace = self._traces[before]
        if name in ("add", "add_") and len(traced) == 2:
            first, second = sorted(traced, key=lambda x: self._traces[x].layout is None)
            trace = self._traces[first].plus(self._traces[second], second) or trace
        if name in SOFTMAXES:
            self._traces[out] = made = replace(
                trace,
                scores=_copy(args[0]),
                soft=_copy(out),
                soft_layout=trace.layout,
                axis=args[1] % out.ndim,
                precision=out.dtype,
            )
            self._softmaxes.append((self.stack.name, self._order, made))
            return
        dropped = trace.dropped or bool(name == "native_dropout" and args[2] and args[1])
        averaged = trace.averaged or (name in REDUCTIONS and trace.soft is not None)
        layout = _layout_after(trace.layout, before, out)
        self._traces[out] = replace(trace, layout=layout, averaged=averaged, dropped=dropped)

    def _add_bias(self, name: str, given: list[Tensor], out: Tensor) -> None:
        """A projection whose bias is added afterwards is recorded with its bias."""
        projected = [x for x in given if x in self._projected]
        if len(projected) != 1:
            return
        index = self._projected[projected[0]]
        if name in ("add", "add_") and all(x is projected[0] or self._is_constant(x) for x in given):
            self.projections[index] = replace(self.projections[index], output=_copy(out))
            self._projected[out] = index
        elif _shares_memory(projected[0], out) and projected[0].numel() == out.numel():
            self._projected[out] = index

    # -- whole kernels -------------------------------------------------------------------------------------------

    def _record_kernel(self, name: str, given: dict[str, Any], output: Any) -> None:
        """scaled_dot_product_attention's kernels: scores and weights are computed again from the arguments."""
        if READERS[name] is not read_sdpa:
            self.refused = FUSED.format(name)
            return
        q, k, v = (_four_axes(_copy(given[x])) for x in ("query", "key", "value"))
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        t, s = q.shape[-2], k.shape[-2]
        scale = given.get("scale")
        product = q @ k.mT
        scores = product * (q.shape[-1] ** -0.5 if scale is None else float(scale))
        if given.get("is_causal"):
            scores = scores.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(), float("-inf"))
        added = given.get("attn_mask", given.get("attn_bias"))
        if added is not None:
            scores = scores.masked_fill(~added, float("-inf")) if added.dtype == torch.bool else scores + added
        soft = scores.softmax(-1).nan_to_num(0.0)
        self.attentions.append(
            AttentionRecord(
                name=self.stack.name,
                order=self._order,
                queries=q,
                keys=k,
                values=v,
                output=_four_axes(_copy(output[0] if isinstance(output, tuple) else output)),
                product=product,
                scores=scores,
                soft=soft,
                weights=soft,
                axis="keys",
                precision=given["query"].dtype,
                dropped=float(given.get("dropout_p") or 0.0) > 0,
                kernel=name,
            )
        )

    def _is_constant(self, x: Any) -> bool:
        if not isinstance(x, Tensor):
            return False
        return x in self._constants or (x.numel() > 0 and x.untyped_storage().data_ptr() in self._stored)


_DISPATCH = AttentionRecorder.__torch_dispatch__


def _softmax_axis(trace: ProductTrace, keys: str) -> SoftmaxAxis | None:
    if trace.axis is None or trace.soft_layout is None:
        return None
    kind = trace.soft_layout.find(trace.axis)
    if kind is None:
        return "heads or batch"
    return "keys" if kind == keys else "queries"


def _layout_after(layout: AxisLayout | None, before: Tensor, after: Tensor) -> AxisLayout | None:
    """The layout after an operation: a view's own, the same for one of the same shape, else unknown."""
    if layout is None:
        return None
    shared = _shares_memory(before, after)
    if before.shape == after.shape:
        viewed = layout.follow_view(before, after) if shared and before is not after else None
        return layout if viewed is None else viewed
    return layout.follow_view(before, after) if shared else None


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone().double()


def _four_axes(x: Tensor) -> Tensor:
    return x if x.ndim == 4 else x.unsqueeze(1)


def _shares_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
