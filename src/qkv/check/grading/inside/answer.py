"""In the submission's own process: run its file, call what was asked for, write down the tensors that came back.

Nothing here is trusted by the grader: a submission may change it at will, and gets only its own tensors written.
"""

import os
import random
import sys
import traceback
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from . import wire

PLACE = "/submission/submission.py"
LONGEST = 300  # letters of an error that are handed back


def answer(request: int, result: int, source: str) -> None:
    """Read the request from one file, write the reply to the other."""
    try:
        with os.fdopen(request, "rb", closefd=False) as file:
            file.seek(0)
            tensors, words = wire.decode(file.read())
        reply = _reply(tensors, words, source)
    except BaseException as error:
        reply = wire.encode({}, {"error": _said(error), "stage": getattr(error, "stage", "call")})
    with os.fdopen(result, "wb", closefd=False) as file:
        file.seek(0)
        file.write(reply)


def _reply(tensors: dict[str, Tensor], words: dict[str, Any], source: str) -> bytes:
    torch.manual_seed(words["seed"])
    random.seed(words["seed"])
    if words["dtype"] == "float64":
        torch.set_default_dtype(torch.float64)  # tables and masks that a submission makes are then exact too
    module = _run_file(source)
    found = _staged("name", lambda: _find(module, words["name"]))
    if words["build"] is not None:
        found = _staged("build", lambda: _built(found, words["build"], tensors, words["dtype"]))
    if words["task"] == "describe":
        return _described(found)
    outs: dict[str, Tensor] = {}
    kinds = []
    for number, call in enumerate(words["calls"]):
        kinds.append(_called(found, call, tensors, outs, str(number), words))
    return wire.encode(outs, {"kinds": kinds})


def _staged(stage: str, action: Any) -> Any:
    """Do it, and say of an error at which stage it came."""
    try:
        return action()
    except BaseException as error:
        error.stage = stage  # type: ignore[attr-defined]
        raise


def _run_file(source: str) -> ModuleType:
    module = ModuleType("submission")
    module.__file__ = PLACE
    sys.modules["submission"] = module

    def run() -> None:
        exec(compile(source, PLACE, "exec"), module.__dict__)

    _staged("import", run)
    return module


def _find(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        public = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise NameError(f"there is no {name!r} in it; there are {', '.join(public[:8]) or 'no functions or classes'}")
    return getattr(module, name)


def _built(found: Any, build: dict[str, Any], tensors: dict[str, Tensor], dtype: str) -> Any:
    values = {name: SimpleNamespace(**value) if isinstance(value, dict) else value for name, value in build.items()}
    made = found(**values)
    if not isinstance(made, nn.Module):
        raise TypeError(f"a {type(made).__name__} was built, which is no torch.nn.Module")
    made = made.to(getattr(torch, dtype)).eval()
    given = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")}
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name in given:
                parameter.copy_(given[name])
    return made


def _described(found: Any) -> bytes:
    """Names and sizes of its parameters, and their initial values."""
    if not isinstance(found, nn.Module):
        return wire.encode({}, {"parameters": {}})
    named = dict(found.named_parameters())
    about = {name: {"trained": parameter.requires_grad} for name, parameter in named.items()}
    return wire.encode({f"w.{name}": parameter for name, parameter in named.items()}, {"parameters": about})


def _called(
    found: Any,
    call: dict[str, Any],
    tensors: dict[str, Tensor],
    outs: dict[str, Tensor],
    key: str,
    words: dict[str, Any],
) -> str:
    """Call it once; its outputs, and gradients if a cotangent was sent, are put into `outs`."""
    inputs: dict[str, Tensor] = {}

    def value(said: Any) -> Any:
        if isinstance(said, dict) and "tensor" in said:
            tensor = tensors[said["tensor"]].clone()
            if call.get("slopes") and tensor.is_floating_point():
                inputs[said["tensor"]] = tensor.requires_grad_()
            return tensor
        if isinstance(said, dict) and "random" in said:
            return random.Random(said["random"])
        return said

    places = [value(said) for said in call["places"]]
    named = {name: value(said) for name, said in call["named"].items()}
    with torch.set_grad_enabled(bool(words["grad"])):
        result = found(*places, **named)
    if isinstance(result, str):
        outs[key] = wire.text_tensor(result)
        return "text"
    out = _first_tensor(result)
    outs[key] = out
    if call.get("slopes"):
        _add_slopes(found, out, tensors[call["slopes"]], inputs, outs, key)
    return "tensor"


def _first_tensor(result: Any) -> Tensor:
    if isinstance(result, tuple | list) and result:
        result = result[0]
    if not isinstance(result, Tensor):
        raise TypeError(f"it returned a {type(result).__name__}, not a tensor")
    return result


def _add_slopes(
    found: Any, out: Tensor, along: Tensor, inputs: dict[str, Tensor], outs: dict[str, Tensor], key: str
) -> None:
    leaves = {f"i.{name}": tensor for name, tensor in inputs.items()}
    if isinstance(found, nn.Module):
        leaves |= {f"w.{name}": p for name, p in found.named_parameters() if p.requires_grad}
    if not out.requires_grad or not leaves:
        return
    slopes = torch.autograd.grad(out, list(leaves.values()), along, allow_unused=True)
    outs |= {f"{key}.{name}": slope for name, slope in zip(leaves, slopes, strict=True) if slope is not None}


def _said(error: BaseException) -> str:
    """The error in one line, with the line of the file where it happened."""
    words = (error.msg if isinstance(error, SyntaxError) else str(error)).strip().splitlines()
    said = f"{type(error).__name__}: {words[0] if words else ''}".rstrip(": ")[:LONGEST]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == PLACE]
    if isinstance(error, SyntaxError) and error.filename == PLACE:
        lines = [error.lineno]
    return f"{said} (line {lines[-1]})" if lines else said
