"""Fixtures: studios that run during a test, and browsers that are logged in."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from starlette.routing import Route

from qkv.studio import server as studio_server
from qkv.studio.server import OpenServer, Studio, open_server


@dataclass
class Visitor:
    """A page of the studio in a browser, with its console errors and requests to other hosts."""

    page: Any
    address: str
    errors: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)

    def go(self, place: str) -> Any:
        """Open a page: `playground`, or `claims?name=copy`."""
        self.page.goto(f"{self.address}/#/{place}")
        return self.page


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[..., OpenServer]]:
    """Starts studios: serving(runs=..., models=..., allow_code=...)."""
    with ExitStack() as ending:
        yield lambda **state: ending.enter_context(running(open_server(Studio(**{"runs": Path("no-runs"), **state}))))


@pytest.fixture(scope="module")
def place(serving: Callable[..., OpenServer]) -> OpenServer:
    """A studio with default options."""
    return serving()


@pytest.fixture(scope="module")
def serving_routes() -> Iterator[Callable[..., OpenServer]]:
    """Starts studios with only these routes: serving_routes(routes, studio=..., max_body=...)."""
    with ExitStack() as ending:

        def serve(routes: list[Route], studio: Studio | None = None, **options: Any) -> OpenServer:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(studio_server, "page_apis", lambda: [lambda studio: routes])
                opening = open_server(studio or Studio(runs=Path("no-runs")), **options)
                return ending.enter_context(running(opening))

        yield serve


@contextmanager
def running(opening: AbstractContextManager[OpenServer]) -> Iterator[OpenServer]:
    """A studio that answers in a thread."""
    with opening as place:
        thread = threading.Thread(target=place.run, daemon=True)
        thread.start()
        until = time.monotonic() + 120
        while not place.server.started and time.monotonic() < until:
            time.sleep(0.02)
        yield place
        place.stop()
        thread.join(60)


def pytest_sessionfinish() -> None:
    """Wait for requests that are still computed: their threads would crash the exit of the interpreter."""
    until = time.monotonic() + 20
    for thread in threading.enumerate():
        if thread.name.startswith("AnyIO worker thread"):
            thread.join(max(until - time.monotonic(), 0))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One chromium for the tests of a file; skips them where none is installed."""
    with chromium() as found:
        yield found


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[[OpenServer], Visitor]]:
    """Logs a browser into a studio; fails the test if the page logs an error or sends a request to another host."""
    visitors: list[Visitor] = []

    def log_in(place: OpenServer, **options: Any) -> Visitor:
        page = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options}).new_page()
        page.set_default_timeout(60_000)
        visitor = Visitor(page, place.address)
        visitors.append(visitor)
        page.on("console", lambda message: message.type == "error" and visitor.errors.append(message.text))
        page.on("pageerror", lambda error: visitor.errors.append(str(error)))
        page.on(
            "request",
            lambda request: _is_foreign(request.url, place.address) and visitor.foreign_requests.append(request.url),
        )
        page.goto(place.login.file.as_uri())
        page.wait_for_url(f"{place.address}/**")
        page.wait_for_selector("nav")
        return visitor

    yield log_in
    for visitor in visitors:
        visitor.page.context.close()
        assert visitor.errors == []
        assert visitor.foreign_requests == []


def _is_foreign(url: str, address: str) -> bool:
    return not url.startswith((address, "file:", "data:", "blob:", "about:"))


@pytest.fixture(scope="module")
def post() -> Callable[[OpenServer, str, Any], tuple[int, Any]]:
    """Sends a POST request like the page: post(server, path, body) returns the status and the JSON of the answer."""
    sessions: dict[str, str | None] = {}

    def send(place: OpenServer, path: str, body: Any) -> tuple[int, Any]:
        request = urllib.request.Request(place.address + path, json.dumps(body).encode(), {"Origin": place.address})
        if place.address not in sessions:
            sessions[place.address] = place.login.exchange(place.login._token)
        request.add_header("Cookie", f"qkv-{place.address.rpartition(':')[2]}={sessions[place.address]}")
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as problem:
            with problem:
                return problem.code, json.load(problem)

    return send
