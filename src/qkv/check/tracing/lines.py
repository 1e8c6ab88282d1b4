"""The line of the user's file that calls the operation at fault, where the calls of one run show it.

Axes: t queries · s keys.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import Diagnosis

LENGTH = 11  # a prime, so that an axis of this size is one of tokens
PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm", "einsum")
SOFTMAXES = ("softmax", "log_softmax")
FUSED = ("scaled_dot_product_attention", "flex_attention", "multi_head_attention_forward")
FILLS = ("masked_fill", "masked_fill_", "where", "__setitem__", "full", "full_like")
TRIANGLES = (
    "tril", "triu", "tril_", "triu_", "__le__", "__ge__", "__lt__", "__gt__", "le", "ge", "lt", "gt", "tril_indices",
    "triu_indices",
)  # fmt: skip
SCALINGS = (
    "__mul__",
    "__rmul__",
    "mul",
    "mul_",
    "__truediv__",
    "div",
    "div_",
    "true_divide",
    "__imul__",
    "__itruediv__",
)
VIEWS = ("view", "reshape", "flatten", "unflatten", "rearrange")
CASTS = ("to", "half", "bfloat16", "float", "type", "type_as")
ROTATIONS = ("cos", "sin", "polar", "outer", "view_as_complex")
# for each bug family the operations to look for, in order of preference; "after softmax:" limits them to those after it
OPERATIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "no mask": (SOFTMAXES, FUSED),
    "mask off by one": (TRIANGLES, FILLS, FUSED),
    "mask transposed": (TRIANGLES, FILLS, FUSED),
    "mask not −∞": (FILLS, SOFTMAXES),
    "mask after softmax": (("after softmax", *FILLS, *SCALINGS),),
    "mask polarity": (FILLS, FUSED),
    "mask with cache": (TRIANGLES, FILLS, FUSED),
    "alignment": (TRIANGLES, FUSED, FILLS),
    "mask dropped": (FILLS, FUSED, SOFTMAXES),
    "window": (TRIANGLES, FILLS, FUSED),
    "leak": (("mean", "cumsum", "std", "var"), TRIANGLES, FILLS, FUSED),
    "softmax axis": (SOFTMAXES, ("exp",)),
    "softmax replaced": (("sigmoid", "relu", "exp", "exp2"), SOFTMAXES),
    "overflow": (("exp", "exp2"), SOFTMAXES),
    "scale": (("before softmax", *SCALINGS), FUSED, PRODUCTS),
    "scores changed": (("clamp", "clip", "normalize", "tanh", "abs", "relu"), PRODUCTS),
    "low precision": (CASTS, SOFTMAXES),
    "fully masked row": (SOFTMAXES, FUSED),
    "heads mixed": (("after softmax", "mean", "sum"), ("last", *VIEWS)),
    "head layout": (("repeat", "repeat_interleave", "expand", "tile"),),
    "inputs swapped": (PRODUCTS, FUSED),
    "rotary": (ROTATIONS, ("cat", "stack")),
    "alibi": (("__pow__", "pow", "__rpow__", "exp2"),),
    "padding": (FILLS, FUSED, SOFTMAXES),
    "random in eval": (("dropout", "rand_like", "bernoulli", "rand", "randn_like"),),
    "detached": (("detach", "item", "numpy", "detach_"),),
    "block": (("exp", "logsumexp"), SOFTMAXES),
    "cache order": (("cat", "concat", "index_copy_", "__setitem__"),),
    "positions with cache": (("arange",), ROTATIONS),
    "positions": (("arange", "embedding"),),
    "batch mixed": (("mean", "std", "var", "batch_norm", *VIEWS),),
}


@dataclass(frozen=True)
class Call:
    """One operation of a run: its name, the user's line, and whether the softmax had run before."""

    operation: str
    file: str
    line: int
    after_softmax: bool
    in_place_on_input: bool = False


class CallTrace(TorchFunctionMode):
    """Records the operations that lines of some files call."""

    def __init__(self, inputs: list[Tensor], own: set[str]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._own = own
        self._storages = {x.untyped_storage().data_ptr() for x in inputs}
        self._after = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", "")
        frame = user_frame(self._own)
        if frame is not None and name:
            first = args[0] if args and isinstance(args[0], Tensor) else None
            writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
            changed = writes and first is not None and first.untyped_storage().data_ptr() in self._storages
            self.calls.append(Call(name, frame.f_code.co_filename, frame.f_lineno, self._after, changed))
        result = func(*args, **(kwargs or {}))
        if name in SOFTMAXES or name in FUSED:
            self._after = True
        return result


def user_frame(own: set[str]) -> FrameType | None:
    """The innermost frame of the user's code that called this; None below qkv, whose caller is not the code under test.

    Args:
        own: files that count as the user's wherever they are.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file in own or not file.startswith((*_LIBRARIES, "<")):
            return frame
        frame = None if file.startswith(_QKV) and file not in _TRACERS else frame.f_back
    return None


_TRACERS = (__file__, str(Path(__file__).with_name("leaks.py")))
_QKV = str(Path(__file__).parents[2])
_LIBRARIES = (
    str(Path(torch.__file__).parent),
    _QKV,
    sysconfig.get_paths()["stdlib"],
    sysconfig.get_paths()["purelib"],
)


def trace_calls(impl: Implementation, length: int = LENGTH) -> list[Call]:
    """The operations of one run that the user's code calls."""
    length = impl.nearest_length(length)
    x = impl.random_input(2, length, torch.Generator().manual_seed(24))
    tokens = None
    if impl.takes_padding and length > 2:
        tokens = torch.ones(2, length, dtype=torch.bool)
        tokens[0, -2:] = False
    with CallTrace([x], set(own_files(impl))) as trace:
        impl.run(x, tokens)
    return trace.calls


def own_files(impl: Implementation) -> Iterator[str]:
    found: list[Any] = [] if impl.module is None else [type(part) for part in impl.module.modules()]
    found.append(getattr(impl.attention, "function", None))
    for part in found:
        module = getattr(part, "__module__", "") or ""
        if part is not None and not module.startswith(("torch.", "torch")):
            try:
                yield inspect.getsourcefile(part) or ""
            except (TypeError, OSError):
                continue


def find_line(impl: Implementation, contract: Contract, cause: Diagnosis) -> str:
    """The line of the user's code that calls the operation at fault, as "file.py:12: code"; empty if unknown."""
    wanted = OPERATIONS.get(cause.family)
    if wanted is None and cause.family != "input changed":
        return ""
    try:
        calls = trace_calls(impl, _length_of(cause.condition))
    except Exception:  # no line is better than an error on top of the findings
        return ""
    if cause.family == "input changed":
        return next((_describe(call) for call in calls if call.in_place_on_input), "")
    for names in wanted or ():
        found = [call for call in calls if call.operation in names]
        if names[0] == "after softmax":
            found = [call for call in found if call.after_softmax]
        if names[0] == "before softmax":
            found = [call for call in found if not call.after_softmax][::-1]
        if names[0] == "last":
            found = found[::-1]
        if "split into heads" in cause.words:
            found = found[::-1]
        if found:
            return _describe(found[0])
    return ""


def _length_of(condition: str) -> int:
    """A length at which a bug acts."""
    if "single token" in condition:
        return 1
    found = re.search(r"from (\d+) tokens on", condition)
    return int(found.group(1)) + 1 if found else LENGTH


def _describe(call: Call) -> str:
    code = linecache.getline(call.file, call.line).strip()
    return f"{Path(call.file).name}:{call.line}: {code}" if code else ""
