"""Render a solution as LaTeX, to paste into a document that loads amsmath."""

import re
from collections.abc import Iterator, Sequence

from qkv.byhand.matrices import Matrix
from qkv.byhand.numbers import decimal_to_latex, format_decimal, to_latex
from qkv.byhand.solution import Solution
from qkv.byhand.steps import SolutionStep, StepCell, explain_steps
from qkv.byhand.symbols import NAMES, describe_agreement, given_matrices, latex_symbol

MAX_EXACT = 12  # characters of an exact number that fits well into a matrix


def latex_document(solution: Solution, places: int = 4) -> str:
    """One display for each given matrix, then each step with its numbers written out."""
    title = " ".join(solution.problem.title.split()) or "Attention by hand"
    lines = [f"% {title}. Written by qkv byhand; needs \\usepackage{{amsmath}}."]
    for _, symbol, _, matrix in given_matrices(solution):
        lines.append(rf"\[ {latex_symbol(symbol)} = {_matrix(_exact_cells(matrix))} \]")
    for number, step in enumerate(explain_steps(solution), 1):
        lines += ["", rf"\paragraph{{{number}. {_title(step.title)}}}", *_step_lines(step, places)]
    if solution.unscaled is not None:
        lines += ["", r"\paragraph{Without the scale}"]
        lines.append(rf"\[ \beta = 1:\quad {_matrix(_decimal_cells(solution.unscaled, places))} \]")
    lines.append(f"% {describe_agreement(solution)}")
    return "\n".join(lines) + "\n"


def latex_sheet(solution: Solution, asked: Sequence[str]) -> str:
    """A problem sheet: the given matrices, and room for each step."""
    lines = [rf"\section*{{{solution.problem.title}}}", f"{_setting(solution)}"]
    for _, symbol, _, matrix in given_matrices(solution):
        lines.append(rf"\[ {latex_symbol(symbol)} = {_matrix(_exact_cells(matrix))} \]")
    for name in asked:
        rows, columns = solution.matrix(name).shape
        blanks = [[r"\blank"] * columns] * rows
        symbol, title, _ = NAMES["concatenated" if name == "output" and solution.problem.wo is None else name]
        lines += ["", rf"\paragraph{{{_title(title)}}}"]
        lines.append(rf"\[ {latex_symbol(symbol)} = {_matrix(blanks)} \]")
    return "\n".join(lines) + "\n"


def standalone(body: str) -> str:
    """A whole document around displays."""
    head = "\\documentclass[11pt]{article}\n\\usepackage[margin=2.2cm]{geometry}\n\\usepackage{amsmath}\n"
    head += "\\newcommand{\\blank}{\\rule[-0.4em]{3.2em}{0.4pt}}\n"
    head += "\\allowdisplaybreaks\n\\setlength{\\parindent}{0pt}\n"
    return f"{head}\\begin{{document}}\n{body}\\end{{document}}\n"


def _setting(solution: Solution) -> str:
    problem = solution.problem
    heads = f"{problem.heads} heads" if problem.heads > 1 else "one head"
    convention = "One token per column" if problem.convention == "columns" else "One token per row"
    mask = "" if problem.mask is None else "; some scores are masked: " + _mask_text(solution)
    loss = "" if problem.loss is None else f"; loss: {problem.loss.name.replace('-', ' ')}"
    return f"{convention}, {heads}, $\\beta = {to_latex(problem.scale)}${mask}{loss}."


def _mask_text(solution: Solution) -> str:
    mask = solution.problem.mask or ()
    rows = [[str(int(flag)) for flag in row] for row in mask]
    shown = [list(row) for row in zip(*rows, strict=True)] if solution.problem.convention == "columns" else rows
    return f"${_matrix(shown)}$ (1 = may attend)"


def _title(title: str) -> str:
    return re.sub(r"W_(.)", r"$W_\1$", title).replace("A∘dA", r"$A \circ \mathrm{d}A$")


def _step_lines(step: SolutionStep, places: int) -> Iterator[str]:
    if not step.given:
        equations = [rf"{_cell_name(step, cell)} &= {_equation(cell, places)}" for row in step.cells for cell in row]
        yield r"\begin{align*}"
        yield " \\\\\n".join(equations)
        yield r"\end{align*}"
    if step.key == "loss":
        return
    exact = all(len(text) <= MAX_EXACT for row in step.matrix.exact for text in row)
    sign = "=" if exact else r"\approx"
    cells = _exact_cells(step.matrix) if exact else _decimal_cells(step.matrix, places)
    yield rf"\[ {latex_symbol(step.symbol)} = {step.formula_latex} {sign} {_matrix(cells)} \]"
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
    if "[" not in cell.name:
        return cell.name
    place = cell.name[cell.name.index("[") + 1 : -1]
    base = step.symbol.rstrip("0123456789")
    head, symbol = step.symbol[len(base) :], latex_symbol(base)
    if "_" in symbol:
        symbol = f"({symbol})"
    return f"{symbol}{f'^{{({head})}}' if head else ''}_{{{place}}}"


def _matrix(rows: Sequence[Sequence[str]]) -> str:
    body = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\begin{{pmatrix}} {body} \end{{pmatrix}}"


def _exact_cells(matrix: Matrix) -> list[list[str]]:
    return [[to_latex(number) for number in row] for row in matrix.numbers]


def _decimal_cells(matrix: Matrix, places: int) -> list[list[str]]:
    return [[decimal_to_latex(format_decimal(number.decimal, places)) for number in row] for row in matrix.numbers]
