"""Solve attention exactly: projections, scores, scale, mask, softmax, output; `solve` returns a `Solution`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from qkv.byhand.float_check import Agreement, compare_gradients, compare_output, solve_in_floats
from qkv.byhand.graph import GRADIENT_OF, Arithmetic, StepGraph
from qkv.byhand.loss import Loss
from qkv.byhand.matrices import ZERO, Matrix, transpose
from qkv.byhand.numbers import Number, exponential, logarithm
from qkv.byhand.parsing import Cell, MatrixLike, Rows
from qkv.byhand.problem import Convention, Problem, make_problem

STEPS = ("queries", "keys", "values", "scores", "scaled", "weights", "output")


@dataclass(frozen=True)
class Solution:
    """All steps of a problem in its convention: queries, keys, values, scores, scaled, weights and output.

    Each is a `Matrix` with `exact` and `decimal`. With several heads `scores`, `scaled` and `weights` hold the heads'
    matrices one after another. `gradients` has those of the backward pass by name (dO, dQ, dW_Q …), if there is a loss.
    """

    problem: Problem
    graph: StepGraph
    tables: Mapping[str, Rows]  # every step by name, one token per row
    agreement: Agreement  # of the output
    gradient_agreement: Agreement | None
    loss: Number | None  # its value
    unscaled: Matrix | None  # the output for a scale of 1, if the scale was 1/√d by default

    @cached_property
    def queries(self) -> Matrix:
        return self.matrix("queries")

    @cached_property
    def keys(self) -> Matrix:
        return self.matrix("keys")

    @cached_property
    def values(self) -> Matrix:
        return self.matrix("values")

    @cached_property
    def scores(self) -> Matrix:
        return self.matrix("scores")

    @cached_property
    def scaled(self) -> Matrix:
        return self.matrix("scaled")

    @cached_property
    def weights(self) -> Matrix:
        return self.matrix("weights")

    @cached_property
    def output(self) -> Matrix:
        return self.matrix("output")

    @property
    def agrees(self) -> bool:
        """Whether output and gradients agree with the separate computation in floats."""
        return self.agreement.agrees and (self.gradient_agreement is None or self.gradient_agreement.agrees)

    @property
    def concatenated(self) -> Rows:
        """The heads' outputs before W_O, one token per row."""
        return self.tables["concatenated"]

    @property
    def result(self) -> Rows:
        """The output, one token per row."""
        return self.tables["output"]

    @cached_property
    def gradients(self) -> dict[str, Matrix]:
        """The gradients by name, in the shapes of what they belong to; empty without a loss."""
        return {name: self.matrix(name) for name in self.tables if name in GRADIENT_OF}

    def matrix(self, step: str) -> Matrix:
        """A step in the problem's convention."""
        rows = self.tables[step]
        return Matrix(transpose(rows) if self.problem.convention == "columns" else rows)

    def to_dict(self) -> dict[str, object]:
        """The same fields, for JSON."""
        problem = self.problem
        mask = problem.mask
        if mask is not None and problem.convention == "columns":
            mask = transpose(mask)
        return {
            "title": problem.title,
            "convention": problem.convention,
            "heads": problem.heads,
            "scale": Matrix(((problem.scale,),)).exact[0][0],
            "mask": None if mask is None else [list(row) for row in mask],
            **{step: getattr(self, step).to_dict() for step in STEPS},
            **self._backward_dict(),
            "unscaled_output": None if self.unscaled is None else self.unscaled.to_dict(),
            "float64": {
                "difference": self.agreement.difference,
                "tolerance": self.agreement.tolerance,
                "agrees": self.agreement.agrees,
            },
        }

    def _backward_dict(self) -> dict[str, object]:
        if self.loss is None or self.gradient_agreement is None or self.problem.loss is None:
            return {}
        gradients = {name: matrix.to_dict() for name, matrix in self.gradients.items()}
        value = Matrix(((self.loss,),))
        agreement = {**asdict(self.gradient_agreement), "agrees": self.gradient_agreement.agrees}
        loss = {"name": self.problem.loss.name, "exact": value.exact[0][0], "decimal": value.decimal[0][0]}
        return {"loss": loss, "gradients": gradients, "gradients_float64": agreement}


def solve(
    x: MatrixLike | None = None,
    wq: MatrixLike | None = None,
    wk: MatrixLike | None = None,
    wv: MatrixLike | None = None,
    *,
    q: MatrixLike | None = None,
    k: MatrixLike | None = None,
    v: MatrixLike | None = None,
    wo: MatrixLike | None = None,
    heads: int = 1,
    scale: Cell | None = None,
    causal: bool = False,
    mask: MatrixLike | None = None,
    positions: MatrixLike | None = None,
    convention: Convention = "rows",
    loss: str | None = None,
    target: Any = None,
    upstream: MatrixLike | None = None,
) -> Solution:
    """Solve attention in exact numbers, softmax(β Q Kᵀ) V, with every step as on paper.

    Give x, or q, k and v. Matrices are rows of numbers or text such as "1 -1; 0 1/2"; a missing weight is the identity.

    scale: β, which multiplies the scores; 1/√d if not given, "1" for no scale.
    mask: 1 where a query may attend to a key.
    positions: "sinusoidal" or a matrix; added to x.
    convention: "columns" takes and returns one token per column, H = V softargmax(KᵀQ).
    loss: adds the backward pass: sum, mean, upstream, squared-error, half-squared-error, mean-squared-error,
        cross-entropy or cross-entropy-sum; with target (a matrix, or a class from 1 for each token) or upstream (dO).

    >>> solution = solve(q="1 0", k="1 0; 0 1", v="4; 8", scale="1")
    >>> solution.scores.exact, solution.weights.exact
    ([['1', '0']], [['e/(e+1)', '1/(e+1)']])
    >>> solution.output.exact, [[round(number, 4) for number in row] for row in solution.output.decimal]
    ([['(4e+8)/(e+1)']], [[5.0758]])
    """
    settings: dict[str, Any] = {
        "x": x,
        "wq": wq,
        "wk": wk,
        "wv": wv,
        "q": q,
        "k": k,
        "v": v,
        "wo": wo,
        "heads": heads,
        "scale": scale,
        "causal": causal,
        "mask": mask,
        "positions": positions,
        "convention": convention,
        "loss": loss,
        "target": target,
        "upstream": upstream,
    }
    return solve_problem(make_problem(settings))


def solve_problem(problem: Problem) -> Solution:
    """Solve a problem exactly and compare it with a separate computation in floats."""
    graph = StepGraph(problem)
    tables = _compute_tables(graph)
    floats = solve_in_floats(problem)
    unscaled = gradient_agreement = None
    if problem.default_scale and problem.scale != Number.of(1):
        output = _compute_tables(StepGraph(replace(problem, scale=Number.of(1), loss=None)))["output"]
        unscaled = Matrix(transpose(output) if problem.convention == "columns" else output)
    if problem.loss is not None:
        gradients = {of: tables[name] for name, of in GRADIENT_OF.items() if name in tables}
        gradient_agreement = compare_gradients(gradients, floats)
    agreement = compare_output(tables["output"], floats)
    loss = _loss_value(problem.loss, tables) if problem.loss is not None else None
    return Solution(problem, graph, tables, agreement, gradient_agreement, loss, unscaled)


def _compute_tables(graph: StepGraph) -> dict[str, Rows]:
    """Every step, and queries, keys and values if they were given."""
    tables = graph.given_tables(EXACT)
    for name, step in graph.steps.items():
        rows = graph.compute(name, tables, EXACT)
        long = step.operation in ("sum", "row-dot", "difference") and name not in (
            "inputs",
            "queries",
            "keys",
            "values",
            "scores",
        )
        tables[name] = tuple(tuple(number.reduce() if long else number for number in row) for row in rows)
    wanted = [name for name in ("queries", "keys", "values") if name not in graph.steps]
    return {name: tuple(map(tuple, tables[name])) for name in (*wanted, *graph.steps)}


def exponentials(row: Sequence[Number], flags: Sequence[bool]) -> tuple[Number, ...]:
    """e to each number of a row, 0 where a flag is False."""
    return tuple(exponential(number) if flag else ZERO for number, flag in zip(row, flags, strict=True))


def _softmax(row: Sequence[Number], flags: Sequence[bool]) -> tuple[Number, ...]:
    """The exponentials over their sum: all 0 in a fully masked row, plain fractions where they are equal."""
    powers = exponentials(row, flags)
    total = sum(powers, start=ZERO)
    if not total.terms:
        return powers
    if len(total.terms) == 1:
        (monomial, count) = next(iter(total.terms.items()))
        return tuple(Number.of(number.terms.get(monomial, 0) / count) for number in powers)
    inverse = total.inverse()
    return tuple(number * inverse for number in powers)


def _softmax_gradient(weights: Sequence[Number], gradient: Sequence[Number], row_dot: Number) -> tuple[Number, ...]:
    """A∘(dA − r), r = Σ A∘dA, as A_j Σ_k A_k (dA_j − dA_k): the same because the weights add up to 1, and shorter."""
    return tuple(
        (a * sum((b * (g - h) for b, h in zip(weights, gradient, strict=True)), start=ZERO)).reduce()
        for a, g in zip(weights, gradient, strict=True)
    )


EXACT: Arithmetic[Number] = Arithmetic(ZERO, lambda number: number, _softmax, _softmax_gradient)


def _loss_value(loss: Loss, tables: Mapping[str, Rows]) -> Number:
    total, output = ZERO, tables["output"]
    if loss.upstream is not None:
        for row, gradients in zip(output, loss.upstream, strict=True):
            total = total + sum((a * b for a, b in zip(row, gradients, strict=True)), start=ZERO)
        return total.reduce()
    assert loss.target is not None
    for i, factor in enumerate(loss.factors):
        if loss.cross_entropy:
            right = loss.classes[i]
            if right is not None:
                total = total - factor * logarithm(tables["probabilities"][i][right])
            continue
        errors = [a - b for a, b in zip(output[i], loss.target[i], strict=True)]
        squares = sum((error * error for error in errors), start=ZERO)
        total = total + factor * Number.of(Fraction(1, 2)) * squares
    return total.reduce()
