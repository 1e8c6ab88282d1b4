"""Take screenshots of every page of the studio, light and dark, into docs/images/studio.

Run: python docs/make_screenshots.py [FOLDER]. It needs chromium and playwright, trains two small runs for the Runs
page, and takes about three minutes. Each screenshot waits until the page shows everything, not for a fixed time.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from qkv.studio.server import Studio, open_server
from qkv.training import run_recipe

IMAGES = Path(__file__).parent / "images/studio"
SIZE = {"width": 1400, "height": 900}
README_IMAGE, README_CLIP = "models-text", {"x": 0, "y": 0, "width": 1400, "height": 452}  # wide, for the README
TIMEOUT = 120_000  # milliseconds
# a page's link, and what is there when it is complete
PAGES = {
    "playground": ("playground", ".playground[data-rested=true]"),
    "claims": ("claims?name=copy", "figure img"),
    "models": ("models?model=qkv:digits", "[data-testid=head] .letters"),
    "models-text": ("models?model=qkv:shakespeare", "[data-testid=head] .letters"),
    "models-audio": ("models?model=qkv:spoken-digits", "[data-testid=head] .letters"),
    "runs": ("runs?show=vit-digits-1,vit-digits-2", "tr[data-setting]"),
    "check": ("check?mutant=mask after the softmax", "[data-testid=findings]"),
}


def main(folder: Path) -> None:
    """Take all screenshots; fail if a page logs an error."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        runs = Path("runs")
        for number, model in enumerate(("vit", "mlp"), start=1):
            run_recipe("vit-digits", model=model, steps=600, folder=runs / f"vit-digits-{number}")
        with open_server(Studio(runs=runs)) as server, sync_playwright() as playwright:
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
            for scheme in ("light", "dark"):
                take_screenshots(browser, server, folder, scheme)
            browser.close()
            server.stop()
            thread.join(10)


def take_screenshots(browser: Any, server: Any, folder: Path, scheme: str) -> None:
    page = browser.new_context(viewport=SIZE, color_scheme=scheme).new_page()
    page.set_default_timeout(TIMEOUT)
    errors: list[str] = []
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.goto(server.login.file.as_uri())
    page.wait_for_selector("nav")
    for name, (link, complete) in PAGES.items():
        page.goto(f"{server.address}/#/{link}")
        page.wait_for_selector(complete)
        page.wait_for_function("() => !document.querySelector('main [aria-busy=true]')")
        page.screenshot(path=folder / f"{name}-{scheme}.png")
        if (name, scheme) == (README_IMAGE, "light"):
            page.screenshot(path=folder / "readme.png", clip=README_CLIP)
    if errors:
        raise SystemExit("\n".join(errors))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
