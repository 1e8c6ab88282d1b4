"""The same problem in plain Python floats, forward and backward: an independent check of the exact solution.

Nothing is shared with the exact solver: every product is a scalar operation on a tape, and the gradients come from
reverse-mode differentiation of that tape, not from the formulas of the backward pass.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import float_info

from qkv.byhand.loss import Loss
from qkv.byhand.parsing import Rows
from qkv.byhand.problem import Problem

TOLERANCE = 1e-12


@dataclass(frozen=True)
class Agreement:
    """The largest difference between the exact numbers and a float64 computation, and the tolerance for it."""

    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.difference <= self.tolerance


@dataclass(eq=False)
class Scalar:
    """One float of the tape: its value, the scalars it was computed from, and the derivatives by them."""

    value: float
    size: float  # the sum of the absolute terms: how far rounding can move the value
    parents: tuple[tuple["Scalar", float], ...] = ()
    gradient: float = 0.0
    gradient_size: float = 0.0

    def __add__(self, other: "Scalar") -> "Scalar":
        return Scalar(self.value + other.value, self.size + other.size, ((self, 1.0), (other, 1.0)))

    def __mul__(self, other: "Scalar") -> "Scalar":
        return Scalar(self.value * other.value, self.size * other.size, ((self, other.value), (other, self.value)))

    def times(self, factor: float) -> "Scalar":
        return Scalar(self.value * factor, self.size * abs(factor), ((self, factor),))

    def apply(self, function: Callable[[float], float], derivative: Callable[[float], float]) -> "Scalar":
        value = function(self.value)
        return Scalar(value, abs(value), ((self, derivative(self.value)),))


Table = list[list[Scalar]]


@dataclass
class FloatSolution:
    """Every step by name, as scalars of the tape; `loss` if the problem has one."""

    steps: dict[str, Table] = field(default_factory=dict)
    loss: Scalar | None = None
    largest_score: float = 0.0


def solve_in_floats(problem: Problem) -> FloatSolution:
    """Attention by loops over Python floats; with a loss, every scalar's gradient too."""
    found = FloatSolution()
    steps = found.steps
    if problem.x is not None:
        steps["x"] = _table(problem.x)
        inputs = steps["x"]
        if problem.positions is not None:
            positions = _table(problem.positions)
            inputs = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(inputs, positions, strict=True)]
        for name, short, weight in zip(
            ("queries", "keys", "values"), ("wq", "wk", "wv"), problem.projections, strict=True
        ):
            if weight is None:
                steps[name] = [[scalar.times(1.0) for scalar in row] for row in inputs]
            else:
                steps[short] = _table(weight)
                steps[name] = _product(inputs, steps[short])
    else:
        for name, rows in zip(("queries", "keys", "values"), problem.project(), strict=True):
            steps[name] = _table(rows)
    queries, keys, values = steps["queries"], steps["keys"], steps["values"]
    dim, value_dim = len(queries[0]) // problem.heads, len(values[0]) // problem.heads
    scale = float(problem.scale.decimal)
    scores: Table = []
    scaled: Table = []
    weights: Table = []
    outputs: Table = [[] for _ in queries]
    for head in range(problem.heads):
        own, own_values = slice(head * dim, (head + 1) * dim), slice(head * value_dim, (head + 1) * value_dim)
        for i, query in enumerate(queries):
            scores.append([_dot(query[own], key[own]) for key in keys])
            scaled.append([score.times(scale) for score in scores[-1]])
            flags = [True] * len(keys) if problem.mask is None else problem.mask[i]
            weights.append(_softmax(scaled[-1], flags))
            columns = list(zip(*(row[own_values] for row in values), strict=True))
            outputs[i] += [_dot(weights[-1], column) for column in columns]
    found.largest_score = max(score.size for row in scaled for score in row)
    steps |= {"scores": scores, "scaled": scaled, "weights": weights, "concatenated": outputs}
    if problem.wo is not None:
        steps["wo"] = _table(problem.wo)
        outputs = _product(outputs, steps["wo"])
    steps["output"] = [[scalar.times(1.0) for scalar in row] for row in outputs]
    if problem.loss is not None:
        found.loss = _loss(problem.loss, steps["output"])
    return found


def _loss(loss: Loss, output: Table) -> Scalar:
    total = Scalar(0.0, 0.0)
    if loss.upstream is not None:
        for row, gradients in zip(output, loss.upstream, strict=True):
            for scalar, gradient in zip(row, gradients, strict=True):
                total = total + scalar.times(float(gradient.decimal))
        return total
    assert loss.target is not None
    for i, (row, targets) in enumerate(zip(output, loss.target, strict=True)):
        factor = float(loss.factors[i].decimal)
        if loss.cross_entropy:
            right = loss.classes[i]
            if right is not None:
                total = total + (_log_sum(row) + row[right].times(-1.0)).times(factor)
            continue
        for scalar, target in zip(row, targets, strict=True):
            error = scalar + _constant(-float(target.decimal))
            total = total + (error * error).times(factor / 2)
    return total


def _log_sum(row: Sequence[Scalar]) -> Scalar:
    """ln Σ e^o of a row."""
    largest = max(scalar.value for scalar in row)
    total = Scalar(0.0, 0.0)
    for scalar in row:
        total = total + scalar.apply(lambda z: math.exp(z - largest), lambda z: math.exp(z - largest))
    return total.apply(math.log, lambda sum_: 1 / sum_) + _constant(largest)


def _constant(value: float) -> Scalar:
    return Scalar(value, abs(value))


def compare_output(exact: Rows, found: FloatSolution) -> Agreement:
    """Compare the exact output with the floats."""
    return _compare([(exact, found.steps["output"], "value")], found)


def compare_gradients(exact: Mapping[str, Rows], found: FloatSolution) -> Agreement:
    """Compare the exact gradients, by the step that they belong to, with those of the tape."""
    assert found.loss is not None
    differentiate(found.loss)
    return _compare([(rows, found.steps[name], "gradient") for name, rows in exact.items()], found)


def differentiate(loss: Scalar) -> None:
    """Reverse-mode differentiation: the gradient of the loss by every scalar of its tape."""
    order: list[Scalar] = []
    seen: set[int] = set()
    stack: list[tuple[Scalar, bool]] = [(loss, False)]
    while stack:
        scalar, finished = stack.pop()
        if finished:
            order.append(scalar)
        elif id(scalar) not in seen:
            seen.add(id(scalar))
            stack.append((scalar, True))
            stack += [(parent, False) for parent, _ in scalar.parents]
    loss.gradient = loss.gradient_size = 1.0
    for scalar in reversed(order):
        for parent, derivative in scalar.parents:
            parent.gradient += scalar.gradient * derivative
            parent.gradient_size += scalar.gradient_size * abs(derivative)


def _compare(pairs: Sequence[tuple[Rows, Table, str]], found: FloatSolution) -> Agreement:
    """float64 rounds a score s by about s·ε, which changes a weight by that share of itself."""
    growth = 8 * float_info.epsilon * (found.largest_score + len(found.steps["keys"]))
    worst = Agreement(0.0, TOLERANCE)
    for rows, table, kind in pairs:
        for exact_row, row in zip(rows, table, strict=True):
            for number, scalar in zip(exact_row, row, strict=True):
                value, size = (
                    (scalar.value, scalar.size) if kind == "value" else (scalar.gradient, scalar.gradient_size)
                )
                difference = abs(value - float(number.decimal))
                tolerance = max(TOLERANCE, growth * size)
                if math.isnan(difference) or difference / tolerance > worst.difference / worst.tolerance:
                    worst = Agreement(difference, tolerance)
    return worst


def _table(rows: Rows) -> Table:
    values = [[float(number.decimal) for number in row] for row in rows]
    return [[_constant(value) for value in row] for row in values]


def _product(left: Table, right: Table) -> Table:
    columns = list(zip(*right, strict=True))
    return [[_dot(row, column) for column in columns] for row in left]


def _dot(left: Sequence[Scalar], right: Sequence[Scalar]) -> Scalar:
    total = left[0] * right[0]
    for a, b in zip(left[1:], right[1:], strict=True):
        total = total + a * b
    return total


def _softmax(row: Sequence[Scalar], flags: Sequence[bool]) -> list[Scalar]:
    """A row that may attend to nothing gets weights 0."""
    seen = [scalar for scalar, flag in zip(row, flags, strict=True) if flag]
    if not seen:
        return [scalar.times(0.0) for scalar in row]
    largest = max(scalar.value for scalar in seen)
    powers = [scalar.apply(lambda z: math.exp(z - largest), lambda z: math.exp(z - largest)) for scalar in seen]
    total = powers[0]
    for power in powers[1:]:
        total = total + power
    inverse = total.apply(lambda sum_: 1 / sum_, lambda sum_: -1 / sum_**2)
    shares = iter([power * inverse for power in powers])
    return [next(shares) if flag else scalar.times(0.0) for scalar, flag in zip(row, flags, strict=True)]
