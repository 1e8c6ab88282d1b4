"""Saved and loaded it is the same: the same outputs, and weights that were one tensor are one tensor still."""

import copy

import torch
from torch import Tensor, nn

from qkv.check.finding import Finding, told
from qkv.check.subject import Subject


def check_saved(subject: Subject) -> list[Finding]:
    module = subject.module
    if module is None or not any(True for _ in module.parameters()):
        return []
    try:
        other = copy.deepcopy(module)
    except Exception as error:  # what cannot be copied cannot be compared
        return [Finding("saved and loaded", "n/a", None, f"it cannot be copied: {type(error).__name__}")]
    state = {name: value.clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.1)
    try:
        other.load_state_dict(state)
    except Exception as error:
        said = f"its own state is refused: {told(error)}"
        return [Finding("saved and loaded", "fail", 1.0, said, "names that change", "untied")]
    lost = ties(module) - ties(other)
    if lost:
        names = " and ".join(sorted(next(iter(lost))))
        evidence = f"after loading, {names} are two tensors; before they were one"
        hint = "loading unties: copy into the tensor that is there, or tie again afterwards"
        return [Finding("saved and loaded", "fail", 1.0, evidence, hint, "untied")]
    return [_same_outputs(subject, module, other)]


def ties(module: nn.Module) -> set[frozenset[str]]:
    """Which names stand for one tensor."""
    groups: dict[int, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.numel():
            groups.setdefault(parameter.data_ptr(), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def _same_outputs(subject: Subject, module: nn.Module, other: nn.Module) -> Finding:
    """The loaded weights, put into the module, give the same outputs."""
    x = subject.draw(2, subject.length, torch.Generator().manual_seed(28))
    before = subject.run(x)
    kept = [parameter.detach().clone() for parameter in module.parameters()]
    loaded = dict(other.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            parameter.copy_(loaded[name])
        after = subject.run(x)
        for parameter, value in zip(module.parameters(), kept, strict=True):
            parameter.copy_(value)
    score = float((after - before).abs().max()) / (float(before.abs().max()) or 1.0)
    evidence = f"loaded from its own state, outputs differ by {score:.2g}"
    if score <= 10 * subject.tolerance:
        return Finding("saved and loaded", "pass", score, evidence)
    return Finding(
        "saved and loaded", "fail", score, evidence, "some weights are not in the state, or change", "untied"
    )
