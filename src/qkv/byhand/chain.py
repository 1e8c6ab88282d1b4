"""Each step of attention from the step before, in decimals, with how far rounding may have moved it.

A person's own numbers go in; what follows from them comes out. One token a row, heads one after another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext

from qkv.byhand.matrices import decimals, transpose
from qkv.byhand.number import DIGITS
from qkv.byhand.problem import Problem

Table = Sequence[Sequence[Decimal]]
NEEDS = {
    "queries": (),
    "keys": (),
    "values": (),
    "scores": ("queries", "keys"),
    "scaled": ("scores",),
    "weights": ("scaled",),
    "joined": ("weights", "values"),
    "output": ("joined",),
}


@dataclass(frozen=True)
class Numbers:
    """A table of numbers and, for each, by how much it may be off through rounding."""

    values: Table
    slack: Table

    @staticmethod
    def sharp(values: Table) -> "Numbers":
        return Numbers(values, [[Decimal(0)] * len(row) for row in values])


State = Mapping[str, Numbers]


def follow(problem: Problem, step: str, state: State) -> Numbers:
    """What this step gives, worked from the steps in `state`."""
    with localcontext(DIGITS):
        if step in ("queries", "keys", "values"):
            rows = problem.projected()[("queries", "keys", "values").index(step)]
            return Numbers.sharp(decimals(rows))
        before = [state[name] for name in NEEDS[step]]
        if step == "scores":
            queries, keys = (split(table, problem.heads) for table in before)
            return stack([product(q, turned(k)) for q, k in zip(queries, keys, strict=True)])
        if step == "scaled":
            return scale(before[0], problem.beta.decimal)
        if step == "weights":
            return softmax(before[0], problem.allowed)
        if step == "joined":
            tokens = len(before[0].values) // problem.heads
            values = split(before[1], problem.heads)
            weights = [part(before[0], head * tokens, tokens) for head in range(problem.heads)]
            return beside([product(w, v) for w, v in zip(weights, values, strict=True)])
        wo = problem.wo
        return before[0] if wo is None else product(before[0], Numbers.sharp(decimals(wo)))


def product_terms(problem: Problem, step: str, state: State, row: int, column: int) -> list[tuple[Decimal, Decimal]]:
    """The pairs that are multiplied and added to make one number; none where it is made otherwise."""
    if step in ("queries", "keys", "values"):
        weight = problem.projections[("queries", "keys", "values").index(step)]
        if problem.inputs is None or weight is None:
            return []
        left, right = decimals(problem.inputs)[row], transpose(decimals(weight))[column]
    elif step == "scores":
        tokens = len(state["queries"].values)
        head, row = divmod(row, tokens)
        left = split(state["queries"], problem.heads)[head].values[row]
        right = split(state["keys"], problem.heads)[head].values[column]
    elif step == "joined" or (step == "output" and problem.wo is None):
        width = len(state["values"].values[0]) // problem.heads
        tokens = len(state["queries"].values)
        left = state["weights"].values[column // width * tokens + row]
        right = transpose(state["values"].values)[column]
    elif step == "output" and problem.wo is not None:
        left, right = state["joined"].values[row], transpose(decimals(problem.wo))[column]
    else:
        return []
    return list(zip(left, right, strict=True))


def product(left: Numbers, right: Numbers) -> Numbers:
    columns, off = transpose(right.values), transpose(right.slack)
    values = [
        [sum((a * b for a, b in zip(row, column, strict=True)), Decimal(0)) for column in columns]
        for row in left.values
    ]
    slack = [
        [
            sum(
                (abs(a) * db + abs(b) * da + da * db for a, da, b, db in zip(row, errors, column, others, strict=True)),
                Decimal(0),
            )
            for column, others in zip(columns, off, strict=True)
        ]
        for row, errors in zip(left.values, left.slack, strict=True)
    ]
    return Numbers(values, slack)


def scale(table: Numbers, beta: Decimal) -> Numbers:
    return Numbers(
        [[beta * value for value in row] for row in table.values],
        [[abs(beta) * slack for slack in row] for row in table.slack],
    )


def softmax(table: Numbers, allowed: Sequence[Sequence[bool]] | None) -> Numbers:
    """Along the rows; `allowed` is repeated for each head."""
    values, slack = [], []
    for index, (row, errors) in enumerate(zip(table.values, table.slack, strict=True)):
        flags = [True] * len(row) if allowed is None else allowed[index % len(allowed)]
        seen = [value for value, flag in zip(row, flags, strict=True) if flag]
        powers = [(value - max(seen)).exp() if flag else Decimal(0) for value, flag in zip(row, flags, strict=True)]
        total = sum(powers) or Decimal(1)
        values.append([power / total for power in powers])
        moved = (2 * max(errors)).exp() - 1 if max(errors) < 100 else Decimal(1)
        slack.append([min(power / total * moved, Decimal(1)) for power in powers])
    return Numbers(values, slack)


def split(table: Numbers, heads: int) -> list[Numbers]:
    """The columns of each head."""
    width = len(table.values[0]) // heads
    pieces = [slice(head * width, (head + 1) * width) for head in range(heads)]
    return [Numbers([row[p] for row in table.values], [row[p] for row in table.slack]) for p in pieces]


def part(table: Numbers, start: int, count: int) -> Numbers:
    return Numbers(table.values[start : start + count], table.slack[start : start + count])


def turned(table: Numbers) -> Numbers:
    return Numbers(transpose(table.values), transpose(table.slack))


def stack(tables: Sequence[Numbers]) -> Numbers:
    return Numbers([r for t in tables for r in t.values], [r for t in tables for r in t.slack])


def beside(tables: Sequence[Numbers]) -> Numbers:
    return turned(stack([turned(table) for table in tables]))
