"""The step-by-step derivation of a solution: every number with its formula and its sources, for all renderers.

Everything here is oriented as it is shown: in the column convention the cell of token 1 and feature 2 is [2,1].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qkv.byhand.matrices import Matrix, transpose
from qkv.byhand.numbers import (
    Number,
    as_factor,
    as_latex_factor,
    is_readable,
    short_factor,
    short_latex_factor,
    to_latex,
    to_text,
)
from qkv.byhand.parsing import Rows
from qkv.byhand.solution import HeadSolution, Solution

Color = Literal["queries", "keys", "values", "output", ""]


@dataclass(frozen=True)
class StepCell:
    """One number: its name, how it was computed, and the cells it was computed from."""

    name: str
    number: Number
    written: str
    written_latex: str
    sources: tuple[str, ...]
    masked: bool = False  # this query may not attend to this key

    @property
    def states_exact(self) -> bool:
        """Whether `written` already states the exact number."""
        return f"{self.written} ≈".startswith(f"{to_text(self.number)} ≈")


@dataclass(frozen=True)
class SolutionStep:
    """One matrix of the derivation, oriented as it is shown."""

    key: str  # unique on the page, such as scores-2 for the second head
    symbol: str
    title: str
    formula: str
    formula_latex: str
    color: Color
    cells: tuple[tuple[StepCell, ...], ...]
    sums: tuple[Number, ...] = ()  # of the exponentials, one for each query
    columns: bool = False  # one token a column
    given: bool = False  # equal to the inputs: nothing to compute

    @property
    def matrix(self) -> Matrix:
        return Matrix(tuple(tuple(cell.number for cell in row) for row in self.cells))


Derivation = tuple[str, str, tuple[str, ...]]  # text, LaTeX, sources
Derive = Callable[[int, int], Derivation]


def explain_steps(solution: Solution) -> list[SolutionStep]:
    """The steps of a solution, in the order in which a person takes them."""
    return _StepWriter(solution).steps()


class _StepWriter:
    """Writes the steps of one solution."""

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        self.problem = solution.problem
        self.columns = solution.problem.convention == "columns"
        self.unscaled = self.problem.scale == Number.of(1)

    def steps(self) -> list[SolutionStep]:
        steps = [*self.add_positions(), *self.projections()]
        for index, head in enumerate(self.solution.heads):
            steps += self.head_steps(index, head)
        if self.problem.wo is not None:
            steps.append(self.output_projection())
        return steps

    def place(self, row: int, column: int) -> tuple[int, int]:
        """Where a cell is shown, counted from 1."""
        return (column + 1, row + 1) if self.columns else (row + 1, column + 1)

    def source(self, key: str, row: int, column: int) -> str:
        return "{}-{}-{}".format(key, *self.place(row, column))

    def is_masked(self, i: int, j: int) -> bool:
        return self.problem.mask is not None and not self.problem.mask[i][j]

    def step(
        self,
        key: str,
        symbol: str,
        title: str,
        formula: tuple[str, str],
        color: Color,
        rows: Rows,
        derive: Derive,
    ) -> SolutionStep:
        maskable = key.split("-")[0] in ("scaled", "exponentials", "weights")
        cells = []
        for i, row in enumerate(rows):
            line = []
            for j, number in enumerate(row):
                name = "{}[{},{}]".format(symbol, *self.place(i, j))
                line.append(StepCell(name, number, *derive(i, j), masked=maskable and self.is_masked(i, j)))
            cells.append(line)
        shown = transpose(cells) if self.columns else tuple(map(tuple, cells))
        return SolutionStep(
            key, symbol, title, *formula, color, shown, columns=self.columns, given=formula[0] in ("X", "X′")
        )

    def dot(self, left: Sequence[Number], right: Sequence[Number], *, long_left: bool = False) -> tuple[str, str]:
        """A sum of products, as text and as LaTeX; long_left writes long left factors as decimals."""
        if long_left:
            firsts = [(short_factor(a), short_latex_factor(a)) for a in left]
        else:
            firsts = [(as_factor(a), as_latex_factor(a)) for a in left]
        seconds = [(as_factor(b), as_latex_factor(b)) for b in right]
        pairs = [(b, a) if self.columns else (a, b) for a, b in zip(firsts, seconds, strict=True)]
        text = " + ".join(f"{a[0]}·{b[0]}" for a, b in pairs)
        return text, " + ".join(rf"{a[1]} \cdot {b[1]}" for a, b in pairs)

    def add_positions(self) -> list[SolutionStep]:
        x, positions, inputs = self.problem.x, self.problem.positions, self.problem.inputs
        if x is None or positions is None or inputs is None:
            return []

        def derive(i: int, j: int) -> Derivation:
            a, b = x[i][j], positions[i][j]
            return (
                f"{to_text(a)} + {as_factor(b)}",
                f"{to_latex(a)} + {as_latex_factor(b)}",
                (self.source("x", i, j), self.source("positions", i, j)),
            )

        return [self.step("inputs", "X′", "Inputs with positions", ("X + P", "X + P"), "", inputs, derive)]

    def projections(self) -> list[SolutionStep]:
        inputs = self.problem.inputs
        if inputs is None:
            return []
        key, x = ("x", "X") if self.problem.positions is None else ("inputs", "X′")
        colors: tuple[Color, ...] = ("queries", "keys", "values")
        steps = []
        for name, color, weight, rows in zip(
            "QKV", colors, self.problem.projections, self.problem.project(), strict=True
        ):
            columns = None if weight is None else transpose(weight)

            def derive(i: int, j: int, columns=columns, name=name) -> Derivation:
                if columns is None:
                    return to_text(inputs[i][j]), to_latex(inputs[i][j]), (self.source(key, i, j),)
                from_x = [self.source(key, i, c) for c in range(len(inputs[i]))]
                from_w = [self.source(f"w{name.lower()}", c, j) for c in range(len(inputs[i]))]
                return *self.dot(inputs[i], columns[j]), (*from_x, *from_w)

            product = f"W_{name} {x}" if self.columns else f"{x} W_{name}"
            text = x if weight is None else product
            formula = (text, text.replace("′", "'"))
            steps.append(self.step(color, name, color.capitalize(), formula, color, rows, derive))
        return steps

    def head_steps(self, index: int, head: HeadSolution) -> list[SolutionStep]:
        """Scores, scaled scores, exponentials, weights and output of one head."""
        several = self.problem.heads > 1
        suffix, title = (f"-{index + 1}", f", head {index + 1}") if several else ("", "")
        number, latex_number = (f"{index + 1}", f"_{index + 1}") if several else ("", "")
        q, k, v, s, z, e, a, h = (f"{letter}{number}" for letter in "QKVSZEAH")
        lq, lk, lv, ls, lz, la = (f"{letter}{latex_number}" for letter in "QKVSZA")
        last, last_latex, last_key = (s, ls, "scores") if self.unscaled else (z, lz, "scaled")
        derive = _HeadDerivations(self, index, head, suffix, last_key)

        formula = (f"{k}ᵀ {q}", rf"{lk}^\top {lq}") if self.columns else (f"{q} {k}ᵀ", rf"{lq} {lk}^\top")
        steps = [self.step(f"scores{suffix}", s, f"Scores{title}", formula, "", head.scores, derive.score)]
        if not self.unscaled:
            scale = self.problem.scale
            formula = (f"β {s}, β = {to_text(scale)}", rf"{as_latex_factor(scale)}\,{ls}")
            step = self.step(f"scaled{suffix}", z, f"Scaled scores{title}", formula, "", head.scaled, derive.scaled)
            steps.append(step)
        masked = "" if self.problem.mask is None else ", 0 where masked"
        formula = (f"e^{last}{masked}", rf"e^{{{last_latex}}}")
        rows = head.exponentials
        step = self.step(f"exponentials{suffix}", e, f"Exponentials{title}", formula, "", rows, derive.exponential)
        steps.append(replace(step, sums=head.sums))
        line = "column" if self.columns else "row"
        formula = (f"each {line} of {e} over its sum", rf"\operatorname{{softmax}}({last_latex})")
        steps.append(self.step(f"weights{suffix}", a, f"Weights{title}", formula, "", head.weights, derive.weight))
        formula = (f"{v} {a}", f"{lv} {la}") if self.columns else (f"{a} {v}", f"{la} {lv}")
        steps.append(self.step(f"output{suffix}", h, f"Output{title}", formula, "output", head.output, derive.output))
        return steps

    def output_projection(self) -> SolutionStep:
        """The heads' outputs, concatenated, times W_O."""
        wo, rows, heads = self.problem.wo, self.solution.concatenated, self.problem.heads
        assert wo is not None
        columns = transpose(wo)
        dim = len(rows[0]) // heads

        def head_source(i: int, c: int) -> str:
            if heads == 1:
                return self.source("output", i, c)
            return self.source(f"output-{c // dim + 1}", i, c % dim)

        def derive(i: int, j: int) -> Derivation:
            from_h = [head_source(i, c) for c in range(len(rows[i]))]
            from_w = [self.source("wo", c, j) for c in range(len(rows[i]))]
            return *self.dot(rows[i], columns[j], long_left=True), (*from_h, *from_w)

        names = [f"H{head + 1}" for head in range(heads)] if heads > 1 else ["H"]
        concatenated = (" ; " if self.columns else " ").join(names)
        text = f"W_O [{concatenated}]" if self.columns else f"[{concatenated}] W_O"
        return self.step("mixed", "O", "Output, mixed by W_O", (text, text), "output", self.solution.result, derive)


class _HeadDerivations:
    """How each number of one head is computed."""

    def __init__(self, writer: _StepWriter, index: int, head: HeadSolution, suffix: str, last_key: str) -> None:
        self.writer, self.index, self.head = writer, index, head
        self.suffix = suffix  # of the keys of this head's steps
        self.last_key = last_key  # of the step before the exponentials

    def score(self, i: int, j: int) -> Derivation:
        dim = len(self.head.keys[0])
        first = self.index * dim
        from_q = [self.writer.source("queries", i, first + c) for c in range(dim)]
        from_k = [self.writer.source("keys", j, first + c) for c in range(dim)]
        return *self.writer.dot(self.head.queries[i], self.head.keys[j]), (*from_q, *from_k)

    def scaled(self, i: int, j: int) -> Derivation:
        scale, score = self.writer.problem.scale, self.head.scores[i][j]
        return (
            f"{as_factor(scale)}·{as_factor(score)}",
            rf"{as_latex_factor(scale)} \cdot {as_latex_factor(score)}",
            (self.writer.source(f"scores{self.suffix}", i, j),),
        )

    def exponential(self, i: int, j: int) -> Derivation:
        power, sources = self.head.exponentials[i][j], (self.writer.source(f"{self.last_key}{self.suffix}", i, j),)
        if self.writer.is_masked(i, j):
            return "masked", r"\text{masked}", sources
        return to_text(power), to_latex(power), sources

    def weight(self, i: int, j: int) -> Derivation:
        keys = range(len(self.head.keys))
        sources = tuple(self.writer.source(f"exponentials{self.suffix}", i, c) for c in keys)
        if self.writer.is_masked(i, j):
            return "masked", r"\text{masked}", sources
        part, total, weight = self.head.exponentials[i][j], self.head.sums[i], self.head.weights[i][j]
        text = f"{short_factor(part, 6)} / {short_factor(total, 6)}"
        latex = f"{short_latex_factor(part, 6)} / {short_latex_factor(total, 6)}"
        if weight.fraction is None and is_readable(weight):
            text, latex = f"{to_text(weight)} ≈ {text}", rf"{to_latex(weight)} \approx {latex}"
        return text, latex, sources

    def output(self, i: int, j: int) -> Derivation:
        keys, first = range(len(self.head.keys)), self.index * len(self.head.values[0])
        from_a = [self.writer.source(f"weights{self.suffix}", i, c) for c in keys]
        from_v = [self.writer.source("values", c, first + j) for c in keys]
        column = [row[j] for row in self.head.values]
        return *self.writer.dot(self.head.weights[i], column, long_left=True), (*from_a, *from_v)


def given_matrices(solution: Solution) -> list[tuple[str, str, Color, Matrix]]:
    """The matrices that were given, as they are shown: (key, symbol, color, matrix)."""
    problem = solution.problem
    wq, wk, wv = problem.projections
    q, k, v = problem.direct_qkv or (None, None, None)
    rows: list[tuple[str, str, Color, Rows | None]] = [
        ("x", "X", "", problem.x),
        ("positions", "P", "", problem.positions),
        ("wq", "W_Q", "queries", wq),
        ("wk", "W_K", "keys", wk),
        ("wv", "W_V", "values", wv),
        ("queries", "Q", "queries", q),
        ("keys", "K", "keys", k),
        ("values", "V", "values", v),
        ("wo", "W_O", "output", problem.wo),
    ]
    turn = problem.convention == "columns"
    return [(a, b, c, Matrix(transpose(m) if turn else m)) for a, b, c, m in rows if m is not None]


def describe_setting(solution: Solution) -> str:
    """The setting in one line: convention, sizes, scale, mask."""
    problem = solution.problem
    dim = len(solution.heads[0].keys[0])
    convention = "one token a column" if problem.convention == "columns" else "one token a row"
    heads = "1 head" if problem.heads == 1 else f"{problem.heads} heads"
    scale = f"β = 1/√{dim} = {to_text(problem.scale)}" if problem.default_scale else f"β = {to_text(problem.scale)}"
    mask = "" if problem.mask is None else " · masked"
    return f"{convention} · {heads} of dimension {dim} · {scale}{mask}"


def describe_agreement(solution: Solution) -> str:
    """How the exact output compares with qkv's float64 attention, in one sentence."""
    agreement = solution.agreement
    verdict = "the same" if agreement.agrees else "NOT the same, which is a bug in qkv"
    difference = f"{agreement.difference:.1e}" if agreement.difference else "0"
    return f"qkv's float64 attention gives {verdict}: difference {difference} (allowed {agreement.tolerance:.0e})."
