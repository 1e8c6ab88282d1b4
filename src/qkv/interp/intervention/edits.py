"""What `change` is asked to do, sorted by layer, and how each request acts on weights.

Axes: b batch · h heads · t queries · s keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Address = int | str  # a layer, by its place or its name
Head = int | None  # None is every head
Beta = float | Mapping[Address, float] | Mapping[tuple[Address, Head], float]
Pattern = Tensor | Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Edit:
    """The requests for one layer."""

    betas: dict[Head, float] = field(default_factory=dict)
    silent: list[Head] = field(default_factory=list)
    cuts: list[tuple[Head, int, int]] = field(default_factory=list)
    patterns: dict[Head, Pattern] = field(default_factory=dict)

    def beta(self, own: float | Tensor, heads: int) -> float | Tensor:
        """The layer's β: a number where it is one for all heads, else (h, 1, 1)."""
        if None in self.betas and len(self.betas) == 1:
            return self.betas[None]
        if not self.betas:
            return own
        every = self.betas.get(None, own)
        wanted = torch.as_tensor(every, dtype=torch.float64).expand(heads, 1, 1).clone()
        for head, beta in self.betas.items():
            if head is not None:
                wanted[_checked(head, heads)] = beta
        return wanted

    def edges(self, heads: int, t: int, s: int, shift: int, device: torch.device) -> Bool[Tensor, "h t s"] | None:
        """The edges to be cut; query i of this call is query i + shift of the text."""
        if not self.cuts:
            return None
        edges = torch.zeros(heads, t, s, dtype=torch.bool, device=device)
        for head, query, key in self.cuts:
            if 0 <= query - shift < t and 0 <= key < s:
                edges[slice(None) if head is None else _checked(head, heads), query - shift, key] = True
        return edges

    def silenced(self, x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b h t e"]:
        """Weights, or what they gather, with the silenced heads' at 0."""
        if not self.silent:
            return x
        flags = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
        for head in self.silent:
            flags[slice(None) if head is None else _checked(head, x.shape[1])] = True
        return x.masked_fill(flags[:, None, None], 0.0)

    def replaced(self, weights: Float[Tensor, "b h t s"]) -> Float[Tensor, "b h t s"]:
        """Weights with the heads that have a pattern showing it."""
        if not self.patterns:
            return weights
        heads = list(weights.unbind(1))
        for head, pattern in self.patterns.items():
            for each in range(len(heads)) if head is None else [_checked(head, len(heads))]:
                new = pattern(heads[each]) if callable(pattern) else pattern.to(heads[each])
                if new.shape[-2:] != heads[each].shape[-2:]:
                    raise ValueError(
                        f"the pattern for head {each} is (queries, keys) = {tuple(heads[each].shape[-2:])}; got "
                        f"{tuple(new.shape)}"
                    )
                heads[each] = new.expand_as(heads[each])
        return torch.stack(heads, dim=1)


class Edits:
    """All requests; which of them hold for a layer is asked with its place and the names around it."""

    def __init__(
        self,
        beta: Beta | None,
        silence: Iterable[tuple[Address, Head]],
        cut: Iterable[tuple[Address, Head, int, int]],
        pattern: Mapping[tuple[Address, Head], Pattern],
    ) -> None:
        self.layers: dict[Address | None, Edit] = {}
        self.met: set[Address | None] = set()  # those that a layer which ran was asked for
        for (layer, head), number in _betas(beta).items():
            self._of(layer).betas[head] = number
        for layer, head in silence:
            self._of(layer).silent.append(head)
        for layer, head, query, key in cut:
            self._of(layer).cuts.append((head, query, key))
        for (layer, head), wanted in pattern.items():
            self._of(layer).patterns[head] = wanted

    def _of(self, layer: Address | None) -> Edit:
        return self.layers.setdefault(layer, Edit())

    def __bool__(self) -> bool:
        return bool(self.layers)

    @property
    def names(self) -> list[str]:
        return [layer for layer in self.layers if isinstance(layer, str)]

    def at(self, number: int, inside: Callable[[str], bool]) -> Edit | None:
        """The requests for the layer that ran as number `number`, inside modules of these names."""
        here = [
            layer
            for layer in self.layers
            if layer is None or layer == number or (isinstance(layer, str) and inside(layer))
        ]
        self.met.update(here)
        if len(here) < 2:
            return self.layers[here[0]] if here else None
        joined = Edit()
        for edit in (self.layers[layer] for layer in here):
            joined.betas.update(edit.betas)
            joined.silent.extend(edit.silent)
            joined.cuts.extend(edit.cuts)
            joined.patterns.update(edit.patterns)
        return joined


def _betas(beta: Beta | None) -> dict[tuple[Address | None, Head], float]:
    if beta is None:
        return {}
    if not isinstance(beta, Mapping):
        return {(None, None): float(beta)}
    return {(key if isinstance(key, tuple) else (key, None)): float(number) for key, number in beta.items()}


def _checked(head: int, heads: int) -> int:
    if not 0 <= head < heads:
        raise ValueError(f"the layer has {heads} heads, 0 to {heads - 1}; got head {head}")
    return head
