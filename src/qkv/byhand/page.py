"""The working as one offline page: each number shows how it came about, on hover and on keyboard focus."""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from html import escape
from pathlib import Path

from qkv.byhand.captions import agreement_sentence, givens, setting_text
from qkv.byhand.matrices import Matrix
from qkv.byhand.number import Number
from qkv.byhand.steps import Cell, Step, explain
from qkv.byhand.working import Worked
from qkv.byhand.writing import fixed, plain

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
LONG = 12  # characters of an exact number that still stands well in a cell


def page(worked: Worked, places: int = 4) -> str:
    """The whole page; it asks the network for nothing."""
    here = Path(__file__)
    style = here.with_name("page.css").read_text("utf-8")
    script = here.with_name("page.js").read_text("utf-8")
    title = escape(worked.problem.title or "Attention by hand")
    body = "\n".join(_body(worked, places))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="setting">{escape(setting_text(worked))}</p>
{body}
</main>
<script>
{script}</script>
</body>
</html>
"""


def _body(worked: Worked, places: int) -> Iterator[str]:
    yield '<p class="legend" aria-hidden="true">'
    yield " ".join(f'<span class="{name}">{name}</span>' for name in ("queries", "keys", "values", "output"))
    yield "</p>"
    yield '<p class="hint">Point at a number, or reach it with Tab and the arrow keys, to see where it comes from.</p>'
    yield '<section><h2>Given</h2><div class="row">'
    for key, symbol, colour, matrix in givens(worked):
        yield _given(key, symbol, colour, matrix, places)
    yield '</div></section><div class="steps">'
    for number, step in enumerate(explain(worked), 1):
        yield _section(number, step, places)
    yield f'</div><p class="check">{escape(agreement_sentence(worked))}</p>'
    if worked.unscaled is not None:
        yield '<section class="aside"><h2>Without the scale (β = 1) the output would be</h2><div class="row">'
        symbol = "O" if worked.problem.wo is not None else "H"
        yield _given("unscaled", symbol, "output", worked.unscaled, places)
        yield "</div></section>"


def _given(key: str, symbol: str, colour: str, matrix: Matrix, places: int) -> str:
    cells = [
        [f'<td id="{key}-{i}-{j}">{_shown(number, places)}</td>' for j, number in enumerate(row, 1)]
        for i, row in enumerate(matrix.numbers, 1)
    ]
    return _figure(symbol, colour, cells)


def _section(number: int, step: Step, places: int) -> str:
    kind = step.key.split("-")[0]
    cells = [
        [_cell(f"{step.key}-{i}-{j}", kind, cell, places) for j, cell in enumerate(row, 1)]
        for i, row in enumerate(step.cells, 1)
    ]
    sums = [f'<td class="sum">Σ {typeset(fixed(total.decimal, places))}</td>' for total in step.sums]
    written = "".join(f"<li>{_equation(cell, places)}</li>" for row in step.cells for cell in row)
    details = f'<details><summary>written out</summary><ul class="written">{written}</ul></details>'
    across = len(cells[0]) + bool(sums and not step.columns)
    wide = " full" if across > 6 else " wide" if across > 3 else ""
    return (
        f'<section class="{step.colour}{wide}"><h2><span class="number">{number}</span> '
        f'{typeset(step.title)} <span class="formula">{typeset(f"{step.symbol} = {step.formula}")}</span></h2>'
        f"{_figure(step.symbol, step.colour, cells, sums, below=step.columns)}"
        f"{'' if step.given else details}</section>"
    )


def _figure(symbol: str, colour: str, cells: list[list[str]], sums: Sequence[str] = (), *, below: bool = False) -> str:
    """A matrix in brackets, its symbol before it; sums stand outside the brackets."""
    lines = []
    for index, row in enumerate(cells):
        left, right = (
            f'<td class="bracket {side}" rowspan="{len(cells)}"></td>' if not index else ""
            for side in ("left", "right")
        )
        beside = sums[index] if sums and not below else ""
        lines.append(f"<tr>{left}{''.join(row)}{right}{beside}</tr>")
    if sums and below:
        lines.append(f'<tr><td class="blank"></td>{"".join(sums)}</tr>')
    return (
        f'<figure class="{colour}"><figcaption>{typeset(symbol)} =</figcaption>'
        f'<table aria-label="{escape(symbol)}"><tbody>{"".join(lines)}</tbody></table></figure>'
    )


def _cell(key: str, kind: str, cell: Cell, places: int) -> str:
    share = f' style="--share:{float(cell.number.decimal):.4f}"' if kind == "weights" else ""
    classes = " ".join(name for name, used in (("forbidden", cell.forbidden), ("share", bool(share))) if used)
    shown = "masked" if cell.forbidden and kind != "weights" else _shown(cell.number, places)
    return (
        f'<td id="{key}" class="{classes}" tabindex="0" aria-describedby="how-{key}" '
        f'data-from="{" ".join(cell.sources)}"{share}>{shown}'
        f'<span class="how" role="tooltip" id="how-{key}">{_equation(cell, places)}</span></td>'
    )


def _shown(number: Number, places: int) -> str:
    """The exact number, its decimal below it; the decimal alone where the exact one is long or a quotient of sums."""
    exact, decimal = plain(number), fixed(number.decimal, places)
    if len(exact) > LONG or "/(" in exact:
        return f'<span class="exact">{typeset(decimal)}</span>'
    below = "" if exact == decimal else f'<span class="decimal">{typeset(decimal)}</span>'
    return f'<span class="exact">{typeset(exact)}</span>{below}'


def _equation(cell: Cell, places: int) -> str:
    """S[1,1] = 1·3 + 3·(-1/2) = 3/2, a line for each form."""
    exact, decimal = plain(cell.number), fixed(cell.number.decimal, places)
    lines = [f"<b>{escape(cell.name)}</b> = {typeset(cell.written)}"]
    if not cell.says_exact and not exact.startswith("≈"):
        lines.append(f"= {typeset(exact)}")
    if exact != decimal:
        lines.append(f"{'=' if cell.number.fraction == Fraction(cell.number.decimal) else '≈'} {typeset(decimal)}")
    return " ".join(f"<span>{line}</span>" for line in lines)


def typeset(text: str) -> str:
    """Plain text with its powers raised, its indices lowered and a proper minus sign.

    >>> typeset("-e^(3/2)/2"), typeset("W_Q"), typeset("1.2e-7")
    ('−e<sup>3/2</sup>/2', 'W<sub>Q</sub>', '1.2·10<sup>−7</sup>')
    """
    text = escape(text).replace("-", "−")
    text = re.sub(r"\^\(([^()]*(?:\([^()]*\)[^()]*)*)\)", r"<sup>\1</sup>", text)
    text = re.sub(r"\^(\w+)", r"<sup>\1</sup>", text)
    text = re.sub(r"(\d)e(−?\d+)", r"\1·10<sup>\2</sup>", text)
    return re.sub(r"\b([WSZEAHQKV])_?([QKVO]\b|\d+(?=ᵀ|\b))", r"\1<sub>\2</sub>", text)
