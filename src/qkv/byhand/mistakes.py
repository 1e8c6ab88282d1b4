"""Known mistakes: what each step would give if one of them had been made.

A guess is a name and the whole table that the mistake gives. `guesses` also carries the mistakes of earlier
steps forward, as far as the person did not write those steps down.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

from qkv.byhand.chain import (
    NEEDS,
    Numbers,
    State,
    Table,
    follow,
    part,
    product,
    scale,
    softmax,
    split,
    stack,
    turned,
)
from qkv.byhand.matrices import decimals, transpose
from qkv.byhand.number import DIGITS
from qkv.byhand.problem import Problem
from qkv.byhand.reading import Rows

HUGE = Decimal("1e40")  # beyond this no rounding shows
LOST_SIGN = "a lost minus sign"
NO_SCALE = "forgotten 1/√d: the scores were not scaled"
EARLY = "early rounding"
TURNED = "rows for columns: the matrix is transposed"


@dataclass(frozen=True)
class Guess:
    """A mistake by name, and the table it gives."""

    name: str
    values: Table
    rounding: bool = False


def guesses(problem: Problem, step: str, state: State, written: Mapping[str, object]) -> Iterator[Guess]:
    """What known mistakes give at this step; those of unwritten earlier steps are carried forward."""
    with localcontext(DIGITS):
        yield from OWN[step](problem, state)
        yield Guess(TURNED, transpose(follow(problem, step, state).values))
        for earlier in NEEDS[step]:
            if earlier in written:
                continue
            for guess in guesses(problem, earlier, state, written):
                if _shape(guess.values) == _shape(state[earlier].values):
                    changed = {**state, earlier: Numbers.sharp(guess.values)}
                    yield Guess(guess.name, follow(problem, step, changed).values, guess.rounding)


def _projection(index: int) -> Callable[[Problem, State], Iterator[Guess]]:
    names = ("Q", "K", "V")

    def own(problem: Problem, state: State) -> Iterator[Guess]:
        x, weight = problem.inputs, problem.projections[index]
        right = problem.projected()
        for other in range(3):
            if other != index:
                a, b = sorted((names[index], names[other]), key="QKV".index)
                yield Guess(f"{a} and {b} swapped", decimals(right[other]))
        if x is None or weight is None:
            return
        if len(weight) == len(weight[0]):
            name = f"rows for columns: W_{names[index]} was transposed"
            yield Guess(name, _times(x, transpose(weight)))
        if problem.x is not None and problem.positions is not None:
            yield Guess("forgotten positions: they were not added to the inputs", _times(problem.x, weight))
        for which, matrix in (("x", x), (f"w{names[index].lower()}", weight)):
            for i, j, changed in _without_one_sign(matrix):
                shown = (j, i) if problem.convention == "columns" else (i, j)
                table = _times(changed, weight) if which == "x" else _times(x, changed)
                yield Guess(f"{LOST_SIGN} in {which}[{shown[0] + 1},{shown[1] + 1}]", table)

    return own


def _scores(problem: Problem, state: State) -> Iterator[Guess]:
    queries, keys = state["queries"], state["keys"]
    right = follow(problem, "scores", state)
    q, k, v = (split(state[name], problem.heads) for name in ("queries", "keys", "values"))
    if len(keys.values) == len(k[0].values[0]):
        yield Guess("K was not transposed", stack([product(a, b) for a, b in zip(q, k, strict=True)]).values)
    if len(queries.values) == len(keys.values):
        yield Guess("rows for columns: this is K Qᵀ, the transpose of Q Kᵀ", _per_head(right, problem, turned).values)
    if problem.beta.decimal != 1:
        name = "scaled already: these are the scaled scores, to be given as `scaled`"
        yield Guess(name, scale(right, problem.beta.decimal).values)
    for name, a, b in (
        ("K and V swapped", q, v),
        ("Q and K swapped: this is K Kᵀ", k, k),
        ("Q used for K: this is Q Qᵀ", q, q),
    ):
        if len(a[0].values[0]) == len(b[0].values[0]):
            yield Guess(name, stack([product(c, turned(d)) for c, d in zip(a, b, strict=True)]).values)


def _scaled(problem: Problem, state: State) -> Iterator[Guess]:
    for name, scores in _other_scales(problem, state):
        yield Guess(name, scores.values)


def _other_scales(problem: Problem, state: State) -> Iterator[tuple[str, Numbers]]:
    scores = state["scores"]
    width = Decimal(len(state["queries"].values[0]) // problem.heads)
    whole = Decimal(len(state["queries"].values[0]))
    tokens = Decimal(len(state["keys"].values))
    beta = problem.beta.decimal
    if problem.default_beta:
        yield NO_SCALE, scores
        yield "1/d instead of 1/√d", scale(scores, 1 / width)
        yield "multiplied by √d instead of divided", scale(scores, width.sqrt())
        yield "1/√(number of tokens) instead of 1/√d", scale(scores, 1 / tokens.sqrt())
        yield "1/√(width of all heads) instead of 1/√(width of one head)", scale(scores, 1 / whole.sqrt())
    elif beta != 1:
        yield "forgotten β: the scores were not scaled", scores
        yield "1/√d in place of the β that was given", scale(scores, 1 / width.sqrt())
    else:
        yield "scaled by 1/√d, where β = 1 was given", scale(scores, 1 / width.sqrt())


def _weights(problem: Problem, state: State) -> Iterator[Guess]:
    scaled, allowed = state["scaled"], problem.allowed
    for name, other in _other_scales(problem, state):
        yield Guess(name, softmax(other, allowed).values)
    axis = (
        "along the rows instead of down the columns"
        if problem.convention == "columns"
        else "down the columns instead of along the rows"
    )
    wrong_axis = f"softmax over the wrong axis: {axis}"
    down = None if allowed is None else transpose(allowed)
    yield Guess(wrong_axis, _per_head(scaled, problem, lambda t: turned(softmax(turned(t), down))).values)
    if allowed is not None:
        yield Guess("forgotten mask", softmax(scaled, None).values)
        free = softmax(scaled, None).values
        yield Guess("masked after the softmax, and not divided by the new sum", _masked(free, allowed, Decimal(0)))
        zeros = Numbers.sharp(_masked(scaled.values, allowed, Decimal(0)))
        yield Guess("masked with 0 instead of −∞: e^0 is 1, not 0", softmax(zeros, None).values)
        if len(allowed) == len(allowed[0]):
            yield Guess("rows for columns: the mask was transposed", softmax(scaled, transpose(allowed)).values)
    powers = [[value.exp() if abs(value) < 10_000 else Decimal(0) for value in row] for row in scaled.values]
    yield Guess(
        "not divided by the sum: these are the exponentials",
        powers if allowed is None else _masked(powers, allowed, Decimal(0)),
    )
    if all(sum(row) for row in scaled.values):
        shares = [[value / sum(row, Decimal(0)) for value in row] for row in scaled.values]
        yield Guess("no exponentials: each score was divided by the sum of its row", shares)
    for i, row in enumerate(scaled.values):
        for j, value in enumerate(row):
            changed = [list(line) for line in scaled.values]
            changed[i][j] = -value
            yield Guess(f"{LOST_SIGN} in the exponent", softmax(Numbers.sharp(changed), allowed).values)
    for name in ("scores", "scaled"):
        for places in (2, 1, 3, 0):
            rounded = Numbers.sharp(rounded_to(state[name].values, places))
            table = rounded if name == "scaled" else scale(rounded, problem.beta.decimal)
            yield Guess(early(name, places, "the softmax"), softmax(table, allowed).values, rounding=True)


def _joined(problem: Problem, state: State) -> Iterator[Guess]:
    weights, values = state["weights"], state["values"]
    tokens = len(weights.values) // problem.heads

    def mean(table: Numbers, other: Numbers) -> Table:
        return follow(problem, "joined", {"weights": table, "values": other}).values

    for name, other in (
        ("K and V swapped: the keys were averaged", "keys"),
        ("Q and V swapped: the queries were averaged", "queries"),
    ):
        if len(state[other].values) == len(values.values):
            yield Guess(name, mean(weights, state[other]))
    if problem.inputs is not None and len(problem.inputs[0]) % problem.heads == 0:
        inputs = Numbers.sharp(decimals(problem.inputs))
        yield Guess("W_V forgotten: the inputs were averaged", mean(weights, inputs))
    if tokens == len(weights.values[0]):
        name = "rows for columns: the weights were transposed before the last product"
        yield Guess(name, mean(_per_head(weights, problem, turned), values))
    for places in (2, 1, 3, 4, 0):
        rounded = Numbers.sharp(rounded_to(weights.values, places))
        yield Guess(early("weights", places, "the last product"), mean(rounded, values), rounding=True)


def _output(problem: Problem, state: State) -> Iterator[Guess]:
    if problem.wo is not None:
        joined = state["joined"]
        if _shape(joined.values) == _shape(follow(problem, "output", state).values):
            yield Guess("W_O forgotten: these are the heads' outputs side by side", joined.values)
        if len(problem.wo) == len(problem.wo[0]):
            turned_wo = Numbers.sharp(decimals(transpose(problem.wo)))
            yield Guess("rows for columns: W_O was transposed", product(joined, turned_wo).values)
        if problem.heads > 1:
            parts = split(joined, problem.heads)[::-1]
            swapped = [[value for t in parts for value in t.values[row]] for row in range(len(joined.values))]
            wo = Numbers.sharp(decimals(problem.wo))
            yield Guess("the heads are joined in the wrong order", product(Numbers.sharp(swapped), wo).values)


OWN: dict[str, Callable[[Problem, State], Iterator[Guess]]] = {
    "queries": _projection(0),
    "keys": _projection(1),
    "values": _projection(2),
    "scores": _scores,
    "scaled": _scaled,
    "weights": _weights,
    "joined": _joined,
    "output": _output,
}


def early(step: str, places: int, before: str) -> str:
    digits = {0: "whole numbers", 1: "one digit", 2: "two digits", 3: "three digits"}.get(places, f"{places} digits")
    return f"{EARLY}: the {step} were rounded to {digits} before {before}"


def rounded_to(values: Table, places: int) -> list[list[Decimal]]:
    unit = Decimal(1).scaleb(-places)
    with localcontext(DIGITS):
        return [
            [value if abs(value) > HUGE else value.quantize(unit, ROUND_HALF_EVEN) for value in row] for row in values
        ]


def _per_head(table: Numbers, problem: Problem, change: Callable[[Numbers], Numbers]) -> Numbers:
    size = len(table.values) // problem.heads
    return stack([change(part(table, head * size, size)) for head in range(problem.heads)])


def _masked(values: Table, allowed: Sequence[Sequence[bool]], other: Decimal) -> list[list[Decimal]]:
    return [
        [value if flag else other for value, flag in zip(row, allowed[i % len(allowed)], strict=True)]
        for i, row in enumerate(values)
    ]


def _without_one_sign(matrix: Rows) -> Iterator[tuple[int, int, Rows]]:
    """The matrix with one negative number made positive, for each of them."""
    for i, row in enumerate(matrix):
        for j, number in enumerate(row):
            if number.decimal < 0:
                changed = (*row[:j], -number, *row[j + 1 :])
                yield i, j, (*matrix[:i], changed, *matrix[i + 1 :])


def _times(left: Rows, right: Rows) -> Table:
    return product(Numbers.sharp(decimals(left)), Numbers.sharp(decimals(right))).values


def _shape(values: Table) -> tuple[int, int]:
    return len(values), len(values[0])
