"""API of the Playground page: attention on a few numbers, exact solutions, derivations and problem files."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from qkv.studio.playground.attention import EXECUTOR, compute_attention, describe_weights
from qkv.studio.playground.exact import exact_solution, explain_cell, why_not_exact
from qkv.studio.playground.files import list_examples, open_file, save_file
from qkv.studio.playground.reproduce import reproduce
from qkv.studio.playground.request import BadCellsError, parse_request
from qkv.studio.responses import array_response, get_route, post_route
from qkv.studio.server import Studio


def routes(studio: Studio) -> list[BaseRoute]:
    """The routes. `numbers` answers while a slider moves; `exact` is requested when it rests."""
    return [
        get_route("/api/playground/examples", lambda request: list_examples()),
        post_route("/api/playground/numbers", numbers, EXECUTOR),
        post_route("/api/playground/exact", exact),
        post_route("/api/playground/derivation", derivation),
        post_route("/api/playground/file", lambda body: save_file(parse_request(body))),
        post_route("/api/playground/open", open_),
    ]


def numbers(body: dict[str, Any]) -> Response:
    """Every step in float64, as binary arrays; or the cells that cannot be parsed."""
    try:
        request = parse_request(body)
    except BadCellsError as problem:
        return array_response({"bad": [cell.to_json() for cell in problem.cells]}, {})
    steps = compute_attention(request)
    head = {"bad": [], "scale": steps.scale, "notice": describe_weights(request, steps)}
    return array_response(head, steps.arrays())


def exact(body: dict[str, Any]) -> dict[str, Any]:
    """The exact solution, or why there is none; and commands that give the same numbers."""
    request = parse_request(body)
    why = why_not_exact(request)
    return {"why": why, "solution": None if why else exact_solution(request), "reproduce": reproduce(request)}


def derivation(body: dict[str, Any]) -> dict[str, Any]:
    """How one number was computed: body has step, row and column."""
    request = parse_request(body)
    if why := why_not_exact(request):
        return {"name": "", "lines": [why], "sources": []}
    step, row, column = body["step"], body["row"], body["column"]
    if not isinstance(step, str) or not isinstance(row, int) or not isinstance(column, int):
        raise ValueError("expected a step (text), a row and a column (counted from 0)")
    return explain_cell(request, step, row, column)


def open_(body: dict[str, Any]) -> dict[str, Any]:
    """The state in a problem file, or what is wrong with the file."""
    try:
        return {"state": open_file(body["name"], body["text"]), "problem": ""}
    except ValueError as problem:
        return {"state": None, "problem": str(problem)}
