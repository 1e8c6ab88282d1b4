"""Ways to call a module on tokens or vectors, by the names of its parameters, the sizes of its weights and by trying.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from qkv.check.calling.building import DROPOUT_NAMES
from qkv.check.calling.caches import find_returned_cache
from qkv.check.calling.guard import call_target
from qkv.check.calling.names import (
    CAUSAL_FLAGS,
    HEAD_COUNTS,
    LABELS,
    LENGTHS,
    MASKS,
    OFFSETS,
    PADDING_MASKS,
    POSITIONS,
    SOURCE_MASKS,
    TOKENS,
    VECTORS,
    Fill,
    Parameters,
    mask_names,
    passes_by_position,
    qkv_names,
    required_names,
)
from qkv.check.calling.outputs import find_output, parts
from qkv.check.implementation import random_tokens

FormCall = Callable[[Tensor, dict[str, Any]], Any]  # (b, t, …) and further keyword arguments to whatever is returned


@runtime_checkable
class ArrangedCall(Protocol):
    """The call of a module with its inputs in the layout that `arrange` gives them."""

    def __call__(self, x: Tensor, named: dict[str, Any], arrange: Callable[[Tensor], Tensor] = ..., /) -> Any: ...


@dataclass(frozen=True)
class CallForm:
    """One way to call a module on tokens or vectors.

    Args:
        size: the number of tokens, or the size of a vector.
        call: from the input and further keyword arguments to whatever the module returns.
        lengths: the only lengths at which it is worth trying; any if empty.
    """

    words: str
    reads: Literal["tokens", "vectors"]
    size: int
    call: FormCall
    lengths: tuple[int, ...] = ()

    def sample(self, batch: int, length: int, dtype: torch.dtype) -> Tensor:
        """A fixed random input."""
        generator = torch.Generator().manual_seed(3)
        if self.reads == "tokens":
            return random_tokens(self.size, batch, length, generator)
        return torch.randn(batch, length, self.size, generator=generator, dtype=dtype)


def call_forms(module: nn.Module, parameters: Parameters) -> Iterator[CallForm]:
    """Every way that fits its parameter names, the sizes of its weights and its batch axis; likely ones first."""
    names = list(parameters)
    first = names[0].lower() if names else ""
    has_embedding = any(isinstance(child, nn.Embedding) for child in module.children())
    orders = [_token_forms(module, parameters), _vector_forms(module, parameters)]
    if not (first in TOKENS or has_embedding or "input_ids" in names):
        orders.reverse()
    for order in orders:
        yield from order


def _token_forms(module: nn.Module, parameters: Parameters) -> Iterator[CallForm]:
    names = list(parameters)
    main = _main_input(parameters, TOKENS)
    size = find_vocab_size(module)
    if size is None and main in TOKENS and main not in VECTORS:
        size = _measure_vocab_size(module, _call_with(module, parameters, [main], {}))
    if size is None:
        return
    for words, filled in fill_required(parameters, [main], module):
        call = _call_with(module, parameters, [main], filled)
        yield CallForm(f"tokens (b, t){words}", "tokens", size, call)
        for label in LABELS:  # code in the style of nanoGPT returns all logits only with labels
            if label in names and label != main:
                yield CallForm(
                    f"tokens (b, t){words}, {label}= the same",
                    "tokens",
                    size,
                    lambda x, named, call=call, label=label: call(x, {label: x, **named}),
                )
        for axes, way in _codebook_layouts(module, call):
            yield CallForm(f"tokens {axes}, the same in each codebook{words}", "tokens", size, way)
        yield CallForm(f"tokens (t, b){words}", "tokens", size, _transposed(call))


CODEBOOKS = ("num_codebooks", "n_codebooks", "num_quantizers", "n_q")


def _codebook_layouts(module: nn.Module, call: ArrangedCall) -> Iterator[tuple[str, FormCall]]:
    """The same call with one token for each codebook of an audio codec, in the layouts that models take."""
    holders = (getattr(module, "config", None), module)
    counts = [getattr(holder, name, None) for holder in holders for name in CODEBOOKS]
    n = next((count for count in counts if isinstance(count, int) and count > 1), None)
    if n is None:
        return

    def rows(x: Tensor, named: dict[str, Any]) -> Any:
        def restore(part: Tensor) -> Tensor:
            fits = part.ndim > 1 and tuple(part.shape[:2]) == (n * x.shape[0], x.shape[1])
            return part.unflatten(0, (-1, n)).transpose(1, 2) if fits else part

        return _change_parts(call(x, named, lambda x: x.repeat_interleave(n, 0)), restore)

    def second(x: Tensor, named: dict[str, Any]) -> Any:
        def restore(part: Tensor) -> Tensor:
            fits = part.ndim > 2 and tuple(part.shape[:3]) == (x.shape[0], n, x.shape[1])
            return part.transpose(1, 2) if fits else part

        return _change_parts(call(x, named, lambda x: x[:, None].expand(-1, n, -1)), restore)

    yield f"(b·{n}, t)", rows
    yield f"(b, {n}, t)", second
    yield f"(b, t, {n})", lambda x, named: call(x, named, lambda x: x[..., None].expand(-1, -1, n))


def _main_input(parameters: Parameters, known: tuple[str, ...]) -> str:
    """The parameter that takes the sequence: a known name among the required ones, else the first."""
    required = required_names(parameters)
    named = [name for name in known if name in parameters and name not in CAUSAL_FLAGS]
    if "input_ids" in named:
        return "input_ids"
    return next((name for name in named if name in required), next(iter(required or parameters), ""))


def _call_with(module: nn.Module, parameters: Parameters, inputs: list[str], filled: Fill) -> ArrangedCall:
    """Calls the module with the sequence as each of `inputs`: by name, or by position where it has to be.

    Other parameters are filled for a sequence (b, t, …), also if `arrange` brings the inputs into another layout.
    """
    by_position = any(passes_by_position(parameters, name) for name in inputs)

    def call(x: Tensor, named: dict[str, Any], arrange: Callable[[Tensor], Tensor] = lambda x: x) -> Any:
        shown = arrange(x)
        values = {key: value(x) for key, value in filled.items() if key not in named}
        more = {key: shown if value is x else value for key, value in values.items()} | named
        if by_position:
            return call_target(module, *[shown] * len(inputs), **more)
        return call_target(module, **dict.fromkeys(inputs, shown), **more)

    return call


def _transposed(call: ArrangedCall) -> FormCall:
    """The same call with the batch as the second axis of inputs and outputs."""

    def transposed(x: Tensor, named: dict[str, Any]) -> Any:
        def restore(part: Tensor) -> Tensor:
            fits = part.ndim > 1 and tuple(part.shape[:2]) == (x.shape[1], x.shape[0])
            return part.transpose(0, 1) if fits else part

        return _change_parts(call(x, named, lambda x: x.transpose(0, 1)), restore)

    return transposed


def _change_parts(result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Every tensor of a result, changed; a KV cache that was returned beside them stays as it is."""
    changed = tuple(change(part) for _, part in parts(result))
    if isinstance(result, dict) and (cache := find_returned_cache(result)) is not None:
        return {**{f"output {i}": part for i, part in enumerate(changed)}, "past_key_values": cache}
    return changed


def _vector_forms(module: nn.Module, parameters: Parameters) -> Iterator[CallForm]:
    roles = qkv_names(parameters)
    inputs = [_main_input(parameters, ("x", "hidden_states", "inputs", "input", "src"))]
    if "query" in roles:
        required = required_names(parameters)
        inputs = [name for role, name in roles.items() if role in ("query", "key", "value")]
        inputs = [name for name in inputs if name in required or len(inputs) == 3] or inputs[:1]
    role = f" as {', '.join(inputs)}" if len(inputs) > 1 else ""
    first_axis = has_sequence_first(module) if len(inputs) == 1 else getattr(module, "batch_first", True) is False
    dims = find_dims(module)
    for words, filled in fill_required(parameters, inputs, module):
        call = _call_with(module, parameters, inputs, filled)
        forms = [("(b, t, c)", call), ("(t, b, c)", _transposed(call))]
        for axes, way in reversed(forms) if first_axis else forms:
            for dim in dims:
                yield CallForm(f"vectors {axes}{role}{words}", "vectors", dim, way)
    if len(required_names(parameters)) == 1:  # Keras' attention takes [query, value, key]
        yield CallForm(
            "vectors (b, t, c) as a list of three", "vectors", dims[0], lambda x, named: module([x] * 3, **named)
        )
    channels = first_channels(module)
    for words, filled in fill_required(parameters, inputs, module):
        call = _call_with(module, parameters, inputs, filled)
        if channels is not None:  # before (t, c): code that takes any number of axes after the channels takes (b, c)
            yield CallForm(f"vectors (b, c, t){role}{words}", "vectors", channels, _channels_second(call))
            as_map = _as_map(call, "bcyx")
            yield CallForm(f"maps (b, c, y, x){role}{words}", "vectors", channels, as_map, MAP_SIZES)
        for dim in dims[:2]:
            yield CallForm(f"vectors (t, c){role}{words}, one sequence at a time", "vectors", dim, _one_by_one(call))
            yield CallForm(f"vectors (b, c, t){role}{words}", "vectors", dim, _channels_second(call))
            for axes in MAP_AXES:
                yield CallForm(f"maps ({', '.join(axes)}){role}{words}", "vectors", dim, _as_map(call, axes), MAP_SIZES)
        break


def _one_by_one(call: ArrangedCall) -> FormCall:
    """The same call for one sequence (t, c) after the other; each output is stacked."""

    def stacked(x: Tensor, named: dict[str, Any]) -> Any:
        rows = [[part for _, part in parts(call(row[None], named, lambda row: row[0]))] for row in x]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    return stacked


def _channels_second(call: ArrangedCall) -> FormCall:
    """The same call on (b, c, t), as convolutions take it."""

    def swapped(x: Tensor, named: dict[str, Any]) -> Any:
        def restore(part: Tensor) -> Tensor:
            return part.transpose(1, 2) if part.ndim == 3 and part.shape[2] == x.shape[1] else part

        return _change_parts(call(x, named, lambda x: x.transpose(1, 2)), restore)

    return swapped


MAP_SIZES = (64, 256, 196, 16, 1024)  # square maps: windows of 4, 7, 8 and 16 fit
MAP_AXES = ("bcyx", "byxc", "yxbc")


def _as_map(call: ArrangedCall, axes: str) -> FormCall:
    """The same call on square maps, read row by row as sequences."""
    order = ["byxc".index(axis) for axis in axes]
    back = [axes.index(axis) for axis in "byxc"]

    def mapped(x: Tensor, named: dict[str, Any]) -> Any:
        b, t, _ = x.shape
        side = math.isqrt(t)
        if side * side != t:
            raise ValueError(f"{t} tokens are no square map")

        def restore(part: Tensor) -> Tensor:
            fits = part.ndim == 4 and part.permute(back).shape[:3] == (b, side, side)
            return part.permute(back).flatten(1, 2) if fits else part

        result = call(x, named, lambda x: x.unflatten(1, (side, side)).permute(order).contiguous())
        return _change_parts(result, restore)

    return mapped


def choose_batch_axis(form: CallForm, forms: list[CallForm], sample: Tensor) -> CallForm:
    """The form, or the same with the other batch axis, if it attends along the rows of the batch and not along tokens.

    Code that numbers positions along one axis and attends along the other has a bug, and stays as it is.
    """
    pairs = {"(b, t": "(t, b", "(t, b": "(b, t"}
    start = form.words.partition(" ")[2][:5]
    if start not in pairs:
        return _choose_map(form, forms, sample)
    wanted = form.words.replace(start, pairs[start], 1)
    other = next((one for one in forms if one.words == wanted and one.size == form.size), None)
    if other is None or not _attends_over_rows(form, sample) or _attends_over_rows(other, sample):
        return form
    return form if _numbers_tokens(form, sample) else other


def _choose_map(form: CallForm, forms: list[CallForm], sample: Tensor) -> CallForm:
    """Another order of the axes of maps, if the rows of the batch see each other in this one and not in that."""
    axes = form.words.partition("(")[2].partition(")")[0]
    if not form.words.startswith("maps") or not _mixes_rows(form, sample):
        return form
    others = [one for one in forms if one.words.partition(")")[2] == form.words.partition(")")[2]]
    others = [one for one in others if one.words.startswith("maps") and one.size == form.size and axes not in one.words]
    return next((one for one in others if _mixes_rows(one, sample) is False), form)


def _mixes_rows(form: CallForm, sample: Tensor) -> bool | None:
    """Whether a change in one row changes another; None if it cannot be called so."""
    changed = sample.clone()
    changed[0] = sample[0].flip(0)
    try:
        with torch.no_grad():
            a, b = (find_output(form.call(x, {}), *x.shape[:2]) for x in (sample, changed))
    except Exception:
        return None
    return None if a is None or b is None else bool((a - b)[1:].abs().max() > 1e-9 * a.abs().max())


def _attends_over_rows(form: CallForm, sample: Tensor) -> bool:
    """Whether changes of one token change other rows, and no other token of its row."""
    moved = torch.zeros(sample.shape[:2], dtype=torch.bool)
    for row, token in ((1, 1), (1, 2), (2, 1), (2, 3), (1, 4), (2, 5)):  # one change may have no effect by chance
        changed = sample.clone()
        changed[0, 0] = sample[row % sample.shape[0], token % sample.shape[1]]
        try:
            with torch.no_grad():
                a, b = (find_output(form.call(x, {}), *x.shape[:2]) for x in (sample, changed))
        except Exception:
            return False
        if a is None or b is None:
            return False
        moved |= (a - b).abs().flatten(2).amax(-1) > 1e-9 * a.abs().max()
    return bool(moved[1:].any()) and not bool(moved[0, 1:].any())


def _numbers_tokens(form: CallForm, sample: Tensor) -> bool:
    """Whether one token repeated has outputs that differ along the tokens, and not along the rows."""
    same = sample[:1, :1].expand_as(sample).clone()
    try:
        with torch.no_grad():
            out = find_output(form.call(same, {}), *sample.shape[:2])
    except Exception:
        return False
    if out is None:
        return False
    size = out.abs().max()
    along_tokens, along_rows = (out - out[:, :1]).abs().max() / size, (out - out[:1]).abs().max() / size
    return bool(along_tokens > 1e-6) and bool(along_rows < 1e-6)


# -- other parameters --------------------------------------------------------------------------------------------------


def fill_required(
    parameters: Parameters, given: list[str], module: nn.Module | None = None
) -> Iterator[tuple[str, Fill]]:
    """Values for parameters without a default, with words; each combination of what their names allow.

    Last come the combinations with known parameters that have a default: some code needs them all the same.
    """
    required = [name for name in required_names(parameters) if name not in given]
    yield from _fill(parameters, required, module)
    optional = [
        name
        for name in parameters
        if name not in (*required, *given, "attention_mask")
        and (name in NEEDED or name in MASKS[:4] or name in POSITIONS or name in ROTATIONS)
    ]
    if optional:
        yield from itertools.islice(_fill(parameters, [*required, *optional], module), 12)


def _fill(parameters: Parameters, required: list[str], module: nn.Module | None) -> Iterator[tuple[str, Fill]]:
    masks = [name for name in required if name in (*mask_names(required), *PADDING_MASKS, *SOURCE_MASKS)]
    choices = _choices([name for name in required if name not in masks], parameters, module)
    for picked in itertools.islice(itertools.product(*choices), 16):
        said = "".join(words for words, _ in picked) + "".join(f", {name}=None" for name in masks)
        chosen: Fill = {name: value for _, values in picked for name, value in values.items()}
        yield said, chosen | {name: lambda x: None for name in masks}
        if masks:
            for words, full_mask in FULL_MASKS.items():
                yield f", {', '.join(masks)}= {words}", chosen | dict.fromkeys(masks, full_mask)


def _choices(names: list[str], parameters: Parameters, module: nn.Module | None) -> list[list[tuple[str, Fill]]]:
    """What each parameter may take, in words and as code; two tables of RoPE are of one shape, and chosen as one."""
    options = {name: _options(name, parameters[name].annotation, module) for name in names}
    pair = ("cos", "sin")
    choices: list[list[tuple[str, Fill]]] = [
        [(f", {name}={words}" if words else "", {name: value}) for words, value in ways]
        for name, ways in options.items()
        if name not in pair or not options.keys() >= set(pair)
    ]
    if options.keys() >= set(pair):
        tables = zip(*(options[name] for name in pair), strict=True)
        choices.append(
            [(f", cos and sin={words}", dict(zip(pair, (c, s), strict=True))) for (words, c), (_, s) in tables]
        )
    return choices


TIMES = ("t", "timestep", "timesteps", "time", "temb_t", "noise_level", "sigma")
CLASSES = ("class_labels", "y", "labels", "class_ids", "classes")
MAP_SIDES = ("feat_size", "hw_shape", "hw", "spatial_shape", "grid_size", "x_size", "size", "resolution", "map_size")
NEEDED = (*TIMES[1:4], *CLASSES[:1])


def _options(name: str, annotation: Any, module: nn.Module | None) -> list[tuple[str, Callable[[Tensor], Any]]]:
    """What a required parameter may take, in words and as code."""
    low, kind = name.lower(), str(annotation)
    if name in ("input_pos", "cache_position"):
        return [("", lambda x: torch.arange(x.shape[1]))]
    if name in OFFSETS:
        return [("", lambda x: 0), ("positions", lambda x: torch.arange(x.shape[1]))]
    if name in POSITIONS:
        return [
            ("positions (t)", lambda x: torch.arange(x.shape[1])),
            ("positions (b, t)", lambda x: torch.arange(x.shape[1]).expand(x.shape[0], -1)),
        ]
    if name in CAUSAL_FLAGS:
        return [("", lambda x: False)]
    if name in DROPOUT_NAMES:
        return [("0", lambda x: 0.0)]
    if name in LENGTHS:
        return [("the lengths", lambda x: torch.full((x.shape[0],), x.shape[1]))]
    if (low in ("h", "height", "w", "width") and module is not None and "int" in kind) or name in ("H", "W"):
        return [("a side of the map", lambda x: _sides(x.shape[1])[low in ("w", "width")])]
    if low in MAP_SIDES:
        return [
            ("the sides of the map", lambda x: _sides(x.shape[1])),
            ("the sides of the map after a class token", lambda x: _sides(x.shape[1] - 1)),
            ("None", lambda x: None),
        ]
    if name in CLASSES:
        return [("(b) classes", lambda x: torch.zeros(x.shape[0], dtype=torch.long)), ("None", lambda x: None)]
    if name in TIMES:
        return [("(b) numbers", lambda x: torch.full((x.shape[0],), 0.5, dtype=_float(x)))]
    if low in ROTATIONS:
        return _rotary_tables(low, module)
    if name in HEAD_COUNTS:
        return [("4", lambda x: 4)]
    if annotation is bool or kind == "bool":
        return [("False", lambda x: False)]
    if annotation is int or kind == "int":
        return [("1", lambda x: 1), ("4", lambda x: 4)]
    if annotation is float or kind == "float":
        return [("1.0", lambda x: 1.0)]
    if re.search(r"pos|(^|_)pe(_|$)", low):  # positions do not change with the input
        return [("None", lambda x: None), ("a fixed table", _fixed_table)]
    return [("None", lambda x: None), ("x", lambda x: x)]


def _fixed_table(x: Tensor) -> Tensor:
    """Numbers of the shape of vectors (b, t, c) that are the same for every row and every input."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(x.shape[1:], generator=generator, dtype=torch.float64).to(_float(x)).expand(x.shape)


def _float(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.get_default_dtype()


def _sides(tokens: int) -> tuple[int, int]:
    """Two numbers near each other with this product."""
    side = next((n for n in range(int(tokens**0.5), 0, -1) if tokens % n == 0), 1)
    return side, tokens // side


ROTATIONS = ("cos", "sin", "freqs_cis", "freqs", "rope", "rotary", "position_embeddings", "freqs_complex", "cos_sin")
ROTATED_DIMS = (
    "rope_n_elem", "rotary_dim", "rope_dim", "rotary_ndims", "qk_rope_head_dim", "head_dim", "d_head", "dim_head",
    "d_k", "head_size", "hd",
)  # fmt: skip


def _rotary_tables(name: str, module: nn.Module | None) -> list[tuple[str, Callable[[Tensor], Any]]]:
    """Tables of RoPE, for each number of rotated dims that the module or its config may have."""
    holders = (module, *(getattr(module, known, None) for known in ("config", "cfg", "args")))
    dims = [getattr(holder, known, None) for known in ROTATED_DIMS for holder in holders]

    def angles(x: Tensor, d: int) -> Tensor:  # in float64: tables are rounded, angles are not
        return torch.arange(x.shape[1])[:, None] * 10_000 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)

    def turn(x: Tensor, by: Tensor) -> Tensor:
        return (by.cos() if name == "cos" else by.sin()).to(_float(x))

    def polar(x: Tensor, by: Tensor) -> Tensor:
        wide = by if _float(x) == torch.float64 else by.float()
        return torch.polar(torch.ones_like(wide), wide)

    found: list[tuple[str, Callable[[Tensor], Any]]] = []
    for d in dict.fromkeys((*(d for d in dims if type(d) is int and d > 0 and d % 2 == 0), 8)):
        full = lambda x, d=d: torch.cat((angles(x, d), angles(x, d)), -1)  # noqa: E731
        half = lambda x, d=d: angles(x, d)  # noqa: E731
        if name in ("cos", "sin"):
            found += [
                ("a table (t, d)", lambda x, f=full: turn(x, f(x))),
                ("a table (t, d/2)", lambda x, f=half: turn(x, f(x))),
                ("a table (1, t, d)", lambda x, f=full: turn(x, f(x))[None]),
            ]
        else:
            found += [
                ("complex (t, d/2)", lambda x, f=half: polar(x, f(x))),
                ("(cos, sin)", lambda x, f=full: (f(x).cos().to(_float(x)), f(x).sin().to(_float(x)))),
                (
                    "(cos, sin) (1, t, d)",
                    lambda x, f=full: (f(x).cos().to(_float(x))[None], f(x).sin().to(_float(x))[None]),
                ),
                ("(cos, sin) of half the dims", lambda x, f=half: (f(x).cos().to(_float(x)), f(x).sin().to(_float(x)))),
                ("angles (t, d/2)", lambda x, f=half: f(x).to(_float(x))),
                ("None", lambda x: None),
            ]
    return found


FULL_MASKS: Fill = {
    "(t, t) all True": lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool),
    "(b, 1, t, t) all True": lambda x: torch.ones(x.shape[0], 1, x.shape[1], x.shape[1], dtype=torch.bool),
    "(b, t) all True": lambda x: torch.ones(x.shape[:2], dtype=torch.bool),
    "(t, t) all 1": lambda x: torch.ones(x.shape[1], x.shape[1]),
    "(b, t) all 1": lambda x: torch.ones(x.shape[:2], dtype=torch.long),
    "(t, t, 1) all True": lambda x: torch.ones(x.shape[1], x.shape[1], 1, dtype=torch.bool),
    "(t, t) all 0": lambda x: torch.zeros(x.shape[1], x.shape[1], dtype=_float(x)),
}


def padding_argument(parameter: str, token_mask: Tensor, table: dict[str, bool]) -> Tensor:
    """A padding argument with the polarity that its name says (unknown: True = padding); attention_mask: integers."""
    mask = token_mask if table.get(parameter, False) else ~token_mask
    return mask.long() if parameter.endswith("attention_mask") else mask


# -- sizes -------------------------------------------------------------------------------------------------------------


def find_vocab_size(module: nn.Module) -> int | None:
    """The vocabulary size by its config, its attributes, or its embedding that is not one of positions."""
    config = getattr(module, "config", None)
    for holder in (config, getattr(config, "text_config", None), module):
        for name in ("vocab_size", "vocab", "n_vocab"):
            if isinstance(size := getattr(holder, name, None), int) and not isinstance(size, bool):
                return size
    tables = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Embedding)]
    likely = [part for name, part in tables if not any(word in name.lower() for word in ("pos", "wpe", "rel", "bias"))]
    if likely:
        return likely[0].num_embeddings
    leaves = (part for part in module.modules() if not list(part.children()))
    first = next((part for part in leaves if list(part.parameters(recurse=False))), None)
    return tables[0][1].num_embeddings if tables and isinstance(first, nn.Embedding) else None


def _measure_vocab_size(module: nn.Module, call: Callable[[Tensor, dict[str, Any]], Any]) -> int | None:
    """For tables that are plain parameters: the largest axis of a matrix whose last token can still be read."""
    sizes = {size for table in (*module.parameters(), *module.buffers()) if table.ndim == 2 for size in table.shape}
    for size in sorted(sizes, reverse=True):
        try:
            out = find_output(call(torch.full((2, 5), size - 1), {}), 2, 5)
        except Exception:  # no row for this token, or it takes no tokens
            continue
        if out is not None:
            return size
    return None


DIM_NAMES = (
    "embed_dim", "d_model", "width", "dim", "hidden_size", "n_embd", "input_dim", "in_dim", "channels", "c",
    "input_channels", "num_variates", "n_vars", "enc_in",
)  # fmt: skip


def find_dims(module: nn.Module) -> list[int]:
    """The possible sizes of its vectors, likely ones first."""
    found: list[int] = []
    config = getattr(module, "config", None)
    found += [size for name in ("num_input_channels",) if isinstance(size := getattr(config, name, None), int)]
    for name in DIM_NAMES:
        if isinstance(size := getattr(module, name, None), int) and not isinstance(size, bool):
            found.append(size)
    for part in module.modules():
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):
            found.append(part.normalized_shape[-1])
        elif isinstance(part, nn.Linear):
            found.append(part.in_features)
        elif isinstance(part, nn.Conv1d):
            found.append(part.in_channels)
    shapes = [p.shape for p in module.parameters() if not isinstance(p, nn.parameter.UninitializedParameter)]
    found += [size for shape in shapes for size in (*shape[-1:], *shape) if 1 < size <= 4096]
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()) or not found:
        found.append(32)
    return [size for size in dict.fromkeys(found) if size > 0][:6]


def first_channels(module: nn.Module) -> int | None:
    """The channels of the first part with weights, if that reads (b, channels, …): a norm of groups, a convolution."""
    leaves = (part for part in module.modules() if not list(part.children()))
    first = next((part for part in leaves if list(part.parameters(recurse=False))), None)
    if isinstance(first, nn.GroupNorm):
        return first.num_channels
    if isinstance(first, nn.BatchNorm1d | nn.BatchNorm2d):
        return first.num_features
    return first.in_channels if isinstance(first, nn.Conv1d | nn.Conv2d) else None


SEQUENCE_FIRST = re.compile(
    r"[(\[]\s*(?!(\w+)\s*,\s*\1\b)(t|s|l|n|seq|time|seq_?len|sequence|length|tokens?|tgt_len|src_len)\s*,\s*(b|n|batch|bsz|batch_?size|bs)\s*,|"
    r"\b(t|s|l|seq_?len|tgt_len|src_len|length|time)\s*,\s*(b|n|batch|bsz|batch_?size|bs)\s*(,\s*\w+\s*)?=\s*\w+\.(shape|size)",
    re.IGNORECASE,
)


def has_sequence_first(module: nn.Module) -> bool:
    """Whether a part of it says batch_first=False, or its own text says that the sequence comes before the batch."""
    says = [part.batch_first for part in module.modules() if hasattr(part, "batch_first")]
    if says:
        return False in says
    try:
        lines = inspect.getsource(type(module))
    except (OSError, TypeError):
        return False
    forward = lines[: lines.find("def __init__")] + lines[max(lines.find("def forward"), 0) :]
    return SEQUENCE_FIRST.search(forward) is not None
