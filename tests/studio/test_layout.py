"""Layout of every page: nothing overflows, every control has a name and is reached by Tab; colors are readable."""

import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_runs_page import make_run

from qkv import byhand, interp
from qkv._html import STYLE
from qkv._workers import Worker
from qkv.bench.studio import SIZE_TARGET, measure_sizes

PAGES = {  # its link, and what is there when it is complete
    "playground": ("playground", ".playground[data-rested=true]"),
    "playground, exact": ("playground?example=two-heads", ".playground[data-rested=true]"),
    "playground, 64 tokens": ("playground?example=random-64", ".playground[data-rested=true]"),
    "claims": ("claims?name=copy", "figure img"),
    "models, an image": ("models?model=qkv:digits", "[data-testid=head] .letters"),
    "models, a text": ("models?model=qkv:shakespeare", "[data-testid=head] .letters"),
    "models, a recording": ("models?model=qkv:spoken-digits", "[data-testid=head] .letters"),
    "models, two": ("models?model=qkv:digits&beside=qkv:digits", "[data-testid=comparison] dl"),
    "runs": ("runs?show=vit-digits-1", "[data-testid=curves]"),
    "runs, two": ("runs?show=vit-digits-1,vit-digits-2", "tr[data-setting]"),
    "check": ("check?mutant=mask+after+the+softmax", "[data-testid=findings]"),
    "check, own": ("check?tab=own", "#check-target"),
}
AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8")
SHEET = (Path(__file__).parents[2] / "web/src/viewer/theme.css").read_text(encoding="utf-8")
COLORS = ("queries", "keys", "values", "output", "good", "maybe", "bad")


@pytest.fixture(scope="module")
def in_process() -> Iterator[None]:
    """Claims and checks run in this process: the tests of their pages use worker processes."""

    def request(self: Worker, request: dict[str, Any], **_: Any) -> Iterator[dict[str, Any]]:
        module, _, function = self.task.partition(":")
        messages: list[dict[str, Any]] = []
        getattr(importlib.import_module(module), function)(request, lambda **message: messages.append(message))
        yield from messages

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "request", request)
        patch.setattr(Worker, "start", lambda self: None)
        yield


@pytest.fixture(scope="module")
def place(serving, in_process, tmp_path_factory):
    home = tmp_path_factory.mktemp("home") / "runs"
    make_run(home / "vit-digits-1")
    make_run(home / "vit-digits-2", {"model.dim": 32}, seed=3, finished=False, lines=12)
    return serving(runs=home, allow_code=True)


@pytest.mark.parametrize("name", PAGES)
def test_page_has_no_overflow_and_every_control_is_named_and_reached_by_tab(place, visit, name):
    link, complete = PAGES[name]
    page = visit(place, viewport={"width": 1280, "height": 900}).go(link)
    page.set_default_timeout(180_000)
    page.wait_for_selector(complete)
    page.evaluate(AUDIT)
    if name == "playground, exact":
        page.get_by_role("button", name="exact").click()
    for width in (1600, 1280, 768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert _wait_for_no_problems(page) == [], width
    page.locator("nav a").first.focus()
    reached: dict[int, Any] = {}
    last = None
    for _ in range(400):
        page.keyboard.press("Tab")
        focused = page.evaluate("focused()")
        if focused is None or (focused["number"] in reached and focused["number"] != last):
            break  # all visited; a player has the focus several times, once per button
        last = focused["number"]
        reached[last] = focused
    assert [each["said"] for each in reached.values() if not each["ring"]] == []
    empty = {1, 2} if name == "check, own" else set()  # empty before a check
    sections = set(range(page.locator("main .page > section").count()))
    assert {each["section"] for each in reached.values()} >= sections - empty


def _wait_for_no_problems(page: Any, seconds: float = 20.0) -> list[str]:
    """The layout problems of the page, once elements that measure their own width are drawn again."""
    until = time.monotonic() + seconds
    while (problems := page.evaluate("audited()")) and time.monotonic() < until:
        page.wait_for_timeout(100)
    return problems


def tokens(style: str) -> list[dict[str, str]]:
    """The color variables of a style sheet, for each theme."""
    blocks = re.findall(r"\{([^{}]*--queries:[^{}]*)\}", style)
    return [dict(re.findall(r"--([a-z]+):\s*(#[0-9a-f]{3,6})", block)) for block in blocks]


def test_queries_keys_values_and_output_have_the_same_colors_everywhere():
    light, dark = tokens(SHEET)
    files = (Path(byhand.__file__).parent / "page.css", Path(interp.__file__).parent / "viewer/static/viewer.css")
    others = [tokens(style) for style in (STYLE, *(path.read_text(encoding="utf-8") for path in files))]
    assert all(len(found) >= 2 for found in others)
    for found in (block for blocks in others for block in blocks):
        shared = {name: found[name] for name in COLORS if name in found}
        assert shared in ({name: light[name] for name in shared}, {name: dark[name] for name in shared})


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colors_have_enough_contrast_and_are_distinct():
    for scheme in tokens(SHEET):
        for name in (*COLORS, "ink", "quiet"):
            for ground in ("paper", "card"):
                dark, light = sorted((luminance(scheme[name]), luminance(scheme[ground])))
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)
        assert len({scheme[name] for name in COLORS}) == len(COLORS)


def test_the_built_page_is_small_enough():
    assert sum(packed for _, packed in measure_sizes().values()) / 1e3 < SIZE_TARGET


def test_the_theme_is_remembered_and_an_unknown_page_says_so(place, visit):
    page = visit(place, color_scheme="light").go("nowhere")
    page.get_by_text("There is no page “nowhere”").wait_for()
    page.get_by_role("button", name="Switch to the dark theme").click()
    page.reload()
    page.wait_for_selector("nav")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
