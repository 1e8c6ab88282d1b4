"""Watching a run: every product of two activations is followed until it multiplies a third, the values.

Axes: b batch · h heads · t queries · s keys · d head width.

`qkv.interp.record` keeps the recipe of attention that is right; here the question is what wrong attention does, so
nothing is taken for granted: the softmax may run over any axis or be missing, and what is done between is kept as
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from qkv.check.inside.seen import Axis, Projection, Recording, Seen
from qkv.interp.recording.axes import Atom, Layout, arranged
from qkv.interp.recording.kernels import READERS, bound, read_dot_product
from qkv.interp.recording.modules import ModuleStack

PRODUCTS = ("mm", "bmm", "baddbmm", "addmm")
SOFTMAXES = ("_softmax", "_safe_softmax", "softmax")
REDUCES = ("mean", "sum")
FUSED = "the attention runs in a fused operator, {}: its inside is not seen"


@dataclass(frozen=True, eq=False)
class Path:
    """What is known of a tensor that a product became: where its axes came from, and what was done on the way."""

    left: Tensor
    right: Tensor
    product: Tensor
    start: Layout
    layout: Layout | None
    scores: Tensor | None = None
    soft: Tensor | None = None
    softened: Layout | None = None
    axis: int | None = None
    precision: torch.dtype | None = None
    dropped: bool = False
    averaged: bool = False


@contextmanager
def watch(module: nn.Module | None, batch: int) -> Iterator[list[Recording]]:
    """Record what runs inside; the recording stands in the list when the block ends."""
    watcher, found = Watcher(module, batch), []
    with watcher.stack, watcher:
        yield found
    found.append(Recording(tuple(watcher.seen), tuple(watcher.projections), watcher.refused))


class Watcher(TorchDispatchMode):
    """The mode that watches."""

    supports_higher_order_operators = True

    def __init__(self, module: nn.Module | None, batch: int) -> None:
        super().__init__()
        self.stack = ModuleStack(module)
        self.batch = batch
        self.seen: list[Seen] = []
        self.projections: list[Projection] = []
        self.refused: str | None = None
        self._paths = WeakTensorKeyDictionary()
        self._fixed = WeakTensorKeyDictionary()  # made of parameters and buffers alone
        self._projected = WeakTensorKeyDictionary()  # the outputs of projections, until their bias is added
        self._order = 0
        tensors = [] if module is None else [*module.parameters(), *module.buffers()]
        self._stored = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", str(func)).split(".")[0]
        operands = args[-2:] if name in ("baddbmm", "addmm") else args[:2]
        raw = operands[0] @ operands[1] if name in ("baddbmm", "addmm") else None
        output = func(*args, **named)
        self._order += 1
        if name in READERS:
            self._kernel(name, bound(func, args, named), output)
        elif name in PRODUCTS:
            self._product(operands, raw if raw is not None and not self._is_fixed(operands[1]) else output, output)
        else:
            self._pass_on(name, args, named, output)
        return output

    # -- products ------------------------------------------------------------------------------------------------

    def _product(self, operands: tuple, raw: Tensor, output: Tensor) -> None:
        left, right = operands
        if self._is_fixed(left) or self._is_fixed(right):
            given = left if self._is_fixed(right) else right
            if not self._is_fixed(given):
                self._projected[output] = len(self.projections)
                source = (right if given is left else left).untyped_storage().data_ptr()
                self.projections.append(Projection(self.stack.name, self._order, _kept(given), _kept(output), source))
            return
        for place, operand in enumerate((left, right)):
            path = self._paths.get(operand)
            if path is not None:
                self._gather(path, operand, operands[1 - place], place, output)
                return
        if left.is_floating_point():
            layout = Layout.of(tuple(output.shape))
            self._paths[output] = Path(_kept(left), _kept(right), _kept(raw), layout, layout)

    def _gather(self, path: Path, weights: Tensor, other: Tensor, place: int, output: Tensor) -> None:
        """The weights meet the values: all of it is brought to (b, h, t, s)."""
        summed = weights.ndim - 1 if place == 0 else weights.ndim - 2
        layout, kept, others = path.layout, _kept(weights), _kept(other)
        if layout is None:
            if kept.shape != path.product.shape:  # reduced and not written out again
                return
            layout = path.start
        kind = layout.find(summed)
        if kind is None:
            return
        batch = tuple(part for atoms in path.start.axes[:-2] for atom in atoms for part in layout.parts(atom))
        row, column = path.start.axes[-2], path.start.axes[-1]
        inner = (Atom("inner", others.shape[-1 if place == 0 else -2]),)
        axes = layout.axes
        summed_atoms = axes[summed]
        values_axes = (*axes[:-2], summed_atoms, inner) if place == 0 else (*axes[:-2], inner, summed_atoms)
        free = axes[-2] if place == 0 else axes[-1]
        out_axes = (*axes[:-2], free, inner) if place == 0 else (*axes[:-2], inner, free)
        try:
            square = lambda x, where: self._split(arranged(x, where, layout, (batch, row, column)), batch)  # noqa: E731
            weights4 = square(kept, axes)
            values = self._split(arranged(others, values_axes, layout, (batch, summed_atoms, inner)), batch)
            out = self._split(arranged(_kept(output), out_axes, layout, (batch, free, inner)), batch)
            start = (*path.start.axes[:-2], row, column)
            product = square(path.product, start)
            lefts, rights = path.left, path.right.mT
            scores, soft = (self._arranged_soft(path, x, batch, row, column) for x in (path.scores, path.soft))
        except (RuntimeError, KeyError, ValueError, IndexError):  # an arrangement that is not followed is not read
            return
        queries, keys = (self._split(x.reshape(-1, *x.shape[-2:]), batch) for x in (lefts, rights))
        if kind == "row":
            queries, keys = keys, queries
            product, weights4 = product.mT, weights4.mT
            scores, soft = (None if x is None else x.mT for x in (scores, soft))
        self.seen.append(
            Seen(
                self.stack.name,
                self._order,
                queries,
                keys,
                values,
                out,
                product,
                scores,
                soft,
                weights4,
                self._axis(path, kind),
                path.precision,
                path.dropped,
                path.averaged,
            )
        )

    def _arranged_soft(self, path: Path, x: Tensor | None, batch: tuple, row: tuple, column: tuple) -> Tensor | None:
        if x is None or path.softened is None:
            return None
        parts = tuple(part for atoms in path.start.axes[:-2] for atom in atoms for part in path.softened.parts(atom))
        return self._split(arranged(x, path.softened.axes, path.softened, (parts, row, column)), batch)

    def _axis(self, path: Path, keys: str) -> Axis | None:
        if path.axis is None or path.softened is None:
            return None
        kind = path.softened.find(path.axis)
        if kind is None:
            return "heads or batch"
        return "keys" if kind == keys else "queries"

    def _split(self, x: Tensor, batch: tuple[Atom, ...]) -> Tensor:
        """(b·h, …) as (b, h, …); where the parts say that heads come first, they are turned."""
        sizes = [atom.size for atom in batch]
        x = x.double()
        if len(sizes) == 2 and sizes[0] != self.batch and sizes[1] == self.batch:
            return x.unflatten(0, (sizes[0], sizes[1])).transpose(0, 1)
        if x.shape[0] % self.batch:
            return x.unsqueeze(1)
        return x.unflatten(0, (self.batch, -1))

    # -- everything between --------------------------------------------------------------------------------------

    def _pass_on(self, name: str, args: tuple, named: dict[str, Any], output: Any) -> None:
        given = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
        out = output[0] if isinstance(output, tuple) and output else output
        if given and all(self._is_fixed(x) for x in given):
            for made in tree_leaves(output):
                if isinstance(made, Tensor):
                    self._fixed[made] = True
            return
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return
        self._biased(name, given, out)
        known = [x for x in given if x in self._paths]
        if not known:
            return
        known.sort(key=lambda x: x.shape != out.shape)
        before = known[0]
        path: Path = self._paths[before]
        if name in SOFTMAXES:
            precision = out.dtype
            self._paths[out] = replace(
                path, scores=_kept(args[0]), soft=_kept(out), softened=path.layout, axis=args[1] % out.ndim,
                precision=precision,
            )  # fmt: skip
            return
        if name == "native_dropout" and args[2] and args[1]:
            path = replace(path, dropped=True)
        layout = None
        if path.layout is not None:
            if out.shape == before.shape:
                viewed = path.layout.viewed(before, out) if _shares(before, out) and before is not out else None
                layout = path.layout if viewed is None else viewed
            elif _shares(before, out):
                layout = path.layout.viewed(before, out)
        elif _shares(before, out) or name in ("expand", "clone", "_unsafe_view", "view"):
            layout = None
        averaged = path.averaged or (name in REDUCES and path.soft is not None)
        self._paths[out] = replace(path, layout=layout, averaged=averaged)

    def _biased(self, name: str, given: list[Tensor], out: Tensor) -> None:
        """A projection whose bias is added afterwards is what it is with the bias."""
        known = [x for x in given if x in self._projected]
        if len(known) != 1:
            return
        index = self._projected[known[0]]
        if name in ("add", "add_") and all(x is known[0] or self._is_fixed(x) for x in given):
            self.projections[index] = replace(self.projections[index], output=_kept(out))
            self._projected[out] = index
        elif _shares(known[0], out) and known[0].numel() == out.numel():
            self._projected[out] = index

    # -- whole kernels -------------------------------------------------------------------------------------------

    def _kernel(self, name: str, given: dict[str, Any], output: Any) -> None:
        if READERS[name] is not read_dot_product:
            self.refused = FUSED.format(name)
            return
        q, k, v = (_four(_kept(given[x])) for x in ("query", "key", "value"))
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
        out = _four(_kept(output[0] if isinstance(output, tuple) else output))
        dropped = float(given.get("dropout_p") or 0.0) > 0
        self.seen.append(
            Seen(
                self.stack.name,
                self._order,
                q,
                k,
                v,
                out,
                product,
                scores,
                soft,
                soft,
                "keys",
                given["query"].dtype,
                dropped,
                kernel=name,
            )
        )

    def _is_fixed(self, x: Any) -> bool:
        if not isinstance(x, Tensor):
            return False
        return x in self._fixed or (x.numel() > 0 and x.untyped_storage().data_ptr() in self._stored)


def _kept(x: Tensor) -> Tensor:
    return x.detach().clone().double()


def _four(x: Tensor) -> Tensor:
    return x if x.ndim == 4 else x.unsqueeze(1)


def _shares(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
