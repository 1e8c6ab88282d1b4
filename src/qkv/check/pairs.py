"""Encoder–decoders and decoder blocks: two sequences go in. The target is judged with a source that stays the same, and
the source with a target that stays the same.

Axes: b batch · t targets · s sources · c features.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.contract import Contract
from qkv.check.finding import told
from qkv.check.forms import Parameters, fillings, vocabulary, widths
from qkv.check.mask_forms import MaskForm, find_form
from qkv.check.names import MASKS, MEMORIES, PADDING, SOURCE_MASKS, SOURCE_PADDING, SOURCES, TARGETS
from qkv.check.outputs import output_of
from qkv.check.subject import Subject

SOURCE_LENGTH = 10


@dataclass(frozen=True)
class Pair:
    """How two sequences are handed in: by which names, whether as tokens, and how each is masked."""

    module: nn.Module
    source: str
    target: str
    size: int
    tokens: bool
    flipped: bool
    dtype: torch.dtype
    filled: dict[str, Callable[[Tensor], Any]]

    def __call__(self, source: Tensor, target: Tensor, named: dict[str, Any]) -> Tensor | None:
        given = {self.source: source, self.target: target}
        if self.flipped:
            given = {name: x.transpose(0, 1) for name, x in given.items()}
        more = {name: value(target) for name, value in self.filled.items() if name not in named}
        result = self.module(**given, **more, **named)
        if self.flipped and isinstance(result, Tensor):
            result = result.transpose(0, 1)
        return output_of(result, *target.shape[:2])

    def draw(self, batch: int, length: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if self.tokens:
            return torch.randint(min(3, self.size - 1), self.size, (batch, length), generator=generator)
        return torch.randn(batch, length, self.size, generator=generator, dtype=self.dtype)


def pair_subject(
    module: nn.Module, name: str, contract: Contract, dtype: torch.dtype, tried: dict[str, str]
) -> Subject | None:
    """A module of two sequences as a subject, or None if it is none."""
    parameters = inspect.signature(module.forward).parameters
    found = _names(parameters, module)
    if found is None:
        return None
    source, target = found
    vocab = vocabulary(module)
    sizes = [(vocab, True)] if vocab is not None else [(width, False) for width in widths(module)]
    flipped = not sizes[0][1] and any(getattr(part, "batch_first", True) is False for part in module.modules())
    for said, filled in fillings(parameters, [source, target]):
        for size, tokens in sizes:
            pair = Pair(module, source, target, size, tokens, flipped, dtype, filled)
            axes = ("(s, b, c)" if flipped else "(b, s, c)") if not tokens else "(b, s)"
            words = f"{source} {axes} and {target} {axes.replace('s', 't')}{said}"
            try:
                if pair(pair.draw(2, SOURCE_LENGTH, 1), pair.draw(2, 8, 2), {}) is not None:
                    return _subject(pair, name, words, contract, parameters)
                tried.setdefault(words, "no output of shape (batch, targets, …)")
            except Exception as error:
                tried.setdefault(words, told(error))
    return None


def _names(parameters: Parameters, module: nn.Module) -> tuple[str, str] | None:
    names = list(parameters)
    target = next((known for known in TARGETS if known in names), None)
    if target is None:
        if len(names) > 1 and names[1] in MEMORIES and parameters[names[1]].default is inspect.Parameter.empty:
            return names[1], names[0]
        return None
    if target == "decoder_input_ids" and not getattr(getattr(module, "config", None), "is_encoder_decoder", True):
        return None
    memory = next((known for known in (*MEMORIES, *SOURCES) if known in names and known != target), None)
    if memory is None or (parameters[target].default is not inspect.Parameter.empty and target not in OPTIONAL):
        return None
    return memory, target


OPTIONAL = ("decoder_input_ids", "prev_output_tokens")  # targets that have a default, and are targets all the same


def _subject(pair: Pair, name: str, words: str, contract: Contract, parameters: Parameters) -> Subject:
    source, target = pair.draw(1, SOURCE_LENGTH, 1), pair.draw(1, 8, 2)
    mask = _target_mask(pair, parameters, contract)
    target_padding = next((known for known in PADDING if known in parameters and _of_target(known)), None)
    source_padding = [known for known in SOURCE_PADDING if known in parameters]
    source_form = None if source_padding else _source_form(pair, parameters, contract)

    def named(x: Tensor, present: Tensor | None, of_source: Tensor | None) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if mask is not None:
            allowed = torch.ones(x.shape[0], x.shape[1], x.shape[1], dtype=torch.bool).tril()
            said[mask.parameter] = mask(allowed, pair.dtype)
        if present is not None and target_padding is not None:
            said[target_padding] = _flags(target_padding, present, PADDING)
        if of_source is not None:
            said |= {known: _flags(known, of_source, SOURCE_PADDING) for known in source_padding}
            if source_form is not None:
                said[source_form.parameter] = source_form(of_source, pair.dtype)
        return said

    def checked(out: Tensor | None) -> Tensor:
        if out is None:
            raise ValueError(f"{name} gave no output of shape (batch, targets, …)")
        return out

    def run_target(x: Tensor, present: Tensor | None = None) -> Tensor:
        return checked(pair(source.expand(len(x), *source.shape[1:]).clone(), x, named(x, present, None)))

    def run_source(x: Tensor, present: Tensor | None = None) -> Tensor:
        rows = target.expand(len(x), *target.shape[1:]).clone()
        return checked(pair(x, rows, named(rows, None, present)))

    said = f", a causal mask as {mask}" if mask is not None else ""
    if target_padding is not None:
        said += f", targets' padding as {target_padding}"
    if source_padding or source_form is not None:
        said += f", sources' padding as {', '.join(source_padding) or source_form}"
    outer = Subject(
        name=name,
        level="model" if pair.tokens else "layer",
        how=f"{name}: {words}{said}",
        run=run_target,
        vocab=pair.size if pair.tokens else None,
        width=None if pair.tokens else pair.size,
        dtype=pair.dtype,
        module=pair.module,
        pads=target_padding is not None,
    )
    pads = bool(source_padding) or source_form is not None
    return replace(outer, source=replace(outer, run=run_source, length=SOURCE_LENGTH, pads=pads, aligned=False))


def _of_target(known: str) -> bool:
    return known.startswith(("tgt", "target", "decoder"))


def _flags(known: str, present: Tensor, table: dict[str, bool]) -> Tensor:
    flags = present if table[known] else ~present
    return flags.long() if known.endswith("attention_mask") else flags


def _target_mask(pair: Pair, parameters: Parameters, contract: Contract) -> MaskForm | None:
    """The form of the target's causal mask, where one has to be handed in and was promised."""
    if contract.kind != "causal":
        return None
    source = pair.draw(2, SOURCE_LENGTH, 1)

    def run(x: Tensor, form: MaskForm, flags: Tensor) -> Tensor | None:
        return pair(source, x, {form.parameter: form(flags, pair.dtype)})

    likely = [
        known for known in parameters if known in MASKS and known.startswith(("tgt", "trg", "target", "look", "self"))
    ]
    likely += [known for known in parameters if known in ("mask", "causal_mask", "attn_mask")]
    x = pair.draw(2, 6, 2)
    return next((found for known in likely if (found := find_form(known, run, x, contract.mask, keys=False))), None)


def _source_form(pair: Pair, parameters: Parameters, contract: Contract) -> MaskForm | None:
    """The form of a mask of the source, found by hiding one of its tokens."""
    target = pair.draw(2, 6, 2)

    def run(x: Tensor, form: MaskForm, flags: Tensor) -> Tensor | None:
        return pair(x, target, {form.parameter: form(flags, pair.dtype)})

    likely = [known for known in SOURCE_MASKS if known in parameters]
    x = pair.draw(2, 6, 1)
    return next((found for known in likely if (found := find_form(known, run, x, contract.mask, keys=True))), None)
