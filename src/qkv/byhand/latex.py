"""The working as LaTeX, to be pasted into a document that loads amsmath."""

from collections.abc import Iterator, Sequence

from qkv.byhand.captions import agreement_sentence, givens
from qkv.byhand.matrices import Matrix
from qkv.byhand.steps import Cell, Step, explain
from qkv.byhand.working import Worked
from qkv.byhand.writing import fixed, latex, latex_decimal

LONG = 12  # characters of an exact number that still stands well in a matrix


def document(worked: Worked, places: int = 4) -> str:
    """One display for what was given, then one for each step and its numbers written out."""
    title = " ".join(worked.problem.title.split()) or "Attention by hand"
    lines = [f"% {title}. Written by qkv byhand; needs \\usepackage{{amsmath}}."]
    for _, symbol, _, matrix in givens(worked):
        lines.append(rf"\[ {_symbol(symbol)} = {_matrix(_exact(matrix))} \]")
    for number, step in enumerate(explain(worked), 1):
        lines += ["", rf"\paragraph{{{number}. {_escaped(step.title)}}}"]
        lines += _step(step, places)
    if worked.unscaled is not None:
        lines += ["", r"\paragraph{Without the scale}"]
        lines.append(rf"\[ \beta = 1:\quad {_matrix(_decimals(worked.unscaled, places))} \]")
    lines.append(f"% {agreement_sentence(worked)}")
    return "\n".join(lines) + "\n"


def _step(step: Step, places: int) -> Iterator[str]:
    symbol = _symbol(step.symbol)
    if not step.given:
        equations = [rf"{_cell_name(step, cell)} &= {_equation(cell, places)}" for row in step.cells for cell in row]
        yield r"\begin{align*}"
        yield " \\\\\n".join(equations)
        yield r"\end{align*}"
    exact = all(len(text) <= LONG for row in step.matrix.exact for text in row)
    sign = "=" if exact else r"\approx"
    shown = _exact(step.matrix) if exact else _decimals(step.matrix, places)
    yield rf"\[ {symbol} = {step.formula_latex} {sign} {_matrix(shown)} \]"
    if step.sums:
        sums = r",\quad ".join(
            rf"\Sigma_{{{i}}} \approx {latex_decimal(fixed(t.decimal, places))}" for i, t in enumerate(step.sums, 1)
        )
        yield rf"\[ {sums} \]"


def _equation(cell: Cell, places: int) -> str:
    parts = [cell.written_latex]
    exact, decimal = latex(cell.number), latex_decimal(fixed(cell.number.decimal, places))
    if not cell.says_exact and not exact.startswith(r"\approx"):
        parts.append(exact)
    text = " = ".join(parts)
    return text if cell.number.fraction is not None else rf"{text} \approx {decimal}"


def _cell_name(step: Step, cell: Cell) -> str:
    letter, head = step.symbol[0], step.symbol[1:]
    place = cell.name[cell.name.index("[") + 1 : -1]
    above = f"^{{({head})}}" if head.isdigit() else head.replace("′", "'")
    return f"{letter}{above}_{{{place}}}"


def _symbol(symbol: str) -> str:
    """W_Q as it is; S1, the scores of the first head, as S_1."""
    return f"{symbol[0]}_{{{symbol[1:]}}}" if symbol[1:].isdigit() else symbol.replace("′", "'")


def _matrix(rows: Sequence[Sequence[str]]) -> str:
    body = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\begin{{pmatrix}} {body} \end{{pmatrix}}"


def _exact(matrix: Matrix) -> list[list[str]]:
    return [[latex(number) for number in row] for row in matrix.numbers]


def _decimals(matrix: Matrix, places: int) -> list[list[str]]:
    return [[latex_decimal(fixed(number.decimal, places)) for number in row] for row in matrix.numbers]


def _escaped(text: str) -> str:
    return text.replace("_", r"\_")
