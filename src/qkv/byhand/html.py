"""Render a solution as one offline HTML page: each number shows its derivation on hover and on keyboard focus."""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from html import escape
from pathlib import Path

from qkv._html import document
from qkv._html import typeset as typeset_words
from qkv.byhand.matrices import Matrix
from qkv.byhand.numbers import Number, format_decimal, to_text
from qkv.byhand.solution import Solution
from qkv.byhand.steps import SolutionStep, StepCell, explain_steps
from qkv.byhand.symbols import NAMES, describe_agreement, describe_setting, given_matrices

MAX_EXACT = 12  # characters of an exact number that fits well into a cell
MAX_CHARACTERS = 21  # of a matrix that fits one of three columns of the page


def html_page(solution: Solution, places: int = 4) -> str:
    """The whole page; it makes no network requests."""
    here = Path(__file__)
    style = here.with_name("page.css").read_text("utf-8")
    script = here.with_name("page.js").read_text("utf-8")
    title = solution.problem.title or "Attention by hand"
    body = "\n".join(_body(solution, places))
    setting = f'<p class="setting">{escape(describe_setting(solution))}</p>'
    main = f"<main>\n<h1>{typeset_words(title)}</h1>\n{setting}\n{body}\n</main>"
    return document(title, main, style=style, script=script)


def html_sheet(solution: Solution, asked: Sequence[str], places: int = 4) -> str:
    """A problem sheet to print: the given matrices, and empty cells for each step."""
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    problem = solution.problem
    parts = [f'<p class="setting">{escape(describe_setting(solution))}</p>']
    given = "".join(
        _plain_matrix(key, symbol, color, matrix, places) for key, symbol, color, matrix in given_matrices(solution)
    )
    parts.append(f'<section><h2>Given</h2><div class="row">{given}</div></section><div class="steps">')
    if problem.mask is not None:
        mask = [[str(int(flag)) for flag in row] for row in problem.mask]
        mask = [list(row) for row in zip(*mask, strict=True)] if problem.convention == "columns" else mask
        cells = [[f"<td>{cell}</td>" for cell in row] for row in mask]
        parts.append(f"<section><h2>Mask (1 = may attend)</h2>{_figure('M', '', cells)}</section>")
    for name in asked:
        symbol, title, color = NAMES["concatenated" if name == "output" and problem.wo is None else name]
        rows, columns = solution.matrix(name).shape
        cells = [['<td class="room"></td>'] * columns for _ in range(rows)]
        width = " full" if columns > 4 else " wide" if columns > 2 else ""
        figure = _figure(symbol, color, cells)
        parts.append(f'<section class="{color}{width}"><h2><span>{typeset(title)}</span></h2>{figure}</section>')
    body = "\n".join([f"<main><h1>{typeset_words(problem.title)}</h1>", *parts, "</div></main>"])
    return document(problem.title, body, style=style)


def _body(solution: Solution, places: int) -> Iterator[str]:
    yield '<p class="legend" aria-hidden="true">'
    yield " ".join(f'<span class="{name}">{name}</span>' for name in ("queries", "keys", "values", "output"))
    yield "</p>"
    yield '<p class="hint">Hover over a number, or reach it with Tab and the arrow keys, to see its derivation.</p>'
    yield '<section><h2>Given</h2><div class="row">'
    for key, symbol, color, matrix in given_matrices(solution):
        yield _plain_matrix(key, symbol, color, matrix, places)
    yield '</div></section><div class="steps">'
    for number, step in enumerate(explain_steps(solution), 1):
        yield _section(number, step, places)
    yield f'</div><p class="check">{escape(describe_agreement(solution))}</p>'
    if solution.unscaled is not None:
        yield '<section class="aside"><h2>Without the scale (β = 1) the output would be</h2><div class="row">'
        symbol = "O" if solution.problem.wo is not None else "H"
        yield _plain_matrix("unscaled", symbol, "output", solution.unscaled, places)
        yield "</div></section>"


def _plain_matrix(key: str, symbol: str, color: str, matrix: Matrix, places: int) -> str:
    """A matrix without derivations."""
    cells = [
        [f'<td id="{key}-{i}-{j}">{_number(number, places)}</td>' for j, number in enumerate(row, 1)]
        for i, row in enumerate(matrix.numbers, 1)
    ]
    return _figure(symbol, color, cells)


def _section(number: int, step: SolutionStep, places: int) -> str:
    kind = step.key.split("-")[0]
    cells = [
        [_cell(f"{step.key}-{i}-{j}", kind, cell, places) for j, cell in enumerate(row, 1)]
        for i, row in enumerate(step.cells, 1)
    ]
    sums = [f'<td class="sum">Σ {typeset(format_decimal(total.decimal, places))}</td>' for total in step.sums]
    written = "".join(f"<li>{_equation(cell, places)}</li>" for row in step.cells for cell in row)
    details = f'<details><summary>written out</summary><ul class="written">{written}</ul></details>'
    columns = len(cells[0]) + bool(sums and not step.columns)
    digits = max(len(format_decimal(cell.number.decimal, places)) for row in step.cells for cell in row)
    width = ""
    if columns > 3 or columns * digits + len(step.symbol) > MAX_CHARACTERS:
        width = " full" if columns > 6 else " wide"
    return (
        f'<section class="{step.color}{width}"><h2><span class="number">{number}</span> '
        f"<span>{typeset(step.title)}</span> "
        f'<span class="formula">{typeset(f"{step.symbol} = {step.formula}")}</span></h2>'
        f"{_figure(step.symbol, step.color, cells, sums, below=step.columns)}"
        f"{'' if step.given else details}</section>"
    )


def _figure(symbol: str, color: str, cells: list[list[str]], sums: Sequence[str] = (), *, below: bool = False) -> str:
    """A matrix in brackets with its symbol; sums are placed outside the brackets, to the right or below."""
    lines = []
    for index, row in enumerate(cells):
        left, right = (
            f'<td class="bracket {side}" rowspan="{len(cells)}"></td>' if not index else ""
            for side in ("left", "right")
        )
        row_sum = sums[index] if sums and not below else ""
        lines.append(f"<tr>{left}{''.join(row)}{right}{row_sum}</tr>")
    if sums and below:
        lines.append(f'<tr><td class="blank"></td>{"".join(sums)}</tr>')
    return (
        f'<figure class="{color}"><figcaption>{typeset(symbol)} =</figcaption>'
        f'<table aria-label="{escape(symbol)}"><tbody>{"".join(lines)}</tbody></table></figure>'
    )


def _cell(key: str, kind: str, cell: StepCell, places: int) -> str:
    weight = f' style="--weight:{float(cell.number.decimal):.4f}"' if kind == "weights" else ""
    classes = " ".join(name for name, used in (("masked", cell.masked), ("weight", bool(weight))) if used)
    shown = "masked" if cell.masked and kind in ("scaled", "exponentials") else _number(cell.number, places)
    return (
        f'<td id="{key}" class="{classes}" tabindex="0" aria-describedby="how-{key}" '
        f'data-from="{" ".join(cell.sources)}"{weight}>{shown}'
        f'<span class="how" role="tooltip" id="how-{key}">{_equation(cell, places)}</span></td>'
    )


def _number(number: Number, places: int) -> str:
    """The exact number above its decimal; the decimal alone if the exact form is long or a quotient of sums."""
    exact, decimal = to_text(number), format_decimal(number.decimal, places)
    if len(exact) > MAX_EXACT or "/(" in exact:
        return f'<span class="exact">{typeset(decimal)}</span>'
    below = "" if exact == decimal else f'<span class="decimal">{typeset(decimal)}</span>'
    return f'<span class="exact">{typeset(exact)}</span>{below}'


def _equation(cell: StepCell, places: int) -> str:
    """S[1,1] = 1·3 + 3·(-1/2) = 3/2, one line for each form."""
    exact, decimal = to_text(cell.number), format_decimal(cell.number.decimal, places)
    lines = [f"<b>{typeset(cell.name)}</b> = {typeset(cell.written)}"]
    if not cell.states_exact and not exact.startswith("≈"):
        lines.append(f"= {typeset(exact)}")
    if exact != decimal:
        lines.append(f"{'=' if cell.number.fraction == Fraction(cell.number.decimal) else '≈'} {typeset(decimal)}")
    return " ".join(f"<span>{line}</span>" for line in lines)


def typeset(text: str) -> str:
    """Plain text as HTML, with superscripts, subscripts and a proper minus sign.

    >>> typeset("-e^(3/2)/2"), typeset("dQ W_Qᵀ"), typeset("1.2e-7")
    ('−e<sup>3/2</sup>/2', 'dQ W<sub>Q</sub>ᵀ', '1.2·10<sup>−7</sup>')
    """
    text = escape(text).replace("-", "−")
    text = re.sub(r"\^\(([^()]*(?:\([^()]*\)[^()]*)*)\)", r"<sup>\1</sup>", text)
    text = re.sub(r"\^(\w+)", r"<sup>\1</sup>", text)
    text = re.sub(r"(\d)e(−?\d+)", r"\1·10<sup>\2</sup>", text)
    return re.sub(r"\b(d?[WSZEAHQKVO]|r)_?([QKVO](?=ᵀ|\b)|\d+(?=ᵀ|\b))", r"\1<sub>\2</sub>", text)
