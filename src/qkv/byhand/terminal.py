"""The working as lines for a terminal of 80 columns."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from qkv.byhand.captions import agreement_sentence, givens, setting_text
from qkv.byhand.matrices import Matrix
from qkv.byhand.steps import Cell, Step, explain
from qkv.byhand.working import Worked
from qkv.byhand.writing import fixed, plain

WIDTH = 80
COLOURS = {"queries": "#4a90d9", "keys": "#d98200", "values": "#00a078", "output": "#c46fa3", "": ""}
Block = tuple[list[str], str]  # lines, and their colour


def render(worked: Worked, places: int = 4) -> Iterator[Text]:
    """The whole working, line by line; no line is longer than 80 characters."""
    if worked.problem.title:
        yield from wrapped(worked.problem.title, style="bold")
    yield from wrapped(setting_text(worked), style="dim")
    yield Text()
    blocks = [(_block(f"{symbol} =", matrix.exact), COLOURS[colour]) for _, symbol, colour, matrix in givens(worked)]
    yield from _packed(blocks)
    for number, step in enumerate(explain(worked), 1):
        yield Text()
        yield from _step(number, step, places)
    yield Text()
    yield from _closing(worked, places)


def wrapped(text: str, indent: str = "", style: str = "", hang: str = "") -> Iterator[Text]:
    """Lines of at most 80 characters."""
    for line in textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + hang) or [""]:
        yield Text(line, style)


def _closing(worked: Worked, places: int) -> Iterator[Text]:
    yield from wrapped(agreement_sentence(worked), style="" if worked.agreement.agrees else "bold red")
    if worked.unscaled is not None:
        yield Text()
        yield Text("Without the scale (β = 1) the output would be", "dim")
        for line in _block("", _decimals(worked.unscaled, places)):
            yield from wrapped(line, "   ", "dim", "    ")


def _step(number: int, step: Step, places: int) -> Iterator[Text]:
    heading = Text(f"{number}  ", "bold")
    heading.append(step.title, f"bold {COLOURS[step.colour]}".strip())
    heading.append(f"   {step.symbol} = {step.formula}")
    heading.truncate(WIDTH)
    yield heading
    if step.sums:
        yield from _exponentials(step, places)
        return
    if not step.given:
        for row in step.cells:
            for cell in row:
                yield from wrapped(_equation(step, cell, places), "   ", hang="      ")
        yield Text()
    yield from _packed(_result(step, places))


def _equation(step: Step, cell: Cell, places: int) -> str:
    """S[1,1] = 1·3 + 3·(-1/2) = 3/2; numbers that are no fractions get their decimal beside."""
    exact, decimal = plain(cell.number), fixed(cell.number.decimal, places)
    if cell.number.fraction is not None:
        return f"{cell.name} = {cell.written} = {exact}"
    if _is_output(step) or exact.startswith("≈") or cell.says_exact:
        return f"{cell.name} = {cell.written} ≈ {decimal}"
    return f"{cell.name} = {cell.written} = {exact} ≈ {decimal}"


def _result(step: Step, places: int) -> list[Block]:
    """The step's matrix, exact where that is short, and in decimals where that says more."""
    numbers = [number for row in step.matrix.numbers for number in row]
    colour, symbol = COLOURS[step.colour], f"{step.symbol} ="
    blocks: list[Block] = []
    if all(len(plain(number)) <= 12 for number in numbers) and not _is_long(step):
        blocks.append((_block(symbol, step.matrix.exact), colour))
        symbol = ""
    if not blocks or any(number.fraction is None or number.fraction.denominator != 1 for number in numbers):
        decimals = _decimals(step.matrix, places)
        same = all(number.fraction is not None and len(fixed(number.decimal, 20)) <= places + 2 for number in numbers)
        sign = "=" if same else "≈"
        blocks.append((_block(f"{symbol.rstrip(' =')} {sign}".strip(), decimals), colour))
    return blocks


def _is_output(step: Step) -> bool:
    return step.key.split("-")[0] in ("output", "mixed")


def _is_long(step: Step) -> bool:
    has_powers = any(number.fraction is None for row in step.matrix.numbers for number in row)
    return has_powers and (_is_output(step) or step.key.startswith("weights"))


def _exponentials(step: Step, places: int) -> Iterator[Text]:
    """Each query's exponentials and their sum."""
    queries = list(zip(*step.cells, strict=True)) if step.columns else step.cells
    for query, (line, total) in enumerate(zip(queries, step.sums, strict=True), 1):
        parts = []
        for cell in line:
            decimal = fixed(cell.number.decimal, places)
            exact = "" if cell.written.startswith("≈") or cell.written == decimal else f"{cell.written} = "
            parts.append("masked" if cell.forbidden else f"{exact}{decimal}")
        if total.terms:
            end = f"sum {fixed(total.decimal, places)}"
        else:
            end = "sum 0: it may attend to nothing, so its weights are 0"
        yield from wrapped(f"query {query}:  {',  '.join(parts)}", "   ", hang="          ")
        yield from wrapped(end, "             ")


def _block(lead: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """A matrix as aligned lines, with what leads up to it beside the first."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    bodies = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lead = f"{lead} " if lead else ""
    return [f"{' ' * len(lead) if index else lead}[ {body} ]" for index, body in enumerate(bodies)]


def _packed(blocks: Sequence[Block]) -> Iterator[Text]:
    """Blocks side by side as far as they fit; a row that is too wide is wrapped."""
    line: list[Block] = []
    for block in blocks:
        if line and sum(len(lines[0]) + 3 for lines, _ in [*line, block]) > WIDTH:
            yield from _side_by_side(line)
            line = []
        line.append(block)
    if line:
        yield from _side_by_side(line)


def _side_by_side(blocks: Sequence[Block]) -> Iterator[Text]:
    for index in range(max(len(lines) for lines, _ in blocks)):
        text = Text("   ")
        for lines, colour in blocks:
            text.append((lines[index] if index < len(lines) else "").ljust(len(lines[0]) + 3), colour)
        text.rstrip()
        if text.cell_len > WIDTH:
            yield from wrapped(text.plain.strip(), "   ", blocks[0][1], "      ")
        else:
            yield text


def _decimals(matrix: Matrix, places: int) -> list[list[str]]:
    return [[fixed(number.decimal, places) for number in row] for row in matrix.numbers]
