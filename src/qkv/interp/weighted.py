"""Norm-weighted attention: what a query gathers from a key, ‖α v W‖, not only how much it attends.

Axes: h heads · t queries · s keys · d head width · c model width.

A head may attend to a token and take almost nothing from it: its value may be small. What key j contributes to query i
through a head is α(i, j) · v(j) W, where W is the head's part of the output projection; its length is
α(i, j) · ‖v(j) W‖. So a length for each key and head is all there is to know beyond the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from qkv.interp.projection import trace_with_projections, values_of
from qkv.interp.result import Result
from qkv.interp.run import Inputs
from qkv.interp.traces.trace import Run, Trace


@dataclass(frozen=True, eq=False)
class ValueNorms(Result):
    """The lengths of one layer's values.

    projection: the name of the output projection that they went through; None where it is not known: then ‖v‖.
    norms: (h, s).
    """

    layer: int
    name: str
    projection: str | None
    norms: Float[Tensor, "h s"]

    def weighted(
        self, trace: Trace, head: int, *, batch: int = 0, rows: Run = None, columns: Run = None
    ) -> Float[Tensor, "t s"]:
        """α(i, j) · ‖v(j) W‖ of one head, for these rows and columns."""
        weights = trace.weights(self.layer, head, batch, rows, columns)
        norms = self.norms[head].to(weights)
        if isinstance(columns, range):
            columns = slice(columns.start, columns.stop)
        return weights * (norms if columns is None else norms[columns])


@torch.no_grad()
def value_norms(model: nn.Module, inputs: Inputs, *, batch: int = 0) -> tuple[ValueNorms, ...]:
    """For each layer the lengths ‖v W‖ of what each head may gather from each key.

    The output projection is found among the modules near the layer, and taken only if it turns what the heads gathered
    into what it returned. A layer whose values are not seen has lengths of NaN.
    """
    trace, projections = trace_with_projections(model, inputs, batch=batch)
    found = []
    for place, (layer, projection) in enumerate(zip(trace.layers, projections, strict=True)):
        if layer.values is None:
            norms = torch.full((layer.heads, layer.keys), float("nan"))
        else:
            values = values_of(layer, batch).to(torch.promote_types(layer.values.dtype, torch.float32))
            norms = (values if projection is None else values @ projection.heads.to(values)).norm(dim=-1)
        found.append(ValueNorms(place, layer.name, None if projection is None else projection.name, norms))
    return tuple(found)
