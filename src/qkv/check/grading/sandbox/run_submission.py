"""Run a submission in its own process: execute its file, call what was asked for, write the resulting tensors.

The grader trusts nothing here: a submission may change this module, and all it can hand back is tensors.
"""

import os
import random
import sys
import traceback
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from . import messages

SUBMISSION_PATH = "/submission/submission.py"
MAX_ERROR_CHARACTERS = 300


def answer(request_fd: int, result_fd: int, source: str) -> None:
    """Read the request from one file descriptor and write the reply to the other."""
    try:
        with os.fdopen(request_fd, "rb", closefd=False) as file:
            file.seek(0)
            tensors, request = messages.decode(file.read())
        reply = make_reply(tensors, request, source)
    except BaseException as error:
        reply = messages.encode({}, {"error": describe_error(error), "stage": getattr(error, "stage", "call")})
    with os.fdopen(result_fd, "wb", closefd=False) as file:
        file.seek(0)
        file.write(reply)


def make_reply(tensors: dict[str, Tensor], request: dict[str, Any], source: str) -> bytes:
    """Execute the submission and answer one request: describe its parameters, or make calls."""
    torch.manual_seed(request["seed"])
    random.seed(request["seed"])
    if request["dtype"] == "float64":
        torch.set_default_dtype(torch.float64)  # tables and masks that a submission makes are then exact too
    module = _run_file(source)
    target = _at_stage("name", lambda: _find(module, request["name"]))
    if request["build"] is not None:
        target = _at_stage("build", lambda: _build(target, request["build"], tensors, request["dtype"]))
    if request["task"] == "describe":
        return _describe(target)
    outputs: dict[str, Tensor] = {}
    kinds = []
    for number, call in enumerate(request["calls"]):
        kinds.append(_call(target, call, tensors, outputs, str(number), grad=bool(request["grad"])))
    return messages.encode(outputs, {"kinds": kinds})


def _at_stage(stage: str, action: Any) -> Any:
    """Run an action; an error it raises carries the name of the stage."""
    try:
        return action()
    except BaseException as error:
        error.stage = stage  # type: ignore[attr-defined]
        raise


def _run_file(source: str) -> ModuleType:
    module = ModuleType("submission")
    module.__file__ = SUBMISSION_PATH
    sys.modules["submission"] = module

    def run() -> None:
        exec(compile(source, SUBMISSION_PATH, "exec"), module.__dict__)

    _at_stage("import", run)
    return module


def _find(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        public = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise NameError(f"the file defines no {name!r}; it defines {', '.join(public[:8]) or 'no function or class'}")
    return getattr(module, name)


def _build(target: Any, build: dict[str, Any], tensors: dict[str, Tensor], dtype: str) -> Any:
    """Build the class with the rubric's arguments and copy the grader's weights into it."""
    values = {name: SimpleNamespace(**value) if isinstance(value, dict) else value for name, value in build.items()}
    module = target(**values)
    if not isinstance(module, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got a {type(module).__name__}")
    module = module.to(getattr(torch, dtype)).eval()
    weights = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith("w.")}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    return module


def _describe(target: Any) -> bytes:
    """The names, sizes and initial values of its parameters."""
    if not isinstance(target, nn.Module):
        return messages.encode({}, {"parameters": {}})
    named = dict(target.named_parameters())
    about = {name: {"trainable": parameter.requires_grad} for name, parameter in named.items()}
    return messages.encode({f"w.{name}": parameter for name, parameter in named.items()}, {"parameters": about})


def _call(
    target: Any, call: dict[str, Any], tensors: dict[str, Tensor], outputs: dict[str, Tensor], key: str, *, grad: bool
) -> str:
    """Make one call; put its output into `outputs`, and the gradients too if the request has a `grad_output`."""
    inputs: dict[str, Tensor] = {}

    def value(sent: Any) -> Any:
        if isinstance(sent, dict) and "tensor" in sent:
            tensor = tensors[sent["tensor"]].clone()
            if call.get("grad_output") and tensor.is_floating_point():
                inputs[sent["tensor"]] = tensor.requires_grad_()
            return tensor
        if isinstance(sent, dict) and "random" in sent:
            return random.Random(sent["random"])
        return sent

    args = [value(sent) for sent in call["args"]]
    kwargs = {name: value(sent) for name, sent in call["kwargs"].items()}
    with torch.set_grad_enabled(grad):
        result = target(*args, **kwargs)
    if isinstance(result, str):
        outputs[key] = messages.text_to_tensor(result)
        return "text"
    out = _first_tensor(result)
    outputs[key] = out
    if call.get("grad_output"):
        _add_gradients(target, out, tensors[call["grad_output"]], inputs, outputs, key)
    return "tensor"


def _first_tensor(result: Any) -> Tensor:
    if isinstance(result, tuple | list) and result:
        result = result[0]
    if not isinstance(result, Tensor):
        raise TypeError(f"expected a tensor as the result, got a {type(result).__name__}")
    return result


def _add_gradients(
    target: Any, out: Tensor, grad_output: Tensor, inputs: dict[str, Tensor], outputs: dict[str, Tensor], key: str
) -> None:
    leaves = {f"i.{name}": tensor for name, tensor in inputs.items()}
    if isinstance(target, nn.Module):
        leaves |= {f"w.{name}": p for name, p in target.named_parameters() if p.requires_grad}
    if not out.requires_grad or not leaves:
        return
    gradients = torch.autograd.grad(out, list(leaves.values()), grad_output, allow_unused=True)
    for name, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None:
            outputs[f"{key}.{name}"] = gradient


def describe_error(error: BaseException) -> str:
    """The error in one line, with the line of the submission where it happened."""
    lines = (error.msg if isinstance(error, SyntaxError) else str(error)).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")[:MAX_ERROR_CHARACTERS]
    numbers = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == SUBMISSION_PATH]
    if isinstance(error, SyntaxError) and error.filename == SUBMISSION_PATH:
        numbers = [error.lineno]
    return f"{text} (line {numbers[-1]})" if numbers else text
