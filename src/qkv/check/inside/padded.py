"""What a padding mask does wrong, read off the weights of the first attention.

Axes: b batch · t queries · s keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.check.diagnosis import Diagnosis
from qkv.check.inside.read import recorded
from qkv.check.subject import Subject


def padding_mistake(subject: Subject, present: Tensor) -> Diagnosis | None:
    """present (t,): the padding of the first row; the second has none."""
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(23))
    flags = torch.stack((present, torch.ones_like(present)))
    with_flags, without = recorded(subject, x, flags), recorded(subject, x)
    if not with_flags.seen or not without.seen:
        return None
    seen = (with_flags.seen[0].weights.abs() > 1e-30).any(1)
    base = (without.seen[0].weights.abs() > 1e-30).any(1)
    if seen.shape != base.shape or seen.shape[-1] != len(present):
        return None
    rows = flags  # of the queries that exist; what padding sees is its own affair
    name = with_flags.seen[0].name
    hypotheses = {
        "the padding mask never reaches the scores": base,
        "the padding mask is used the other way round: what exists is hidden": base & ~flags[:, None, :],
        "the padding mask hides queries instead of keys: it is on the wrong axis": base & flags[:, :, None],
        "the padding of one row is used for another": base & flags.flip(0)[:, None, :],
        "a key is hidden only where it is padding in every row": base & flags.any(0)[None, None, :],
        "a key is hidden for all rows where it is padding in one": base & flags.all(0)[None, None, :],
        "the padding mask reaches the first row only, whatever the others hold": base & flags[:1, None, :],
    }
    if torch.equal(seen[rows], (base & flags[:, None, :])[rows]):
        return None
    everywhere = torch.ones_like(flags)
    for where in (everywhere, rows):
        for words, guess in hypotheses.items():
            if torch.equal(seen[where], guess[where]):
                return Diagnosis("padding", words, name)
    return Diagnosis("padding", "the padding mask hides other keys than those that are padding", name)
