"""Layers and models: find how to call a module, how it is masked and how its KV cache works, by names and by trying.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.encoder_decoder import encoder_decoder_implementation
from qkv.check.calling.images import image_implementation
from qkv.check.calling.mask_forms import MaskForm, find_mask_form
from qkv.check.calling.signatures import (
    CAUSAL_FLAGS,
    MASKS,
    OFFSETS,
    PADDING_MASKS,
    CallForm,
    Fill,
    Parameters,
    call_forms,
    differentiable_outputs,
    find_output,
    padding_argument,
)
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, randomize_weights
from qkv.check.report import describe_error

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

RunCached = Callable[[Sequence[Tensor]], Tensor]


def module_implementation(
    module: nn.Module,
    name: str,
    contract: Contract,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32),
    *,
    random_weights: bool = True,
) -> Implementation:
    """A module as an implementation, in the first dtype that it runs in."""
    tried: dict[str, str] = {}
    for dtype in dtypes:
        module = module.to(dtype).eval()
        if random_weights:
            randomize_weights(module)
        with torch.no_grad():
            for find in (encoder_decoder_implementation, image_implementation, _sequence_implementation):
                impl = find(module, name, contract, dtype, tried)
                if impl is not None:
                    return impl
    attempts = "; ".join(f"{form}: {error}" for form, error in list(tried.items())[:4])
    raise ValueError(
        f"{name} could not be called; tried {attempts or 'nothing that fits its parameters'}. "
        "Set its sizes with --args, or declare the call with --call"
    )


def _sequence_implementation(
    module: nn.Module, name: str, contract: Contract, dtype: torch.dtype, tried: dict[str, str]
) -> Implementation | None:
    """A module on tokens or vectors as an implementation, or None if it cannot be called."""
    parameters = inspect.signature(module.forward).parameters
    for form in call_forms(module, parameters):
        try:
            out = find_output(form.call(form.sample(2, 8, dtype), {}), 2, 8)
        except Exception as error:
            tried.setdefault(form.words, describe_error(error))
            continue
        if out is None:
            tried.setdefault(form.words, "no output of shape (batch, tokens, …)")
            continue
        return _make_implementation(
            module, name, form, find_masking(form, parameters, contract, dtype), parameters, dtype
        )
    return None


def _make_implementation(
    module: nn.Module, name: str, form: CallForm, masking: Masking, parameters: Parameters, dtype: torch.dtype
) -> Implementation:
    def run(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        token_mask = token_mask if masking.takes_padding else None
        out = find_output(form.call(x, masking.arguments(x, token_mask, dtype)), *x.shape[:2])
        if out is None:
            raise ValueError(f"{name} gave no output of shape (batch, tokens, …) for {tuple(x.shape)}")
        return out

    reads_tokens = form.reads == "tokens"
    fixed: Fill = {
        key: lambda x, key=key: masking.arguments(x, None, dtype)[key]
        for key in masking.arguments(form.sample(1, 2, dtype), None, dtype)
    }
    cache = find_cache(module, form.call, parameters, fixed, form.sample(2, 6, dtype))
    return Implementation(
        name=name,
        level="model" if reads_tokens else "layer",
        how=f"{name}: {form.words}{masking}{f', cache as {cache[0]}' if cache else ''}",
        run=run,
        vocab_size=form.size if reads_tokens else None,
        dim=None if reads_tokens else form.size,
        dtype=dtype,
        module=module,
        takes_padding=masking.takes_padding,
        run_cached=cache[1] if cache else None,
        all_outputs=lambda x: differentiable_outputs(form.call(x, masking.arguments(x, None, dtype))),
    )


# -- masks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masking:
    """How a sequence is masked.

    Args:
        causal_flag: a flag that makes it causal.
        mask: the form of its mask; `causal` says whether a causal one is passed.
        padding: the form of a mask that marks real tokens.
        token_mask: a padding parameter that is known by its name and takes (b, t).
    """

    causal_flag: str | None = None
    mask: MaskForm | None = None
    causal: bool = False
    padding: MaskForm | None = None
    token_mask: str | None = None

    @property
    def takes_padding(self) -> bool:
        combined = self.mask is not None and self.mask.batched
        return self.token_mask is not None or self.padding is not None or combined

    def arguments(self, x: Tensor, token_mask: Tensor | None, dtype: torch.dtype) -> dict[str, Any]:
        """The keyword arguments of one call."""
        named: dict[str, Any] = {} if self.causal_flag is None else {self.causal_flag: True}
        t = x.shape[1]
        if self.mask is not None and (self.causal or token_mask is not None):
            mask = torch.ones(x.shape[0], t, t, dtype=torch.bool)
            mask = mask.tril() if self.causal else mask
            if token_mask is not None and self.padding is None and self.token_mask is None:
                mask = mask & token_mask[:, None]
            named[self.mask.parameter] = self.mask(mask, dtype)
        if token_mask is not None and self.token_mask is not None:
            named[self.token_mask] = padding_argument(self.token_mask, token_mask, PADDING_MASKS)
        elif token_mask is not None and self.padding is not None:
            named[self.padding.parameter] = self.padding(token_mask, dtype)
        return named

    def __str__(self) -> str:
        words = f", {self.causal_flag}=True" if self.causal_flag else ""
        if self.causal and self.mask:
            words += f", a causal mask as {self.mask}"
        if self.token_mask or self.padding:
            words += f", padding as {self.token_mask or self.padding}"
        return words


def find_masking(form: CallForm, parameters: Parameters, contract: Contract, dtype: torch.dtype) -> Masking:
    """How to pass a causal mask and padding: by parameter names that are known, else by trying."""
    reads_tokens = form.reads == "tokens"
    token_mask = next((known for known in PADDING_MASKS if known in parameters), None)
    if token_mask == "attention_mask" and not reads_tokens:  # in a layer it may have any form
        token_mask = None
    masks = [known for known in MASKS if known in parameters and known != token_mask]
    causal = contract.kind == "causal"
    x = form.sample(2, 6, dtype)
    flag = next((known for known in CAUSAL_FLAGS if known in parameters), None)
    if flag is not None and causal and not reads_tokens and (not masks or _is_causal(form, x, {flag: True})):
        return Masking(causal_flag=flag, token_mask=token_mask)

    def run(x: Tensor, tried: MaskForm, mask: Tensor) -> Tensor | None:
        return find_output(form.call(x, {tried.parameter: tried(mask, dtype)}), *x.shape[:2])

    mask = find_mask_form(masks, run, x, contract.mask, keys=False)
    if mask is not None and (causal or (token_mask is None and mask.batched)) and not _is_causal(form, x, {}):
        return Masking(mask=mask, causal=causal, token_mask=token_mask)
    if token_mask is not None:
        return Masking(token_mask=token_mask)
    others = [known for known in masks if mask is None or known != mask.parameter]
    padding = find_mask_form(others, run, x, contract.mask, keys=True)
    if padding is None and "attention_mask" in parameters and _takes_token_mask(form, x):
        return Masking(token_mask="attention_mask")  # no form works as it should: judge it with the usual one
    return Masking(mask=mask if not causal else None, padding=padding)


def _takes_token_mask(form: CallForm, x: Tensor) -> bool:
    """Whether it can be called with attention_mask (b, t), 1 for real tokens."""
    try:
        return find_output(form.call(x, {"attention_mask": torch.ones(x.shape[:2]).long()}), *x.shape[:2]) is not None
    except Exception:
        return False


def _is_causal(form: CallForm, x: Tensor, named: dict[str, Any]) -> bool:
    """Whether it is causal when called so: changing the last token changes no earlier output."""
    other = x.clone()
    other[:, -1] = x[:, 0]
    try:
        a, b = (find_output(form.call(y, dict(named)), *x.shape[:2]) for y in (x, other))
    except Exception:  # it needs its mask
        return False
    return a is not None and b is not None and bool((a - b)[:, :-1].abs().max() <= 1e-9 * a.abs().max())


# -- KV caches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheConvention:
    """How a KV cache is used. It may be passed in and returned (Hugging Face, tuples of keys and values), made by the
    module (`new_cache`), filled in place (a list, a dictionary), or kept by the module itself, which is then told where
    a piece begins (`input_pos`, `start_pos`) or to remember (`use_cache`) and forget (`reset_cache`).

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
    for convention in _cache_conventions(module, parameters):
        run_cached = partial(convention.run, call, fixed)
        try:
            with torch.no_grad():
                first, second = sample[:, :3], sample[:, 3:]
                result = call(first, convention.named(fixed, first, convention.begin(2), 0))
                if convention.update(result, convention.begin(2)) is None and convention.words in CACHES:
                    continue
                out = run_cached([first, second])
                other = run_cached([first.flip(1), second])
        except Exception:  # whatever goes wrong: this is not how its cache works
            continue
        if bool(((out - other)[:, 3:].abs() > 0).any()):
            return convention.words, run_cached
    return None


def _cache_conventions(module: nn.Module, parameters: Parameters) -> Iterator[CacheConvention]:
    name = next((known for known in CACHES if known in parameters), None)
    flags = {known: True for known in CACHE_FLAGS if known in parameters}
    new_cache = getattr(module, "new_cache", None)
    if name is not None:

        def pass_cache(cache: Any, start: int, size: int) -> dict[str, Any]:
            return {name: cache, **flags}

        if new_cache is not None:
            yield CacheConvention("new_cache()", lambda batch: new_cache(), pass_cache)
        else:
            yield CacheConvention(
                name, lambda batch: None, pass_cache, lambda result, cache: find_returned_cache(result)
            )
            yield CacheConvention(f"{name}= {{}}, filled in place", lambda batch: {}, pass_cache)
            yield CacheConvention(f"{name}= [], filled in place", lambda batch: [], pass_cache)
    yield from _internal_cache_conventions(module, parameters, flags)


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
