"""Slips with the gradient of a squared error or a cross-entropy: factor × (output − target)."""

from collections.abc import Iterator

import numpy as np

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Expression
from qkv.byhand.slips import Bits, Change, Context, distinct_factors


def loss_changes(part: Expression, context: Context) -> Iterator[Change]:
    """Slips with the factor and with the difference; those of a single operand are found elsewhere."""
    factors, difference = part.args
    loss = context.problem.problem.loss
    assert loss is not None
    for changed, name, cost, same in _other_factors(factors, context):
        yield Change(ex.times(changed, difference), name, cost, scope="rows", alternatives=same)
    if difference.op != "subtract":  # changed by another slip
        return
    if loss.cross_entropy:
        yield from _class_changes(part, context)
        return
    yield Change(
        ex.times(difference, difference), "the squared error itself instead of its gradient", 5.5, scope="rows"
    )
    output, target = difference.args
    right = next(float(factor.decimal) for factor in loss.factors if float(factor.decimal))
    for k, text in {2.0: "2", right: f"{right:.4g}"}.items():
        for changed, name, cost in (
            (ex.subtract(ex.scale(output, k), target), f"only the output was multiplied by {text}, not the target", 5),
            (ex.subtract(output, ex.scale(target, k)), f"only the target was multiplied by {text}, not the output", 5),
            (ex.add(ex.scale(output, k), target), f"{text} times the output plus the target", 7),
        ):
            if k != 1:
                yield Change(changed, name, cost, scope="rows")
    for changed, name, cost in (
        (ex.subtract(target, output), "target minus output: a wrong sign, and the factor is missing", 5.2),
        (ex.add(output, target), "the target was added instead of subtracted, and the factor is missing", 6.5),
        (ex.apply("|x|", difference), "the absolute differences: the gradient of a squared error has a sign", 6.5),
        (ex.apply("sign of x", difference), "only the sign of each difference: that is an absolute error", 6.5),
        (ex.subtract(ex.apply("x²", output), ex.apply("x²", target)), "squares were subtracted: H² − T²", 6.5),
    ):
        yield Change(changed, name, cost, scope="rows")
    squared = part.with_args(factors, ex.times(difference, difference))
    yield Change(squared, "the difference was squared: its derivative is not", 6, scope="rows")


def mean_changes(part: Expression, context: Context) -> Iterator[Change]:
    """Slips with the gradient of a mean or a sum of the outputs."""
    loss = context.problem.problem.loss
    assert loss is not None
    _, tokens, dim = context.shape(part)
    named: list[tuple[float, str, Bits]]
    if loss.name == "mean":
        named = [
            (tokens * dim, f"the mean was forgotten: not divided by n = {tokens * dim}, the number of outputs", 4.0)
        ]
        named += [(dim, f"divided by {tokens}, the number of tokens, instead of all outputs", 4.5)]
        named += [(tokens, f"divided by {dim}, the number of outputs of a token, instead of all outputs", 5.0)]
    else:
        named = [(1 / (tokens * dim), "the mean instead of the sum: divided by the number of outputs", 4.0)]
        named += [(1 / tokens, "the mean instead of the sum: divided by the number of tokens", 4.5)]
    for factor, name, cost, same in distinct_factors(1.0, named):
        yield Change(ex.scale(part, factor), name, cost, scope="rows", alternatives=same)


def _other_factors(factors: Expression, context: Context) -> Iterator[tuple[Expression, str, Bits, tuple[str, ...]]]:
    """Wrong factors, by the loss."""
    loss = context.problem.problem.loss
    assert loss is not None
    _, tokens, dim = context.shape(ex.ref("target"))
    with_loss = [float(factor.decimal) for factor in loss.factors if float(factor.decimal)]
    right, count = with_loss[0], len(with_loss)
    two = 1.0 if loss.cross_entropy else 2.0
    missing_two = "the factor 2 of the squared error is missing"
    if loss.name == "squared-error":
        named = [(1.0, missing_two, 4.0)]
    elif loss.name == "half-squared-error":
        named = [
            (2.0, "a factor 2 too many: the ½ of the loss cancels it", 4.0),
            (0.5, "½ was not canceled by the 2", 5.0),
        ]
    elif loss.name == "mean-squared-error":
        named = [(two, f"the mean was forgotten: not divided by n = {tokens * dim}, the number of outputs", 4.0)]
        named += [(1 / (tokens * dim), missing_two, 4.0), (1.0, f"the factor 2/n = 2/{tokens * dim} is missing", 4.5)]
    elif loss.name == "cross-entropy":
        named = [(1.0, f"the mean was forgotten: not divided by m = {count}, the number of tokens with a loss", 4.0)]
    else:
        named = [(1 / count, "the mean instead of the sum: divided by the number of tokens", 4.0)]
    wanted = {
        "mean-squared-error": f"by {tokens * dim}, the number of outputs",
        "cross-entropy": f"by {count}, the number of tokens with a loss",
    }
    instead = f"instead of {wanted[loss.name]}" if loss.name in wanted else "although the loss has no mean"
    for size, what in ((tokens, "the number of tokens"), (dim, "the number of outputs of a token")):
        named += [(two / size, f"divided by {size}, {what}, {instead}", 5.0)]
    named += [(two / (tokens * dim), "divided by the number of all outputs", 5.5)]
    named += [(1 / tokens, "divided by the number of tokens, and the factor 2 is missing", 6.0)] if two == 2 else []
    named += [(2.0, "a factor 2 that only a squared error has", 6.0)] if two == 1 else []
    for value, name, cost, same in distinct_factors(right, named):
        yield ex.scale(factors, value / right), name, cost, same
    if count < tokens:
        everywhere = ex.apply("1", factors)
        yield ex.scale(everywhere, right), "tokens without a class were not left out", 4.5, ()
        both = f"tokens without a class were not left out, and all {tokens} tokens were counted"
        yield ex.scale(everywhere, 1 / tokens), both, 5.0, ()


def _class_changes(part: Expression, context: Context) -> Iterator[Change]:
    """Targets of other classes."""
    factors, difference = part.args
    size = context.shape(ex.ref("target"))[-1]
    for shift, what in ((1, "high: classes count from 1"), (-1, "low: classes count from 1")):
        order = tuple(int(k) for k in np.roll(np.arange(size), shift))
        target = ex.reordered(difference.args[1], 3, order)
        changed = part.with_args(factors, difference.with_args(difference.args[0], target))
        yield Change(changed, f"the classes of the target are one too {what}", 5.5, scope="rows")
    probabilities, target = difference.args
    inverse = ex.apply("−x", ex.divide(target, probabilities))
    for changed, name, cost in (
        (inverse, "−1/p at the class of the target: the gradient of the softmax was left out", 5.5),
        (ex.times(target, difference), "only the class of the target has a gradient", 6),
        (
            ex.times(ex.times(probabilities, ex.subtract(ex.apply("1", probabilities), probabilities)), difference),
            "multiplied by p(1 − p): P − Y has the gradient of the softmax already",
            6,
        ),
    ):
        yield Change(ex.times(factors, changed), name, cost, scope="rows")
    yield Change(
        ex.times(factors, difference.args[0]),
        "forgotten the target: 1 was not subtracted at its class",
        4,
        scope="rows",
    )
