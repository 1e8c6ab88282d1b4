"""Where later tokens enter: the first operation whose result for an earlier token changes with a later one.

Attention weights that see the future are read elsewhere. Here are the other ways: a norm or a mean along the sequence,
a sum over all tokens in a denominator, a convolution that looks ahead.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from qkv.check.implementation import Implementation
from qkv.check.report import Diagnosis
from qkv.check.tracing.lines import LENGTH, own_files, user_frame

# operations that move entries without computing: what they mix is named by other checks
MOVES = (
    "view", "reshape", "flatten", "unflatten", "transpose", "permute", "cat", "stack", "concat", "contiguous", "clone",
    "__getitem__", "__setitem__", "expand", "chunk", "split", "unbind", "to", "view_as", "unfold", "as_strided",
)  # fmt: skip

SHIFTS = ("cat", "concat", "roll", "flip", "pad", "gather", "index_select", "__getitem__")  # tokens to other places


@dataclass(frozen=True)
class Place:
    """An operation and the user's line that calls it."""

    operation: str
    file: str
    line: int

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        return f"{Path(self.file).name}:{self.line}: {code}" if code else ""


@dataclass(frozen=True)
class Token:
    """What is known of a tensor: how many axes are of tokens, and what a change of the last token does to it.

    Args:
        leaks: entries of earlier tokens change.
        total: the operation that made it from all tokens, if it has no axis of tokens and changes.
    """

    axes: int
    leaks: bool
    total: Place | None = None


class LeakTrace(TorchFunctionMode):
    """Compares the results of each operation with those of an earlier run, in which the last token was another."""

    def __init__(self, length: int, files: set[str], before: list[list[Tensor]] | None = None) -> None:
        super().__init__()
        self.results: list[list[Tensor]] = []
        self.found: tuple[Place, Place | None] | None = None
        self.stopped = False
        self._length, self._files, self._before = length, files, before
        self._known: dict[int, Token] = {}
        self._alive: list[Tensor] = []  # an id belongs to one tensor only as long as it lives

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        outs = list(_tensors(args[:1] if name == "__setitem__" else result))
        number = len(self.results)
        self.results.append([out.detach().clone() for out in outs])
        if self._before is None or self.stopped:
            return result
        earlier = self._before[number] if number < len(self._before) else []
        if [out.shape for out in earlier] != [out.shape for out in outs]:
            self.stopped = True  # the two runs differ in their operations
            return result
        given = [self._known.get(id(x)) or Token(len(self._token_axes(x)), False) for x in _tensors((args, kwargs))]
        for out, other in zip(outs, earlier, strict=True):
            self._judge(name, out, other, given)
        return result

    def _token_axes(self, x: Tensor) -> list[int]:
        return [axis for axis, size in enumerate(x.shape) if size == self._length]

    def _judge(self, name: str, out: Tensor, other: Tensor, given: list[Token]) -> None:
        """Keep what is known of one result; stop at the first that leaks."""
        axes = self._token_axes(out)
        changed = _differs(out.detach(), other)
        leaks = False
        if len(axes) == 1 and bool(changed.any()):
            leaks = bool(changed.movedim(axes[0], 0)[:-1].any())
        frame = user_frame(self._files)
        place = Place(name, frame.f_code.co_filename, frame.f_lineno) if frame is not None else Place(name, "", 0)
        total = None
        if not axes and bool(changed.any()):
            total = next((token.total for token in given if token.total is not None), None)
            if total is None and name not in MOVES and any(token.axes == 1 for token in given):
                total = place
        if leaks and not any(token.leaks for token in given):
            self.stopped = True
            total = next((token.total for token in given if token.total is not None), None)
            pairs = any(token.axes > 1 for token in given) or "attention" in name or "transformer" in name
            moves = name in MOVES and not (name in SHIFTS and place.file)
            if not pairs and (total is not None or (given and not moves)):
                self.found = (place, total)
        self._known[id(out)] = Token(len(axes), leaks, total)
        self._alive.append(out)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _differs(a: Tensor, b: Tensor) -> Tensor:
    if not (a.is_floating_point() or a.is_complex()):
        return a != b
    size = float(b.abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0
    same = ((a - b).abs() <= 1e-9 * (size or 1.0)) | (a == b) | (a.isnan() & b.isnan())
    return ~same


def find_leak(impl: Implementation, *, padded: bool = False) -> Diagnosis | None:
    """The operation through which the last token reaches earlier outputs, if it is none of attention itself.

    padded: the last token is padding, which must not reach any other.
    """
    length = impl.nearest_length(LENGTH)
    if length < 3 or not impl.aligned:
        return None
    generator = torch.Generator().manual_seed(71)
    x = impl.random_input(2, length, generator)
    other = impl.change_token(x, length - 1, generator)
    files = set(own_files(impl))
    tokens = None
    if padded:
        tokens = torch.ones(2, length, dtype=torch.bool)
        tokens[:, -1] = False
    with torch.no_grad():
        with LeakTrace(length, files) as first:
            impl.run(x, tokens)
        with LeakTrace(length, files, first.results) as second:
            impl.run(other, tokens)
    if second.found is None:
        return None
    place, total = second.found
    if total is not None:
        which, family = ("padded", "padding") if padded else ("later", "leak")
        words = f"`{total.operation}` runs over all tokens, also {which} ones, and its result reaches other outputs"
        return Diagnosis(family, words, line=str(total))
    words = f"`{place.operation}` mixes tokens along the sequence: an earlier one changes with a later one"
    if place.operation in SHIFTS:
        words = f"`{place.operation}` moves later tokens to earlier places"
    if padded:
        return Diagnosis("padding", f"`{place.operation}` mixes padded tokens into real ones", line=str(place))
    return Diagnosis("leak", words, line=str(place))
