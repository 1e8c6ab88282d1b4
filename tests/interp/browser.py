"""A page in a real browser, for tests: what it asked the network for and what it complained of are kept."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qkv.bench.studio import ARGUMENTS


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless chromium; the test is skipped where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no chromium to open pages in")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


class Opened:
    """A page that has drawn itself."""

    def __init__(self, browser: Any, file: Path, *, dark: bool = False, address: str = "") -> None:
        scheme = "dark" if dark else "light"
        self.page = browser.new_page(viewport={"width": 1300, "height": 850}, color_scheme=scheme)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(f"{file.as_uri()}{address}")
        self.ready()

    def ready(self) -> None:
        self.page.wait_for_selector("body[data-ready]", timeout=20_000)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def hover(self, query: int, key: int) -> str:
        """Point at one weight of the large map; the number that is shown there."""
        place = self.page.evaluate("({...document.getElementById('stage').dataset})")
        box = self.page.locator("#map").bounding_box()
        left, top, cell, x, y = (float(place[name]) for name in ("left", "top", "cell", "x", "y"))
        self.page.mouse.move(box["x"] + left + (key + 0.5 - x) * cell, box["y"] + top + (query + 0.5 - y) * cell)
        return self.text("#tip b")

    def keys(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def sound(self, file: Path) -> None:
        """Nothing but the file itself was asked for, and nothing was complained of."""
        assert {request.split("#")[0] for request in self.requests} == {file.as_uri()}
        assert self.complaints == []
