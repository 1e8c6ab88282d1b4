"""A studio that is open while a test runs, and browsers that were let into it."""

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

from qkv.studio import app as studio_app
from qkv.studio.serve import Open, opened
from qkv.studio.state import Studio


@dataclass
class Visitor:
    """A page of the studio in a browser, and what it complained of or asked of the world."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)
    strayed: list[str] = field(default_factory=list)

    def go(self, place: str) -> Any:
        """Open a room: `playground`, or `claims?name=copying`."""
        self.page.goto(f"{self.address}/#/{place}")
        return self.page


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[..., Open]]:
    """Opens studios: serving(runs=…, models=…, allow_code=…)."""
    with ExitStack() as ending:
        yield lambda **state: ending.enter_context(running(opened(Studio(**{"runs": Path("no-runs"), **state}))))


@pytest.fixture(scope="module")
def place(serving: Callable[..., Open]) -> Open:
    """A studio as it comes."""
    return serving()


@pytest.fixture(scope="module")
def serving_rooms() -> Iterator[Callable[..., Open]]:
    """Opens studios with no rooms but these: serving_rooms(routes, studio=…, largest=…)."""
    with ExitStack() as ending:

        def serve(routes: list[Route], studio: Studio | None = None, **options: Any) -> Open:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(studio_app, "rooms", lambda: [lambda studio: routes])
                door = opened(studio or Studio(runs=Path("no-runs")), **options)
                return ending.enter_context(running(door))

        yield serve


@contextmanager
def running(door: AbstractContextManager[Open]) -> Iterator[Open]:
    """A studio that answers, in a thread of its own."""
    with door as place:
        thread = threading.Thread(target=place.run, daemon=True)
        thread.start()
        until = time.monotonic() + 30
        while not place.server.started and time.monotonic() < until:
            time.sleep(0.02)
        yield place
        place.stop()
        thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One chromium for the tests of a file; skipped where there is none."""
    with chromium() as found:
        yield found


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[[Open], Visitor]]:
    """Lets a browser into a studio; fails the test if the page complained or asked anything outside this machine."""
    visitors: list[Visitor] = []

    def enter(place: Open, **options: Any) -> Visitor:
        page = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options}).new_page()
        visitor = Visitor(page, place.address)
        visitors.append(visitor)
        page.on("console", lambda said: said.type == "error" and visitor.complaints.append(said.text))
        page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
        page.on("request", lambda asked: _outside(asked.url, place.address) and visitor.strayed.append(asked.url))
        page.goto(place.entry.file.as_uri())
        page.wait_for_url(f"{place.address}/**")
        page.wait_for_selector("nav")
        return visitor

    yield enter
    for visitor in visitors:
        visitor.page.context.close()
        assert visitor.complaints == []
        assert visitor.strayed == []


def _outside(url: str, address: str) -> bool:
    return not url.startswith((address, "file:", "data:", "blob:", "about:"))


@pytest.fixture(scope="module")
def post() -> Callable[[Open, str, Any], tuple[int, Any]]:
    """Asks a studio something as its page does: post(place, path, body) is the status and the JSON of the answer."""
    sessions: dict[str, str | None] = {}

    def send(place: Open, path: str, body: Any) -> tuple[int, Any]:
        request = urllib.request.Request(place.address + path, json.dumps(body).encode(), {"Origin": place.address})
        if place.address not in sessions:
            sessions[place.address] = place.entry.exchange(place.entry._token)
        request.add_header("Cookie", f"qkv-{place.address.rpartition(':')[2]}={sessions[place.address]}")
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as problem:
            with problem:
                return problem.code, json.load(problem)

    return send
