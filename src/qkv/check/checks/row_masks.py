"""Masks that differ between the rows of a batch, and between heads: each row and each head gets its own.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.check.calling.functions import HEAD_DIM, HEADS
from qkv.check.checks.basics import random_mask
from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Finding, judge

NAME, FAMILY = "mask in rows", "mask of rows"
HINT = "a row of the batch gets the mask of another: check how the mask is expanded over rows and heads"


def check_row_masks(impl: Implementation) -> list[Finding]:
    """A mask (b, t, t) of which each row is another hides from each row what its own says."""
    if impl.attention is not None:
        return _check_function(impl) if impl.takes_mask and impl.mask_polarity is not None else []
    if impl.run_masked is None or not impl.masks_rows:
        return []
    return [_check_module(impl)]


def _check_module(impl: Implementation) -> Finding:
    """Tokens see those of their own document only; other documents in each row. That holds through any depth."""
    assert impl.run_masked is not None
    generator = torch.Generator().manual_seed(84)
    n, rows = impl.length, 4
    documents = torch.randint(0, 2, (rows, n), generator=generator)
    mask = documents[:, :, None] == documents[:, None]
    x, other = (impl.random_input(rows, n, generator) for _ in range(2))
    first = documents == 0
    changed = torch.where(first if x.ndim == 2 else first[..., None], other.to(x), x)
    try:
        before, after = (impl.run_masked(y, mask.clone()) for y in (x, changed))
    except Exception as error:
        return Finding(NAME, "n/a", None, f"a mask with other rows raises {type(error).__name__}")
    moved = (after - before).abs().nan_to_num(nan=float("inf")).flatten(2).amax(-1)
    hidden, visible = float(moved[~first].max()), float(moved[first].max())
    evidence = f"with another mask in each row, hidden tokens have effect {hidden:.2g} (visible ones {visible:.2g})"
    if not visible > 0:
        return Finding(NAME, "inconclusive", None, evidence)
    return judge(NAME, hidden / visible, impl.tolerance, evidence, HINT, FAMILY)


def _check_function(impl: Implementation) -> list[Finding]:
    """Each row, and each head, of a call is that of a call with its own mask alone."""
    assert impl.attention is not None
    n = impl.nearest_length(7)
    generator = torch.Generator().manual_seed(85)
    q, k, v = (torch.randn(3, HEADS, n, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    findings = []
    for name, shape in ((NAME, (3, 1)), (f"{NAME} (heads)", (1, HEADS))):
        masks = random_mask(shape[0] * shape[1], n).unflatten(0, shape).expand(3, shape[1], -1, -1)
        alone = [impl.attention(q, k, v, mask) for mask in masks.flatten(0, 1).unique(dim=0)]
        expected = _pick(alone, masks, q)
        try:
            same = impl.attention(q, k, v, masks[:1, :1].expand(3, shape[1], -1, -1).clone())
            if relative_difference(impl.attention(q, k, v, masks[0, 0]), same) > impl.tolerance:
                continue  # it takes no mask of this shape
            found = impl.attention(q, k, v, masks.clone())
        except Exception:  # it takes no mask of this shape
            continue
        off = relative_difference(expected, found)
        what = "row" if name == NAME else "head"
        evidence = f"with another mask in each {what}, outputs differ by {off:.2g} (relative) from those with one mask"
        findings.append(judge(name, off, 10 * impl.tolerance, evidence, HINT.replace("row of the batch", what), FAMILY))
    return findings


def _pick(alone: list[Tensor], masks: Tensor, q: Tensor) -> Tensor:
    """The outputs of each row and head with its own mask, from those of calls in which all have one mask."""
    different = masks.flatten(0, 1).unique(dim=0)
    out = torch.empty_like(alone[0])
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            own = masks[row, head if masks.shape[1] > 1 else 0]
            place = next(i for i, mask in enumerate(different) if torch.equal(mask, own))
            out[row, head] = alone[place][row, head]
    return out
