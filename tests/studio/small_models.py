"""Tiny models whose tokens are markup, and reading the large map of the Models page."""

from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from qkv.studio.models.looks import LookStore

HOSTILE = "<img/src=x/onerror=document.title='owned'>"
WORDS = [HOSTILE, "the", "cat", "sat", "on", "mat", "{@html}", "<script>alert(1)</script>", "</pre>", "a"]
TEXT = f"the cat sat on the mat {HOSTILE} the cat"


def make_tokenizer() -> bytes:
    """A tokenizer of these words, as a file."""
    made = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="a"))
    made.pre_tokenizer = WhitespaceSplit()
    return made.to_str().encode()


def find_id(looks: LookStore, title: str) -> str:
    """The id of a model by its title."""
    return next(source.id for source in looks.models.sources() if source.title == title)


def cell_position(page: Any, query: int, key: int) -> dict[str, float]:
    """The position of a cell in the large map."""
    drawing = page.get_by_test_id("map")
    cell, left, top = (float(drawing.get_attribute(f"data-{name}")) for name in ("cell", "left", "top"))
    return {"x": left + (key + 0.5) * cell, "y": top + (query + 0.5) * cell}


def read_weight(page: Any, query: int, key: int) -> str:
    """Point at a cell of the large map and return the readout."""
    box, place = _wait_until_still(page), cell_position(page, query, key)
    page.mouse.move(box["x"] + place["x"], box["y"] + place["y"])
    return page.get_by_test_id("weight").inner_text()


def _wait_until_still(page: Any) -> dict[str, float]:
    """The box of the large map, once what is above it has stopped growing."""
    before, box = None, page.get_by_test_id("map").bounding_box()
    while box != before:
        page.wait_for_timeout(50)
        before, box = box, page.get_by_test_id("map").bounding_box()
    return box


def wait_for_head(page: Any, layer: int, head: int) -> None:
    """Wait until a head's map is shown."""
    page.wait_for_selector(f'[data-testid="map"][data-window^="{layer}.{head} "]')
