"""Writes docs/images/studio: every room of the studio, light and dark, as a browser shows it.

Run: python docs/make_screenshots.py [FOLDER]. It needs chromium and playwright, trains two small runs for the Runs
room, and takes some three minutes. Nothing is waited for by the clock: a picture is taken when what it shows is there.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from qkv.studio.serve import opened
from qkv.studio.state import Studio
from qkv.training import recipes

HERE = Path(__file__).parent / "images/studio"
SIZE = {"width": 1400, "height": 900}
PATIENCE = 120_000  # milliseconds
# a room's link, and what is there when all of it is
ROOMS = {
    "playground": ("playground", ".playground[data-rested=true]"),
    "claims": ("claims?name=copy", "figure img"),
    "models": ("models?model=qkv:digits", "[data-testid=head] .letters"),
    "models-text": ("models?model=qkv:shakespeare", "[data-testid=head] .letters"),
    "models-sound": ("models?model=qkv:spoken-digits", "[data-testid=head] .letters"),
    "runs": ("runs?show=vit-digits-1,vit-digits-2", "tr[data-setting]"),
    "check": ("check?mutant=mask after the softmax", "[data-testid=findings]"),
}


def main(folder: Path) -> None:
    """All pictures; a room that complains is an error."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        runs = Path("runs")
        for number, model in enumerate(("vit", "mlp"), start=1):
            recipes.train("vit-digits", model=model, steps=600, folder=runs / f"vit-digits-{number}")
        with opened(Studio(runs=runs)) as place, sync_playwright() as playwright:
            server = threading.Thread(target=place.run, daemon=True)
            server.start()
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
            for scheme in ("light", "dark"):
                _taken(browser, place, folder, scheme)
            browser.close()
            place.stop()
            server.join(10)


def _taken(browser: Any, place: Any, folder: Path, scheme: str) -> None:
    page = browser.new_context(viewport=SIZE, color_scheme=scheme).new_page()
    page.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    page.goto(place.entry.file.as_uri())
    page.wait_for_selector("nav")
    for name, (link, there) in ROOMS.items():
        page.goto(f"{place.address}/#/{link}")
        page.wait_for_selector(there)
        page.wait_for_function("() => !document.querySelector('main [aria-busy=true]')")
        page.screenshot(path=folder / f"{name}-{scheme}.png")
    if complaints:
        raise SystemExit("\n".join(complaints))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
