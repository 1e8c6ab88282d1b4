"""Basic checks that hold under every contract: deterministic in eval, batch independence, finite outputs, dtype.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

import torch
from torch import Tensor

from qkv.check.calling.functions import HEAD_DIM, random_qkv
from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Finding, judge


def check_determinism(impl: Implementation) -> Finding:
    """The same input twice gives the same output."""
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(4))
    score = relative_difference(impl.run(x), impl.run(x))
    evidence = f"two calls on the same input differ by {score:.2g} (relative)"
    hint = "dropout (or another random operation) is active in eval: pass dropout only if self.training"
    return judge("deterministic in eval", score, 1e-9, evidence, hint, "random in eval")


def check_inputs_not_mutated(impl: Implementation) -> Finding:
    """The input is the same after the call."""
    generator = torch.Generator().manual_seed(5)
    if impl.attention is None:
        inputs = (impl.random_input(2, impl.length, generator),)
    else:
        inputs = random_qkv(6, generator, batch=2)
    before = [x.clone() for x in inputs]
    (impl.attention or impl.run)(*inputs)
    change = max(float((x - y).abs().max()) for x, y in zip(inputs, before, strict=True))
    if change == 0:
        return Finding("inputs not mutated", "pass", 0.0, "the input is bit-identical after the call")
    evidence = f"the call changed its input by up to {change:.2g}"
    hint = "an operation with a trailing underscore, or an assignment to a slice, writes into the caller's tensor"
    return Finding("inputs not mutated", "fail", change, evidence, hint, "input changed")


def check_batch_independence(impl: Implementation) -> list[Finding]:
    """A row's output does not depend on the other rows, on their number or on their order."""
    generator = torch.Generator().manual_seed(6)
    x, others = impl.random_input(3, impl.length, generator), impl.random_input(2, impl.length, generator)
    expected = impl.run(x)[:1]
    cases = {
        "alone": ("a row alone", impl.run(x[:1])),
        "with others": ("a row among other rows", impl.run(torch.cat((x[:1], others)))[:1]),
        "reordered": ("a row of a reordered batch", impl.run(x.flip(0))[-1:]),
    }
    limit = 1e-9 if impl.dtype == torch.float64 else 1e-4
    findings = []
    for case, (words, row) in cases.items():
        score = relative_difference(expected, row)
        ok = score <= limit
        hint = None if ok else "something mixes rows: a norm, a mean or a view over the batch axis"
        evidence = f"the output of {words} differs by {score:.2g} (relative)"
        findings.append(Finding(f"batch ({case})", "pass" if ok else "fail", score, evidence, hint, "batch mixed"))
    return findings


def check_finite(impl: Implementation) -> Finding:
    """Finite inputs, also large ones, give finite outputs."""
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(7))
    sizes = (1.0,) if impl.vocab_size is not None else (1.0, 30.0, 1000.0)
    for size in sizes:
        out = impl.run(x if size == 1.0 else x * size)
        if not bool(out.isfinite().all()):
            share = float((~out.isfinite()).float().mean())
            hint = "the softmax overflows: subtract the row's maximum first, or use torch.softmax"
            evidence = f"for inputs × {size:g}, {share:.0%} of the outputs are NaN or infinite"
            return Finding("finite", "fail", share, evidence, hint, "overflow")
    return Finding("finite", "pass", 0.0, f"outputs are finite for inputs × {', '.join(f'{s:g}' for s in sizes)}")


def check_dtype(impl: Implementation) -> list[Finding]:
    """In float32 a function errs at most three times as much as the written formula, also on large inputs.

    Its own output in float64 is the reference.
    """
    assert impl.attention is not None
    q, k, v = random_qkv(32, torch.Generator().manual_seed(38), batch=2)
    errors, worst = [], 0.0
    for size in (1.0, 30.0):
        parts = (size * q, k, v)
        exact = impl.attention(*parts)
        try:
            single = impl.attention(*(part.float() for part in parts)).double()
        except Exception as error:
            return [Finding("dtype", "n/a", None, f"float32 inputs raise {type(error).__name__}")]
        naive = float((_formula(*(part.float() for part in parts)) - _formula(*parts)).abs().max())
        limit = 3 * naive + 4 * torch.finfo(torch.float32).eps * float(exact.abs().max())
        error = float((single - exact).abs().nan_to_num(nan=float("inf")).max())
        worst = max(worst, error / limit)
        errors.append(f"× {size:g}: {error:.2g} (the formula {naive:.2g})")
    evidence = f"error of float32 against float64, inputs {', '.join(errors)}"
    hint = "part of the computation has lower precision than the inputs: scores and softmax need float32 at least"
    return [judge("dtype", worst, 1.0, evidence, hint, "low precision")]


def _formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (HEAD_DIM**-0.5 * q @ k.mT).softmax(-1) @ v
