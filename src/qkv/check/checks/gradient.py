"""Gradients: they agree with differences, and they reach every parameter."""

from collections.abc import Callable

import torch

from qkv.check.finding import Finding
from qkv.check.subject import Subject

ELSEWHERE = ("encoder_attn", "crossattention", "cross_attn", "enc_attn", "encdecattention", "pooler")


def check_gradient(subject: Subject) -> list[Finding]:
    with subject.doubled() as exact:
        first = directional(exact)
        if subject.inexact is not None and first.verdict == "fail":
            first = Finding("gradient", "described", first.score, f"{first.evidence}: {subject.inexact}")
        return [first, reached(exact)]


def directional(subject: Subject) -> Finding:
    """The gradient along a random direction equals the difference quotient: nothing on the way is detached."""
    generator = torch.Generator().manual_seed(12)
    x = subject.draw(2, subject.length, generator)
    if subject.vocab is not None:
        return _directional_in_weights(subject, x, generator)
    x = x.requires_grad_()
    out = subject.run(x)
    if not out.requires_grad:
        return Finding(
            "gradient",
            "fail",
            1.0,
            "the output has no gradient",
            "something detaches, or runs without grad",
            "detached",
        )
    weights = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    (slope,) = torch.autograd.grad((out * weights).sum(), x)

    def along(step: float) -> float:
        with torch.no_grad():
            ahead, behind = (subject.run(x.detach() + sign * step * direction) for sign in (1, -1))
        return float(((ahead - behind) * weights).sum() / (2 * step))

    return _agree(float((slope * direction).sum()), along, subject)


def _directional_in_weights(subject: Subject, x: torch.Tensor, generator: torch.Generator) -> Finding:
    if subject.module is None:
        return Finding("gradient", "n/a", None, "tokens have no gradient and there are no parameters")
    parameters = [p for p in subject.module.parameters() if p.requires_grad]
    out = subject.run(x)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    slopes = torch.autograd.grad((out * weights).sum(), parameters, allow_unused=True)
    directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype) for p in parameters]
    for part in subject.module.modules():  # the row of padding has no gradient, as PyTorch documents
        if isinstance(part, torch.nn.Embedding) and part.padding_idx is not None:
            for parameter, way in zip(parameters, directions, strict=True):
                if parameter is part.weight:
                    way[part.padding_idx] = 0.0
    slope = sum(float((s * d).sum()) for s, d in zip(slopes, directions, strict=True) if s is not None)

    def along(step: float) -> float:
        sides = []
        with torch.no_grad():
            kept = [parameter.clone() for parameter in parameters]
            for sign in (1, -1):
                for parameter, middle, way in zip(parameters, kept, directions, strict=True):
                    parameter.copy_(middle + sign * step * way)
                sides.append(float((subject.run(x) * weights).sum()))
            for parameter, middle in zip(parameters, kept, strict=True):
                parameter.copy_(middle)
        return (sides[0] - sides[1]) / (2 * step)

    return _agree(slope, along, subject)


def _agree(slope: float, along: Callable[[float], float], subject: Subject) -> Finding:
    """The quotient at the step that fits best: a large one bends, a small one drowns in rounding."""
    exact = subject.dtype == torch.float64
    quotients = [along(step) for step in ((1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8) if exact else (3e-2, 1e-2, 3e-3, 1e-3))]
    quotient = min(quotients, key=lambda found: abs(slope - found))
    score = abs(slope - quotient) / max(abs(quotient), abs(slope), 1e-12)
    evidence = f"the gradient along a direction is {slope:.6g}, the difference quotient {quotient:.6g}"
    if score <= (2e-3 if exact and not subject.coarse else 3e-2):
        return Finding("gradient", "pass", score, evidence)
    spread = max(quotients[1:3]) - min(quotients[1:3])
    if spread > 0.05 * abs(quotient):  # the function jumps (a choice of experts): no quotient to compare with
        return Finding("gradient", "inconclusive", score, "the difference quotient depends on the step: it jumps")
    hint = "part of the way is detached (detach, item, no_grad, numpy), so training misses it"
    return Finding("gradient", "fail", score, evidence, hint, "detached")


def reached(subject: Subject) -> Finding:
    """Every trainable parameter gets a gradient that is not zero."""
    if subject.module is None or not any(p.requires_grad for p in subject.module.parameters()):
        return Finding("parameters reached", "n/a", None, "it has no parameters")
    generator = torch.Generator().manual_seed(13)
    named = {name: p for name, p in subject.module.named_parameters() if p.requires_grad}
    x = subject.draw(4, subject.length, generator)
    outs = [subject.run(x)] if subject.every is None else subject.every(x)
    total = sum((out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)).sum() for out in outs)
    slopes = torch.autograd.grad(torch.as_tensor(total), list(named.values()), allow_unused=True)
    size = max((float(s.abs().max()) for s in slopes if s is not None), default=0.0)
    limit = 0.0 if subject.coarse else 1e-14  # parts in float32 leave rounding where there should be nothing
    lost = [
        name
        for (name, _), slope in zip(named.items(), slopes, strict=True)
        if (slope is None and not _for_another_input(name))
        or (slope is not None and float(slope.abs().max()) <= limit * size and not _softmax_cancels(name))
    ]
    spare = [name for name in lost if any(word in name.lower() for word in subject.spare)]
    lost = [name for name in lost if name not in spare]
    if spare and not lost:
        evidence = f"{len(spare)} of {len(named)} parameters serve other inputs or other losses, first {spare[0]}"
        return Finding("parameters reached", "described", None, evidence)
    if not lost:
        return Finding("parameters reached", "pass", 0.0, f"all {len(named)} parameters get a gradient")
    evidence = f"{len(lost)} of {len(named)} parameters get no gradient, first {lost[0]}"
    hint, family = "a parameter that nothing reads, or a detach between it and the output", "unreached"
    if any("sink" in name.lower() for name in lost):
        hint, family = "the sink takes no part in the softmax on this path (a zero start hides it)", "sink"
    return Finding("parameters reached", "fail", len(lost) / len(named), evidence, hint, family)


def _softmax_cancels(name: str) -> bool:
    """A bias of the keys adds the same to a query's every score: the softmax cancels it, in correct code too."""
    return name.endswith("bias") and any(word in name.lower() for word in ("k", "qkv", "attn", "in_proj"))


def _for_another_input(name: str) -> bool:
    """Cross-attention of a decoder without an encoder, and a pooler beside the outputs, cannot be reached from here."""
    return any(word in name.lower() for word in ELSEWHERE)
