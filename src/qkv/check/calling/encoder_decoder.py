"""Encoder–decoders and decoder blocks, which take two sequences.

The target is checked with a fixed source, and the source with a fixed target.

Axes: b batch · t targets · s sources · c features.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.forms import fill_required, find_dims, find_vocab_size, has_sequence_first, padding_argument
from qkv.check.calling.guard import call_target
from qkv.check.calling.mask_forms import MaskForm, find_mask_form, polarity_of
from qkv.check.calling.masking import find_pad_id, padded_by_id
from qkv.check.calling.names import (
    MEMORIES,
    PADDING_MASKS,
    SOURCE_MASKS,
    SOURCE_PADDING_MASKS,
    SOURCES,
    TARGETS,
    Fill,
    Parameters,
    mask_names,
    parameters_of,
    passes_by_position,
    qkv_names,
    required_names,
)
from qkv.check.calling.outputs import find_output
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, random_tokens
from qkv.check.report import describe_error

SOURCE_LENGTH = 10
OPTIONAL_TARGETS = ("decoder_input_ids", "prev_output_tokens")  # they have a default, and are targets all the same


@dataclass(frozen=True)
class EncoderDecoderCall:
    """How to call a module of two sequences: the parameters, whether they are tokens, and the batch axis.

    Args:
        size: the number of tokens, or the size of a vector, of the target; `source_size`, of the source.
        filled: values of its other required parameters.
    """

    module: nn.Module
    sources: tuple[str, ...]
    target: str
    size: int
    source_size: int
    tokens: bool
    source_tokens: bool
    sequence_first: bool
    dtype: torch.dtype
    filled: Fill

    def __call__(self, source: Tensor, target: Tensor, named: dict[str, Any]) -> Tensor | None:
        given = dict.fromkeys(self.sources, source) | {self.target: target}
        if self.sequence_first:
            given = {name: x.transpose(0, 1) for name, x in given.items()}
        more = {name: value(target) for name, value in self.filled.items() if name not in named}
        first = [given.pop(self.target)] if passes_by_position(parameters_of(self.module), self.target) else []
        result = call_target(self.module, *first, **given, **more, **named)
        if self.sequence_first:
            result = result if isinstance(result, Tensor) else result[0]
            result = result.transpose(0, 1)
        return find_output(result, *target.shape[:2])

    def random_source(self, batch: int, length: int, seed: int) -> Tensor:
        return self._random(self.source_size, batch, length, seed, tokens=self.source_tokens)

    def random_target(self, batch: int, length: int, seed: int) -> Tensor:
        return self._random(self.size, batch, length, seed, tokens=self.tokens)

    def _random(self, size: int, batch: int, length: int, seed: int, *, tokens: bool) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if tokens:
            return random_tokens(size, batch, length, generator)
        return torch.randn(batch, length, size, generator=generator, dtype=self.dtype)


def encoder_decoder_implementation(
    module: nn.Module,
    name: str,
    contract: Contract,
    dtype: torch.dtype,
    tried: dict[str, str],
    *,
    optional: bool = False,
) -> Implementation | None:
    """A module of two sequences as an implementation, or None if it is not one.

    optional: also if the second sequence has a default, for modules that could not be called without it.
    """
    parameters = parameters_of(module)
    found = _sources_and_target(parameters, module, optional=optional)
    if found is None:
        return None
    sources, target = found
    pairs = [(sources, target)]
    if len(sources) == 1 and {sources[0], target} <= set(required_names(parameters)):  # x and y may be either
        pairs.append(((target,), sources[0]))
    for call, words in itertools.chain.from_iterable(_calls(module, parameters, pair, dtype) for pair in pairs):
        try:
            if call(call.random_source(2, SOURCE_LENGTH, 1), call.random_target(2, 8, 2), {}) is not None:
                return _make_implementation(call, name, words, _find_masking(call, parameters, contract))
            tried.setdefault(words, "no output of shape (batch, targets, …)")
        except Exception as error:
            tried.setdefault(words, describe_error(error))
    return None


def _calls(
    module: nn.Module, parameters: Parameters, pair: tuple[tuple[str, ...], str], dtype: torch.dtype
) -> Iterator[tuple[EncoderDecoderCall, str]]:
    """The ways to call a module with a source and a target, in words and as code."""
    sources, target = pair
    vocab_size = find_vocab_size(module)
    ways = ((True, True), (True, False), (False, False)) if vocab_size is not None else ((False, False),)
    for tokens, source_tokens in ways:
        dims, source_dims = ([vocab_size or 0] if read else find_dims(module) for read in (tokens, source_tokens))
        sizes = sorted(itertools.product(dims, source_dims), key=lambda pair: pair[0] != pair[1])
        for required, filled in fill_required(parameters, [*sources, target], module):
            for (size, source_size), sequence_first in itertools.product(sizes, _batch_axes(module, tokens=tokens)):
                call = EncoderDecoderCall(
                    module, sources, target, size, source_size, tokens, source_tokens, sequence_first, dtype, filled
                )
                yield call, _words(call, required)


def _batch_axes(module: nn.Module, *, tokens: bool) -> tuple[bool, ...]:
    """Whether the sequence is the first axis, likely values first."""
    if tokens:
        return (False,)
    return (True,) if has_sequence_first(module) else (False, True)


def _words(call: EncoderDecoderCall, required: str) -> str:
    vectors = "(s, b, c)" if call.sequence_first else "(b, s, c)"
    source, target = ("(b, s)" if tokens else vectors for tokens in (call.source_tokens, call.tokens))
    wide = "" if call.size == call.source_size or call.tokens else f" of {call.source_size} features"
    return f"{', '.join(call.sources)} {source}{wide} and {call.target} {target.replace('s', 't')}{required}"


def _sources_and_target(
    parameters: Parameters, module: nn.Module, *, optional: bool
) -> tuple[tuple[str, ...], str] | None:
    """The names of the source parameters and of the target; None for a module of one sequence."""
    names, required, roles = list(parameters), required_names(parameters), qkv_names(parameters)
    if "query" in roles and ("key" in roles or "keys and values" in roles):
        if not optional:
            return None  # tried as self-attention first
        return tuple(roles[role] for role in ("key", "value", "keys and values") if role in roles), roles["query"]
    target = next((known for known in TARGETS if known in names), None)
    needed = target is not None and (target in required or target in OPTIONAL_TARGETS)
    if target is not None and needed:
        if target == "decoder_input_ids" and not getattr(getattr(module, "config", None), "is_encoder_decoder", True):
            return None
        sources = [known for known in (*MEMORIES, *SOURCES) if known in names and known != target]
        source = next((known for known in sources if known in required), next(iter(sources), None))
        if source is not None:
            return (source,), target
    memory = next((known for known in names[1:] if known in MEMORIES and (optional or known in required)), None)
    main = next((known for known in (*required, *names) if known != memory), None)
    return None if memory is None or main is None else ((memory,), main)


@dataclass(frozen=True)
class EncoderDecoderMasking:
    """How the two sequences are masked.

    Args:
        causal_mask: the form of the target's causal mask, if it has to be passed.
        target_padding: the padding parameter of the target.
        source_padding: the padding parameters of the source; without one, `source_mask` is the form of its mask.
        source_pad_id, target_pad_id: the tokens that mark padding where no argument does.
    """

    causal_mask: MaskForm | None
    target_padding: str | None
    source_padding: tuple[str, ...]
    source_mask: MaskForm | None
    source_pad_id: int | None = None
    target_pad_id: int | None = None

    @property
    def takes_source_padding(self) -> bool:
        return bool(self.source_padding) or self.source_mask is not None or self.source_pad_id is not None

    @property
    def takes_target_padding(self) -> bool:
        return self.target_padding is not None or self.target_pad_id is not None

    def arguments(
        self, target: Tensor, dtype: torch.dtype, target_tokens: Tensor | None, source_tokens: Tensor | None
    ) -> dict[str, Any]:
        """The keyword arguments of one call; target_tokens and source_tokens are True for real tokens."""
        named: dict[str, Any] = {}
        if self.causal_mask is not None:
            causal = torch.ones(target.shape[0], target.shape[1], target.shape[1], dtype=torch.bool).tril()
            named[self.causal_mask.parameter] = self.causal_mask(causal, dtype)
        if target_tokens is not None and self.target_padding is not None:
            named[self.target_padding] = padding_argument(self.target_padding, target_tokens, PADDING_MASKS)
        if source_tokens is not None:
            for known in self.source_padding:
                named[known] = padding_argument(known, source_tokens, SOURCE_PADDING_MASKS)
            if self.source_mask is not None:
                named[self.source_mask.parameter] = self.source_mask(source_tokens, dtype)
        return named

    def __str__(self) -> str:
        words = "" if self.causal_mask is None else f", a causal mask as {self.causal_mask}"
        if self.target_padding is not None:
            words += f", target padding as {self.target_padding}"
        if self.target_pad_id is not None:
            words += f", target padding as token {self.target_pad_id}"
        if self.source_pad_id is not None:
            words += f", source padding as token {self.source_pad_id}"
        elif self.takes_source_padding:
            words += f", source padding as {', '.join(self.source_padding) or self.source_mask}"
        return words


def _find_masking(call: EncoderDecoderCall, parameters: Parameters, contract: Contract) -> EncoderDecoderMasking:
    of_target = [known for known in PADDING_MASKS if known.startswith(("tgt", "target", "decoder"))]
    source_padding = tuple(known for known in SOURCE_PADDING_MASKS if known in parameters)
    found = EncoderDecoderMasking(
        causal_mask=_target_mask(call, parameters, contract),
        target_padding=next((known for known in of_target if known in parameters), None),
        source_padding=source_padding,
        source_mask=None if source_padding else _source_mask(call, parameters, contract),
    )
    return _with_pad_ids(call, found) if contract.padding else found


def _with_pad_ids(call: EncoderDecoderCall, masking: EncoderDecoderMasking) -> EncoderDecoderMasking:
    """The masking with the tokens that mark padding, where no argument does and sequences are tokens."""
    source, target = call.random_source(2, 6, 1), call.random_target(2, 6, 2)
    named = masking.arguments(target, call.dtype, None, None)
    if call.source_tokens and not masking.takes_source_padding:
        found = find_pad_id(call.module, call.source_size, lambda x: call(x, target, named), source)
        masking = replace(masking, source_pad_id=found)
    if call.tokens and not masking.takes_target_padding:
        found = find_pad_id(call.module, call.size, lambda x: call(source, x, named), target)
        masking = replace(masking, target_pad_id=found)
    return masking


def _make_implementation(
    call: EncoderDecoderCall, name: str, words: str, masking: EncoderDecoderMasking
) -> Implementation:
    source, target = call.random_source(1, SOURCE_LENGTH, 1), call.random_target(1, 8, 2)

    def run(source: Tensor, target: Tensor, target_tokens: Tensor | None, source_tokens: Tensor | None) -> Tensor:
        named = masking.arguments(target, call.dtype, target_tokens, source_tokens)
        with (
            padded_by_id(call.module, source, source_tokens, masking.source_pad_id) as given,
            padded_by_id(call.module, target, target_tokens, masking.target_pad_id) as read,
        ):
            out = call(given, read, named)
        if out is None:
            raise ValueError(f"{name} gave no output of shape (batch, targets, …)")
        return out

    def run_target(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        return run(source.expand(len(x), *source.shape[1:]).clone(), x, token_mask, None)

    def run_source(x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        return run(x, target.expand(len(x), *target.shape[1:]).clone(), None, token_mask)

    target_side = Implementation(
        name=name,
        level="model" if call.tokens else "layer",
        how=f"{name}: {words}{masking}",
        run=run_target,
        vocab_size=call.size if call.tokens else None,
        dim=None if call.tokens else call.size,
        dtype=call.dtype,
        module=call.module,
        takes_padding=masking.takes_target_padding,
        mask_polarity=None if masking.source_mask is None else polarity_of(masking.source_mask.values),
    )
    source_side = replace(
        target_side,
        run=run_source,
        vocab_size=call.source_size if call.source_tokens else None,
        dim=None if call.source_tokens else call.source_size,
        length=SOURCE_LENGTH,
        takes_padding=masking.takes_source_padding,
        aligned=False,
    )
    return replace(target_side, source=source_side)


def _target_mask(call: EncoderDecoderCall, parameters: Parameters, contract: Contract) -> MaskForm | None:
    """The form of the target's causal mask, if a causal kind is promised and the mask has to be passed."""
    if contract.kind != "causal":
        return None
    source = call.random_source(2, SOURCE_LENGTH, 1)

    def run(x: Tensor, form: MaskForm, mask: Tensor) -> Tensor | None:
        return call(source, x, {form.parameter: form(mask, call.dtype)})

    prefixes = ("tgt", "trg", "target", "look", "self")
    likely = [known for known in mask_names(parameters) if known.startswith(prefixes)]
    likely += [known for known in parameters if known in ("mask", "causal_mask", "attn_mask")]
    return find_mask_form(likely, run, call.random_target(2, 6, 2), contract.mask, keys=False)


def _source_mask(call: EncoderDecoderCall, parameters: Parameters, contract: Contract) -> MaskForm | None:
    """The form of the source's mask, found by hiding one of its tokens."""
    target = call.random_target(2, 6, 2)

    def run(x: Tensor, form: MaskForm, mask: Tensor) -> Tensor | None:
        return call(x, target, {form.parameter: form(mask, call.dtype)})

    likely = [known for known in SOURCE_MASKS if known in parameters]
    x = call.random_source(2, 6, 1)
    found = find_mask_form(likely, run, x, contract.mask, keys=True)
    if found is None and contract.mask is not None:  # it may mean the opposite of what is promised
        found = find_mask_form(likely, run, x, None, keys=True)
    if found is None and contract.padding:  # a part of the model may not use it, which is for the checks to say
        padding = [known for known in likely if "pad" in known or known.startswith(("src", "source", "enc", "mem"))]
        found = find_mask_form(padding, run, x, contract.mask, keys=True, weak=True)
    return found
