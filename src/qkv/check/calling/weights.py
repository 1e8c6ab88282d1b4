"""Functions of a sequence and of weights, such as attention(x, Wq, Wk, Wv), as modules with random weights."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.functions import array_modes
from qkv.check.calling.names import parameters_of
from qkv.check.calling.outputs import to_torch

DIM, HEADS = 32, 4
MATRIX = re.compile(
    r"(w|weights?|proj|kernel)_?(q|k|v|o|out|qkv|query|key|value|1|2|in|up|down|fc\d?)?|"
    r"(q|k|v|o|out|qkv|c)_?(w|weights?|proj|kernel)|(in|out)_proj(_weight)?"
)
VECTOR = re.compile(r"b_?(q|k|v|o|out|qkv|1|2)|(q|k|v|o|out|qkv|in|out_proj|in_proj)_?(b|bias)")


class FunctionModule(nn.Module):
    """A function of a sequence; parameters that are named like weights become weights of the module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function, self.names = function, []
        try:
            parameters = dict(parameters_of(function))
        except (TypeError, ValueError):
            parameters = {"x": inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY)}
        rest = list(parameters.values())
        for name, parameter in itertools.islice(parameters.items(), 1, None):
            shape = _weight_shape(name)
            if shape is not None and parameter.default in (parameter.empty, None):
                self.register_parameter(f"weight_{name}", nn.Parameter(torch.zeros(shape)))
                self.names.append(name)
                rest.remove(parameter)
        signature = inspect.Signature([p.replace(annotation=p.annotation) for p in rest])
        self.arrays = array_modes(function)[0]
        self.d_model = DIM

        def forward(*positional: Any, **named: Any) -> Any:
            more = {name: getattr(self, f"weight_{name}") for name in self.names}
            if not self.arrays:
                return to_torch(self.function(*positional, **named, **more))
            values = [_as_array(value) for value in positional]
            return to_torch(self.function(*values, **{key: _as_array(value) for key, value in (named | more).items()}))

        forward.__signature__ = signature  # type: ignore[attr-defined]
        self.forward = forward


def _weight_shape(name: str) -> tuple[int, ...] | None:
    """The shape of a weight by its name; None if it is not named like one."""
    low = name.lower()
    if MATRIX.fullmatch(low):
        return (DIM, 3 * DIM) if "qkv" in low else (DIM, DIM)
    return (3 * DIM if "qkv" in low else DIM,) if VECTOR.fullmatch(low) else None


def _as_array(value: Any) -> Any:
    return value.detach().numpy() if isinstance(value, Tensor) else value
