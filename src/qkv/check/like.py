"""A reference: its measured behaviour is the contract, and with its weights the outputs must be its outputs.

Axes: b batch · h heads · t queries · s keys · d head width · c model width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.checks.layout import alignment_of
from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.functions import HEADS, WIDTH
from qkv.check.inside.read import Reading, readings
from qkv.check.subject import Subject

KINDS = {"causal": "causal", "bidirectional": "bidirectional", "prefix": "prefix", "chunks": "chunked"}


def torch_reference(target: Any) -> Any:
    """What `--like torch` stands for: the function for functions, nn.MultiheadAttention for layers."""
    if not isinstance(target, nn.Module):
        return torch.nn.functional.scaled_dot_product_attention
    found = next(
        (
            getattr(target, name)
            for name in ("heads", "num_heads", "n_head", "n_heads", "nhead")
            if isinstance(getattr(target, name, None), int)
        ),
        None,
    )
    width = next((part.in_features for part in target.modules() if isinstance(part, nn.Linear)), None)
    if found is None or width is None:
        raise ValueError(
            "--like torch needs a layer that says how many heads it has; name a reference: --like package.module:Name"
        )
    return nn.MultiheadAttention(width, found, batch_first=True)


def measured(subject: Subject, kind: str, base: Contract) -> Contract:
    """What a reference does, as a contract; what is promised already stays."""
    found: dict[str, Any] = {}
    word = kind.split()[0]
    if kind.startswith("window of"):
        found |= {"kind": "window", "window": int(kind.split()[-1])}
    elif word in KINDS:
        found["kind"] = KINDS[word]
    if subject.module is None:
        found |= _of_function(subject)
    else:
        found |= _of_readings(readings(subject)[0])
    said = {field.name for field in fields(base) if getattr(base, field.name) is not None}
    return replace(base, **{name: value for name, value in found.items() if name not in said})


def _of_function(subject: Subject) -> dict[str, Any]:
    found: dict[str, Any] = {"mask": subject.polarity}
    if subject.flag is not None:
        try:
            alignment, _ = alignment_of(subject)
            found["alignment"] = alignment if alignment != "irregular" else None
        except Exception:  # unequal lengths are refused: nothing to promise
            pass
    assert subject.attend is not None
    q, k, v = draw(6, 1), draw(6, 2), draw(6, 3)
    if _off(subject.attend(q, k, v), (WIDTH**-0.5 * q @ k.mT).softmax(-1) @ v) <= 1e-9:
        found |= {"scale": "head", "softmax": "keys"}
    return found


def _of_readings(found: list[Reading]) -> dict[str, Any]:
    scales = {round(reading.scale, 9) for reading in found if reading.scale is not None}
    if len(scales) != 1 or any(reading.scale is None for reading in found):
        return {}
    scale, width = scales.pop(), found[0].seen.width
    keys = all(reading.seen.axis == "keys" for reading in found)
    return {"scale": "head" if abs(scale * width**0.5 - 1) <= 0.01 else scale, "softmax": "keys" if keys else None}


def draw(length: int, seed: int, heads: int = HEADS) -> Tensor:
    generator = torch.Generator().manual_seed(40 + seed)
    return torch.randn(2, heads, length, WIDTH, generator=generator, dtype=torch.float64)


def compared(subject: Subject, reference: Subject) -> list[Finding]:
    """Outputs and gradients beside the reference's."""
    if subject.attend is not None and reference.attend is not None:
        return _functions(subject, reference)
    if subject.module is None or reference.module is None:
        return [Finding("like", "n/a", None, "one is a function, the other a module: only the contract is compared")]
    how = copy_weights(reference, subject)
    if how is None:
        return [Finding("like", "n/a", None, "the weights could not be copied: only the contract is compared")]
    generator = torch.Generator().manual_seed(41)
    if (subject.vocab, subject.width) != (reference.vocab, reference.width) and subject.vocab is None:
        return [Finding("like", "n/a", None, f"widths differ: {subject.width} and {reference.width}")]
    x = subject.draw(2, subject.length, generator)
    ours, theirs = _with_gradient(subject, x), _with_gradient(reference, x)
    return [_judged("like", ours, theirs, f"{how}; ", 10 * subject.tolerance)]


def _functions(subject: Subject, reference: Subject) -> list[Finding]:
    t = 6
    allowed = torch.rand(t, t, generator=torch.Generator().manual_seed(42)) < 0.6
    allowed |= torch.eye(t, dtype=torch.bool)
    cases: dict[str, tuple[tuple[Tensor, ...], Tensor | None, bool]] = {
        "plain": ((draw(t, 1), draw(t, 2), draw(t, 3)), None, False),
        "large": ((30 * draw(t, 1), draw(t, 2), draw(t, 3)), None, False),
        "more keys": ((draw(3, 1), draw(t, 2), draw(t, 3)), None, False),
    }
    if subject.masked and reference.masked:
        cases["mask"] = ((draw(t, 1), draw(t, 2), draw(t, 3)), allowed, False)
        cases["mask, more keys"] = ((draw(3, 1), draw(t, 2), draw(t, 3)), allowed[:3], False)
    if (subject.flag or subject.masked) and (reference.flag or reference.masked):
        cases["causal"] = ((draw(t, 1), draw(t, 2), draw(t, 3)), None, True)
    return [_case(subject, reference, name, *case) for name, case in cases.items()]


def _case(
    subject: Subject, reference: Subject, name: str, parts: tuple[Tensor, ...], allowed: Tensor | None, causal: bool
) -> Finding:
    def call(which: Subject) -> tuple[Tensor, Tensor]:
        assert which.attend is not None
        inputs = [part.clone().requires_grad_() for part in parts]
        mask = allowed
        if causal and which.flag is None:
            mask = torch.ones(parts[0].shape[2], parts[1].shape[2], dtype=torch.bool).tril()
        with torch.enable_grad():
            out = which.attend(
                inputs[0] + 0, inputs[1] + 0, inputs[2] + 0, mask, causal=causal and which.flag is not None
            )
            weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(43), dtype=out.dtype)
            slopes = torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)
        flat = [torch.zeros_like(x) if s is None else s for s, x in zip(slopes, inputs, strict=True)]
        return out.detach(), torch.cat([slope.flatten() for slope in flat])

    try:
        theirs = call(reference)
    except Exception as error:
        return Finding(f"like ({name})", "n/a", None, f"the reference refuses this: {type(error).__name__}")
    try:
        ours = call(subject)
    except Exception as error:
        return Finding(
            f"like ({name})", "fail", 1.0, f"the reference takes this, it does not: {type(error).__name__}: {error}"
        )
    return _judged(f"like ({name})", ours, theirs, "", 1e-9)


def _judged(name: str, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], how: str, limit: float) -> Finding:
    if ours[0].shape != theirs[0].shape:
        return Finding(name, "fail", 1.0, f"{how}shapes are {tuple(ours[0].shape)} and {tuple(theirs[0].shape)}")
    forward, backward = (_off(a, b) for a, b in zip(ours, theirs, strict=True))
    evidence = f"{how}outputs differ by {forward:.2g} from the reference's, gradients by {backward:.2g}"
    ok = forward <= limit and backward <= 100 * limit
    hint = (
        None
        if ok
        else "the outputs are right, the gradients are not"
        if forward <= limit
        else "it computes something else"
    )
    family = "detached" if not ok and forward <= limit else None
    return Finding(name, "pass" if ok else "fail", max(forward, backward), evidence, hint, family)


def _with_gradient(subject: Subject, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        given = x.clone().requires_grad_() if x.is_floating_point() else x
        out = subject.run(given)
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(43), dtype=out.dtype)
        if not x.is_floating_point():
            return out.detach(), torch.zeros(1)
        (slope,) = torch.autograd.grad((out * weights).sum(), given)
    return out.detach(), slope


def _off(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    return float((a - b).abs().nan_to_num(nan=float("inf")).max()) / (float(b.nan_to_num().abs().max()) or 1.0)


# -- weights -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Role:
    """Which rows of which parameter make an operand: (rows, c), and the numbers added to them."""

    weight: nn.Parameter
    turned: bool  # stored as (c, rows), as some libraries do
    rows: Tensor
    bias: nn.Parameter | None


def copy_weights(reference: Subject, subject: Subject) -> str | None:
    """Give the subject the reference's weights; how, in words, or None if it cannot be done."""
    source, target = reference.module, subject.module
    assert source is not None and target is not None
    theirs, ours = dict(source.named_parameters()), dict(target.named_parameters())
    if {name: p.shape for name, p in theirs.items()} == {name: p.shape for name, p in ours.items()}:
        with torch.no_grad():
            for name, parameter in ours.items():
                parameter.copy_(theirs[name])
        return f"{len(ours)} weights of the same names copied"
    a, b = roles(reference), roles(subject)
    if a is None or b is None or a.keys() != b.keys():
        return None
    if any(len(a[name].rows) != len(b[name].rows) for name in a):
        return None
    with torch.no_grad():
        for name, role in b.items():
            _put(role, a[name])
    return f"weights copied by what they do ({', '.join(b)})"


def roles(subject: Subject) -> dict[str, Role] | None:
    """The parameters that make queries, keys, values and the output of a module with one attention."""
    found, _ = readings(subject)
    if len(found) != 1 or subject.module is None or not all(found[0].matches.values()):
        return None
    reading, named = found[0], dict(subject.module.named_parameters())
    places = {p.untyped_storage().data_ptr(): (name, p) for name, p in named.items()}
    result = {}
    for operand, match in reading.matches.items():
        assert match is not None
        if match.cut != "heads":
            return None
        slots = match.slots if operand == "queries" else sorted(set(match.slots))
        rows = torch.cat([torch.arange(slot * reading.seen.width, (slot + 1) * reading.seen.width) for slot in slots])
        result[operand] = _role(
            places.get(reading.recording.projections[match.projection].source), rows, named, match.projection, reading
        )
    last = next((p for p in reading.recording.projections if p.order > reading.seen.order), None)
    if last is not None:
        result["output"] = _role(
            places.get(last.source), torch.arange(last.output.shape[-1]), named, -1, reading, last.output.shape[-1]
        )
    return None if any(role is None for role in result.values()) else result


def _role(
    found: tuple[str, nn.Parameter] | None,
    rows: Tensor,
    named: dict[str, nn.Parameter],
    place: int,
    reading: Reading,
    size: int = 0,
) -> Role | None:
    if found is None or found[1].ndim != 2:
        return None
    name, weight = found
    size = size or reading.recording.projections[place].output.shape[-1]
    turned = weight.shape[0] != size
    bias = next((named[n] for n in (name.replace("weight", "bias"),) if n != name and n in named), None)
    return Role(weight, turned, rows, bias)


def _put(target: Role, source: Role) -> None:
    rows = source.weight.mT[source.rows] if source.turned else source.weight[source.rows]
    if target.turned:
        target.weight[:, target.rows] = rows.mT
    else:
        target.weight[target.rows] = rows
    if target.bias is not None:
        target.bias[target.rows] = 0.0 if source.bias is None else source.bias[source.rows]
    elif source.bias is not None:
        source.bias[source.rows] = 0.0
