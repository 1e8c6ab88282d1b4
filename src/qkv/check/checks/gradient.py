"""Gradients: they agree with finite differences, and they reach every parameter."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor, nn

from qkv.check.calling.functions import HEAD_DIM, HEADS
from qkv.check.checks.backward import compare_backward, name_grouped_sums, weighted_gradients, written_backwards
from qkv.check.checks.state import forward_as
from qkv.check.contract import Contract
from qkv.check.implementation import AttentionFunction, Implementation
from qkv.check.report import Finding
from qkv.check.shapes import Sweep

LONGER = (33, 65)  # tokens, for parameters that short sequences do not need
MAX_GROUPS = 40  # of parameters, each with its own derivative

# parameters that this call cannot reach: cross-attention without an encoder, and a pooler beside the outputs
OTHER_INPUTS = ("encoder_attn", "crossattention", "cross_attn", "enc_attn", "encdecattention", "pooler")


def check_gradient(impl: Implementation, sweep: Sweep, contract: Contract | None = None) -> list[Finding]:
    """The directional derivative, of inputs and of each parameter, and every parameter reached."""
    if not impl.differentiable:
        return [Finding("gradient", "n/a", None, "PyTorch cannot follow this code: it has no gradient here")]
    with impl.in_float64() as exact:
        derivative = check_directional_derivative(exact, sweep)
        if impl.inexact_gradient is not None and derivative.verdict == "fail":
            evidence = f"{derivative.evidence}: {impl.inexact_gradient}"
            derivative = Finding("gradient", "described", derivative.score, evidence)
        grouped = check_grouped_gradient(exact) if derivative.verdict == "pass" else []
        return [derivative, *grouped, check_parameters_reached(exact), *check_position_tables(exact, sweep, contract)]


def check_directional_derivative(impl: Implementation, sweep: Sweep) -> Finding:
    """Gradients along random directions equal difference quotients: nothing in between is detached.

    Directions are those of the input as a whole, of its two halves in a longer sequence, and of each parameter.
    """
    generator = torch.Generator().manual_seed(12)
    x = impl.random_input(2, impl.length, generator)
    if not _output(impl, x).requires_grad and (impl.vocab_size is None or _trainable(impl)):
        hint = "something detaches, or runs without grad"
        return Finding("gradient", "fail", 1.0, "the output has no gradient", hint, "detached")
    findings = []
    if impl.vocab_size is None:
        findings.append(_derivative_by_input(impl, x, slice(None), generator))
        long = sweep.longest(65)
        if long > impl.length:
            y, half = impl.random_input(1, long, generator), long // 2
            findings += [_derivative_by_input(impl, y, part, generator) for part in (slice(half), slice(half, None))]
    findings += _derivatives_by_parameters(impl, x, generator)
    if not findings:
        return Finding("gradient", "n/a", None, "tokens have no gradient and there are no parameters")
    order = {"fail": 0, "inconclusive": 1}
    zero = [f for f in findings if f.verdict == "fail" and "is 0 although" in (f.hint or "")]
    findings = zero + findings  # one that is 0 says most
    worst = min(findings, key=lambda finding: (order.get(finding.verdict, 2), findings.index(finding)))
    return _name_backward(impl, x, worst, impl.random_input(1, max(sweep.longest(65), impl.length), generator))


def _output(impl: Implementation, x: Tensor) -> Tensor:
    return impl.run(x.clone().requires_grad_() if x.is_floating_point() else x)


def _trainable(impl: Implementation) -> dict[str, Tensor]:
    if impl.module is None:
        return {}
    return {name: p for name, p in impl.module.named_parameters() if p.requires_grad and p.numel()}


def _derivative_by_input(impl: Implementation, x: Tensor, part: slice, generator: Generator) -> Finding:
    """The derivative along a direction of some positions of the input."""
    x = x.clone().requires_grad_()
    out = impl.run(x)
    weights = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    direction = torch.zeros_like(x)
    direction[:, part] = torch.randn(x[:, part].shape, generator=generator, dtype=x.dtype)
    (gradient,) = weighted_gradients(out, weights, [x])
    slope = 0.0 if gradient is None else float((gradient * direction).sum())

    def quotient(step: float) -> float:
        with torch.no_grad():
            ahead, behind = (impl.run(x.detach() + sign * step * direction) for sign in (1, -1))
        return float(((ahead - behind) * weights).sum() / (2 * step))

    where = "" if part == slice(None) else f" of tokens {part.start or 0} to {(part.stop or x.shape[1]) - 1}"
    return _compare(slope, quotient, impl, f"along a direction{where}")


def _derivatives_by_parameters(impl: Implementation, x: Tensor, generator: Generator) -> list[Finding]:
    """The same with the parameters as the variable: each one, or in a large model each role over all layers."""
    parameters = _trainable(impl)
    if not parameters:
        return []
    groups: dict[str, list[Tensor]] = {}
    for name, parameter in parameters.items():
        role = name if len(parameters) <= MAX_GROUPS else re.sub(r"\d+", "*", name)
        groups.setdefault(role, []).append(parameter)
    out = impl.run(x)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    gradients = dict(
        zip(
            map(id, parameters.values()),
            weighted_gradients(out, weights, list(parameters.values())),
            strict=True,
        )
    )
    slopes, quotients = {}, {}
    for role, group in list(groups.items())[:MAX_GROUPS]:
        directions = [_direction(impl, parameter, generator) for parameter in group]
        pairs = [(gradients[id(p)], d) for p, d in zip(group, directions, strict=True)]
        slopes[role] = float(sum(float((g * d).sum()) for g, d in pairs if g is not None))
        quotients[role] = partial(_parameter_quotient, impl, x, weights, group, directions)
        for part, rows in _fused_parts(group):
            only = [torch.zeros_like(directions[0])]
            only[0][rows] = directions[0][rows]
            gradient = gradients[id(group[0])]
            slopes[f"{role} ({part})"] = 0.0 if gradient is None else float((gradient * only[0]).sum())
            quotients[f"{role} ({part})"] = partial(_parameter_quotient, impl, x, weights, group, only)
    floor = 1e-4 * max(map(abs, slopes.values()), default=0.0)
    return [_compare(slopes[role], quotients[role], impl, f"of {role}", floor) for role in slopes]


def _fused_parts(group: list[Tensor]) -> list[tuple[str, slice]]:
    """The rows of a fused projection that make queries, keys and values, in the usual order."""
    rows = group[0].shape[0]
    if len(group) > 1 or group[0].ndim != 2 or rows != 3 * group[0].shape[1]:
        return []
    n = rows // 3
    return [(f"rows {i * n} to {i * n + n - 1}, {name}", slice(i * n, i * n + n)) for i, name in enumerate(
        ("usually queries", "usually keys", "usually values"))]  # fmt: skip


def _direction(impl: Implementation, parameter: Tensor, generator: Generator) -> Tensor:
    direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
    assert impl.module is not None
    for part in impl.module.modules():  # the padding row has no gradient, as PyTorch documents
        if isinstance(part, nn.Embedding) and part.padding_idx is not None and parameter is part.weight:
            direction[part.padding_idx] = 0.0
    return direction


def _parameter_quotient(
    impl: Implementation, x: Tensor, weights: Tensor, group: list[Tensor], directions: list[Tensor], step: float
) -> float:
    sides = []
    with torch.no_grad():
        kept = [parameter.clone() for parameter in group]
        for sign in (1, -1):
            for parameter, middle, direction in zip(group, kept, directions, strict=True):
                parameter.copy_(middle + sign * step * direction)
            sides.append((impl.run(x) * weights).sum())
        for parameter, middle in zip(group, kept, strict=True):
            parameter.copy_(middle)
    return float(sides[0] - sides[1]) / (2 * step)


def _compare(
    slope: float, quotient: Callable[[float], float], impl: Implementation, what: str, floor: float = 0.0
) -> Finding:
    """Compare with the quotient at the best step: a large step bends, a small one drowns in rounding."""
    exact = impl.dtype == torch.float64
    steps = (1e-5, 1e-4, 1e-6, 1e-3, 1e-7, 1e-8) if exact else (3e-2, 1e-2, 3e-3, 1e-3)
    limit = 2e-3 if exact and not impl.float32_inside else 3e-2
    quotients: list[float] = []
    best = score = float("inf")
    for step in steps:
        quotients.append(quotient(step))
        best = min(quotients, key=lambda found: abs(slope - found))
        score = abs(slope - best) / max(abs(best), abs(slope), floor, 1e-12)
        if score <= limit:
            break
    evidence = f"the gradient {what} is {slope:.6g}, the difference quotient {best:.6g}"
    if score <= limit:
        return Finding("gradient", "pass", score, evidence)
    spread = max(quotients[:3]) - min(quotients[:3])
    if spread > 0.05 * abs(best):  # the function jumps (a choice of experts): there is no quotient to compare with
        return Finding("gradient", "inconclusive", score, "the difference quotient depends on the step: it jumps")
    hint = "part of the computation is detached (detach, item, no_grad, numpy), so training misses it"
    if abs(slope) <= 1e-6 * abs(best) and what.startswith("of "):
        hint = f"the gradient {what} is 0 although the output depends on it: it is detached (detach, item, no_grad)"
    return Finding("gradient", "fail", score, evidence, hint, "detached")


def _name_backward(impl: Implementation, x: Tensor, finding: Finding, longer: Tensor) -> Finding:
    """A wrong gradient comes from a hand-written backward pass, if the graph has one and the gradient is not lost."""
    if finding.verdict != "fail" or "is 0," in finding.evidence:
        return finding
    functions = written_backwards(_output(impl, x))
    if not functions:
        return finding
    hint = f"the hand-written backward pass of {' and '.join(functions)} is not the derivative of its forward pass"
    for name, function in functions.items():
        if function is None:
            continue
        wrong = compare_backward(function, lambda: _output(impl, x))
        condition = ""
        if not wrong:
            wrong = compare_backward(function, lambda: _output(impl, longer))
            condition = _first_wrong_length(impl, function, longer) if wrong else ""
        if wrong:
            hint = f"in the backward pass of {name}, {'; '.join(wrong)}"
            return replace(finding, hint=hint, family="wrong gradient", condition=condition)
    return replace(finding, hint=hint, family="wrong gradient")


def check_grouped_gradient(impl: Implementation) -> list[Finding]:
    """With fewer key heads than query heads: gradients of k and v are sums over the query heads that share them."""
    call = impl.attention
    if call is None:
        return []
    n, generator = impl.nearest_length(5), torch.Generator().manual_seed(19)
    found = []
    for key_heads in (HEADS // 2, 1):
        parts = [
            torch.randn(2, heads, n, HEAD_DIM, generator=generator, dtype=impl.dtype)
            for heads in (HEADS, key_heads, key_heads)
        ]
        leaves = [x.clone().requires_grad_() for x in parts]
        try:
            out = call(*leaves)
        except Exception:  # it takes other numbers of key heads only
            continue
        if not out.requires_grad:
            continue
        weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
        gradients = weighted_gradients(out, weights, leaves)
        for place, name in enumerate("qkv"):
            direction = torch.randn(parts[place].shape, generator=generator, dtype=torch.float64).to(impl.dtype)
            gradient = gradients[place]
            slope = 0.0 if gradient is None else float((gradient * direction).sum())
            quotient = partial(_part_quotient, call, parts, place, direction, weights)
            compared = _compare(slope, quotient, impl, f"of {name} with {HEADS} query heads and {key_heads} key heads")
            found.append(compared)
            if compared.verdict == "fail":
                wrong = _name_grouped(call, parts, out, replace(compared, check=GROUPED_GRADIENT, condition=FEWER))
                return [wrong]
    worst = next((finding for finding in found if finding.verdict == "inconclusive"), None)
    return [] if not found else [replace(worst or found[-1], check=GROUPED_GRADIENT)]


GROUPED_GRADIENT, FEWER = "gradient (fewer key heads)", "with fewer key heads than query heads"


def _part_quotient(
    call: AttentionFunction, parts: list[Tensor], place: int, direction: Tensor, weights: Tensor, step: float
) -> float:
    sides = []
    with torch.no_grad():
        for sign in (1, -1):
            moved = [x + sign * step * direction if i == place else x.clone() for i, x in enumerate(parts)]
            sides.append((call(*moved) * weights).sum())
    return float(sides[0] - sides[1]) / (2 * step)


def _name_grouped(call: AttentionFunction, parts: list[Tensor], out: Tensor, finding: Finding) -> Finding:
    """What the gradients of shared key heads are instead of the sums over the query heads that share them."""
    functions = written_backwards(out)
    where = f" of {' and '.join(functions)}" if functions else ""
    summed = name_grouped_sums(call, parts)
    if summed:
        return replace(finding, hint=f"in the backward pass{where}, {summed}", family="wrong gradient")
    for name, function in functions.items():
        leaves = [x.clone().requires_grad_() for x in parts]
        wrong = compare_backward(function, lambda leaves=leaves: call(*leaves)) if function is not None else []
        if wrong:
            hint = f"in the backward pass of {name}, {'; '.join(wrong)}"
            return replace(finding, hint=hint, family="wrong gradient")
    if functions:
        hint = f"the hand-written backward pass{where} is not the derivative of its forward pass"
        return replace(finding, hint=hint, family="wrong gradient")
    return finding


def _first_wrong_length(impl: Implementation, function: type, longer: Tensor) -> str:
    """From which length on a backward pass is wrong, in words."""
    low, high = impl.length, longer.shape[1]
    while high - low > 1:
        middle = (low + high) // 2
        if not impl.takes_length(middle):
            return f"at {longer.shape[1]} tokens, not at {impl.length}"
        wrong = compare_backward(function, lambda middle=middle: _output(impl, longer[:, :middle]))
        low, high = (low, middle) if wrong else (middle, high)
    return f"from {high} tokens on"


def check_position_tables(impl: Implementation, sweep: Sweep, contract: Contract | None = None) -> list[Finding]:
    """A table of which t tokens use t rows in short sequences is used so in longer ones: no two positions share one.

    Under a promise of relative positions the scores themselves are measured; a table by distance may be clipped.
    """
    if impl.module is None or not impl.aligned or (contract is not None and contract.position == "relative"):
        return []
    if not impl.takes_length(impl.length - 3):
        return []
    tables = {
        (name, axis): table.shape[axis]
        for name, table in _tables(impl.module)
        for axis in range(table.ndim)
        if table.shape[axis] > impl.length
    }
    for length in (impl.length - 3, impl.length):
        used = _rows_used(impl, sweep.x[:, :length], tables)
        tables = {place: size for place, size in tables.items() if used.get(place) == length}
    if not tables:
        return []
    known = dict(_tables(impl.module))
    for length in (length for length in sweep.up_to(65) if length > impl.length):
        fitting = {place: size for place, size in tables.items() if size >= length}
        for (name, axis), rows in _rows_used(impl, sweep.x[:, :length], fitting).items():
            by_distance = (
                rows == (known[name].shape[axis] + 1) // 2
            )  # causal, clipped at both ends: half is for the future
            if rows < length and not by_distance:
                evidence = f"{length} tokens use {rows} rows of {name}, {impl.length} tokens use {impl.length}"
                hint = "tokens share a position: positions are clamped or wrap"
                return [Finding("position tables", "fail", 1 - rows / length, evidence, hint, "positions")]
    names = ", ".join(dict.fromkeys(name for name, _ in tables))
    return [Finding("position tables", "pass", 0.0, f"every position has its own row of {names}")]


def _tables(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, table) for name, table in module.named_parameters() if table.requires_grad and table.ndim >= 2]


def _rows_used(impl: Implementation, x: Tensor, tables: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """How many rows of each table, along an axis, get a gradient."""
    if not tables or impl.module is None:
        return {}
    known = dict(_tables(impl.module))
    names = list(dict.fromkeys(name for name, _ in tables))
    out = impl.run(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(52), dtype=torch.float64).to(out.dtype)
    gradients = weighted_gradients(out, weights, [known[name] for name in names])
    found = dict(zip(names, gradients, strict=True))
    used = {}
    for name, axis in tables:
        gradient = found[name]
        if gradient is not None:
            others = [other for other in range(gradient.ndim) if other != axis]
            used[name, axis] = int((gradient.abs().amax(others) > 0).sum())
    return used


def check_parameters_reached(impl: Implementation) -> Finding:
    """Every trainable parameter gets a nonzero gradient, in a short or a long sequence, whatever a flag returns."""
    if impl.module is None or not any(p.requires_grad for p in impl.module.parameters()):
        return Finding("parameters reached", "n/a", None, "it has no parameters")
    count = sum(p.requires_grad for p in impl.module.parameters())
    unreached = _unreached(impl, impl.length)
    for length in {impl.nearest_length(n) for n in LONGER} - {impl.length}:  # some act on a second block, or beyond
        unreached = _still_unreached(impl, length, unreached)
    by_design = [name for name in unreached if any(word in name.lower() for word in impl.unused_by_design)]
    lost = [name for name in unreached if name not in by_design]
    evidence = f"{len(by_design)} of {count} parameters serve other inputs or other losses, first {(*by_design, '')[0]}"
    for flag in _flags(impl.module) if lost else ():
        with forward_as(impl.module, partial(impl.module.forward, **{flag: True})):
            still = _still_unreached(impl, impl.length, lost)
        if not still:
            evidence = f"{len(lost)} of {count} parameters serve what is returned with {flag}=True, first {lost[0]}"
            by_design, lost = lost, still
            break
    if by_design and not lost:
        return Finding("parameters reached", "described", None, evidence)
    if not lost:
        return Finding("parameters reached", "pass", 0.0, f"all {count} parameters get a gradient")
    evidence = f"{len(lost)} of {count} parameters get no gradient, first {lost[0]}"
    hint, family = "a parameter that nothing reads, or a detach between it and the output", "unreached"
    if any("sink" in name.lower() for name in lost):
        hint, family = "the sink takes no part in the softmax on this path (zero initialization hides it)", "sink"
    elif (table := _cancelled_table(impl, lost)) is not None:
        hint = (
            f"{table} is read, but the softmax cancels it: it adds the same to all keys that a query sees. All their "
            "distances share a row of it: check the sign of the relative position, key − query"
        )
        family = "positions"
    return Finding("parameters reached", "fail", len(lost) / count, evidence, hint, family)


def _cancelled_table(impl: Implementation, lost: list[str]) -> str | None:
    """A table without a gradient that is read all the same: with NaN in it, outputs are NaN."""
    assert impl.module is not None
    parameters = dict(impl.module.named_parameters())
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(13))
    for name in lost:
        table = parameters[name]
        words = ("rel", "pos", "bias", "dist", "bucket")
        if table.ndim < 2 or not any(word in name.lower() for word in words):
            continue
        with torch.no_grad():
            kept = table.clone()
            table.fill_(torch.nan)
            try:
                out = impl.run(x)
            finally:
                table.copy_(kept)
        if bool(out.isnan().any()):
            return name
    return None


def _unreached(impl: Implementation, length: int) -> list[str]:
    """The parameters that get no gradient, or a zero one, in sequences of this length."""
    assert impl.module is not None
    generator = torch.Generator().manual_seed(13)
    parameters = {name: p for name, p in impl.module.named_parameters() if p.requires_grad}
    x = impl.random_input(4, length, generator)
    outs = [impl.run(x)] if impl.all_outputs is None else impl.all_outputs(x)
    total = sum((out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)).sum() for out in outs)
    gradients = torch.autograd.grad(torch.as_tensor(total), list(parameters.values()), allow_unused=True)
    size = max((float(g.abs().max()) for g in gradients if g is not None), default=0.0)
    limit = 0.0 if impl.float32_inside else 1e-14 * size  # parts in float32 leave rounding instead of zeros
    unreached = []
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        if gradient is None and not any(word in name.lower() for word in OTHER_INPUTS):
            unreached.append(name)
        if gradient is not None and float(gradient.abs().max()) <= limit and not _softmax_cancels(name, parameter):
            unreached.append(name)
    return unreached


def _still_unreached(impl: Implementation, length: int, unreached: list[str]) -> list[str]:
    """Those of the unreached parameters that other calls do not reach either."""
    try:
        found = _unreached(impl, length) if unreached else []
    except Exception:  # a length or a flag that it does not take
        return unreached
    return [name for name in unreached if name in found]


def _flags(module: nn.Module) -> list[str]:
    """The flags of a call that ask for more outputs and are off by default."""
    parameters = inspect.signature(module.forward).parameters
    return [name for name, p in parameters.items() if p.default is False and name.startswith(("return_", "need_"))]


def _softmax_cancels(name: str, parameter: Tensor) -> bool:
    """A bias that adds the same to every score of a query has no effect: a softmax cancels it, in correct code too."""
    return name.endswith("bias") and parameter.ndim == 1
