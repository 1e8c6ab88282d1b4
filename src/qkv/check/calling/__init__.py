"""How to call what is checked: from a function, class, module or name to an `Implementation`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from qkv.check.calling.adapter import adapter_implementation, load_adapter
from qkv.check.calling.building import build, is_factory
from qkv.check.calling.declared import declared_implementation, parse_call
from qkv.check.calling.functions import function_implementation, is_attention_function
from qkv.check.calling.hugging_face import hugging_face_implementation
from qkv.check.calling.loading import TargetLoader
from qkv.check.calling.modules import module_implementation
from qkv.check.calling.names import parameters_of, qkv_names
from qkv.check.calling.weights import FunctionModule
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
    adapter: Path | str | None = None,
) -> Implementation:
    """An object as an implementation; its `how` says how it is called and built.

    Args:
        found: a function, a class, a module, a checkpoint folder, or hf:Architecture.
        arguments: for the constructor of a class, or fields of a Hugging Face config.
        call: the call as the user declares it (`qkv.check.calling.declared`).
        adapter: a file whose functions call it (`qkv.check.calling.adapter`).
    """
    if adapter is not None:
        return adapter_implementation(found, name, contract, load_adapter(Path(adapter)), arguments)
    if isinstance(found, str):
        if found.startswith("hf:"):
            return hugging_face_implementation(found.removeprefix("hf:"), contract, arguments)
        from qkv.checkpoints import load

        impl = module_implementation(load(found), found, contract, random_weights=False)
        return replace(impl, how=f"{impl.how}, with the weights of {found}")
    declared = None if call is None else parse_call(call)
    found = _refuse_async(found, name)
    built, built_as = (found, "") if is_attention_function(found) else build(found, arguments)
    if not isinstance(built, nn.Module) and is_factory(built, None):
        built, more = build(built)
        built_as = f"{built_as}, then {more}" if built_as else more
    built = _refuse_async(built, name)
    if declared is not None:
        impl = declared_implementation(built, name, contract, declared)
    elif not callable(built):
        kind = "class" if inspect.isclass(found) else type(built).__name__
        raise ValueError(f"{name} is neither a function of q, k, v nor a torch.nn.Module; got a {kind}")
    else:
        impl = _find_call(built, name, contract)
    return replace(impl, how=f"{impl.how}, built as {built_as}") if built_as else impl


def _find_call(found: Any, name: str, contract: Contract) -> Implementation:
    """The implementation of a function or a module, whichever way it can be called."""
    if isinstance(found, nn.Module):
        roles = qkv_names(parameters_of(found))
        takes_qkv = "packed" in roles or {"query", "key", "value"} <= roles.keys()
        found.eval()
        makers = [module_implementation, function_implementation] if takes_qkv else [module_implementation]
        if next(found.parameters(), None) is None and getattr(found, "built", True):
            makers.reverse()  # no projections of its own: a function
        refusals = []
        for make in makers:
            try:
                return make(found, name, contract)
            except ValueError as refused:
                refusals.append(refused)
        raise refusals[0]
    if is_attention_function(found):
        return function_implementation(found, name, contract)
    wrapped = FunctionModule(found)
    try:
        return module_implementation(wrapped, name, contract)
    except ValueError as refused:
        try:
            return function_implementation(found, name, contract)
        except ValueError:
            raise refused from None


def _refuse_async(found: Any, name: str) -> Any:
    """Coroutines are refused with one sentence; an object without __call__ gives its forward method."""
    call = found
    if not callable(found):
        for method in ("forward", "attend", "attention", "apply"):
            if callable(getattr(found, method, None)):
                return _refuse_async(getattr(found, method), name)
    if isinstance(found, nn.Module) or inspect.isclass(found):
        call = getattr(found, "forward", None) or vars(found).get("__call__")
    elif not inspect.isroutine(found):
        call = type(found).__call__ if callable(found) else None
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        raise ValueError(
            f"{name} is asynchronous (async def); check a plain function, or run it in an --adapter with asyncio.run"
        )
    return found
