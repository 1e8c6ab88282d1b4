"""activation_patching(): put parts of a clean run into a corrupted run and measure how much of the answer comes back.

Axes: b batch · t tokens · c model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv.interp.ablation import Progress
from qkv.interp.forward import AnalysisResult, Inputs, call_eval, get_logits, trace_with_output
from qkv.interp.intervention import intervene
from qkv.interp.model_parts import OutputProjection, callable_blocks, find_stack, trace_with_projections

CleanMeasure = Callable[[Any], float | Tensor]  # of what the model returns: higher is closer to the clean answer
MakePatch = Callable[[], AbstractContextManager[None]]
PatchRow = tuple[list[MakePatch], MakePatch]  # a patch for each column, and one for all columns together


@dataclass(frozen=True, eq=False)
class PatchingTable(AnalysisResult):
    """How much of the clean answer each patch brings back: 0 nothing, 1 all of it.

    what: "residual" (after each block, a column for each position) or "heads" (a column for each head).
    names: of the rows: blocks, or attention layers. table: (measure − corrupted) / (clean − corrupted).
    whole: the same with all columns of a row patched together.
    clean, corrupted: the measure of the two runs. measure: its description.
    """

    what: str
    names: tuple[str, ...]
    table: tuple[tuple[float | None, ...], ...]
    whole: tuple[float, ...]
    clean: float
    corrupted: float
    measure: str


def activation_patching(
    model: nn.Module,
    clean: Inputs,
    corrupted: Inputs,
    *,
    what: Literal["residual", "heads"] = "residual",
    measure: CleanMeasure | None = None,
    progress: Progress | None = None,
) -> PatchingTable:
    """Run the corrupted input with one part of the clean run in its place, for every part in turn.

    what: patch the residual stream after each block at each position, or the output of each head at all positions.
    measure: how close an output is to the clean answer; by default the logit of the clean run's most likely last
        answer minus that of the corrupted run's.
    """
    if what not in ("residual", "heads"):
        raise ValueError(f"what must be 'residual' or 'heads'; got {what!r}")
    measure, description = (measure, "measure") if measure is not None else _logit_difference(model, clean, corrupted)
    high, low = float(measure(call_eval(model, clean))), float(measure(call_eval(model, corrupted)))
    if abs(high - low) <= 1e-6 * max(abs(high), abs(low), 1e-6):
        raise ValueError(
            f"both inputs give the same measure, {high:.6g}, so there is nothing to recover; choose inputs that the "
            "model answers differently, or another measure"
        )
    make_rows = _residual_patches if what == "residual" else _head_patches
    names, rows = make_rows(model, clean, corrupted)
    columns = max(len(parts) for parts, _ in rows)
    total, done = sum(len(parts) + 1 for parts, _ in rows), 0

    def recovered(patch: MakePatch) -> float:
        nonlocal done
        with patch():
            value = float(measure(call_eval(model, corrupted)))
        done += 1
        if progress is not None:
            progress(done, total)
        return (value - low) / (high - low)

    table, whole = [], []
    for parts, all_parts in rows:
        shares: list[float | None] = [recovered(part) for part in parts]
        table.append(tuple(shares + [None] * (columns - len(shares))))
        whole.append(recovered(all_parts))
    return PatchingTable(what, names, tuple(table), tuple(whole), high, low, description)


def _residual_patches(model: nn.Module, clean: Inputs, corrupted: Inputs) -> tuple[tuple[str, ...], list[PatchRow]]:
    trace, _ = trace_with_output(model, clean)
    blocks = callable_blocks(model, find_stack(trace))
    source, target = (trace_with_output(model, inputs, activations=blocks)[0] for inputs in (clean, corrupted))
    rows: list[PatchRow] = []
    for block in blocks:
        new, old = source.activation(block), target.activation(block)
        _check_shapes(new, old, block)
        parts = [partial(intervene, model, patch={block: _patch_position(new, i)}) for i in range(new.shape[1])]
        rows.append((list(parts), partial(intervene, model, patch={block: new})))
    return blocks, rows


def _patch_position(new: Tensor, position: int) -> Callable[[Tensor], Tensor]:
    def patch(old: Tensor) -> Tensor:
        return torch.cat((old[:, :position], new[:, position : position + 1], old[:, position + 1 :]), dim=1)

    return patch


def _head_patches(model: nn.Module, clean: Inputs, corrupted: Inputs) -> tuple[tuple[str, ...], list[PatchRow]]:
    trace, projections = trace_with_projections(model, clean)
    for layer, projection in zip(trace.layers, projections, strict=True):
        if projection is None or not projection.called:
            raise ValueError(
                f"the output projection of {layer.name} is not a module whose input can be replaced, so its heads "
                "cannot be patched; patch the residual stream instead: what='residual'"
            )
    found = [projection for projection in projections if projection is not None]
    inputs_of = []
    for inputs in (clean, corrupted):
        with _record_inputs(model, [projection.name for projection in found]) as recorded:
            call_eval(model, inputs)
        inputs_of.append(recorded)
    rows: list[PatchRow] = []
    for projection in found:
        new, old = (each[projection.name] for each in inputs_of)
        _check_shapes(new, old, projection.name)
        heads, head_dim = projection.heads.shape[:2]
        slices = [slice(head * head_dim, (head + 1) * head_dim) for head in range(heads)]
        parts = [partial(_patch_heads, model, projection, new, each) for each in slices]
        rows.append((list(parts), partial(_patch_heads, model, projection, new, slice(None))))
    return tuple(layer.name for layer in trace.layers), rows


@contextmanager
def _record_inputs(model: nn.Module, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """Record the inputs of modules during a run."""
    recorded: dict[str, Tensor] = {}
    handles = []
    for name in names:

        def keep(module: nn.Module, inputs: tuple, name: str = name) -> None:
            recorded[name] = inputs[0].detach()

        handles.append(model.get_submodule(name).register_forward_pre_hook(keep))
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _patch_heads(model: nn.Module, projection: OutputProjection, new: Tensor, columns: slice) -> Iterator[None]:
    """Give an output projection some heads of another run."""

    def replace(module: nn.Module, inputs: tuple) -> tuple:
        mixed = inputs[0].clone()
        mixed[..., columns] = new[..., columns]
        return (mixed, *inputs[1:])

    handle = model.get_submodule(projection.name).register_forward_pre_hook(replace)
    try:
        yield
    finally:
        handle.remove()


def _check_shapes(new: Tensor, old: Tensor, name: str) -> None:
    if new.shape != old.shape:
        raise ValueError(
            f"the two inputs must have the same shape, so that positions correspond; {name} has {tuple(new.shape)} in "
            f"the clean run and {tuple(old.shape)} in the corrupted one"
        )


def _logit_difference(model: nn.Module, clean: Inputs, corrupted: Inputs) -> tuple[CleanMeasure, str]:
    """The logit of the clean run's last answer minus that of the corrupted run's."""
    last = [_last_logits(get_logits(model, call_eval(model, inputs)))[0] for inputs in (clean, corrupted)]
    right, wrong = (int(each.argmax()) for each in last)
    if right == wrong:
        raise ValueError(
            f"the model's most likely last answer is {right} on both inputs; choose inputs that it answers "
            "differently, or pass your own measure"
        )

    def difference(output: Any) -> Tensor:
        logits = _last_logits(get_logits(model, output))
        return (logits[:, right] - logits[:, wrong]).double().mean()

    return difference, f"logit of {right} minus logit of {wrong}, at the last position"


def _last_logits(logits: Tensor) -> Tensor:
    return logits[:, -1] if logits.ndim == 3 else logits
