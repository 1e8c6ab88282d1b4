"""Random problems for a class: readable numbers, and softmax weights that are neither uniform nor one-hot."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Any

from qkv.byhand.float_check import differentiate, solve_in_floats
from qkv.byhand.graph import StepGraph
from qkv.byhand.loss import LOSSES, find_loss
from qkv.byhand.matrices import transpose
from qkv.byhand.numbers import Number
from qkv.byhand.problem import Problem, make_problem

INPUTS = ("-2", "-1", "-1", "0", "0", "1", "1", "1", "2", "1/2", "-1/2")
WEIGHTS = ("-1", "-1", "0", "0", "0", "1", "1", "1", "2", "1/2", "-1/2")
MAX_TRIES = 20_000
MAX_COUNT = 1000
LARGEST_SCORE = 9.0
LARGEST_SPREAD = 5.5  # of the scores of one query
WEIGHT_RANGE = (0.02, 0.92)  # of every weight of a query that sees two keys or more
SMALLEST_GRADIENT = 0.02  # of the largest number in dZ

Texts = list[list[str]]


def generate_problems(count: int, seed: int, settings: Mapping[str, Any], tokens: int = 3) -> list[dict[str, Any]]:
    """The settings of `count` different problems; the same seed gives the same ones.

    settings: heads, scale, causal, mask, convention, loss; matrices are drawn. The dimension of a head is 2. With
    several heads there is an output projection W_O.

    >>> one, two = generate_problems(2, seed=7, settings={})
    >>> one["x"] != two["x"], one == generate_problems(1, seed=7, settings={})[0]
    (True, True)
    """
    if not 1 <= count <= MAX_COUNT:
        raise ValueError(f"--generate: expected 1 to {MAX_COUNT} sheets, got {count}")
    if not 1 <= tokens <= 6:
        raise ValueError(f"--tokens: expected 1 to 6 tokens, got {tokens}")
    fixed = {name: value for name, value in settings.items() if value is not None}
    found: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        random = Random(f"{seed}/{number}")
        for _ in range(MAX_TRIES):
            drawn = _draw(random, fixed, tokens)
            if _differ(drawn) and _are_scores_moderate(drawn, int(fixed.get("heads") or 1)):
                one = _as_settings(drawn, fixed)
                if one not in found and _is_readable(make_problem(one)):
                    found.append(one)
                    break
        else:
            raise ValueError("no readable problem was found with these settings: try another scale or fewer heads")
    return found


def asked_steps(problem: Problem) -> list[str]:
    """The steps that a sheet asks for: all that need a calculation."""
    graph = StepGraph(problem)
    skipped = {"r"} | ({"scaled", "dZ"} if problem.scale == Number.of(1) else set())
    if problem.wo is None:
        skipped.add("concatenated")  # it is the output

    def is_copy(name: str) -> bool:
        step = graph.steps[name]
        return step.operation == "sum" and not step.products and len(step.addends) == 1 and name != "output"

    return [name for name in graph.steps if name not in skipped and not is_copy(name)]


def _draw(random: Random, fixed: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Matrices with one token per row, and a target."""
    heads = int(fixed.get("heads") or 1)
    dim = 2 * heads

    def matrix(rows: int, columns: int, choices: Sequence[str]) -> Texts:
        return [[random.choice(choices) for _ in range(columns)] for _ in range(rows)]

    drawn: dict[str, Any] = {"x": matrix(tokens, dim, INPUTS)}
    drawn |= {name: matrix(dim, dim, WEIGHTS) for name in ("wq", "wk", "wv")}
    if heads > 1:
        drawn["wo"] = matrix(dim, 2, WEIGHTS)
    loss = fixed.get("loss")
    if loss is not None:
        name = find_loss(loss)
        if name.startswith("cross-entropy"):
            drawn["target"] = " ".join(str(random.randint(1, 2)) for _ in range(tokens))
        elif LOSSES[name]:
            drawn[LOSSES[name]] = matrix(tokens, 2, INPUTS)
    return drawn


def _as_settings(drawn: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    turn = fixed.get("convention") == "columns"
    texts = {}
    for name, value in drawn.items():
        rows = transpose(value) if turn and not isinstance(value, str) else value
        texts[name] = rows if isinstance(rows, str) else "; ".join(" ".join(row) for row in rows)
    return {**texts, **fixed}


def _differ(drawn: Mapping[str, Any]) -> bool:
    """No empty or equal lines, no symmetric or equal weights: a slip such as a transposed matrix must show."""
    weights = [drawn[name] for name in ("wq", "wk", "wv", "wo") if name in drawn]
    for matrix in (drawn["x"], *weights):
        columns = [list(column) for column in zip(*matrix, strict=True)]
        if matrix == columns or any(set(line) == {"0"} for line in (*matrix, *columns)):
            return False
    x = drawn["x"]
    return all(x.count(row) == 1 for row in x) and all(weights.count(weight) == 1 for weight in weights)


def _are_scores_moderate(drawn: Mapping[str, Any], heads: int) -> bool:
    """A quick look before a problem is built: the scores of each query differ, and none is large."""
    x, wq, wk = ([[float(Fraction(cell)) for cell in row] for row in drawn[name]] for name in ("x", "wq", "wk"))
    columns = range(len(wq[0]))
    q, k = ([[sum(a * w[i][c] for i, a in enumerate(row)) for c in columns] for row in x] for w in (wq, wk))
    for head in range(heads):
        for query in q:
            scores = [sum(query[c] * key[c] for c in (2 * head, 2 * head + 1)) for key in k]
            if max(map(abs, scores)) > LARGEST_SCORE or (len(scores) > 1 and max(scores) == min(scores)):
                return False
            if max(scores) - min(scores) > LARGEST_SPREAD:
                return False
    return True


def _is_readable(problem: Problem) -> bool:
    """Weights away from 0 and 1 and not uniform, different outputs, and gradients that are not tiny."""
    found = solve_in_floats(problem)
    low, high = WEIGHT_RANGE
    for index, row in enumerate(found.steps["weights"]):
        flags = [True] * len(row) if problem.mask is None else problem.mask[index % len(problem.mask)]
        seen = [scalar.value for scalar, flag in zip(row, flags, strict=True) if flag]
        if len(seen) > 1 and not (low <= min(seen) and max(seen) <= high and max(seen) - min(seen) > 0.04):
            return False
    if len({tuple(round(scalar.value, 6) for scalar in row) for row in found.steps["output"]}) < len(problem.x or ()):
        return False
    if found.loss is None or len(found.steps["weights"][0]) == 1:
        return True
    differentiate(found.loss)
    return max(abs(scalar.gradient) for row in found.steps["scaled"] for scalar in row) >= SMALLEST_GRADIENT
