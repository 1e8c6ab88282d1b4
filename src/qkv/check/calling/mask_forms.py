"""Mask arguments: which shape and which values a module or function takes, found by trying.

Axes: b batch · t queries · s keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor

T = TypeVar("T")

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "(t, t)": lambda mask: mask[0],
    "(b, t, t)": lambda mask: mask,
    "(b, 1, t, t)": lambda mask: mask[:, None],
    "(1, t, t)": lambda mask: mask[:1],
    "(t, t, 1)": lambda mask: mask[0, :, :, None],
    "(t, t, b)": lambda mask: mask.permute(1, 2, 0),
}
KEY_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "(b, t)": lambda token_mask: token_mask,
    "(b, 1, 1, t)": lambda token_mask: token_mask[:, None, None],
    "(b, 1, t)": lambda token_mask: token_mask[:, None],
}


def additive_mask(mask: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """0 where a query may attend, −∞ where it may not."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)


VALUES: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "True = may attend": lambda mask, dtype: mask,
    "True = may not attend": lambda mask, dtype: ~mask,
    "1 = may attend, integers": lambda mask, dtype: mask.long(),
    "1 = may attend, floats": lambda mask, dtype: mask.to(dtype),
    "added: 0 and −∞": additive_mask,
    "1 = may not attend, integers": lambda mask, dtype: (~mask).long(),
    "1 = may not attend, floats": lambda mask, dtype: (~mask).to(dtype),
}
# the values that each polarity of a contract allows
POLARITIES = {
    "true-attends": ("True = may attend", "1 = may attend, integers", "1 = may attend, floats"),
    "true-masks": ("True = may not attend", "1 = may not attend, integers", "1 = may not attend, floats"),
    "added": ("added: 0 and −∞",),
}


def polarity_of(values: str) -> str:
    """The polarity of a contract that these values have.

    >>> polarity_of("1 = may not attend, floats")
    'true-masks'
    """
    return next(polarity for polarity, known in POLARITIES.items() if values in known)


def choose_mask(trials: Iterable[tuple[T, float, float]]) -> T | None:
    """The candidate under which a hidden token matters least, relative to a visible one; None if none hides it.

    A later candidate must be twice as good: the first of those that do equally well wins.

    Args:
        trials: candidates, each with the effect of a hidden token and that of a visible one.
    """
    best, leak = None, 0.3
    for candidate, hidden, visible in trials:
        if visible > 1e-6 and hidden / visible < leak * (1.0 if best is None else 0.5):
            best, leak = candidate, hidden / visible
            if leak < 1e-9:
                break
    return best


@dataclass(frozen=True)
class MaskForm:
    """A mask parameter, the shape it takes and what its values mean; keys: it marks keys, not pairs."""

    parameter: str
    shape: str
    values: str
    keys: bool = False

    def __call__(self, mask: Bool[Tensor, "b t s"] | Bool[Tensor, "b s"], dtype: torch.dtype) -> Tensor:
        """The argument for a mask (b, t, s), or (b, s) if it marks keys. True = may attend."""
        shaped = (KEY_SHAPES if self.keys else SHAPES)[self.shape](mask)
        return VALUES[self.values](shaped, dtype)

    @property
    def batched(self) -> bool:
        return self.keys or "b" in self.shape

    def __str__(self) -> str:
        return f"{self.parameter}= {self.shape}, {self.values}"


def find_mask_form(
    parameters: list[str],
    run: Callable[[Tensor, MaskForm, Tensor], Tensor | None],
    x: Tensor,
    promised: str | None,
    *,
    keys: bool,
    weak: bool = False,
) -> MaskForm | None:
    """The first parameter with a form under which hidden tokens do not matter and visible ones do; None without one.

    Args:
        run: (input, form, mask) to the output, or None.
        x: (2, t, …), of which some positions are hidden.
        promised: the polarity that the contract promises.
        weak: take the form under which hidden tokens matter least, though they matter.
    """
    for parameter in parameters:
        forms = [
            MaskForm(parameter, shape, values, keys)
            for shape in (KEY_SHAPES if keys else SHAPES)
            for values in (VALUES if promised is None else POLARITIES[promised])
        ]
        trials = list(_try_forms(forms, run, x, keys=keys))
        found = choose_mask(trials)
        if found is None and weak:
            found = min(trials, key=lambda trial: trial[1] / max(trial[2], 1e-12), default=(None,))[0]
        if found is not None:
            return found
    return None


def _try_forms(
    forms: list[MaskForm], run: Callable[[Tensor, MaskForm, Tensor], Tensor | None], x: Tensor, *, keys: bool
) -> Iterator[tuple[MaskForm, float, float]]:
    """Each form that the module takes, with the effects of a hidden and of a visible token on the other outputs."""
    t = x.shape[1]
    mask = torch.ones(2, t, dtype=torch.bool) if keys else torch.ones(2, t, t, dtype=torch.bool).tril()
    hidden, visible = t - 1, 0  # padding at the end works, even if padding elsewhere does not
    if keys:
        mask[0, hidden] = False
    others = [position for position in range(t) if position not in (hidden, visible)]
    yield from _measure(forms, run, x, mask, hidden, visible, others)


def _measure(
    forms: list[MaskForm],
    run: Callable[[Tensor, MaskForm, Tensor], Tensor | None],
    x: Tensor,
    mask: Tensor,
    hidden: int,
    visible: int,
    others: Sequence[int],
) -> Iterator[tuple[MaskForm, float, float]]:
    """Each form that the module takes, with the effects of a hidden and of a visible token on other outputs."""
    for form in forms:
        try:
            outs = [run(y, form, mask.clone()) for y in (x, change_token(x, hidden), change_token(x, visible))]
        except Exception:  # the module does not take this form
            continue
        if any(out is None or not bool(out.isfinite().all()) for out in outs):
            continue
        before, without, control = (out[0] for out in outs if out is not None)
        if before.shape[0] <= max(others):
            continue
        effects = [(after - before)[list(others)].abs().max().item() for after in (without, control)]
        yield form, effects[0], effects[1]


def find_pair_form(
    parameters: list[str], run: Callable[[Tensor, MaskForm, Tensor], Tensor | None], x: Tensor, promised: str | None
) -> MaskForm | None:
    """The form of a mask of pairs under which no later query sees an inner token, whatever else is causal.

    Shapes with an axis for the rows of the batch come first.
    """
    t, hidden = x.shape[1], 1
    mask = torch.ones(2, t, t, dtype=torch.bool).tril()
    mask[:, hidden + 1 :, hidden] = False
    for parameter in parameters:
        for shape in sorted(SHAPES, key=lambda shape: "b" not in shape):
            values = VALUES if promised is None else POLARITIES[promised]
            forms = [MaskForm(parameter, shape, value) for value in values]
            found = choose_mask(_measure(forms, run, x, mask, hidden, 0, range(hidden + 1, t)))
            if found is not None:
                return found
    return None


def change_token(x: Tensor, position: int) -> Tensor:
    """x with another vector or token at one position."""
    x = x.clone()
    if x.is_floating_point():
        x[:, position] = -x[:, position].flip(-1)  # a norm would undo a shift or a scale alone
    else:
        x[:, position] = (x[:, position] + 1) % (int(x.max()) + 1)
    return x
