"""Pages in a real browser, for tests: records network requests and console messages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qkv.bench.studio import CHROMIUM_ARGUMENTS


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless chromium; skips the test where none is installed."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("chromium is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM_ARGUMENTS))
        yield browser
        browser.close()


class OpenPage:
    """An exported attention page that has drawn itself."""

    def __init__(self, browser: Any, file: Path, *, dark: bool = False, address: str = "") -> None:
        scheme = "dark" if dark else "light"
        self.page = browser.new_page(viewport={"width": 1300, "height": 850}, color_scheme=scheme)
        self.page.set_default_timeout(60_000)
        self.requests: list[str] = []
        self.messages: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.goto(f"{file.as_uri()}{address}")
        self.page.wait_for_selector("body[data-ready]")
        self.page.wait_for_selector("[data-testid=map]")

    def text(self, testid: str) -> str:
        return self.page.get_by_test_id(testid).inner_text()

    def shows(self, testid: str, text: str) -> None:
        """Wait until an element contains a text."""
        self.page.get_by_test_id(testid).filter(has_text=text).wait_for()

    def shows_head(self, layer: int, head: int) -> None:
        """Wait until the large map is that of a head."""
        self.page.wait_for_selector(f'[data-testid=map][data-window^="{layer}.{head} "]')

    def cell(self) -> float:
        """The size of a cell of the large map, in pixels."""
        return float(self.page.get_by_test_id("map").get_attribute("data-cell"))

    def hover(self, query: int, key: int) -> str:
        """Point at one weight of the large map; the number in the tooltip."""
        data = self.page.get_by_test_id("map").evaluate("each => ({...each.dataset})")
        box = self.page.get_by_test_id("map").bounding_box()
        left, top, cell = (float(data[name]) for name in ("left", "top", "cell"))
        _, rows, columns = data["window"].split(" ")
        y, x = (int(side.split(",")[0]) for side in (rows, columns))
        self.page.mouse.move(box["x"] + left + (key + 0.5 - x) * cell, box["y"] + top + (query + 0.5 - y) * cell)
        return self.page.locator("[data-testid=tip] b").inner_text()

    def keys(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def check_offline(self, file: Path) -> None:
        """Only the file itself was requested, and the console is empty."""
        assert {request.split("#")[0] for request in self.requests} == {file.as_uri()}
        assert self.messages == []
