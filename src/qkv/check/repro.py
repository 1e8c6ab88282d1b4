"""--repro: the smallest counter-example found, as a stand-alone script of about ten lines that needs only torch.

A failed check becomes a relation that right code keeps, such as "changing the last token changes no earlier output".
The script is tried at growing sizes, simple values first; the first that fails is run once more by itself and written.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling import TargetLoader, make_implementation, target_name
from qkv.check.catalog import find_id
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.relations import RELATIONS, Relation, formula_relation, write_lines
from qkv.check.report import Report

# (rows, tokens): small ones first, then those just above usual block sizes
SIZES = (
    (1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (1, 4), (2, 3), (1, 5), (1, 6), (1, 8), (3, 4), (1, 9), (2, 9), (1, 12),
    (1, 13), (1, 17), (2, 17), (1, 18), (1, 33), (1, 34), (1, 49), (1, 65), (1, 66), (1, 101), (1, 129), (1, 130),
    (1, 257), (1, 258),
)  # fmt: skip
VALUES = ("torch.arange({n}).view({shape}) * 0.37 % 2 - 1", "torch.randn({shape})")


@dataclass(frozen=True)
class CapturedCall:
    """How the script builds and calls a target: code with the placeholders b and t, and q, k, v or x."""

    build: tuple[str, ...]
    call: str
    features: int
    tokens: int | None
    is_function: bool
    triangle: str = "tril()"


def make_repro(
    target: str, report: Report, contract: Contract, arguments: dict[str, Any] | None = None, call: str | None = None
) -> str:
    """The text of the script; a ValueError says why there is none."""
    where, _, name = target.rpartition(":")
    if not where.endswith(".py"):
        raise ValueError(f"--repro needs a target in a file, such as model.py:Attention; got {target}")
    if not report.failed:
        raise ValueError("--repro needs a failed check; nothing failed")
    found = TargetLoader().find(target)
    with _remember_arguments(found) as built:
        impl = make_implementation(found, target_name(target), contract, arguments=arguments, call=call)
    captured = _capture(impl, name, built, found)
    if contract.kind != "causal":
        captured = replace(captured, triangle="bool()")
    head = _head(report, target, Path(where).resolve())
    for relation in _relations(impl, contract, report, captured):
        for script in _scripts(relation, captured, head):
            if _fails(script) and _fails_alone(script):
                return script
    failed = ", ".join(dict.fromkeys(find_id(finding.check) for finding in report.failed))
    raise ValueError(f"no stand-alone script reproduces what failed ({failed}); the report says how it was measured")


def _head(report: Report, target: str, file: Path) -> list[str]:
    cause = report.diagnosis
    words = cause.mistake if cause is not None else report.failed[0].evidence
    return [
        f"# {target}: {words}",
        "import importlib.util, sys, torch",
        f"spec = importlib.util.spec_from_file_location('target', (sys.argv[1:] or [{str(file)!r}])[0])",
        "target = sys.modules['target'] = importlib.util.module_from_spec(spec); spec.loader.exec_module(target)",
        "torch.manual_seed(0); torch.set_default_dtype(torch.float64)",
    ]


# -- how the target is built and called --------------------------------------------------------------------------------


@contextlib.contextmanager
def _remember_arguments(found: Any) -> Iterator[list[tuple[tuple, dict[str, Any]]]]:
    """The arguments with which a class is built inside the block."""
    seen: list[tuple[tuple, dict[str, Any]]] = []
    if not isinstance(found, type):
        yield seen
        return
    original = found.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **named: Any) -> None:
        if type(self) is found:
            seen.append((args, named))
        original(self, *args, **named)

    found.__init__ = init
    try:
        yield seen
    finally:
        found.__init__ = original


def _capture(impl: Implementation, name: str, built: list[tuple[tuple, dict[str, Any]]], found: Any) -> CapturedCall:
    """Record one call of the target and write it as code."""
    b, t = 2, 5
    if impl.attention is not None:
        return CapturedCall((), _function_call(impl, name), 0, None, True)
    if impl.module is None:
        raise ValueError("--repro needs a function of q, k, v, or a module")
    x = impl.random_input(b, t, torch.Generator().manual_seed(5))
    seen: list[tuple[tuple, dict[str, Any], Any]] = []
    forward = impl.module.forward

    def remember(*args: Any, **named: Any) -> Any:
        result = forward(*args, **named)
        seen.append((args, named, result))
        return result

    impl.module.forward = remember
    try:
        with torch.no_grad():
            out = impl.run(x)
    finally:
        del impl.module.forward
    if not seen:
        raise ValueError("--repro could not see how the target is called")
    args, named, result = seen[0]
    parts = [_value_code(value, x, b, t) for value in args]
    parts += [f"{key}={_value_code(value, x, b, t)}" for key, value in named.items() if value is not None]
    if isinstance(found, nn.Module):
        make = [f"layer = target.{name}.double().eval()"]
    else:
        given, keywords = built[-1] if built else ((), {})
        words = [_argument_code(value, found) for value in given]
        words += [f"{key}={_argument_code(value, found)}" for key, value in keywords.items()]
        make = [f"layer = target.{name}({', '.join(words)}).double().eval()"]
    make += ["[p.data.normal_(0, 0.4) for p in layer.parameters() if p.requires_grad]"]
    selected = _select_code(result, out)
    return CapturedCall(
        tuple(make), f"layer({', '.join(parts)}){selected}", impl.dim or 0, impl.vocab_size, is_function=False
    )


def _function_call(impl: Implementation, name: str) -> str:
    """The call of a function of q, k, v, with its causal flag if the contract uses it."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, 4, 5, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    seen: list[tuple[tuple, dict[str, Any]]] = []
    call: Any = impl.attention
    function = getattr(call, "function", None)
    if function is None:
        raise ValueError("--repro cannot see how this function is called")

    def remember(*args: Any, **named: Any) -> Any:
        seen.append((args, named))
        return function(*args, **named)

    object.__setattr__(call, "function", remember)
    try:
        with torch.no_grad():
            out = call(q, k, v, causal=True) if impl.causal_flag else call(q, k, v)
            result = function(*seen[-1][0], **seen[-1][1])
    finally:
        object.__setattr__(call, "function", function)
    args, named = seen[-1]
    known = {"q": q, "k": k, "v": v}
    parts = [_tensor_name(value, known) for value in args]
    parts += [f"{key}={_tensor_name(value, known)}" for key, value in named.items()]
    selected = "" if isinstance(result, Tensor) else "[0]"
    text = f"target.{name}({', '.join(parts)}){selected}"
    first = result if isinstance(result, Tensor) else result[0]
    return f"{text}.transpose(1, 2)" if first.shape != out.shape or not torch.equal(first, out) else text


def _tensor_name(value: Any, known: dict[str, Tensor]) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    for name, tensor in known.items():
        if value.shape == tensor.shape and torch.equal(value, tensor):
            return name
        if (
            value.ndim == 4
            and value.shape == tensor.transpose(1, 2).shape
            and torch.equal(value.transpose(1, 2), tensor)
        ):
            return f"{name}.transpose(1, 2)"
    raise ValueError("--repro cannot write this call: it passes tensors that are made of q, k and v")


def _value_code(value: Any, x: Tensor, b: int, t: int) -> str:
    """An argument of a module as code in x, b and t."""
    if not isinstance(value, Tensor):
        return repr(value)
    if value.shape == x.shape and torch.equal(value, x):
        return "x"
    if value.ndim == x.ndim and value.shape == x.transpose(0, 1).shape and torch.equal(value, x.transpose(0, 1)):
        return "x.transpose(0, 1)"
    lower = torch.ones(t, t, dtype=torch.bool).tril()
    masks = {"torch.ones(t, t, dtype=torch.bool).tril()": lower, "torch.ones(t, t, dtype=torch.bool).triu(1)": ~lower}
    masks["torch.full((t, t), float('-inf')).triu(1)"] = torch.zeros(t, t).masked_fill(~lower, float("-inf"))
    shapes = {"": (t, t), "[None]": (1, t, t), "[None, None]": (1, 1, t, t)}
    shapes |= {".expand(b, t, t)": (b, t, t), ".expand(b, 1, t, t)": (b, 1, t, t)}
    for code, mask in masks.items():
        for index, shape in shapes.items():
            if value.shape == shape and torch.equal(value.double(), mask.expand(shape).double()):
                cast = "" if value.dtype in (mask.dtype, x.dtype) else f".to({value.dtype})"
                return f"({code}){index}{cast}"
    ones = torch.ones(b, t)
    for code, tensor in (
        ("torch.ones(b, t, dtype=torch.bool)", ones),
        ("torch.zeros(b, t, dtype=torch.bool)", 0 * ones),
    ):
        if value.shape == tensor.shape and torch.equal(value.double(), tensor.double()):
            return code if value.dtype == torch.bool else f"{code}.to({value.dtype})"
    if value.shape == (t,) and torch.equal(value.long(), torch.arange(t)):
        return "torch.arange(t)"
    raise ValueError("--repro cannot write this call: it passes a tensor that is not made of the input")


def _argument_code(value: Any, found: Any) -> str:
    """A constructor argument as code."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if is_dataclass(value) and type(value).__module__ == getattr(found, "__module__", ""):
        return f"target.{value!r}"
    if isinstance(value, SimpleNamespace):
        source = Path(sys.modules[found.__module__].__file__ or "").read_text(encoding="utf-8")
        used = {k: v for k, v in vars(value).items() if re.search(rf"\b{re.escape(k)}\b", source)}
        return f"__import__('types').SimpleNamespace({', '.join(f'{k}={v!r}' for k, v in used.items())})"
    if isinstance(value, tuple | list) and all(isinstance(part, bool | int | float | str) for part in value):
        return repr(value)
    raise ValueError(f"--repro cannot write the constructor argument {value!r}: pass --args")


def _select_code(result: Any, out: Tensor) -> str:
    """How the output is taken from what the target returns."""

    def same(part: Any) -> str | None:
        if not isinstance(part, Tensor) or part.numel() != out.numel():
            return None
        if part.shape == out.shape and torch.equal(part.to(out), out):
            return ""
        if part.ndim == 3 and torch.equal(part.transpose(0, 1).reshape(out.shape).to(out), out):
            return ".transpose(0, 1)"
        return None

    if (end := same(result)) is not None:
        return end
    parts: list[tuple[str, Any]] = []
    if isinstance(result, tuple | list):
        parts = [(f"[{number}]", part) for number, part in enumerate(result)]
    elif isinstance(result, dict):
        parts = [(f"[{key!r}]", part) for key, part in result.items()]
    elif hasattr(result, "__dict__"):
        parts = [(f".{key}", part) for key, part in vars(result).items()]
    for code, part in parts:
        if (end := same(part)) is not None:
            return code + end
    raise ValueError("--repro cannot write how the output is taken from what the target returns")


# -- trying ------------------------------------------------------------------------------------------------------------


def _relations(impl: Implementation, contract: Contract, report: Report, captured: CapturedCall) -> Iterator[Relation]:
    """The relations of the failed checks, in the order of the report; then all others that the contract implies."""
    failed = list(dict.fromkeys(find_id(finding.check) for finding in report.failed))
    usable = [relation for relation in RELATIONS if relation.holds(contract, captured.is_function, captured.tokens)]
    chosen = [relation for key in failed for relation in usable if key in relation.checks]
    yield from dict.fromkeys(chosen)
    formula = formula_relation(impl, contract)
    if formula is not None:
        yield formula
    yield from (relation for relation in usable if relation not in chosen and relation.causal)


def _scripts(relation: Relation, captured: CapturedCall, head: list[str]) -> Iterator[str]:
    for b, t in SIZES:
        if b < relation.min_rows or t < relation.min_tokens:
            continue
        for values in VALUES:
            if captured.is_function:
                shape = f"{b}, {relation.heads}, {t}, {relation.head_dim}"
                count = b * relation.heads * t * relation.head_dim
                drawn = values.format(n=count, shape=shape)
                inputs = ["def f(q, k, v): return " + captured.call]
                if "randn" in values:
                    inputs += [f"x = torch.randn(3, {shape})"]
                else:
                    inputs += [f"x = torch.stack([({drawn}).roll(i, -1) * (i + 1) / 2 for i in range(3)])"]
            else:
                shape = f"{b}, {t}" if captured.tokens else f"{b}, {t}, {captured.features}"
                count = b * t * (1 if captured.tokens else captured.features)
                drawn = values.format(n=count, shape=shape)
                if captured.tokens:
                    drawn = f"torch.randint(3, {captured.tokens}, ({shape}))"
                sizes = "b, t = x.shape[:2]; " if re.search(r"\b[bt]\b", captured.call) else ""
                inputs = [*captured.build, f"def f(x): {sizes}return {captured.call}"]
                inputs += [f"x = {drawn}"]
            yield (
                "\n".join([*head, *inputs, *write_lines(relation, captured.is_function)]).replace(
                    "{triangle}", captured.triangle
                )
                + "\n"
            )


def _fails(script: str) -> bool:
    """Whether the script raises an AssertionError of its own in this process."""
    before, arguments, path = torch.get_default_dtype(), sys.argv, list(sys.path)
    try:
        sys.argv = ["repro.py"]
        with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(), torch.enable_grad():
            exec(compile(script, "<repro>", "exec"), {"__name__": "__main__"})
    except AssertionError as error:
        return str(error).startswith("counter-example: ")
    except Exception:  # this relation does not fit the target
        return False
    finally:
        torch.set_default_dtype(before)
        sys.argv, sys.path[:] = arguments, path
        sys.modules.pop("target", None)
    return False


def _fails_alone(script: str) -> bool:
    """Whether the script fails in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "repro.py"
        file.write_text(script, encoding="utf-8")
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode == 1 and "AssertionError: counter-example" in done.stderr
