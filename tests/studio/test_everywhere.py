"""Every room, at the widths that people have: nothing runs out of its place, all of it is named and can be reached."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_runs_room import made

from qkv import byhand
from qkv import interp as look
from qkv._html import STYLE
from qkv.bench.studio import SIZE, sizes
from qkv.studio.jobs import Job
from qkv.studio.work.post import Post

ROOMS = {  # its link, and what is there when all of it is
    "playground": ("playground", ".playground[data-rested=true]"),
    "playground, exact": ("playground?example=two-heads", ".playground[data-rested=true]"),
    "playground, 64 tokens": ("playground?example=random-64", ".playground[data-rested=true]"),
    "claims": ("claims?name=copy", "figure img"),
    "models, a picture": ("models?model=qkv:digits", "[data-testid=head] .letters"),
    "models, a text": ("models?model=qkv:shakespeare", "[data-testid=head] .letters"),
    "models, a recording": ("models?model=qkv:spoken-digits", "[data-testid=head] .letters"),
    "models, two": ("models?model=qkv:digits&beside=qkv:digits", "[data-testid=comparison] dl"),
    "runs": ("runs?show=vit-digits-1", "[data-testid=curves]"),
    "runs, two": ("runs?show=vit-digits-1,vit-digits-2", "tr[data-setting]"),
    "check": ("check?mutant=mask+after+the+softmax", "[data-testid=findings]"),
    "check, own": ("check?tab=own", "#check-target"),
}
AUDIT = (Path(__file__).parent / "audit.js").read_text(encoding="utf-8")
SHEET = (Path(__file__).parents[2] / "web/src/style.css").read_text(encoding="utf-8")
COLOURS = ("queries", "keys", "values", "output", "good", "maybe", "bad")


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """Claims and checks are worked out in this process: their own rooms' tests have the processes."""

    def ask(self: Post, request: dict[str, Any], job: Job, **_: Any) -> Iterator[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        importlib.import_module(self.task).work(request, lambda **message: said.append(message))
        yield from said

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Post, "ask", ask)
        patch.setattr(Post, "start", lambda self: None)
        yield


@pytest.fixture(scope="module")
def place(serving, here, tmp_path_factory):
    home = tmp_path_factory.mktemp("home") / "runs"
    made(home / "vit-digits-1")
    made(home / "vit-digits-2", {"model.dim": 32}, seed=3, finished=False, lines=12)
    return serving(runs=home, allow_code=True)


@pytest.mark.parametrize("name", ROOMS)
def test_nothing_runs_out_of_its_place_and_everything_is_named_and_reached_by_tab(place, visit, name):
    link, there = ROOMS[name]
    page = visit(place, viewport={"width": 1280, "height": 900}).go(link)
    page.set_default_timeout(60_000)
    page.wait_for_selector(there)
    page.evaluate(AUDIT)
    if name == "playground, exact":
        page.get_by_role("button", name="exact").click()
    for width in (1600, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(60)  # what measures its own width draws once more
        assert page.evaluate("audited()") == [], width
    page.locator("nav a").first.focus()
    reached: dict[int, Any] = {}
    last = None
    for _ in range(400):
        page.keyboard.press("Tab")
        focused = page.evaluate("focused()")
        if focused is None or (focused["number"] in reached and focused["number"] != last):
            break  # around; a player has the focus several times, once for each of its own buttons
        last = focused["number"]
        reached[last] = focused
    assert [each["said"] for each in reached.values() if not each["ring"]] == []
    empty = {1, 2} if name == "check, own" else set()  # nothing is there before something was checked
    sections = set(range(page.locator("main .room > section").count()))
    assert {each["section"] for each in reached.values()} >= sections - empty


def tokens(style: str) -> list[dict[str, str]]:
    """The colours that a style sheet names, for each scheme."""
    blocks = re.findall(r"\{([^{}]*--queries:[^{}]*)\}", style)
    return [dict(re.findall(r"--([a-z]+):\s*(#[0-9a-f]{3,6})", block)) for block in blocks]


def test_queries_keys_values_and_output_have_one_colour_each_wherever_they_are_drawn():
    light, dark = tokens(SHEET)
    files = (Path(byhand.__file__).parent / "page.css", Path(look.__file__).parent / "page/page.css")
    others = [tokens(style) for style in (STYLE, *(path.read_text(encoding="utf-8") for path in files))]
    assert all(len(found) >= 2 for found in others)
    for found in (block for blocks in others for block in blocks):
        shared = {name: found[name] for name in COLOURS if name in found}
        assert shared in ({name: light[name] for name in shared}, {name: dark[name] for name in shared})


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_can_be_read_on_their_ground_and_none_says_two_things():
    for scheme in tokens(SHEET):
        for name in (*COLOURS, "ink", "quiet"):
            for ground in ("paper", "card"):
                dark, light = sorted((luminance(scheme[name]), luminance(scheme[ground])))
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)
        assert len({scheme[name] for name in COLOURS}) == len(COLOURS)


def test_the_page_is_within_its_size():
    assert sum(packed for _, packed in sizes().values()) / 1e3 < SIZE


def test_a_theme_that_was_chosen_stays_and_a_room_that_is_not_there_says_so(place, visit):
    page = visit(place, color_scheme="light").go("nowhere")
    page.get_by_text("There is no room “nowhere”").wait_for()
    page.get_by_role("button", name="Use the dark page").click()
    page.reload()
    page.wait_for_selector("nav")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
