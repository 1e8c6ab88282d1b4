"""Activation patching: parts of one run put into another, and how much of the first run's answer comes back.

Axes: b batch · t tokens · c model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qkv.interp.ablation import Progress
from qkv.interp.intervention.intervene import change
from qkv.interp.outcome import answer
from qkv.interp.projection import Projection, trace_with_projections
from qkv.interp.result import Result
from qkv.interp.run import Inputs, run_traced, scores_of
from qkv.interp.stacks import called_blocks, stack_of

Good = Callable[[Any], float | Tensor]  # of what the model returns: how much it answers as in the clean run


@dataclass(frozen=True, eq=False)
class Patching(Result):
    """How much of the clean answer each patch brings back: 0 nothing, 1 all of it.

    what: "residual" (after each block, a column for each position) or "heads" (a column for each head).
    names: the rows': blocks, or attention layers. table: (measure − corrupted) / (clean − corrupted).
    whole: the same with all of a row's columns patched at once.
    clean, corrupted: the measure of the two runs. measure: what it is, in words.
    """

    what: str
    names: tuple[str, ...]
    table: tuple[tuple[float | None, ...], ...]
    whole: tuple[float, ...]
    clean: float
    corrupted: float
    measure: str


def patching(
    model: nn.Module,
    clean: Inputs,
    corrupted: Inputs,
    *,
    what: Literal["residual", "heads"] = "residual",
    measure: Good | None = None,
    progress: Progress | None = None,
) -> Patching:
    """Run the corrupted input with one part of the clean run in its place, for every part in turn.

    what: the residual stream after each block at each position; or what each head gathers, at all positions.
    measure: how much an answer is the clean run's; by default the logit of the clean run's likeliest last answer minus
        that of the corrupted run's.
    """
    if what not in ("residual", "heads"):
        raise ValueError(f"what is patched is 'residual' or 'heads'; got {what!r}")
    good, words = (measure, "measure") if measure is not None else _difference(model, clean, corrupted)
    high, low = float(good(answer(model, clean))), float(good(answer(model, corrupted)))
    if abs(high - low) <= 1e-6 * max(abs(high), abs(low), 1e-6):
        raise ValueError(
            f"both inputs give the same measure, {high:.6g}: there is nothing to bring back; choose inputs that the "
            "model answers differently, or another measure"
        )
    names, rows = _residual(model, clean, corrupted) if what == "residual" else _heads(model, clean, corrupted)
    width = max(len(parts) for parts, _ in rows)
    total, done = sum(len(parts) + 1 for parts, _ in rows), 0

    def recovered(patched: Callable[[], Any]) -> float:
        nonlocal done
        with patched():
            value = float(good(answer(model, corrupted)))
        done += 1
        if progress is not None:
            progress(done, total)
        return (value - low) / (high - low)

    table, whole = [], []
    for parts, every in rows:
        found: list[float | None] = [recovered(each) for each in parts]
        table.append(tuple(found + [None] * (width - len(found))))
        whole.append(recovered(every))
    return Patching(what, names, tuple(table), tuple(whole), high, low, words)


Row = tuple[list[Callable[[], Any]], Callable[[], Any]]  # a change for each column, and for all of them


def _residual(model: nn.Module, clean: Inputs, corrupted: Inputs) -> tuple[tuple[str, ...], list[Row]]:
    trace, _ = run_traced(model, clean)
    blocks = called_blocks(model, stack_of(trace))
    source, target = (run_traced(model, inputs, activations=blocks)[0] for inputs in (clean, corrupted))
    rows: list[Row] = []
    for block in blocks:
        new, old = source.activation(block), target.activation(block)
        _check(new, old, block)
        parts = [partial(change, model, patch={block: _at(new, place)}) for place in range(new.shape[1])]
        rows.append((list(parts), partial(change, model, patch={block: new})))
    return blocks, rows


def _at(new: Tensor, place: int) -> Callable[[Tensor], Tensor]:
    def patched(old: Tensor) -> Tensor:
        return torch.cat((old[:, :place], new[:, place : place + 1], old[:, place + 1 :]), dim=1)

    return patched


def _heads(model: nn.Module, clean: Inputs, corrupted: Inputs) -> tuple[tuple[str, ...], list[Row]]:
    trace, projections = trace_with_projections(model, clean)
    given = {each.name: None for each in projections if each is not None and each.called}
    unknown = [
        layer.name for layer, each in zip(trace.layers, projections, strict=True) if each is None or not each.called
    ]
    if unknown:
        raise ValueError(
            f"the output projection of {unknown[0]} is not a module that is seen at work, so its heads cannot be "
            "patched; the residual stream can: what='residual'"
        )
    taken: list[dict[str, Tensor]] = []
    for inputs in (clean, corrupted):
        with _taking(model, list(given)) as seen:
            answer(model, inputs)
        taken.append(seen)
    rows: list[Row] = []
    for projection in projections:
        assert projection is not None
        new, old = (each[projection.name] for each in taken)
        _check(new, old, projection.name)
        heads, width = projection.heads.shape[:2]
        runs = [slice(head * width, (head + 1) * width) for head in range(heads)]
        parts = [partial(_giving, model, projection, new, run) for run in runs]
        rows.append((list(parts), partial(_giving, model, projection, new, slice(None))))
    return tuple(layer.name for layer in trace.layers), rows


@contextmanager
def _taking(model: nn.Module, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """What modules are given during a run."""
    seen: dict[str, Tensor] = {}
    handles = []
    for name in names:

        def take(module: nn.Module, inputs: tuple, name: str = name) -> None:
            seen[name] = inputs[0].detach()

        handles.append(model.get_submodule(name).register_forward_pre_hook(take))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _giving(model: nn.Module, projection: Projection, new: Tensor, run: slice) -> Iterator[None]:
    """Give an output projection some heads of another run."""

    def give(module: nn.Module, inputs: tuple) -> tuple:
        mixed = inputs[0].clone()
        mixed[..., run] = new[..., run]
        return (mixed, *inputs[1:])

    handle = model.get_submodule(projection.name).register_forward_pre_hook(give)
    try:
        yield
    finally:
        handle.remove()


def _check(new: Tensor, old: Tensor, name: str) -> None:
    if new.shape != old.shape:
        raise ValueError(
            f"the two inputs are of one shape, so that places correspond; {name} has {tuple(new.shape)} in the clean "
            f"run and {tuple(old.shape)} in the corrupted one"
        )


def _difference(model: nn.Module, clean: Inputs, corrupted: Inputs) -> tuple[Good, str]:
    """The logit of the clean run's last answer minus that of the corrupted run's."""
    last = [_last(scores_of(model, answer(model, inputs)))[0] for inputs in (clean, corrupted)]
    right, wrong = (int(each.argmax()) for each in last)
    if right == wrong:
        raise ValueError(
            f"the model's likeliest last answer is {right} on both inputs; choose inputs that it answers differently, "
            "or give a measure of your own"
        )

    def good(output: Any) -> Tensor:
        logits = _last(scores_of(model, output))
        return (logits[:, right] - logits[:, wrong]).double().mean()

    return good, f"logit of {right} minus logit of {wrong}, at the end"


def _last(logits: Tensor) -> Tensor:
    return logits[:, -1] if logits.ndim == 3 else logits
