"""Functions attention(q, k, v, …): find their axes, their mask and their causal flag by trying.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qkv.check.calling.mask_forms import VALUES, choose_mask, polarity_of
from qkv.check.calling.signatures import CAUSAL_FLAGS, MASKS, QUERIES, first_tensor
from qkv.check.calling.targets import DROPOUT_NAMES
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation

HEADS, HEAD_DIM = 4, 8  # the sizes that functions are tested with
AXES = {"(b, h, t, d)": 4, "(b, t, d)": 3, "(t, d)": 2}
MASK_VALUES = (
    "True = may attend", "True = may not attend", "1 = may attend, integers", "1 = may not attend, integers",
    "1 = may attend, floats", "1 = may not attend, floats", "added: 0 and −∞",
)  # fmt: skip


@dataclass(frozen=True)
class FunctionCall:
    """How to call a function of q, k, v.

    Args:
        axes: how many axes its inputs have.
        mask: the name of its mask; `mask_values` says what the values mean.
        causal_flag: the name of its causal flag.
        heads_third: it takes (b, t, h, d).
        required: values of its other required parameters.
    """

    function: Callable[..., Any]
    axes: int
    mask: str | None = None
    mask_values: str | None = None
    causal_flag: str | None = None
    heads_third: bool = False
    required: tuple[tuple[str, Any], ...] = ()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        named: dict[str, Any] = dict(self.required)
        if mask is not None:
            if self.mask is None or self.mask_values is None:
                raise ValueError("this function takes no mask")
            if mask.ndim > 2 and self.axes < 4:
                mask = mask.flatten(0, -3)[0]
            named[self.mask] = VALUES[self.mask_values](mask, torch.float64)
        if causal and self.causal_flag is not None:
            named[self.causal_flag] = True
        if self.axes == 4 and self.heads_third:
            return first_tensor(self.function(*(x.transpose(1, 2) for x in (q, k, v)), **named)).transpose(1, 2)
        if self.axes == 4:
            return first_tensor(self.function(q, k, v, **named))
        if self.axes == 3:  # heads become rows of the batch
            parts = (x.flatten(0, 1) for x in (q, k, v))
            return first_tensor(self.function(*parts, **named)).unflatten(0, q.shape[:2])
        rows = [
            torch.stack([first_tensor(self.function(q[b, h], k[b, h], v[b, h], **named)) for h in range(q.shape[1])])
            for b in range(q.shape[0])
        ]
        return torch.stack(rows)


def is_attention_function(found: Any) -> bool:
    """Whether it is a plain function of queries, keys and values."""
    if not callable(found) or inspect.isclass(found) or isinstance(found, torch.nn.Module):
        return False
    try:
        names = list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return True
    return bool(names) and (names[0].lower() in QUERIES or len(names) >= 3)


def random_qkv(length: int, generator: torch.Generator, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k and v of shape (b, h, t, d)."""
    q, k, v = (torch.randn(batch, HEADS, length, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    return q, k, v


def find_function_call(function: Callable[..., Any]) -> FunctionCall:
    """Find out how to call a function, by trying."""
    try:
        parameters = inspect.signature(function).parameters
        names, required = list(parameters), _required_values(parameters)
    except (TypeError, ValueError):  # a builtin such as scaled_dot_product_attention has no signature
        names, required = ["query", "key", "value", "attn_mask", "is_causal"], ()
    causal_flag = next((name for name in names if name in CAUSAL_FLAGS), None)
    mask = next((name for name in names[3:] if name in MASKS), None)
    tried = []
    for words, axes in AXES.items():
        call = FunctionCall(function, axes, causal_flag=causal_flag, required=required)
        q, k, v = (torch.randn(2, HEADS, 5, HEAD_DIM, dtype=torch.float64) for _ in range(3))
        try:
            fits = call(q, k, v).shape == q.shape
            tried.append(f"{words}: an output of another shape")
        except Exception as error:
            tried.append(f"{words}: {type(error).__name__}: {error}")
            continue
        if fits:
            call = replace(call, heads_third=axes == 4 and _attends_over_second_axis(call))
            values = None if mask is None else choose_mask(_try_mask_values(replace(call, mask=mask)))
            return call if values is None else replace(call, mask=mask, mask_values=values)
    raise ValueError(f"the function could not be called; tried {'; '.join(tried)}. Declare the call with --call")


def _required_values(parameters: Any) -> tuple[tuple[str, Any], ...]:
    """Values for required parameters besides q, k and v: None for masks, sizes by their names."""
    known = dict.fromkeys(("d_k", "dk", "d", "head_dim", "dim", "d_head"), HEAD_DIM) | {"dropout": None}
    values = []
    for parameter in list(parameters.values())[3:]:
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            default = 0.0 if parameter.name in DROPOUT_NAMES else None
            values.append((parameter.name, known.get(parameter.name, default)))
    return tuple(values)


def _attends_over_second_axis(call: FunctionCall) -> bool:
    """Whether it attends along the second axis: then that is the axis of tokens, and it takes (b, t, h, d)."""
    q, k, v = random_qkv(6, torch.Generator().manual_seed(1))
    other = v.clone()
    other[0, 0, 0] += 1.0  # the first key: visible to every query whatever the mask
    changed = (call(q, k, other) - call(q, k, v)).abs().amax(-1)[0] > 1e-9
    return bool(changed[1:, 0].any()) and not bool(changed[:, 1:].any())


def _try_mask_values(call: FunctionCall) -> Iterator[tuple[str, float, float]]:
    """What the mask's values may mean: with each, the effects of a hidden and of a visible key on the output."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = random_qkv(6, generator)
    mask = torch.rand(6, 6, generator=generator) < 0.5
    mask[:, 0], mask[:, 1] = True, False
    for values in MASK_VALUES:
        masked = replace(call, mask_values=values)
        try:
            before = masked(q, k, v, mask)
            without = masked(q, k, torch.cat((v[:, :, :1], v[:, :, 1:2] + 1, v[:, :, 2:]), dim=2), mask)
            control = masked(q, k, torch.cat((v[:, :, :1] + 1, v[:, :, 1:]), dim=2), mask)
        except Exception:  # the function does not take such values
            continue
        yield values, (without - before).abs().max().item(), (control - before).abs().max().item()


def function_implementation(function: Callable[..., Any], name: str, contract: Contract) -> Implementation:
    """A function as an implementation: fixed random matrices project a sequence to queries, keys and values."""
    call = find_function_call(function)
    generator = torch.Generator().manual_seed(2)
    dim = HEADS * HEAD_DIM
    projections = [torch.randn(dim, dim, generator=generator, dtype=torch.float64) * dim**-0.5 for _ in range(3)]
    causal = contract.kind == "causal" and (call.causal_flag is not None or call.mask is not None)

    def run(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        q, k, v = ((x @ projection).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for projection in projections)
        mask = None
        if causal and call.causal_flag is None:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if token_mask is not None:
            keys = token_mask[:, None, None, :]
            mask = keys.expand(-1, 1, x.shape[1], -1) if mask is None else keys & mask
        return call(q, k, v, mask, causal=causal and call.causal_flag is not None).transpose(1, 2).flatten(2)

    polarity = None if call.mask_values is None else polarity_of(call.mask_values)
    axes = "(b, t, h, d)" if call.heads_third else next(words for words, n in AXES.items() if n == call.axes)
    how = f"{name}(q, k, v) with {axes}"
    if causal and call.causal_flag:
        how += f", {call.causal_flag}=True"
    elif causal:
        how += f", {call.mask}= a causal mask ({polarity})"
    return Implementation(
        name=name,
        level="function",
        how=how,
        run=run,
        dim=dim,
        attention=call,
        takes_mask=call.mask is not None,
        mask_polarity=polarity,
        causal_flag=call.causal_flag,
        takes_padding=call.mask is not None and call.axes == 4,
    )
