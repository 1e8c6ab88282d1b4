"""Drawn shapes (`--thorough`): Hypothesis draws shapes, and shrinks one that breaks a property.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qkv.check.checks.formula import Formula, compare_shape, fit_formula
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Finding
from qkv.check.shapes import Options, Sweep

EXAMPLES = 60
HINT = "it computes something else at this shape: the seed replays it"


class BrokenError(Exception):
    """A drawn shape at which a property does not hold."""

    def __init__(self, off: float, words: str) -> None:
        super().__init__(words)
        self.off, self.words = off, words


def check_drawn(impl: Implementation, contract: Contract, kind: str, sweep: Sweep, options: Options) -> list[Finding]:
    """Properties that hold at any shape, at drawn ones; only with thorough."""
    if not options.thorough:
        return []
    if impl.attention is not None:
        forms = fit_formula(impl, contract, "plain")
        tests = [lambda draw: _test_function(impl, forms, draw)] if forms else []
    else:
        causal = contract.kind in ("causal", "window") or kind == "causal"
        tests = [lambda draw: _test_module(impl, sweep, causal and impl.aligned, draw)]
    return [_run(test, options.seed, impl) for test in tests]


def _run(test: Callable[[Any], None], seed: int, impl: Implementation) -> Finding:
    try:
        from hypothesis import HealthCheck, given, settings
        from hypothesis import seed as use_seed
        from hypothesis import strategies as st
    except ImportError:
        raise ValueError(
            "--thorough draws shapes with Hypothesis, which is not installed: pip install hypothesis"
        ) from None

    @use_seed(seed)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def drawn(data: Any) -> None:
        test(lambda low, high: data.draw(st.integers(low, high)))

    try:
        drawn()
    except BrokenError as error:
        evidence = f"{error.words} (seed {seed})"
        return Finding("drawn shapes", "fail", error.off, evidence, HINT, "lengths differ")
    return Finding("drawn shapes", "pass", 0.0, f"{EXAMPLES} drawn shapes (seed {seed}) show nothing else")


def _test_function(impl: Implementation, forms: list[Formula], draw: Callable[[int, int], int]) -> None:
    b, h, d, s = draw(1, 5), draw(1, 6), 8 * draw(1, 8), draw(1, 160)
    t = draw(1, s)
    try:
        off, _ = compare_shape(impl, "plain", forms, (b, h, t, s, d))
    except Exception:  # refused
        return
    if off > 1e-9:
        words = f"at {t} queries on {s} keys, {h} heads of {d}, batch {b} the output is off by {off:.2g} (relative)"
        raise BrokenError(off, words)


def _test_module(impl: Implementation, sweep: Sweep, causal: bool, draw: Callable[[int, int], int]) -> None:
    t, b = impl.nearest_length(draw(1, sweep.longest(300))), draw(1, 5)
    x = impl.random_input(b, t, torch.Generator().manual_seed(draw(0, 99)))
    try:
        whole, alone = impl.run(x), impl.run(x[:1])
        cut = impl.nearest_length(draw(1, t))
        begin = impl.run(x[:, :cut]) if causal else None
    except Exception:  # refused
        return
    off = relative_difference(whole[:1], alone)
    if off > 10 * impl.tolerance:
        raise BrokenError(
            off, f"a row of {t} tokens alone differs by {off:.2g} (relative) from itself in a batch of {b}"
        )
    if begin is not None and (off := relative_difference(whole[:, :cut], begin)) > 10 * impl.tolerance:
        raise BrokenError(off, f"{t} tokens cut to {cut} differ by {off:.2g} (relative)")
