"""Benchmark of the studio web app: first paint, slider latency and page size, in headless chromium.

The command itself is started (`qkv studio --json`). Whatever cannot be measured is noted with the reason.
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

from qkv.bench import OnNote
from qkv.bench.measure import Timing
from qkv.bench.report import BenchmarkResult, Column, Table, Value

TOKENS, DIM = 64, 8
WARMUP_MOVES = 20  # before those that count: the browser compiles code that is called often
PAINT_TARGET, SLIDER_TARGET, SIZE_TARGET = 1000.0, 50.0, 500.0  # ms, ms, kB
TIMEOUT = 60_000  # ms
MAP = '[data-testid="weights"]'
SLIDER = 'input[type="range"][aria-label="β, the inverse temperature"]'
CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# records the moments at which a new attention map is painted
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
class Latency:
    """One row: what was timed, its times in ms, and the target."""

    what: str
    milliseconds: tuple[float, ...]
    target: float

    def row(self) -> tuple[Value, ...]:
        timing = Timing(self.what, self.milliseconds)
        low, high = timing.quartiles
        return (self.what, len(self.milliseconds), timing.median, f"{low:.1f}–{high:.1f}", self.target)


def benchmark_studio(quick: bool, on_note: OnNote) -> BenchmarkResult:
    on_note("sizes")
    tables = [make_size_table(measure_sizes())]
    on_note("a browser")
    found, skipped = measure_in_browser(3 if quick else 9, 10 if quick else 40, on_note)
    if found:
        columns = (
            Column("what"),
            Column("rounds"),
            Column("median", "ms", 1),
            Column("quartiles", "ms"),
            Column("target, below", "ms", 0),
        )
        tables.insert(0, Table("Waiting times", columns, tuple(latency.row() for latency in found)))
    notes = tuple(f"Not measured: {reason}." for reason in skipped)
    about = (
        "The page of `qkv studio` in headless chromium on the same machine. First paint: from the request, with an "
        "empty cache, to the first content on the screen. Slider: from a move of the scale β to the new map of "
        f"{TOKENS} × {TOKENS} weights on the screen, including the server's work, after {WARMUP_MOVES} warm-up "
        "moves that are not measured."
    )
    return BenchmarkResult("studio", about, tuple(tables), notes=notes)


def measure_sizes(page: Path | None = None) -> dict[str, tuple[int, int]]:
    """The size of each file of the page in bytes, plain and gzipped."""
    home = Path(str(importlib.resources.files("qkv"))) / "studio" / "page" if page is None else page
    files = sorted(path for path in home.rglob("*") if path.is_file())
    contents = {path.relative_to(home).as_posix(): path.read_bytes() for path in files}
    return {name: (len(data), len(gzip.compress(data, 9, mtime=0))) for name, data in contents.items()}


def make_size_table(found: dict[str, tuple[int, int]]) -> Table:
    total = tuple(sum(size[i] for size in found.values()) for i in (0, 1))
    rows = [(name, size / 1e3, packed / 1e3, None) for name, (size, packed) in found.items()]
    columns = (Column("file"), Column("size", "kB", 1), Column("gzipped", "kB", 1), Column("target, below", "kB", 0))
    return Table("Size of the page", columns, (*rows, ("total", total[0] / 1e3, total[1] / 1e3, SIZE_TARGET)))


def measure_in_browser(visits: int, moves: int, on_note: OnNote) -> tuple[list[Latency], list[str]]:
    """The latencies measured in a browser, and the reasons why others were not."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return [], ["first paint and the slider, because playwright is not installed"]
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        return [], ["first paint and the slider, because there is no chromium"]
    with serve_studio() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(CHROMIUM_ARGUMENTS))
        try:
            return _visit_page(browser, server, visits, moves, on_note)
        finally:
            browser.close()


@contextlib.contextmanager
def serve_studio() -> Iterator[dict[str, str]]:
    """Start `qkv studio`; gives its address and the file that logs a browser in."""
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "qkv", "studio", "--json", "--runs", runs]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            try:
                output = ""
                while not output.endswith("}\n"):
                    line = process.stdout.readline()
                    if not line:
                        raise ValueError("qkv studio did not start; run `qkv studio` to see why")
                    output += line
                yield json.loads(output)
            finally:
                process.terminate()


def _visit_page(
    browser: Any, server: dict[str, str], visits: int, moves: int, on_note: OnNote
) -> tuple[list[Latency], list[str]]:
    paints, maps, skipped = [], [], []
    for number in range(visits + 1):  # the first visit warms up the server
        on_note(f"visit {number} of {visits}")
        with _open_page(browser, server) as page:
            if number:
                paints.append(_first_paint(page))
                maps += page.evaluate("window.qkvShown.slice(0, 1)")
    found = [Latency("first paint", tuple(paints), PAINT_TARGET)]
    if maps:
        found.append(Latency("first attention map", tuple(maps), PAINT_TARGET))
    with _open_page(browser, server) as page:
        on_note("moving the slider")
        page.goto(f"{server['address']}/#/playground?{playground_link()}")
        page.reload()
        times, reason = time_slider(page, moves)
    if times:
        found.append(Latency(f"slider, {TOKENS} tokens", tuple(times), SLIDER_TARGET))
    else:
        skipped.append(f"the slider, because {reason}")
    return found, skipped


@contextlib.contextmanager
def _open_page(browser: Any, server: dict[str, str]) -> Iterator[Any]:
    """The first page of the studio in a browser with an empty cache, fully drawn."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    try:
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(Path(server["open"]).as_uri())
        page.wait_for_url(f"{server['address']}/", timeout=TIMEOUT)
        page.wait_for_selector("nav", timeout=TIMEOUT)
        _wait_for_map(page, lambda: page.wait_for_function("window.qkvShown.length > 0", timeout=5000))
        yield page
    finally:
        context.close()


def _wait_for_map(page: Any, wait: Callable[[], object]) -> bool:
    """Whether the wait succeeded; False at once if the page has no attention map."""
    from playwright.sync_api import TimeoutError as BrowserTimeoutError

    if page.locator(MAP).count() == 0:
        page.wait_for_timeout(300)
    if page.locator(MAP).count() == 0:
        return False
    try:
        wait()
    except BrowserTimeoutError:
        return False
    return True


def _first_paint(page: Any) -> float:
    """Milliseconds from the request to the first content."""
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0", timeout=TIMEOUT)
    return float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


def time_slider(page: Any, moves: int, timeout: int = 10_000) -> tuple[list[float], str]:
    """Milliseconds from each move of the slider to the new map; or the reason why there are none."""
    _wait_for_map(page, lambda: page.wait_for_function("window.qkvShown.length > 0", timeout=timeout))
    if page.locator(SLIDER).count() == 0:
        return [], "the Playground has no slider for β"
    if page.locator(f"{MAP}[data-shown]").count() == 0:
        return [], "the Playground does not report when its map is drawn"
    places = [(7 * number % 41 + 1) / 43 for number in range(moves + WARMUP_MOVES)]  # no two in a row are equal
    times = [page.evaluate(MOVE, [SLIDER, place]) for place in places][WARMUP_MOVES:]
    known = [float(time) for time in times if time is not None]
    return known, "" if known else "no new map was drawn when the slider moved"


def playground_link(tokens: int = TOKENS, dim: int = DIM) -> str:
    """The parameters of a Playground link with random queries, keys and values."""
    generator = random.Random(0)

    def matrix() -> str:
        return ";".join(",".join(f"{generator.uniform(-1, 1):.1f}" for _ in range(dim)) for _ in range(tokens))

    return urlencode({"form": "qkv", "q": matrix(), "k": matrix(), "v": matrix()})
