"""The exported attention page: one offline HTML file, also shown in notebooks as an iframe or an anywidget.

The page's script and style are built from web/src/viewer (`make build-page`) and written into the file. Its
Content-Security-Policy allows no network and no other script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from qkv.interp.traces import Trace
from qkv.interp.viewer.content import pack_scene
from qkv.interp.viewer.scene import Scene, make_scene

STATIC = Path(__file__).parent / "static"
HEIGHT = 820  # pixels of an iframe
PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>$style</style>
</head>
<body>
<noscript><p>This page draws its maps with its own script. Scripts are switched off in this browser.</p></noscript>
<p id="failure" role="alert" hidden></p>
<div id="viewer"></div>
<script type="application/json" id="description">$description</script>
$blobs<script>$script</script>
</body>
</html>
""")
WIDGET = """
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`;
  frame.srcdoc = model.get("page");
  const listen = (event) => {
    if (event.source !== frame.contentWindow || event.data?.qkv !== "chosen") return;
    const { layer, head, query } = event.data;
    model.set("chosen", { layer, head, query });
    model.save_changes();
  };
  addEventListener("message", listen);
  el.append(frame);
  return () => removeEventListener("message", listen);
}
export default { render };
"""


def render_html(scene: Scene, *, full: bool = False) -> str:
    """The HTML page of a scene.

    Args:
        full: also embed queries and keys, so that the page computes every weight of a long input exactly.
    """
    content = pack_scene(scene, full=full)
    script, style = ((STATIC / f"viewer.{kind}").read_text("utf-8") for kind in ("js", "css"))
    blobs = "".join(f'<script type="text/plain" id="{name}">{text}</script>\n' for name, text in content.blobs.items())
    return PAGE.substitute(
        policy=_policy(script, style),
        title=escape(scene.title.encode("utf-8", "replace").decode("utf-8")),
        style=style,
        description=_inert_json(content.description),
        blobs=blobs,
        script=script,
    )


def render_iframe(shown: Trace | Scene, *, height: int = HEIGHT) -> str:
    """HTML with the whole page in a sandboxed iframe; a trace in a notebook displays itself this way."""
    page = render_html(shown if isinstance(shown, Scene) else make_scene(shown))
    return f'<iframe sandbox="allow-scripts" width="100%" height="{height}" srcdoc="{escape(page)}"></iframe>'


def widget(shown: Trace | Scene, *, height: int = HEIGHT) -> Any:
    """An anywidget with the page; its `chosen` holds the layer, head and query that are selected in it."""
    try:
        import anywidget  # pyright: ignore[reportMissingImports]
        import traitlets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            "a widget needs anywidget: pip install 'qkv[notebook]'; a trace displays itself without it"
        ) from None

    class TraceWidget(anywidget.AnyWidget):
        _esm = WIDGET
        page = traitlets.Unicode("").tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)
        chosen = traitlets.Dict().tag(sync=True)

    return TraceWidget(page=render_html(shown if isinstance(shown, Scene) else make_scene(shown)), height=height)


def _policy(script: str, style: str) -> str:
    """No network; only this script and this style, by their hashes; images only as data: URLs in the file."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _inert_json(description: object) -> str:
    """JSON without "<", so that no text in it can end the script element or begin a comment."""
    return json.dumps(description, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
