"""Gradients: they agree with finite differences, and they reach every parameter."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from qkv.check.implementation import Implementation
from qkv.check.report import Finding

# parameters that this call cannot reach: cross-attention without an encoder, and a pooler beside the outputs
OTHER_INPUTS = ("encoder_attn", "crossattention", "cross_attn", "enc_attn", "encdecattention", "pooler")


def check_gradient(impl: Implementation) -> list[Finding]:
    """The directional derivative, and every parameter reached."""
    with impl.in_float64() as exact:
        derivative = check_directional_derivative(exact)
        if impl.inexact_gradient is not None and derivative.verdict == "fail":
            evidence = f"{derivative.evidence}: {impl.inexact_gradient}"
            derivative = Finding("gradient", "described", derivative.score, evidence)
        return [derivative, check_parameters_reached(exact)]


def check_directional_derivative(impl: Implementation) -> Finding:
    """The gradient along a random direction equals the difference quotient: nothing in between is detached."""
    generator = torch.Generator().manual_seed(12)
    x = impl.random_input(2, impl.length, generator)
    if impl.vocab_size is not None:
        return _derivative_by_weights(impl, x, generator)
    x = x.requires_grad_()
    out = impl.run(x)
    if not out.requires_grad:
        hint = "something detaches, or runs without grad"
        return Finding("gradient", "fail", 1.0, "the output has no gradient", hint, "detached")
    weights = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    (gradient,) = torch.autograd.grad((out * weights).sum(), x)

    def quotient(step: float) -> float:
        with torch.no_grad():
            ahead, behind = (impl.run(x.detach() + sign * step * direction) for sign in (1, -1))
        return float(((ahead - behind) * weights).sum() / (2 * step))

    return _compare(float((gradient * direction).sum()), quotient, impl)


def _derivative_by_weights(impl: Implementation, x: Tensor, generator: Generator) -> Finding:
    """The same for models on tokens, with the weights as the variable."""
    if impl.module is None:
        return Finding("gradient", "n/a", None, "tokens have no gradient and there are no parameters")
    parameters = [p for p in impl.module.parameters() if p.requires_grad]
    out = impl.run(x)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    gradients = torch.autograd.grad((out * weights).sum(), parameters, allow_unused=True)
    directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype) for p in parameters]
    for part in impl.module.modules():  # the padding row has no gradient, as PyTorch documents
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            for parameter, direction in zip(parameters, directions, strict=True):
                if parameter is part.weight:
                    direction[part.padding_idx] = 0.0
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True) if g is not None)

    def quotient(step: float) -> float:
        sides = []
        with torch.no_grad():
            kept = [parameter.clone() for parameter in parameters]
            for sign in (1, -1):
                for parameter, middle, direction in zip(parameters, kept, directions, strict=True):
                    parameter.copy_(middle + sign * step * direction)
                sides.append(float((impl.run(x) * weights).sum()))
            for parameter, middle in zip(parameters, kept, strict=True):
                parameter.copy_(middle)
        return (sides[0] - sides[1]) / (2 * step)

    return _compare(slope, quotient, impl)


def _compare(slope: float, quotient: Callable[[float], float], impl: Implementation) -> Finding:
    """Compare with the quotient at the best step: a large step bends, a small one drowns in rounding."""
    exact = impl.dtype == torch.float64
    steps = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8) if exact else (3e-2, 1e-2, 3e-3, 1e-3)
    quotients = [quotient(step) for step in steps]
    best = min(quotients, key=lambda found: abs(slope - found))
    score = abs(slope - best) / max(abs(best), abs(slope), 1e-12)
    evidence = f"the gradient along a direction is {slope:.6g}, the difference quotient {best:.6g}"
    if score <= (2e-3 if exact and not impl.float32_inside else 3e-2):
        return Finding("gradient", "pass", score, evidence)
    spread = max(quotients[1:3]) - min(quotients[1:3])
    if spread > 0.05 * abs(best):  # the function jumps (a choice of experts): there is no quotient to compare with
        return Finding("gradient", "inconclusive", score, "the difference quotient depends on the step: it jumps")
    hint = "part of the computation is detached (detach, item, no_grad, numpy), so training misses it"
    return Finding("gradient", "fail", score, evidence, hint, "detached")


def check_parameters_reached(impl: Implementation) -> Finding:
    """Every trainable parameter gets a nonzero gradient."""
    if impl.module is None or not any(p.requires_grad for p in impl.module.parameters()):
        return Finding("parameters reached", "n/a", None, "it has no parameters")
    generator = torch.Generator().manual_seed(13)
    parameters = {name: p for name, p in impl.module.named_parameters() if p.requires_grad}
    x = impl.random_input(4, impl.length, generator)
    outs = [impl.run(x)] if impl.all_outputs is None else impl.all_outputs(x)
    total = sum((out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)).sum() for out in outs)
    gradients = torch.autograd.grad(torch.as_tensor(total), list(parameters.values()), allow_unused=True)
    size = max((float(g.abs().max()) for g in gradients if g is not None), default=0.0)
    limit = 0.0 if impl.float32_inside else 1e-14 * size  # parts in float32 leave rounding instead of zeros
    unreached = []
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is None and not any(word in name.lower() for word in OTHER_INPUTS):
            unreached.append(name)
        if gradient is not None and float(gradient.abs().max()) <= limit and not _softmax_cancels(name):
            unreached.append(name)
    by_design = [name for name in unreached if any(word in name.lower() for word in impl.unused_by_design)]
    lost = [name for name in unreached if name not in by_design]
    if by_design and not lost:
        evidence = (
            f"{len(by_design)} of {len(parameters)} parameters serve other inputs or other losses, first {by_design[0]}"
        )
        return Finding("parameters reached", "described", None, evidence)
    if not lost:
        return Finding("parameters reached", "pass", 0.0, f"all {len(parameters)} parameters get a gradient")
    evidence = f"{len(lost)} of {len(parameters)} parameters get no gradient, first {lost[0]}"
    hint, family = "a parameter that nothing reads, or a detach between it and the output", "unreached"
    if any("sink" in name.lower() for name in lost):
        hint, family = "the sink takes no part in the softmax on this path (zero initialization hides it)", "sink"
    return Finding("parameters reached", "fail", len(lost) / len(parameters), evidence, hint, family)


def _softmax_cancels(name: str) -> bool:
    """A bias of the keys adds the same to every score of a query: the softmax cancels it, in correct code too."""
    return name.endswith("bias") and any(word in name.lower() for word in ("k", "qkv", "attn", "in_proj"))
