"""Probe inputs for head types: shuffled copies of an input and the input repeated, traced in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.interp.forward import Inputs, find_tokens, map_inputs, trace_with_output
from qkv.interp.layers import TracedLayer
from qkv.interp.media_inputs import image_grid
from qkv.interp.text_inputs import max_input_tokens
from qkv.interp.traces import Trace
from qkv.models import Model


@dataclass(frozen=True, eq=False)
class ProbeTrace:
    """The trace of a variation of the input: one row of a batch, of which the first `length` tokens count."""

    trace: Trace
    batch: int
    length: int | None = None
    tokens: Tensor | None = None

    def layer(self, index: int, like: TracedLayer) -> TracedLayer | None:
        """The layer of that index, if its map without padding has the size of `like`."""
        layer = self.trace.layers[index]
        size = (layer.queries, layer.keys) if self.length is None else (self.length, self.length)
        return layer if size == (like.queries, like.keys) else None


def trace_probes(
    model: nn.Module, inputs: Inputs, trace: Trace, shuffles: int, seed: int, batch: int
) -> tuple[list[ProbeTrace], ProbeTrace | None]:
    """The traces of the shuffled copies and of the repeated input: from one run of one batch, if possible.

    trace: of the input itself. batch: the row of the input to vary.
    """
    copies, twice = shuffle_inputs(model, inputs, shuffles, seed), repeat_inputs(model, inputs)
    probes = copies if twice is None else [*copies, twice]
    if not probes:
        return [], None
    joined = _join_probes(model, probes, trace, batch)
    if joined is not None:
        try:
            found, _ = trace_with_output(model, joined.inputs)
        except (ValueError, RuntimeError, IndexError, TypeError):  # a model that does not take such a batch
            found = None
        if found is not None and all(layer.batch == len(probes) for layer in found.layers):
            traces = [ProbeTrace(found, row, length, joined.tokens) for row, length in enumerate(joined.lengths)]
            return traces[: len(copies)], None if twice is None else traces[-1]
    return _trace_separately(model, copies, batch), _trace_repeated(model, twice, batch)


def _trace_separately(model: nn.Module, probes: Sequence[Inputs], batch: int) -> list[ProbeTrace]:
    return [ProbeTrace(trace_with_output(model, each)[0], batch, None, find_tokens(each)) for each in probes]


def _trace_repeated(model: nn.Module, twice: Inputs | None, batch: int) -> ProbeTrace | None:
    try:
        return None if twice is None else _trace_separately(model, [twice], batch)[0]
    except (ValueError, RuntimeError, IndexError):  # a model that does not say how many tokens it reads
        return None


@dataclass(frozen=True, eq=False)
class ProbeBatch:
    """Probes as one batch: the model's inputs, the padded tokens, and how many tokens of each row count (None: all)."""

    inputs: Inputs
    tokens: Tensor | None
    lengths: list[int | None]


def _join_probes(model: nn.Module, probes: Sequence[Inputs], trace: Trace, batch: int) -> ProbeBatch | None:
    """One batch of the chosen row of each probe; None if they cannot be joined."""
    rows = [tokens[batch : batch + 1] for probe in probes if (tokens := find_tokens(probe)) is not None]
    tokens = None
    if len(rows) == len(probes):
        longest = max(row.shape[1] for row in rows)
        tokens = torch.cat([_pad(row, longest) for row in rows])
        if any(row.shape[1] < longest for row in rows):
            lengths: list[int | None] = [row.shape[1] for row in rows]
            inputs = _mask_padding(model, probes[0], trace, tokens, lengths)
            return None if inputs is None else ProbeBatch(inputs, tokens, lengths)
    inputs = _concatenate(probes, batch)
    return None if inputs is None else ProbeBatch(inputs, tokens, [None] * len(probes))


def _pad(tokens: Tensor, length: int) -> Tensor:
    padding = tokens[:, :1].expand(-1, length - tokens.shape[1])
    return torch.cat((tokens, padding), dim=1)


def _mask_padding(
    model: nn.Module, inputs: Inputs, trace: Trace, tokens: Tensor, lengths: Sequence[int | None]
) -> Inputs | None:
    """Inputs with padded tokens; padding at the end does not reach the tokens of a causal model, others get a mask."""
    old = find_tokens(inputs)
    size = 0 if old is None else old.shape[1]
    if any(layer.cross or (layer.queries, layer.keys) != (size, size) for layer in trace.layers):
        return None
    if all(layer.is_causal() for layer in trace.layers):
        return map_inputs(inputs, lambda value: tokens if value is old else value)
    token_mask = torch.arange(tokens.shape[1])[None] < torch.tensor(list(lengths))[:, None]
    token_mask = token_mask.to(tokens.device)
    if isinstance(model, Model):
        return tokens, token_mask
    return {"input_ids": tokens, "attention_mask": token_mask.long()}


def _concatenate(probes: Sequence[Inputs], batch: int) -> Inputs | None:
    """One batch of the chosen row of each probe; None if the arguments do not all have the same batch axis."""
    arguments = [list(_arguments(probe)) for probe in probes]
    tensors = [value for value in arguments[0] if isinstance(value, Tensor)]
    if any(value.ndim == 0 for value in tensors) or len({value.shape[0] for value in tensors}) != 1:
        return None
    joined = iter(
        [
            torch.cat([value[batch : batch + 1] for value in values]) if isinstance(values[0], Tensor) else values[0]
            for values in zip(*arguments, strict=True)
        ]
    )
    return map_inputs(probes[0], lambda value: next(joined))


def _arguments(inputs: Inputs) -> Sequence[object]:
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return inputs if isinstance(inputs, tuple) else [inputs]


def shuffle_inputs(model: nn.Module, inputs: Inputs, count: int, seed: int = 0) -> list[Inputs]:
    """Copies of an input with its tokens, or the patches of its image, in random order; the first token stays."""
    generator = torch.Generator().manual_seed(seed)
    tokens, pixels = find_tokens(inputs), _find_pixels(inputs)
    if tokens is not None and tokens.shape[1] > 2:
        copies = [(tokens, _shuffle_tokens(tokens, generator)) for _ in range(count)]
    elif pixels is not None:
        try:
            patch_size = image_grid(model).patch_size
        except ValueError:
            return []
        copies = [(pixels, _shuffle_patches(pixels, patch_size, generator)) for _ in range(count)]
    else:
        return []
    return [map_inputs(inputs, lambda value, old=old, new=new: new if value is old else value) for old, new in copies]


def repeat_inputs(model: nn.Module, inputs: Inputs) -> Inputs | None:
    """The input's tokens followed by all but the first once more; None if they are too few or there is no room.

    A text that is too long to be repeated is cut to half of what the model reads.
    """
    tokens = find_tokens(inputs)
    only_tokens = isinstance(inputs, Tensor) or (isinstance(inputs, Mapping) and len(inputs) == 1)
    if tokens is None or not only_tokens:
        return None
    limit = max_input_tokens(model)
    length = tokens.shape[1] if limit is None else min(tokens.shape[1], (limit + 1) // 2)
    if length < 5:
        return None
    repeated = torch.cat((tokens[:, :length], tokens[:, 1:length]), dim=1)
    return map_inputs(inputs, lambda value: repeated if value is tokens else value)


def _shuffle_tokens(tokens: Tensor, generator: torch.Generator) -> Tensor:
    order = 1 + torch.randperm(tokens.shape[1] - 1, generator=generator)
    return torch.cat((tokens[:, :1], tokens[:, order.to(tokens.device)]), dim=1)


def _shuffle_patches(pixels: Tensor, patch_size: int, generator: torch.Generator) -> Tensor:
    rows, columns = pixels.shape[-2] // patch_size, pixels.shape[-1] // patch_size
    patches = torch.nn.functional.unfold(pixels, patch_size, stride=patch_size)
    order = torch.randperm(rows * columns, generator=generator).to(pixels.device)
    return torch.nn.functional.fold(patches[..., order], pixels.shape[-2:], patch_size, stride=patch_size)


def _find_pixels(inputs: Inputs) -> Tensor | None:
    found = inputs.get("pixel_values") if isinstance(inputs, Mapping) else inputs
    return found if isinstance(found, Tensor) and found.ndim == 4 and found.is_floating_point() else None
