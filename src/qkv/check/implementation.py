"""Implementation: the code under test behind one interface, a function of a sequence.

Functions of q, k, v, layers, language models, image models and encoder–decoders all become an `Implementation`
(`qkv.check.calling`), so that each check is written once.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

Level = Literal["function", "layer", "model"]


@runtime_checkable
class SequenceFunction(Protocol):
    """x is (b, t) tokens or (b, t, c) vectors; token_mask (b, t) is True for real tokens."""

    def __call__(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class AttentionFunction(Protocol):
    """q (b, h, t, d), k and v (b, g, s, d); mask (t, s) or (b, 1, t, s), True = may attend.

    causal: use the function's own causal flag, if it has one.
    """

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = False
    ) -> Tensor: ...


@dataclass(frozen=True)
class Implementation:
    """The code under test, and what it can do.

    Args:
        how: how it is called, in words.
        run: calls it on a sequence.
        vocab_size: the number of tokens, or None if it reads vectors.
        dim: the size of the vectors, or None if it reads tokens.
        length: the sequence length to test with.
        takes_padding: whether `token_mask` can be passed.
        run_masked: calls it with a mask (b, t, t), True = may attend, which may differ between rows of the batch if
            `masks_rows`; None if it takes none.
        run_cached: runs pieces of a sequence through the KV cache and returns all outputs; None without a cache.
        attention: calls it as a function of q, k, v; None for modules.
        takes_mask: whether a mask can be passed to `attention`; `mask_polarity` says what True means in it.
        causal_flag: the name of its causal flag.
        source: for encoder–decoders, the same as a function of the source, with a fixed target.
        aligned: whether output i belongs to input i.
        unused_by_design: words in the names of parameters that this call does not use (a head for other inputs).
        inexact_gradient: why its gradient by design is not that of its output.
        float32_inside: parts are computed in float32 even though its weights are float64.
        all_outputs: all of its outputs, if `run` returns one of several.
        length_multiple: it takes only lengths that are multiples of this number.
        fixed_length: the only length that it takes.
        max_length: the longest sequence that it takes, if that was found to be limited.
        adds_padding: padding is an additive mask, in which the caller puts −∞ for a whole row.
        padding_sides: where padding may be; lengths of rows say only where it begins on the right.
        differentiable: whether PyTorch can follow its computation; False for numpy, JAX and compiled code.
        fresh: builds the module again, for a class; nothing was called on it yet.
        packed: rows of the batch follow each other in one sequence, with their boundaries as an argument.
        key_heads: from the number of query heads of `attention` to the number of key heads that it insists on.
    """

    name: str
    level: Level
    how: str
    run: SequenceFunction
    vocab_size: int | None = None
    dim: int | None = None
    length: int = 12
    dtype: torch.dtype = torch.float64
    module: nn.Module | None = None
    takes_padding: bool = False
    run_masked: Callable[[Tensor, Tensor], Tensor] | None = None
    masks_rows: bool = False
    run_cached: Callable[[Sequence[Tensor]], Tensor] | None = None
    attention: AttentionFunction | None = None
    takes_mask: bool = False
    mask_polarity: str | None = None
    causal_flag: str | None = None
    source: Implementation | None = None
    aligned: bool = True
    unused_by_design: tuple[str, ...] = ()
    inexact_gradient: str | None = None
    float32_inside: bool = False
    all_outputs: Callable[[Tensor], list[Tensor]] | None = None
    length_multiple: int = 1
    fixed_length: int | None = None
    max_length: int | None = None
    padding_sides: tuple[str, ...] = ("right", "left", "holes")
    adds_padding: bool = False
    differentiable: bool = True
    fresh: Callable[[], nn.Module] | None = None
    packed: bool = False
    key_heads: Callable[[int], int] = lambda heads: heads

    @property
    def tolerance(self) -> float:
        """The largest forbidden effect that passes, relative to an allowed one."""
        return 1e-6 if self.dtype == torch.float64 else 1e-3

    @property
    def without_mask(self) -> str:
        """Begins the evidence of a function that is called without the mask or causal flag that it could take."""
        return "called without a mask, " if self.takes_mask or self.causal_flag else ""

    def nearest_length(self, length: int) -> int:
        """The nearest length that it takes: the next multiple, the only one, or the longest."""
        if self.fixed_length is not None:
            return self.fixed_length
        if self.max_length is not None:
            length = min(length, self.max_length)
        return -(-length // self.length_multiple) * self.length_multiple

    def takes_length(self, length: int) -> bool:
        return self.nearest_length(length) == length

    def random_input(self, batch: int, length: int, generator: Generator) -> Tensor:
        """Random tokens (b, t) or vectors (b, t, c)."""
        if self.vocab_size is not None:
            return random_tokens(self.vocab_size, batch, length, generator)
        assert self.dim is not None
        return torch.randn(batch, length, self.dim, generator=generator, dtype=self.dtype)

    def change_token(self, x: Tensor, position: int, generator: Generator) -> Tensor:
        """A copy of x with another token at one position of each row."""
        other = self.random_input(x.shape[0], 1, generator)[:, 0].to(x)
        if self.vocab_size is not None:
            low = min(3, self.vocab_size - 1)
            same = other == x[:, position]
            other = torch.where(same, low + (other - low + 1) % max(self.vocab_size - low, 1), other)
        x = x.clone()
        x[:, position] = other
        return x

    def select_tokens(self, out: Tensor, token_mask: Tensor) -> Tensor:
        """The outputs of real tokens, by a mask (t) or (b, t); all outputs if they are not aligned with the inputs."""
        if not self.aligned:
            return out
        return out[:, token_mask] if token_mask.ndim == 1 else out[token_mask]

    @contextmanager
    def in_float64(self) -> Iterator[Implementation]:
        """The same module in float64 for a while, if it runs in float64: finite differences need the digits."""
        if self.module is None or self.dtype == torch.float64:
            yield self
            return
        cast_module(self.module, torch.float64)
        exact = replace(self, dtype=torch.float64, float32_inside=True)
        try:
            try:
                x = exact.random_input(2, self.length, torch.Generator().manual_seed(3))
                fits = exact.run(x).dtype == torch.float64
            except Exception:  # some kernels and some code support float32 only
                fits = False
            if not fits:
                cast_module(self.module, self.dtype)
            yield exact if fits else self
        finally:
            cast_module(self.module, self.dtype)


def random_tokens(vocab_size: int, batch: int, length: int, generator: Generator) -> Tensor:
    """Random tokens (b, t), without the first few, which are often padding and other special tokens."""
    return torch.randint(min(3, vocab_size - 1), vocab_size, (batch, length), generator=generator)


def relative_difference(expected: Tensor, found: Tensor) -> float:
    """The largest difference relative to the largest expected value; a NaN on one side only counts as infinite."""
    size = float(expected.nan_to_num().abs().max()) or 1.0
    same = (expected == found) | (expected.isnan() & found.isnan())  # another check says that it is not finite
    return float((expected - found).abs().nan_to_num(nan=float("inf")).masked_fill(same, 0.0).max()) / size


def cast_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module in another dtype; complex tensors (tables of RoPE) stay complex, with parts of that dtype.

    `Module.to(dtype)` discards their imaginary parts.
    """
    turned = torch.complex128 if dtype == torch.float64 else torch.complex64
    kept: list[tuple[Any, str, Tensor]] = [
        (store, name, value)
        for part in module.modules()
        for store in (part._parameters, part._buffers)
        for name, value in store.items()
        if value is not None and value.is_complex()
    ]
    for store, name, _ in kept:
        store[name] = None
    module.to(dtype)
    for store, name, value in kept:
        value.data = value.data.to(turned)
        store[name] = value
    return module


def randomize_weights(module: nn.Module, seed: int = 0) -> nn.Module:
    """Redraw all trainable weights, because zero or small initial ones hide bugs. Buffers and frozen weights stay."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):  # it gets its shape in the first call
                continue
            if not parameter.requires_grad or not parameter.is_floating_point() or parameter.numel() == 0:
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                parameter.copy_((noise * fan_in**-0.5).to(parameter.dtype))
            else:
                parameter.add_((0.2 * noise).to(parameter.dtype))
    return module
