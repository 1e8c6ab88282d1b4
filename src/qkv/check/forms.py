"""The ways in which a module on tokens or on vectors may be called, likeliest first.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv.check.names import CAUSAL, MASKS, OFFSETS, PADDING, QUERIES, SOURCE_MASKS, TOKENS

Parameters = Mapping[str, Parameter]


@dataclass(frozen=True)
class Form:
    """One way to call a module. call: from the input and further named arguments to whatever comes back.

    size: how many tokens there are, or how wide a vector is.
    """

    words: str
    reads: Literal["tokens", "vectors"]
    size: int
    call: Callable[[Tensor, dict[str, Any]], Any]

    def sample(self, batch: int, length: int, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        if self.reads == "tokens":
            return torch.randint(min(3, self.size - 1), self.size, (batch, length), generator=generator)
        return torch.randn(batch, length, self.size, generator=generator, dtype=dtype)


def forms(module: nn.Module, parameters: Parameters) -> Iterator[Form]:
    """Every way that fits the names of its parameters, the sizes of its weights and its batch axis."""
    names = list(parameters)
    orders = [_token_forms(module, parameters), _vector_forms(module, parameters)]
    first = names[0].lower() if names else ""
    direct = any(isinstance(child, nn.Embedding) for child in module.children())
    if not (first in TOKENS or direct or "input_ids" in names):
        orders.reverse()
    for order in orders:
        yield from order


def _token_forms(module: nn.Module, parameters: Parameters) -> Iterator[Form]:
    size = vocabulary(module)
    if size is None:
        return
    names = list(parameters)
    for words, filled in fillings(parameters, names[:1]):

        def call(x: Tensor, named: dict[str, Any], filled: Fill = filled) -> Any:
            return module(x, **{key: value(x) for key, value in filled.items() if key not in named}, **named)

        yield Form(f"tokens (b, t){words}", "tokens", size, call)
        for known in ("targets", "labels", "target"):  # code in the manner of nanoGPT gives all outputs only then
            if known in names:
                yield Form(f"tokens (b, t){words}, {known}= the same", "tokens", size, _with(call, known))
    if "input_ids" in names:
        yield Form("tokens (b, t) as input_ids", "tokens", size, lambda x, named: module(input_ids=x, **named))


def _vector_forms(module: nn.Module, parameters: Parameters) -> Iterator[Form]:
    names = list(parameters)
    three = len(names) >= 3 and names[0].lower() in QUERIES
    flipped = getattr(module, "batch_first", True) is False if three else _sequence_first(module)
    taken = names[: 3 if three else 1]
    said = " as query, key and value" if three else ""
    for words, filled in fillings(parameters, taken):

        def call(x: Tensor, named: dict[str, Any], filled: Fill = filled) -> Any:
            more = {key: value(x) for key, value in filled.items() if key not in named} | named
            if not flipped:
                return module(*[x] * len(taken), **more)
            return _turned(module(*[x.transpose(0, 1)] * len(taken), **more))

        for width in widths(module):
            yield Form(f"vectors {'(t, b, c)' if flipped else '(b, t, c)'}{said}{words}", "vectors", width, call)
    for width in widths(module)[:1]:
        yield Form(
            f"vectors (t, c){said}, one text at a time",
            "vectors",
            width,
            lambda x, named: torch.stack([_plain(module(*[row] * len(taken), **named)) for row in x]),
        )


Fill = dict[str, Callable[[Tensor], Any]]


def fillings(parameters: Parameters, taken: list[str]) -> Iterator[tuple[str, Fill]]:
    """Values for parameters that have no default: nothing for masks and the like, or masks that allow everything."""
    wanted = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and name not in taken
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    known: Fill = {name: _offset(name) for name in wanted if name in OFFSETS}
    known |= {name: _no for name in wanted if name in CAUSAL}
    masks = [name for name in wanted if name in (*MASKS, *PADDING, *SOURCE_MASKS)]
    rest: Fill = {name: _nothing for name in wanted if name not in known and name not in masks}
    yield _said(wanted, "None"), known | rest | dict.fromkeys(masks, _nothing)
    for words, full in FULL.items() if masks else ():
        yield f", {', '.join(masks)}= {words}", known | rest | dict.fromkeys(masks, full)


FULL: dict[str, Callable[[Tensor], Any]] = {
    "(t, t) all True": lambda x: torch.ones(x.shape[1], x.shape[1], dtype=torch.bool),
    "(b, 1, t, t) all True": lambda x: torch.ones(x.shape[0], 1, x.shape[1], x.shape[1], dtype=torch.bool),
    "(b, t) all True": lambda x: torch.ones(x.shape[:2], dtype=torch.bool),
    "(t, t) all 1": lambda x: torch.ones(x.shape[1], x.shape[1]),
    "(b, t) all 1": lambda x: torch.ones(x.shape[:2], dtype=torch.long),
}


def _said(wanted: list[str], value: str) -> str:
    others = [name for name in wanted if name not in OFFSETS]
    return "".join(f", {name}={value}" for name in others)


def _nothing(x: Tensor) -> None:
    return None


def _no(x: Tensor) -> bool:
    return False


def _offset(name: str) -> Callable[[Tensor], Any]:
    return (lambda x: torch.arange(x.shape[1])) if name in ("input_pos", "cache_position") else lambda x: 0


def _with(call: Callable[..., Any], known: str) -> Callable[[Tensor, dict[str, Any]], Any]:
    return lambda x, named: call(x, {known: x, **named})


def vocabulary(module: nn.Module) -> int | None:
    """How many tokens it knows: by its config, by itself, or by its table that is not one of positions."""
    tables = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Embedding)]
    config = getattr(module, "config", None)
    for holder in (config, getattr(config, "text_config", None), module):
        for known in ("vocab_size", "vocab", "n_vocab"):
            if isinstance(size := getattr(holder, known, None), int):
                return size
    likely = [part for name, part in tables if "pos" not in name.lower()]
    return (likely or [part for _, part in tables])[0].num_embeddings if tables else None


def widths(module: nn.Module) -> list[int]:
    """How wide its vectors may be, likeliest first."""
    found: list[int] = []
    for name in ("embed_dim", "d_model", "width", "dim", "hidden_size", "n_embd"):
        if isinstance(size := getattr(module, name, None), int):
            found.append(size)
    for part in module.modules():
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):
            found.append(part.normalized_shape[-1])
        elif isinstance(part, nn.Linear):
            found.append(part.in_features)
    if not found:
        found = [size for parameter in module.parameters() for size in parameter.shape if 1 < size <= 4096]
    return list(dict.fromkeys(found))[:6]


def _sequence_first(module: nn.Module) -> bool:
    return any(getattr(part, "batch_first", True) is False for part in module.modules())


def _turned(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.transpose(0, 1)
    return (result[0].transpose(0, 1), *result[1:])


def _plain(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]
