"""Attention worked exactly: projections, scores, scale, mask, exponentials, weights, output."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from qkv.byhand.compare import Agreement, compare_with_float64
from qkv.byhand.matrices import ZERO, Matrix, columns_of, each, multiply, side_by_side, stacked, transpose
from qkv.byhand.number import Number, exponential
from qkv.byhand.problem import Convention, Problem, make_problem
from qkv.byhand.reading import Cell, MatrixLike, Rows

Flags = tuple[tuple[bool, ...], ...]
STEPS = ("queries", "keys", "values", "scores", "scaled", "weights", "output")


@dataclass(frozen=True)
class Head:
    """One head's working, one token a row."""

    queries: Rows
    keys: Rows
    values: Rows
    scores: Rows
    scaled: Rows
    exponentials: Rows  # 0 where the mask forbids
    sums: tuple[Number, ...]  # of each query's exponentials
    weights: Rows
    output: Rows


@dataclass(frozen=True)
class Worked:
    """The whole working, turned as its convention wants it.

    With several heads `scores`, `scaled` and `weights` hold the heads' matrices one after another.
    """

    problem: Problem
    heads: tuple[Head, ...]
    joined: Rows  # the heads' outputs side by side, before W_O
    result: Rows
    agreement: Agreement
    unscaled: Matrix | None  # the output with β = 1, where the scale was 1/√d

    @cached_property
    def queries(self) -> Matrix:
        return self._shown(side_by_side([head.queries for head in self.heads]))

    @cached_property
    def keys(self) -> Matrix:
        return self._shown(side_by_side([head.keys for head in self.heads]))

    @cached_property
    def values(self) -> Matrix:
        return self._shown(side_by_side([head.values for head in self.heads]))

    @cached_property
    def scores(self) -> Matrix:
        return self._shown(stacked([head.scores for head in self.heads]))

    @cached_property
    def scaled(self) -> Matrix:
        return self._shown(stacked([head.scaled for head in self.heads]))

    @cached_property
    def weights(self) -> Matrix:
        return self._shown(stacked([head.weights for head in self.heads]))

    @cached_property
    def output(self) -> Matrix:
        return self._shown(self.result)

    def _shown(self, rows: Rows) -> Matrix:
        return Matrix(transpose(rows) if self.problem.convention == "columns" else rows)

    def as_dict(self) -> dict[str, object]:
        """The same fields, for JSON."""
        problem = self.problem
        allowed = problem.allowed
        shown = transpose(allowed) if allowed and problem.convention == "columns" else allowed
        return {
            "title": problem.title,
            "convention": problem.convention,
            "heads": problem.heads,
            "beta": Matrix(((problem.beta,),)).exact[0][0],
            "allowed": None if shown is None else [list(row) for row in shown],
            **{step: getattr(self, step).as_dict() for step in STEPS},
            "unscaled_output": None if self.unscaled is None else self.unscaled.as_dict(),
            "float64": {
                "difference": self.agreement.difference,
                "tolerance": self.agreement.tolerance,
                "agrees": self.agreement.agrees,
            },
        }


def work(
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
    beta: Cell | None = None,
    causal: bool = False,
    mask: MatrixLike | None = None,
    positions: MatrixLike | None = None,
    convention: Convention = "rows",
) -> Worked:
    """Attention worked in exact numbers: softmax(β Q Kᵀ) V, as on paper.

    Matrices are rows of numbers or text such as "1 -1; 0 1/2"; a missing W stands for the identity. Give x,
    or q, k and v. beta: 1/√d if not given, "1" for no scale. mask: 1 where a query may attend. positions:
    "sinusoidal" or a matrix, added to x. In the column convention tokens are columns: H = V softargmax(KᵀQ).

    >>> worked = work(q="1 0", k="1 0; 0 1", v="4; 8", beta="1")
    >>> worked.scores.exact, worked.weights.exact
    ([['1', '0']], [['e/(e+1)', '1/(e+1)']])
    >>> worked.output.exact, [[round(number, 4) for number in row] for row in worked.output.decimal]
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
        "beta": beta,
        "causal": causal,
        "mask": mask,
        "positions": positions,
        "convention": convention,
    }
    return work_problem(make_problem(settings))


def work_problem(problem: Problem) -> Worked:
    """The working of a problem, compared on the spot with the library's float64 attention."""
    heads, joined, result = _all_heads(problem, problem.beta)
    unscaled = None
    if problem.default_beta and problem.beta != Number.of(1):
        plain = _all_heads(problem, Number.of(1))[2]
        unscaled = Matrix(transpose(plain) if problem.convention == "columns" else plain)
    return Worked(problem, heads, joined, result, compare_with_float64(problem, result), unscaled)


def _all_heads(problem: Problem, beta: Number) -> tuple[tuple[Head, ...], Rows, Rows]:
    parts = [split(matrix, problem.heads) for matrix in problem.projected()]
    heads = tuple(work_head(q, k, v, beta, problem.allowed) for q, k, v in zip(*parts, strict=True))
    joined = side_by_side([head.output for head in heads])
    return heads, joined, joined if problem.wo is None else reduced(multiply(joined, problem.wo))


def split(rows: Rows, heads: int) -> list[Rows]:
    """The columns of each head."""
    width = len(rows[0]) // heads
    return [columns_of(rows, head * width, (head + 1) * width) for head in range(heads)]


def work_head(queries: Rows, keys: Rows, values: Rows, beta: Number, allowed: Flags | None) -> Head:
    """One head, step by step."""
    scores = multiply(queries, transpose(keys))
    scaled = each(scores, lambda score: beta * score)
    flags = allowed or tuple((True,) * len(keys) for _ in queries)
    exponentials = tuple(
        tuple(exponential(score) if flag else ZERO for score, flag in zip(*pair, strict=True))
        for pair in zip(scaled, flags, strict=True)
    )
    sums = tuple(sum(row, start=ZERO) for row in exponentials)
    weights = tuple(_shares(row, total) for row, total in zip(exponentials, sums, strict=True))
    return Head(queries, keys, values, scores, scaled, exponentials, sums, weights, reduced(multiply(weights, values)))


def reduced(rows: Rows) -> Rows:
    return each(rows, Number.reduced)


def _shares(row: tuple[Number, ...], total: Number) -> tuple[Number, ...]:
    """Each number's part of the total; all 0 where nothing is attended to, fractions where all are alike."""
    if not total.terms:
        return row
    if len(total.terms) == 1:
        (alike, count) = next(iter(total.terms.items()))
        return tuple(Number.of(number.terms.get(alike, 0) / count) for number in row)
    below = total.inverse()
    return tuple(number * below for number in row)
