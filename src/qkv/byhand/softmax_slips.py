"""Slips with the scale, the exponentials, the sums and the mask of a softmax."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array, Expression
from qkv.byhand.slips import DIGITS, Bits, Change, Context, Slip, parts, substitute, was

WINDOW = 8.0  # bits for a mask of the keys at some distances


def scale_changes(part: Expression, context: Context) -> Iterator[Change]:
    arg, factor = part.args[0], part.param
    problem = context.problem.problem
    if problem.default_scale:
        usual = "1/√d"
        forgotten = f"forgotten 1/√d: {was(context.describe(arg))} not scaled"
    else:
        usual = "the given β"
        forgotten = f"forgotten β: {was(context.describe(arg))} not scaled"
    head_dim = context.values["queries"].shape[-1] / problem.heads
    all_heads = head_dim * problem.heads
    tokens = context.values["keys"].shape[-2]
    model = context.values["x"].shape[-1] if "x" in context.values else all_heads
    named: list[tuple[float, str, Bits]] = [
        (1.0, forgotten, 3.5),
        (1 / head_dim, f"1/d instead of {usual}", 4.5),
        (head_dim**-0.5, f"1/√d instead of {usual}", 4.5),
        (1 / factor if factor else 1.0, f"divided by {usual} instead of multiplied by it", 5),
        (head_dim**0.5, "multiplied by √d instead of divided", 4.8),
        (head_dim, f"multiplied by d instead of by {usual}", 6),
        (factor * factor, f"{usual} was applied twice", 5),
        (factor * head_dim**-0.5, "1/√d was applied as well as the given β", 5.5),
        (model**-0.5, f"1/√(dimension of the inputs) instead of {usual}", 5.2),
        (all_heads**-0.5, f"1/√(dimension of all heads) instead of {usual}", 5.4),
        (tokens**-0.5, f"1/√(number of tokens) instead of {usual}", 5.6),
        (1 / model, f"1/(dimension of the inputs) instead of {usual}", 6.5),
        (1 / all_heads, f"1/(dimension of all heads) instead of {usual}", 6.5),
        (1 / tokens, f"1/(number of tokens) instead of {usual}", 6.5),
        (1 / problem.heads, f"1/(number of heads) instead of {usual}", 7),
        (problem.heads**-0.5, f"1/√(number of heads) instead of {usual}", 7),
        (factor**0.5 if factor > 0 else 1.0, f"the square root of {usual} was used", 7),
        (-factor, "the scale has the wrong sign", 6.5),
        (head_dim**-2.0, f"1/d² instead of {usual}", 7),
        (0.5, f"1/2 instead of {usual}", 7.5),
        (2.0, f"2 instead of {usual}", 7.5),
    ]
    if problem.default_scale:
        named = [one for one in named if "given β" not in one[1]]
    seen = [factor]
    for value, name, cost in named:
        if all(abs(value - other) > 1e-9 * abs(other) for other in seen):
            seen.append(value)
            new = arg if value == 1.0 else ex.scale(arg, value)
            same = [
                n for v, n, c in named if n != name and abs(v - value) <= 1e-9 * abs(value) and 0 <= c - cost <= 1.2
            ]
            yield Change(new, name, cost, alternatives=tuple(same))
    for difference in (factor, -factor, 1 / factor if factor else 0.0, -1 / factor if factor else 0.0):
        what = "added" if difference > 0 else "subtracted"
        yield Change(ex.shift(arg, difference), f"the scale was {what} instead of multiplied", 7.5)
    for places in (1, 2, 3):
        for value in (
            round(factor, places),
            1 / round(1 / factor, places) if factor and round(1 / factor, places) else factor,
        ):
            if value and all(abs(value - other) > 1e-9 * abs(other) for other in seen):
                seen.append(value)
                name = f"early rounding: {usual} was rounded to {DIGITS[places]}"
                yield Change(ex.scale(arg, value), name, 6.5, rounding=True)


def function_changes(part: Expression, context: Context) -> Iterator[Change]:
    if part.param != "exp":
        return
    arg = part.args[0]
    for function, name, cost in (
        ("x", "no exponentials: each score was divided by the sum of its row", 4),
        ("e⁰ = 0", "e⁰ was taken as 0 instead of 1", 4),
        ("power of 2", "2^x instead of e^x", 5),
        ("exp of −x", "e^(−x) instead of e^x: a lost sign in every exponent", 5),
        ("power of 3", "3^x instead of e^x", 6),
        ("1", "each key got the same weight", 4.8),
        ("e⁰ = e", "e⁰ was taken as e instead of 1", 6),
        ("power of 10", "10^x instead of e^x", 6),
        ("e·x", "e·x instead of e^x", 6.5),
        ("|x|", "no exponentials: the absolute scores were divided by their sum", 6.5),
        ("exp of |x|", "all minus signs in the exponents were lost", 6),
        ("max(x, 0)", "no exponentials: negative scores were set to 0", 7),
        ("0 if negative", "e^x of a negative x was taken as 0", 6.5),
        ("−e^x if negative", "e^x of a negative x was taken as −e^x: exponentials are never negative", 6.5),
        ("−e^|x| if negative", "e^(−x) was taken as −e^x: exponentials are never negative", 6.5),
        ("x²", "x² instead of e^x", 7),
        ("exp of 2x", "e^(2x) instead of e^x, as if the weights were squared", 7.5),
        ("1 + x", "1 + x instead of e^x", 7.5),
        ("1 at the largest", "the largest score got weight 1 instead of a softmax", 5.5),
        ("1 at the largest, else exp", "the maximum was subtracted only from the largest score", 6.2),
        ("ln x", "ln x instead of e^x", 7),
        ("1 + x + x²/2", "1 + x + x²/2 instead of e^x", 7.5),
    ):
        yield Change(ex.apply(function, arg), name, cost, scope="rows")
    for base in ("2.7", "2.72"):
        yield Change(ex.apply(f"power of {base}", arg), f"early rounding: e was taken as {base}", 7, rounding=True)


def total_changes(part: Expression, context: Context) -> Iterator[Change]:
    (axis, without), arg = part.param, part.args[0]
    if axis != "row" or without is not None:
        return
    wrong = (
        "along the rows instead of down the columns"
        if context.columns
        else "down the columns instead of along the rows"
    )
    softmax = _parent_is_softmax(context)
    if arg.op == "times" and context.shown:
        what = context.describe(arg.args[1])
        yield Change(part.with_args(arg.args[1]).with_param(("mean", None)), f"the mean of {what} without weights", 6)
        yield Change(part.with_param(("mean", None)), "the mean of the products instead of their sum", 6)
    over = "softmax over" if softmax else "summed over"
    everything = f"{over} everything" + (": divided by the sum of all exponentials" if softmax else "")
    yield Change(part.with_param(("column", None)), f"{over} the wrong axis: {wrong}", 4, scope="heads")
    yield Change(part.with_param(("all", None)), everything, 4.5, scope="heads")
    heads, rows, _ = context.shape(arg)
    if heads > 1:
        yield Change(part.with_param(("all heads", None)), f"{over} everything, over all heads", 6, scope="whole")
        together = f"{over} the keys of all heads together instead of each head's own"
        yield Change(part.with_param(("row of all heads", None)), together, 5, scope="whole")
        yield Change(part.with_param(("heads", None)), f"{over} the heads instead of the keys", 6, scope="whole")
    if rows == context.shape(arg)[-1] > 1:
        crossed = ex.transpose(part.with_param(("column", None)))
        line, other = ("column", "row") if context.columns else ("row", "column")
        used = f"{line} 1 {'was divided by' if softmax else 'uses'} the sum of {other} 1, and so on"
        yield Change(crossed, f"{over} the wrong axis: {used}", 4.8, scope="heads")
    yield from _other_sums(part, rows, softmax, context)
    if softmax:
        for kind, name, cost in (
            ("largest", "divided by the largest exponential instead of the sum", 5),
            ("count", "divided by the number of keys instead of the sum", 6),
            ("others", "divided by the sum of the other exponentials", 7),
            ("mean", "divided by the mean of the exponentials instead of their sum", 6.5),
            ("one more", "divided by 1 + the sum of the exponentials", 7),
            ("squares", "divided by the root of the sum of squares instead of the sum", 6.5),
        ):
            yield Change(part.with_param((kind, None)), name, cost, scope="rows")
        function = next((p for p in parts(arg) if p.op == "apply"), None)
        if function is not None:
            yield Change(
                ex.total(function.args[0]), "divided by the sum of the scores, not of the exponentials", 6, scope="rows"
            )
            power_of_sum = ex.apply("exp", ex.total(function.args[0]))
            yield Change(power_of_sum, "divided by e to the sum of the scores", 7, scope="rows")
            if function is not arg:
                name = "the sum also has the masked exponentials: rows do not sum to 1"
                yield Change(ex.total(function), name, 4.6, scope="rows")
    size = context.shape(arg)[-1]
    for k in range(size if size > 1 else 0):
        kind = "exponential" if softmax else "term"
        name = f"the {kind} of key {k + 1} is missing in the sum"
        yield Change(part.with_param(("row", k)), name, 6.5 + math.log2(size), scope="rows")


def _other_sums(part: Expression, rows: int, softmax: bool, context: Context) -> Iterator[Change]:
    """The sum of another row."""
    line = "column" if context.columns else "row"
    for used, shift in (("before", 1), ("after", -1)) if rows > 2 else ():
        order = tuple((row - shift) % rows for row in range(rows))
        name = f"each {line} {'was divided by' if softmax else 'uses'} the sum of the {line} {used} it"
        yield Change(ex.reordered(part, 2, order), name, 6.5, scope="whole")
    text = "{0} {1} was divided by the sum of {0} {2}" if softmax else "{0} {1} uses the sum of {0} {2}"
    for used in range(rows if rows > 1 else 0):
        if rows > 2:
            name = f"every {line} {'was divided by' if softmax else 'uses'} the sum of {line} {used + 1}"
            yield Change(ex.reordered(part, 2, (used,) * rows), name, 6 + math.log2(rows), scope="whole")
        for wrong in range(rows):
            if wrong != used:
                order = tuple(used if row == wrong else row for row in range(rows))
                name = text.format(line, wrong + 1, used + 1)
                yield Change(ex.reordered(part, 2, order), name, 5.5 + 2 * math.log2(rows), scope="whole")


def _parent_is_softmax(context: Context) -> bool:
    return any(part.op == "divide" for part in parts(context.formulas[context.step]))


def divide_changes(part: Expression, context: Context) -> Iterator[Change]:
    top, bottom = part.args
    yield Change(top, "not divided by the sum: these are the exponentials", 3.5, scope="rows")
    name = "the fractions are upside down: the sum was divided by the exponential"
    yield Change(part.with_args(bottom, top), name, 7, scope="rows")
    yield Change(bottom, "the sum of the exponentials was written instead of the weights", 8, scope="rows")
    if top.op == "masked" and bottom.op == "total":
        unmasked, (mask, _) = top.args[0], top.param
        masked_late = ex.masked(ex.divide(unmasked, ex.total(unmasked)), mask)
        yield Change(masked_late, "masked after the softmax, and not divided by the new sum", 4.5, scope="rows")
    elif top.op != "masked" and context.step == "weights":
        yield from _needless_masks(part, context)
    function = next((p for p in parts(top) if p.op == "apply" and p.param == "exp"), None)
    if function is not None:
        scores = function.args[0]
        yield Change(ex.apply("sigmoid", scores), "a sigmoid of each score instead of a softmax", 6.5)
        largest = substitute(top, function, ex.apply("1 at the largest", scores))  # each of several has weight 1
        yield Change(largest, "the largest score got weight 1 instead of a softmax", 5.7, scope="rows")
        shifted = function.with_param("exp of x − max")
        for changed, where in (
            (part.with_args(substitute(top, function, shifted), bottom), "the numerators"),
            (part.with_args(top, substitute(bottom, function, shifted)), "the sums"),
        ):
            yield Change(changed, f"the maximum was subtracted only in {where}", 6, scope="rows")
        yield from _partly_unscaled(part, function, context)
    yield Change(ex.apply("ln x", part), "the logarithms of the weights", 7, scope="rows")
    softmax = ex.divide(ex.apply("exp", part), ex.total(ex.apply("exp", part)))
    yield Change(softmax, "the softmax was applied twice", 7, scope="rows")


def _partly_unscaled(part: Expression, function: Expression, context: Context) -> Iterator[Change]:
    """The scale forgotten in the numerators or in the sums of a softmax, but not in both."""
    (scores,), (top, bottom) = function.args, part.args
    formula = context.formulas.get(scores.param) if scores.op == "ref" else None
    scaled = next((p for p in parts(formula) if p.op == "scale"), None) if formula is not None else None
    if formula is None or scaled is None:
        return
    usual = "1/√d" if context.problem.problem.default_scale else "β"
    unscaled = function.with_args(substitute(formula, scaled, scaled.args[0]))
    for changed, where in (
        (part.with_args(top, substitute(bottom, function, unscaled)), "the sums"),
        (part.with_args(substitute(top, function, unscaled), bottom), "the numerators"),
    ):
        name = f"forgotten {usual} only in {where}: they use exponentials of scores that were not scaled"
        yield Change(changed, name, 5.5, scope="rows")


def _needless_masks(part: Expression, context: Context) -> Iterator[Change]:
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
