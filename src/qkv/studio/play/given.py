"""What the playground is asked: matrices as text cells, and the settings around them, all bounded in size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from qkv.studio.play.cells import BadCell, BadCellsError, Texts, bad_cells, scaled, texts

TOKENS, WIDTH, HEADS = 64, 16, 8
NAME = 40  # characters of a token's name
TITLE = 200
FORMS = {"x": ("x", "wq", "wk", "wv"), "qkv": ("q", "k", "v")}
MASKS = ("none", "causal", "window", "own")
HARD = "hard"


@dataclass(frozen=True)
class Given:
    """One attention to be shown. beta: "" for 1/√d, "hard" for all weight on the best key, or a number's text.

    allowed: rows of "101", for the mask of one's own. scales: what multiplies each key. query, head: whose weights
    are told of.
    """

    form: Literal["x", "qkv"]
    matrices: tuple[tuple[str, Texts], ...]
    heads: int
    beta: str
    mask: str
    window: tuple[int, int]
    allowed: tuple[str, ...]
    scales: tuple[str, ...]
    sinusoidal: bool
    names: tuple[str, ...]
    query_names: tuple[str, ...]
    query: int
    head: int
    title: str

    def matrix(self, name: str) -> Texts | None:
        """A matrix by its name; the keys already with their scales."""
        found = dict(self.matrices).get(name)
        if found is None or name != "k" or not self.scales:
            return found
        return tuple(tuple(scaled(cell, by) for cell in row) for row, by in zip(found, self.scales, strict=True))

    @property
    def hard(self) -> bool:
        return self.beta == HARD

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

    def query_name(self, place: int) -> str:
        names = self.names if self.form == "x" else self.query_names
        return _said(names, place, "token" if self.form == "x" else "query")

    def key_name(self, place: int) -> str:
        return _said(self.names, place, "token" if self.form == "x" else "key")


def _said(names: tuple[str, ...], place: int, kind: str) -> str:
    name = names[place].strip() if place < len(names) else ""
    return f"“{name}”" if name else f"{kind} {place + 1}"


def read_given(asked: dict[str, Any]) -> Given:
    """What a request asks; ValueError where it does not fit, BadCellsError where cells cannot be read."""
    form = asked.get("form", "x")
    if form not in FORMS:
        raise ValueError(f"form: expected x or qkv, got {form!r}")
    wanted = [*FORMS[form], *(["wo"] if asked.get("wo") is not None else [])]
    matrices = tuple((name, texts(asked[name], name, TOKENS, WIDTH)) for name in wanted)
    given = Given(
        form=form,
        matrices=matrices,
        heads=_count(asked.get("heads", 1), "heads", 1, HEADS),
        beta=_words(asked.get("beta", ""), "beta", 80).strip(),
        mask=_one_of(asked.get("mask", "none"), "mask", MASKS),
        window=(_count(asked.get("left", 1), "left", 0, TOKENS), _count(asked.get("right", 0), "right", 0, TOKENS)),
        allowed=tuple(_words(row, "allowed", TOKENS) for row in _list(asked.get("allowed"), "allowed")),
        scales=_scales(asked.get("scales"), form),
        sinusoidal=asked.get("positions", "") == "sinusoidal",
        names=tuple(_words(name, "names", NAME) for name in _list(asked.get("names"), "names")),
        query_names=tuple(_words(name, "queryNames", NAME) for name in _list(asked.get("queryNames"), "queryNames")),
        query=_count(asked.get("query", 0), "query", 0, TOKENS),
        head=_count(asked.get("head", 0), "head", 0, HEADS),
        title=_words(asked.get("title", ""), "title", TITLE),
    )
    _check_cells(given)
    _check_shapes(given)
    return given


def _check_cells(given: Given) -> None:
    bad = [cell for name, matrix in given.matrices for cell in bad_cells(name, matrix)]
    bad += bad_cells("scales", [given.scales])
    if given.beta and not given.hard:
        bad += [BadCell("beta", 0, 0, cell.sentence) for cell in bad_cells("beta", [[given.beta]])]
    if not bad and given.form == "qkv" and given.scales:
        if len(given.scales) != given.keys:
            raise ValueError(f"scales: one for each of the {given.keys} keys; got {len(given.scales)}")
        bad += bad_cells("k", given.matrix("k") or [])
    if bad:
        raise BadCellsError(bad)


def _check_shapes(given: Given) -> None:
    shapes = {name: (len(matrix), len(matrix[0])) for name, matrix in given.matrices}
    if given.form == "x":
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
        if width % given.heads:
            raise ValueError(f"{given.heads} heads do not divide the width {width} of the {kind}")
    if "wo" in shapes and shapes["wo"][0] != v:
        raise ValueError(f"the values are {v} wide, so wo needs {v} rows; it has {shapes['wo'][0]}")
    if given.mask == "own":
        right = len(given.allowed) == given.queries and all(
            len(row) == given.keys and set(row) <= {"0", "1"} for row in given.allowed
        )
        if not right:
            raise ValueError(f"allowed: expected {given.queries} rows of {given.keys} signs, each 1 (may attend) or 0")


def _scales(given: Any, form: str) -> tuple[str, ...]:
    scales = tuple(_words(by, "scales", 80).strip() for by in _list(given, "scales"))
    return scales if form == "qkv" and any(by != "1" for by in scales) else ()


def _count(given: Any, name: str, least: int, most: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise ValueError(f"{name}: expected a whole number from {least} to {most}, got {given!r:.40}")
    return given


def _words(given: Any, name: str, longest: int) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{name}: expected text, got {type(given).__name__}")
    if len(given) > longest:
        raise ValueError(f"{name}: at most {longest} characters, got {len(given)}")
    return given


def _list(given: Any, name: str) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > TOKENS:
        raise ValueError(f"{name}: expected a list of at most {TOKENS}")
    return given


def _one_of(given: Any, name: str, options: tuple[str, ...]) -> str:
    if given not in options:
        raise ValueError(f"{name}: expected one of {', '.join(options)}, got {given!r:.40}")
    return given
