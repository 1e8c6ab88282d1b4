"""Offline HTML pages: one file with inline style, for light mode, dark mode and print; tables."""

import html
import re

# Nine steps of a perceptually uniform scale from dark blue to yellow that color-blind readers can tell apart.
COLOR_SCALE = ("#00204d", "#16386b", "#414d6b", "#62636f", "#7f7c75", "#a09877", "#c2b36b", "#e5cf52", "#ffea46")

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1b1f24; --soft: #5b636d; --line: #d9dde2; --card: #f6f7f8;
  --queries: #0067a3; --keys: #a34a00; --values: #007257; --output: #96397a;
  --good: #00674b; --maybe: #7a5200; --bad: #b3261e; --open: #4a5560; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181c; --ink: #e6e8eb; --soft: #a3abb5; --line: #343a42;
  --card: #1d2126; --queries: #62b8ee; --keys: #f2a65a; --values: #43cda6; --output: #e6a0cb;
  --good: #4fc79f; --maybe: #e8b04a; --bad: #ff8078; --open: #a9b3be; } }
@media print { :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --card: #fff;
  --queries: #0067a3; --keys: #a34a00; --values: #007257; --output: #96397a; --good: #00674b; --maybe: #7a5200;
  --bad: #b3261e; --open: #4a5560; } figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .2rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .5rem; }
p { margin: .4rem 0; max-width: 46rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
figure { margin: 1rem 0; overflow-x: auto; }
figure svg { display: block; height: auto; max-width: 100%; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
td, th { text-align: left; padding: .28rem 1.1rem .28rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
td.number, th.number { font-variant-numeric: tabular-nums; white-space: nowrap; text-align: right; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .9em; }
pre { background: var(--card); padding: .8rem 1rem; border-radius: 4px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def page(title: str, *parts: str, style: str = "") -> str:
    """A whole page in the common style from parts that are HTML already; the title is text.

    >>> page("a < b", "<p>more</p>").count("a &lt; b")
    2
    """
    body = "\n".join((f"<h1>{html.escape(title)}</h1>", *parts))
    return document(title, body, style=STYLE + style)


def document(title: str, body: str, *, style: str, script: str = "") -> str:
    """An HTML document with inline style and script; its policy forbids everything from the network."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    policy += "; script-src 'unsafe-inline'" if script else ""
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{html.escape(title)}</title><style>{style}</style>"
    )
    script = f"<script>\n{script}</script>\n" if script else ""
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n{script}</body></html>\n'


def typeset(text: str) -> str:
    """Text as HTML with its powers raised and its indices lowered; words with an underscore are not changed.

    >>> typeset("|h − v_j| < e^(−β²)/(m−2+2e^β), scaled_dot_product")
    '|h − v<sub>j</sub>| &lt; e<sup>−β²</sup>/(m−2+2e<sup>β</sup>), scaled_dot_product'
    """
    text = re.sub(r"\^\(([^()]*)\)|\^([^\W_])", r"<sup>\1\2</sup>", html.escape(text))
    return re.sub(r"(?<=[^\W_])_([^\W_])(?![^\W_]{2})", r"<sub>\1</sub>", text)


def table(columns: list[str], rows: list[list[object]]) -> str:
    """An HTML table; columns of numbers are aligned right. A cell of type bytes is HTML already."""
    numeric = [all(isinstance(row[i], int | float) for row in rows) and bool(rows) for i in range(len(columns))]
    classes = [' class="number"' if number else "" for number in numeric]
    head = "".join(f"<th{kind}>{html.escape(name)}</th>" for name, kind in zip(columns, classes, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{_cell_html(cell)}</td>" for cell, kind in zip(row, classes, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell_html(cell: object) -> str:
    if isinstance(cell, bytes):
        return cell.decode("utf-8")
    if isinstance(cell, float):
        return f"{cell:,.4g}"
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else html.escape(str(cell))
