"""The studio as a person meets it: how soon the page is there, how soon a slider shows, how much is sent.

The command itself is started (`qkv studio --json`) and a real chromium is let in; what cannot be measured says why.
"""

import contextlib
import gzip
import importlib.resources
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from qkv.bench.measure import Note, Timing
from qkv.bench.result import Column, Result, Table, Value

TOKENS, WIDTH = 64, 8
WARM = 20  # moves before those that count: the browser compiles what is called often
PAINT, SLIDE, SIZE = 1000.0, 50.0, 500.0  # what is aimed at: ms, ms, kB
PATIENCE = 60_000  # ms
PICTURE = '[data-testid="weights"]'
SLIDER = 'input[type="range"][aria-label="β, the inverse temperature"]'
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# the first picture of weights, and the moments at which new ones stand on the screen
WATCH = """
window.qkvShown = [];
new MutationObserver(() => {
  const now = document.querySelector('[data-testid="weights"][data-shown]')?.dataset.shown;
  if (now === undefined || now === window.qkvLast) return;
  window.qkvLast = now;
  requestAnimationFrame(() => setTimeout(() => window.qkvShown.push(performance.now())));  // once it is painted
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-shown"] });
"""
MOVE = """
([selector, place]) => {
  const slider = document.querySelector(selector);
  const [least, most] = [Number(slider.min), Number(slider.max)];
  const before = window.qkvShown.length;
  slider.value = String(least + place * (most - least));
  const began = performance.now();
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  return new Promise((resolve) => {
    const look = () => {
      if (window.qkvShown.length > before) resolve(window.qkvShown[before] - began);
      else if (performance.now() - began > 5000) resolve(null);
      else setTimeout(look, 1);
    };
    look();
  });
}
"""


@dataclass(frozen=True)
class Measured:
    """One row: what, its times in ms, and what is aimed at."""

    what: str
    milliseconds: tuple[float, ...]
    aim: float

    def row(self) -> tuple[Value, ...]:
        timing = Timing(self.what, self.milliseconds)
        low, high = timing.quartiles
        return (self.what, len(self.milliseconds), timing.median, f"{low:.1f}–{high:.1f}", self.aim)


def run(quick: bool, note: Note) -> Result:
    """The benchmark."""
    note("sizes")
    tables, notes = [sizes_table(sizes())], []
    note("a browser")
    found, skipped = in_browser(3 if quick else 9, 10 if quick else 40, note)
    if found:
        columns = (
            Column("what"),
            Column("rounds"),
            Column("median", "ms", 1),
            Column("quartiles", "ms"),
            Column("aim, below", "ms", 0),
        )
        tables.insert(0, Table("What a person waits for", columns, tuple(each.row() for each in found)))
    notes += [f"Not measured: {why}." for why in skipped]
    about = (
        "The page of `qkv studio` in headless chromium on the same machine. First paint: from the request for it, "
        "with nothing cached, to the first content on the screen. A slider: from the moment β is moved to the new "
        f"picture of {TOKENS} × {TOKENS} weights on the screen, the server's work included, after "
        f"{WARM} moves that do not count."
    )
    return Result("studio", about, tuple(tables), notes=tuple(notes))


def sizes(page: Path | None = None) -> dict[str, tuple[int, int]]:
    """The files of the page: bytes as they are, and gzipped."""
    home = Path(str(importlib.resources.files("qkv"))) / "studio" / "page" if page is None else page
    files = sorted(path for path in home.rglob("*") if path.is_file())
    contents = {path.relative_to(home).as_posix(): path.read_bytes() for path in files}
    return {name: (len(data), len(gzip.compress(data, 9, mtime=0))) for name, data in contents.items()}


def sizes_table(found: dict[str, tuple[int, int]]) -> Table:
    total = tuple(sum(size[i] for size in found.values()) for i in (0, 1))
    rows = [(name, size / 1e3, packed / 1e3, None) for name, (size, packed) in found.items()]
    columns = (Column("file"), Column("size", "kB", 1), Column("gzipped", "kB", 1), Column("aim, below", "kB", 0))
    return Table("What the page is made of", columns, (*rows, ("all of it", total[0] / 1e3, total[1] / 1e3, SIZE)))


def in_browser(visits: int, moves: int, note: Note) -> tuple[list[Measured], list[str]]:
    """What was measured in a browser, and why the rest was not."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return [], ["first paint and the slider, because playwright is not installed"]
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        return [], ["first paint and the slider, because there is no chromium"]
    with serving() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            return _visited(browser, place, visits, moves, note)
        finally:
            browser.close()


@contextlib.contextmanager
def serving() -> Iterator[dict[str, str]]:
    """The studio as its command opens it: its address, and the file that lets a browser in."""
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "qkv", "studio", "--json", "--runs", runs]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            try:
                told = ""
                while not told.endswith("}\n"):
                    line = process.stdout.readline()
                    if not line:
                        raise ValueError("qkv studio did not begin; `qkv studio` says why")
                    told += line
                yield json.loads(told)
            finally:
                process.terminate()


def _visited(
    browser: Any, place: dict[str, str], visits: int, moves: int, note: Note
) -> tuple[list[Measured], list[str]]:
    painted, drawn, skipped = [], [], []
    for number in range(visits + 1):  # the first visit warms the server up
        note(f"visit {number} of {visits}")
        with _entered(browser, place) as page:
            if number:
                painted.append(_painted(page))
                drawn += page.evaluate("window.qkvShown.slice(0, 1)")
    found = [Measured("first paint", tuple(painted), PAINT)]
    if drawn:
        found.append(Measured("first picture of weights", tuple(drawn), PAINT))
    with _entered(browser, place) as page:
        note("moving the slider")
        page.goto(f"{place['address']}/#/playground?{link()}")
        page.reload()
        times, why = slid(page, moves)
    if times:
        found.append(Measured(f"a slider, {TOKENS} tokens", tuple(times), SLIDE))
    else:
        skipped.append(f"the slider, because {why}")
    return found, skipped


@contextlib.contextmanager
def _entered(browser: Any, place: dict[str, str]) -> Iterator[Any]:
    """A page in a browser that has never seen the studio; it stands in the first room, drawn."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    try:
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(Path(place["open"]).as_uri())
        page.wait_for_url(f"{place['address']}/", timeout=PATIENCE)
        page.wait_for_selector("nav", timeout=PATIENCE)
        _settled(page, lambda: page.wait_for_function("window.qkvShown.length > 0", timeout=5000))
        yield page
    finally:
        context.close()


def _settled(page: Any, wait: Callable[[], object]) -> bool:
    """Whether what was waited for came; there is nothing to wait for without a picture."""
    from playwright.sync_api import TimeoutError as TooLateError

    if page.locator(PICTURE).count() == 0:
        page.wait_for_timeout(300)
    if page.locator(PICTURE).count() == 0:
        return False
    try:
        wait()
    except TooLateError:
        return False
    return True


def _painted(page: Any) -> float:
    """Milliseconds from the request for the page to its first content."""
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0", timeout=PATIENCE)
    return float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


def slid(page: Any, moves: int, patience: int = 10_000) -> tuple[list[float], str]:
    """Milliseconds from each move of the slider to its picture; or why there are none."""
    _settled(page, lambda: page.wait_for_function("window.qkvShown.length > 0", timeout=patience))
    if page.locator(SLIDER).count() == 0:
        return [], "the Playground has no slider of β"
    if page.locator(f"{PICTURE}[data-shown]").count() == 0:
        return [], "the Playground does not tell when its picture is drawn"
    places = [(7 * number % 41 + 1) / 43 for number in range(moves + WARM)]  # no two neighbours alike
    times = [page.evaluate(MOVE, [SLIDER, place]) for place in places][WARM:]
    seen = [float(time) for time in times if time is not None]
    return seen, "" if seen else "no new picture came when the slider was moved"


def link(tokens: int = TOKENS, width: int = WIDTH) -> str:
    """The Playground with this many random queries, keys and values, as its links say it."""
    chance = random.Random(0)

    def matrix() -> str:
        return ";".join(",".join(f"{chance.uniform(-1, 1):.1f}" for _ in range(width)) for _ in range(tokens))

    return urlencode({"form": "qkv", "q": matrix(), "k": matrix(), "v": matrix()})
