"""Functions attention(q, k, v, …): how to call them, and what a mask means to them.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.names import CAUSAL, MASKS, QUERIES, ZEROES
from qkv.check.subject import Subject

HEADS, WIDTH = 4, 8
LAYOUTS = {"(b, h, t, d)": 4, "(b, t, d)": 3, "(t, d)": 2}
NUMBERS = (torch.bool, torch.long, torch.float64)  # what the flags of a mask may be
POLARITIES = {
    "true-attends": lambda allowed: allowed,
    "true-masks": lambda allowed: ~allowed,
    "added": lambda allowed: torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, float("-inf")),
}


@dataclass(frozen=True)
class Calling:
    """How a function is called: its layout, the name of its mask and what True means there, the name of its flag.

    turned: it takes (b, t, h, d). numbers: what the flags of its mask are. more: what else it wants.
    """

    function: Callable[..., Any]
    axes: int
    mask: str | None
    polarity: str | None
    causal: str | None
    turned: bool = False
    numbers: torch.dtype = torch.bool
    more: tuple[tuple[str, Any], ...] = ()

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, *, causal: bool = False
    ) -> Tensor:
        named: dict[str, Any] = dict(self.more)
        if allowed is not None:
            if self.mask is None or self.polarity is None:
                raise ValueError("this function takes no mask")
            mask = POLARITIES[self.polarity](self._fitted(allowed))
            named[self.mask] = mask if self.polarity == "added" else mask.to(self.numbers)
        if causal and self.causal is not None:
            named[self.causal] = True
        if self.axes == 4 and self.turned:
            return tensor_of(self.function(*(x.transpose(1, 2) for x in (q, k, v)), **named)).transpose(1, 2)
        if self.axes == 4:
            return tensor_of(self.function(q, k, v, **named))
        if self.axes == 3:  # heads become rows of the batch
            parts = (x.flatten(0, 1) for x in (q, k, v))
            return tensor_of(self.function(*parts, **named)).unflatten(0, q.shape[:2])
        rows = [
            torch.stack([tensor_of(self.function(q[b, h], k[b, h], v[b, h], **named)) for h in range(q.shape[1])])
            for b in range(q.shape[0])
        ]
        return torch.stack(rows)

    def _fitted(self, allowed: Tensor) -> Tensor:
        return allowed if allowed.ndim == 2 or self.axes == 4 else allowed.flatten(0, -3)[0]


def tensor_of(output: Any) -> Tensor:
    """The output itself, where more is returned."""
    return output if isinstance(output, Tensor) else output[0]


def is_attention_function(found: Any) -> bool:
    """Whether it is a plain function of queries, keys and values."""
    if not callable(found) or inspect.isclass(found) or isinstance(found, torch.nn.Module):
        return False
    try:
        names = list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return True
    return bool(names) and (names[0].lower() in QUERIES or len(names) >= 3)


def calling(function: Callable[..., Any]) -> Calling:
    """Find out how a function is called, by trying."""
    try:
        parameters = inspect.signature(function).parameters
        names, more = list(parameters), _wanted(parameters)
    except (TypeError, ValueError):  # a builtin such as scaled_dot_product_attention says nothing of itself
        names, more = ["query", "key", "value", "attn_mask", "is_causal"], ()
    flag = next((name for name in names if name in CAUSAL), None)
    mask = next((name for name in names[3:] if name in MASKS), None)
    tried = []
    for layout, axes in LAYOUTS.items():
        plain = Calling(function, axes, None, None, flag, more=more)
        q, k, v = (torch.randn(2, HEADS, 5, WIDTH, dtype=torch.float64) for _ in range(3))
        try:
            fits = plain(q, k, v).shape == q.shape
            tried.append(f"{layout}: an output of another shape")
        except Exception as error:
            tried.append(f"{layout}: {type(error).__name__}: {error}")
            continue
        if fits:
            plain = replace(plain, turned=axes == 4 and _over_heads(plain))
            found = None if mask is None else find_polarity(replace(plain, mask=mask))
            return plain if found is None else replace(plain, mask=mask, polarity=found[0], numbers=found[1])
    raise ValueError(f"the function could not be called; tried {'; '.join(tried)}. Declare how with --call")


def _wanted(parameters: Any) -> tuple[tuple[str, Any], ...]:
    """Values for what has no default besides q, k and v: nothing for masks, sizes by their names."""
    known = {"d_k": WIDTH, "dk": WIDTH, "d": WIDTH, "head_dim": WIDTH, "dim": WIDTH, "d_head": WIDTH, "dropout": None}
    rest = list(parameters.values())[3:]
    return tuple(
        (parameter.name, known.get(parameter.name, 0.0 if parameter.name in ZEROES else None))
        for parameter in rest
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )


def _over_heads(call: Calling) -> bool:
    """Whether it attends along the second axis: then that is the axis of tokens, and it takes (b, t, h, d)."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, HEADS, 6, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    other = v.clone()
    other[0, 0, 0] += 1.0  # seen from where the first or the second axis is the same, whatever is masked
    moved = (call(q, k, other) - call(q, k, v)).abs().amax(-1)[0] > 1e-9
    return bool(moved[1:, 0].any()) and not bool(moved[:, 1:].any())


def find_polarity(plain: Calling) -> tuple[str, torch.dtype] | None:
    """What True means in the mask, and in which type: what is forbidden must not matter, and what is allowed must."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, HEADS, 6, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    allowed = torch.rand(6, 6, generator=generator) < 0.5
    allowed[:, 0], allowed[:, 1] = True, False
    best, least = None, 0.3
    flags = [(polarity, numbers) for numbers in NUMBERS for polarity in ("true-attends", "true-masks")]
    for polarity, numbers in (*flags, ("added", torch.float64)):
        call = replace(plain, polarity=polarity, numbers=numbers)
        try:
            before = call(q, k, v, allowed)
            after = call(q, k, torch.cat((v[:, :, :1], v[:, :, 1:2] + 1, v[:, :, 2:]), dim=2), allowed)
            control = call(q, k, torch.cat((v[:, :, :1] + 1, v[:, :, 1:]), dim=2), allowed)
        except Exception:  # a form of mask that the function does not take is one answer fewer
            continue
        moved, may = (after - before).abs().max().item(), (control - before).abs().max().item()
        if may > 1e-6 and moved / may < least * (0.5 if best else 1.0):  # the first of those that do equally well
            best, least = (polarity, numbers), moved / may
    return best


def function_subject(function: Callable[..., Any], name: str, contract: Contract) -> Subject:
    """A function as a subject: its inputs are projected to queries, keys and values by fixed random matrices."""
    call = calling(function)
    generator = torch.Generator().manual_seed(2)
    width = HEADS * WIDTH
    projections = [torch.randn(width, width, generator=generator, dtype=torch.float64) * width**-0.5 for _ in range(3)]
    asked = contract.kind == "causal" and (call.causal is not None or call.mask is not None)

    def attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, *, causal: bool = False) -> Tensor:
        return call(q, k, v, allowed, causal=causal)

    def run(x: Tensor, present: Tensor | None = None) -> Tensor:
        q, k, v = ((x @ projection).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for projection in projections)
        allowed = None
        if asked and call.causal is None:
            allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if present is not None:
            keys = present[:, None, None, :]
            allowed = keys.expand(-1, 1, x.shape[1], -1) if allowed is None else keys & allowed
        return call(q, k, v, allowed, causal=asked and call.causal is not None).transpose(1, 2).flatten(2)

    layout = next(name for name, axes in LAYOUTS.items() if axes == call.axes)
    how = f"{name}(q, k, v) with {'(b, t, h, d)' if call.turned else layout}"
    if asked:
        how += f", {call.causal}=True" if call.causal else f", {call.mask}= a causal mask ({call.polarity})"
    return Subject(
        name=name,
        level="function",
        how=how,
        run=run,
        width=width,
        attend=attend,
        masked=call.mask is not None,
        polarity=call.polarity,
        flag=call.causal,
        pads=call.mask is not None and call.axes == 4,
    )
