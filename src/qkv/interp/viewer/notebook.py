"""A trace in a notebook: the page in a frame; and, where anywidget is installed, a widget that says what is chosen."""

from __future__ import annotations

from html import escape
from typing import Any

from qkv.interp.traces.trace import Trace
from qkv.interp.viewer.html import html
from qkv.interp.viewer.scene import Scene, scene_of

HEIGHT = 820

WIDGET = """
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`;
  frame.srcdoc = model.get("page");
  const heard = (event) => {
    if (event.source !== frame.contentWindow || event.data?.qkv !== "chosen") return;
    const { layer, head, query } = event.data;
    model.set("chosen", { layer, head, query });
    model.save_changes();
  };
  addEventListener("message", heard);
  el.append(frame);
  return () => removeEventListener("message", heard);
}
export default { render };
"""


def frame(shown: Trace | Scene, *, height: int = HEIGHT) -> str:
    """HTML with the whole page in a frame of its own, which can run its script and nothing else."""
    page = html(shown if isinstance(shown, Scene) else scene_of(shown))
    return f'<iframe sandbox="allow-scripts" width="100%" height="{height}" srcdoc="{escape(page)}"></iframe>'


def widget(shown: Trace | Scene, *, height: int = HEIGHT) -> Any:
    """An anywidget with the page; its `chosen` holds the layer, head and query that are chosen in it."""
    try:
        import anywidget  # pyright: ignore[reportMissingImports]
        import traitlets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            "a widget needs anywidget: pip install 'qkv[notebook]'; a trace displays itself without"
        ) from None

    class Look(anywidget.AnyWidget):
        _esm = WIDGET
        page = traitlets.Unicode("").tag(sync=True)
        height = traitlets.Int(HEIGHT).tag(sync=True)
        chosen = traitlets.Dict().tag(sync=True)

    return Look(page=html(shown if isinstance(shown, Scene) else scene_of(shown)), height=height)
