"""--like: compare with a reference. Its measured behavior is the contract; outputs and gradients must be equal.

Axes: b batch · h heads · t queries · s keys · d head dim · c model dim.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.check.calling.functions import HEAD_DIM, HEADS
from qkv.check.checks.attention_function import measure_alignment
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation
from qkv.check.influence import measure_influence
from qkv.check.report import Finding
from qkv.check.tracing.readings import Reading, read_attentions

KINDS = {"causal": "causal", "bidirectional": "bidirectional", "prefix": "prefix", "chunks": "chunked"}
LENGTHS = (1, 17, 33, 65, 129)  # are compared besides the usual one: some bugs appear after a block, page or table
HEAD_COUNTS = ("heads", "num_heads", "n_head", "n_heads", "nhead")


def torch_reference(module: Any) -> Any:
    """What `--like torch` stands for: PyTorch's function for functions, nn.MultiheadAttention for layers."""
    if not isinstance(module, nn.Module):
        return torch.nn.functional.scaled_dot_product_attention
    counts = [count for name in HEAD_COUNTS if isinstance(count := getattr(module, name, None), int)]
    dims = [part.in_features for part in module.modules() if isinstance(part, nn.Linear)]
    if not counts or not dims:
        raise ValueError(
            "--like torch needs a layer with an attribute such as num_heads; use --like package.module:Name instead"
        )
    return nn.MultiheadAttention(dims[0], counts[0], batch_first=True)


# -- the contract that a reference keeps -------------------------------------------------------------------------------


def measure_contract(reference: Implementation, kind: str, base: Contract) -> Contract:
    """What a reference does, as a contract; promises of `base` stay."""
    found: dict[str, Any] = {}
    word = kind.split()[0]
    if kind.startswith("window of"):
        found |= {"kind": "window", "window": int(kind.split()[-1])}
    elif word in KINDS:
        found["kind"] = KINDS[word]
    if reference.module is None:
        found |= _measure_function(reference)
    else:
        found |= _measure_readings(read_attentions(reference)[0])
    promised = {field.name for field in fields(base) if getattr(base, field.name) is not None}
    return replace(base, **{name: value for name, value in found.items() if name not in promised})


def _measure_function(impl: Implementation) -> dict[str, Any]:
    found: dict[str, Any] = {"mask": impl.mask_polarity}
    if impl.causal_flag is not None:
        try:
            alignment, _ = measure_alignment(impl)
            found["alignment"] = alignment if alignment != "irregular" else None
        except Exception:  # it does not take unequal lengths: nothing to promise
            pass
    assert impl.attention is not None
    q, k, v = _random(6, 1), _random(6, 2), _random(6, 3)
    if _difference(impl.attention(q, k, v), (HEAD_DIM**-0.5 * q @ k.mT).softmax(-1) @ v) <= 1e-9:
        found |= {"scale": "head", "softmax": "keys"}
    return found


def _measure_readings(readings: list[Reading]) -> dict[str, Any]:
    scales = {round(reading.scale, 9) for reading in readings if reading.scale is not None}
    if len(scales) != 1 or any(reading.scale is None for reading in readings):
        return {}
    scale, head_dim = scales.pop(), readings[0].attention.head_dim
    over_keys = all(reading.attention.axis == "keys" for reading in readings)
    return {
        "scale": "head" if abs(scale * head_dim**0.5 - 1) <= 0.01 else scale,
        "softmax": "keys" if over_keys else None,
    }


# -- outputs and gradients ---------------------------------------------------------------------------------------------


def compare_with_reference(impl: Implementation, reference: Implementation) -> list[Finding]:
    """Outputs and gradients compared with those of the reference."""
    if impl.attention is not None and reference.attention is not None:
        return _compare_functions(impl, reference)
    if impl.module is None or reference.module is None:
        return [_not_compared("one is a function, the other a module")]
    how = copy_weights(reference, impl)
    if how is None:
        return [_not_compared("the weights could not be copied")]
    if (impl.vocab_size, impl.dim) != (reference.vocab_size, reference.dim) and impl.vocab_size is None:
        return [Finding("like", "n/a", None, f"dims differ: {impl.dim} and {reference.dim}")]
    return [_compare_lengths(impl, reference, how)]


def _compare_lengths(impl: Implementation, reference: Implementation, how: str) -> Finding:
    """The first length at which they differ; the evidence names the lengths that both take."""
    found = _compare_modules(impl, reference, impl.length, f"{how}; ")
    compared = [impl.length]
    for length in LENGTHS:
        if found.verdict == "fail":
            return _name_other_tokens(impl, reference, found, compared[-1])
        if not (impl.takes_length(length) and reference.takes_length(length)):
            continue
        try:
            longer = _compare_modules(impl, reference, length, f"{how}; with {length} tokens, ")
        except Exception:  # a table or a mask of one of the two is shorter; "lengths" judges that
            continue
        compared.append(length)
        found = longer if longer.verdict == "fail" else found
    lengths = ", ".join(map(str, sorted(set(compared))))
    return found if found.verdict == "fail" else replace(found, evidence=f"{found.evidence}, at {lengths} tokens")


def _name_other_tokens(impl: Implementation, reference: Implementation, finding: Finding, length: int) -> Finding:
    """The finding with the tokens that an output sees, and that the reference's does not, or the other way round."""
    with torch.no_grad():
        ours, theirs = (measure_influence(replace(one, length=length)).visible for one in (impl, reference))
    if ours.shape != theirs.shape or torch.equal(ours, theirs):
        return finding
    extra, missing = ours & ~theirs, theirs & ~ours
    shown, does = (extra, "sees") if bool(extra.any()) else (missing, "does not see")
    row = int(shown.any(1).nonzero()[0])
    tokens = shown[row].nonzero()[:, 0].tolist()
    listed = ", ".join(map(str, tokens[:6])) + (", …" if len(tokens) > 6 else "")
    count = int(shown.any(1).sum())
    other = "which the reference does not" if does == "sees" else "which the reference does"
    hint = (
        f"it sees other tokens than the reference: output {row} {does} token{'s' if len(tokens) > 1 else ''} {listed}, "
        f"{other} ({count} of {len(shown)} outputs differ so): the mask, or the window, is another one"
    )
    return replace(finding, hint=hint, family="leak" if does == "sees" else "truncated")


def _compare_modules(impl: Implementation, reference: Implementation, length: int, how: str) -> Finding:
    x = impl.random_input(2, length, torch.Generator().manual_seed(41))
    ours, theirs = _output_and_gradient(impl, x), _output_and_gradient(reference, x)
    return _compare_tensors("like", ours, theirs, how, 10 * impl.tolerance)


def _not_compared(why: str) -> Finding:
    return Finding("like", "n/a", None, f"{why}: only the contract is compared")


def _compare_functions(impl: Implementation, reference: Implementation) -> list[Finding]:
    t = 6
    mask = torch.rand(t, t, generator=torch.Generator().manual_seed(42)) < 0.6
    mask |= torch.eye(t, dtype=torch.bool)
    q, k, v = _random(t, 1), _random(t, 2), _random(t, 3)
    few, longer = _random(3, 1), (_random(LENGTHS[-1], 1), _random(LENGTHS[-1], 2), _random(LENGTHS[-1], 3))
    cases: dict[str, tuple[tuple[Tensor, ...], Tensor | None, bool]] = {
        "plain": ((q, k, v), None, False),
        "large": ((30 * q, k, v), None, False),
        "more keys": ((few, k, v), None, False),
    }
    if impl.takes_length(LENGTHS[-1]):
        cases["longer"] = (longer, None, False)
    if impl.takes_mask and reference.takes_mask:
        cases["mask"] = ((q, k, v), mask, False)
        cases["mask, more keys"] = ((few, k, v), mask[:3], False)
    if (impl.causal_flag or impl.takes_mask) and (reference.causal_flag or reference.takes_mask):
        cases["causal"] = ((q, k, v), None, True)
        if impl.takes_length(LENGTHS[-1]):
            cases["longer, causal"] = (longer, None, True)
    return [_compare_case(impl, reference, f"like ({name})", *case) for name, case in cases.items()]


def _compare_case(
    impl: Implementation,
    reference: Implementation,
    name: str,
    parts: tuple[Tensor, ...],
    mask: Tensor | None,
    causal: bool,
) -> Finding:
    def call(which: Implementation) -> tuple[Tensor, Tensor]:
        assert which.attention is not None
        inputs = [part.clone().requires_grad_() for part in parts]
        flag = causal and which.causal_flag is not None
        own_mask = mask
        if causal and not flag:
            own_mask = torch.ones(parts[0].shape[2], parts[1].shape[2], dtype=torch.bool).tril()
        with torch.enable_grad():
            out = which.attention(inputs[0] + 0, inputs[1] + 0, inputs[2] + 0, own_mask, causal=flag)
            gradients = torch.autograd.grad((out * _output_weights(out)).sum(), inputs, allow_unused=True)
        filled = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, inputs, strict=True)]
        return out.detach(), torch.cat([gradient.flatten() for gradient in filled])

    try:
        theirs = call(reference)
    except Exception as error:
        return Finding(name, "n/a", None, f"the reference raises {type(error).__name__}")
    try:
        ours = call(impl)
    except Exception as error:
        evidence = f"the reference takes this, it does not: {type(error).__name__}: {error}"
        return Finding(name, "fail", 1.0, evidence)
    return _compare_tensors(name, ours, theirs, "", 1e-9)


def _compare_tensors(
    name: str, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], how: str, limit: float
) -> Finding:
    if ours[0].shape != theirs[0].shape:
        return Finding(name, "fail", 1.0, f"{how}shapes are {tuple(ours[0].shape)} and {tuple(theirs[0].shape)}")
    forward, backward = (_difference(a, b) for a, b in zip(ours, theirs, strict=True))
    score = max(forward, backward)
    evidence = f"{how}outputs differ by {forward:.2g} (relative) from the reference, gradients by {backward:.2g}"
    if forward > limit or forward != forward:
        return Finding(name, "fail", score, evidence, "it computes something else")
    if backward > 100 * limit:
        return Finding(name, "fail", score, evidence, "the outputs are right, the gradients are not", "detached")
    return Finding(name, "pass", score, evidence)


def _output_and_gradient(impl: Implementation, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        given = x.clone().requires_grad_() if x.is_floating_point() else x
        out = impl.run(given)
        if not x.is_floating_point():
            return out.detach(), torch.zeros(1)
        (gradient,) = torch.autograd.grad((out * _output_weights(out)).sum(), given)
    return out.detach(), gradient


def _output_weights(out: Tensor) -> Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(43), dtype=out.dtype)


def _difference(a: Tensor, b: Tensor) -> float:
    """The largest difference relative to b; infinite for other shapes and for NaN."""
    if a.shape != b.shape:
        return float("inf")
    return float((a - b).abs().nan_to_num(nan=float("inf")).max()) / (float(b.nan_to_num().abs().max()) or 1.0)


def _random(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(40 + seed)
    return torch.randn(2, HEADS, length, HEAD_DIM, generator=generator, dtype=torch.float64)


# -- weights -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightRole:
    """The rows of a parameter that make an operand, and their bias. transposed: stored as (c, rows)."""

    weight: nn.Parameter
    transposed: bool
    rows: Tensor
    bias: nn.Parameter | None


def copy_weights(reference: Implementation, impl: Implementation) -> str | None:
    """Give the implementation the reference's weights; returns how, in words, or None if it cannot be done."""
    source, target = reference.module, impl.module
    assert source is not None and target is not None
    theirs, ours = dict(source.named_parameters()), dict(target.named_parameters())
    if {name: p.shape for name, p in theirs.items()} == {name: p.shape for name, p in ours.items()}:
        with torch.no_grad():
            for name, parameter in ours.items():
                parameter.copy_(theirs[name])
        return f"{len(ours)} weights of the same names copied"
    a, b = find_weight_roles(reference), find_weight_roles(impl)
    if a is None or b is None or a.keys() != b.keys():
        return None
    if any(len(a[name].rows) != len(b[name].rows) for name in a):
        return None
    with torch.no_grad():
        for name, role in b.items():
            _copy_rows(role, a[name])
    return f"weights copied by what they do ({', '.join(b)})"


def find_weight_roles(impl: Implementation) -> dict[str, WeightRole] | None:
    """The parameters that make queries, keys, values and the output of a module with one attention."""
    readings, _ = read_attentions(impl)
    if len(readings) != 1 or impl.module is None or not all(readings[0].matches.values()):
        return None
    reading, parameters = readings[0], dict(impl.module.named_parameters())
    d = reading.attention.head_dim
    projections = reading.recording.projections
    roles = {}
    for operand, match in reading.matches.items():
        assert match is not None
        if match.split != "heads":
            return None
        slots = match.slots if operand == "queries" else sorted(set(match.slots))
        rows = torch.cat([torch.arange(slot * d, (slot + 1) * d) for slot in slots])
        projection = projections[match.projection]
        roles[operand] = _weight_role(parameters, projection.storage, rows, projection.output.shape[-1])
    last = next((p for p in projections if p.order > reading.attention.order), None)
    if last is not None:
        size = last.output.shape[-1]
        roles["output"] = _weight_role(parameters, last.storage, torch.arange(size), size)
    return None if any(role is None for role in roles.values()) else roles


def _weight_role(parameters: dict[str, nn.Parameter], storage: int, rows: Tensor, size: int) -> WeightRole | None:
    """The role of the parameter with this storage, of which a projection has `size` outputs."""
    for name, weight in parameters.items():
        if weight.untyped_storage().data_ptr() == storage and weight.ndim == 2:
            bias = parameters.get(name.replace("weight", "bias")) if "weight" in name else None
            return WeightRole(weight, weight.shape[0] != size, rows, bias)
    return None


def _copy_rows(target: WeightRole, source: WeightRole) -> None:
    rows = source.weight.mT[source.rows] if source.transposed else source.weight[source.rows]
    if target.transposed:
        target.weight[:, target.rows] = rows.mT
    else:
        target.weight[target.rows] = rows
    if target.bias is not None:
        target.bias[target.rows] = 0.0 if source.bias is None else source.bias[source.rows]
    elif source.bias is not None:
        source.bias[source.rows] = 0.0
