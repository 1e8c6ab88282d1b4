"""Solve attention exactly: projections, scores, scale, mask, softmax, output; `solve` returns a `Solution`."""

from dataclasses import dataclass
from functools import cached_property
from sys import float_info
from typing import Any

from qkv.byhand.matrices import (
    ZERO,
    Matrix,
    concat_columns,
    concat_rows,
    map_entries,
    multiply,
    split_heads,
    to_decimals,
    transpose,
)
from qkv.byhand.numbers import Number, exponential
from qkv.byhand.parsing import Cell, MatrixLike, Rows
from qkv.byhand.problem import BoolRows, Convention, Problem, make_problem

STEPS = ("queries", "keys", "values", "scores", "scaled", "weights", "output")
TOLERANCE = 1e-12


@dataclass(frozen=True)
class HeadSolution:
    """The steps of one head, one token a row."""

    queries: Rows
    keys: Rows
    values: Rows
    scores: Rows
    scaled: Rows
    exponentials: Rows  # 0 where masked
    sums: tuple[Number, ...]  # of each query's exponentials
    weights: Rows
    output: Rows


@dataclass(frozen=True)
class Agreement:
    """The largest difference between the exact output and qkv's float64 attention, and the tolerance for it."""

    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.difference <= self.tolerance


@dataclass(frozen=True)
class Solution:
    """All steps of a problem in its convention: queries, keys, values, scores, scaled, weights and output.

    Each is a `Matrix` with `exact` and `decimal`. With several heads `scores`, `scaled` and `weights` hold the heads'
    matrices one after another.
    """

    problem: Problem
    heads: tuple[HeadSolution, ...]
    concatenated: Rows  # the heads' outputs, before W_O; one token a row
    result: Rows  # one token a row
    agreement: Agreement
    unscaled: Matrix | None  # the output for a scale of 1, if the scale was 1/√d by default

    @cached_property
    def queries(self) -> Matrix:
        return self._orient(concat_columns([head.queries for head in self.heads]))

    @cached_property
    def keys(self) -> Matrix:
        return self._orient(concat_columns([head.keys for head in self.heads]))

    @cached_property
    def values(self) -> Matrix:
        return self._orient(concat_columns([head.values for head in self.heads]))

    @cached_property
    def scores(self) -> Matrix:
        return self._orient(concat_rows([head.scores for head in self.heads]))

    @cached_property
    def scaled(self) -> Matrix:
        return self._orient(concat_rows([head.scaled for head in self.heads]))

    @cached_property
    def weights(self) -> Matrix:
        return self._orient(concat_rows([head.weights for head in self.heads]))

    @cached_property
    def output(self) -> Matrix:
        return self._orient(self.result)

    def _orient(self, rows: Rows) -> Matrix:
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
            "unscaled_output": None if self.unscaled is None else self.unscaled.to_dict(),
            "float64": {
                "difference": self.agreement.difference,
                "tolerance": self.agreement.tolerance,
                "agrees": self.agreement.agrees,
            },
        }


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
) -> Solution:
    """Solve attention in exact numbers, softmax(β Q Kᵀ) V, with every step as on paper.

    Give x, or q, k and v. Matrices are rows of numbers or text such as "1 -1; 0 1/2"; a missing weight is the identity.

    scale: β, which multiplies the scores; 1/√d if not given, "1" for no scale.
    mask: 1 where a query may attend to a key.
    positions: "sinusoidal" or a matrix; added to x.
    convention: "columns" takes and returns one token a column, H = V softargmax(KᵀQ).

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
    }
    return solve_problem(make_problem(settings))


def solve_problem(problem: Problem) -> Solution:
    """Solve a problem exactly and compare the output with qkv's float64 attention."""
    heads, concatenated, result = _solve_heads(problem, problem.scale)
    unscaled = None
    if problem.default_scale and problem.scale != Number.of(1):
        output = _solve_heads(problem, Number.of(1))[2]
        unscaled = Matrix(transpose(output) if problem.convention == "columns" else output)
    return Solution(problem, heads, concatenated, result, compare_with_float64(problem, result), unscaled)


def _solve_heads(problem: Problem, scale: Number) -> tuple[tuple[HeadSolution, ...], Rows, Rows]:
    """Every head, their outputs concatenated, and the result after W_O."""
    parts = [split_heads(matrix, problem.heads) for matrix in problem.project()]
    heads = tuple(_solve_head(q, k, v, scale, problem.mask) for q, k, v in zip(*parts, strict=True))
    concatenated = concat_columns([head.output for head in heads])
    if problem.wo is None:
        return heads, concatenated, concatenated
    return heads, concatenated, map_entries(multiply(concatenated, problem.wo), Number.reduce)


def _solve_head(queries: Rows, keys: Rows, values: Rows, scale: Number, mask: BoolRows | None) -> HeadSolution:
    scores = multiply(queries, transpose(keys))
    scaled = map_entries(scores, lambda score: scale * score)
    flags = mask or tuple((True,) * len(keys) for _ in queries)
    exponentials = tuple(
        tuple(exponential(score) if flag else ZERO for score, flag in zip(*pair, strict=True))
        for pair in zip(scaled, flags, strict=True)
    )
    sums = tuple(sum(row, start=ZERO) for row in exponentials)
    weights = tuple(_normalize(row, total) for row, total in zip(exponentials, sums, strict=True))
    output = map_entries(multiply(weights, values), Number.reduce)
    return HeadSolution(queries, keys, values, scores, scaled, exponentials, sums, weights, output)


def _normalize(row: tuple[Number, ...], total: Number) -> tuple[Number, ...]:
    """Each number over the total: all 0 in a fully masked row, plain fractions where the exponentials are equal."""
    if not total.terms:
        return row
    if len(total.terms) == 1:
        (monomial, count) = next(iter(total.terms.items()))
        return tuple(Number.of(number.terms.get(monomial, 0) / count) for number in row)
    inverse = total.inverse()
    return tuple(number * inverse for number in row)


def compare_with_float64(problem: Problem, exact: Rows) -> Agreement:
    """Compute the same problem in float64 with `qkv.nn.attention` and compare the outputs."""
    import torch
    from torch import Tensor

    from qkv.nn.attention import attention

    def tensor(rows: Rows) -> Tensor:
        return torch.tensor([[float(cell) for cell in row] for row in to_decimals(rows)], dtype=torch.float64)

    inputs = problem.inputs
    if inputs is not None:
        x = tensor(inputs)
        q, k, v = (x if weight is None else x @ tensor(weight) for weight in problem.projections)
    else:
        q, k, v = (tensor(rows) for rows in problem.project())
    split = [m.unflatten(-1, (problem.heads, -1)).transpose(0, 1)[None] for m in (q, k, v)]
    mask = None if problem.mask is None else torch.tensor(problem.mask)
    scale = float(problem.scale.decimal)
    output = attention(*split, mask=mask, scale=scale)[0].transpose(0, 1).flatten(1)
    growth = 1.0  # of the values by W_O
    if problem.wo is not None:
        output = output @ tensor(problem.wo)
        growth = float(tensor(problem.wo).abs().sum(0).max())
    difference = float((output - tensor(exact)).abs().max())
    # float64 rounds a score s by about s·ε, which changes a weight by that share of itself
    largest = float((q.abs() @ k.abs().T).max()) * abs(scale)
    spread = float(v.abs().max()) * growth
    return Agreement(difference, max(TOLERANCE, 8 * float_info.epsilon * (largest + len(k)) * spread))
