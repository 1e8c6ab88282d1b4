"""Running pieces one after another through a module's cache, in the conventions that are in use.

A cache may be handed in and back (Hugging Face, tuples of keys and values), made by the module (`new_cache`), be filled
in place (a list, a dictionary), or be kept inside the module, which is then told where a piece begins (`input_pos`,
`start_pos`) or that it should remember (`use_cache`) and forget (`reset_cache`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.forms import Parameters
from qkv.check.names import ASKING, CACHES, OFFSETS, RESETS
from qkv.check.outputs import held, output_of

Pieces = Callable[[Sequence[Tensor], Sequence[Tensor | None]], Tensor]
Call = Callable[[Tensor, dict[str, Any]], Any]


@dataclass(frozen=True)
class Cached:
    """A convention: `begin` gives what is held before the first piece, `arguments` what a call at an offset is told."""

    words: str
    begin: Callable[[int], Any]
    arguments: Callable[[Any, int, int], dict[str, Any]]
    keep: Callable[[Any, Any], Any]


def cached(
    module: nn.Module, call: Call, parameters: Parameters, fixed: dict[str, Any], padding: str | None, sample: Tensor
) -> tuple[str, Pieces] | None:
    """The first convention under which two pieces can be run and the second sees the first."""
    for way in _ways(module, parameters):
        pieces = _pieces(way, call, fixed, padding)
        try:
            with torch.no_grad():
                begun = way.keep(call(sample[:, :3], _named(way, fixed, sample[:, :3], way.begin(2), 0)), way.begin(2))
                if begun is None and way.words in CACHES:
                    continue
                out = pieces([sample[:, :3], sample[:, 3:]], [None, None])
                other = pieces([sample[:, :3].flip(1), sample[:, 3:]], [None, None])
        except Exception:  # whatever goes wrong here, this is not how its cache works
            continue
        if bool(((out - other)[:, 3:].abs() > 0).any()):
            return way.words, pieces
    return None


def _ways(module: nn.Module, parameters: Parameters) -> Iterator[Cached]:
    name = next((known for known in CACHES if known in parameters), None)
    asked = {known: True for known in ASKING if known in parameters}
    fresh = getattr(module, "new_cache", None)
    if name is not None and fresh is not None:
        yield Cached("new_cache()", lambda batch: fresh(), lambda cache, *_: {name: cache, **asked}, lambda _, old: old)
    elif name is not None:
        yield Cached(name, lambda batch: None, lambda cache, *_: {name: cache, **asked}, lambda result, _: held(result))
        for words, empty in (("{}", dict), ("[]", list)):
            yield Cached(
                f"{name}= {words}, filled in place",
                lambda batch, empty=empty: empty(),
                lambda cache, *_: {name: cache, **asked},
                lambda _, old: old,
            )
    yield from _inside(module, parameters, asked)


def _inside(module: nn.Module, parameters: Parameters, asked: dict[str, bool]) -> Iterator[Cached]:
    """Modules that keep their cache themselves."""
    offset = next((known for known in OFFSETS if known in parameters), None)
    reset = next((getattr(module, known) for known in RESETS if hasattr(module, known)), None)
    make = next(
        (getattr(module, known) for known in ("set_kv_cache", "setup_cache", "setup_caches") if hasattr(module, known)),
        None,
    )

    def begin(batch: int) -> None:
        if reset is not None:
            reset()
        if make is not None:
            wanted = inspect.signature(make).parameters
            known = {"batch_size": batch, "max_batch_size": batch, "max_seq_length": 64, "max_seq_len": 64}
            make(**{name: value for name, value in known.items() if name in wanted})

    if offset is not None:
        for words, place in (
            (offset, lambda start, size: torch.arange(start, start + size)),
            (f"{offset}, a number", lambda start, size: start),
        ):
            yield Cached(
                f"{words}; the module keeps its cache",
                begin,
                lambda _, start, size, place=place: {offset: place(start, size), **asked},
                lambda _, old: old,
            )
    elif asked and reset is not None:
        yield Cached(
            f"{next(iter(asked))}; the module keeps its cache", begin, lambda *_: dict(asked), lambda _, old: old
        )


def _named(way: Cached, fixed: dict[str, Any], part: Tensor, cache: Any, start: int) -> dict[str, Any]:
    return {key: value(part) for key, value in fixed.items()} | way.arguments(cache, start, part.shape[1])


def _pieces(way: Cached, call: Call, fixed: dict[str, Any], padding: str | None) -> Pieces:
    def pieces(parts: Sequence[Tensor], flags: Sequence[Tensor | None]) -> Tensor:
        cache = way.begin(parts[0].shape[0])
        outs, seen, start = [], [], 0
        for part, present in zip(parts, flags, strict=True):
            named = _named(way, fixed, part, cache, start)
            if present is not None and padding is not None:
                seen.append(present)
                named[padding] = present if padding == "present" else torch.cat(seen, dim=1).long()
            result = call(part, named)
            cache = way.keep(result, cache)
            out = output_of(result, *part.shape[:2])
            if out is None:
                raise ValueError("a call with a cache gave no output of shape (batch, tokens, …)")
            outs.append(out)
            start += part.shape[1]
        return torch.cat(outs, dim=1)

    return pieces
