"""Examples as the page holds them: matrices of text cells; those of `qkv.byhand`, and one that is large."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from qkv.byhand.examples import EXAMPLES
from qkv.byhand.matrices import add, transpose
from qkv.byhand.reading import cells_of, normal, read_matrix
from qkv.byhand.writing import plain
from qkv.studio.play.given import FORMS, TOKENS

MANY = "random-64"


def examples() -> list[dict[str, Any]]:
    """Name, title and state of each."""
    found = [{"name": name, "state": state_of(settings)} for name, settings in EXAMPLES.items()]
    return [*found, {"name": MANY, "state": many_tokens()}]


def many_tokens(seed: int = 0) -> dict[str, Any]:
    """64 random tokens of width 4, two coordinates for queries, keys and values; the same at every start."""
    dice = random.Random(seed)

    def matrix(rows: int, columns: int) -> list[list[str]]:
        return [[f"{dice.gauss(0, 1):.2f}" for _ in range(columns)] for _ in range(rows)]

    found = {"x": matrix(TOKENS, 4), "wq": matrix(4, 2), "wk": matrix(4, 2), "wv": matrix(4, 2)}
    return {**_blank("x"), **found, "title": "64 random tokens: more than exact fractions do quickly"}


def state_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The page's state for the settings of a `qkv.byhand` problem, one token a row."""
    turned = settings.get("convention") == "columns"

    def cells(name: str) -> list[list[str]] | None:
        given = settings.get(name)
        if given is None:
            return None
        rows = cells_of(given, name, limit=TOKENS)
        return [[normal(cell) for cell in row] for row in (transpose(rows) if turned else rows)]

    form = "qkv" if settings.get("x") is None else "x"
    state = {**_blank(form), "title": str(settings.get("title") or "")}
    state |= {name: found for name in (*FORMS[form], "wo") if (found := cells(name)) is not None}
    if form == "x":
        width = len(state["x"][0])
        for name in ("wq", "wk", "wv"):
            state.setdefault(name, identity(width))
        state |= _positions(settings.get("positions"), state["x"], turned)
    if settings.get("beta") is not None:
        state["beta"] = normal(settings["beta"])
    if settings.get("heads") is not None:
        state["heads"] = int(normal(settings["heads"])) if normal(settings["heads"]).isdigit() else 0
    return state | _mask(cells("mask"), settings.get("causal"))


def identity(width: int) -> list[list[str]]:
    """What a missing W stands for."""
    return [["1" if i == j else "0" for j in range(width)] for i in range(width)]


def _blank(form: str) -> dict[str, Any]:
    return {"form": form, "title": "", "heads": 1, "beta": "", "mask": "none", "positions": ""}


def _positions(given: Any, x: list[list[str]], turned: bool) -> dict[str, Any]:
    """Sinusoids stay a setting; a matrix of positions is added to x at once."""
    if given is None or given == "none":
        return {}
    if isinstance(given, str) and given.strip().isalpha():
        return {"positions": given}
    rows = read_matrix(given, "positions")
    together = add(read_matrix(x, "x"), transpose(rows) if turned else rows)
    return {"x": [[plain(number) for number in row] for row in together]}


def _mask(cells: list[list[str]] | None, causal: Any) -> dict[str, Any]:
    if cells is None:
        return {"mask": "causal"} if causal else {}
    rows = [
        ["0" if causal and j > i + len(row) - len(cells) else _sign(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(cells)
    ]
    return {"mask": "own", "allowed": ["".join(row) for row in rows]}


def _sign(cell: str) -> str:
    return "1" if cell.lower() in ("1", "true") else "0"
