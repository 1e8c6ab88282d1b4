"""`--call`: how an implementation is called, written as the call itself; for what cannot be guessed.

    f(tokens, start_pos=0)        f(x, mask=blocked)[0]        f(q, k, v, attn_mask=allowed, dropout=0.0).out

Nothing of it is run as Python: it is read, and these words are known. Inputs: `tokens` (b, t), `x` (b, t, c); for
functions `q`, `k`, `v` (b, h, t, d). Masks (t, t): `allowed` (causal, True = may attend), `blocked` (its opposite),
`added` (0 and −∞). Padding (b, t): `present`, `absent`. Further None, True, False, numbers and strings; after the call
an index or a name says which part of the result is the output.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.contract import Contract
from qkv.check.finding import told
from qkv.check.forms import Form, vocabulary, widths
from qkv.check.functions import POLARITIES, function_subject
from qkv.check.subject import Subject, randomised

MASKS = {"allowed": "true-attends", "blocked": "true-masks", "added": "added"}
WORDS = ("tokens", "x", "q", "k", "v", *MASKS, "present", "absent")
EXAMPLE = 'such as --call "f(x, mask=blocked)[0]"'


@dataclass(frozen=True)
class Declared:
    """A call that was read: what goes in, by place and by name, and the steps to the output."""

    text: str
    places: tuple[ast.expr, ...]
    names: dict[str, ast.expr]
    steps: tuple[str | int, ...]

    @property
    def words(self) -> set[str]:
        inputs = (*self.places, *self.names.values())
        return {node.id for part in inputs for node in ast.walk(part) if isinstance(node, ast.Name)}

    def __call__(self, function: Callable[..., Any], known: dict[str, Any]) -> Any:
        places = [_value(part, known) for part in self.places]
        result = function(*places, **{name: _value(part, known) for name, part in self.names.items()})
        for step in self.steps:
            result = result[step] if isinstance(step, int) or not hasattr(result, step) else getattr(result, step)
        return result


def declared(text: str) -> Declared:
    """Read a call.

    >>> declared("f(x, mask=blocked)[0]").steps
    (0,)
    """
    try:
        node: ast.expr = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"--call is one call, {EXAMPLE}; got {text!r}") from None
    steps: list[str | int] = []
    while not isinstance(node, ast.Call):
        if isinstance(node, ast.Attribute):
            steps.append(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if not isinstance(node.slice.value, str | int):
                raise ValueError(f"--call: an index is a number or a name; got {text!r}")
            steps.append(node.slice.value)
        else:
            raise ValueError(f"--call is one call, {EXAMPLE}; got {text!r}")
        node = node.value
    found = Declared(text, tuple(node.args), {word.arg or "": word.value for word in node.keywords}, tuple(steps[::-1]))
    strange = found.words - set(WORDS)
    if strange or "" in found.names or not isinstance(node.func, ast.Name):
        said = f"{min(strange)!r} is not known" if strange else "its arguments are named or placed one by one"
        raise ValueError(f"--call: {said}; words are {', '.join(WORDS)}")
    return found


def _value(part: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(part, ast.Name):
        return known[part.id]
    try:
        return ast.literal_eval(part)
    except ValueError:
        raise ValueError(f"--call: {ast.unparse(part)!r} is neither a known word nor a plain value") from None


def declared_subject(found: Any, name: str, contract: Contract, call: Declared) -> Subject:
    """What is judged, called as declared."""
    if "q" in call.words:
        return _function(found, name, contract, call)
    if not isinstance(found, nn.Module) or not call.words & {"x", "tokens"}:
        raise ValueError(
            f"--call {call.text!r} reads neither q, k, v nor x nor tokens, or {name} is no module for them"
        )
    module, dtype = randomised(found.double().eval()), torch.float64
    reads = "tokens" if "tokens" in call.words else "vectors"
    sizes = [vocabulary(module)] if reads == "tokens" else widths(module)
    said = "its sizes are not to be seen"
    for size in (size for size in sizes if size is not None):
        form = Form(f"as declared, {call.text}", reads, size, lambda x, known: call(module, known))
        run = _run(form)
        try:
            out = run(form.sample(2, 8, dtype))
        except Exception as error:
            said = told(error)
            continue
        if isinstance(out, Tensor) and tuple(out.shape[:2]) == (2, 8):
            return Subject(
                name=name,
                level="model" if reads == "tokens" else "layer",
                how=f"{name}: {form.words}",
                run=run,
                vocab=size if reads == "tokens" else None,
                width=None if reads == "tokens" else size,
                dtype=dtype,
                module=module,
                pads=bool(call.words & {"present", "absent"}),
            )
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        said = f"the output is {shape}, not (batch, tokens, …)"
    raise ValueError(f"{name} could not be called as {call.text!r}: {said}; change --call or its sizes with --args")


def _run(form: Form) -> Callable[..., Tensor]:
    def run(x: Tensor, present: Tensor | None = None) -> Tensor:
        past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        flags = torch.ones(x.shape[:2], dtype=torch.bool) if present is None else present
        masks = {word: POLARITIES[polarity](past) for word, polarity in MASKS.items()}
        return form.call(x, {"x": x, "tokens": x, "present": flags, "absent": ~flags, **masks})

    return run


def _function(found: Any, name: str, contract: Contract, call: Declared) -> Subject:
    def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        masks = {word: None if mask is None else POLARITIES[polarity](mask) for word, polarity in MASKS.items()}
        return call(found, {"q": q, "k": k, "v": v, **masks})

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return call(found, {"q": q, "k": k, "v": v})

    return function_subject(masked if call.words & set(MASKS) else plain, f"{call.text}: {name}", contract)
