"""Functions attention(q, k, v, …): find their layout, their mask, their padding and their causal flag by trying.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from qkv.check.calling.building import DROPOUT_NAMES
from qkv.check.calling.guard import call_target
from qkv.check.calling.layouts import (
    HEADS_SECOND,
    HEADS_THIRD,
    KEYS_AND_VALUES,
    ONE_SEQUENCE,
    PACKED,
    PLAIN,
    RAGGED,
    RAGGED_PACKED,
    ROWS,
    SHARING,
    TOKENS_FIRST,
    TOKENS_THEN_ROWS,
    Layout,
)
from qkv.check.calling.lengths import LengthRule, candidate_lengths, find_length_rule
from qkv.check.calling.loading import missing_device
from qkv.check.calling.mask_forms import VALUES, choose_mask, polarity_of
from qkv.check.calling.names import (
    BORDERS,
    CAUSAL_FLAGS,
    HEAD_COUNTS,
    HEAD_DIMS,
    KEY_HEAD_COUNTS,
    LENGTHS,
    LONGEST,
    PADDING_MASKS,
    POSITIONS,
    SCALES,
    Parameters,
    mask_names,
    parameters_of,
    passes_by_position,
    qkv_names,
    required_names,
)
from qkv.check.calling.outputs import Path, find_tensor, follow, parts, to_torch
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.report import describe_error

LENGTH = 5  # the number of tokens that is tried first: odd, and no multiple of a block
HEADS, HEAD_DIM = 4, 8  # the sizes that functions are tested with
MASK_VALUES = (
    "True = may attend", "True = may not attend", "1 = may attend, integers", "1 = may not attend, integers",
    "1 = may attend, floats", "1 = may not attend, floats", "added: 0 and −∞",
)  # fmt: skip
MASK_AXES = (2, 4, 3)
SDPA = ("query", "key", "value", "attn_mask", "is_causal")  # builtins have no signature

Value = Callable[[Tensor, Tensor, Tensor], Any]  # from q, k and v


@dataclass(frozen=True)
class FunctionCall:
    """How to call a function of q, k, v.

    Args:
        names: of the parameters that take what the layout packs; None to pass by position.
        mask: the name of its mask; `mask_values` says what the values mean, `mask_axes` how many axes it has.
        padding: the name of a mask of keys (b, s), with `padding_values`; or of the lengths of the rows.
        causal_flag: the name of its causal flag.
        required: values of its other required parameters.
        arrays: it takes arrays of numpy instead of tensors.
        path: where the output is in the result.
    lengths: the numbers of tokens that it takes.
    """

    function: Callable[..., Any]
    layout: Layout
    names: tuple[str, ...] | None = None
    mask: str | None = None
    mask_values: str | None = None
    mask_axes: int = 2
    padding: str | None = None
    padding_values: str | None = None
    causal_flag: str | None = None
    required: dict[str, Value] = field(default_factory=dict)
    arrays: bool = False
    path: Path = ()
    lengths: LengthRule = field(default_factory=LengthRule)

    @property
    def heads_third(self) -> bool:
        return self.layout is HEADS_THIRD

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        token_mask: Tensor | None = None,
    ) -> Tensor:
        if self.layout.shared != 1 and k.shape[1] == q.shape[1] and (self.layout.shared > 1 or q.shape[1] > 1):
            return self._call_by_head(q, k, v, mask, token_mask, causal=causal)
        if self.layout.takes == "ragged" and token_mask is not None:
            return self._call_ragged(q, k, v, token_mask, causal=causal)
        if self.layout.takes == "ragged" and q.shape[2] != k.shape[2] and sum(n in BORDERS for n in self.required) < 2:
            raise ValueError("this function takes one set of borders: as many queries as keys")
        named = {name: value(q, k, v) for name, value in self.required.items()}
        if mask is not None:
            if self.mask is None or self.mask_values is None:
                raise ValueError("this function takes no mask")
            named[self.mask] = VALUES[self.mask_values](self._shape_mask(mask, q), q.dtype)
        if token_mask is not None and self.padding is not None:
            shown = (
                token_mask.sum(1) if self.padding_values is None else VALUES[self.padding_values](token_mask, q.dtype)
            )
            named[self.padding] = shown
        if causal and self.causal_flag is not None:
            named[self.causal_flag] = True
        if self.layout is not ONE_SEQUENCE:
            return self.layout.unpack(self._output(self.layout.pack(q, k, v), named, q, v), q)
        rows = [
            torch.stack([self._output((q[b, h], k[b, h], v[b, h]), named, q, v) for h in range(q.shape[1])])
            for b in range(q.shape[0])
        ]
        return torch.stack(rows)

    def _call_by_head(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, token_mask: Tensor | None, *, causal: bool
    ) -> Tensor:
        """A function whose query heads share key heads, on as many key heads: each head is a row of its own."""
        b, h = q.shape[:2]
        q, k, v = (x.flatten(0, 1)[:, None] for x in (q, k, v))
        q = q.expand(-1, max(self.layout.shared, 1), -1, -1)
        if mask is not None and mask.ndim == 4:
            mask = mask.expand(b, h, -1, -1).flatten(0, 1)[:, None]
        if token_mask is not None:
            token_mask = token_mask.repeat_interleave(h, 0)
        return self(q, k, v, mask, causal=causal, token_mask=token_mask)[:, 0].unflatten(0, (b, h))

    def _output(self, packed: tuple[Tensor, ...], named: dict[str, Any], q: Tensor, v: Tensor) -> Tensor:
        """The output of one call; one without a row for each query means that these lengths are not supported."""
        out = follow(self._call(packed, named), self.path)
        if tuple(out.shape) != self.layout.shape(q, v):
            raise ValueError(f"an output of shape {tuple(out.shape)} for {q.shape[2]} queries on {v.shape[2]} keys")
        return out

    def _shape_mask(self, mask: Tensor, q: Tensor) -> Tensor:
        """A mask (t, s) or (b, 1, t, s) with the axes that the function takes."""
        if mask.ndim > 2 and self.layout.axes < 4 and self.mask_axes == 2:
            masks = mask.flatten(0, -3)
            if not torch.equal(masks, masks[:1].expand_as(masks)):
                raise ValueError("this function takes one mask for all rows of the batch")
            return masks[0]
        if self.mask_axes == 4 and mask.ndim == 2:
            return mask.expand(q.shape[0], 1, *mask.shape)
        if self.mask_axes == 3:
            mask = mask[:, 0] if mask.ndim == 4 else mask.expand(q.shape[0], *mask.shape[-2:])
            return mask.repeat_interleave(q.shape[1], 0) if self.layout is ROWS else mask
        return mask

    def _call(self, packed: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
        if self.arrays:
            packed = tuple(x.detach().numpy() for x in packed)  # type: ignore[misc]
            named = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in named.items()}
        if self.names is None:
            result = call_target(self.function, *packed, **named)
        else:
            result = call_target(self.function, **dict(zip(self.names, packed, strict=True)), **named)
        return to_torch(result)

    def _call_ragged(self, q: Tensor, k: Tensor, v: Tensor, token_mask: Tensor, *, causal: bool) -> Tensor:
        """Only the real tokens, row after row."""
        lengths = token_mask.sum(1)
        named = {name: value(q, k, v) for name, value in self.required.items()}
        ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        named |= {name: ends for name in named if name in BORDERS}
        named |= {name: int(lengths.max()) for name in named if name in LONGEST}
        if causal and self.causal_flag is not None:
            named[self.causal_flag] = True
        out = q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1])
        packed = tuple(x.transpose(1, 2)[token_mask] for x in (q, k, v))
        if self.layout is RAGGED_PACKED:
            packed = (torch.stack(packed, dim=1),)
        out[token_mask] = follow(self._call(packed, named), self.path).to(out)
        return out.transpose(1, 2)


def is_attention_function(found: Any) -> bool:
    """Whether it is a plain callable of queries, keys and values."""
    if not callable(found) or inspect.isclass(found) or isinstance(found, torch.nn.Module):
        return False
    try:
        parameters = parameters_of(found)
    except (TypeError, ValueError):
        return True
    roles = qkv_names(parameters)
    if "packed" in roles or "query" in roles:
        return True
    return {"key", "value"} <= roles.keys()


def random_qkv(length: int, generator: torch.Generator, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k and v of shape (b, h, t, d)."""
    q, k, v = (torch.randn(batch, HEADS, length, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    return q, k, v


# -- finding the call --------------------------------------------------------------------------------------------------


def find_function_call(function: Callable[..., Any], name: str = "the function") -> tuple[FunctionCall, torch.dtype]:
    """Find out how to call a function, and in which dtype it computes, by trying."""
    try:
        parameters = parameters_of(function)
    except (TypeError, ValueError):
        parameters = {known: inspect.Parameter(known, inspect.Parameter.KEYWORD_ONLY, default=None) for known in SDPA}
    flag = next((known for known in parameters if known in CAUSAL_FLAGS), None)
    tried: dict[str, str] = {}
    lengths = [LENGTH]
    for length in lengths:
        for arrays, dtype in itertools.product(array_modes(function), (torch.float64, torch.float32)):
            for layout, names, required in _candidates(function, parameters):
                call = FunctionCall(function, layout, names, causal_flag=flag, required=required, arrays=arrays)
                found = _try_call(call, dtype, tried, length)
                if found is not None:
                    call, computed = found
                    call = replace(_find_axes(call, dtype), lengths=_find_lengths(call, dtype, length))
                    return _find_masks(call, parameters, dtype), computed
        if length == LENGTH and any("Error" in error for error in tried.values()):
            lengths += candidate_lengths(None, tried.values())[:10]
    raise ValueError(f"{name} could not be called; tried {'; '.join(f'{k}: {v}' for k, v in tried.items())}. "
                     "Declare the call with --call, or write it in an --adapter")  # fmt: skip


def array_modes(function: Callable[..., Any]) -> tuple[bool, ...]:
    """Whether to pass arrays of numpy: first if the function's file imports numpy or JAX, and not torch."""
    known = getattr(inspect.unwrap(function) if callable(function) else function, "__globals__", {})
    libraries = {getattr(value, "__name__", "").partition(".")[0] for value in list(known.values())[:500]}
    if "torch" in libraries or not libraries & {"numpy", "jax", "mlx", "tensorflow"}:
        return False, True
    return True, False


def _candidates(
    function: Callable[..., Any], parameters: Parameters
) -> Iterator[tuple[Layout, tuple[str, ...] | None, dict[str, Value]]]:
    roles = qkv_names(parameters)
    names: tuple[str, ...] | None
    layouts: tuple[Layout, ...] = PLAIN
    if "packed" in roles and "query" not in roles:
        names, layouts = (roles["packed"],), PACKED
    elif "query" in roles and "keys and values" in roles and "key" not in roles:
        names, layouts = (roles["query"], roles["keys and values"]), KEYS_AND_VALUES
    elif {"query", "key", "value"} <= roles.keys():
        names = (roles["query"], roles["key"], roles["value"])
        layouts = (*layouts, *SHARING)
    else:
        names = tuple(parameters)[:3]
    if any(known in BORDERS for known in parameters):
        layouts = (RAGGED_PACKED if layouts is PACKED else RAGGED, *layouts)
    if (
        not isinstance(function, torch.nn.Module)
        and parameters
        and next(iter(parameters)) in SDPA[:1]
        and len(parameters) == 5
    ):
        names = names if not _has_no_signature(function) else None
    by_position = names is None or any(passes_by_position(parameters, known) for known in names)
    given = () if names is None else names
    rest = [known for known in required_names(parameters) if known not in given]
    tells_heads = any(known in HEAD_COUNTS for known in parameters)
    optional = [known for known in parameters if known in (*HEAD_COUNTS, *KEY_HEAD_COUNTS) and known not in rest]
    for layout in sorted(layouts, key=lambda layout: layout.splits_heads != tells_heads):
        if layout.splits_heads and not tells_heads and layout.takes != "packed":
            continue
        needed = [*rest, *(optional if layout.splits_heads else [])]
        options = [_values(known, parameters[known].annotation) for known in needed]
        for values in itertools.islice(itertools.product(*options), 24):
            yield layout, None if by_position else names, dict(zip(needed, values, strict=True))


def _has_no_signature(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        return True
    return False


def _values(name: str, annotation: Any) -> list[Value]:
    """Values that a required parameter besides q, k and v may take, likely ones first."""
    known: list[tuple[tuple[str, ...], list[Value]]] = [
        (HEAD_COUNTS, [lambda q, k, v: q.shape[1]]),
        (KEY_HEAD_COUNTS, [lambda q, k, v: k.shape[1]]),
        (HEAD_DIMS, [lambda q, k, v: q.shape[-1]]),
        (SCALES, [lambda q, k, v: q.shape[-1] ** -0.5]),
        (DROPOUT_NAMES, [lambda q, k, v: 0.0, lambda q, k, v: None]),
        (BORDERS, [lambda q, k, v: _borders(q if "_q" in name else k)]),
        (LONGEST, [lambda q, k, v: (q if "_q" in name else k).shape[2]]),
        (LENGTHS, [lambda q, k, v: torch.full(k.shape[:1], k.shape[2])]),
        (POSITIONS, [lambda q, k, v: torch.arange(k.shape[2])]),
        (CAUSAL_FLAGS, [lambda q, k, v: False]),
        (("block_size", "chunk_size", "page_size", "window", "window_size", "block", "chunk"), [lambda q, k, v: 4]),
        (("eps", "epsilon"), [lambda q, k, v: 1e-9]),
        (("cos", "sin"), [
            lambda q, k, v: _angles(q)[name == "sin"], lambda q, k, v: _angles(q, half=True)[name == "sin"]]),
        (("freqs_cis", "freqs"), [lambda q, k, v: torch.polar(*_polar(q))]),
        (("slopes", "alibi_slopes"), [lambda q, k, v: _slopes(q), lambda q, k, v: None]),
    ]  # fmt: skip
    for names, values in known:
        if name in names:
            return values
    if mask_names([name]) or name in PADDING_MASKS:
        return [
            lambda q, k, v: None,
            lambda q, k, v: torch.ones(q.shape[2], k.shape[2], dtype=torch.bool),
            lambda q, k, v: torch.zeros(q.shape[2], k.shape[2], dtype=q.dtype),
            lambda q, k, v: torch.ones(q.shape[0], 1, q.shape[2], k.shape[2], dtype=torch.bool),
        ]
    words = str(annotation)
    if annotation is bool or words == "bool":
        return [lambda q, k, v: False]
    if annotation is int or words == "int":
        return [lambda q, k, v: q.shape[1], lambda q, k, v: 4]
    return [lambda q, k, v: None, lambda q, k, v: 0.0]


def _borders(x: Tensor) -> Tensor:
    """Where each row of (b, h, t, d) begins if tokens of all rows follow each other, and where the last ends."""
    return torch.arange(0, x.shape[0] * x.shape[2] + 1, x.shape[2], dtype=torch.int32)


def _angles(q: Tensor, *, half: bool = False) -> tuple[Tensor, Tensor]:
    """The tables cos and sin (t, d) of RoPE, or (t, d/2)."""
    angles = _rotary_angles(q)
    angles = angles if half else torch.cat((angles, angles), -1)
    return angles.cos().to(q.dtype), angles.sin().to(q.dtype)


def _polar(q: Tensor) -> tuple[Tensor, Tensor]:
    angles = _rotary_angles(q) if q.dtype == torch.float64 else _rotary_angles(q).float()
    return torch.ones_like(angles), angles


def _rotary_angles(q: Tensor) -> Tensor:
    """(t, d/2), in float64: what is made of them is rounded, they are not."""
    d, t = q.shape[-1], q.shape[2]
    return torch.arange(t)[:, None] * 10_000 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def _slopes(q: Tensor) -> Tensor:
    return 2.0 ** (-8 * torch.arange(1, q.shape[1] + 1, dtype=q.dtype) / q.shape[1])


def _find_lengths(call: FunctionCall, dtype: torch.dtype, worked: int) -> LengthRule:
    """The numbers of tokens that a function takes: any, if it takes the first one that was tried."""
    if worked == LENGTH:
        return LengthRule()
    return find_length_rule(lambda length: _try_call(call, dtype, {}, length) is not None, worked)


def _try_call(
    call: FunctionCall, dtype: torch.dtype, tried: dict[str, str], length: int = LENGTH
) -> tuple[FunctionCall, torch.dtype] | None:
    """The call with the path to its output, and the dtype of the output; None if it fails or returns another shape."""
    heads = call.layout.key_heads(HEADS)
    q, k, v = (torch.randn(2, h, length, HEAD_DIM, dtype=dtype) for h in (HEADS, heads, heads))
    words = f"{call.layout.words}{' as arrays of numpy' if call.arrays else ''}"
    shape = call.layout.shape(q, v)
    try:
        with torch.no_grad():
            first = call.layout.pack(q, k, v) if call.layout is not ONE_SEQUENCE else (q[0, 0], k[0, 0], v[0, 0])
            result = call._call(first, {name: value(q, k, v) for name, value in call.required.items()})
    except Exception as error:
        if (needs := missing_device(error)) is not None:
            raise ValueError(f"the function could not be called: {needs}") from None
        if isinstance(error, TimeoutError):
            raise ValueError(f"the function could not be called: {error}") from None
        tried.setdefault(words, describe_error(error))
        return None
    for path, part in parts(result):
        if part.is_floating_point() and tuple(part.shape) == shape:
            exact = dtype == torch.float64 and part.dtype == torch.float64
            return replace(call, path=path), torch.float64 if exact else torch.float32
    shown = find_tensor(result, lambda part: True)
    tried.setdefault(words, "no tensor" if shown is None else f"an output of shape {tuple(shown.shape)}")
    return None


def _find_axes(call: FunctionCall, dtype: torch.dtype) -> FunctionCall:
    """The same call with the layout in which it attends along the tokens, if that shows another one."""
    others = {HEADS_SECOND: {"heads": HEADS_THIRD, "rows": TOKENS_THEN_ROWS}, ROWS: {"heads": TOKENS_FIRST}}
    half = len(SHARING) // 2
    others |= {second: {"heads": third} for second, third in zip(SHARING[:half], SHARING[half:], strict=True)}
    layout = others.get(call.layout, {}).get(_attended_axis(call, dtype))
    if layout is None:
        return call
    other = replace(call, layout=layout)
    return other if _attended_axis(other, dtype) == "tokens" else call


def _attended_axis(call: FunctionCall, dtype: torch.dtype, length: int = 6) -> Literal["tokens", "heads", "rows"]:
    """The axis along which the outputs change with the first value vector, or, with shared heads, with the last."""
    q, k, v = (x.to(dtype) for x in random_qkv(length, torch.Generator().manual_seed(1), batch=2))
    if call.layout.shared != 1:
        k, v = (x[:, : call.layout.key_heads(HEADS)] for x in (k, v))
        try:
            with torch.no_grad():
                rest = call(q, k, torch.cat((v[:, :, :-1], v[:, :, -1:] + 1), 2)) - call(q, k, v)
        except Exception:  # it takes the lengths it was tried with, and no others
            return "tokens"
        seen = rest.abs().amax(-1)[0] > 1e-9  # (h, t): a causal mask hides the last key from all tokens but the last
        return "heads" if bool((seen != seen[:1]).any()) and bool((seen == seen[:, :1]).all()) else "tokens"
    other = v.clone()
    other[0, 0, 0] += 1.0  # the first key: visible to every query whatever the mask
    try:
        with torch.no_grad():
            changed = (call(q, k, other) - call(q, k, v)).abs().amax(-1) > 1e-9
    except Exception:  # it takes the lengths it was tried with, and no others
        return "tokens"
    if changed[0, :, 1:].any():
        return "tokens"
    if changed[0, 1:, 0].any():
        return "heads"
    return "rows" if changed[1:, 0, 0].any() else "tokens"


def _find_masks(call: FunctionCall, parameters: Parameters, dtype: torch.dtype) -> FunctionCall:
    """The call with what its mask and its padding mask mean."""
    given = call.names or ()
    names = [known for known in parameters if known not in given and known != call.causal_flag]
    for mask in mask_names(names):
        for axes in MASK_AXES:
            masked = replace(call, mask=mask, mask_axes=axes)
            values = choose_mask(_try_mask_values(masked, dtype))
            if values is not None:
                call = replace(masked, mask_values=values)
                break
        if call.mask is not None:
            break
    padding = next(
        (known for known in names if (known in PADDING_MASKS or "pad" in known.lower()) and known != call.mask), None
    )
    if padding is not None and call.layout.axes != 2:
        values = choose_mask(_try_padding_values(replace(call, padding=padding), dtype))
        if values is not None:
            return replace(call, padding=padding, padding_values=values)
    lengths = next((known for known in names if known in LENGTHS), None)
    return call if lengths is None or call.layout in (ROWS, ONE_SEQUENCE) else replace(call, padding=lengths)


def _try_mask_values(call: FunctionCall, dtype: torch.dtype) -> Iterator[tuple[str, float, float]]:
    """What the mask's values may mean: with each, the effects of a hidden and of a visible key on the output."""
    generator = torch.Generator().manual_seed(1)
    n = call.lengths.nearest(6)
    q, k, v = (x.to(dtype) for x in random_qkv(n, generator))
    mask = torch.rand(n, n, generator=generator) < 0.5
    mask[:, 0], mask[:, 1] = True, False
    for values in MASK_VALUES:
        masked = replace(call, mask_values=values)
        yield from _effects(values, lambda v, call=masked: call(q, k, v, mask), v)


def _try_padding_values(call: FunctionCall, dtype: torch.dtype) -> Iterator[tuple[str, float, float]]:
    n = call.lengths.nearest(6)
    q, k, v = (x.to(dtype) for x in random_qkv(n, torch.Generator().manual_seed(1)))
    real = torch.ones(1, n, dtype=torch.bool)
    real[:, 1] = False
    for values in MASK_VALUES:
        masked = replace(call, padding_values=values)
        yield from _effects(values, lambda v, call=masked: call(q, k, v, token_mask=real), v)


def _effects(values: str, run: Callable[[Tensor], Tensor], v: Tensor) -> Iterator[tuple[str, float, float]]:
    """The effects of the second key, which is hidden, and of the first one."""
    try:
        with torch.no_grad():
            before = run(v)
            without = run(torch.cat((v[:, :, :1], v[:, :, 1:2] + 1, v[:, :, 2:]), dim=2))
            control = run(torch.cat((v[:, :, :1] + 1, v[:, :, 1:]), dim=2))
    except Exception:  # the function does not take such values
        return
    yield values, (without - before).abs().max().item(), (control - before).abs().max().item()


# -- the implementation ------------------------------------------------------------------------------------------------


def function_implementation(
    function: Callable[..., Any],
    name: str,
    contract: Contract,
    known: tuple[FunctionCall, torch.dtype] | None = None,
) -> Implementation:
    """A function as an implementation: fixed random matrices project a sequence to queries, keys and values.

    known: how to call it, and its dtype, if that need not be found out.
    """
    call, dtype = find_function_call(function, name) if known is None else known
    generator = torch.Generator().manual_seed(2)
    dim = HEADS * HEAD_DIM
    projections = [torch.randn(dim, dim, generator=generator, dtype=torch.float64) * dim**-0.5 for _ in range(3)]
    causal = contract.kind == "causal" and (call.causal_flag is not None or call.mask is not None)
    pads = call.padding is not None or call.layout.takes == "ragged"

    def run(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        projected = ((x @ projection.to(x.dtype)).unflatten(-1, (HEADS, HEAD_DIM)) for projection in projections)
        q, k, v = (part.transpose(1, 2) for part in projected)
        if call.layout.shared != 1:
            k, v = (part[:, : call.layout.key_heads(HEADS)] for part in (k, v))
        mask = None
        if causal and call.causal_flag is None:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if token_mask is not None and not pads:
            keys = token_mask[:, None, None, :]
            mask = keys.expand(-1, 1, x.shape[1], -1) if mask is None else keys & mask
        flag = causal and call.causal_flag is not None
        more = {"token_mask": token_mask} if token_mask is not None and pads else {}
        return call(q, k, v, mask, causal=flag, **more).transpose(1, 2).flatten(2)

    polarity = None if call.mask_values is None else polarity_of(call.mask_values)
    given = "qkv" if call.layout.takes == "packed" or call.layout is RAGGED_PACKED else "q, k, v"
    how = f"{name}({given}) with {call.layout.words}"
    if call.arrays:
        how += ", as arrays of numpy"
    if causal and call.causal_flag:
        how += f", {call.causal_flag}=True"
    elif causal:
        how += f", {call.mask}= a causal mask ({polarity})"
    if pads:
        how += f", padding as {call.padding or 'rows of unequal length'}"
    return Implementation(
        name=name,
        level="function",
        how=f"{how}{call.lengths}",
        run=run,
        dim=dim,
        length=call.lengths.nearest(12),
        length_multiple=call.lengths.multiple,
        fixed_length=call.lengths.fixed,
        max_length=call.lengths.longest,
        dtype=dtype,
        attention=call,
        takes_mask=call.mask is not None,
        mask_polarity=polarity,
        causal_flag=call.causal_flag,
        takes_padding=pads or (call.mask is not None and (call.layout.axes == 4 or call.mask_axes > 2)),
        padding_sides=("right",) if call.padding is not None and call.padding_values is None else PADDING_SIDES,
        differentiable=not call.arrays,
        adds_padding=(call.padding_values or call.mask_values or "").startswith("added"),
        packed=call.layout.takes == "ragged",
        key_heads=call.layout.key_heads,
    )


PADDING_SIDES = ("right", "left", "holes")
