"""The page: one file that needs no network; its policy allows nothing from outside and no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path
from string import Template

from qkv.interp.viewer.content import content_of
from qkv.interp.viewer.scene import Scene

HERE = Path(__file__).parent
SCRIPTS = ("unpack", "colour", "weights", "recipe", "glance", "labels", "stage", "lines", "tokens", "picture", "page")


def html(scene: Scene, *, full: bool = False) -> str:
    """The whole page.

    full: also embed queries and keys, so that the page computes every weight exactly.
    """
    content = content_of(scene, full=full)
    script = "(() => {\n" + "\n".join(_read(f"{name}.js") for name in SCRIPTS) + "})();\n"
    style = _read("page.css")
    blobs = "".join(f'<script type="text/plain" id="{name}">{text}</script>\n' for name, text in content.blobs.items())
    return Template(_read("page.html")).substitute(
        policy=_policy(script, style),
        title=escape(scene.title.encode("utf-8", "replace").decode("utf-8")),
        style=style,
        description=_inert(content.description),
        blobs=blobs,
        script=script,
    )


def _policy(script: str, style: str) -> str:
    """Nothing from anywhere; this script and this style, known by their hashes; pictures that are in the file."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _inert(description: object) -> str:
    """JSON that no text in it can end early: without <, so neither </script> nor <!-- can stand in it."""
    return json.dumps(description, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _read(name: str) -> str:
    return (HERE / name).read_text("utf-8")
