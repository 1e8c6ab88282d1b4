"""Whether a model generates from prompts that are padded on the left, read off the source of its own `generate`."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

from torch import nn

from qkv.check.calling.names import POSITIONS, parameters_of

METHODS = ("generate", "generate_batch", "batch_generate", "sample", "decode", "complete", "greedy", "greedy_decode")
APPENDS = ("cat", "concat", "concatenate", "hstack")
MASK_WORDS = ("mask", "keep", "valid")


def generates_left_padded(module: nn.Module | None) -> bool:
    """Whether a method of its own appends tokens at the end of prompts of unequal length, and gives no positions.

    Tokens that are appended at the end follow the prompt only if padding comes before it.
    """
    if module is None or any(name in POSITIONS for name in parameters_of(module)):
        return False
    return any(_is_left_padded(source) for source in _own_sources(type(module)))


def _own_sources(made: type) -> Iterator[str]:
    """The code of methods that generate, and that are written beside the class, not inherited from a library."""
    for name in METHODS:
        owner = next((one for one in made.__mro__ if name in vars(one)), None)
        if owner is None or owner.__module__ != made.__module__:
            continue
        try:
            yield textwrap.dedent(inspect.getsource(vars(owner)[name]))
        except (OSError, TypeError):  # there is no source
            continue


def _is_left_padded(source: str) -> bool:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    appended = [call for call in calls if _name(call.func) in APPENDS]
    if not appended:
        return False
    passed = {name for call in calls if _is_own(call.func) for part in _arguments(call) for name in _names(part)}
    grown = any(name in passed and _says(name, MASK_WORDS) for call in appended for name in _names(call))
    said = re.search(r"\bleft\b", source.lower()) is not None and "pad" in source.lower()
    return grown or said or any(_puts_padding_first(node) for node in ast.walk(tree))


def _is_own(function: ast.expr) -> bool:
    """Whether it is self, a part of it, or a method of it."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id == "self"


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _puts_padding_first(node: ast.AST) -> bool:
    """Whether it is [pad] * n + prompt: lists that are joined, padding first."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return False
    repeats = isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult)
    return repeats and any(_says(name, ("pad",)) for name in _names(node.left))


def _says(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name.lower() for word in words)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> list[str]:
    return [name for part in ast.walk(node) if (name := _name(part))]
