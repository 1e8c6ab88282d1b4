"""The application: the guard, the door, the page, the rooms."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from qkv.studio.answers import UnknownError, reading
from qkv.studio.entry import Entry
from qkv.studio.guard import ENTER, Guard, cookie_name
from qkv.studio.jobs import stream
from qkv.studio.state import Studio

EVENTS = "text/event-stream"
PAGE = Path(__file__).parent / "page"
ENTERED = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
    '<link rel="icon" href="/icon.svg"><title>qkv</title>'  # without one, browsers ask for an icon that is not there
)
REFUSED = "This way in was used already: open the file that qkv studio names once more."


def application(studio: Studio, entry: Entry, hosts: tuple[str, ...], largest: int | None = None) -> ASGIApp:
    """Everything behind the guard."""
    routes: list[BaseRoute] = [Route(ENTER, _enter(entry, cookie_name(hosts)), methods=["POST"])]
    for room in rooms():
        routes += room(studio)
    routes += [
        reading("/api/about", lambda request: studio.about()),
        *_jobs(studio),
        Route("/{path:path}", _file, methods=["GET"]),
    ]
    bound = {} if largest is None else {"largest": largest}
    return Guard(Starlette(routes=routes, exception_handlers={500: _failed}), entry, hosts, **bound)


def _failed(request: Request, problem: Exception) -> Response:
    """A bug: the page is told its kind; the terminal shows where it happened."""
    return JSONResponse({"error": f"{type(problem).__name__}: {problem}. This is a bug in qkv"}, 500)


def rooms() -> list[Callable[[Studio], list[BaseRoute]]]:
    """Each room's routes."""
    from qkv.studio.api import ROOMS

    return ROOMS


def _enter(entry: Entry, cookie: str):
    async def enter(request: Request) -> Response:
        body = (await request.body()).decode("utf-8", "replace")
        session = entry.exchange(parse_qs(body).get("token", [""])[0])
        if session is None:
            return PlainTextResponse(REFUSED, 403)
        # not a redirect: a browser that comes from a file would not send a strict cookie along with one
        answer = HTMLResponse(ENTERED)
        answer.set_cookie(cookie, session, httponly=True, samesite="strict", path="/")
        return answer

    return enter


def _jobs(studio: Studio) -> list[BaseRoute]:
    def found(request: Request):
        job = studio.jobs.get(request.path_params["job"])
        if job is None:
            raise UnknownError("there is no such work any more")
        return job

    def cancel(request: Request) -> Response:
        try:
            found(request).cancel.set()
        except UnknownError as problem:
            return JSONResponse({"error": str(problem)}, 404)
        return JSONResponse({"cancelled": True})

    def events(request: Request) -> Response:
        try:
            job = found(request)
        except UnknownError as problem:
            return JSONResponse({"error": str(problem)}, 404)
        if request.method == "HEAD":
            return Response(media_type=EVENTS)
        after = request.headers.get("last-event-id", "0")
        place = int(after) if after.isascii() and after.isdigit() and len(after) < 12 else 0
        return StreamingResponse(stream(job, place), media_type=EVENTS)

    return [
        reading("/api/jobs/{job}", lambda request: found(request).as_plain()),
        Route("/api/jobs/{job}", cancel, methods=["DELETE"]),
        Route("/api/jobs/{job}/events", events, methods=["GET"]),
    ]


def files() -> dict[str, Path]:
    """What the page is made of, by address: only what is listed here can be had."""
    return {path.relative_to(PAGE).as_posix(): path for path in sorted(PAGE.rglob("*")) if path.is_file()}


async def _file(request: Request) -> Response:
    name = request.path_params["path"] or "index.html"
    path = files().get(name)
    if path is None:
        return JSONResponse({"error": "there is nothing at this address"}, 404)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(path.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})
