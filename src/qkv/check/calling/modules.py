"""Layers and models: find how to call a module, how it is masked and how its KV cache works, by names and by trying.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.caches import find_cache
from qkv.check.calling.encoder_decoder import encoder_decoder_implementation
from qkv.check.calling.forms import CallForm, call_forms, choose_batch_axis
from qkv.check.calling.lengths import LengthRule, candidate_lengths, find_length_rule
from qkv.check.calling.loading import missing_device
from qkv.check.calling.masking import Masking, find_masking, find_pad_id, find_row_padding, padded_by_id
from qkv.check.calling.media import images, media_implementation, signals, text_beside_medium, try_media
from qkv.check.calling.names import Fill, Parameters, parameters_of, required_names
from qkv.check.calling.outputs import differentiable_outputs, find_output, find_rows
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, cast_module, randomize_weights
from qkv.check.report import describe_error

LENGTH = 12  # the usual length of a checked sequence


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
        module = _prepare(module, dtype, random_weights=random_weights)
        with torch.no_grad():
            for impl in _attempts(module, name, contract, dtype, tried):
                if impl is None:
                    continue
                if _has_grown(module):  # lazy layers got their weights in the first call
                    _prepare(module, dtype, random_weights=random_weights)
                    if not _runs(impl, tried):  # Keras casts its inputs to a dtype of its own
                        break
                return impl
    for error in tried.values():
        if (needs := missing_device(RuntimeError(error))) is not None:
            raise ValueError(f"{name} could not be called: {needs}")
        if error.startswith("TimeoutError"):
            raise ValueError(f"{name} could not be called: {error.partition(': ')[2]}")
    attempts = "; ".join(f"{form}: {error}" for form, error in list(tried.items())[:4])
    raise ValueError(
        f"{name} could not be called; tried {attempts or 'nothing that fits its parameters'}. "
        "Set its sizes with --args, declare the call with --call, or write it in an --adapter"
    )


def _attempts(
    module: nn.Module, name: str, contract: Contract, dtype: torch.dtype, tried: dict[str, str]
) -> Iterator[Implementation | None]:
    """From the likely to the last resort; lazily built layers fail at first, as they come in float32."""
    for wrapped in text_beside_medium(module, dtype, tried):
        yield _sequence_implementation(_prepare(wrapped, dtype, random_weights=False), name, contract, dtype, tried)
    yield encoder_decoder_implementation(module, name, contract, dtype, tried)
    yield media_implementation(module, name, contract, dtype, tried)
    yield _sequence_implementation(module, name, contract, dtype, tried)
    if _has_grown(module):
        _prepare(module, dtype, random_weights=True)
        yield _sequence_implementation(module, name, contract, dtype, tried)
    yield encoder_decoder_implementation(module, name, contract, dtype, tried, optional=True)
    parameters = parameters_of(module)
    main = next(iter(required_names(parameters) or parameters), "")
    if dtype == torch.float32:
        media = itertools.chain(images(module, channels_last=True), signals())
        yield try_media(module, name, parameters, main, media, dtype, tried)


def _runs(impl: Implementation, tried: dict[str, str]) -> bool:
    """Whether a call still works after the weights were changed."""
    try:
        impl.run(impl.random_input(2, impl.length, torch.Generator().manual_seed(0)))
    except Exception as error:
        tried[impl.how] = describe_error(error)
        return False
    return True


def _prepare(module: nn.Module, dtype: torch.dtype, *, random_weights: bool) -> nn.Module:
    cast_module(module, dtype)
    module.eval()  # some classes return nothing from it
    if random_weights:
        randomize_weights(module)
    module.__dict__["_qkv_parameters"] = _count(module)
    return module


def _count(module: nn.Module) -> int:
    """The number of its initialized weights."""
    return sum(p.numel() for p in module.parameters() if not isinstance(p, nn.parameter.UninitializedParameter))


def _has_grown(module: nn.Module) -> bool:
    """Whether calls added weights: lazily built layers."""
    return _count(module) != module.__dict__.get("_qkv_parameters")


def _sequence_implementation(
    module: nn.Module, name: str, contract: Contract, dtype: torch.dtype, tried: dict[str, str]
) -> Implementation | None:
    """A module on tokens or vectors as an implementation, or None if it cannot be called."""
    parameters = parameters_of(module)
    forms = list(call_forms(module, parameters))
    unaligned: tuple[CallForm, int] | None = None
    lengths = [8]
    for length in lengths:
        for form in forms:
            if unaligned is not None and "one sequence" in form.words:
                continue  # it takes batches, and has no row for each token
            if form.lengths and length not in form.lengths:
                continue
            found = _try_form(form, length, dtype, tried)
            if found == "aligned":
                return form_implementation(module, name, contract, form, forms, length, dtype)
            if found == "rows" and unaligned is None:
                unaligned = (form, length)
        if length == 8 and unaligned is None:
            own = [length for form in forms for length in form.lengths]
            lengths += dict.fromkeys((*own[:1], *candidate_lengths(module, tried.values()), *own))
    if unaligned is None:
        return None
    form, length = unaligned
    rule = find_length_rule(lambda length: _try_form(form, length, dtype, {}) in ("aligned", "rows"), length)
    masking = find_row_padding(form, parameters, contract, dtype, rule.nearest(6))
    return _make_implementation(module, name, form, masking, parameters, dtype, rule, aligned=False)


def _try_form(form: CallForm, length: int, dtype: torch.dtype, tried: dict[str, str]) -> str:
    """Whether a call works, and whether its output has a row for each token."""
    try:
        result = form.call(form.sample(2, length, dtype), {})
    except Exception as error:
        tried.setdefault(form.words, describe_error(error))
        return "failed"
    if _is_aligned(form, result, length, dtype):
        return "aligned"
    tried.setdefault(form.words, "no output of shape (batch, tokens, …)")
    return "rows" if find_rows(result, 2) is not None and "(b, t" in form.words else "failed"


def _is_aligned(form: CallForm, result: Any, length: int, dtype: torch.dtype) -> bool:
    """Whether an output has a row for each token of a batch of 2; two numbers for each input may look like that."""
    out = find_output(result, 2, length)
    if out is None or out.ndim > 2:
        return out is not None
    try:
        return find_output(form.call(form.sample(3, length, dtype), {}), 3, length) is not None
    except Exception:
        return False


def form_implementation(
    module: nn.Module,
    name: str,
    contract: Contract,
    form: CallForm,
    forms: list[CallForm],
    length: int,
    dtype: torch.dtype,
    parameters: Parameters | None = None,
) -> Implementation:
    """The implementation of a form that works: its batch axis, its lengths and its masks."""
    parameters = parameters_of(module) if parameters is None else parameters
    form = choose_batch_axis(form, forms, form.sample(3, length, dtype))
    rule = find_length_rule(lambda length: _try_form(form, length, dtype, {}) == "aligned", length)
    masking = find_masking(form, parameters, contract, dtype, rule.nearest(6))
    if contract.padding and form.reads == "tokens" and not masking.takes_padding:
        sample = form.sample(2, rule.nearest(6), dtype)
        pad_id = find_pad_id(module, form.size, lambda x: find_output(form.call(x, {}), *x.shape[:2]), sample)
        masking = replace(masking, pad_id=pad_id)
    return _make_implementation(module, name, form, masking, parameters, dtype, rule)


def _make_implementation(
    module: nn.Module,
    name: str,
    form: CallForm,
    masking: Masking,
    parameters: Parameters,
    dtype: torch.dtype,
    rule: LengthRule,
    *,
    aligned: bool = True,
) -> Implementation:
    def run(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        token_mask = token_mask if masking.takes_padding else None
        with padded_by_id(module, x, token_mask, masking.pad_id) as shown:
            result = form.call(shown, masking.arguments(x, token_mask, dtype))
        out = find_output(result, *x.shape[:2]) if aligned else find_rows(result, x.shape[0])
        if out is None:
            raise ValueError(f"{name} gave no output of shape (batch, tokens, …) for {tuple(x.shape)}")
        return out

    def run_masked(x: Tensor, mask: Tensor) -> Tensor:
        assert masking.pairs is not None
        mask = mask.tril() if masking.causal else mask
        named = masking.arguments(x, None, dtype) | {masking.pairs.parameter: masking.pairs(mask, dtype)}
        out = find_output(form.call(x, named), *x.shape[:2])
        if out is None:
            raise ValueError(f"{name} gave no output of shape (batch, tokens, …) with a mask")
        return out

    reads_tokens = form.reads == "tokens"
    fixed: Fill = {
        key: lambda x, key=key: masking.arguments(x, None, dtype)[key]
        for key in masking.arguments(form.sample(1, 2, dtype), None, dtype)
    }
    cache = find_cache(module, form.call, parameters, fixed, form.sample(2, 6, dtype)) if aligned else None
    return Implementation(
        name=name,
        level="model" if reads_tokens else "layer",
        how=f"{name}: {form.words}{rule}{masking}{f', cache as {cache[0]}' if cache else ''}",
        run=run,
        vocab_size=form.size if reads_tokens else None,
        dim=None if reads_tokens else form.size,
        length=rule.nearest(LENGTH),
        dtype=dtype,
        module=module,
        takes_padding=masking.takes_padding,
        run_masked=None if masking.pairs is None else run_masked,
        masks_rows=masking.pairs is not None and masking.pairs.batched,
        mask_polarity=masking.polarity,
        run_cached=cache[1] if cache else None,
        aligned=aligned,
        all_outputs=lambda x: differentiable_outputs(form.call(x, masking.arguments(x, None, dtype))),
        length_multiple=rule.multiple,
        fixed_length=rule.fixed,
        max_length=rule.longest,
        padding_sides=masking.sides,
        adds_padding=masking.adds_padding,
    )
