"""`--call`: the call of an implementation, written by the user, for what cannot be guessed.

    f(tokens, start_pos=0)        f(x, mask=blocked)[0]        f(q, k, v, attn_mask=allowed, dropout=0.0).out

The text is parsed, not executed as Python. Known words: the inputs `tokens` (b, t), `x` (b, t, c), and for functions
`q`, `k`, `v` (b, h, t, d); the masks (t, t) `allowed` (causal, True = may attend), `blocked` (the opposite) and `added`
(0 and −∞); padding (b, t) `present` and `absent`. None, True, False, numbers and strings stand for themselves. An index
or a name after the call selects the output.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.forms import CallForm, find_dims, find_vocab_size
from qkv.check.calling.functions import function_implementation
from qkv.check.calling.mask_forms import additive_mask
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, cast_module, randomize_weights
from qkv.check.report import describe_error

MASK_WORDS: dict[str, Callable[[Tensor], Tensor]] = {
    "allowed": lambda mask: mask,
    "blocked": lambda mask: ~mask,
    "added": additive_mask,
}
WORDS = ("tokens", "x", "q", "k", "v", *MASK_WORDS, "present", "absent")
EXAMPLE = 'such as --call "f(x, mask=blocked)[0]"'


@dataclass(frozen=True)
class DeclaredCall:
    """A parsed call: its positional and keyword arguments, and the steps from its result to the output."""

    text: str
    positional: tuple[ast.expr, ...]
    keywords: dict[str, ast.expr]
    steps: tuple[str | int, ...]

    @property
    def words(self) -> set[str]:
        """The words that it uses."""
        inputs = (*self.positional, *self.keywords.values())
        return {node.id for part in inputs for node in ast.walk(part) if isinstance(node, ast.Name)}

    def __call__(self, function: Callable[..., Any], known: dict[str, Any]) -> Any:
        positional = [_value(part, known) for part in self.positional]
        result = function(*positional, **{name: _value(part, known) for name, part in self.keywords.items()})
        for step in self.steps:
            result = result[step] if isinstance(step, int) or not hasattr(result, step) else getattr(result, step)
        return result


def parse_call(text: str) -> DeclaredCall:
    """Parse the text of a call.

    >>> parse_call("f(x, mask=blocked)[0]").steps
    (0,)
    """
    try:
        node: ast.expr = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"--call must be one call, {EXAMPLE}; got {text!r}") from None
    steps: list[str | int] = []
    while not isinstance(node, ast.Call):
        if isinstance(node, ast.Attribute):
            steps.append(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if not isinstance(node.slice.value, str | int):
                raise ValueError(f"--call: an index must be a number or a name; got {text!r}")
            steps.append(node.slice.value)
        else:
            raise ValueError(f"--call must be one call, {EXAMPLE}; got {text!r}")
        node = node.value
    keywords = {word.arg or "": word.value for word in node.keywords}
    call = DeclaredCall(text, tuple(node.args), keywords, tuple(steps[::-1]))
    unknown = call.words - set(WORDS)
    if unknown:
        raise ValueError(f"--call: {min(unknown)!r} is not known; words are {', '.join(WORDS)}")
    if "" in call.keywords or not isinstance(node.func, ast.Name):
        raise ValueError(f"--call: pass arguments one by one, {EXAMPLE}; got {text!r}")
    return call


def _value(part: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(part, ast.Name):
        return known[part.id]
    try:
        return ast.literal_eval(part)
    except ValueError:
        raise ValueError(f"--call: {ast.unparse(part)!r} is neither a known word nor a plain value") from None


def declared_implementation(found: Any, name: str, contract: Contract, call: DeclaredCall) -> Implementation:
    """The implementation, called as declared."""
    if "q" in call.words:
        return _declared_function(found, name, contract, call)
    if not isinstance(found, nn.Module) or not call.words & {"x", "tokens"}:
        raise ValueError(f"--call {call.text!r} uses neither q, k, v nor x nor tokens, or {name} is not a module")
    module, dtype = randomize_weights(cast_module(found, torch.float64).eval()), torch.float64
    reads = "tokens" if "tokens" in call.words else "vectors"
    sizes = [find_vocab_size(module)] if reads == "tokens" else find_dims(module)
    problem = "its sizes could not be found"
    for size in (size for size in sizes if size is not None):
        form = CallForm(f"as declared, {call.text}", reads, size, lambda x, known: call(module, known))
        run = _with_words(form)
        try:
            out = run(form.sample(2, 8, dtype))
        except Exception as error:
            problem = describe_error(error)
            continue
        if isinstance(out, Tensor) and tuple(out.shape[:2]) == (2, 8):
            return Implementation(
                name=name,
                level="model" if reads == "tokens" else "layer",
                how=f"{name}: {form.words}",
                run=run,
                vocab_size=size if reads == "tokens" else None,
                dim=None if reads == "tokens" else size,
                dtype=dtype,
                module=module,
                takes_padding=bool(call.words & {"present", "absent"}),
            )
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        problem = f"the output is {shape}, not (batch, tokens, …)"
    raise ValueError(f"{name} could not be called as {call.text!r}: {problem}; change --call, or its sizes with --args")


def _with_words(form: CallForm) -> Callable[..., Tensor]:
    """Calls a form with a value for each word."""

    def run(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        present = torch.ones(x.shape[:2], dtype=torch.bool) if token_mask is None else token_mask
        masks = {word: convert(causal) for word, convert in MASK_WORDS.items()}
        return form.call(x, {"x": x, "tokens": x, "present": present, "absent": ~present, **masks})

    return run


def _declared_function(found: Any, name: str, contract: Contract, call: DeclaredCall) -> Implementation:
    def with_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        masks = {word: None if mask is None else convert(mask) for word, convert in MASK_WORDS.items()}
        return call(found, {"q": q, "k": k, "v": v, **masks})

    def without_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return call(found, {"q": q, "k": k, "v": v})

    function = with_mask if call.words & set(MASK_WORDS) else without_mask
    return function_implementation(function, f"{call.text}: {name}", contract)
