"""Render a solution as LaTeX, to paste into a document that loads amsmath."""

from collections.abc import Iterator, Sequence

from qkv.byhand.matrices import Matrix
from qkv.byhand.numbers import decimal_to_latex, format_decimal, to_latex
from qkv.byhand.solution import Solution
from qkv.byhand.steps import SolutionStep, StepCell, describe_agreement, explain_steps, given_matrices

MAX_EXACT = 12  # characters of an exact number that fits well into a matrix


def latex_document(solution: Solution, places: int = 4) -> str:
    """One display for each given matrix, then each step with its numbers written out."""
    title = " ".join(solution.problem.title.split()) or "Attention by hand"
    lines = [f"% {title}. Written by qkv byhand; needs \\usepackage{{amsmath}}."]
    for _, symbol, _, matrix in given_matrices(solution):
        lines.append(rf"\[ {_symbol(symbol)} = {_matrix(_exact_cells(matrix))} \]")
    for number, step in enumerate(explain_steps(solution), 1):
        title = step.title.replace("_", r"\_")
        lines += ["", rf"\paragraph{{{number}. {title}}}", *_step_lines(step, places)]
    if solution.unscaled is not None:
        lines += ["", r"\paragraph{Without the scale}"]
        lines.append(rf"\[ \beta = 1:\quad {_matrix(_decimal_cells(solution.unscaled, places))} \]")
    lines.append(f"% {describe_agreement(solution)}")
    return "\n".join(lines) + "\n"


def _step_lines(step: SolutionStep, places: int) -> Iterator[str]:
    if not step.given:
        equations = [rf"{_cell_name(step, cell)} &= {_equation(cell, places)}" for row in step.cells for cell in row]
        yield r"\begin{align*}"
        yield " \\\\\n".join(equations)
        yield r"\end{align*}"
    exact = all(len(text) <= MAX_EXACT for row in step.matrix.exact for text in row)
    sign = "=" if exact else r"\approx"
    cells = _exact_cells(step.matrix) if exact else _decimal_cells(step.matrix, places)
    yield rf"\[ {_symbol(step.symbol)} = {step.formula_latex} {sign} {_matrix(cells)} \]"
    if step.sums:
        sums = [decimal_to_latex(format_decimal(total.decimal, places)) for total in step.sums]
        text = r",\quad ".join(rf"\Sigma_{{{i}}} \approx {total}" for i, total in enumerate(sums, 1))
        yield rf"\[ {text} \]"


def _equation(cell: StepCell, places: int) -> str:
    text, exact = cell.written_latex, to_latex(cell.number)
    if not cell.states_exact and not exact.startswith(r"\approx"):
        text = f"{text} = {exact}"
    if cell.number.fraction is not None:
        return text
    return rf"{text} \approx {decimal_to_latex(format_decimal(cell.number.decimal, places))}"


def _cell_name(step: SolutionStep, cell: StepCell) -> str:
    letter, head = step.symbol[0], step.symbol[1:]
    place = cell.name[cell.name.index("[") + 1 : -1]
    above = f"^{{({head})}}" if head.isdigit() else head.replace("′", "'")
    return f"{letter}{above}_{{{place}}}"


def _symbol(symbol: str) -> str:
    """W_Q stays; S1, the scores of the first head, becomes S_1."""
    return f"{symbol[0]}_{{{symbol[1:]}}}" if symbol[1:].isdigit() else symbol.replace("′", "'")


def _matrix(rows: Sequence[Sequence[str]]) -> str:
    body = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\begin{{pmatrix}} {body} \end{{pmatrix}}"


def _exact_cells(matrix: Matrix) -> list[list[str]]:
    return [[to_latex(number) for number in row] for row in matrix.numbers]


def _decimal_cells(matrix: Matrix, places: int) -> list[list[str]]:
    return [[decimal_to_latex(format_decimal(number.decimal, places)) for number in row] for row in matrix.numbers]
