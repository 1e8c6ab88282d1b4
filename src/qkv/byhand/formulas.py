"""The formula of every step as an expression, and the given matrices as arrays: what hypotheses about slips change."""

from dataclasses import dataclass

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array, Expression, ref
from qkv.byhand.graph import Operand, Step, StepGraph
from qkv.byhand.matrices import to_decimals
from qkv.byhand.parsing import Rows
from qkv.byhand.problem import Problem

GIVEN = "given "  # the prefix of a matrix as it was given; its plain name is what a person read
SYMBOLS = {
    "x": "X",
    "inputs": "X",
    "positions": "the positions",
    "wq": "W_Q",
    "wk": "W_K",
    "wv": "W_V",
    "wo": "W_O",
    "queries": "Q",
    "keys": "K",
    "values": "V",
    "scores": "the scores",
    "scaled": "the scaled scores",
    "exponentials": "the exponentials",
    "sums": "the sums",
    "weights": "the weights",
    "concatenated": "the heads' outputs",
    "output": "the output",
    "probabilities": "the probabilities",
    "target": "the target",
    "upstream": "the upstream gradient",
    "loss_factors": "of the loss",
    "r": "the row sums r",
}
Formulas = dict[str, Expression]  # in the order of calculation


@dataclass(frozen=True)
class StepFormulas:
    """The formulas of a problem. given: the arrays that they start from."""

    problem: Problem
    formulas: Formulas
    given: dict[str, Array]
    steps: tuple[str, ...]  # the names of formulas that are steps, not given matrices
    places: int = 0  # digits after the point of the person's decimals


def symbol(name: str) -> str:
    return SYMBOLS.get(name, name)


def build_formulas(graph: StepGraph, masked_step: str = "", *, hides_gradients: bool = False) -> StepFormulas:
    """The formulas of all steps.

    masked_step: the step in which the person wrote −∞ for masked scores, if any.
    hides_gradients: the person wrote 0 for the gradients of masked weights; these weights are 0, so nothing follows.
    """
    given = {name: _array(rows) for name, rows in graph.given.items() if name != "scale"}
    formulas: Formulas = {name: ref(GIVEN + name) for name in given}
    mask = None if graph.problem.mask is None else np.array(graph.problem.mask, float)[None, None]
    for name, step in graph.steps.items():
        formula = _formula(step, graph.problem, None if masked_step else mask)
        if name == masked_step and mask is not None:
            formula = ex.masked(formula, mask, -np.inf)
        if name == "dA" and mask is not None and hides_gradients:
            formula = ex.masked(formula, mask)
        formulas[name] = formula
    arrays = {GIVEN + name: array for name, array in given.items()}
    return StepFormulas(graph.problem, formulas, arrays, tuple(graph.steps))


def _formula(step: Step, problem: Problem, mask: Array | None) -> Expression:
    first, *others = (ref(name) for name in step.inputs)
    match step.operation:
        case "sum":
            return _sum(step, problem.heads)
        case "scale":
            return ex.scale(first, float(problem.scale.decimal))
        case "softmax":
            powers = ex.apply("exp", first)
            if mask is not None and step.name == "weights":
                powers = ex.masked(powers, mask)
            return ex.divide(powers, ex.total(powers))
        case "row-dot":
            return ex.total(ex.times(first, others[0]))
        case "softmax-gradient":
            return ex.times(first, ex.subtract(others[0], others[1]))
        case "difference":
            return ex.times(ref("loss_factors"), ex.subtract(first, others[0]))


def _sum(step: Step, heads: int) -> Expression:
    parts = [_operand(operand, heads) for operand in step.addends]
    for left, right in step.products:
        product = ex.matmul(_operand(left, heads), _operand(right, heads))
        parts.append(ex.join(product, heads) if step.heads == "columns" else product)
    total = parts[0]
    for part in parts[1:]:
        total = ex.add(total, part)
    return total


def _operand(operand: Operand, heads: int) -> Expression:
    found = ex.split(ref(operand.name), heads) if operand.heads == "columns" else ref(operand.name)
    return ex.transpose(found) if operand.transposed else found


def _array(rows: Rows) -> Array:
    return np.array([[float(number) for number in row] for row in to_decimals(rows)])[None, None]
