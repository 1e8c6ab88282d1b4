"""The line of the user's file that calls the operation at fault, if one run shows which it is.

A line is shown only if the numbers of its operation are wrong: a mask with the pattern that the weights have, a factor,
a cast, a softmax over another axis. A call that is as it should be is never shown, and neither is one of several.

Axes: b batch · t queries · s keys.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from qkv.check.contract import Contract
from qkv.check.hypotheses.formula import Sizes, causal_mask
from qkv.check.implementation import Implementation
from qkv.check.report import Diagnosis
from qkv.check.tracing.recorder import record_attention

LENGTH = 11  # a prime, so that an axis of this size is one of tokens
PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm", "einsum")
SOFTMAXES = ("softmax", "log_softmax")
FUSED = ("scaled_dot_product_attention", "flex_attention", "multi_head_attention_forward")
CASTS = ("to", "half", "bfloat16", "float", "type", "type_as")


@dataclass(frozen=True, eq=False)
class Call:
    """One operation of a run: its name, the user's line, what went in and came out; the softmax may have run before.

    given: the first tensor before the call. numbers: the arguments that are numbers.
    """

    operation: str
    file: str
    line: int
    after_softmax: bool
    given: Tensor | None
    result: Tensor | None
    numbers: tuple[float, ...] = ()
    in_place_on_input: bool = False

    def is_one(self, *names: str) -> bool:
        return self.operation in names

    @property
    def is_square(self) -> bool:
        """Whether the result has an axis of queries and one of keys at the end."""
        return self.result is not None and self.result.ndim > 1 and self.result.shape[-1] == self.result.shape[-2] > 1


class CallTrace(TorchFunctionMode):
    """Records the operations that lines of some files call."""

    def __init__(self, inputs: list[Tensor], own: set[str]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._own = own
        self._storages = {x.untyped_storage().data_ptr() for x in inputs}
        self._after = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        frame = user_frame(self._own) if name else None
        leaves = tree_leaves((args, kwargs))
        first = next((x for x in leaves if isinstance(x, Tensor)), None)
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        changed = writes and first is not None and first.untyped_storage().data_ptr() in self._storages
        before = None if first is None or frame is None else first.detach().clone()
        result = func(*args, **kwargs)
        if frame is not None:
            out = first if name == "__setitem__" else result
            after = out.detach().clone() if isinstance(out, Tensor) else None
            numbers = tuple(float(x) for x in leaves if isinstance(x, int | float) and not isinstance(x, bool))
            place = frame.f_code.co_filename, frame.f_lineno
            self.calls.append(Call(name, *place, self._after, before, after, numbers, changed))
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


def trace_calls(impl: Implementation, length: int = LENGTH) -> tuple[list[Call], Tensor | None]:
    """The operations of one run that the user's code calls, and which keys its queries see (t, s), if that shows."""
    length = impl.nearest_length(length)
    x = impl.random_input(2, length, torch.Generator().manual_seed(24))
    tokens = None
    if impl.takes_padding and length > 2:
        tokens = torch.ones(2, length, dtype=torch.bool)
        tokens[0, -2:] = False
    with record_attention(impl.module, 2) as found, CallTrace([x], set(own_files(impl))) as trace:
        impl.run(x, tokens)
    patterns = [attention.attended[1].any(0) for attention in found[0].attentions]
    return trace.calls, next((seen for seen in patterns if seen.shape == (length, length)), None)


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
    evidence = EVIDENCE.get(cause.family)
    if evidence is None:
        return ""
    try:
        with _mode(impl, training="in training" in cause.condition):
            calls, seen = trace_calls(impl, _length_of(cause, contract))
    except Exception:  # no line is better than an error on top of the findings
        return ""
    facts = Facts(cause, contract, seen)
    found = next((found for proves in evidence if (found := [call for call in calls if proves(call, facts)])), [])
    if cause.family in FIRST:
        found = found[:1]
    lines = {(call.file, call.line) for call in found}
    return _describe(found[0]) if len(lines) == 1 else ""


@dataclass(frozen=True)
class Facts:
    """What is known of a bug; seen: which keys the queries of the traced run see (t, s)."""

    cause: Diagnosis
    contract: Contract
    seen: Tensor | None

    def says(self, *words: str) -> bool:
        return any(word in self.cause.words for word in words)


def _wrong_mask(call: Call, facts: Facts) -> bool:
    """It makes the pattern that queries see, or what it hides, and that pattern is wrong."""
    if not call.is_square or call.result is None or facts.seen is None or call.result.shape[-1] != len(facts.seen):
        return False
    t = len(facts.seen)
    right = causal_mask(Sizes(1, 1, 1, t, t, 1), facts.contract.window)
    x = call.result.flatten(0, -3)[-1] if call.result.ndim > 2 else call.result
    pattern = x if x.dtype == torch.bool else x > -1e4 if bool((x < -1e4).any()) else x != 0
    causal = facts.contract.kind in ("causal", "window") and torch.equal(facts.seen, right)
    return not causal and any(torch.equal(pattern, seen) for seen in (facts.seen, ~facts.seen))


def _soft_fill(call: Call, facts: Facts) -> bool:
    """It puts a moderate number in place of masked scores, or multiplies them by 0."""
    numbers = [number for number in call.numbers if 0 < abs(number) < 1e6]
    if facts.says("multiplied by 0"):
        zeros = call.given is not None and call.result is not None and call.given.shape == call.result.shape
        zeros = zeros and bool(((call.result == 0) & (call.given != 0)).any())  # pyright: ignore
        return zeros and call.is_square and not call.after_softmax
    if call.is_one("masked_fill", "masked_fill_", "where", "__setitem__"):
        return call.is_square and bool(numbers) and not call.after_softmax
    return call.is_one("full", "full_like") and call.is_square and bool(numbers)


def _late_mask(call: Call, facts: Facts) -> bool:
    """After the softmax it sets entries to zero."""
    if not (call.after_softmax and call.is_square and call.given is not None and call.result is not None):
        return False
    same = call.given.shape == call.result.shape
    return same and bool(((call.result == 0) & (call.given != 0)).any()) and not call.is_one("dropout", "detach")


def _scaling(call: Call, facts: Facts) -> bool:
    """Before the softmax it multiplies queries, keys or scores by one number."""
    if facts.says("missing"):
        return call.is_one(*PRODUCTS) and call.is_square and not call.after_softmax
    x, y = call.given, call.result
    if call.after_softmax or x is None or y is None or x.shape != y.shape or x.ndim < 3 or not y.is_floating_point():
        return False
    use = x.abs() > 1e-6
    ratio = y[use] / x[use]
    same = bool(use.any()) and float((ratio - ratio[0]).abs().max()) <= 1e-6 * float(ratio[0].abs())
    return same and abs(float(ratio[0]) - 1) > 1e-6 and call.operation not in CASTS


def _cast(call: Call, facts: Facts) -> bool:
    """It rounds to the dtype that the words name, or to any lower one."""
    if not call.is_one(*CASTS) or call.given is None or call.result is None:
        return False
    named = [dtype for dtype in LOW if str(dtype).removeprefix("torch.") in facts.cause.words] or list(LOW)
    return call.result.dtype in named and call.result.dtype != call.given.dtype


LOW = (torch.bfloat16, torch.float16, torch.float32)


def _replaced(call: Call, facts: Facts) -> bool:
    return call.is_one("sigmoid", "relu", "exp", "exp2", "softplus", "elu", "square") and call.is_square


def _changed_scores(call: Call, facts: Facts) -> bool:
    return call.is_one("clamp", "clip", "normalize", "tanh", "abs", "relu") and not call.after_softmax


def _split_or_merge(call: Call, facts: Facts) -> bool:
    """It makes heads of tokens, or tokens of heads, by a view alone; or it reduces the heads."""
    x, y = call.given, call.result
    if x is None or y is None:
        return False
    if facts.says("averaged", "summed"):
        return call.after_softmax and call.is_one("mean", "sum") and x.ndim == 4 and y.ndim >= 3
    if not call.is_one("view", "reshape", "flatten", "unflatten"):
        return False
    if facts.says("split into heads"):
        return x.ndim == 3 and y.ndim == 4 and y.shape[2] == x.shape[1] != y.shape[1]
    return facts.says("merged without") and x.ndim == 4 and y.ndim == 3 and y.shape[1] == x.shape[2] != x.shape[1]


def _shared_heads(call: Call, facts: Facts) -> bool:
    return call.is_one("repeat", "tile") if facts.says("tiled") else call.is_one("repeat_interleave", "expand")


def _random(call: Call, facts: Facts) -> bool:
    if (
        call.is_one("dropout", "feature_dropout", "alpha_dropout")
        and call.given is not None
        and call.result is not None
    ):
        return not torch.equal(call.given, call.result)
    return call.is_one("rand_like", "bernoulli", "rand", "randn_like", "randn")


def _mixes_rows(call: Call, facts: Facts) -> bool:
    """It reduces the axis of the batch, or norms over it."""
    if call.is_one("batch_norm"):
        return True
    x, y = call.given, call.result
    reduces = call.is_one("mean", "std", "var", "sum", "amax", "max", "norm") and x is not None and y is not None
    return reduces and x is not None and y is not None and x.shape[:1] == (2,) and y.shape[:1] != (2,)


def _is(*names: str) -> Callable[[Call, Facts], bool]:
    return lambda call, facts: call.is_one(*names)


# for each bug family the signs of the operation at fault; the second is looked for if nothing shows the first
EVIDENCE: dict[str, tuple[Callable[[Call, Facts], bool], ...]] = {
    "no mask": (_is(*SOFTMAXES, *FUSED),),
    "mask off by one": (_wrong_mask,),
    "mask transposed": (_wrong_mask,),
    "mask not −∞": (_soft_fill,),
    "mask after softmax": (_late_mask,),
    "window": (_wrong_mask,),
    "leak": (_wrong_mask,),
    "truncated": (_wrong_mask,),
    "softmax axis": (_is(*SOFTMAXES),),
    "softmax replaced": (_replaced,),
    "overflow": (_is("exp", "exp2"),),
    "scale": (_scaling, _is(*FUSED)),
    "scores changed": (_changed_scores,),
    "low precision": (_cast,),
    "fully masked row": (_is(*SOFTMAXES, *FUSED),),
    "heads mixed": (_split_or_merge,),
    "head layout": (_shared_heads,),
    "random in eval": (_random,),
    "detached": (_is("detach", "item", "numpy", "detach_"),),
    "batch mixed": (_mixes_rows,),
    "input changed": (lambda call, facts: call.in_place_on_input,),
}
FIRST = (
    "mask off by one",
    "mask transposed",
    "window",
    "leak",
    "truncated",
    "input changed",
)  # later ones follow from it


@contextmanager
def _mode(impl: Implementation, *, training: bool) -> Iterator[None]:
    if impl.module is not None and training:
        impl.module.train()
    try:
        with torch.set_grad_enabled(training):
            yield
    finally:
        if impl.module is not None:
            impl.module.eval()


def _length_of(cause: Diagnosis, contract: Contract) -> int:
    """A length at which a bug acts: beyond the numbers of tokens that its words, or the contract, name."""
    if "single token" in cause.condition:
        return 1
    if (found := re.search(r"from (\d+) tokens on", cause.condition)) is not None:
        return int(found.group(1)) + 1
    named = [int(number) for number in re.findall(r"\b\d+\b", cause.words) if 8 <= int(number) <= 256]
    return max([LENGTH, *(number + 3 for number in named), *([] if contract.window is None else [contract.window + 3])])


def _describe(call: Call) -> str:
    code = linecache.getline(call.file, call.line).strip()
    return f"{Path(call.file).name}:{call.line}: {code}" if code else ""
