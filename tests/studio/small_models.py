"""Tiny models whose tokens are markup, and what a test reads off the Models room."""

from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from qkv.studio.models.looks import Looks

HOSTILE = "<img/src=x/onerror=document.title='owned'>"
WORDS = [HOSTILE, "the", "cat", "sat", "on", "mat", "{@html}", "<script>alert(1)</script>", "</pre>", "a"]
TEXT = f"the cat sat on the mat {HOSTILE} the cat"


def reader() -> bytes:
    """A tokenizer of these words."""
    made = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="a"))
    made.pre_tokenizer = WhitespaceSplit()
    return made.to_str().encode()


def named(looks: Looks, title: str) -> str:
    """The id of a model by its title."""
    return next(source.id for source in looks.shelf.sources() if source.title == title)


def place_of(page: Any, query: int, key: int) -> dict[str, float]:
    """Where a cell of the large map stands in it."""
    drawing = page.get_by_test_id("map")
    cell, left, top = (float(drawing.get_attribute(f"data-{name}")) for name in ("cell", "left", "top"))
    return {"x": left + (key + 0.5) * cell, "y": top + (query + 0.5) * cell}


def at(page: Any, query: int, key: int) -> str:
    """The number that the page says of a cell of the large map."""
    box, place = _settled(page), place_of(page, query, key)
    page.mouse.move(box["x"] + place["x"], box["y"] + place["y"])
    return page.get_by_test_id("weight").inner_text()


def _settled(page: Any) -> dict[str, float]:
    """Where the large map stands, once what is above it has stopped growing."""
    before, box = None, page.get_by_test_id("map").bounding_box()
    while box != before:
        page.wait_for_timeout(50)
        before, box = box, page.get_by_test_id("map").bounding_box()
    return box


def shows(page: Any, layer: int, head: int) -> None:
    """Until a head's map is there."""
    page.wait_for_selector(f'[data-testid="map"][data-window^="{layer}.{head} "]')
