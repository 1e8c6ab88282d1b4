"""The output projection of an attention layer: found among a model's modules, and believed only if its numbers agree.

Axes: t queries · h heads · d head width · c model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.interp.run import Inputs, run_traced
from qkv.interp.traces.layer import Layer
from qkv.interp.traces.trace import Trace

TRIED = 4  # queries whose output is compared


@dataclass(frozen=True, eq=False)
class Projection:
    """A layer's output projection: the module's name, and what it does to each head: (h, d, c).

    called: whether the module is called, so that what it is given can be replaced; nn.MultiheadAttention's is not.
    """

    name: str
    heads: Float[Tensor, "h d c"]
    called: bool = True


@torch.no_grad()
def trace_with_projections(
    model: nn.Module, inputs: Inputs, *, batch: int = 0
) -> tuple[Trace, tuple[Projection | None, ...]]:
    """A trace with values, and for each layer its output projection, None where none is found."""
    linear = {name: module for name, module in model.named_modules() if _weight(module) is not None}
    trace, _ = run_traced(model, inputs, activations=linear.__contains__, values=True)
    return trace, tuple(_found(model, trace, layer, linear, batch) for layer in trace.layers)


def _found(model: nn.Module, trace: Trace, layer: Layer, linear: dict[str, nn.Module], batch: int) -> Projection | None:
    """The module near the layer that turns what its heads gather into what it returned."""
    if layer.values is None:
        return None
    width = layer.heads * layer.values.shape[-1]
    own = model.get_submodule(layer.name.split("@")[0]) if "@" not in layer.name and _has(model, layer.name) else None
    if isinstance(own, nn.MultiheadAttention):
        return Projection(f"{layer.name}.out_proj", _cut(own.out_proj.weight.mT, layer), called=False)
    gathered = None
    for name in _near(layer.name, linear):
        weight = _weight(linear[name])
        if weight is None or weight.shape[0] != width or name not in trace.activations:
            continue
        gathered = gathered_rows(layer, batch, range(min(TRIED, layer.queries))) if gathered is None else gathered
        bias = getattr(linear[name], "bias", None)
        wanted = gathered @ weight.to(gathered) + (0 if bias is None else bias.to(gathered))
        returned = trace.activation(name)
        if returned.ndim == 2:
            returned = returned.unflatten(0, (layer.batch, -1))
        if returned.shape[1] != layer.queries or len(returned) != layer.batch:
            continue
        returned = returned[batch, : len(gathered)].to(gathered)
        near = 1e-3 if returned.dtype == torch.float32 and weight.element_size() > 2 else 3e-2
        if float((wanted - returned).norm()) <= near * float(returned.norm()) + 1e-9:
            return Projection(name, _cut(weight, layer))
    return None


def gathered_rows(layer: Layer, batch: int, rows: range) -> Float[Tensor, "t hd"]:
    """What all heads gather for some queries, Σ α v, one head beside the other."""
    values = values_of(layer, batch)
    parts = [layer.window(batch, head, rows, range(layer.keys)) for head in range(layer.heads)]
    return torch.cat([weights @ values[head].to(weights) for head, weights in enumerate(parts)], dim=-1)


def values_of(layer: Layer, batch: int = 0) -> Float[Tensor, "h s d"]:
    """The values of each head."""
    if layer.values is None:
        raise ValueError(
            f"the values of {layer.name} were not kept: its attention gathers them in a way that is not seen"
        )
    values = layer.values[batch]
    return values.repeat_interleave(layer.heads // len(values), dim=0)


def _near(name: str, linear: dict[str, nn.Module]) -> Iterator[str]:
    """Names of modules inside the layer's module, then inside its parent, and its parent's parent."""
    parts, seen = name.split("@")[0].split("."), set()
    for depth in range(len(parts), max(len(parts) - 3, -1), -1):
        around = ".".join(parts[:depth])
        for other in linear:
            if other not in seen and (other.startswith(f"{around}.") or other == around or not around):
                seen.add(other)
                yield other


def _weight(module: nn.Module) -> Tensor | None:
    """A linear map's matrix as (in, out); None if the module is none."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or isinstance(module, nn.Embedding):
        return None
    if isinstance(module, nn.Linear):
        return weight.detach().mT
    return weight.detach() if type(module).__name__ == "Conv1D" else None  # Hugging Face's, which is (in, out)


def _cut(weight: Tensor, layer: Layer) -> Tensor:
    return weight.detach().unflatten(0, (layer.heads, -1))


def _has(model: nn.Module, name: str) -> bool:
    return any(name == each for each, _ in model.named_modules())
