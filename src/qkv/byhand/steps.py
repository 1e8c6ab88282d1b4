"""A working as a list of steps whose every number knows how it came about; what all renderings share.

Everything here is turned as it is shown: in the column convention the cell of token 1 and feature 2 is [2,1].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qkv.byhand.matrices import Matrix, transpose
from qkv.byhand.number import Number
from qkv.byhand.reading import Rows
from qkv.byhand.working import Head, Worked
from qkv.byhand.writing import in_latex_product, in_product, latex, plain, readable, short, short_latex

Colour = Literal["queries", "keys", "values", "output", ""]


@dataclass(frozen=True)
class Cell:
    """One number: what it is, how it was made, and the cells it was made from."""

    name: str
    number: Number
    written: str
    written_latex: str
    sources: tuple[str, ...]
    forbidden: bool = False  # the mask keeps this key from this query

    @property
    def says_exact(self) -> bool:
        """Whether how it was made already states the exact number."""
        return f"{self.written} ≈".startswith(f"{plain(self.number)} ≈")


@dataclass(frozen=True)
class Step:
    key: str  # unique on the page, such as scores-2 for the second head
    symbol: str
    title: str
    formula: str
    formula_latex: str
    colour: Colour
    cells: tuple[tuple[Cell, ...], ...]
    sums: tuple[Number, ...] = ()  # of the exponentials, one for each query
    columns: bool = False  # one token a column
    given: bool = False  # nothing was worked: the inputs themselves

    @property
    def matrix(self) -> Matrix:
        return Matrix(tuple(tuple(cell.number for cell in row) for row in self.cells))


Make = Callable[[int, int], tuple[str, str, tuple[str, ...]]]


class Explainer:
    """Writes the steps of one working."""

    def __init__(self, worked: Worked) -> None:
        self.worked = worked
        self.problem = worked.problem
        self.columns = worked.problem.convention == "columns"

    def place(self, row: int, column: int) -> tuple[int, int]:
        """Where a cell is shown, counted from 1."""
        return (column + 1, row + 1) if self.columns else (row + 1, column + 1)

    def source(self, key: str, row: int, column: int) -> str:
        return "{}-{}-{}".format(key, *self.place(row, column))

    def step(
        self,
        key: str,
        symbol: str,
        title: str,
        formula: tuple[str, str],
        colour: Colour,
        rows: Rows,
        make: Make,
    ) -> Step:
        flags = self.problem.allowed if key.split("-")[0] in ("scaled", "exponentials", "weights") else None
        cells = []
        for i, row in enumerate(rows):
            line = []
            for j, number in enumerate(row):
                name = "{}[{},{}]".format(symbol, *self.place(i, j))
                line.append(Cell(name, number, *make(i, j), forbidden=flags is not None and not flags[i][j]))
            cells.append(line)
        shown = transpose(cells) if self.columns else tuple(map(tuple, cells))
        return Step(key, symbol, title, *formula, colour, shown, columns=self.columns, given=formula[0] in ("X", "X′"))

    def dot(
        self, left: Sequence[Number], right: Sequence[Number], weights: Sequence[Number] | None = None
    ) -> tuple[str, str]:
        """A sum of products, as text and as LaTeX; long weights are written as decimals."""
        firsts = [(in_product(a), in_latex_product(a)) for a in left]
        if weights is not None:
            firsts = [(short(a), short_latex(a)) for a in weights]
        seconds = [(in_product(b), in_latex_product(b)) for b in right]
        pairs = [(b, a) if self.columns else (a, b) for a, b in zip(firsts, seconds, strict=True)]
        text = " + ".join(f"{a[0]}·{b[0]}" for a, b in pairs)
        return text, " + ".join(rf"{a[1]} \cdot {b[1]}" for a, b in pairs)

    def steps(self) -> list[Step]:
        steps = [*self.with_positions(), *self.projections()]
        for index, head in enumerate(self.worked.heads):
            steps += self.of_head(index, head)
        if self.problem.wo is not None:
            steps.append(self.mixed())
        return steps

    def with_positions(self) -> list[Step]:
        x, positions, inputs = self.problem.x, self.problem.positions, self.problem.inputs
        if x is None or positions is None or inputs is None:
            return []

        def make(i: int, j: int) -> tuple[str, str, tuple[str, ...]]:
            a, b = x[i][j], positions[i][j]
            return (
                f"{plain(a)} + {in_product(b)}",
                f"{latex(a)} + {in_latex_product(b)}",
                (self.source("x", i, j), self.source("positions", i, j)),
            )

        return [self.step("inputs", "X′", "Inputs with positions", ("X + P", "X + P"), "", inputs, make)]

    def projections(self) -> list[Step]:
        inputs = self.problem.inputs
        if inputs is None:
            return []
        key = "x" if self.problem.positions is None else "inputs"
        steps = []
        for name, colour, weight, rows in zip(
            "QKV",
            ("queries", "keys", "values"),
            self.problem.projections,
            self.problem.projected(),
            strict=True,
        ):
            turned = None if weight is None else transpose(weight)

            def make(i: int, j: int, turned=turned, name=name) -> tuple[str, str, tuple[str, ...]]:
                if turned is None:
                    return plain(inputs[i][j]), latex(inputs[i][j]), (self.source(key, i, j),)
                from_x = [self.source(key, i, c) for c in range(len(inputs[i]))]
                from_w = [self.source(f"w{name.lower()}", c, j) for c in range(len(inputs[i]))]
                return *self.dot(inputs[i], turned[j]), (*from_x, *from_w)

            x = "X" if self.problem.positions is None else "X′"
            text = x if weight is None else f"W_{name} {x}" if self.columns else f"{x} W_{name}"
            formula = (text, text.replace("′", "'"))
            steps.append(self.step(colour, name, colour.capitalize(), formula, colour, rows, make))
        return steps

    def of_head(self, index: int, head: Head) -> list[Step]:
        """Scores, scaled scores, exponentials, weights and output of one head."""
        several = self.problem.heads > 1
        tail = f"-{index + 1}" if several else ""
        of = f", head {index + 1}" if several else ""
        mark, latex_mark = (f"{index + 1}", f"_{index + 1}") if several else ("", "")
        width, depth = len(head.keys[0]), len(head.values[0])

        def score(i: int, j: int) -> tuple[str, str, tuple[str, ...]]:
            from_q = [self.source("queries", i, index * width + c) for c in range(width)]
            from_k = [self.source("keys", j, index * width + c) for c in range(width)]
            return *self.dot(head.queries[i], head.keys[j]), (*from_q, *from_k)

        def scale(i: int, j: int) -> tuple[str, str, tuple[str, ...]]:
            beta, value = self.problem.beta, head.scores[i][j]
            written = f"{in_product(beta)}·{in_product(value)}"
            return (
                written,
                rf"{in_latex_product(beta)} \cdot {in_latex_product(value)}",
                (self.source(f"scores{tail}", i, j),),
            )

        def raise_e(i: int, j: int) -> tuple[str, str, tuple[str, ...]]:
            before = "scores" if self.unscaled else "scaled"
            power, sources = head.exponentials[i][j], (self.source(f"{before}{tail}", i, j),)
            if self.forbidden(i, j):
                return "masked", r"\text{masked}", sources
            return plain(power), latex(power), sources

        def share(i: int, j: int) -> tuple[str, str, tuple[str, ...]]:
            sources = tuple(self.source(f"exponentials{tail}", i, c) for c in range(len(head.keys)))
            if self.forbidden(i, j):
                return "masked", r"\text{masked}", sources
            part, total, weight = head.exponentials[i][j], head.sums[i], head.weights[i][j]
            text = f"{short(part, 6)} / {short(total, 6)}"
            latex_text = f"{short_latex(part, 6)} / {short_latex(total, 6)}"
            if weight.fraction is None and readable(weight):
                text, latex_text = f"{plain(weight)} ≈ {text}", rf"{latex(weight)} \approx {latex_text}"
            return text, latex_text, sources

        def mean(i: int, j: int) -> tuple[str, str, tuple[str, ...]]:
            from_a = [self.source(f"weights{tail}", i, c) for c in range(len(head.keys))]
            from_v = [self.source("values", c, index * depth + j) for c in range(len(head.keys))]
            column = [row[j] for row in head.values]
            return *self.dot(head.weights[i], column, head.weights[i]), (*from_a, *from_v)

        q, k, v, s, z, e, a, h = (f"{letter}{mark}" for letter in "QKVSZEAH")
        lq, lk, lv, ls, lz, la = (f"{letter}{latex_mark}" for letter in "QKVSZA")
        one = "column" if self.columns else "row"
        scores = (f"{k}ᵀ {q}", rf"{lk}^\top {lq}") if self.columns else (f"{q} {k}ᵀ", rf"{lq} {lk}^\top")
        last, last_latex = (s, ls) if self.unscaled else (z, lz)
        steps = [self.step(f"scores{tail}", s, f"Scores{of}", scores, "", head.scores, score)]
        if not self.unscaled:
            formula = (
                f"β {s}, β = {plain(self.problem.beta)}",
                rf"{in_latex_product(self.problem.beta)}\,{ls}",
            )
            steps.append(self.step(f"scaled{tail}", z, f"Scaled scores{of}", formula, "", head.scaled, scale))
        masked = "" if self.problem.allowed is None else ", 0 where masked"
        formula = (f"e^{last}{masked}", rf"e^{{{last_latex}}}")
        exponentials = self.step(f"exponentials{tail}", e, f"Exponentials{of}", formula, "", head.exponentials, raise_e)
        steps.append(replace(exponentials, sums=head.sums))
        formula = (f"each {one} of {e} over its sum", rf"\operatorname{{softmax}}({last_latex})")
        steps.append(self.step(f"weights{tail}", a, f"Weights{of}", formula, "", head.weights, share))
        formula = (f"{v} {a}", f"{lv} {la}") if self.columns else (f"{a} {v}", f"{la} {lv}")
        key = "output" if self.problem.wo is None and not several else f"output{tail}"
        return [*steps, self.step(key, h, f"Output{of}", formula, "output", head.output, mean)]

    @property
    def unscaled(self) -> bool:
        return self.problem.beta == Number.of(1)

    def forbidden(self, i: int, j: int) -> bool:
        return self.problem.allowed is not None and not self.problem.allowed[i][j]

    def mixed(self) -> Step:
        """The heads' outputs, side by side, times W_O."""
        wo, joined = self.problem.wo, self.worked.joined
        assert wo is not None
        turned = transpose(wo)
        depth = len(joined[0]) // self.problem.heads

        def make(i: int, j: int) -> tuple[str, str, tuple[str, ...]]:
            many = self.problem.heads > 1
            from_h = [
                self.source(f"output-{c // depth + 1}" if many else "output", i, c % depth if many else c)
                for c in range(len(joined[i]))
            ]
            from_w = [self.source("wo", c, j) for c in range(len(joined[i]))]
            return *self.dot(joined[i], turned[j], joined[i]), (*from_h, *from_w)

        names = [f"H{head + 1}" for head in range(self.problem.heads)] if self.problem.heads > 1 else ["H"]
        joint = (" ; " if self.columns else " ").join(names)
        text = f"W_O [{joint}]" if self.columns else f"[{joint}] W_O"
        return self.step("mixed", "O", "Output, mixed by W_O", (text, text), "output", self.worked.result, make)


def explain(worked: Worked) -> list[Step]:
    """The steps of a working, in the order in which a person takes them."""
    return Explainer(worked).steps()
