"""Attention steps in decimals with rounding-error bounds: what follows from a person's own numbers.

Each step is computed from the steps before it, which may be a person's rounded numbers; the error bound says how far
that rounding may have moved each result. One token a row, heads one after another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext

from qkv.byhand.matrices import to_decimals, transpose
from qkv.byhand.numbers import CONTEXT
from qkv.byhand.problem import Problem

Table = Sequence[Sequence[Decimal]]
PROJECTIONS = ("queries", "keys", "values")
INPUTS = {  # each step, and the steps that it is computed from
    "queries": (),
    "keys": (),
    "values": (),
    "scores": ("queries", "keys"),
    "scaled": ("scores",),
    "weights": ("scaled",),
    "concatenated": ("weights", "values"),
    "output": ("concatenated",),
}


@dataclass(frozen=True)
class BoundedTable:
    """A table of numbers and the largest rounding error of each."""

    values: Table
    error: Table

    @staticmethod
    def exact(values: Table) -> "BoundedTable":
        return BoundedTable(values, [[Decimal(0)] * len(row) for row in values])

    def transpose(self) -> "BoundedTable":
        return BoundedTable(transpose(self.values), transpose(self.error))

    def rows(self, start: int, count: int) -> "BoundedTable":
        return BoundedTable(self.values[start : start + count], self.error[start : start + count])


Steps = Mapping[str, BoundedTable]


def compute_step(problem: Problem, step: str, steps: Steps) -> BoundedTable:
    """The result of `step`, computed from earlier results in `steps`."""
    with localcontext(CONTEXT):
        if step in PROJECTIONS:
            return BoundedTable.exact(to_decimals(problem.project()[PROJECTIONS.index(step)]))
        inputs = [steps[name] for name in INPUTS[step]]
        if step == "scores":
            queries, keys = (split_heads(table, problem.heads) for table in inputs)
            return stack([multiply(q, k.transpose()) for q, k in zip(queries, keys, strict=True)])
        if step == "scaled":
            return rescale(inputs[0], problem.scale.decimal)
        if step == "weights":
            return softmax(inputs[0], problem.mask)
        if step == "concatenated":
            weights = split_rows(inputs[0], problem.heads)
            values = split_heads(inputs[1], problem.heads)
            outputs = [multiply(w, v) for w, v in zip(weights, values, strict=True)]
            return stack([output.transpose() for output in outputs]).transpose()
        if problem.wo is None:
            return inputs[0]
        return multiply(inputs[0], BoundedTable.exact(to_decimals(problem.wo)))


def dot_product_terms(
    problem: Problem, step: str, steps: Steps, row: int, column: int
) -> list[tuple[Decimal, Decimal]]:
    """The pairs whose products add up to one number; empty if the number is not a dot product."""
    if step in PROJECTIONS:
        weight = problem.projections[PROJECTIONS.index(step)]
        if problem.inputs is None or weight is None:
            return []
        left, right = to_decimals(problem.inputs)[row], transpose(to_decimals(weight))[column]
    elif step == "scores":
        head, row = divmod(row, len(steps["queries"].values))
        left = split_heads(steps["queries"], problem.heads)[head].values[row]
        right = split_heads(steps["keys"], problem.heads)[head].values[column]
    elif step == "concatenated" or (step == "output" and problem.wo is None):
        dim = len(steps["values"].values[0]) // problem.heads
        tokens = len(steps["queries"].values)
        left = steps["weights"].values[column // dim * tokens + row]
        right = transpose(steps["values"].values)[column]
    elif step == "output" and problem.wo is not None:
        left, right = steps["concatenated"].values[row], transpose(to_decimals(problem.wo))[column]
    else:
        return []
    return list(zip(left, right, strict=True))


def multiply(left: BoundedTable, right: BoundedTable) -> BoundedTable:
    """The matrix product."""
    columns, column_errors = transpose(right.values), transpose(right.error)
    values = [
        [sum((a * b for a, b in zip(row, column, strict=True)), Decimal(0)) for column in columns]
        for row in left.values
    ]
    error = [
        [
            sum(
                (abs(a) * db + abs(b) * da + da * db for a, da, b, db in zip(row, errors, column, others, strict=True)),
                Decimal(0),
            )
            for column, others in zip(columns, column_errors, strict=True)
        ]
        for row, errors in zip(left.values, left.error, strict=True)
    ]
    return BoundedTable(values, error)


def rescale(table: BoundedTable, scale: Decimal) -> BoundedTable:
    return BoundedTable(
        [[scale * value for value in row] for row in table.values],
        [[abs(scale) * error for error in row] for row in table.error],
    )


def softmax(table: BoundedTable, mask: Sequence[Sequence[bool]] | None) -> BoundedTable:
    """Softmax along the rows; `mask` is repeated for each head."""
    values, error = [], []
    for index, (row, errors) in enumerate(zip(table.values, table.error, strict=True)):
        flags = [True] * len(row) if mask is None else mask[index % len(mask)]
        visible = [value for value, flag in zip(row, flags, strict=True) if flag]
        powers = [(value - max(visible)).exp() if flag else Decimal(0) for value, flag in zip(row, flags, strict=True)]
        total = sum(powers) or Decimal(1)
        values.append([power / total for power in powers])
        growth = (2 * max(errors)).exp() - 1 if max(errors) < 100 else Decimal(1)
        error.append([min(power / total * growth, Decimal(1)) for power in powers])
    return BoundedTable(values, error)


def split_heads(table: BoundedTable, heads: int) -> list[BoundedTable]:
    """The columns of each head."""
    dim = len(table.values[0]) // heads
    columns = [slice(head * dim, (head + 1) * dim) for head in range(heads)]
    return [BoundedTable([row[c] for row in table.values], [row[c] for row in table.error]) for c in columns]


def split_rows(table: BoundedTable, heads: int) -> list[BoundedTable]:
    """The rows of each head, for scores and weights."""
    count = len(table.values) // heads
    return [table.rows(head * count, count) for head in range(heads)]


def stack(tables: Sequence[BoundedTable]) -> BoundedTable:
    return BoundedTable([r for t in tables for r in t.values], [r for t in tables for r in t.error])
