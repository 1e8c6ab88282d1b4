"""Known mistakes of hand calculations: the result that each step would have if a mistake had been made.

A `Mistake` is a name and the whole table that the mistake produces. `possible_mistakes` also carries the mistakes of
earlier steps forward if the person did not write those steps down. To add a mistake, extend the function of its step.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

from qkv.byhand.error_bounds import (
    INPUTS,
    BoundedTable,
    Steps,
    Table,
    compute_step,
    multiply,
    rescale,
    softmax,
    split_heads,
    split_rows,
    stack,
)
from qkv.byhand.matrices import to_decimals, transpose
from qkv.byhand.numbers import CONTEXT
from qkv.byhand.parsing import Rows
from qkv.byhand.problem import Problem

MAX_ROUNDED = Decimal("1e40")  # larger numbers are not rounded
LOST_SIGN = "a lost minus sign"
NO_SCALE = "forgotten 1/√d: the scores were not scaled"
EARLY_ROUNDING = "early rounding"
TRANSPOSED = "rows for columns: the matrix is transposed"


@dataclass(frozen=True)
class Mistake:
    """A mistake by name, and the table it produces."""

    name: str
    values: Table
    rounding: bool = False


def possible_mistakes(problem: Problem, step: str, steps: Steps, written: Mapping[str, object]) -> Iterator[Mistake]:
    """What known mistakes give at this step; mistakes in earlier, unwritten steps are carried forward."""
    with localcontext(CONTEXT):
        yield from MISTAKES[step](problem, steps)
        yield Mistake(TRANSPOSED, transpose(compute_step(problem, step, steps).values))
        for earlier in INPUTS[step]:
            if earlier in written:
                continue
            for mistake in possible_mistakes(problem, earlier, steps, written):
                if _shape(mistake.values) == _shape(steps[earlier].values):
                    changed = {**steps, earlier: BoundedTable.exact(mistake.values)}
                    yield Mistake(mistake.name, compute_step(problem, step, changed).values, mistake.rounding)


def _projection_mistakes(index: int) -> Callable[[Problem, Steps], Iterator[Mistake]]:
    names = ("Q", "K", "V")

    def mistakes(problem: Problem, steps: Steps) -> Iterator[Mistake]:
        x, weight = problem.inputs, problem.projections[index]
        right = problem.project()
        for other in range(3):
            if other != index:
                a, b = sorted((names[index], names[other]), key="QKV".index)
                yield Mistake(f"{a} and {b} swapped", to_decimals(right[other]))
        if x is None or weight is None:
            return
        if len(weight) == len(weight[0]):
            name = f"rows for columns: W_{names[index]} was transposed"
            yield Mistake(name, _product(x, transpose(weight)))
        if problem.x is not None and problem.positions is not None:
            yield Mistake("forgotten positions: they were not added to the inputs", _product(problem.x, weight))
        for which, matrix in (("x", x), (f"w{names[index].lower()}", weight)):
            for i, j, changed in _without_one_sign(matrix):
                row, column = (j, i) if problem.convention == "columns" else (i, j)
                table = _product(changed, weight) if which == "x" else _product(x, changed)
                yield Mistake(f"{LOST_SIGN} in {which}[{row + 1},{column + 1}]", table)

    return mistakes


def _score_mistakes(problem: Problem, steps: Steps) -> Iterator[Mistake]:
    queries, keys = steps["queries"], steps["keys"]
    right = compute_step(problem, "scores", steps)
    q, k, v = (split_heads(steps[name], problem.heads) for name in ("queries", "keys", "values"))
    if len(keys.values) == len(k[0].values[0]):
        yield Mistake("K was not transposed", stack([multiply(a, b) for a, b in zip(q, k, strict=True)]).values)
    if len(queries.values) == len(keys.values):
        name = "rows for columns: this is K Qᵀ, the transpose of Q Kᵀ"
        yield Mistake(name, _per_head(right, problem, BoundedTable.transpose).values)
    if problem.scale.decimal != 1:
        name = "scaled already: these are the scaled scores, to be given as `scaled`"
        yield Mistake(name, rescale(right, problem.scale.decimal).values)
    for name, a, b in (
        ("K and V swapped", q, v),
        ("Q and K swapped: this is K Kᵀ", k, k),
        ("Q used for K: this is Q Qᵀ", q, q),
    ):
        if len(a[0].values[0]) == len(b[0].values[0]):
            yield Mistake(name, stack([multiply(c, d.transpose()) for c, d in zip(a, b, strict=True)]).values)


def _scaled_mistakes(problem: Problem, steps: Steps) -> Iterator[Mistake]:
    for name, scores in _wrong_scales(problem, steps):
        yield Mistake(name, scores.values)


def _wrong_scales(problem: Problem, steps: Steps) -> Iterator[tuple[str, BoundedTable]]:
    scores = steps["scores"]
    model_dim = Decimal(len(steps["queries"].values[0]))
    head_dim = Decimal(len(steps["queries"].values[0]) // problem.heads)
    tokens = Decimal(len(steps["keys"].values))
    if problem.default_scale:
        yield NO_SCALE, scores
        yield "1/d instead of 1/√d", rescale(scores, 1 / head_dim)
        yield "multiplied by √d instead of divided", rescale(scores, head_dim.sqrt())
        yield "1/√(number of tokens) instead of 1/√d", rescale(scores, 1 / tokens.sqrt())
        yield "1/√(dimension of all heads) instead of 1/√(dimension of one head)", rescale(scores, 1 / model_dim.sqrt())
    elif problem.scale.decimal != 1:
        yield "forgotten β: the scores were not scaled", scores
        yield "1/√d instead of the given β", rescale(scores, 1 / head_dim.sqrt())
    else:
        yield "scaled by 1/√d, but β = 1 was given", rescale(scores, 1 / head_dim.sqrt())


def _weight_mistakes(problem: Problem, steps: Steps) -> Iterator[Mistake]:
    scaled, mask = steps["scaled"], problem.mask
    for name, other in _wrong_scales(problem, steps):
        yield Mistake(name, softmax(other, mask).values)
    if problem.convention == "columns":
        axis = "along the rows instead of down the columns"
    else:
        axis = "down the columns instead of along the rows"
    transposed_mask = None if mask is None else transpose(mask)
    wrong_axis = _per_head(scaled, problem, lambda t: softmax(t.transpose(), transposed_mask).transpose())
    yield Mistake(f"softmax over the wrong axis: {axis}", wrong_axis.values)
    if mask is not None:
        yield from _mask_mistakes(scaled, mask)
    powers: Table = [[value.exp() if abs(value) < 10_000 else Decimal(0) for value in row] for row in scaled.values]
    powers = powers if mask is None else _zero_masked(powers, mask)
    yield Mistake("not divided by the sum: these are the exponentials", powers)
    if all(sum(row) for row in scaled.values):
        shares = [[value / sum(row, Decimal(0)) for value in row] for row in scaled.values]
        yield Mistake("no exponentials: each score was divided by the sum of its row", shares)
    for i, row in enumerate(scaled.values):
        for j, value in enumerate(row):
            changed = [list(line) for line in scaled.values]
            changed[i][j] = -value
            yield Mistake(f"{LOST_SIGN} in the exponent", softmax(BoundedTable.exact(changed), mask).values)
    for name in ("scores", "scaled"):
        for places in (2, 1, 3, 0):
            table = BoundedTable.exact(round_table(steps[name].values, places))
            if name == "scores":
                table = rescale(table, problem.scale.decimal)
            yield Mistake(describe_rounding(name, places, "the softmax"), softmax(table, mask).values, rounding=True)


def _mask_mistakes(scaled: BoundedTable, mask: Sequence[Sequence[bool]]) -> Iterator[Mistake]:
    unmasked = softmax(scaled, None).values
    yield Mistake("forgotten mask", unmasked)
    yield Mistake("masked after the softmax, and not divided by the new sum", _zero_masked(unmasked, mask))
    zeros = BoundedTable.exact(_zero_masked(scaled.values, mask))
    yield Mistake("masked with 0 instead of −∞: e^0 is 1, not 0", softmax(zeros, None).values)
    if len(mask) == len(mask[0]):
        yield Mistake("rows for columns: the mask was transposed", softmax(scaled, transpose(mask)).values)


def _concatenated_mistakes(problem: Problem, steps: Steps) -> Iterator[Mistake]:
    weights, values = steps["weights"], steps["values"]
    tokens = len(weights.values) // problem.heads

    def average(weights: BoundedTable, values: BoundedTable) -> Table:
        return compute_step(problem, "concatenated", {"weights": weights, "values": values}).values

    for name, other in (
        ("K and V swapped: the keys were averaged", "keys"),
        ("Q and V swapped: the queries were averaged", "queries"),
    ):
        if len(steps[other].values) == len(values.values):
            yield Mistake(name, average(weights, steps[other]))
    if problem.inputs is not None and len(problem.inputs[0]) % problem.heads == 0:
        inputs = BoundedTable.exact(to_decimals(problem.inputs))
        yield Mistake("W_V forgotten: the inputs were averaged", average(weights, inputs))
    if tokens == len(weights.values[0]):
        name = "rows for columns: the weights were transposed before the last product"
        yield Mistake(name, average(_per_head(weights, problem, BoundedTable.transpose), values))
    for places in (2, 1, 3, 4, 0):
        rounded = BoundedTable.exact(round_table(weights.values, places))
        name = describe_rounding("weights", places, "the last product")
        yield Mistake(name, average(rounded, values), rounding=True)


def _output_mistakes(problem: Problem, steps: Steps) -> Iterator[Mistake]:
    if problem.wo is None:
        return
    concatenated = steps["concatenated"]
    if _shape(concatenated.values) == _shape(compute_step(problem, "output", steps).values):
        yield Mistake("W_O forgotten: these are the heads' outputs side by side", concatenated.values)
    if len(problem.wo) == len(problem.wo[0]):
        transposed = BoundedTable.exact(to_decimals(transpose(problem.wo)))
        yield Mistake("rows for columns: W_O was transposed", multiply(concatenated, transposed).values)
    if problem.heads > 1:
        parts = split_heads(concatenated, problem.heads)[::-1]
        swapped = [[value for t in parts for value in t.values[row]] for row in range(len(concatenated.values))]
        wo = BoundedTable.exact(to_decimals(problem.wo))
        yield Mistake("the heads are joined in the wrong order", multiply(BoundedTable.exact(swapped), wo).values)


MISTAKES: dict[str, Callable[[Problem, Steps], Iterator[Mistake]]] = {
    "queries": _projection_mistakes(0),
    "keys": _projection_mistakes(1),
    "values": _projection_mistakes(2),
    "scores": _score_mistakes,
    "scaled": _scaled_mistakes,
    "weights": _weight_mistakes,
    "concatenated": _concatenated_mistakes,
    "output": _output_mistakes,
}


def describe_rounding(step: str, places: int, before: str) -> str:
    digits = {0: "whole numbers", 1: "one digit", 2: "two digits", 3: "three digits"}.get(places, f"{places} digits")
    return f"{EARLY_ROUNDING}: the {step} were rounded to {digits} before {before}"


def round_table(values: Table, places: int) -> list[list[Decimal]]:
    unit = Decimal(1).scaleb(-places)
    with localcontext(CONTEXT):
        return [
            [value if abs(value) > MAX_ROUNDED else value.quantize(unit, ROUND_HALF_EVEN) for value in row]
            for row in values
        ]


def _per_head(table: BoundedTable, problem: Problem, change: Callable[[BoundedTable], BoundedTable]) -> BoundedTable:
    return stack([change(part) for part in split_rows(table, problem.heads)])


def _zero_masked(values: Table, mask: Sequence[Sequence[bool]]) -> list[list[Decimal]]:
    return [
        [value if flag else Decimal(0) for value, flag in zip(row, mask[i % len(mask)], strict=True)]
        for i, row in enumerate(values)
    ]


def _without_one_sign(matrix: Rows) -> Iterator[tuple[int, int, Rows]]:
    """The matrix with one negative number made positive, for each of them."""
    for i, row in enumerate(matrix):
        for j, number in enumerate(row):
            if number.decimal < 0:
                changed = (*row[:j], -number, *row[j + 1 :])
                yield i, j, (*matrix[:i], changed, *matrix[i + 1 :])


def _product(left: Rows, right: Rows) -> Table:
    return multiply(BoundedTable.exact(to_decimals(left)), BoundedTable.exact(to_decimals(right))).values


def _shape(values: Table) -> tuple[int, int]:
    return len(values), len(values[0])
