"""Slips with the mask: forgotten, another one, another number than −∞, one although there is none."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array, Expression
from qkv.byhand.slips import Bits, Change, Context, Slip

WINDOW = 8.0  # bits for a mask of the keys at some distances


def mask_changes(part: Expression, context: Context) -> Iterator[Change]:
    (mask, fill), arg = part.param, part.args[0]
    yield Change(arg, "forgotten mask", 3.5, scope="rows" if arg.op == "apply" else "cells")
    for name, other, cost in _other_masks(mask):
        yield Change(part.with_param((other, fill)), name, cost, scope="rows")
    yield from _single_masks(part, context)
    if arg.op == "apply":
        yield from _added_masks(part)
    for number, text, note, cost in (
        (0.0, "0", ": e^0 is 1, not 0", 4.5),
        (-1.0, "-1", ": e^(-1) is not 0", 6.0),
        (1.0, "1", "", 6.5),
        (-10.0, "-10", ": e^(-10) is not 0", 7.0),
        (60.0, "+∞", ": the weight is where the mask hides", 5.0),
    ):
        name = f"masked with {text} instead of −∞"
        if arg.op == "apply":
            filled = arg.with_args(ex.masked(arg.args[0], mask, number))
            yield Change(filled, name + note, cost, scope="rows")
        elif np.isinf(fill) and number < 30:
            yield Change(part.with_param((mask, number)), name, cost)


def _added_masks(part: Expression) -> Iterator[Change]:
    """The flags of the mask added to the scores, or the exponentials multiplied by something else."""
    (mask, _), powers = part.param, part.args[0]
    for factor, name, cost in (
        (math.exp(-1), "the mask was added to the scores as 1 and 0 instead of 0 and −∞", 6),
        (math.e, "the mask was subtracted from the scores as 1 and 0 instead of adding −∞", 7),
    ):
        yield Change(ex.where(mask > 0, powers, ex.scale(powers, factor)), name, cost, scope="rows")


def _single_masks(part: Expression, context: Context) -> Iterator[Change]:
    """One number masked, or not masked, by mistake."""
    mask, fill = part.param
    row, column = ("column", "row") if context.columns else ("row", "column")
    for i, j in np.ndindex(*mask.shape[-2:]):
        other = mask.copy()
        other[..., i, j] = 1 - other[..., i, j]
        what = "was not masked" if mask[0, 0, i, j] == 0 else "was masked by mistake"
        name = f"the number in {row} {i + 1}, {column} {j + 1} {what}"
        yield Change(part.with_param((other, fill)), name, 5 + math.log2(mask.size), scope="whole")


def other_mask_slips(step: str, formula: Expression, written: Array, columns: bool) -> Iterator[Slip]:
    """The mask that the zeros of a person's weights show, whatever it is. written: (heads, rows, columns)."""
    if formula.op != "divide" or (written == 0).all() or not (written == 0).any():
        return
    top, shown = formula.args[0], (written != 0)[None].astype(float)
    masked = ex.masked(top.args[0] if top.op == "masked" else top, shown)
    old = top.param[0] if top.op == "masked" else np.ones((1, 1, *written.shape[1:]))
    keys = [str(k + 1) for k in range(written.shape[-1]) if not shown[..., k].any()]
    bits = 7 + float((shown != old).sum())
    if keys and np.array_equal(shown, np.broadcast_to(shown.any((0, 1, 2)), shown.shape)):
        name = f"key{'s' if len(keys) > 1 else ''} {', '.join(keys)} masked for every query"
    elif (seen := _describe_window(shown)) is not None:
        name, bits = f"another mask: each query sees {seen}", min(bits, WINDOW)
    else:
        changed = np.flatnonzero((shown != old).any((0, 1, 3))) + 1
        line = "column" if columns else "row"
        lines = f"{line}{'s' if len(changed) > 1 else ''} {', '.join(map(str, changed))}"
        name = f"another mask: its zeros in {lines} differ"
    yield Slip(name, bits, {step: ex.divide(masked, ex.total(masked))}, scope="whole")


def _describe_window(shown: Array) -> str | None:
    """The keys that each query sees, counted from its own one; None if there is no such rule.

    A query that would see no key may see any.
    """
    rows, columns = shown.shape[-2:]
    steps = np.arange(rows)[:, None] + (columns - rows) - np.arange(columns)[None, :]  # how far back a key is
    for first, last in itertools.product(range(-1, rows), range(1 - rows, 2)):
        window = (steps <= first) & (steps >= last)
        some = window.any(-1)
        if first >= last and some.sum() > 1 and (shown[..., some, :] == window[some]).all() and not window.all():
            return _window_text(first if first < rows - 1 else None, last if last > 1 - rows else None)
    return None


def _window_text(first: int | None, last: int | None) -> str:
    """The keys from `first` steps before the own one to `last`: negative after it; None without limit."""
    before = "all keys before it" if first is None else _count_keys(first, "before it")
    after = "all keys after it" if last is None else _count_keys(-last, "after it")
    own = (first is None or first >= 0) and (last is None or last <= 0)
    seen = [part for part in ("its own key" if own else "", before, after) if part]
    return " and ".join(seen) + ("" if own else ", not its own key")


def _count_keys(count: int, where: str) -> str:
    if count < 1:
        return ""
    return f"the key {where}" if count == 1 else f"the {count} keys {where}"


def _other_masks(mask: Array) -> Iterator[tuple[str, Array, Bits]]:
    """Masks that are easily confused with this one."""
    rows, columns = mask.shape[-2:]
    steps = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    candidates: list[tuple[str, Array, Bits]] = []
    if rows == columns:
        candidates.append(("rows for columns: the mask was transposed", np.swapaxes(mask, -1, -2), 4.2))
    later = np.concatenate([mask[..., 1:, :], np.ones_like(mask[..., :1, :])], -2)
    earlier = np.concatenate([np.zeros_like(mask[..., :1, :]), mask[..., :-1, :]], -2)
    if np.array_equal(mask[0, 0] > 0, steps <= columns - rows):
        also, without = (steps <= columns - rows + 1), (steps <= columns - rows - 1)
        candidates += [
            ("the mask is off by one: each query also sees the next key", also[None, None].astype(float), 4.2),
            ("the mask is off by one: no query sees its own key", without[None, None].astype(float), 4.2),
            (
                "the mask is reversed: each query sees its own and later keys",
                (steps >= columns - rows)[None, None] * 1.0,
                5,
            ),
        ]
        if rows != columns:
            name = "the causal mask starts at the first key instead of ending at the last one"
            candidates.append((name, (steps <= 0)[None, None].astype(float), 4.5))
    else:
        candidates += [
            ("the mask is off by one: each query uses the mask of the next one", later, 6),
            ("the mask is off by one: each query uses the mask of the one before", earlier, 6),
        ]
        causal = (steps <= columns - rows)[None, None].astype(float)
        candidates.append(("a causal mask instead of the given one", causal, 5.5))
    candidates += [
        ("the mask is inverted: it hides what may be seen", 1 - mask, 5),
        ("the mask was read in reverse order of the keys", mask[..., ::-1], 6),
        ("the mask was read in reverse order of the queries", mask[..., ::-1, :], 6),
        ("only a query's own key was used", np.eye(rows, columns)[None, None], 7),
    ]
    for name, other, cost in candidates:
        if not np.array_equal(other > 0, mask > 0):
            yield name, other, cost


def needless_masks(part: Expression, context: Context) -> Iterator[Change]:
    """A mask although the problem has none."""
    top = part.args[0]
    _, rows, columns = context.shape(top)
    steps = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    for name, mask, cost in (
        ("a causal mask was applied although there is none", steps <= columns - rows, 5.0),
        ("a mask was applied although there is none: no query sees its own key", steps != columns - rows, 7.0),
        (
            "a mask was applied although there is none: each query sees its own and later keys",
            steps >= columns - rows,
            7,
        ),
    ):
        masked = ex.masked(top, mask[None, None].astype(float))
        yield Change(ex.divide(masked, ex.total(masked)), name, cost, scope="rows")
