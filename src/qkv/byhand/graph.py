"""The steps of attention and of its backward pass as a graph: what each number is computed from, and how.

Every table has one token per row; cells are (name, row, column) counted from 0. Tables of several heads hold the heads
side by side (queries, keys, values, concatenated and their gradients) or one below the other (scores, scaled, weights
and their gradients).

A `Step` is one of these operations:

    sum               the sum of its addends and of its matrix products, head by head
    scale             the factor ("scale") times its input
    softmax           along the rows; "mask" in the tables (True = may attend) applies to the weights
    row-dot           each row's sum of products of two tables, as a table with one column: r = Σ A∘dA
    softmax-gradient  dZ = A∘(dA − r)
    difference        factor of the row × (first − second): the gradient of a squared error or a cross-entropy

`StepGraph(problem)` has the steps of one problem, in order. Its `given` are the tables that steps start from: x,
positions, wq, wk, wv, wo (or queries, keys, values), scale, mask, upstream, target, loss_factors. `compute` evaluates
one step in any arithmetic from a mapping of tables, so a table may be replaced by a person's numbers or by a wrong one
before later steps are computed from it:

    graph = StepGraph(problem)
    tables = graph.given_tables(DECIMALS)
    for name in graph.steps:
        tables[name] = graph.compute(name, tables, DECIMALS)

By cell: `products` gives the pairs of cells whose products a number adds up, `sources` all cells it is computed from,
and `reached_from` every later cell that a set of wrong cells can change.

Forward: inputs (only with positions), queries, keys, values, scores, scaled, weights, concatenated, output,
probabilities (only for a cross-entropy). Backward: dO, dW_O, dH, dV, dA, r, dZ, dS, dQ, dK, dW_Q, dW_K, dW_V, dX; a
step exists only if what it belongs to was given (dW_O and dH with wo, dW_Q with wq, dX with x). dH is the gradient of
the concatenated heads, dZ of the scaled scores, dS of the scores: dS = β dZ.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from qkv.byhand.matrices import transpose
from qkv.byhand.numbers import Number
from qkv.byhand.parsing import Rows
from qkv.byhand.problem import Problem

Scalar = TypeVar("Scalar")
Cell = tuple[str, int, int]
Heads = Literal["", "columns", "rows"]  # the heads are not split, side by side, or one below the other
Operation = Literal["sum", "scale", "softmax", "row-dot", "softmax-gradient", "difference"]
GIVEN_PROJECTIONS = (("queries", "wq", "Q"), ("keys", "wk", "K"), ("values", "wv", "V"))
SOFTMAX_PARTS = ("exponentials", "sums")  # between scaled and weights; an answer may have them
GRADIENT_OF = {  # each gradient, and the table it belongs to
    "dO": "output",
    "dH": "concatenated",
    "dA": "weights",
    "dZ": "scaled",
    "dS": "scores",
    "dQ": "queries",
    "dK": "keys",
    "dV": "values",
    "dW_O": "wo",
    "dW_Q": "wq",
    "dW_K": "wk",
    "dW_V": "wv",
    "dX": "x",
}


@dataclass(frozen=True)
class Operand:
    """A table in a product or a sum: split by heads or not, transposed or not."""

    name: str
    heads: Heads = ""
    transposed: bool = False


@dataclass(frozen=True)
class Step:
    """One table of the calculation; `inputs` are the tables that it is computed from."""

    name: str
    operation: Operation
    inputs: tuple[str, ...]
    heads: Heads = ""  # how the heads of the result are arranged
    products: tuple[tuple[Operand, Operand], ...] = ()
    addends: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class Arithmetic(Generic[Scalar]):
    """What `compute` needs to know about a kind of numbers, besides their own + - ×."""

    zero: Scalar
    convert: Callable[[Number], Scalar]
    softmax: Callable[[Sequence[Scalar], Sequence[bool]], Sequence[Scalar]]  # of one row; 0 where the flag is False
    softmax_gradient: Callable[[Sequence[Scalar], Sequence[Scalar], Scalar], Sequence[Scalar]]  # a row of A and dA, r


Table = Sequence[Sequence[Scalar]]


class StepGraph:
    """The steps of one problem; with a loss also those of the backward pass."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.given: dict[str, Rows] = _given_tables(problem)
        self.steps: dict[str, Step] = {step.name: step for step in _list_steps(problem)}

    def check_steps(self, names: Iterable[str]) -> None:
        """Raise ValueError if an answer has a step that this problem does not have."""
        for name in names:
            if name in self.steps or name in self.given or name in SOFTMAX_PARTS:
                continue
            if name in ("probabilities", "r", *GRADIENT_OF) and self.problem.loss is None:
                raise ValueError(f'{name} belongs to the backward pass: give a loss as well, such as loss = "sum"')
            raise ValueError(f"{name}: this problem has no such step; its steps are {', '.join(self.steps)}")

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of each table, given or computed."""
        q, k, v = self.problem.project()
        heads, queries, keys = self.problem.heads, len(q), len(k)
        dims = {"queries": len(q[0]), "keys": len(k[0]), "values": len(v[0]), "concatenated": len(v[0])}
        shapes = {name: (len(rows), len(rows[0])) for name, rows in self.given.items()}
        shapes |= {name: (queries if name in ("queries", "concatenated") else keys, dim) for name, dim in dims.items()}
        shapes |= dict.fromkeys(("scores", "scaled", "weights"), (heads * queries, keys))
        shapes["output"] = (queries, len(v[0]) if self.problem.wo is None else len(self.problem.wo[0]))
        shapes["probabilities"] = shapes["output"]
        shapes["r"] = (heads * queries, 1)
        if self.problem.x is not None:
            shapes["inputs"] = shapes["x"]
        shapes |= {name: shapes[of] for name, of in GRADIENT_OF.items() if of in shapes}
        return shapes

    def given_tables(self, arithmetic: Arithmetic[Any]) -> dict[str, Any]:
        """The given tables in this arithmetic, to start a calculation with."""
        tables: dict[str, Any] = {
            name: [[arithmetic.convert(number) for number in row] for row in rows] for name, rows in self.given.items()
        }
        if self.problem.mask is not None:
            tables["mask"] = self.problem.mask
        return tables

    def compute(self, name: str, tables: Mapping[str, Any], arithmetic: Arithmetic[Any]) -> Any:
        """The table of a step, computed from the tables of its inputs."""
        step = self.steps[name]
        if step.operation == "sum":
            return self._sum(step, tables, arithmetic.zero)
        first = tables[step.inputs[0]]
        if step.operation == "scale":
            factor = tables["scale"][0][0]
            return [[factor * number for number in row] for row in first]
        if step.operation == "softmax":
            mask = tables.get("mask") if name == "weights" else None
            flags = [[True] * len(row) if mask is None else mask[i % len(mask)] for i, row in enumerate(first)]
            return [list(arithmetic.softmax(row, row_flags)) for row, row_flags in zip(first, flags, strict=True)]
        second = tables[step.inputs[1]]
        if step.operation == "row-dot":
            pairs = zip(first, second, strict=True)
            return [[sum((a * b for a, b in zip(*pair, strict=True)), start=arithmetic.zero)] for pair in pairs]
        if step.operation == "softmax-gradient":
            rows = zip(first, second, tables["r"], strict=True)
            return [list(arithmetic.softmax_gradient(a, g, r[0])) for a, g, r in rows]
        factors = [row[0] for row in tables["loss_factors"]]
        return [
            [factor * (a - b) for a, b in zip(*pair, strict=True)]
            for factor, *pair in zip(factors, first, second, strict=True)
        ]

    def _sum(self, step: Step, tables: Mapping[str, Any], zero: Any) -> Any:
        parts = [tables[addend.name] for addend in step.addends]
        for left, right in step.products:
            pairs = zip(self._split(left, tables), self._split(right, tables), strict=True)
            heads = [_multiply(a, b, zero) for a, b in pairs]
            parts.append(_join(heads, step.heads))
        total = parts[0]
        for part in parts[1:]:
            total = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(total, part, strict=True)]
        return [list(row) for row in total]

    def _split(self, operand: Operand, tables: Mapping[str, Any]) -> list[Any]:
        """The heads of a table."""
        table, heads = tables[operand.name], self.problem.heads
        if operand.heads == "columns":
            dim = len(table[0]) // heads
            parts = [[row[head * dim : (head + 1) * dim] for row in table] for head in range(heads)]
        elif operand.heads == "rows":
            count = len(table) // heads
            parts = [table[head * count : (head + 1) * count] for head in range(heads)]
        else:
            parts = [table]
        return [transpose(part) for part in parts] if operand.transposed else parts

    def products(self, name: str, row: int, column: int) -> list[tuple[Cell, Cell]]:
        """The pairs of cells whose products add up to this number (besides addends); none if it is no product."""
        step = self.steps[name]
        if step.operation == "row-dot":
            left, right = step.inputs
            return [((left, row, k), (right, row, k)) for k in range(self.shapes[left][1])]
        head, row, column = self.split_place(name, row, column)
        pairs = []
        for left, right in step.products:
            for k in range(self._inner_size(left)):
                pairs.append((self._cell(left, head, row, k), self._cell(right, head, k, column)))
        return pairs

    def addends(self, name: str, row: int, column: int) -> list[Cell]:
        """The cells that are added to this number as they are."""
        return [(addend.name, row, column) for addend in self.steps[name].addends]

    def sources(self, name: str, row: int, column: int) -> list[Cell]:
        """All cells that this number is computed from directly."""
        step = self.steps[name]
        if step.operation in ("sum", "row-dot"):
            pairs = self.products(name, row, column)
            return [*self.addends(name, row, column), *(a for a, _ in pairs), *(b for _, b in pairs)]
        if step.operation == "scale":
            return [(step.inputs[0], row, column)]
        if step.operation == "difference":
            return [(table, row, column) for table in step.inputs]
        if step.operation == "softmax-gradient":
            return [("weights", row, column), ("dA", row, column), ("r", row, 0)]
        return [(table, row, c) for table in step.inputs for c in range(self.shapes[table][1])]

    def reached_from(self, cells: Iterable[Cell]) -> set[Cell]:
        """Every cell of a later step that depends on one of these cells; the cells themselves are not included."""
        changed, reached = set(cells), set()
        for name in self.steps:
            rows, columns = self.shapes[name]
            for row in range(rows):
                for column in range(columns):
                    if not changed.isdisjoint(self._live_sources(name, row, column)):
                        changed.add((name, row, column))
                        reached.add((name, row, column))
        return reached

    def _live_sources(self, name: str, row: int, column: int) -> list[Cell]:
        """The sources of a number, without those that a mask keeps from changing it."""
        sources, mask = self.sources(name, row, column), self.problem.mask
        if mask is None or name not in ("weights", "r", "dZ"):
            return sources
        flags = mask[row % len(mask)]
        if name == "weights" and not flags[column]:
            return []
        if name == "dZ" and not flags[column]:
            return [("weights", row, column)]
        return [cell for cell in sources if cell[0] not in ("scaled", "dA") or flags[cell[2]]]

    def split_place(self, name: str, row: int, column: int) -> tuple[int, int, int]:
        """The head of a cell, and its row and column within the head."""
        heads, (rows, columns) = self.problem.heads, self.shapes[name]
        if self.steps[name].heads == "rows":
            head, row = divmod(row, rows // heads)
        elif self.steps[name].heads == "columns":
            head, column = divmod(column, columns // heads)
        else:
            head = 0
        return head, row, column

    def _inner_size(self, left: Operand) -> int:
        rows, columns = self.shapes[left.name]
        rows = rows // self.problem.heads if left.heads == "rows" else rows
        columns = columns // self.problem.heads if left.heads == "columns" else columns
        return rows if left.transposed else columns

    def _cell(self, operand: Operand, head: int, row: int, column: int) -> Cell:
        """The cell of an operand of one head, in its whole table."""
        if operand.transposed:
            row, column = column, row
        rows, columns = self.shapes[operand.name]
        if operand.heads == "rows":
            row += head * rows // self.problem.heads
        elif operand.heads == "columns":
            column += head * columns // self.problem.heads
        return operand.name, row, column


def _given_tables(problem: Problem) -> dict[str, Rows]:
    names = ("x", "positions", "wq", "wk", "wv", "wo")
    tables = (problem.x, problem.positions, *problem.projections, problem.wo)
    given = {name: rows for name, rows in zip(names, tables, strict=True) if rows is not None}
    if problem.direct_qkv is not None:
        given |= zip(("queries", "keys", "values"), problem.direct_qkv, strict=True)
    given["scale"] = ((problem.scale,),)
    loss = problem.loss
    if loss is not None and loss.upstream is not None:
        given["upstream"] = loss.upstream
    if loss is not None and loss.target is not None:
        given |= {"target": loss.target, "loss_factors": tuple((factor,) for factor in loss.factors)}
    return given


def _product(name: str, *products: tuple[Operand, Operand], heads: Heads = "", addends: Iterable[str] = ()) -> Step:
    """A sum of matrix products and of whole tables."""
    whole = tuple(Operand(addend) for addend in addends)
    operands = [*whole, *(operand for pair in products for operand in pair)]
    inputs = tuple(dict.fromkeys(operand.name for operand in operands))
    return Step(name, "sum", inputs, heads, products, whole)


def _list_steps(problem: Problem) -> Iterable[Step]:
    yield from _forward_steps(problem)
    if problem.loss is not None:
        yield from _backward_steps(problem)


def _forward_steps(problem: Problem) -> Iterable[Step]:
    inputs = "x" if problem.positions is None else "inputs"
    if problem.positions is not None:
        yield _product("inputs", addends=("x", "positions"))
    if problem.x is not None:
        for (name, short, _), weight in zip(GIVEN_PROJECTIONS, problem.projections, strict=True):
            if weight is None:
                yield _product(name, addends=(inputs,))
            else:
                yield _product(name, (Operand(inputs), Operand(short)))
    queries, keys = Operand("queries", "columns"), Operand("keys", "columns", transposed=True)
    yield _product("scores", (queries, keys), heads="rows")
    yield Step("scaled", "scale", ("scores",), "rows")
    yield Step("weights", "softmax", ("scaled",), "rows")
    yield _product("concatenated", (Operand("weights", "rows"), Operand("values", "columns")), heads="columns")
    if problem.wo is None:
        yield _product("output", addends=("concatenated",))
    else:
        yield _product("output", (Operand("concatenated"), Operand("wo")))


def _backward_steps(problem: Problem) -> Iterable[Step]:
    loss = problem.loss
    assert loss is not None
    if loss.upstream is not None:
        yield _product("dO", addends=("upstream",))
    elif loss.cross_entropy:
        yield Step("probabilities", "softmax", ("output",))
        yield Step("dO", "difference", ("probabilities", "target"))
    else:
        yield Step("dO", "difference", ("output", "target"))
    joined = "dO"  # the gradient of the concatenated heads
    if problem.wo is not None:
        joined = "dH"
        yield _product("dW_O", (Operand("concatenated", transposed=True), Operand("dO")))
        yield _product("dH", (Operand("dO"), Operand("wo", transposed=True)))
    output = Operand(joined, "columns")
    yield _product("dV", (Operand("weights", "rows", transposed=True), output), heads="columns")
    yield _product("dA", (output, Operand("values", "columns", transposed=True)), heads="rows")
    yield Step("r", "row-dot", ("weights", "dA"), "rows")
    yield Step("dZ", "softmax-gradient", ("weights", "dA", "r"), "rows")
    yield Step("dS", "scale", ("dZ",), "rows")
    yield _product("dQ", (Operand("dS", "rows"), Operand("keys", "columns")), heads="columns")
    yield _product("dK", (Operand("dS", "rows", transposed=True), Operand("queries", "columns")), heads="columns")
    if problem.x is None:
        return
    inputs = "x" if problem.positions is None else "inputs"
    products, addends = [], []
    for (_, short, letter), weight in zip(GIVEN_PROJECTIONS, problem.projections, strict=True):
        if weight is None:
            addends.append(f"d{letter}")
            continue
        yield _product(f"dW_{letter}", (Operand(inputs, transposed=True), Operand(f"d{letter}")))
        products.append((Operand(f"d{letter}"), Operand(short, transposed=True)))
    yield _product("dX", *products, addends=addends)


def _multiply(left: Any, right: Any, zero: Any) -> Any:
    columns = transpose(right)
    return [[sum((a * b for a, b in zip(row, column, strict=True)), start=zero) for column in columns] for row in left]


def _join(heads: Sequence[Any], how: Heads) -> Any:
    if how == "columns":
        return [[number for row in rows for number in row] for rows in zip(*heads, strict=True)]
    return [row for head in heads for row in head]


def softmax_decimals(row: Sequence[Decimal], flags: Sequence[bool]) -> list[Decimal]:
    """Softmax of one row in decimals: 0 where a flag is False, all 0 where none is True."""
    seen = [value for value, flag in zip(row, flags, strict=True) if flag]
    if not seen:
        return [Decimal(0)] * len(row)
    largest = max(seen)
    powers = [(value - largest).exp() if flag else Decimal(0) for value, flag in zip(row, flags, strict=True)]
    total = sum(powers, Decimal(0))
    return [power / total for power in powers]


def softmax_gradient(weights: Sequence[Any], gradient: Sequence[Any], row_dot: Any) -> list[Any]:
    """A∘(dA − r) of one row, for any numbers."""
    return [a * (g - row_dot) for a, g in zip(weights, gradient, strict=True)]


DECIMALS: Arithmetic[Decimal] = Arithmetic(
    Decimal(0), lambda number: number.decimal, softmax_decimals, softmax_gradient
)
