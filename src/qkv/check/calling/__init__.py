"""How to call what is checked: from a function, class, module or name to an `Implementation`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from torch import nn

from qkv.check.calling.declared import declared_implementation, parse_call
from qkv.check.calling.functions import function_implementation, is_attention_function
from qkv.check.calling.hugging_face import hugging_face_implementation
from qkv.check.calling.modules import module_implementation
from qkv.check.calling.targets import TargetLoader, build
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation

__all__ = ["TargetLoader", "make_implementation", "target_name"]


def target_name(target: Any) -> str:
    """The name of a target for the report: that of `file.py:Name`, of a function, or of an object's class."""
    if isinstance(target, str):
        return target if target.startswith("hf:") else target.rpartition(":")[2]
    return getattr(target, "__name__", type(target).__name__)


def make_implementation(
    found: Any,
    name: str,
    contract: Contract,
    arguments: dict[str, Any] | None = None,
    call: str | None = None,
) -> Implementation:
    """An object as an implementation; its `how` says how it is called and built.

    Args:
        found: a function, a class, a module, a checkpoint folder, or hf:Architecture.
        arguments: for the constructor of a class, or fields of a Hugging Face config.
        call: the call as the user declares it (`qkv.check.calling.declared`).
    """
    if isinstance(found, str):
        if found.startswith("hf:"):
            return hugging_face_implementation(found.removeprefix("hf:"), contract, arguments)
        from qkv.checkpoints import load

        impl = module_implementation(load(found), found, contract, random_weights=False)
        return replace(impl, how=f"{impl.how}, with the weights of {found}")
    declared = None if call is None else parse_call(call)
    if declared is not None and "q" in declared.words:
        return declared_implementation(build(found, arguments)[0], name, contract, declared)
    if is_attention_function(found):
        return function_implementation(found, name, contract)
    module, built_as = build(found, arguments)
    if not isinstance(module, nn.Module):
        kind = "class" if inspect.isclass(found) else type(module).__name__
        raise ValueError(f"{name} is neither a function of q, k, v nor a torch.nn.Module; got a {kind}")
    if declared is not None:
        impl = declared_implementation(module, name, contract, declared)
    else:
        impl = module_implementation(module, name, contract)
    return replace(impl, how=f"{impl.how}, built as {built_as}") if built_as else impl
