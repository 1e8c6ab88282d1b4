"""A person's numbers as written: 0.06 stands for anything that rounds to it, 3/2 for itself."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from qkv.byhand.chain import Numbers, Table
from qkv.byhand.matrices import transpose
from qkv.byhand.reading import LIMIT, Cell, MatrixLike, cells_of, normal, read_number

_WRITTEN = re.compile(r"[+-]?\d*\.(\d*)(?:[eE]([+-]?\d+))?|[+-]?\d+[eE]([+-]?\d+)")
_FORBIDDEN = re.compile(r"-(inf|infinity|∞|oo)", re.IGNORECASE)


@dataclass(frozen=True)
class Given:
    """One step as the person wrote it, one token a row."""

    step: str
    texts: Sequence[Sequence[str]]
    values: Table
    slack: Table  # half a unit of the last digit written
    turned: bool = False  # it came as rows for columns

    @property
    def numbers(self) -> Numbers:
        return Numbers(self.values, self.slack)

    @property
    def places(self) -> int:
        """Digits after the point in the coarsest number, as far as decimals were written."""
        coarsest = max(slack for row in self.slack for slack in row)
        return -coarsest.adjusted() - 1 if coarsest else 0


def read_given(step: str, given: MatrixLike, shape: tuple[int, int], columns: bool) -> Given:
    """Read a step whose table has this shape (one token a row)."""
    texts = [[_text(cell) for cell in row] for row in cells_of(given, step, LIMIT * LIMIT)]
    if columns:
        texts = [list(row) for row in transpose(texts)]
    came = (len(texts), len(texts[0]))
    turned = came != shape and came == (shape[1], shape[0])
    if came != shape and not turned:
        (a, b), (c, d) = ((x, y) if not columns else (y, x) for x, y in (shape, came))
        raise ValueError(f"{step}: expected {a}×{b} numbers, got {c}×{d}; give the whole matrix")
    if turned:
        texts = [list(row) for row in transpose(texts)]
    values = [[_value(text, f"{step}[{i},{j}]") for j, text in enumerate(row, 1)] for i, row in enumerate(texts, 1)]
    slack = [[_slack(text) for text in row] for row in texts]
    coarsest = max((s for row in slack for s in row if s is not None), default=Decimal(0))
    filled = [
        [coarsest if _is_whole(t) else s or Decimal(0) for s, t in zip(*pair, strict=True)]
        for pair in zip(slack, texts, strict=True)
    ]
    return Given(step, texts, values, filled, turned)


def is_forbidden(text: str) -> bool:
    """Whether −∞ was written, or a number that stands for it."""
    if _FORBIDDEN.fullmatch(text):
        return True
    return not text.startswith("≈") and read_number(text).decimal <= -10_000


def _text(cell: Cell) -> str:
    return normal(cell).removeprefix("≈").strip()


def _value(text: str, where: str) -> Decimal:
    return Decimal("-1e9") if _FORBIDDEN.fullmatch(text) else read_number(text, where).decimal


def _slack(text: str) -> Decimal | None:
    found = _WRITTEN.fullmatch(text)
    if not found:
        return None
    places, shift, whole_shift = found.groups()
    power = int(shift or whole_shift or 0) - len(places or "")
    return Decimal(5).scaleb(power - 1)


def _is_whole(text: str) -> bool:
    """A whole number among decimals, such as 0 for 0.00, is read at the rounding of its neighbours."""
    return re.fullmatch(r"[+-]?\d+", text) is not None
