"""An implementation under test, seen in one way however it is called: a function of a sequence.

Axes: b batch · t tokens · c features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

Level = Literal["function", "layer", "model"]


@runtime_checkable
class Run(Protocol):
    """Call it: x is (b, t) tokens or (b, t, c) vectors; `present` (b, t) says which of them exist."""

    def __call__(self, x: Tensor, present: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class Attend(Protocol):
    """Call it as a function: q (b, h, t, d), k and v (b, g, s, d); `allowed` (t, s) or (b, 1, t, s), True = may attend.

    causal: with its own causal flag, where it has one.
    """

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, *, causal: bool = False
    ) -> Tensor: ...


@dataclass(frozen=True)
class Subject:
    """What is judged, and what it can do.

    vocab: how many tokens it knows, or None where it reads vectors of `width`.
    cached: run the pieces one after the other through its cache, and give all outputs; None without a cache.
    attend: for functions of queries, keys and values.
    masked: whether a mask can be handed in; `polarity` is what True means in it. flag: its causal flag's name.
    source: for encoder–decoders: the same, as a function of its source, with a target that stays the same.
    aligned: whether outputs stand at the places of the inputs.
    spare: words in the names of parameters that this kind of call does not use by design (a head for other inputs).
    inexact: why its gradient is by design another than that of its output.
    coarse: written for float32, parts of it computed so although its weights are wider.
    every: all its outputs, where `run` gives one of several.
    """

    name: str
    level: Level
    how: str
    run: Run
    vocab: int | None = None
    width: int | None = None
    length: int = 12
    dtype: torch.dtype = torch.float64
    module: nn.Module | None = None
    pads: bool = False
    cached: Callable[[Sequence[Tensor], Sequence[Tensor | None]], Tensor] | None = None
    attend: Attend | None = None
    masked: bool = False
    polarity: str | None = None
    flag: str | None = None
    source: Subject | None = None
    aligned: bool = True
    spare: tuple[str, ...] = ()
    inexact: str | None = None
    coarse: bool = False
    every: Callable[[Tensor], list[Tensor]] | None = None

    def draw(self, batch: int, length: int, generator: Generator) -> Tensor:
        """A random input."""
        if self.vocab is not None:
            low = min(3, self.vocab - 1)  # the first few tokens are often padding and the like
            return torch.randint(low, self.vocab, (batch, length), generator=generator)
        assert self.width is not None
        return torch.randn(batch, length, self.width, generator=generator, dtype=self.dtype)

    def changed(self, x: Tensor, place: int, generator: Generator) -> Tensor:
        """x with another token at one place of each row."""
        other = self.draw(x.shape[0], 1, generator)[:, 0].to(x)
        if self.vocab is not None:
            low = min(3, self.vocab - 1)
            same = other == x[:, place]
            other = torch.where(same, low + (other - low + 1) % max(self.vocab - low, 1), other)
        x = x.clone()
        x[:, place] = other
        return x

    def at(self, out: Tensor, present: Tensor) -> Tensor:
        """The outputs of tokens that exist: `present` is (t) or (b, t); all of them if outputs stand elsewhere."""
        if not self.aligned:
            return out
        return out[:, present] if present.ndim == 1 else out[present]

    @contextmanager
    def doubled(self) -> Iterator[Subject]:
        """The same in float64 for a while, where it can be computed so: differences of outputs need the digits."""
        if self.module is None or self.dtype == torch.float64:
            yield self
            return
        self.module.double()
        exact = replace(self, dtype=torch.float64, coarse=True)
        try:
            try:
                fits = exact.run(exact.draw(2, self.length, torch.Generator().manual_seed(3))).dtype == torch.float64
            except Exception:  # some kernels, and some code, know float32 only
                fits = False
            if not fits:
                self.module.to(self.dtype)
            yield exact if fits else self
        finally:
            self.module.to(self.dtype)

    @property
    def tolerance(self) -> float:
        """How large a forbidden effect may be, as a share of an allowed one."""
        return 1e-6 if self.dtype == torch.float64 else 1e-3


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """Draw all trainable weights anew: zero and small initial ones hide mistakes. Buffers and frozen ones are kept."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.requires_grad or not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                parameter.copy_((noise * fan_in**-0.5).to(parameter.dtype))
            else:
                parameter.add_((0.2 * noise).to(parameter.dtype))
    return module
