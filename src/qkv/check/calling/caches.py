"""KV caches: which convention a module follows, found by trying each."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from qkv.check.calling.names import HEAD_COUNTS, KEY_HEAD_COUNTS, OFFSETS, Fill, Parameters
from qkv.check.calling.outputs import find_output

# parameters that take a KV cache
CACHES = (
    "cache", "past_key_values", "past_key_value", "kv_cache", "layer_past", "past", "state", "cache_params", "past_kv",
    "kv", "caches", "kv_caches", "layer_cache", "past_kvs", "memory_cache", "cached_kv",
)  # fmt: skip
# flags that turn a KV cache on
CACHE_FLAGS = (
    "use_cache", "return_cache", "use_kv_cache", "return_kv", "layer_cache_on", "return_present", "return_kv_cache",
)  # fmt: skip
# methods of modules that keep their KV cache themselves
CACHE_RESETS = ("reset_cache", "reset_kv_cache", "clear_cache", "clear_kv_cache", "empty_cache")
CACHE_SETUPS = ("set_kv_cache", "setup_cache", "setup_caches")

LENGTHS = ("max_len", "max_length", "max_seq_len", "max_seq_length", "length", "capacity", "size")
CACHE_DIMS = ("head_dim", "d_head", "dim_head", "head_size", "d_k", "dh", "hd")
MAKER = re.compile(
    r"(new|make|init|create|empty|alloc|allocate|get|build|fresh|start|initial|prepare)_\w*(cache|caches|state)|(cache|caches|kv_cache)_(init|new)"
)
RunCached = Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True)
class CacheConvention:
    """How a KV cache is used. It may be passed in and returned (Hugging Face, tuples of keys and values), made by the
    module (`new_cache`), filled in place (a list, a dictionary), or kept by the module itself. Such a module
    takes the start of a piece (`input_pos`, `start_pos`), or options to remember (`use_cache`) and to forget
    (`reset_cache`).

    Args:
        begin: from the batch size to the cache before the first piece.
        arguments: from the cache, the offset and the length of a piece to its keyword arguments.
        update: from the result of a call and the old cache to the new one.
    """

    words: str
    begin: Callable[[int], Any]
    arguments: Callable[[Any, int, int], dict[str, Any]]
    update: Callable[[Any, Any], Any] = lambda result, cache: cache

    def run(self, call: Callable[[Tensor, dict[str, Any]], Any], fixed: Fill, parts: Sequence[Tensor]) -> Tensor:
        """Run pieces one after the other; returns the outputs of all."""
        cache = self.begin(parts[0].shape[0])
        outs, start = [], 0
        for part in parts:
            result = call(part, self.named(fixed, part, cache, start))
            cache = self.update(result, cache)
            out = find_output(result, *part.shape[:2])
            if out is None:
                raise ValueError("a call with a cache gave no output of shape (batch, tokens, …)")
            outs.append(out)
            start += part.shape[1]
        return torch.cat(outs, dim=1)

    def named(self, fixed: Fill, part: Tensor, cache: Any, start: int) -> dict[str, Any]:
        return {key: value(part) for key, value in fixed.items()} | self.arguments(cache, start, part.shape[1])


def find_cache(
    module: nn.Module,
    call: Callable[[Tensor, dict[str, Any]], Any],
    parameters: Parameters,
    fixed: Fill,
    sample: Tensor,
) -> tuple[str, RunCached] | None:
    """The first convention under which two pieces can be run and the second sees the first, in words and as code."""
    unread: tuple[str, RunCached] | None = None
    for convention in _cache_conventions(module, parameters):
        run_cached = partial(convention.run, call, fixed)
        try:
            with torch.no_grad():
                first, second = sample[:, :3], sample[:, 3:]
                cache = convention.begin(2)
                result = call(first, convention.named(fixed, first, cache, 0))
                kept = convention.update(result, cache)
                if kept is None and convention.words in CACHES:
                    continue
                out = run_cached([first, second])
                other = run_cached([first.flip(0), second])  # the other row: order alone may not matter
        except Exception:  # whatever goes wrong: this is not how its cache works
            continue
        if bool(((out - other)[:, 3:].abs() > 0).any()):
            return convention.words, run_cached
        if unread is None and isinstance(kept, tuple | list | dict) and _holds_tokens(kept, first.shape[1]):
            unread = convention.words, run_cached
    return unread


def _holds_tokens(cache: Any, length: int) -> bool:
    """Whether it holds two tensors with an axis of tokens at least: keys and values that no call may read."""
    tensors = [x for x in tree_leaves(cache) if isinstance(x, Tensor) and x.ndim >= 3]
    return sum(length in x.shape[1:] for x in tensors) >= 2


def _cache_conventions(module: nn.Module, parameters: Parameters) -> Iterator[CacheConvention]:
    name = next((known for known in CACHES if known in parameters), None)
    flags = {known: True for known in CACHE_FLAGS if known in parameters}
    if name is not None:

        def pass_cache(cache: Any, start: int, size: int) -> dict[str, Any]:
            return {name: cache, **flags}

        for words, make in _cache_makers(module, parameters[name]):
            yield CacheConvention(words, make, pass_cache)
            yield CacheConvention(
                f"{words}, returned", make, pass_cache, lambda result, cache: find_returned_cache(result) or cache
            )
        yield CacheConvention(name, lambda batch: None, pass_cache, lambda result, cache: find_returned_cache(result))
        yield CacheConvention(f"{name}= {{}}, filled in place", lambda batch: {}, pass_cache)
        yield CacheConvention(f"{name}= [], filled in place", lambda batch: [], pass_cache)
        for count in _layer_counts(module):
            words = f"{name}= a {{}} for each of {count} layers, filled in place"
            yield CacheConvention(words, lambda batch, count=count: [{} for _ in range(count)], pass_cache)
            words = f"{name}= None for each of {count} layers, returned"
            none = lambda batch, count=count: [None] * count  # noqa: E731
            yield CacheConvention(words, none, pass_cache, lambda result, cache: find_returned_cache(result) or cache)
    yield from _internal_cache_conventions(module, parameters, flags)


def _cache_makers(module: nn.Module, parameter: inspect.Parameter) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Ways to make an empty cache: a method of the module, or the class that the parameter is annotated with."""
    for known in dir(type(module)):
        if MAKER.fullmatch(known) and callable(method := getattr(module, known)):
            yield f"{known}()", lambda batch, method=method: _make_cache(method, batch, module)
    kind = parameter.annotation
    if isinstance(kind, str):
        home = vars(sys.modules[type(module).__module__]) if type(module).__module__ in sys.modules else {}
        kind = home.get(re.sub(r"Optional\[|\]|\s*\|\s*None", "", kind), kind)
    options = [one for one in (typing.get_args(kind) or (kind,)) if isinstance(one, type)]
    for kind in options:
        if kind is not parameter.empty and kind not in (tuple, list, dict, Tensor, type(None), object):
            yield f"{kind.__name__}()", lambda batch, kind=kind: _make_cache(kind, batch, module)
            for count in _layer_counts(module):
                words = f"a {kind.__name__}() for each of {count} layers"
                yield words, lambda batch, kind=kind, n=count: [_make_cache(kind, batch, module) for _ in range(n)]


def _layer_counts(module: nn.Module) -> list[int]:
    """How many layers it may have: the lengths of its lists of modules."""
    return list(dict.fromkeys(len(part) for part in module.modules() if isinstance(part, nn.ModuleList) and len(part)))


def _make_cache(make: Callable[..., Any], batch: int, module: nn.Module) -> Any:
    """An empty cache; sizes are passed if it asks for them, those of heads as the module names them."""
    known: dict[str, Any] = dict.fromkeys(("batch", "batch_size", "b", "bsz", "max_batch_size", "B"), batch)
    known |= dict.fromkeys(LENGTHS, 512)
    dtype = next((p.dtype for p in module.parameters()), torch.get_default_dtype())
    known |= {"device": torch.device("cpu"), "dtype": dtype}
    known |= _head_sizes(module)
    parameters = inspect.signature(make).parameters
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        or (name in known and not (name in LENGTHS and isinstance(parameter.default, int)))  # its own may show a bug
    ]
    return make(**{name: known[name] for name in needed if parameters[name].kind is not inspect.Parameter.VAR_KEYWORD})


def _head_sizes(module: nn.Module) -> dict[str, int]:
    """The number of key heads and the head dim, by every name that a cache may ask for them with."""
    named = {name: value for part in module.modules() for name, value in vars(part).items() if type(value) is int}
    heads = next((named[name] for name in (*KEY_HEAD_COUNTS, *HEAD_COUNTS) if name in named), None)
    dim = next((named[name] for name in CACHE_DIMS if name in named), None)
    found = dict.fromkeys((*KEY_HEAD_COUNTS, *HEAD_COUNTS), heads) | dict.fromkeys(CACHE_DIMS, dim)
    layers = next(iter(_layer_counts(module)), None)
    found |= dict.fromkeys(("n_layers", "num_layers", "layers", "n_layer"), layers)
    return {name: size for name, size in found.items() if size is not None}


def _internal_cache_conventions(
    module: nn.Module, parameters: Parameters, flags: dict[str, bool]
) -> Iterator[CacheConvention]:
    """For modules that keep their KV cache themselves."""
    offset = next((known for known in OFFSETS if known in parameters), None)
    reset = next((getattr(module, known) for known in CACHE_RESETS if hasattr(module, known)), None)
    setup = next((getattr(module, known) for known in CACHE_SETUPS if hasattr(module, known)), None)

    def begin(batch: int) -> None:
        if reset is not None:
            reset()
        if setup is not None:
            known = {"batch_size": batch, "max_batch_size": batch, "max_seq_length": 64, "max_seq_len": 64}
            setup(**{name: value for name, value in known.items() if name in inspect.signature(setup).parameters})

    if offset is not None:
        yield CacheConvention(
            f"{offset}; the module keeps its cache",
            begin,
            lambda cache, start, size: {offset: torch.arange(start, start + size), **flags},
        )
        yield CacheConvention(
            f"{offset}, a number; the module keeps its cache",
            begin,
            lambda cache, start, size: {offset: start, **flags},
        )
    elif flags and reset is not None:
        words = f"{next(iter(flags))}; the module keeps its cache"
        yield CacheConvention(words, begin, lambda cache, start, size: dict(flags))


def find_returned_cache(result: Any) -> Any:
    """The KV cache that a call returned, or None."""
    for name in ("past_key_values", "cache_params", "state", "cache", "mems"):
        if (cache := getattr(result, name, None)) is not None:
            return cache
    if isinstance(result, dict):
        return next((value for name, value in result.items() if "cache" in name or "past" in name), None)
    if isinstance(result, tuple | list) and len(result) > 1:
        nested = [part for part in result[1:] if isinstance(part, tuple | list | dict) and part]
        return nested[0] if nested else result[-1]
    return None
