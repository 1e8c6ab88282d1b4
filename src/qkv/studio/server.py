"""The studio's server: shared state, routes of all pages, static files, and the uvicorn server on 127.0.0.1."""

from __future__ import annotations

import contextlib
import mimetypes
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from qkv.studio.auth import LOGIN_PATH, MAX_BODY, Login, RequestGuard, cookie_name, explain_page
from qkv.studio.connections import Connections, allow_many_files
from qkv.studio.jobs import Job, Jobs, stream_events
from qkv.studio.responses import NotFoundError, get_route, json_response

HOST = "127.0.0.1"
MAX_PENDING = 128  # connections that may wait to be accepted
EVENTS_TYPE = "text/event-stream"
PAGE = Path(__file__).parent / "page"  # built from web/ by `make build-page`
LOGGED_IN = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
    '<link rel="icon" href="/icon.svg"><title>qkv</title>'  # without an icon, browsers request one that does not exist
)
TOKEN_USED = "this token was used already: open the login file again"


@dataclass
class Studio:
    """State that all pages share.

    runs: the folder with training runs. models: checkpoint folders named on the command line.
    allow_code: whether the Check page may import the user's own modules.
    on_stop: called when the server stops, for example to stop worker processes.
    """

    runs: Path = Path("runs")
    models: tuple[Path, ...] = ()
    allow_code: bool = False
    jobs: Jobs = field(default_factory=Jobs)
    on_stop: list[Callable[[], None]] = field(default_factory=list)

    def stop(self) -> None:
        """Cancel all jobs and stop the worker processes."""
        self.jobs.stop()
        for stop in self.on_stop:
            stop()


@dataclass(frozen=True)
class OpenServer:
    """A server that listens on its port and answers after `run` is called."""

    address: str
    login: Login
    server: uvicorn.Server
    sockets: list[socket.socket]

    def run(self) -> None:
        """Answer requests until interrupted."""
        self.server.run(sockets=self.sockets)

    def stop(self) -> None:
        """Ask the server to stop; may be called from another thread."""
        self.server.should_exit = True


@contextlib.contextmanager
def open_server(studio: Studio, port: int = 0, max_body: int = MAX_BODY) -> Iterator[OpenServer]:
    """Listen on 127.0.0.1 with a login file; both are gone afterwards.

    Args:
        port: 0 for any free port.
        max_body: bytes that a request body may have.
    """
    with contextlib.ExitStack() as stack:
        # IPPROTO_TCP: asyncio sets TCP_NODELAY only on sockets that name it; otherwise answers are 40 ms late
        listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen(MAX_PENDING)  # now, so that no other process can take the port before the server answers
        except OSError as problem:
            message = f"cannot listen on port {port} ({problem.strerror}); use --port 0 for a free port"
            raise ValueError(message) from None
        port = listener.getsockname()[1]
        login = Login(f"http://{HOST}:{port}")
        stack.callback(login.close)
        stack.callback(studio.stop)
        allow_many_files()
        connections = Connections()
        config = uvicorn.Config(
            make_app(studio, login, (f"{HOST}:{port}", f"localhost:{port}"), max_body, connections),
            http=connections.protocol(),
            log_level="error",  # a warning for each malformed request would let anybody fill the terminal
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # there is no proxy, so such headers are not trusted
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        yield OpenServer(login.address, login, _Server(config, studio), [listener])


class _Server(uvicorn.Server):
    """Stops jobs and their event streams first, so that no open stream delays the shutdown."""

    def __init__(self, config: uvicorn.Config, studio: Studio) -> None:
        super().__init__(config)
        self._studio = studio

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._studio.stop()
        await super().shutdown(sockets)


def make_app(
    studio: Studio,
    login: Login,
    hosts: tuple[str, ...],
    max_body: int = MAX_BODY,
    connections: Connections | None = None,
) -> ASGIApp:
    """The ASGI app: login, the API of each page, jobs and static files, behind the request guard."""
    routes: list[BaseRoute] = [Route(LOGIN_PATH, _login_endpoint(login, cookie_name(hosts)), methods=["POST"])]
    for make_routes in page_apis():
        routes += make_routes(studio)
    about = {"version": version("qkv"), "runs": str(studio.runs), "allow_code": studio.allow_code}
    routes += [
        get_route("/api/about", lambda request: about),
        *_job_routes(studio.jobs),
        Route("/{path:path}", _static_file, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={500: _internal_error})
    return RequestGuard(app, login, hosts, max_body, connections)


def page_apis() -> list[Callable[[Studio], list[BaseRoute]]]:
    """For each page, the function that makes its API routes."""
    from qkv.studio.api import PAGES

    return PAGES


def _internal_error(request: Request, problem: Exception) -> Response:
    return json_response({"error": f"{type(problem).__name__}: {problem}. This is a bug in qkv"}, 500)


def _login_endpoint(login: Login, cookie: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        body = (await request.body()).decode("utf-8", "replace")
        session = login.exchange(parse_qs(body).get("token", [""])[0])
        if session is None:
            return HTMLResponse(explain_page(TOKEN_USED), 403)
        # not a redirect: after one, a browser that comes from a file would not send a SameSite=Strict cookie
        answer = HTMLResponse(LOGGED_IN)
        answer.set_cookie(cookie, session, httponly=True, samesite="strict", path="/")
        return answer

    return endpoint


def _job_routes(jobs: Jobs) -> list[BaseRoute]:
    def find(request: Request) -> Job:
        job = jobs.get(request.path_params["job"])
        if job is None:
            raise NotFoundError("this job does not exist any more")
        return job

    def cancel(request: Request) -> Response:
        try:
            find(request).cancel.set()
        except NotFoundError as problem:
            return JSONResponse({"error": str(problem)}, 404)
        return JSONResponse({"cancelled": True})

    def events(request: Request) -> Response:
        try:
            job = find(request)
        except NotFoundError as problem:
            return JSONResponse({"error": str(problem)}, 404)
        if request.method == "HEAD":
            return Response(media_type=EVENTS_TYPE)
        last = request.headers.get("last-event-id", "0")
        after = int(last) if last.isascii() and last.isdigit() and len(last) < 12 else 0
        return StreamingResponse(stream_events(job, after), media_type=EVENTS_TYPE)

    return [
        get_route("/api/jobs/{job}", lambda request: find(request).to_json()),
        Route("/api/jobs/{job}", cancel, methods=["DELETE"]),
        Route("/api/jobs/{job}/events", events, methods=["GET"]),
    ]


async def _static_file(request: Request) -> Response:
    name = request.path_params["path"] or "index.html"
    files = {path.relative_to(PAGE).as_posix(): path for path in PAGE.rglob("*") if path.is_file()}
    path = files.get(name)  # only listed files can be requested
    if path is None:
        return JSONResponse({"error": "there is nothing at this address"}, 404)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(path.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})
