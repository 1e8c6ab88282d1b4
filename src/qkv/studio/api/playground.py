"""The Playground room: attention on a few numbers, every step of it, as they are changed."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from qkv.studio.answers import asking, maps, reading
from qkv.studio.state import Studio


def routes(studio: Studio) -> list[BaseRoute]:
    """What the playground room answers. The numbers come at once; the exact working when the hand rests."""
    return [
        reading("/api/playground/examples", lambda request: _examples()),
        asking("/api/playground/numbers", _numbers),
        asking("/api/playground/exact", _exact),
        asking("/api/playground/derivation", _derivation),
        asking("/api/playground/file", _file),
        asking("/api/playground/open", _open),
    ]


def _examples() -> list[dict[str, Any]]:
    from qkv.studio.play.examples import examples

    return examples()


def _numbers(asked: dict[str, Any]) -> Response:
    """Every step in float64, as bytes; or which cells cannot be read."""
    from qkv.studio.play.cells import BadCellsError
    from qkv.studio.play.given import read_given
    from qkv.studio.play.notice import notice
    from qkv.studio.play.numbers import numbers

    try:
        given = read_given(asked)
    except BadCellsError as problem:
        return maps({"bad": [cell.as_plain() for cell in problem.cells]}, {})
    found = numbers(given)
    return maps({"bad": [], "beta": found.beta, "notice": notice(given, found)}, found.arrays())


def _exact(asked: dict[str, Any]) -> dict[str, Any]:
    """The exact working, or why there is none; and how to have the same without the page."""
    from qkv.studio.play.given import read_given
    from qkv.studio.play.reproduce import reproduce
    from qkv.studio.play.working import exact_steps, too_large

    given = read_given(asked)
    why = too_large(given)
    return {"why": why, "working": None if why else exact_steps(given), "reproduce": reproduce(given)}


def _derivation(asked: dict[str, Any]) -> dict[str, Any]:
    from qkv.studio.play.given import read_given
    from qkv.studio.play.working import derivation, too_large

    given = read_given(asked)
    if why := too_large(given):
        return {"name": "", "lines": [why], "sources": []}
    step, row, column = asked["step"], asked["row"], asked["column"]
    if not isinstance(step, str) or not isinstance(row, int) or not isinstance(column, int):
        raise ValueError("a number is named by its step (text), its row and its column (counted from 0)")
    return derivation(given, step, row, column)


def _file(asked: dict[str, Any]) -> dict[str, str]:
    from qkv.studio.play.files import written
    from qkv.studio.play.given import read_given

    return written(read_given(asked))


def _open(asked: dict[str, Any]) -> dict[str, Any]:
    """A file's state, or the sentence that says why there is none: a wrong file is no wrong request."""
    from qkv.studio.play.files import opened

    try:
        return {"state": opened(asked["name"], asked["text"]), "problem": ""}
    except ValueError as problem:
        return {"state": None, "problem": str(problem)}
