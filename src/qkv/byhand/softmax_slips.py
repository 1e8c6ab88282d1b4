"""Slips with the scale, the exponentials and the sums of a softmax."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import ExpBelowLargest, Expression
from qkv.byhand.mask_slips import needless_masks
from qkv.byhand.slips import DIGITS, Bits, Change, Context, distinct_factors, parts, substitute, was

UNUSED = 1.0  # bits for sums that are on the sheet, but were not used


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
    for value, name, cost, same in distinct_factors(factor, named):
        yield Change(arg if value == 1.0 else ex.scale(arg, value), name, cost, alternatives=same)
    seen = [factor, *(value for value, _, _ in named)]
    yield from _partly_scaled(part, context)
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


def _partly_scaled(part: Expression, context: Context) -> Iterator[Change]:
    """a·b + c·d/√d: only the last product, or only the first one, was scaled."""
    (arg,), factor = part.args, part.param
    product = context.formulas.get(arg.param) if arg.op == "ref" else arg
    if product is None or product.op != "matmul" or product.param is not None:
        return
    size = context.shape(product.args[0])[-1]
    usual = "1/√d" if context.problem.problem.default_scale else "β"
    for index, which in ((size - 1, "last"), (0, "first")) if size > 1 else ():
        factors = [factor if k == index else 1.0 for k in range(size)]
        name = f"{usual} was applied only to the {which} product of each dot product: parentheses are missing"
        yield Change(product.with_param(factors), name, 6, scope="rows")


def function_changes(part: Expression, context: Context) -> Iterator[Change]:
    if part.param != "exp":
        return
    arg = part.args[0]
    if context.step in ("exponentials", "sums"):  # the weights are those without the scale
        yield from _late_scales(part, context)
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
    if context.step == "sums":
        yield from _sums_of_others(arg, context)
    if arg.op == "times" and context.shown:
        what = context.describe(arg.args[1])
        yield Change(part.with_args(arg.args[1]).with_param(("mean", None)), f"the mean of {what} without weights", 6)
        yield Change(part.with_param(("mean", None)), "the mean of the products instead of their sum", 6)
    over = "softmax over" if softmax else "summed over"
    everything = f"{over} everything" + (": divided by the sum of all exponentials" if softmax else "")
    yield Change(part.with_param(("column", None)), f"{over} the wrong axis: {wrong}", 4, scope="heads")
    yield Change(_everywhere(part, "all"), everything, 4.5, scope="heads")
    heads, rows, _ = context.shape(arg)
    if heads > 1:
        yield Change(_everywhere(part, "all heads"), f"{over} everything, over all heads", 6, scope="whole")
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


def _everywhere(part: Expression, axis: str) -> Expression:
    """One sum of everything, for each row."""
    return ex.add(part.with_param((axis, None)), ex.scale(part, 0.0))


def _sums_of_others(arg: Expression, context: Context) -> Iterator[Change]:
    """Sums on the sheet that are not those of its exponentials."""
    for changed, subtracted in _other_shifts(arg, context):
        without, has = ("the exponentials", "the sums") if subtracted else ("the sums", "the exponentials")
        name = f"the maximum was subtracted in {has}, but not in {without}"
        yield Change(ex.total(changed), name, 5.0, scope="rows")
    scores = ex.ref("scaled")
    for changed, name, cost in (
        (ex.apply("exp", ex.total(scores)), "e to the sum of the scores instead of the sum of the exponentials", 6.0),
        (ex.total(scores), "the sum of the scores instead of the exponentials", 6.0),
        (ex.total(arg, "mean"), "the mean of the exponentials instead of their sum", 6.5),
        (ex.total(arg, "largest"), "the largest exponential instead of the sum", 6.5),
        (ex.total(arg, "one more"), "1 was added to the sum of the exponentials", 7.0),
        (ex.total(ex.apply("x²", arg)), "the sum of the squares of the exponentials", 7.0),
    ):
        yield Change(changed, name, cost, scope="rows")


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
        yield from needless_masks(part, context)
    yield from _one_sided_shifts(part, context)
    yield from _without_parentheses(part, context)
    if bottom.op == "ref":  # the sums are right, but were not used
        for change in total_changes(ex.total(top), context):
            if not change.rounding:
                yield replace(change, new=part.with_args(top, change.new), cost=change.cost + UNUSED)
    function = next((p for p in parts(top) if p.op == "apply" and p.param == "exp"), None)
    if function is not None:
        scores = function.args[0]
        yield Change(ex.apply("sigmoid", scores), "a sigmoid of each score instead of a softmax", 6.5)
        largest = substitute(top, function, ex.apply("1 at the largest", scores))  # each of several has weight 1
        yield Change(largest, "the largest score got weight 1 instead of a softmax", 5.7, scope="rows")
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


def _late_scales(part: Expression, context: Context) -> Iterator[Change]:
    """The scale of an exponent applied to the exponential."""
    (arg,) = part.args
    formula = context.formulas.get(arg.param) if arg.op == "ref" else arg
    if formula is None or formula.op != "scale" or formula.param in (0.0, 1.0):
        return
    usual = "1/√d" if context.problem.problem.default_scale else "β"
    name = f"{usual} was applied to the exponentials instead of the exponents: β·e^s instead of e^(β·s)"
    yield Change(ex.scale(part.with_args(formula.args[0]), formula.param), name, 5.0, scope="rows")
    twice = f"{usual} was applied to the exponents and to the exponentials"
    yield Change(ex.scale(part, formula.param), twice, 5.5, scope="rows")


def _other_shifts(part: Expression, context: Context) -> Iterator[tuple[Expression, bool]]:
    """Exponentials with the maximum of the row subtracted if it was not, or without it if it was; and which of them.

    They may be written on the sheet or not.
    """
    for inner in parts(part):
        written = inner.op == "ref" and inner.param == "exponentials"
        powers = context.problem.formulas["exponentials"] if written else inner
        function = next((p for p in parts(powers) if p.op == "apply"), None) if powers.op != "ref" else None
        if function is None or not (written or inner is function):
            continue
        mask = context.problem.problem.mask
        if isinstance(function.param, ExpBelowLargest):
            shifts: list[str | ExpBelowLargest] = ["exp"]
            subtracted = False
        elif function.param == "exp":
            shifts = ["exp of x − max"]
            subtracted = True
            if mask is not None:
                shifts.append(ExpBelowLargest(np.array(mask, bool), np.full((1, 1), -np.inf)))
        else:
            continue
        for shift in shifts:
            yield substitute(part, inner, substitute(powers, function, function.with_param(shift))), subtracted
        return


def _one_sided_shifts(part: Expression, context: Context) -> Iterator[Change]:
    """The maximum of a row subtracted in the numerators or in the sums of a softmax, but not in both."""
    top, bottom = part.args
    sides = ("the numerators", "the sums")
    for changed, subtracted in _other_shifts(top, context):
        where = sides[0 if subtracted else 1]
        yield Change(part.with_args(changed, bottom), f"the maximum was subtracted only in {where}", 6, scope="rows")
    for changed, subtracted in _other_shifts(bottom, context) if bottom.op != "ref" else ():
        where = sides[1 if subtracted else 0]
        yield Change(part.with_args(top, changed), f"the maximum was subtracted only in {where}", 6, scope="rows")


def _without_parentheses(part: Expression, context: Context) -> Iterator[Change]:
    """e₁/e₁ + e₂ + …: only the first exponential of the sum was below the fraction bar."""
    top = part.args[0]
    if context.shape(top)[-1] < 2:
        return
    first = ex.total(top, "first")
    name = "no parentheses around the sum: divided by its first term, then the other terms were added"
    yield Change(ex.add(ex.divide(top, first), ex.subtract(ex.total(top), first)), name, 6, scope="rows")
    last = ex.total(ex.reordered(top, 3, tuple(reversed(range(context.shape(top)[-1])))), "first")
    yield Change(ex.divide(top, last), "divided by the last exponential instead of the sum", 7, scope="rows")
    yield Change(ex.divide(top, first), "divided by the first exponential instead of the sum", 7, scope="rows")
    name = "divided by the running sum: the exponentials up to this key"
    yield Change(ex.divide(top, ex.total(top, "running")), name, 7, scope="rows")
