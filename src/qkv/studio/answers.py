"""What a room answers with: JSON, or bytes with a JSON head; and how it reads what it is asked."""

from __future__ import annotations

import json
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

MAPS = "application/x-qkv-maps"


class UnknownError(LookupError):
    """Something was asked for that is not there."""


def maps(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Response:
    """Arrays as they are in memory, behind a JSON head that says where each stands.

    The length of the head (4 bytes, little-endian), the head, then the arrays, each on a multiple of 8 bytes.
    """
    placed, parts, place = {}, [], 0
    for name, array in arrays.items():
        kept = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        placed[name] = {"dtype": kept.dtype.name, "shape": list(kept.shape), "offset": place}
        filled = kept.tobytes() + bytes(-kept.nbytes % 8)
        parts.append(filled)
        place += len(filled)
    text = json.dumps({**head, "arrays": placed}, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return Response(struct.pack("<I", len(text)) + text + b"".join(parts), media_type=MAPS)


async def asked(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body."""
    try:
        found = json.loads(await request.body() or b"{}")
    except ValueError:
        raise ValueError("the request's body is not JSON") from None
    if not isinstance(found, dict):
        raise ValueError("the request's body is a JSON object")
    return found


def reading(path: str, answer: Callable[[Request], Any]) -> Route:
    """GET: `answer` runs in a thread and returns plain data or a response."""

    async def endpoint(request: Request) -> Response:
        return await _answered(lambda: _in_thread(answer, request))

    return Route(path, endpoint, methods=["GET"])


def asking(path: str, answer: Callable[[dict[str, Any]], Any], method: str = "POST") -> Route:
    """POST: `answer` gets the body's object with the path's parameters in it, runs in a thread, returns plain data."""

    async def endpoint(request: Request) -> Response:
        async def answered() -> Any:
            return await _in_thread(answer, {**await asked(request), **request.path_params})

        return await _answered(answered)

    return Route(path, endpoint, methods=[method])


async def _in_thread(answer: Callable[[Any], Any], what: Any) -> Any:
    # abandoned when the server ends: no answer is worth waiting for then
    return await to_thread.run_sync(answer, what, abandon_on_cancel=True)


async def _answered(answer: Callable[[], Awaitable[Any]]) -> Response:
    try:
        found = await answer()
    except UnknownError as problem:
        return JSONResponse({"error": str(problem)}, 404)
    except (ValueError, KeyError, TypeError) as problem:
        return JSONResponse({"error": _sentence(problem)}, 400)
    except OSError as problem:
        return JSONResponse({"error": _sentence(problem)}, 500)
    return found if isinstance(found, Response) else JSONResponse(found)


def _sentence(problem: Exception) -> str:
    if isinstance(problem, KeyError):
        return f"the request lacks {problem.args[0]!r}"
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    return str(problem)
