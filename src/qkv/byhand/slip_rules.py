"""Families of slips: how a formula can be changed by mistake. They apply to any expression, so also to new steps.

`formula_slips` gives the slips of one step; the search composes them, restricts them to rows, heads, columns or single
numbers, and adds wrong entries.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.dot_product_slips import arithmetic_changes, product_changes
from qkv.byhand.expressions import Expression
from qkv.byhand.formulas import GIVEN, symbol
from qkv.byhand.head_slips import (
    SIDE_BY_SIDE,
    combined_heads,
    head_changes,
    head_factors,
    head_order_changes,
    head_product_changes,
    head_result_changes,
)
from qkv.byhand.jacobian_slips import jacobian_changes
from qkv.byhand.loss_slips import loss_changes, mean_changes
from qkv.byhand.mask_slips import mask_changes
from qkv.byhand.order_slips import order_changes
from qkv.byhand.slips import (
    Change,
    Context,
    Slip,
    describe_rounding,
    is_plural,
    is_weight_matrix,
    join_names,
    parts,
    same_kind,
    substitute,
    was,
)
from qkv.byhand.softmax_slips import divide_changes, function_changes, scale_changes, total_changes

SCORES = ("scores", "scaled", "dA", "dZ", "dS")
ELEMENTWISE = (  # a function, its name for some or each of the numbers, bits
    ("max(x, 0)", "negative {0} were set to 0 (as by a ReLU)", 6.2),
    ("min(x, 0)", "positive {0} were set to 0", 6.5),
    ("x²", "{1} was squared", 6.2),
    ("√|x|", "the square root of {1} was taken", 7.0),
    ("1/x", "{1} is upside down: 1/x", 7.0),
    ("clipped to 1", "{0} were clipped to −1 … 1", 6.2),
    ("clipped to 0 … 1", "{0} were clipped to 0 … 1", 6.5),
    ("clipped to 2", "{0} were clipped to −2 … 2", 7.0),
    ("sign of x", "only the sign of {1} is left: 1, 0 or −1", 7.0),
    ("whole part of x", "the digits after the point of {1} were cut off", 6.8),
    ("1 − x", "{1} was subtracted from 1", 7.0),
    ("nearest whole number", "{1} was rounded to a whole number", 6.4),
)
RESIDUALS = (
    ("output", "x", 5.8),
    ("output", "inputs", 5.8),
    ("concatenated", "x", 6.0),
    ("concatenated", "inputs", 6.0),
    ("output", "values", 7.0),
    ("concatenated", "values", 7.0),
    ("dX", "dO", 6.0),
)


def formula_slips(context: Context) -> Iterator[Slip]:
    """All slips in the formula of a step, each everywhere in the step."""
    formula = context.formulas[context.step]
    sums = [part for part in parts(formula) if part.op == "add"]
    seen = {id(arg) for part in sums for arg in part.args if arg.op == "add"}  # parts of a longer sum
    for part in parts(formula):
        if id(part) in seen:
            continue
        seen.add(id(part))
        for change in _changes(part, part is formula, context):
            new = substitute(formula, part, change.new)
            yield Slip(
                change.name, change.cost, {context.step: new}, change.rounding, change.scope, change.alternatives
            )


def _changes(part: Expression, root: bool, context: Context) -> Iterator[Change]:
    rules = {
        "matmul": _matmul_changes,
        "scale": scale_changes,
        "apply": function_changes,
        "total": total_changes,
        "divide": divide_changes,
        "masked": mask_changes,
        "split": head_changes,
        "join": head_changes,
        "add": _sum_changes,
        "subtract": _sum_changes,
        "times": _factor_changes,
        "ref": _operand_changes,
    }
    added = part.op == "scale" and context.problem.formulas[context.step].op != "scale"  # by a slip
    if part.op in rules and not added:
        yield from rules[part.op](part, context)
    if root and part.op != "patched":
        yield from _result_changes(part, context)
    if part.op in ("ref", "apply", "total") and not (part.op == "ref" and part.param.startswith(GIVEN)):
        what = context.describe(part)
        what = f"the {what} numbers" if len(what) == 1 else what
        for places, cost in ((2, 7.0), (1, 7.3), (3, 7.3), (4, 7.6), (0, 7.6)):
            name = describe_rounding(what, places, _next_name(part, context))
            yield Change(ex.rounded(part, places), name, cost, rounding=True, scope="whole")


def _next_name(part: Expression, context: Context) -> str:
    if part.op == "ref":
        return {"weights": "the softmax", "concatenated": "the last product"}.get(
            context.step, f"{symbol(context.step)}"
        )
    return "they were divided"


def _matmul_changes(part: Expression, context: Context) -> Iterator[Change]:
    left, right = part.args
    for index, operand in enumerate(part.args):
        others = [left, right]
        others[index] = ex.transpose(operand)
        inside = operand.args[0] if operand.op == "transpose" else operand
        change = "not transposed" if operand.op == "transpose" else "transposed"
        start = "" if operand.op == "transpose" else "rows for columns: "
        yield Change(part.with_args(*others), f"{start}{was(context.describe(inside))} {change}", 4, scope="heads")
        others[index] = ex.apply("|x|", operand)
        yield Change(
            part.with_args(*others), f"all minus signs of {context.describe(operand)} were lost", 7, scope="rows"
        )
        rows, columns = context.shape(operand)[-2:]
        if rows == columns > 1 and not (operand.op == "ref" and is_weight_matrix(operand.param)):
            others[index] = ex.apply("only the diagonal", operand)
            name = f"only the diagonal of {context.describe(operand)} was used: the other products were not added"
            yield Change(part.with_args(*others), name, 6, scope="heads")
        other = part.args[1 - index]
        weight = other.op == "ref" and is_weight_matrix(other.param)
        name = f"{context.describe(other)} forgotten: this is {context.describe(operand)}"
        yield Change(operand, name, 4 if weight else 7, scope="rows")
    if context.step == "scores":
        yield from _score_changes(part, context)
    yield from head_product_changes(part, context)
    if "weights" in left.names and left.op == "ref":
        yield from _mixture_changes(part, context)
    if _without_split(left) is not left and _without_split(right) is not right:
        whole = part.with_args(_without_split(left), _without_split(right))
        yield Change(whole, "the heads were not split: each uses all dimensions", 5, scope="heads")
    product = f"{context.describe(left)} and {context.describe(right)}"
    yield Change(part.with_args(right, left), f"{product} were multiplied in the wrong order", 5, scope="heads")
    by_number = "multiplied number by number instead of as matrices"
    yield Change(ex.times(left, right), f"{product} were {by_number}", 6, scope="heads")
    yield Change(ex.times(left, ex.transpose(right)), f"{product} were {by_number}", 6, scope="heads")
    yield from arithmetic_changes(part, context)
    size = context.shape(left)[-1]
    if size > 1 and not context.step.startswith("d"):
        sums = ex.total(left), ex.transpose(ex.total(ex.transpose(right)))
        yield Change(ex.add(*sums), f"{product}: factors were added instead of multiplied", 7, scope="rows")
        name = f"{product}: the sums of the factors were multiplied, as if (a+b)(c+d) were a·c + b·d"
        yield Change(ex.times(*sums), name, 7, scope="rows")
    if size > 1 and context.step in context.problem.steps:
        name = f"divided by {size}: the mean of the {size} products instead of their sum"
        yield Change(ex.scale(part, 1 / size), name, 6.5, scope="rows")
    yield from product_changes(part, size)


def _score_changes(part: Expression, context: Context) -> Iterator[Change]:
    """Something else than the dot products of queries and keys."""
    queries, keys = part.args[0], ex.transpose(part.args[1])
    inputs = ex.ref("inputs" if "inputs" in context.values else "x")
    if "x" in context.values and context.problem.problem.heads == 1:
        product = "Xᵀ X" if context.columns else "X Xᵀ"
        yield Change(ex.matmul(inputs, ex.transpose(inputs)), f"{product}: W_Q and W_K were not used", 5, scope="whole")
    shape = context.shape(part)
    if shape[-1] == shape[-2] > 1:
        for half, other in (("upper", "below"), ("lower", "above")):
            name = f"the scores {other} the diagonal were copied from the other side, as if QKᵀ were symmetric"
            yield Change(ex.apply(f"{half} half on both sides", part), name, 5.5, scope="whole")
    lengths = part.with_args(ex.apply("length 1", queries), ex.transpose(ex.apply("length 1", keys)))
    yield Change(lengths, "Q and K were divided by their lengths: the cosines instead of the dot products", 6.5)
    squares = [ex.total(ex.apply("x²", rows)) for rows in (queries, keys)]
    distances = ex.subtract(ex.add(squares[0], ex.transpose(squares[1])), ex.scale(part, 2.0))
    yield Change(distances, "the squared distances of Q and K instead of their dot products", 7)
    yield Change(ex.apply("−x", distances), "minus the squared distances of Q and K instead of their dot products", 7)


def _mixture_changes(part: Expression, context: Context) -> Iterator[Change]:
    """Values mixed by something else than the weights."""
    weights, values = part.args
    what = context.describe(values)
    for function, name, cost in (
        ("1/n", f"the plain average of {what}: each key got the same weight", 5.5),
        ("1", f"the sum of {what} without weights", 6),
        ("1 at the largest", f"the row of {what} with the largest weight was taken instead of the weighted sum", 5.5),
        ("1 at the smallest", f"the row of {what} with the smallest weight was taken", 7.5),
    ):
        yield Change(part.with_args(ex.apply(function, weights), values), name, cost, scope="rows")
    softmax = context.formulas["weights"]
    if softmax.op == "divide":
        powers = ex.unwritten(softmax.args[0], context.problem.places)
        name = "not divided by the sums: the exponentials were used as weights"
        yield Change(part.with_args(powers, values), name, 5, scope="rows")
    if "sums" in context.formulas:
        divided = ex.divide(part, ex.ref("sums"))
        yield Change(divided, "divided by the sums once more: the weights have been divided", 6, scope="rows")
    name = "the weights in percent were used as numbers: 100 times too large"
    yield Change(part.with_args(ex.scale(weights, 100.0), values), name, 5.5, scope="rows")


def _without_split(part: Expression) -> Expression:
    if part.op == "transpose":
        inside = _without_split(part.args[0])
        return part if inside is part.args[0] else ex.transpose(inside)
    return part.args[0] if part.op == "split" else part


def _sum_changes(part: Expression, context: Context) -> Iterator[Change]:
    left, right = part.args
    terms = _addends(part)
    if len(terms) > 2:
        yield from _path_changes(terms, context)
        return
    names = [context.describe(arg) for arg in part.args]
    jacobian = part.op == "subtract" and "r" in right.names
    if jacobian:
        name = "the row sums r were not subtracted: a term of the softmax's Jacobian is missing"
        yield Change(left, name, 3.8, scope="rows")
        yield Change(right, "only the row sums r are left of dA − r", 7, scope="rows")
    else:
        pronoun = "they were" if is_plural(names[1]) else "it was"
        yield Change(left, f"forgotten {names[1]}: {pronoun} not {part.op.removesuffix('e')}ed", 4)
        yield Change(right, f"forgotten {names[0]}", 4.5)
    if part.op == "add":
        if context.step == "inputs":
            yield Change(ex.times(left, right), f"{names[1]} was multiplied instead of added", 6.5, scope="rows")
        yield Change(ex.subtract(left, right), f"{names[1]} was subtracted instead of added", 6)
        yield Change(ex.add(left, ex.scale(right, 2.0)), f"{names[1]} was added twice", 6.5)
    else:
        yield Change(ex.add(left, right), f"{was(names[1])} added instead of subtracted", 4.8)
        yield Change(ex.subtract(right, left), "the difference was taken the wrong way round: a wrong sign", 4.8)


def _addends(part: Expression) -> list[Expression]:
    return [*_addends(part.args[0]), *_addends(part.args[1])] if part.op == "add" else [part]


def _path_changes(terms: list[Expression], context: Context) -> Iterator[Change]:
    """Slips in a sum of several terms, the paths of a gradient."""
    names = [context.describe(term) for term in terms]
    for count in range(len(terms) - 1, 0, -1):
        for kept in itertools.combinations(terms, count):
            missing = join_names([name for name, term in zip(names, terms, strict=True) if term not in kept])
            yield Change(_add_up(kept), f"forgotten {missing}: not added", 3.5 + (len(terms) - count), scope="rows")
    for index, (name, term) in enumerate(zip(names, terms, strict=True)):
        for factor, what, cost in ((2.0, "was added twice", 5.5), (-1.0, "was subtracted instead of added", 5.5)):
            others = [*terms[:index], ex.scale(term, factor), *terms[index + 1 :]]
            yield Change(_add_up(others), f"{name} {what}", cost, scope="rows")
    products = [index for index, term in enumerate(terms) if term.op == "matmul" and term.args[1].op == "transpose"]
    for count in range(2, len(products) + 1):
        for chosen in itertools.combinations(products, count):
            weights = join_names([context.describe(terms[i].args[1].args[0]) for i in chosen])
            plain = [_with_right(t, t.args[1].args[0]) if i in chosen else t for i, t in enumerate(terms)]
            yield Change(
                _add_up(plain), f"{weights} were not transposed", 4.3 if count == len(terms) else 5.7, scope="whole"
            )
    if len(products) == len(terms):
        yield Change(_add_up([t.args[0] for t in terms]), "forgotten the weight matrices", 5, scope="whole")
    yield from _missing_heads_of_paths(terms, context)
    for i, j in itertools.combinations(products, 2):
        swapped = list(terms)
        swapped[i], swapped[j] = _with_right(terms[i], terms[j].args[1]), _with_right(terms[j], terms[i].args[1])
        pair = " and ".join(context.describe(terms[k].args[1].args[0]) for k in (i, j))
        yield Change(_add_up(swapped), f"{pair} exchanged", 6, scope="whole")


def _missing_heads_of_paths(terms: list[Expression], context: Context) -> Iterator[Change]:
    """One head left out in every term that adds up over the heads."""
    heads = context.problem.problem.heads
    for head in range(heads) if heads > 1 else ():
        others = []
        for term in terms:
            if term.op == "matmul" and term.args[0].op == "ref" and term.args[0].param in SIDE_BY_SIDE:
                term = term.with_param(head_factors(heads, context.shape(term.args[0])[-1], head))
            others.append(term)
        yield Change(_add_up(others), f"head {head + 1} is missing in every term", 4.5 + math.log2(heads), scope="rows")


def _with_right(product: Expression, right: Expression) -> Expression:
    return product.with_args(product.args[0], right)


def _add_up(terms: Sequence[Expression]) -> Expression:
    total = terms[0]
    for term in terms[1:]:
        total = ex.add(total, term)
    return total


def _factor_changes(part: Expression, context: Context) -> Iterator[Change]:
    left, right = part.args
    if "loss_factors" in left.names:
        yield from loss_changes(part, context)
        return
    if right.op == "subtract" and "r" in right.names:  # A∘(dA − r)
        gradient = right.args[0]
        name = "the softmax's gradient was left out: dA was taken as it is"
        yield Change(gradient, name, 4.3, scope="rows")
        diagonal = ex.times(left, ex.subtract(gradient, ex.times(left, gradient)))
        name = "only the diagonal of the softmax's Jacobian was used: A(1 − A)"
        yield Change(diagonal, name, 4.5, scope="rows")
        squares = ex.times(left, ex.times(ex.subtract(ex.shift(ex.scale(left, 0.0), 1.0), left), right))
        yield Change(squares, "A(1 − A) instead of A", 7, scope="rows")
        name = "r was not multiplied by the weights: A∘dA − r"
        yield Change(ex.subtract(ex.times(left, gradient), right.args[1]), name, 4.8, scope="rows")
        yield Change(ex.times(gradient, right), "the factor A was taken as dA", 7.5, scope="rows")
        name = "dA was not multiplied by the weights: dA − A∘r"
        yield Change(ex.subtract(gradient, ex.times(left, right.args[1])), name, 6, scope="rows")
        name = "the weights were subtracted instead of the row sums r: A∘(dA − A)"
        yield Change(ex.times(left, ex.subtract(gradient, left)), name, 6.5, scope="rows")
        name = "set to 0 where the scaled score is not positive: that is the derivative of a ReLU"
        yield Change(ex.times(part, ex.apply("x > 0", ex.ref("scaled"))), name, 6, scope="rows")
        yield Change(ex.times(gradient, ex.apply("x > 0", ex.ref("scaled"))), f"dA {name}", 6.5, scope="rows")
        yield from jacobian_changes(left, gradient, right.args[1])
        yield from _masked_gradients(part, context)
        name = "the mean of dA was subtracted instead of the row sums r"
        yield Change(ex.times(left, ex.subtract(gradient, ex.total(gradient, "mean"))), name, 6.5, scope="rows")
    yield Change(right, f"the factor {context.describe(left)} is missing", 4.5, scope="rows")
    yield Change(left, f"the factor {context.describe(right)} is missing", 6, scope="rows")
    yield Change(ex.add(left, right), "added instead of multiplied", 8, scope="rows")


def _masked_gradients(part: Expression, context: Context) -> Iterator[Change]:
    """Masked numbers that are not 0 in A∘(dA − r)."""
    mask = context.problem.problem.mask
    if mask is None:
        return
    gradient, sums = part.args[1].args
    seen = np.array(mask)[None, None]
    for other, name, cost in (
        (ex.apply("−x", sums), "−r", 5.0),
        (part.args[1], "dA − r", 5.0),
        (gradient, "dA", 5.5),
        (ex.apply("1", part.args[0]), "1", 7.0),
    ):
        text = f"masked numbers are {name} instead of 0: the factor A is 0 there"
        yield Change(ex.where(seen, part, other), text, cost, scope="rows")


def _operand_changes(part: Expression, context: Context) -> Iterator[Change]:
    name = part.param
    shape = context.values[name].shape
    what = symbol(name.removeprefix(GIVEN))
    earlier = set(itertools.takewhile(lambda other: other != context.step, context.formulas))
    if not name.startswith(GIVEN):
        for other, value in context.values.items():
            if other in (name, context.step) or other.startswith(GIVEN) or value.shape[1:] != shape[1:]:
                continue
            if other not in earlier or _has_other_name(other, context) or {name, other} == {"x", "inputs"}:
                continue
            unscaled = context.formulas[name].op == "scale" and other in context.formulas[name].names
            if unscaled:
                yield from _unscaled(part, other, context)
                continue
            cost = 5.0 if same_kind(name, other) else 6.5
            yield Change(ex.ref(other), f"{symbol(other)} used instead of {what}", cost, scope="rows")
    if context.step not in context.problem.steps or not name.startswith(GIVEN):
        yield from order_changes(part, shape[1:], what, context)
        yield from head_order_changes(part, shape[1], what)
        yield from combined_heads(part, shape[1], what)
    if name in ("scaled", "dS") and context.step not in ("scores", "dZ"):
        yield from _scaled_again(part, what, context)
    for function, text, cost in ELEMENTWISE if name in SCORES else ():
        text = text.format(f"numbers of {what}", f"each number of {what}")
        yield Change(ex.apply(function, part), text, cost + 0.5, scope="rows")
    verb = "have" if is_plural(what) else "has"
    yield Change(ex.apply("−x", part), f"{what} {verb} the wrong sign", 7, scope="rows")


def _unscaled(part: Expression, unscaled: str, context: Context) -> Iterator[Change]:
    """Numbers read before they were scaled, in one of the formulas that read the scaled ones."""
    softmax = context.formulas[context.step]
    if softmax.op == "divide" and part.param not in softmax.args[1].names:
        return  # the sums are written, so these are the numerators alone; see `divide_changes`
    usual = "1/√d" if context.problem.problem.default_scale else "β"
    readers = sum(part.param in formula.names for formula in context.formulas.values())
    where = f" (only in {symbol(context.step)})" if readers > 1 else ""
    yield Change(ex.ref(unscaled), f"forgotten {usual}: {was(symbol(unscaled))} not scaled{where}", 3.8)


def _scaled_again(part: Expression, what: str, context: Context) -> Iterator[Change]:
    """The scale applied to numbers that have it already."""
    problem = context.problem.problem
    scale, usual = float(problem.scale.decimal), "1/√d" if problem.default_scale else "β"
    if scale not in (0.0, 1.0):
        yield Change(ex.scale(part, scale), f"{usual} was applied again, to {what}", 4.9, scope="rows")
        yield Change(ex.scale(part, 1 / scale**2), f"{what} were divided by {usual} twice", 7.5, scope="rows")


def _has_other_name(name: str, context: Context) -> bool:
    """Whether a matrix is the same as a later one that people name instead, as without W_O the heads' outputs."""
    return name == "concatenated" and context.formulas["output"].op == "ref"


def _result_changes(part: Expression, context: Context) -> Iterator[Change]:
    """Slips with the whole result."""
    shape = context.shape(part)
    if shape[-1] == shape[-2] and shape[-1] > 1:
        name = f"rows for columns: {was(symbol(context.step))} transposed"  # hidden: in every formula that reads it
        yield Change(ex.transpose(part), name, 4.5 if context.shown else 6.5, scope="whole")
    if context.step not in context.problem.steps:
        return
    where = "" if context.shown else f" of {symbol(context.step)}"
    yield Change(ex.apply("−x", part), f"the sign of every number{where} is wrong", 6, scope="rows")
    yield Change(ex.apply("|x|", part), f"all minus signs{where} were lost", 6, scope="rows")
    if context.shown:
        if part.op == "divide":
            yield Change(ex.scale(part, 100.0), "in percent: 100 times too large", 5.5, scope="heads")
        yield from _factor_of_result(part, shape, context)
    if part.op != "ref" and part.op != "divide":
        yield from order_changes(part, shape, symbol(context.step), context)
    elif part.op == "divide":
        yield from order_changes(part, shape, "the weights", context)
    yield from head_result_changes(part, context)
    for function, text, cost in ELEMENTWISE:
        text = text.format(f"numbers{where}", f"each number{where}")
        yield Change(ex.apply(function, part), text, cost, scope="rows")
    yield from _residual_changes(part, shape, context)


def _residual_changes(part: Expression, shape: tuple[int, ...], context: Context) -> Iterator[Change]:
    """A matrix of the same shape added to the result, or subtracted, as if there were a residual connection."""
    if _has_other_name(context.step, context):
        return
    for step, other, cost in RESIDUALS:
        if step == context.step and other in context.values and context.values[other].shape[1:] == shape:
            what, note = symbol(other), "(there is no residual connection)"
            result = symbol(step)
            yield Change(ex.add(part, ex.ref(other)), f"{what} was added to {result} {note}", cost)
            yield Change(ex.subtract(part, ex.ref(other)), f"{what} was subtracted from {result} {note}", cost + 0.5)
            yield Change(ex.subtract(ex.ref(other), part), f"{result} was subtracted from {what}", cost + 1.5)


def _factor_of_result(part: Expression, shape: tuple[int, ...], context: Context) -> Iterator[Change]:
    """The whole result times a wrong factor."""
    problem = context.problem.problem
    scale = float(problem.scale.decimal)
    if context.step == "dO" and problem.loss is not None and problem.loss.name in ("mean", "sum"):
        yield from mean_changes(part, context)
    sizes = {2, 3, 10, 100, 1000, shape[-1], shape[-2], shape[-1] * shape[-2], problem.heads}
    factors = [(float(size), f"{size} times too large") for size in sorted(sizes) if size > 1]
    factors += [(1 / factor, f"divided by {factor:g}: {factor:g} times too small") for factor, _ in factors]
    if scale not in (0.0, 1.0) and part.op != "scale":
        factors += [(scale, "multiplied by the scale again"), (1 / scale, "divided by the scale")]
    for factor, name in factors:
        yield Change(ex.scale(part, factor), name, 6.5 if "scale" in name else 7.2, scope="heads")
