"""A playground request: matrices of text cells and settings, parsed and checked; all sizes are bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

from qkv.byhand.numbers import Number, format_digits, is_readable, to_text
from qkv.byhand.parsing import parse_number

Texts = tuple[tuple[str, ...], ...]
MAX_TOKENS, MAX_WIDTH, MAX_HEADS = 64, 16, 8
MAX_NAME, MAX_TITLE, MAX_CELL = 40, 200, 80  # characters
LARGEST = Decimal(1_000_000)  # of a cell: its square is far from the end of float64
SMALLEST = Decimal("1e-30")
CACHED = 1 << 16  # cells
FORMS = {"x": ("x", "wq", "wk", "wv"), "qkv": ("q", "k", "v")}
MASKS = ("none", "causal", "window", "custom")
HARD = "hard"


@dataclass(frozen=True)
class PlaygroundRequest:
    """One attention to compute.

    scale: "" for 1/√d, "hard" for all weight on the best key, or the text of a number (β).
    mask_rows: rows of "101" for a custom mask. key_scales: a factor per key.
    query, head: which weights the notice describes.
    """

    form: Literal["x", "qkv"]
    matrices: tuple[tuple[str, Texts], ...]
    heads: int
    scale: str
    mask: str
    window: tuple[int, int]
    mask_rows: tuple[str, ...]
    key_scales: tuple[str, ...]
    sinusoidal: bool
    names: tuple[str, ...]
    query_names: tuple[str, ...]
    query: int
    head: int
    title: str

    def matrix(self, name: str) -> Texts | None:
        """A matrix by its name; keys are multiplied by their scales."""
        found = dict(self.matrices).get(name)
        if found is None or name != "k" or not self.key_scales:
            return found
        return tuple(
            tuple(scale_cell(cell, by) for cell in row) for row, by in zip(found, self.key_scales, strict=True)
        )

    @property
    def hard(self) -> bool:
        return self.scale == HARD

    @property
    def queries(self) -> int:
        return len(dict(self.matrices)["x" if self.form == "x" else "q"])

    @property
    def keys(self) -> int:
        return len(dict(self.matrices)["x" if self.form == "x" else "k"])

    @property
    def width(self) -> int:
        """Of a query, all heads together."""
        return len(dict(self.matrices)["wq" if self.form == "x" else "q"][0])

    def query_name(self, index: int) -> str:
        if self.form == "x":
            return _name(self.names, index, "token")
        return _name(self.query_names, index, "query")

    def key_name(self, index: int) -> str:
        return _name(self.names, index, "token" if self.form == "x" else "key")


@dataclass(frozen=True)
class BadCell:
    """A cell that cannot be parsed, counted from 0, and why."""

    matrix: str
    row: int
    column: int
    message: str

    def to_json(self) -> dict[str, Any]:
        return {"matrix": self.matrix, "row": self.row, "column": self.column, "message": self.message}


class BadCellsError(ValueError):
    """Some cells cannot be parsed; `cells` has all of them."""

    def __init__(self, cells: Iterable[BadCell]) -> None:
        self.cells = tuple(cells)
        super().__init__(self.cells[0].message)


def parse_request(body: dict[str, Any]) -> PlaygroundRequest:
    """The request in a JSON body; ValueError where it does not fit, BadCellsError where cells cannot be parsed."""
    form = body.get("form", "x")
    if form not in FORMS:
        raise ValueError(f"form: expected x or qkv, got {form!r}")
    names = [*FORMS[form], *(["wo"] if body.get("wo") is not None else [])]
    request = PlaygroundRequest(
        form=form,
        matrices=tuple((name, _parse_matrix(body[name], name)) for name in names),
        heads=_parse_integer(body.get("heads", 1), "heads", 1, MAX_HEADS),
        scale=_parse_text(body.get("scale", ""), "scale", MAX_CELL).strip(),
        mask=_parse_choice(body.get("mask", "none"), "mask", MASKS),
        window=(
            _parse_integer(body.get("left", 1), "left", 0, MAX_TOKENS),
            _parse_integer(body.get("right", 0), "right", 0, MAX_TOKENS),
        ),
        mask_rows=_parse_texts(body.get("mask_rows"), "mask_rows", MAX_TOKENS),
        key_scales=_parse_key_scales(body.get("key_scales"), form),
        sinusoidal=body.get("positions", "") == "sinusoidal",
        names=_parse_texts(body.get("names"), "names", MAX_NAME),
        query_names=_parse_texts(body.get("query_names"), "query_names", MAX_NAME),
        query=_parse_integer(body.get("query", 0), "query", 0, MAX_TOKENS),
        head=_parse_integer(body.get("head", 0), "head", 0, MAX_HEADS),
        title=_parse_text(body.get("title", ""), "title", MAX_TITLE),
    )
    _check_cells(request)
    _check_shapes(request)
    return request


@lru_cache(CACHED)
def parse_cell(text: str) -> Number:
    """The exact number in a cell.

    >>> to_text(parse_cell("1/2")), to_text(parse_cell("0.25"))
    ('1/2', '1/4')
    """
    if not text.strip():
        raise ValueError("the cell is empty: write a number such as 3, -1/2 or 0.25")
    if len(text) > MAX_CELL:
        raise ValueError(f"a cell may have at most {MAX_CELL} characters; this one has {len(text)}")
    try:
        number = parse_number(text)
    except RecursionError:
        raise ValueError("the cell has too many brackets: write the number itself") from None
    size = abs(number.decimal)
    if size > LARGEST or 0 < size < SMALLEST:
        raise ValueError(f"{text.strip()!r} is out of range: a cell is 0, or between 1e-30 and 1,000,000 in size")
    return number


@lru_cache(CACHED)
def cell_value(text: str) -> float:
    """The number in a cell as float64."""
    return float(parse_cell(text).decimal)


@lru_cache(CACHED)
def scale_cell(text: str, factor: str) -> str:
    """A cell times a factor, as text that parses to the same number.

    >>> scale_cell("1/2", "3"), scale_cell("√2", "1")
    ('3/2', '√2')
    """
    if factor == "1":
        return text
    number = parse_cell(text) * parse_cell(factor)
    return to_text(number) if is_readable(number) else format_digits(number.decimal, 17)


def find_bad_cells(name: str, matrix: Sequence[Sequence[str]]) -> list[BadCell]:
    """Every cell that cannot be parsed."""
    bad = []
    for i, row in enumerate(matrix):
        for j, cell in enumerate(row):
            try:
                cell_value(cell)
            except ValueError as problem:
                bad.append(BadCell(name, i, j, str(problem)))
    return bad


def _name(names: tuple[str, ...], index: int, kind: str) -> str:
    name = names[index].strip() if index < len(names) else ""
    return f"“{name}”" if name else f"{kind} {index + 1}"


def _check_cells(request: PlaygroundRequest) -> None:
    bad = [cell for name, matrix in request.matrices for cell in find_bad_cells(name, matrix)]
    bad += find_bad_cells("key_scales", [request.key_scales])
    if request.scale and not request.hard:
        bad += find_bad_cells("scale", [[request.scale]])
    if not bad and request.form == "qkv" and request.key_scales:
        if len(request.key_scales) != request.keys:
            raise ValueError(f"key_scales: expected one per key, {request.keys}; got {len(request.key_scales)}")
        bad += find_bad_cells("k", request.matrix("k") or [])
    if bad:
        raise BadCellsError(bad)


def _check_shapes(request: PlaygroundRequest) -> None:
    shapes = {name: (len(matrix), len(matrix[0])) for name, matrix in request.matrices}
    if request.form == "x":
        rows = shapes["x"][1]
        for name in ("wq", "wk", "wv"):
            if shapes[name][0] != rows:
                raise ValueError(f"x is {rows} wide, so {name} needs {rows} rows; it has {shapes[name][0]}")
        q, k, v = shapes["wq"][1], shapes["wk"][1], shapes["wv"][1]
    else:
        q, k, v = shapes["q"][1], shapes["k"][1], shapes["v"][1]
        if shapes["k"][0] != shapes["v"][0]:
            raise ValueError(f"every key needs its value: k has {shapes['k'][0]} rows, v has {shapes['v'][0]}")
    if q != k:
        raise ValueError(f"queries and keys need the same width to have dot products: {q} and {k}")
    for kind, width in (("queries and keys", q), ("values", v)):
        if width % request.heads:
            raise ValueError(f"{request.heads} heads do not divide the width {width} of the {kind}")
    if "wo" in shapes and shapes["wo"][0] != v:
        raise ValueError(f"the values are {v} wide, so wo needs {v} rows; it has {shapes['wo'][0]}")
    if request.mask == "custom":
        fits = len(request.mask_rows) == request.queries and all(
            len(row) == request.keys and set(row) <= {"0", "1"} for row in request.mask_rows
        )
        if not fits:
            raise ValueError(
                f"mask_rows: expected {request.queries} rows of {request.keys} digits, each 1 (may attend) or 0"
            )


def _parse_matrix(value: Any, name: str) -> Texts:
    """A matrix of text cells; numbers become text."""
    if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
        raise ValueError(f"{name}: expected rows of cells such as [['1', '1/2']], none of them empty")
    width = len(value[0])
    if any(len(row) != width for row in value):
        raise ValueError(f"{name} is ragged: every row needs as many cells as the first, {width}")
    if len(value) > MAX_TOKENS or width > MAX_WIDTH:
        raise ValueError(f"{name} is {len(value)}×{width}: the playground takes up to {MAX_TOKENS}×{MAX_WIDTH}")
    return tuple(tuple(_cell_text(cell, name) for cell in row) for row in value)


def _cell_text(cell: Any, name: str) -> str:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        raise ValueError(f"{name}: a cell is text or a number, got {type(cell).__name__}")
    return str(cell)[: 2 * MAX_CELL]  # longer than allowed either way: find_bad_cells reports it


def _parse_key_scales(value: Any, form: str) -> tuple[str, ...]:
    scales = tuple(by.strip() for by in _parse_texts(value, "key_scales", MAX_CELL))
    return scales if form == "qkv" and any(by != "1" for by in scales) else ()


def _parse_integer(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name}: expected a whole number from {least} to {most}, got {value!r:.40}")
    return value


def _parse_text(value: Any, name: str, longest: int) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected text, got {type(value).__name__}")
    if len(value) > longest:
        raise ValueError(f"{name}: at most {longest} characters, got {len(value)}")
    return value


def _parse_texts(value: Any, name: str, longest: int) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_TOKENS:
        raise ValueError(f"{name}: expected a list of at most {MAX_TOKENS}")
    return tuple(_parse_text(each, name, longest) for each in value)


def _parse_choice(value: Any, name: str, options: tuple[str, ...]) -> str:
    if value not in options:
        raise ValueError(f"{name}: expected one of {', '.join(options)}, got {value!r:.40}")
    return value
