"""Slips that change the formulas of several steps at once: matrices exchanged, and the same mistake made every time."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Array, Expression
from qkv.byhand.formulas import Formulas, StepFormulas, symbol
from qkv.byhand.head_slips import head_orders
from qkv.byhand.position_slips import position_slips
from qkv.byhand.slips import Slip, is_weight_matrix, parts, rename, same_kind, substitute, was

FILLS = ((0.0, 4.5), (-1.0, 5.0), (1.0, 6.0), (-10.0, 6.0), (-100.0, 6.0), (-1000.0, 6.0), (-9.0, 7.0), (-99.0, 7.0))
RESULTS = (("queries", "keys", "values"), ("dQ", "dK", "dV"), ("dW_Q", "dW_K", "dW_V"))


def multistep_slips(problem: StepFormulas, formulas: Formulas, values: Mapping[str, Array]) -> Iterator[Slip]:
    """All slips that change the formulas of several steps."""
    yield from _exchanged_matrices(formulas, values)
    yield from _exchanged_results(formulas, values)
    yield from _late_scale(formulas)
    yield from _scale_never_used(problem, formulas)
    yield from _scale_applied_again(problem, formulas)
    yield from position_slips(problem, formulas)
    yield from _heads_dealt_in_turn(problem, formulas)
    yield from _heads_in_wrong_order(problem, formulas)
    yield from _never_transposed(formulas)
    yield from _mask_ignored_in_gradient(problem, formulas)
    yield from _finite_masks(formulas)


def _exchanged_matrices(formulas: Formulas, values: Mapping[str, Array]) -> Iterator[Slip]:
    """Two matrices of the same shape exchanged in every formula that reads them."""
    names = [name for name in formulas if any(name in formula.names for formula in formulas.values())]
    for first, second in itertools.combinations(names, 2):
        if values[first].shape != values[second].shape or not same_kind(first, second):
            continue
        if first in formulas[second].names:
            continue
        swap = {first: second, second: first}
        changes = {step: rename(formula, swap) for step, formula in formulas.items() if formula.names & {first, second}}
        if len(changes) > 1:
            yield Slip(f"{symbol(first)} and {symbol(second)} exchanged", 5.5, changes)
        gradients = {step: formula for step, formula in changes.items() if step.startswith("d")}
        if 1 < len(gradients) < len(changes):
            yield Slip(f"{symbol(first)} and {symbol(second)} exchanged in the backward pass", 5.5, gradients)


def _exchanged_results(formulas: Formulas, values: Mapping[str, Array]) -> Iterator[Slip]:
    """Two results written in each other's place."""
    for kind in RESULTS:
        for first, second in itertools.combinations([name for name in kind if name in formulas], 2):
            if values[first].shape[1:] != values[second].shape[1:]:
                continue
            if first in formulas[second].names or formulas[first].op == "ref":
                continue
            changes = {first: formulas[second], second: formulas[first]}
            yield Slip(f"{symbol(first)} and {symbol(second)} are in each other's place", 5.8, changes)


def _late_scale(formulas: Formulas) -> Iterator[Slip]:
    """The scale applied one or two steps too late: after the softmax."""
    for step, formula in formulas.items():
        if formula.op == "scale":
            for later, other in formulas.items():
                if step in other.names and other.op == "divide":
                    changes = {step: formula.args[0], later: ex.scale(other, formula.param)}
                    yield Slip("the scale was applied after the softmax, to the weights", 6, changes)


def _scale_never_used(problem: StepFormulas, formulas: Formulas) -> Iterator[Slip]:
    """The scale forgotten in the forward and in the backward pass."""
    changes = {step: formula.args[0] for step, formula in formulas.items() if formula.op == "scale"}
    if len(changes) > 1:
        scale = "1/√d" if problem.problem.default_scale else "β"
        yield Slip(f"forgotten {scale}: the scores were not scaled, nor were their gradients", 4.5, changes)


def _scale_applied_again(problem: StepFormulas, formulas: Formulas) -> Iterator[Slip]:
    """Scaled numbers scaled once more in every step that reads them."""
    usual = "1/√d" if problem.problem.default_scale else "β"
    for step, formula in formulas.items():
        if formula.op == "scale":
            changes = _change_parts(formulas, _scaled(step, formula.param))
            if len(changes) > 1:
                yield Slip(f"{usual} was applied again, to {symbol(step)}", 4.5, changes)


def _scaled(name: str, factor: float) -> Callable[[Expression], Expression | None]:
    return lambda part: ex.scale(part, factor) if _reads(part, name) else None


def _heads_dealt_in_turn(problem: StepFormulas, formulas: Formulas) -> Iterator[Slip]:
    """Columns dealt to the heads in turn, in several matrices."""
    heads = problem.problem.heads
    if heads < 2:
        return

    def interleave(*operations: str) -> Callable[[Expression], Expression | None]:
        return lambda part: part.with_param((heads, "interleaved")) if part.op in operations else None

    width = problem.given["given queries"].shape[-1] if "given queries" in problem.given else 0
    if "given wq" in problem.given:
        width = problem.given["given wq"].shape[-1]
    turns = " | ".join(", ".join(map(str, range(head + 1, width + 1, heads))) for head in range(heads))
    name = f"the columns were dealt to the heads in turn ({turns}) instead of in blocks" if width else ""
    name = name or "the columns were dealt to the heads in turn instead of in blocks"
    yield Slip(name, 5, _change_parts(formulas, interleave("split")))
    yield Slip(f"{name}, and joined in turn", 5.5, _change_parts(formulas, interleave("split", "join")))
    scores = {step: formula for step, formula in formulas.items() if step == "scores"}
    yield Slip(f"{name}, in Q and K", 5.5, _change_parts(scores, interleave("split")))


def _heads_in_wrong_order(problem: StepFormulas, formulas: Formulas) -> Iterator[Slip]:
    """The heads of a matrix in the wrong order in every formula that splits it."""
    split = {
        part.args[0].param
        for formula in formulas.values()
        for part in parts(formula)
        if part.op == "split" and part.args[0].op == "ref"
    }
    for name in sorted(split):
        for order, text, cost in head_orders(problem.problem.heads, symbol(name)):
            changes = _change_parts(formulas, _reorder_heads(name, order))
            if len(changes) > 1:
                yield Slip(text, cost, changes)


def _reorder_heads(name: str, order: tuple[int, ...]) -> Callable[[Expression], Expression | None]:
    return lambda part: ex.reordered(part, 1, order) if part.op == "split" and _reads(part.args[0], name) else None


def _never_transposed(formulas: Formulas) -> Iterator[Slip]:
    """The same matrix, or all weight matrices, not transposed in several gradients."""
    transposed = {
        part.args[0].param
        for formula in formulas.values()
        for part in parts(formula)
        if part.op == "transpose" and part.args[0].op == "ref"
    }
    for name in sorted(transposed):
        changes = _change_parts(formulas, _plain({name}))
        if len(changes) > 1:
            yield Slip(f"{was(symbol(name))} not transposed", 4.3, changes)
    changes = _change_parts(formulas, _plain({name for name in transposed if is_weight_matrix(name)}))
    if len(changes) > 1:
        yield Slip("the weight matrices were not transposed", 4.5, changes)


def _plain(names: set[str]) -> Callable[[Expression], Expression | None]:
    def change(part: Expression) -> Expression | None:
        if part.op == "transpose" and part.args[0].op == "ref" and part.args[0].param in names:
            return part.args[0]
        return None

    return change


def _mask_ignored_in_gradient(problem: StepFormulas, formulas: Formulas) -> Iterator[Slip]:
    """The weights of a softmax without mask, in the backward pass."""
    weights = formulas["weights"]
    mask = next((part for part in parts(weights) if part.op == "masked"), None)
    if mask is None or "dZ" not in formulas:
        return
    unmasked = ex.unwritten(substitute(weights, mask, mask.args[0]), problem.places)
    for steps, cost in ((("r", "dZ"), 4.2), (("dV", "r", "dZ"), 4.4), (("r",), 5.0)):
        changes = {}
        for step in steps:
            change = _change_parts({step: formulas[step]}, lambda part: unmasked if _reads(part, "weights") else None)
            changes |= change
        yield Slip("the mask was ignored in the gradient of the softmax", cost, changes)


def _finite_masks(formulas: Formulas) -> Iterator[Slip]:
    """A number written for masked scores, so that their exponentials are not 0."""
    weights = formulas["weights"]
    mask = next((part for part in parts(weights) if part.op == "masked"), None)
    if mask is None:
        return
    unmasked = substitute(weights, mask, mask.args[0])
    for step in ("scaled", "scores"):
        for fill, cost in FILLS:
            changed = {step: ex.masked(formulas[step], mask.param[0], fill)}
            name = f"masked with {fill:g} instead of −∞"
            power = "e^0 is 1" if not fill else f"e^({fill:g}) is"
            yield Slip(f"{name}: {power}{',' if not fill else ''} not 0", cost, {**changed, "weights": unmasked})
            yield Slip(name, cost + 0.5, changed)


def _reads(part: Expression, name: str) -> bool:
    return part.op == "ref" and part.param == name


def _change_parts(formulas: Formulas, change: Callable[[Expression], Expression | None]) -> Formulas:
    """The formulas that differ if `change` is applied to all their parts; it returns None to keep a part."""

    def walk(part: Expression) -> Expression:
        args = tuple(walk(arg) for arg in part.args)
        if any(a is not b for a, b in zip(args, part.args, strict=True)):
            part = replace(part, args=args)
        return change(part) or part

    found = {step: walk(formula) for step, formula in formulas.items()}
    return {step: formula for step, formula in found.items() if formula is not formulas[step]}
