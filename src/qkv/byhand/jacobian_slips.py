"""Wrong Jacobians of the softmax: other entries than Aᵢ(1 − Aᵢ) on the diagonal and −AᵢAⱼ off it."""

from collections.abc import Iterator

from qkv.byhand import expressions as ex
from qkv.byhand.expressions import Expression
from qkv.byhand.slips import Bits, Change

RIGHT_ON, RIGHT_OFF = "Aᵢ(1 − Aᵢ)", "−AᵢAⱼ"
COST = 3.0
OTHER_NAMES = (  # pairs that are simpler as another slip: r was not subtracted, added, taken alone; only the diagonal
    ("Aᵢ", "0"),
    ("Aᵢ(1 + Aᵢ)", "AᵢAⱼ"),
    ("Aᵢ²", "AᵢAⱼ"),
    (RIGHT_ON, "0"),
    ("0", "0"),
)


def jacobian_changes(weights: Expression, gradient: Expression, sums: Expression) -> Iterator[Change]:
    """Every pair of entries on and off the diagonal. weights: A; gradient: dA; sums: r, the row sums of A∘dA."""
    own = ex.times(weights, gradient)
    rest = ex.subtract(sums, own)  # the sum of A∘dA over the other keys
    others = ex.subtract(ex.total(gradient), gradient)  # the sum of dA over the other keys
    one_minus = ex.subtract(ex.apply("1", weights), weights)
    diagonal: tuple[tuple[str, Expression, Bits], ...] = (
        (RIGHT_ON, ex.times(own, one_minus), 0.0),
        ("Aᵢ", own, 1.5),
        ("0", ex.scale(own, 0.0), 1.5),
        ("−Aᵢ²", ex.times(ex.apply("−x", own), weights), 2.0),
        ("Aᵢ²", ex.times(own, weights), 2.5),
        ("Aᵢ(1 + Aᵢ)", ex.add(own, ex.times(own, weights)), 2.5),
        ("1 − Aᵢ", ex.times(gradient, one_minus), 2.5),
        ("−Aᵢ(1 − Aᵢ)", ex.times(ex.apply("−x", own), one_minus), 2.5),
    )
    off: tuple[tuple[str, Expression, Bits], ...] = (
        (RIGHT_OFF, ex.times(weights, ex.apply("−x", rest)), 0.0),
        ("AᵢAⱼ", ex.times(weights, rest), 1.5),
        ("Aᵢ(1 − Aⱼ)", ex.times(weights, ex.subtract(others, rest)), 2.0),
        ("−Aᵢ(1 − Aⱼ)", ex.times(weights, ex.subtract(rest, others)), 2.5),
        ("−Aᵢ²", ex.times(weights, ex.times(weights, ex.apply("−x", others))), 2.5),
        ("−Aⱼ", ex.apply("−x", rest), 2.5),
        ("−Aⱼ(1 − Aᵢ)", ex.times(ex.apply("−x", rest), one_minus), 2.5),
        ("0", ex.scale(own, 0.0), 2.0),
    )
    for on_name, on, on_cost in diagonal:
        for off_name, rest_of_row, off_cost in off:
            if (on_name, off_name) not in (*OTHER_NAMES, (RIGHT_ON, RIGHT_OFF)):
                wrong = [f"{on_name} on the diagonal instead of {RIGHT_ON}"] if on_cost else []
                wrong += [f"{off_name} off the diagonal instead of {RIGHT_OFF}"] if off_cost else []
                both = 1.5 if on_cost and off_cost else 0.0
                name = f"the softmax's Jacobian was taken with {' and '.join(wrong)}"
                yield Change(ex.add(on, rest_of_row), name, COST + on_cost + off_cost + both, scope="rows")
