"""Tiny models whose tokens are markup, and reading the large map of the Models page."""

import time
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
    """Point at a cell of the large map and return the readout, once the page has stopped moving."""
    map_ = page.get_by_test_id("map")
    until = time.monotonic() + 60
    while True:
        map_.evaluate("each => each.scrollIntoView({ block: 'center' })")
        box, position = map_.bounding_box(), cell_position(page, query, key)
        page.mouse.move(box["x"] + position["x"], box["y"] + position["y"])
        page.wait_for_timeout(150)
        still = map_.bounding_box() == box and cell_position(page, query, key) == position
        if still or time.monotonic() > until:
            return page.get_by_test_id("weight").inner_text()


def wait_for_head(page: Any, layer: int, head: int) -> None:
    """Wait until a head's map is shown."""
    page.wait_for_selector(f'[data-testid="map"][data-window^="{layer}.{head} "]')
