"""The problem to solve: input matrices parsed exactly and checked to fit each other; sinusoidal positions.

Internally one token is one row. In the column convention every matrix is transposed on input and again on output.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from qkv.byhand.loss import Loss, read_loss
from qkv.byhand.matrices import add, multiply, shape_text, transpose
from qkv.byhand.numbers import CONTEXT, Number, named_number, square_root
from qkv.byhand.parsing import MatrixLike, Rows, cell_text, parse_matrix, parse_number, split_cells

Convention = Literal["rows", "columns"]
BoolRows = tuple[tuple[bool, ...], ...]
MATRICES = ("x", "wq", "wk", "wv", "wo", "q", "k", "v")
SETTINGS = ("title", "positions", "heads", "scale", "causal", "mask", "convention", "loss", "target", "upstream")
LABELS = ("student", "sheet")  # of an answer to a sheet; they change nothing


@dataclass(frozen=True)
class Problem:
    """One attention problem, one token per row; `convention` says how it was given and how results are shown."""

    title: str
    convention: Convention
    x: Rows | None
    positions: Rows | None
    projections: tuple[Rows | None, Rows | None, Rows | None]  # W_Q, W_K, W_V; None means the identity
    direct_qkv: tuple[Rows, Rows, Rows] | None  # Q, K, V when they are given instead of x
    wo: Rows | None
    heads: int
    scale: Number  # β
    default_scale: bool  # the scale is 1/√d because none was given
    mask: BoolRows | None  # True = may attend
    loss: Loss | None = None  # of the backward pass

    @cached_property
    def inputs(self) -> Rows | None:
        """x with the positions added."""
        return self.x if self.x is None or self.positions is None else add(self.x, self.positions)

    def project(self) -> tuple[Rows, Rows, Rows]:
        """Q, K and V of all heads together."""
        return self._projected

    @cached_property
    def _projected(self) -> tuple[Rows, Rows, Rows]:
        if self.direct_qkv is not None:
            return self.direct_qkv
        inputs = self.inputs
        assert inputs is not None
        q, k, v = (inputs if weight is None else multiply(inputs, weight) for weight in self.projections)
        return q, k, v


def make_problem(settings: Mapping[str, Any]) -> Problem:
    """A problem from the settings of a file, the command line or a caller; ValueError says what does not fit."""
    convention = settings.get("convention") or "rows"
    if convention not in ("rows", "columns"):
        raise ValueError(f"convention: expected rows or columns, got {convention!r}")
    matrices = {name: _parse_oriented(settings.get(name), name, convention) for name in MATRICES}
    _check_inputs(matrices, settings.get("positions"))
    x, q, k, v = (matrices[name] for name in ("x", "q", "k", "v"))
    weights = (matrices["wq"], matrices["wk"], matrices["wv"])
    for name, weight in zip(("wq", "wk", "wv"), weights, strict=True):
        if x is not None and weight is not None and len(weight) != len(x[0]):
            raise ValueError(_shape_error("x", x, name, weight, convention))
    problem = Problem(
        title=str(settings.get("title") or ""),
        convention=convention,
        x=x,
        positions=None if x is None else _read_positions(settings.get("positions"), x, convention),
        projections=weights,
        direct_qkv=None if x is not None or q is None or k is None or v is None else (q, k, v),
        wo=matrices["wo"],
        heads=_read_heads(settings.get("heads")),
        scale=Number.of(1),
        default_scale=settings.get("scale") is None,
        mask=None,
    )
    q, k, v = problem.project()
    _check_dims(problem, q, k, v)
    scale = settings.get("scale")
    return replace(
        problem,
        scale=square_root(len(q[0]) // problem.heads).inverse() if scale is None else parse_number(scale, "scale"),
        mask=_read_mask(settings.get("mask"), settings.get("causal"), len(q), len(k), convention),
        loss=read_loss(settings, len(q), len((problem.wo or v)[0]), convention),
    )


def _check_inputs(matrices: Mapping[str, Rows | None], positions: Any) -> None:
    """Either x (with its weights and positions) or all of q, k and v must be given."""
    missing = [name for name in ("q", "k", "v") if matrices[name] is None]
    if matrices["x"] is not None:
        if len(missing) < 3:
            raise ValueError("x and q, k or v were both given: give inputs x with wq, wk, wv, or q, k and v, not both")
        return
    if missing:
        got = f"{', '.join(missing)} missing" if len(missing) < 3 else "got neither"
        raise ValueError(f"give inputs x (with wq, wk, wv) or all of q, k and v: {got}")
    if positions is not None or any(matrices[name] is not None for name in ("wq", "wk", "wv")):
        raise ValueError("wq, wk, wv and positions apply to inputs x: give x, or only q, k and v")


def _check_dims(problem: Problem, q: Rows, k: Rows, v: Rows) -> None:
    if len(q[0]) != len(k[0]):
        dims = f"q has {len(q[0])}, k has {len(k[0])}"
        raise ValueError(f"queries and keys need the same dimension for dot products: {dims} numbers per token")
    if len(k) != len(v):
        counts = f"k has {len(k)} {'columns' if problem.convention == 'columns' else 'rows'}, v has {len(v)}"
        raise ValueError(f"every key needs its value: {counts}; give as many values as keys")
    for name, matrix in (("queries and keys", q), ("values", v)):
        dim = len(matrix[0])
        if dim % problem.heads:
            fits = [heads for heads in range(1, dim + 1) if dim % heads == 0]
            raise ValueError(
                f"heads={problem.heads} does not divide the dimension {dim} of the {name}; "
                f"heads that fit: {', '.join(map(str, fits))}"
            )
    if problem.wo is not None and len(problem.wo) != len(v[0]):
        raise ValueError(_shape_error("the heads' outputs", v, "wo", problem.wo, problem.convention))


def _parse_oriented(matrix: MatrixLike | None, name: str, convention: str) -> Rows | None:
    if matrix is None:
        return None
    rows = parse_matrix(matrix, name)
    return transpose(rows) if convention == "columns" else rows


def _read_positions(positions: Any, x: Rows, convention: str) -> Rows | None:
    if positions is None or positions == "none":
        return None
    if positions == "sinusoidal":
        return sinusoidal_positions(len(x), len(x[0]))
    if isinstance(positions, str) and positions.strip().isalpha():
        raise ValueError(f"positions: expected sinusoidal or a matrix shaped as x, got {positions!r}")
    rows = _parse_oriented(positions, "positions", convention)
    assert rows is not None
    if (len(rows), len(rows[0])) != (len(x), len(x[0])):
        shapes = [shape_text(m if convention == "rows" else transpose(m)) for m in (x, rows)]
        raise ValueError(
            f"positions are added to x, so both need the same shape: x is {shapes[0]}, positions {shapes[1]}"
        )
    return rows


def _read_heads(heads: Any) -> int:
    text = "1" if heads is None else cell_text(heads)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"heads: expected a whole number from 1 up, got {text!r}")
    return int(text)


def _read_mask(mask: MatrixLike | None, causal: Any, queries: int, keys: int, convention: str) -> BoolRows | None:
    """True = may attend; causal: query i sees keys up to i + (keys − queries)."""
    if not isinstance(causal, bool | None):
        raise ValueError(f"causal: expected true or false, got {causal!r}")
    if isinstance(mask, str) and mask.strip().lower() == "causal":
        mask, causal = None, True
    if mask is None and not causal:
        return None
    rows: BoolRows
    if mask is None:
        rows = tuple((True,) * keys for _ in range(queries))
    else:
        cells = enumerate(split_cells(mask, "mask"), 1)
        rows = tuple(tuple(_parse_flag(cell, i, j) for j, cell in enumerate(row, 1)) for i, row in cells)
        rows = transpose(rows) if convention == "columns" else rows
        if (len(rows), len(rows[0])) != (queries, keys):
            expected = f"{queries}×{keys}" if convention == "rows" else f"{keys}×{queries}"
            got = shape_text(rows if convention == "rows" else transpose(rows))
            raise ValueError(f"mask needs the shape of the scores, {expected}: it is {got}")
    if causal:
        last = keys - queries
        rows = tuple(tuple(flag and j <= i + last for j, flag in enumerate(row)) for i, row in enumerate(rows))
    return rows


def _parse_flag(cell: Any, i: int, j: int) -> bool:
    text = str(cell).strip().lower()
    if text not in ("0", "1", "true", "false"):
        raise ValueError(f"mask[{i},{j}]: expected 1 (may attend) or 0 (may not), got {text!r}")
    return text in ("1", "true")


def _shape_error(left: str, left_rows: Rows, right: str, right_rows: Rows, convention: str) -> str:
    if convention == "columns":
        left, right, left_rows, right_rows = right, left, transpose(right_rows), transpose(left_rows)
    return (
        f"{left} ({shape_text(left_rows)}) and {right} ({shape_text(right_rows)}) cannot be multiplied: "
        f"{right} needs {len(left_rows[0])} rows"
    )


def sinusoidal_positions(tokens: int, dim: int) -> Rows:
    """Sinusoidal position encodings in exact form: sin(p·10000^(−2i/c)) at feature 2i, the cosine at 2i + 1.

    >>> from qkv.byhand.matrices import Matrix
    >>> Matrix(sinusoidal_positions(2, 4)).exact[1]
    ['sin(1)', 'cos(1)', 'sin(1/100)', 'cos(1/100)']
    """
    return tuple(tuple(_position_feature(p, feature, dim) for feature in range(dim)) for p in range(tokens))


def _position_feature(position: int, feature: int, dim: int) -> Number:
    if position == 0:
        return Number.of(feature % 2)
    power = Fraction(2 * (feature // 2), dim)  # the angle is position / 10000^power
    with localcontext(CONTEXT):
        angle = position * Decimal(10000) ** (-Decimal(power.numerator) / power.denominator)
        value = sine(angle + (half_pi() if feature % 2 else 0))
    tens = 4 * power
    if tens.denominator == 1:
        text = latex = str(Fraction(position, 10 ** int(tens)))
    else:
        text, latex = f"{position}/10000^({power})", f"{position}/10000^{{{power}}}"
    name = "cos" if feature % 2 else "sin"
    return named_number(f"{name}({text})", rf"\{name}({latex})", value)


def sine(angle: Decimal) -> Decimal:
    """sin by its Taylor series; 30 extra digits cover the cancellation of angles up to 40."""
    with localcontext(CONTEXT) as context:
        context.prec += 30
        term = total = angle
        step = 1
        while abs(term) > Decimal("1e-85"):
            term *= -angle * angle / ((step + 1) * (step + 2))
            total += term
            step += 2
    return CONTEXT.plus(total)


def half_pi() -> Decimal:
    """π/2 by Machin's formula: π/4 = 4 arctan(1/5) − arctan(1/239)."""
    with localcontext(CONTEXT) as context:
        context.prec += 30
        return 2 * (4 * _arctan_of_inverse(5) - _arctan_of_inverse(239))


def _arctan_of_inverse(number: int) -> Decimal:
    power = total = Decimal(1) / number
    step = 1
    while abs(power) > Decimal("1e-88"):
        power /= -number * number
        step += 2
        total += power / step
    return total
