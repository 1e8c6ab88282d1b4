"""In float32 a function errs no more than three times as much as the written formula does, also on large inputs.

Axes: b batch · h heads · t queries · s keys · d head width.
"""

import torch
from torch import Tensor

from qkv.check.finding import Finding
from qkv.check.functions import HEADS, WIDTH
from qkv.check.subject import Subject

SIZES = (1.0, 30.0)


def check_precision(subject: Subject) -> list[Finding]:
    """Its own output in float64 is what it should be; the formula in float32 says what rounding costs."""
    if subject.attend is None:
        return []
    generator = torch.Generator().manual_seed(38)
    q, k, v = (torch.randn(2, HEADS, 32, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    said, worst = [], 0.0
    for size in SIZES:
        parts = (size * q, k, v)
        exact = subject.attend(*parts)
        try:
            single = subject.attend(*(part.float() for part in parts)).double()
        except Exception as error:
            return [Finding("dtype", "n/a", None, f"float32 is refused: {type(error).__name__}")]
        formula = _formula(*parts)
        naive = float((_formula(*(part.float() for part in parts)) - formula).abs().max())
        limit = 3 * naive + 4 * torch.finfo(torch.float32).eps * float(exact.abs().max())
        error = float((single - exact).abs().nan_to_num(nan=float("inf")).max())
        worst = max(worst, error / limit)
        said.append(f"× {size:g}: {error:.2g} (the formula {naive:.2g})")
    evidence = f"float32 against float64, inputs {', '.join(said)}"
    if worst <= 1:
        return [Finding("dtype", "pass", worst, evidence)]
    hint = "something on the way is in lower precision than the inputs: scores and softmax want float32 at least"
    return [Finding("dtype", "fail", worst, evidence, hint, "low precision")]


def _formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (WIDTH**-0.5 * q @ k.mT).softmax(-1) @ v
