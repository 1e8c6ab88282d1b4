"""Every known bug of a design that has its own formula; the simple and common ones come first.

Bugs that are a mask alone are not here: what queries see is solved (`mask_patterns`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qkv.check.hypotheses.block_bugs import block_bugs
from qkv.check.hypotheses.formula import Design, Observation
from qkv.check.hypotheses.given_bugs import given_bugs
from qkv.check.hypotheses.head_bugs import batch_bugs, head_bugs, input_bugs
from qkv.check.hypotheses.hypothesis import BLOCKS, Hypothesis
from qkv.check.hypotheses.position_bugs import position_bugs
from qkv.check.hypotheses.score_bugs import precision_bugs, scale_bugs, score_bugs, soft_mask_bugs, softmax_bugs


def known_bugs(
    design: Design,
    seen: Observation,
    *,
    blocks: Sequence[int] = BLOCKS,
    shortest: Observation | None = None,
    elsewhere: bool = False,
) -> Iterator[Hypothesis]:
    """The hypotheses for what was observed.

    Args:
        blocks: their sizes; without any, neither blocks nor positions are tried.
        shortest: a shorter observation of the same bug, to which numbers are fitted.
        elsewhere: the design is right in other calls.
    """
    right, long = design.formula, seen
    seen = shortest or seen
    if (cap := design.cap) is not None:
        words = f"the soft cap is applied after the mask: masked scores are −{cap:g}, not −∞"
        core = lambda x, m, v: x.masked_fill(~m, -cap).softmax(-1) @ v  # noqa: E731
        yield Hypothesis("mask not −∞", words, right.but(core=core))
    if design.causal:
        yield from soft_mask_bugs(right, seen)
    yield from scale_bugs(right, seen)
    yield from softmax_bugs(right, seen)
    yield from input_bugs(right, seen)
    yield from head_bugs(right, seen)
    yield from score_bugs(right, seen)
    if seen.given is not None:
        yield from given_bugs(right, seen)
    yield from batch_bugs(right, seen)
    yield from precision_bugs(right, seen)
    if blocks:
        yield from block_bugs(right, long, blocks)
        yield from position_bugs(design, blocks, elsewhere=elsewhere)
