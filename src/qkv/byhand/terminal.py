"""Render a solution as lines for a terminal of 80 columns."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from qkv.byhand.graph import GRADIENT_OF
from qkv.byhand.matrices import Matrix
from qkv.byhand.numbers import format_decimal, to_text
from qkv.byhand.solution import Solution
from qkv.byhand.steps import SolutionStep, StepCell, explain_steps
from qkv.byhand.symbols import describe_agreement, describe_setting, given_matrices

WIDTH = 80
COLORS = {"queries": "#4a90d9", "keys": "#d98200", "values": "#00a078", "output": "#c46fa3", "": ""}
Block = tuple[list[str], str]  # lines, and their color


def terminal_lines(solution: Solution, places: int = 4) -> Iterator[Text]:
    """The whole solution, line by line; no line is longer than 80 characters."""
    if solution.problem.title:
        yield from _wrap(solution.problem.title, style="bold")
    yield from _wrap(describe_setting(solution), style="dim")
    yield Text()
    given = given_matrices(solution)
    yield from _pack(
        [(_matrix_lines(f"{symbol} =", matrix.exact), COLORS[color]) for _, symbol, color, matrix in given]
    )
    for number, step in enumerate(explain_steps(solution), 1):
        yield Text()
        yield from _step_lines(number, step, places)
    yield Text()
    yield from _wrap(describe_agreement(solution), style="" if solution.agrees else "bold red")
    if solution.unscaled is not None:
        yield Text()
        yield Text("Without the scale (β = 1) the output would be", "dim")
        for line in _matrix_lines("", _decimals(solution.unscaled, places)):
            yield from _wrap(line, "   ", "dim", "    ")


def _wrap(text: str, indent: str = "", style: str = "", hang: str = "") -> Iterator[Text]:
    for line in textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + hang) or [""]:
        yield Text(line, style)


def _step_lines(number: int, step: SolutionStep, places: int) -> Iterator[Text]:
    heading = Text(f"{number}  ", "bold")
    heading.append(step.title, f"bold {COLORS[step.color]}".strip())
    heading.append(f"   {step.symbol} = {step.formula}")
    heading.truncate(WIDTH)
    yield heading
    if step.sums:
        yield from _exponential_lines(step, places)
        return
    if not step.given:
        for row in step.cells:
            for cell in row:
                yield from _wrap(_equation(step, cell, places), "   ", hang="      ")
        yield Text()
    yield from _pack(_result_blocks(step, places))


def _equation(step: SolutionStep, cell: StepCell, places: int) -> str:
    """S[1,1] = 1·3 + 3·(-1/2) = 3/2; an irrational number is followed by its decimal."""
    exact, decimal = to_text(cell.number), format_decimal(cell.number.decimal, places)
    if cell.number.fraction is None and cell.written == decimal:  # the loss of a single output
        return f"{cell.name} ≈ {decimal}"
    if cell.number.fraction is not None:
        return f"{cell.name} = {cell.written} = {exact}"
    if _is_output(step) or exact.startswith("≈") or cell.states_exact:
        return f"{cell.name} = {cell.written} ≈ {decimal}"
    return f"{cell.name} = {cell.written} = {exact} ≈ {decimal}"


def _result_blocks(step: SolutionStep, places: int) -> list[Block]:
    """The step's matrix: exact where that is short, in decimals where that adds information."""
    numbers = [number for row in step.matrix.numbers for number in row]
    color, symbol = COLORS[step.color], f"{step.symbol} ="
    blocks: list[Block] = []
    if all(len(to_text(number)) <= 12 for number in numbers) and not _is_long(step):
        blocks.append((_matrix_lines(symbol, step.matrix.exact), color))
        symbol = ""
    if not blocks or any(number.fraction is None or number.fraction.denominator != 1 for number in numbers):
        equal = all(
            number.fraction is not None and len(format_decimal(number.decimal, 20)) <= places + 2 for number in numbers
        )
        lead = f"{symbol.rstrip(' =')} {'=' if equal else '≈'}".strip()
        blocks.append((_matrix_lines(lead, _decimals(step.matrix, places)), color))
    return blocks


def _is_output(step: SolutionStep) -> bool:
    """A number that is shown in decimals, after the numbers it was computed from."""
    return step.key.split("-")[0] in ("output", "mixed", "loss", "probabilities", *GRADIENT_OF, "r")


def _is_long(step: SolutionStep) -> bool:
    has_powers = any(number.fraction is None for row in step.matrix.numbers for number in row)
    return has_powers and (_is_output(step) or step.key.startswith("weights"))


def _exponential_lines(step: SolutionStep, places: int) -> Iterator[Text]:
    """Each query's exponentials and their sum."""
    queries = list(zip(*step.cells, strict=True)) if step.columns else step.cells
    for query, (line, total) in enumerate(zip(queries, step.sums, strict=True), 1):
        parts = []
        for cell in line:
            decimal = format_decimal(cell.number.decimal, places)
            exact = "" if cell.written.startswith("≈") or cell.written == decimal else f"{cell.written} = "
            parts.append("masked" if cell.masked else f"{exact}{decimal}")
        if total.terms:
            end = f"sum {format_decimal(total.decimal, places)}"
        else:
            end = "sum 0: it may attend to nothing, so its weights are 0"
        yield from _wrap(f"query {query}:  {',  '.join(parts)}", "   ", hang="          ")
        yield from _wrap(end, "             ")


def _matrix_lines(lead: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """A matrix as aligned lines; `lead` stands before the first."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    bodies = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lead = f"{lead} " if lead else ""
    return [f"{' ' * len(lead) if index else lead}[ {body} ]" for index, body in enumerate(bodies)]


def _pack(blocks: Sequence[Block]) -> Iterator[Text]:
    """Blocks side by side where they fit; a row that is too wide is wrapped."""
    line: list[Block] = []
    for block in blocks:
        if line and sum(len(lines[0]) + 3 for lines, _ in [*line, block]) > WIDTH:
            yield from _place_side_by_side(line)
            line = []
        line.append(block)
    if line:
        yield from _place_side_by_side(line)


def _place_side_by_side(blocks: Sequence[Block]) -> Iterator[Text]:
    for index in range(max(len(lines) for lines, _ in blocks)):
        text = Text("   ")
        for lines, color in blocks:
            text.append((lines[index] if index < len(lines) else "").ljust(len(lines[0]) + 3), color)
        text.rstrip()
        if text.cell_len > WIDTH:
            yield from _wrap(text.plain.strip(), "   ", blocks[0][1], "      ")
        else:
            yield text


def _decimals(matrix: Matrix, places: int) -> list[list[str]]:
    return [[format_decimal(number.decimal, places) for number in row] for row in matrix.numbers]
