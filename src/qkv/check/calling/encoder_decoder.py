"""Encoder–decoders and decoder blocks, which take two sequences.

The target is checked with a fixed source, and the source with a fixed target.

Axes: b batch · t targets · s sources · c features.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.mask_forms import MaskForm, find_mask_form
from qkv.check.calling.signatures import (
    MASKS,
    MEMORIES,
    PADDING_MASKS,
    SOURCE_MASKS,
    SOURCE_PADDING_MASKS,
    SOURCES,
    TARGETS,
    Fill,
    Parameters,
    fill_required,
    find_dims,
    find_output,
    find_vocab_size,
    has_sequence_first,
    padding_argument,
)
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, random_tokens
from qkv.check.report import describe_error

SOURCE_LENGTH = 10
OPTIONAL_TARGETS = ("decoder_input_ids", "prev_output_tokens")  # they have a default, and are targets all the same


@dataclass(frozen=True)
class EncoderDecoderCall:
    """How to call a module of two sequences: the parameters, whether they are tokens, and the batch axis.

    Args:
        size: the number of tokens, or the size of a vector.
        filled: values of its other required parameters.
    """

    module: nn.Module
    source: str
    target: str
    size: int
    tokens: bool
    sequence_first: bool
    dtype: torch.dtype
    filled: Fill

    def __call__(self, source: Tensor, target: Tensor, named: dict[str, Any]) -> Tensor | None:
        given = {self.source: source, self.target: target}
        if self.sequence_first:
            given = {name: x.transpose(0, 1) for name, x in given.items()}
        more = {name: value(target) for name, value in self.filled.items() if name not in named}
        result = self.module(**given, **more, **named)
        if self.sequence_first and isinstance(result, Tensor):
            result = result.transpose(0, 1)
        return find_output(result, *target.shape[:2])

    def random_input(self, batch: int, length: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if self.tokens:
            return random_tokens(self.size, batch, length, generator)
        return torch.randn(batch, length, self.size, generator=generator, dtype=self.dtype)


def encoder_decoder_implementation(
    module: nn.Module, name: str, contract: Contract, dtype: torch.dtype, tried: dict[str, str]
) -> Implementation | None:
    """A module of two sequences as an implementation, or None if it is not one."""
    parameters = inspect.signature(module.forward).parameters
    found = _source_and_target(parameters, module)
    if found is None:
        return None
    source, target = found
    vocab_size = find_vocab_size(module)
    tokens = vocab_size is not None
    sizes = [vocab_size] if vocab_size is not None else find_dims(module)
    sequence_first = not tokens and has_sequence_first(module)
    axes = "(b, s)"
    if not tokens:
        axes = "(s, b, c)" if sequence_first else "(b, s, c)"
    for required, filled in fill_required(parameters, [source, target]):
        for size in sizes:
            call = EncoderDecoderCall(module, source, target, size, tokens, sequence_first, dtype, filled)
            words = f"{source} {axes} and {target} {axes.replace('s', 't')}{required}"
            try:
                if call(call.random_input(2, SOURCE_LENGTH, 1), call.random_input(2, 8, 2), {}) is not None:
                    return _make_implementation(call, name, words, _find_masking(call, parameters, contract))
                tried.setdefault(words, "no output of shape (batch, targets, …)")
            except Exception as error:
                tried.setdefault(words, describe_error(error))
    return None


def _source_and_target(parameters: Parameters, module: nn.Module) -> tuple[str, str] | None:
    """The names of the source and the target parameter; None for a module of one sequence."""
    names = list(parameters)
    target = next((known for known in TARGETS if known in names), None)
    if target is None:
        if len(names) > 1 and names[1] in MEMORIES and parameters[names[1]].default is inspect.Parameter.empty:
            return names[1], names[0]
        return None
    if target == "decoder_input_ids" and not getattr(getattr(module, "config", None), "is_encoder_decoder", True):
        return None
    source = next((known for known in (*MEMORIES, *SOURCES) if known in names and known != target), None)
    optional = parameters[target].default is not inspect.Parameter.empty and target not in OPTIONAL_TARGETS
    return None if source is None or optional else (source, target)


@dataclass(frozen=True)
class EncoderDecoderMasking:
    """How the two sequences are masked.

    Args:
        causal_mask: the form of the target's causal mask, if it has to be passed.
        target_padding: the padding parameter of the target.
        source_padding: the padding parameters of the source; without one, `source_mask` is the form of its mask.
    """

    causal_mask: MaskForm | None
    target_padding: str | None
    source_padding: tuple[str, ...]
    source_mask: MaskForm | None

    @property
    def takes_source_padding(self) -> bool:
        return bool(self.source_padding) or self.source_mask is not None

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
        if self.takes_source_padding:
            words += f", source padding as {', '.join(self.source_padding) or self.source_mask}"
        return words


def _find_masking(call: EncoderDecoderCall, parameters: Parameters, contract: Contract) -> EncoderDecoderMasking:
    of_target = [known for known in PADDING_MASKS if known.startswith(("tgt", "target", "decoder"))]
    source_padding = tuple(known for known in SOURCE_PADDING_MASKS if known in parameters)
    return EncoderDecoderMasking(
        causal_mask=_target_mask(call, parameters, contract),
        target_padding=next((known for known in of_target if known in parameters), None),
        source_padding=source_padding,
        source_mask=None if source_padding else _source_mask(call, parameters, contract),
    )


def _make_implementation(
    call: EncoderDecoderCall, name: str, words: str, masking: EncoderDecoderMasking
) -> Implementation:
    source, target = call.random_input(1, SOURCE_LENGTH, 1), call.random_input(1, 8, 2)

    def run(source: Tensor, target: Tensor, target_tokens: Tensor | None, source_tokens: Tensor | None) -> Tensor:
        out = call(source, target, masking.arguments(target, call.dtype, target_tokens, source_tokens))
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
        takes_padding=masking.target_padding is not None,
    )
    source_side = replace(
        target_side,
        run=run_source,
        length=SOURCE_LENGTH,
        takes_padding=masking.takes_source_padding,
        aligned=False,
    )
    return replace(target_side, source=source_side)


def _target_mask(call: EncoderDecoderCall, parameters: Parameters, contract: Contract) -> MaskForm | None:
    """The form of the target's causal mask, if a causal kind is promised and the mask has to be passed."""
    if contract.kind != "causal":
        return None
    source = call.random_input(2, SOURCE_LENGTH, 1)

    def run(x: Tensor, form: MaskForm, mask: Tensor) -> Tensor | None:
        return call(source, x, {form.parameter: form(mask, call.dtype)})

    prefixes = ("tgt", "trg", "target", "look", "self")
    likely = [known for known in parameters if known in MASKS and known.startswith(prefixes)]
    likely += [known for known in parameters if known in ("mask", "causal_mask", "attn_mask")]
    return find_mask_form(likely, run, call.random_input(2, 6, 2), contract.mask, keys=False)


def _source_mask(call: EncoderDecoderCall, parameters: Parameters, contract: Contract) -> MaskForm | None:
    """The form of the source's mask, found by hiding one of its tokens."""
    target = call.random_input(2, 6, 2)

    def run(x: Tensor, form: MaskForm, mask: Tensor) -> Tensor | None:
        return call(x, target, {form.parameter: form(mask, call.dtype)})

    likely = [known for known in SOURCE_MASKS if known in parameters]
    return find_mask_form(likely, run, call.random_input(2, 6, 1), contract.mask, keys=True)
