"""Examples and problem files of the playground: the state of the page from `qkv.byhand` settings, and back."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from qkv._config import to_toml
from qkv.byhand.examples import EXAMPLES
from qkv.byhand.files import MAX_BYTES, read_settings
from qkv.byhand.matrices import add, transpose
from qkv.byhand.numbers import to_text
from qkv.byhand.parsing import cell_text, parse_matrix, split_cells
from qkv.studio.playground.exact import BYHAND_SIZE, byhand_texts, why_not_exact
from qkv.studio.playground.request import FORMS, HARD, MAX_TOKENS, PlaygroundRequest, parse_request

FILE = "playground.toml"
RANDOM = "random-64"
EXTRA = "# playground: "  # a comment with settings that `qkv byhand` does not have


def list_examples() -> list[dict[str, Any]]:
    """Name and state of each example: those of `qkv byhand`, and a large random one."""
    examples = [{"name": name, "state": to_state(settings)} for name, settings in EXAMPLES.items()]
    return [*examples, {"name": RANDOM, "state": random_example()}]


def random_example(seed: int = 0) -> dict[str, Any]:
    """64 random tokens of width 4, with two coordinates for queries, keys and values."""
    dice = random.Random(seed)

    def matrix(rows: int, columns: int) -> list[list[str]]:
        return [[f"{dice.gauss(0, 1):.2f}" for _ in range(columns)] for _ in range(rows)]

    matrices = {"x": matrix(MAX_TOKENS, 4), "wq": matrix(4, 2), "wk": matrix(4, 2), "wv": matrix(4, 2)}
    return {**_empty_state("x"), **matrices, "title": "64 random tokens: too many for exact fractions"}


def to_state(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The page's state for the settings of a `qkv.byhand` problem, one token per row."""
    transposed = settings.get("convention") == "columns"

    def cells(name: str) -> list[list[str]] | None:
        value = settings.get(name)
        if value is None:
            return None
        rows = split_cells(value, name, max_size=MAX_TOKENS)
        return [[cell_text(cell) for cell in row] for row in (transpose(rows) if transposed else rows)]

    form = "qkv" if settings.get("x") is None else "x"
    state = {**_empty_state(form), "title": str(settings.get("title") or "")}
    state |= {name: rows for name in (*FORMS[form], "wo") if (rows := cells(name)) is not None}
    if form == "x":
        width = len(state["x"][0])
        for name in ("wq", "wk", "wv"):
            state.setdefault(name, _identity(width))
        state |= _positions_state(settings.get("positions"), state["x"], transposed)
    if settings.get("scale") is not None:
        state["scale"] = cell_text(settings["scale"])
    if settings.get("heads") is not None:
        heads = cell_text(settings["heads"])
        state["heads"] = int(heads) if heads.isdigit() else 0
    return state | _mask_state(cells("mask"), settings.get("causal"))


def save_file(request: PlaygroundRequest) -> dict[str, str]:
    """The problem as a TOML file that `qkv byhand` reads."""
    extra: dict[str, Any] = {"names": list(request.names), "query_names": list(request.query_names)}
    extra = {name: values for name, values in extra.items() if any(values)}
    if request.hard:
        extra["scale"] = HARD
    comment = f"{EXTRA}{json.dumps(extra)}\n" if extra else ""
    table = {**({"title": request.title} if request.title else {}), **byhand_texts(request)}
    usage = "" if why_not_exact(request, BYHAND_SIZE, BYHAND_SIZE) else f"# qkv byhand {FILE}\n"
    return {"name": FILE, "text": f"{usage}{comment}{to_toml(table)}"}


def open_file(name: str, text: str) -> dict[str, Any]:
    """The page's state for a problem file (TOML, JSON or CSV); ValueError says what is wrong with the file."""
    if not isinstance(name, str) or not isinstance(text, str):
        raise ValueError("a file must be sent as its name and its text")
    kind = PurePath(name).suffix.lower()
    if kind not in (".toml", ".json", ".csv"):
        raise ValueError(f"expected a file ending in .toml, .json or .csv, got {PurePath(name).name[:60]!r}")
    if len(text.encode()) > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES:,} bytes, too large for a playground problem")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{kind}"
        path.write_text(text, encoding="utf-8")
        state = to_state(read_settings(path))
    if missing := [matrix for matrix in FORMS[state["form"]] if matrix not in state]:
        raise ValueError(f"give inputs x (with wq, wk, wv) or all of q, k and v: {', '.join(missing)} missing")
    state |= _read_extra(text)
    parse_request(state)  # raises here if the page could not show it
    return state


def _empty_state(form: str) -> dict[str, Any]:
    return {"form": form, "title": "", "heads": 1, "scale": "", "mask": "none", "positions": ""}


def _identity(width: int) -> list[list[str]]:
    return [["1" if i == j else "0" for j in range(width)] for i in range(width)]


def _positions_state(value: Any, x: list[list[str]], transposed: bool) -> dict[str, Any]:
    """Sinusoidal positions stay a setting; a matrix of positions is added to x."""
    if value is None or value == "none":
        return {}
    if isinstance(value, str) and value.strip().isalpha():
        return {"positions": value}
    rows = parse_matrix(value, "positions")
    total = add(parse_matrix(x, "x"), transpose(rows) if transposed else rows)
    return {"x": [[to_text(number) for number in row] for row in total]}


def _mask_state(cells: list[list[str]] | None, causal: Any) -> dict[str, Any]:
    if cells is None:
        return {"mask": "causal"} if causal else {}
    rows = []
    for i, row in enumerate(cells):
        last = i + len(row) - len(cells) if causal else len(row)
        rows.append("".join("1" if j <= last and cell.lower() in ("1", "true") else "0" for j, cell in enumerate(row)))
    return {"mask": "custom", "mask_rows": rows}


def _read_extra(text: str) -> dict[str, Any]:
    for line in text.splitlines():
        if line.startswith(EXTRA):
            try:
                extra = json.loads(line[len(EXTRA) :])
            except ValueError:
                return {}
            return {name: extra[name] for name in ("names", "query_names", "scale") if name in extra}
    return {}
