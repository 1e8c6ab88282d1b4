"""Requests and responses of the API: routes whose handlers run in threads, JSON errors, and binary arrays."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

ARRAYS_TYPE = "application/x-qkv-arrays"


class NotFoundError(LookupError):
    """The request names something that does not exist; answered with 404."""


def get_route(path: str, handler: Callable[[Request], Any]) -> Route:
    """A GET route. `handler(request)` runs in a thread and returns JSON data or a Response."""

    async def endpoint(request: Request) -> Response:
        try:
            # abandoned when the server stops: a late answer must not delay it
            return _to_response(await to_thread.run_sync(handler, request, abandon_on_cancel=True))
        except ERRORS as problem:
            return _error_response(problem)

    return Route(path, endpoint, methods=["GET"])


def post_route(path: str, handler: Callable[[dict[str, Any]], Any], executor: Executor | None = None) -> Route:
    """A POST route. `handler(body)` gets the JSON object of the body, runs in a thread (of the executor, if one is
    given) and returns JSON data or a Response."""

    async def endpoint(request: Request) -> Response:
        try:
            body = await read_body(request)
            if executor is not None:
                return _to_response(await asyncio.get_running_loop().run_in_executor(executor, handler, body))
            return _to_response(await to_thread.run_sync(handler, body, abandon_on_cancel=True))
        except ERRORS as problem:
            return _error_response(problem)

    return Route(path, endpoint, methods=["POST"])


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body."""
    content = await request.body()
    try:
        body = json.loads(content or b"{}")
        if b"\\ud" in content.lower():
            json.dumps(body, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("the request body is not Unicode: it has half of a surrogate pair") from None
    except (ValueError, RecursionError):  # RecursionError: nested thousands deep
        raise ValueError("the request body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the request body must be a JSON object")
    return body


def json_response(content: Any, status: int = 200) -> Response:
    """JSON data; lone surrogates, from a request or a file name that is not UTF-8, are escaped."""
    try:
        return JSONResponse(content, status)
    except UnicodeEncodeError:
        return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


def array_response(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Response:
    """Arrays as raw bytes behind a JSON head that gives dtype, shape and offset of each.

    Layout: length of the head (4 bytes, little-endian), the head, then the arrays, each aligned to 8 bytes.
    """
    described, parts, offset = {}, [], 0
    for name, array in arrays.items():
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        described[name] = {"dtype": array.dtype.name, "shape": list(array.shape), "offset": offset}
        parts.append(array.tobytes() + bytes(-array.nbytes % 8))
        offset += len(parts[-1])
    text = json.dumps({**head, "arrays": described}, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return Response(struct.pack("<I", len(text)) + text + b"".join(parts), media_type=ARRAYS_TYPE)


ERRORS = (NotFoundError, ValueError, KeyError, TypeError, OSError)


def _to_response(result: Any) -> Response:
    return result if isinstance(result, Response) else json_response(result)


def _error_response(problem: Exception) -> Response:
    if isinstance(problem, NotFoundError):
        return json_response({"error": str(problem)}, 404)
    if isinstance(problem, KeyError):
        return json_response({"error": f"the request lacks {problem.args[0]!r}"}, 400)
    if isinstance(problem, OSError):
        reason = problem.strerror or str(problem)
        status = 400 if problem.errno is None else 500  # without a number, it is qkv that refuses a file
        return json_response({"error": f"{problem.filename}: {reason}" if problem.filename else reason}, status)
    return json_response({"error": str(problem)}, 400)
