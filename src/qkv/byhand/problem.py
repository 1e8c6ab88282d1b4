"""What is to be worked: the matrices as given, read exactly, and checked to fit one another.

Inside, one token is one row. In the column convention every matrix is turned as it comes in, and again as it
is shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from qkv.byhand.matrices import add, multiply, shape_text, transpose
from qkv.byhand.number import Number, square_root
from qkv.byhand.positions import sinusoids
from qkv.byhand.reading import MatrixLike, Rows, cells_of, normal, read_matrix, read_number

Convention = Literal["rows", "columns"]
MATRICES = ("x", "wq", "wk", "wv", "wo", "q", "k", "v")
SETTINGS = ("title", "positions", "heads", "beta", "causal", "mask", "convention")


@dataclass(frozen=True)
class Problem:
    """One attention to be worked, one token a row; `convention` says how it was given and is to be shown."""

    title: str
    convention: Convention
    x: Rows | None
    positions: Rows | None
    projections: tuple[Rows | None, Rows | None, Rows | None]  # W_Q, W_K, W_V; None: the inputs themselves
    given: tuple[Rows, Rows, Rows] | None  # Q, K, V, where no inputs are
    wo: Rows | None
    heads: int
    beta: Number
    default_beta: bool
    allowed: tuple[tuple[bool, ...], ...] | None

    @property
    def inputs(self) -> Rows | None:
        """The inputs with their positions added."""
        return self.x if self.x is None or self.positions is None else add(self.x, self.positions)

    def projected(self) -> tuple[Rows, Rows, Rows]:
        """Q, K and V of all heads together."""
        if self.given is not None:
            return self.given
        inputs = self.inputs
        assert inputs is not None
        q, k, v = (inputs if weight is None else multiply(inputs, weight) for weight in self.projections)
        return q, k, v


def make_problem(settings: Mapping[str, Any]) -> Problem:
    """A problem from what a file, the command line or a caller gives; ValueError says what does not fit."""
    convention = settings.get("convention") or "rows"
    if convention not in ("rows", "columns"):
        raise ValueError(f"convention: expected rows or columns, got {convention!r}")
    matrices = {name: _matrix(settings.get(name), name, convention) for name in MATRICES}
    x, q, k, v = (matrices[name] for name in ("x", "q", "k", "v"))
    weights = (matrices["wq"], matrices["wk"], matrices["wv"])
    if x is None:
        if q is None or k is None or v is None:
            missing = [name for name, value in (("q", q), ("k", k), ("v", v)) if value is None]
            came = f"{', '.join(missing)} missing" if len(missing) < 3 else "neither came"
            raise ValueError(f"give inputs x (with wq, wk, wv) or all of q, k and v: {came}")
        if any(weight is not None for weight in weights) or settings.get("positions") is not None:
            raise ValueError("wq, wk, wv and positions act on inputs x: give x, or only q, k and v")
    elif any(matrix is not None for matrix in (q, k, v)):
        raise ValueError("x and q, k or v were both given: give inputs x with wq, wk, wv, or q, k and v, not both")
    positions = None if x is None else _positions(settings.get("positions"), x, convention)
    for name, weight in zip(("wq", "wk", "wv"), weights, strict=True):
        if x is not None and weight is not None and len(weight) != len(x[0]):
            raise ValueError(_do_not_multiply("x", x, name, weight, convention))
    problem = Problem(
        title=str(settings.get("title") or ""),
        convention=convention,
        x=x,
        positions=positions,
        projections=weights,
        given=None if x is not None or q is None or k is None or v is None else (q, k, v),
        wo=matrices["wo"],
        heads=_heads(settings.get("heads")),
        beta=Number.of(1),
        default_beta=settings.get("beta") is None,
        allowed=None,
    )
    return _finished(problem, settings)


def _finished(problem: Problem, settings: Mapping[str, Any]) -> Problem:
    """The same problem with what depends on the shapes of Q, K and V: beta, mask, heads."""
    q, k, v = _widths_fit(problem)
    beta = settings.get("beta")
    scale = square_root(Fraction(len(q[0]) // problem.heads)).inverse() if beta is None else read_number(beta, "beta")
    allowed = _allowed(settings.get("mask"), settings.get("causal"), len(q), len(k), problem.convention)
    wo = problem.wo
    if wo is not None and len(wo) != len(v[0]):
        raise ValueError(_do_not_multiply("the heads' outputs", v, "wo", wo, problem.convention))
    return replace(problem, beta=scale, allowed=allowed)


def _widths_fit(problem: Problem) -> tuple[Rows, Rows, Rows]:
    q, k, v = problem.projected()
    tall = problem.convention == "columns"
    if len(q[0]) != len(k[0]):
        lengths = f"q has {len(q[0])}, k has {len(k[0])}"
        raise ValueError(f"queries and keys need the same width to have dot products: {lengths} numbers a token")
    if len(k) != len(v):
        counts = f"k has {len(k)} {'columns' if tall else 'rows'}, v has {len(v)}"
        raise ValueError(f"every key needs its value: {counts}; give as many values as keys")
    for name, matrix in (("queries and keys", q), ("values", v)):
        if len(matrix[0]) % problem.heads:
            fits = [heads for heads in range(1, len(matrix[0]) + 1) if len(matrix[0]) % heads == 0]
            raise ValueError(
                f"heads={problem.heads} does not divide the width {len(matrix[0])} of the {name}; "
                f"heads that fit: {', '.join(map(str, fits))}"
            )
    return q, k, v


def _matrix(given: MatrixLike | None, name: str, convention: str) -> Rows | None:
    if given is None:
        return None
    rows = read_matrix(given, name)
    return transpose(rows) if convention == "columns" else rows


def _positions(given: Any, x: Rows, convention: str) -> Rows | None:
    if given is None or given == "none":
        return None
    if given == "sinusoidal":
        return sinusoids(len(x), len(x[0]))
    if isinstance(given, str) and given.strip().isalpha():
        raise ValueError(f"positions: expected sinusoidal or a matrix shaped as x, got {given!r}")
    rows = _matrix(given, "positions", convention)
    assert rows is not None
    if (len(rows), len(rows[0])) != (len(x), len(x[0])):
        shapes = [shape_text(m if convention == "rows" else transpose(m)) for m in (x, rows)]
        raise ValueError(f"positions are added to x, so both need one shape: x is {shapes[0]}, positions {shapes[1]}")
    return rows


def _heads(given: Any) -> int:
    text = "1" if given is None else normal(given)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"heads: expected a whole number from 1 up, got {text!r}")
    return int(text)


def _allowed(
    mask: MatrixLike | None, causal: Any, queries: int, keys: int, convention: str
) -> tuple[tuple[bool, ...], ...] | None:
    """True = may attend; causal: query i sees keys up to i + (keys − queries)."""
    if not isinstance(causal, bool | None):
        raise ValueError(f"causal: expected true or false, got {causal!r}")
    if mask is None:
        if not causal:
            return None
        rows = tuple((True,) * keys for _ in range(queries))
    else:
        rows = tuple(
            tuple(_flag(cell, i, j) for j, cell in enumerate(row, 1)) for i, row in enumerate(cells_of(mask, "mask"), 1)
        )
        rows = transpose(rows) if convention == "columns" else rows
        if (len(rows), len(rows[0])) != (queries, keys):
            fits = f"{queries}×{keys}" if convention == "rows" else f"{keys}×{queries}"
            came = shape_text(rows if convention == "rows" else transpose(rows))
            raise ValueError(f"mask needs the shape of the scores, {fits}: it is {came}")
    if causal:
        rows = tuple(
            tuple(flag and j <= i + keys - queries for j, flag in enumerate(row)) for i, row in enumerate(rows)
        )
    return rows


def _flag(cell: Any, i: int, j: int) -> bool:
    text = str(cell).strip().lower()
    if text not in ("0", "1", "true", "false"):
        raise ValueError(f"mask[{i},{j}]: expected 1 (may attend) or 0 (may not), got {text!r}")
    return text in ("1", "true")


def _do_not_multiply(left: str, left_rows: Rows, right: str, right_rows: Rows, convention: str) -> str:
    if convention == "columns":
        left, right, left_rows, right_rows = right, left, transpose(right_rows), transpose(left_rows)
    return (
        f"{left} ({shape_text(left_rows)}) and {right} ({shape_text(right_rows)}) do not multiply: "
        f"{right} needs {len(left_rows[0])} rows"
    )
