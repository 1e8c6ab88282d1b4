"""Functions attention(q, k, v, …), with a mask or a causal flag where the interface has one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.check.checks.layout import check_layout
from qkv.check.checks.masked import check_masked
from qkv.check.checks.weights import check_weights
from qkv.check.functions import function_subject
from qkv.check.grading.exercises.common import PRODUCERS, Opened, without_gradients
from qkv.check.grading.exercises.exercise import Exercise, Producer
from qkv.check.grading.exercises.layer import MASKED, WEIGHED
from qkv.check.grading.proxy import crossed
from qkv.check.grading.remote import Remote, UnansweredError

if TYPE_CHECKING:
    from qkv.check.grading.rubric import Rubric


def prepare(remote: Remote, rubric: Rubric) -> Opened:
    """The submission as a Python function that check can read the parameters of."""
    extra = [rubric.interface.settings[name] for name in ("mask", "causal") if name in rubric.interface.settings]

    def attention(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Tensor:
        return crossed(remote, (q, k, v), named)

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("q", "k", "v", *extra)]
    attention.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    remote.describe()  # a file that does not run is said to be one before anything is tried
    try:
        with torch.no_grad():
            subject = function_subject(attention, rubric.interface.name, rubric.contract)
    except ValueError as error:
        raise UnansweredError(str(error).split(". Declare")[0]) from None
    return Opened(subject, rubric.contract, nn.Module())


def validate(rubric: Rubric, where: str) -> None:
    if rubric.interface.build is not None:
        raise ValueError(f'{where}: this exercise is a function: function = "…"')
    strange = set(rubric.interface.settings) - {"mask", "causal"}
    if strange:
        raise ValueError(f"{where}: an interface of a function has no {sorted(strange)[0]!r}; it has mask and causal")


FUNCTION = Exercise(
    prepare,
    (
        *(producer for producer in PRODUCERS if producer.checks != ("gradients of parameters",)),
        Producer(WEIGHED, without_gradients(lambda opened: check_weights(opened.subject, opened.contract))),
        Producer(MASKED, lambda opened: check_masked(opened.subject, opened.contract)),
        Producer(
            ("alignment", "grouped heads", "formula"),
            without_gradients(lambda opened: check_layout(opened.subject, opened.contract)),
        ),
    ),
    validate,
)
