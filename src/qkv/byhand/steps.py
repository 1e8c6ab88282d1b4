"""The step-by-step derivation of a solution: every number with its formula and its sources, for all renderers.

Everything here is oriented as it is shown: in the column convention the cell of token 1 and feature 2 is [2,1]. What a
number is computed from comes from the step graph; this file writes it down.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qkv.byhand.graph import Cell, Operand, Step
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
from qkv.byhand.solution import Solution, exponentials
from qkv.byhand.symbols import NAMES, Color, latex_symbol

KEYS = {"concatenated": "output", "output": "mixed"}  # on the page, where they are not the names of the graph
EXACT_FACTORS = ("x", "positions", "inputs", "wq", "wk", "wv", "wo", "queries", "keys", "values", "scores")
MASKED = ("scaled", "exponentials", "weights", "dZ", "dS")
MAX_LOSS_TERMS = 12  # written out


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
    columns: bool = False  # one token per column
    given: bool = False  # equal to what was given: nothing to compute

    @property
    def matrix(self) -> Matrix:
        return Matrix(tuple(tuple(cell.number for cell in row) for row in self.cells))


Written = tuple[str, str]  # as text and as LaTeX
Derivation = tuple[str, str, tuple[str, ...]]  # text, LaTeX, sources


def explain_steps(solution: Solution) -> list[SolutionStep]:
    """The steps of a solution, in the order in which a person takes them."""
    return _StepWriter(solution).steps()


class _StepWriter:
    """Writes the steps of one solution."""

    def __init__(self, solution: Solution) -> None:
        self.solution, self.problem, self.graph = solution, solution.problem, solution.graph
        self.columns = solution.problem.convention == "columns"
        self.unscaled = self.problem.scale == Number.of(1)
        self.tables: dict[str, Rows] = {**self.graph.given, **solution.tables}

    def steps(self) -> list[SolutionStep]:
        """Whole tables one by one, those of heads head by head."""
        hidden = {"output"} if self.problem.wo is None else set()
        hidden |= {"scaled", "dS"} if self.unscaled else set()
        names = [name for name in self.graph.steps if name not in hidden]
        steps: list[SolutionStep] = []
        while names:
            block = [names.pop(0)]
            if not self.graph.steps[block[0]].heads:
                steps += self.loss_steps(block[0])
                steps.append(self.step(block[0], 0))
                continue
            while names and self.graph.steps[names[0]].heads:
                block.append(names.pop(0))
            for head in range(self.problem.heads):
                for name in block:
                    steps += [self.exponentials(head)] if name == "weights" else []
                    steps.append(self.step(name, head))
        return steps

    def step(self, name: str, head: int) -> SolutionStep:
        """One table, or one head of it."""
        step, key = self.graph.steps[name], self.shown(name)
        symbol, title, color = NAMES[key]
        places = self.head_places(name, head)
        suffix, number, of_head = "", "", ""
        if step.heads and self.problem.heads > 1:
            suffix, number, of_head = f"-{head + 1}", f"{head + 1}", f", head {head + 1}"
        cells = [[self.cell(name, f"{symbol}{number}", (i, j), local) for local, (i, j) in row] for row in places]
        formula = self.formula(step, head)
        return SolutionStep(
            key=f"{KEYS.get(key, key)}{suffix}",
            symbol=f"{symbol}{number}",
            title=f"{title}{of_head}",
            formula=formula[0],
            formula_latex=formula[1],
            color=color,
            cells=transpose(cells) if self.columns else tuple(map(tuple, cells)),
            columns=self.columns,
            given=len(step.addends) == 1 and not step.products,
        )

    def head_places(self, name: str, head: int) -> list[list[tuple[tuple[int, int], tuple[int, int]]]]:
        """The cells of one head: where they are in the head, and where in the whole table."""
        rows, columns = self.graph.shapes[name]
        found: dict[int, list[tuple[tuple[int, int], tuple[int, int]]]] = {}
        for i in range(rows):
            for j in range(columns):
                own, row, column = self.graph.split_place(name, i, j)
                if own == head:
                    found.setdefault(row, []).append(((row, column), (i, j)))
        return list(found.values())

    def cell(self, name: str, symbol: str, place: tuple[int, int], local: tuple[int, int]) -> StepCell:
        number = self.tables[name][place[0]][place[1]]
        masked = name in MASKED and self.is_masked(*place)
        return StepCell(self.name(symbol, *local), number, *self.derive(name, *place), masked=masked)

    def name(self, symbol: str, row: int, column: int) -> str:
        first, second = (column, row) if self.columns else (row, column)
        return f"{symbol}[{first + 1},{second + 1}]"

    def source(self, cell: Cell) -> str:
        """The id of a cell on the page."""
        name, row, column = self.shown(cell[0]), *cell[1:]
        key = KEYS.get(name, name)
        if self.problem.heads > 1 and name in self.graph.steps and self.graph.steps[name].heads:
            head, row, column = self.graph.split_place(name, row, column)
            key = f"{key}-{head + 1}"
        first, second = (column, row) if self.columns else (row, column)
        return f"{key}-{first + 1}-{second + 1}"

    def is_masked(self, row: int, column: int) -> bool:
        mask = self.problem.mask
        return mask is not None and not mask[row % len(mask)][column]

    def number(self, cell: Cell) -> Number:
        return self.tables[cell[0]][cell[1]][cell[2]]

    def factor(self, cell: Cell) -> Written:
        """A number in a product: exactly if it is likely to be short, else as a decimal."""
        number = self.number(cell)
        if cell[0] in EXACT_FACTORS:
            return as_factor(number), as_latex_factor(number)
        return short_factor(number), short_latex_factor(number)

    def derive(self, name: str, row: int, column: int) -> Derivation:
        """How one number is computed."""
        step = self.graph.steps[name]
        sources = tuple(self.source(cell) for cell in self.graph.sources(name, row, column))
        if step.inputs == ("upstream",) and self.problem.loss and self.problem.loss.name != "upstream":
            sources = ("loss-1-1",)  # of a sum or mean every derivative is the same number
        if name in MASKED[2:] and self.is_masked(row, column):
            return "masked", r"\text{masked}", sources
        write: dict[str, Callable[[str, int, int], Written]] = {
            "sum": self.write_sum,
            "row-dot": self.write_sum,
            "scale": self.write_scaled,
            "softmax": self.write_share,
            "softmax-gradient": self.write_softmax_gradient,
            "difference": self.write_difference,
        }
        if step.operation == "softmax" and name == "weights":
            keys = range(self.graph.shapes["weights"][1])
            sources = tuple(self.source(("scaled", row, c)).replace(self.last_key(), "exponentials") for c in keys)
        return *write[step.operation](name, row, column), sources

    def last_key(self) -> str:
        """The key of the step before the exponentials."""
        return "scores" if self.unscaled else "scaled"

    def write_sum(self, name: str, row: int, column: int) -> Written:
        parts: list[Written] = []
        for cell in self.graph.addends(name, row, column):
            number = self.number(cell)
            parts.append((as_factor(number), as_latex_factor(number)) if parts else (to_text(number), to_latex(number)))
        for left, right in self.graph.products(name, row, column):
            a, b = (self.factor(right), self.factor(left)) if self.columns else (self.factor(left), self.factor(right))
            parts.append((f"{a[0]}·{b[0]}", rf"{a[1]} \cdot {b[1]}"))
        return " + ".join(text for text, _ in parts), " + ".join(latex for _, latex in parts)

    def write_scaled(self, name: str, row: int, column: int) -> Written:
        scale, (text, latex) = self.problem.scale, self.factor((self.graph.steps[name].inputs[0], row, column))
        return f"{as_factor(scale)}·{text}", rf"{as_latex_factor(scale)} \cdot {latex}"

    def write_share(self, name: str, row: int, column: int) -> Written:
        """An exponential over the sum of its row."""
        powers = self.exponentials_of(name, row)
        part, total, share = powers[column], sum(powers, start=Number.of(0)), self.tables[name][row][column]
        text = f"{short_factor(part, 6)} / {short_factor(total, 6)}"
        latex = f"{short_latex_factor(part, 6)} / {short_latex_factor(total, 6)}"
        if share.fraction is None and is_readable(share):
            text, latex = f"{to_text(share)} ≈ {text}", rf"{to_latex(share)} \approx {latex}"
        return text, latex

    def exponentials_of(self, name: str, row: int) -> tuple[Number, ...]:
        before = self.tables[self.graph.steps[name].inputs[0]][row]
        masked = name == "weights"
        return exponentials(before, [not (masked and self.is_masked(row, c)) for c in range(len(before))])

    def write_softmax_gradient(self, name: str, row: int, column: int) -> Written:
        weight, gradient = self.factor(("weights", row, column)), self.factor(("dA", row, column))
        total = self.factor(("r", row, 0))
        return f"{weight[0]}·({gradient[0]} − {total[0]})", rf"{weight[1]} \left({gradient[1]} - {total[1]}\right)"

    def write_difference(self, name: str, row: int, column: int) -> Written:
        first, target = (self.factor((table, row, column)) for table in self.graph.steps[name].inputs)
        factor = self.tables["loss_factors"][row][0]
        text, latex = f"{first[0]} − {target[0]}", f"{first[1]} - {target[1]}"
        if factor == Number.of(1):
            return text, latex
        return f"{as_factor(factor)}·({text})", rf"{as_latex_factor(factor)} \left({latex}\right)"

    def exponentials(self, head: int) -> SolutionStep:
        """The exponentials of one head and their sums; not a table of the graph."""
        weights = self.step("weights", head)
        rows = [place for row in self.head_places("weights", head) for place in row[:1]]
        last = NAMES[self.last_key()][0] + weights.symbol[1:]
        cells, sums = [], []
        for (i, _), (row, _) in rows:
            powers = self.exponentials_of("weights", row)
            sums.append(sum(powers, start=Number.of(0)))
            line = []
            for j, power in enumerate(powers):
                masked = self.is_masked(row, j)
                text = ("masked", r"\text{masked}") if masked else (to_text(power), to_latex(power))
                name, sources = self.name(f"E{weights.symbol[1:]}", i, j), (self.source(("scaled", row, j)),)
                line.append(StepCell(name, power, *text, sources, masked=masked))
            cells.append(line)
        note = "" if self.problem.mask is None else ", 0 where masked"
        return replace(
            weights,
            key=weights.key.replace("weights", "exponentials"),
            symbol=f"E{weights.symbol[1:]}",
            title=weights.title.replace("Weights", "Exponentials"),
            formula=f"e^{last}{note}",
            formula_latex=rf"e^{{{latex_symbol(last)}}}",
            cells=transpose(cells) if self.columns else tuple(map(tuple, cells)),
            sums=tuple(sums),
        )

    def formula(self, step: Step, head: int) -> Written:
        number = f"{head + 1}" if step.heads and self.problem.heads > 1 else ""
        line = "column" if self.columns else "row"
        if step.operation == "sum":
            return self.sum_formula(step, number)
        if step.operation == "scale":
            symbol, scale = self.symbol(step.inputs[0], number), self.problem.scale
            return f"β {symbol}, β = {to_text(scale)}", rf"{as_latex_factor(scale)}\,{latex_symbol(symbol)}"
        if step.operation == "softmax":
            if step.name == "probabilities":
                symbol = self.symbol("output", "")
                return f"softmax of each {line} of {symbol}", rf"\operatorname{{softmax}}({latex_symbol(symbol)})"
            last = latex_symbol(NAMES[self.last_key()][0] + number)
            return f"each {line} of E{number} divided by its sum", rf"\operatorname{{softmax}}({last})"
        if step.operation == "row-dot":
            a, d = f"A{number}", f"dA{number}"
            return f"{line} sums of {a}∘{d}", rf"\Sigma\,{latex_symbol(a)} \circ {latex_symbol(d)}"
        if step.operation == "softmax-gradient":
            a, d, r = f"A{number}", f"dA{number}", f"r{number}"
            latex = (latex_symbol(symbol) for symbol in (a, d, r))
            return f"{a}∘({d} − {r})", r"{} \circ \left({} - {}\right)".format(*latex)
        return self.difference_formula(step)

    def sum_formula(self, step: Step, number: str) -> Written:
        parts: list[Written] = []
        for addend in step.addends:
            if addend.name == "upstream" and self.problem.loss and self.problem.loss.name != "upstream":
                parts.append((to_text(self.tables["upstream"][0][0]), to_latex(self.tables["upstream"][0][0])))
            else:
                symbol = self.operand(addend, number)
                parts.append((symbol, latex_symbol(symbol)))
        for left, right in step.products:
            pair = [self.operand(operand, number) for operand in ((right, left) if self.columns else (left, right))]
            parts.append((" ".join(pair), " ".join(map(latex_symbol, pair))))
        return " + ".join(text for text, _ in parts), " + ".join(latex for _, latex in parts)

    def operand(self, operand: Operand, number: str) -> str:
        """The symbol of a factor: Q1 for a head, [H1 H2] for all heads together, with ᵀ if it is transposed."""
        symbol = self.symbol(operand.name, number if operand.heads else "")
        step = self.graph.steps.get(operand.name)
        if step is not None and step.heads and not operand.heads and operand.name in ("concatenated", "dQ", "dK", "dV"):
            names = [f"{symbol}{head + 1}" if self.problem.heads > 1 else symbol for head in range(self.problem.heads)]
            if operand.name == "concatenated" or self.problem.heads > 1:
                symbol = f"[{(' ; ' if self.columns else ' ').join(names)}]"
        return f"{symbol}ᵀ" if operand.transposed else symbol

    def symbol(self, name: str, number: str) -> str:
        return NAMES[self.shown(name)][0] + number

    def shown(self, name: str) -> str:
        """The table under whose name this one is shown: without W_O or with a scale of 1, two are the same."""
        if self.problem.wo is None and name == "output":
            return "concatenated"
        return {"scaled": "scores", "dZ": "dS"}.get(name, name) if self.unscaled else name

    def difference_formula(self, step: Step) -> Written:
        left, right = self.symbol(step.inputs[0], ""), "Y" if step.inputs[0] == "probabilities" else "T"
        factor = next(row[0] for row in self.tables["loss_factors"] if row[0].terms)
        if factor == Number.of(1):
            return f"{left} − {right}", f"{left} - {right}"
        return f"{to_text(factor)}·({left} − {right})", rf"{as_latex_factor(factor)} \left({left} - {right}\right)"

    def loss_steps(self, before: str) -> list[SolutionStep]:
        """The loss itself, before its gradient."""
        loss, value = self.problem.loss, self.solution.loss
        if before != "dO" or loss is None or value is None:
            return []
        h = self.symbol("output", "")
        formulas = {
            "sum": (f"Σ {h}", rf"\Sigma\, {h}"),
            "mean": (f"mean of {h}", rf"\operatorname{{mean}} {h}"),
            "upstream": (f"Σ G∘{h}", rf"\Sigma\, G \circ {h}"),
            "squared-error": (f"Σ ({h} − T)²", rf"\Sigma\, ({h} - T)^2"),
            "half-squared-error": (f"½ Σ ({h} − T)²", rf"\tfrac12 \Sigma\, ({h} - T)^2"),
            "mean-squared-error": (f"mean of ({h} − T)²", rf"\operatorname{{mean}} ({h} - T)^2"),
            "cross-entropy": ("mean of −ln P[token, class]", r"-\operatorname{mean} \ln P_{i,c_i}"),
            "cross-entropy-sum": ("Σ −ln P[token, class]", r"-\Sigma \ln P_{i,c_i}"),
        }
        text, latex, sources = self.write_loss()
        cell = StepCell("L", value, text, latex, tuple(map(self.source, sources)))
        return [SolutionStep("loss", "L", "Loss", *formulas[loss.name], "output", ((cell,),), columns=self.columns)]

    def write_loss(self) -> tuple[str, str, Sequence[Cell]]:
        loss = self.problem.loss
        assert loss is not None
        rows, columns = self.graph.shapes["output"]
        terms: list[Written] = []
        sources: list[Cell] = []
        for i in range(rows):
            chosen = range(columns)
            if loss.cross_entropy:
                right = loss.classes[i]
                chosen = () if right is None else (right,)
            for j in chosen:
                sources.append(("probabilities" if loss.cross_entropy else "output", i, j))
                a, la = self.factor(sources[-1])
                if loss.cross_entropy:
                    terms.append((f"−ln {a}", rf"-\ln {la}"))
                elif loss.target is not None:
                    t, lt = self.factor(("target", i, j))
                    terms.append((f"({a} − {t})²", rf"\left({la} - {lt}\right)^2"))
                elif loss.name == "upstream":
                    g, lg = self.factor(("upstream", i, j))
                    terms.append((f"{g}·{a}", rf"{lg} \cdot {la}"))
                else:
                    terms.append((a, la))
        shown = terms[:MAX_LOSS_TERMS]
        text, latex = (" + ".join(term[k] for term in shown).replace("+ −", "− ").replace("+ -", "- ") for k in (0, 1))
        if len(terms) > len(shown):
            text, latex = f"{text} + …", rf"{latex} + \dots"
        factor = {"mean": len(terms), "mean-squared-error": len(terms), "cross-entropy": len(terms)}.get(loss.name, 1)
        if loss.name == "half-squared-error":
            factor = 2
        if factor > 1:
            text, latex = f"({text}) / {factor}", rf"\frac{{1}}{{{factor}}} \left({latex}\right)"
        return text, latex, sources
