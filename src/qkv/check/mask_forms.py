"""Masks that are handed in: which shape and which values a module takes, found out by trying.

Axes: b batch · t queries · s keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "(t, t)": lambda allowed: allowed[0],
    "(b, t, t)": lambda allowed: allowed,
    "(b, 1, t, t)": lambda allowed: allowed[:, None],
    "(1, t, t)": lambda allowed: allowed[:1],
}
KEY_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "(b, t)": lambda present: present,
    "(b, 1, 1, t)": lambda present: present[:, None, None],
    "(b, 1, t)": lambda present: present[:, None],
}
VALUES: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "True = may attend": lambda allowed, dtype: allowed,
    "True = may not attend": lambda allowed, dtype: ~allowed,
    "1 = may attend, integers": lambda allowed, dtype: allowed.long(),
    "1 = may attend, floats": lambda allowed, dtype: allowed.to(dtype),
    "added: 0 and −∞": lambda allowed, dtype: torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, -torch.inf),
    "1 = may not attend, integers": lambda allowed, dtype: (~allowed).long(),
    "1 = may not attend, floats": lambda allowed, dtype: (~allowed).to(dtype),
}
PROMISED = {
    "true-attends": ("True = may attend", "1 = may attend, integers", "1 = may attend, floats"),
    "true-masks": ("True = may not attend", "1 = may not attend, integers", "1 = may not attend, floats"),
    "added": ("added: 0 and −∞",),
}


@dataclass(frozen=True)
class MaskForm:
    """A parameter, the shape of mask that it takes, and what its values mean; `keys`: it says which keys exist."""

    parameter: str
    shape: str
    values: str
    keys: bool = False

    def __call__(self, allowed: Bool[Tensor, "b t s"] | Bool[Tensor, "b s"], dtype: torch.dtype) -> Tensor:
        """The mask, from (b, t, s) flags, or from (b, s) flags where it is one of keys. True = may attend."""
        shaped = (KEY_SHAPES if self.keys else SHAPES)[self.shape](allowed)
        return VALUES[self.values](shaped, dtype)

    @property
    def batched(self) -> bool:
        return self.keys or self.shape.startswith("(b")

    def __str__(self) -> str:
        return f"{self.parameter}= {self.shape}, {self.values}"


def candidates(parameter: str, promised: str | None, *, keys: bool) -> Iterator[MaskForm]:
    """The forms that a mask could have, likeliest first."""
    for shape in KEY_SHAPES if keys else SHAPES:
        for values in VALUES if promised is None else PROMISED[promised]:
            yield MaskForm(parameter, shape, values, keys)


def find_form(
    parameter: str,
    run: Callable[[Tensor, MaskForm, Tensor], Tensor | None],
    x: Tensor,
    promised: str | None,
    *,
    keys: bool,
) -> MaskForm | None:
    """The form under which what is forbidden does not matter and what is allowed does; None if there is none.

    run: (input, form, flags) to the output, or None. x: (2, t, …), of which some places are forbidden.
    """
    t = x.shape[1]
    flags = torch.ones(2, t, dtype=torch.bool) if keys else torch.ones(2, t, t, dtype=torch.bool).tril()
    hidden, seen = (1, 0) if keys else (t - 1, 0)
    if keys:
        flags[0, hidden] = False
    best, least = None, 0.3
    for form in candidates(parameter, promised, keys=keys):
        try:
            outs = [run(y, form, flags) for y in (x, _other(x, hidden), _other(x, seen))]
        except Exception:  # a form of mask that the module does not take is one answer fewer
            continue
        if any(out is None or not bool(out.isfinite().all()) for out in outs):
            continue
        before, forbidden, free = (out[0] for out in outs if out is not None)
        places = [place for place in range(before.shape[0]) if place not in (hidden, seen)]
        moved, may = ((after - before)[places].abs().max().item() for after in (forbidden, free))
        if may > 1e-6 and moved / may < least * (0.5 if best else 1.0):  # the first of those that do equally well
            best, least = form, moved / may
            if least < 1e-9:
                break
    return best


def _other(x: Tensor, place: int) -> Tensor:
    """x with another vector or token at one place."""
    x = x.clone()
    if x.is_floating_point():
        x[:, place] = -x[:, place].flip(-1)  # a shift or a scale alone would be undone by a norm
    else:
        x[:, place] = (x[:, place] + 1) % (int(x.max()) + 1)
    return x
