"""Generated mutants: a bug × a coding style × a size at which it appears.

A bug is the wrong code of one step. Under a condition ("more than 16 tokens") the right code stays for all other sizes.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from qkv.check.contract import TEXTBOOK, Contract
from qkv.check.mutants.styles import STYLES, Style
from qkv.check.mutants.suite import Mutant

ALWAYS = "always"
# when a bug acts: a condition on what the steps of every style know
SIZES = {
    ALWAYS: "",
    "more than 16 tokens": "s > 16",
    "odd lengths": "s % 2 == 1 and s > 1",
    "more than one row": "q.shape[0] > 1",
    "float32": "q.dtype == torch.float32",
    "with gradients": "torch.is_grad_enabled() and q.requires_grad",
}


@dataclass(frozen=True)
class Bug:
    """The wrong code of one step.

    Args:
        family: the cause that a diagnosis should name; `also` are names that are right, too.
        sizes: the sizes at which it can appear; all of SIZES if empty.
    """

    name: str
    family: str
    step: str
    code: str
    also: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()


LONG = (ALWAYS, "more than 16 tokens")
BUGS = (
    Bug(
        "a query does not see itself",
        "mask off by one",
        "mask",
        "mask = torch.ones(t, s).tril(s - t - 1).bool()\nmask[:, 0] = True",
        ("window", "leak"),
    ),
    Bug("a query sees one key ahead", "mask off by one", "mask", "mask = torch.ones(t, s).tril(s - t + 1).bool()"),
    Bug("no mask", "no mask", "mask", "mask = torch.ones(t, s, dtype=torch.bool)"),
    Bug("mask transposed", "mask transposed", "mask", "mask = torch.ones(t, s).triu(s - t).bool()"),
    Bug(
        "mask in blocks of eight",
        "leak",
        "mask",
        "mask = torch.arange(s) // 8 <= (torch.arange(t)[:, None] + s - t) // 8",
        sizes=(ALWAYS,),
    ),
    Bug("mask filled with −5", "mask not −∞", "masked", "scores = scores.masked_fill(~mask, -5.0)"),
    Bug("mask multiplied by 0", "mask not −∞", "masked", "scores = scores * mask"),
    Bug("mask after the softmax", "mask after softmax", "masked", ""),
    Bug("softmax over the queries", "softmax axis", "softmax", "weights = scores.softmax(-2).nan_to_num()"),
    Bug("softmax over the heads", "softmax axis", "softmax", "weights = scores.softmax(1).nan_to_num()"),
    Bug("sigmoid", "softmax replaced", "softmax", "weights = scores.sigmoid()"),
    Bug(
        "not divided by the sum",
        "softmax replaced",
        "softmax",
        "weights = (scores - scores.amax(-1, keepdim=True)).exp()",
    ),
    Bug(
        "softmax in bfloat16", "low precision", "softmax", "weights = scores.to(torch.bfloat16).softmax(-1).to(scores)"
    ),
    Bug("scale missing", "scale", "scale", "scale = 1.0"),
    Bug("scale by the model dim", "scale", "scale", "scale = (q.shape[1] * q.shape[-1]) ** -0.5"),
    Bug("scale inverted", "scale", "scale", "scale = q.shape[-1] ** 0.5"),
    Bug("scale twice", "scale", "scale", "scale = 1 / q.shape[-1]"),
    Bug("keys for values", "inputs swapped", "inputs", "t, s = q.shape[-2], k.shape[-2]\nv = k"),
    Bug("values for keys", "inputs swapped", "inputs", "t, s = q.shape[-2], k.shape[-2]\nk = v"),
    Bug(
        "key heads tiled",
        "head layout",
        "share",
        "k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))",
    ),
    Bug("weights averaged over the heads", "heads mixed", "average", "out = weights.mean(1, keepdim=True) @ v"),
    Bug("mean of the sequence added", "leak", "end", "out = out + 0.1 * v.mean(-2, keepdim=True)"),
    Bug(
        "mean of the batch added",
        "batch mixed",
        "end",
        "out = out + 0.1 * out.mean(0, keepdim=True)",
        sizes=(ALWAYS, "more than 16 tokens", "odd lengths"),
    ),
    Bug("dropout in eval", "random in eval", "end", "out = F.dropout(out, 0.1)", sizes=LONG),
    Bug("output detached", "detached", "end", "out = out.detach()", sizes=(ALWAYS, "odd lengths")),
    Bug(
        "split without the transpose",
        "heads mixed",
        "split",
        "q, k, v = (y.reshape(len(y), -1, y.shape[1], self.head_dim) for y in (q, k, v))",
        sizes=(ALWAYS,),
    ),
    Bug("merge without the transpose", "heads mixed", "merge", "out = out.reshape(*x.shape)"),
    Bug("rotary on queries only", "rotary", "rotate", "q = rotate(q, torch.arange(s - t, s))"),
    Bug(
        "rotary turns keys the other way",
        "rotary",
        "rotate",
        "q, k = rotate(q, torch.arange(s - t, s)), rotate(k, -torch.arange(s))",
    ),
    Bug(
        "rotary keys one position on",
        "rotary",
        "rotate",
        "q, k = rotate(q, torch.arange(s - t, s)), rotate(k, torch.arange(s) + 1)",
    ),
    Bug(
        "rotary positions in bfloat16",
        "rotary",
        "rotate",
        "at = torch.arange(s).bfloat16() / 7\nq, k = rotate(q, at * 7), rotate(k, at * 7)",
        ("low precision",),
        sizes=(ALWAYS,),
    ),
    Bug(
        "running output not rescaled",
        "block",
        "rescale",
        "total = total * factor + powers.sum(-1, keepdim=True)\nout = out + powers @ values",
        sizes=(ALWAYS,),
    ),
    Bug(
        "running sum not rescaled",
        "block",
        "rescale",
        "total = total + powers.sum(-1, keepdim=True)\nout = out * factor + powers @ values",
        sizes=(ALWAYS,),
    ),
)


@dataclass(frozen=True)
class GeneratedMutant(Mutant):
    """A mutant made of a bug, a style and a size; `twin` is the same without the bug."""

    bug: Bug | None = None
    written: Style | None = None

    @property
    def code(self) -> str:
        """The source of its file."""
        assert self.bug is not None and self.written is not None
        return mutate(self.bug, self.written, SIZES[self.size])

    @property
    def twin(self) -> str:
        """The source of the right implementation in the same style."""
        assert self.written is not None
        return self.written.source()

    @property
    def target(self) -> str:
        """The name of the function or class in its file."""
        assert self.written is not None
        return self.written.target

    @property
    def source(self) -> tuple[str, int, str]:
        return str(_write(self.code)), 1, self.code

    @property
    def right_families(self) -> tuple[str, ...]:
        assert self.bug is not None
        return (self.family, *self.bug.also)


def mutate(bug: Bug, style: Style, condition: str) -> str:
    """The source of a style with a bug, which acts under a condition; always if it is empty."""
    if bug.name == "mask after the softmax":
        changed = {"masked": "", "average": f"weights = weights.masked_fill(~mask, 0.0)\n{style.step('average')}"}
        if condition:
            right = {step: style.step(step) for step in changed}
            changed = {step: _branch(condition, changed[step] or "pass", right[step]) for step in changed}
        return style.source(changed)
    code = bug.code
    if condition and bug.step == "inputs":  # the lengths are needed by the condition
        first, _, rest = code.partition("\n")
        return style.source({"inputs": f"{first}\nif {condition}:\n{textwrap.indent(rest, '    ')}"})
    if condition and bug.step == "merge":
        condition = condition.replace("q.", "x.")
    return style.source({bug.step: _branch(condition, code, style.step(bug.step)) if condition else code})


def _branch(condition: str, wrong: str, right: str) -> str:
    branches = f"if {condition}:\n{textwrap.indent(wrong, '    ')}"
    return f"{branches}\nelse:\n{textwrap.indent(right, '    ')}" if right else branches


def contract_for(bug: Bug, style: Style) -> Contract:
    """What the implementation promises."""
    contract = TEXTBOOK
    if style.rotary:
        contract = replace(contract, position="rotary")
    if bug.family == "head layout":
        contract = replace(contract, grouped="repeated")
    return contract


@cache
def generate_mutants() -> tuple[GeneratedMutant, ...]:
    """Every bug in every style that can have it, at every size at which it can appear."""
    return tuple(_combine())


def _combine() -> Iterator[GeneratedMutant]:
    for bug in BUGS:
        for style in STYLES:
            if not _fits(bug, style):
                continue
            for size in bug.sizes or SIZES:
                name = f"{bug.name} · {style.name} · {size}"
                yield GeneratedMutant(
                    name,
                    bug.family,
                    contract_for(bug, style),
                    _Make(bug, style, size),
                    style=style.name,
                    size=size,
                    bug=bug,
                    written=style,
                )


def _fits(bug: Bug, style: Style) -> bool:
    if bug.name == "mask after the softmax":
        return style.has("softmax")
    if bug.step == "average" and not style.has("softmax"):  # there are no weights to change
        return False
    if bug.family == "head layout":
        return style.parts is not None and "more_arguments" in style.parts
    if bug.family == "low precision" and style.target == "Model":  # the tied precision of a model hides in its norm
        return True
    return style.has(bug.step)


def sample_mutants() -> list[GeneratedMutant]:
    """Every bug in every style once, at sizes that take turns."""
    groups: dict[tuple[str, str], list[GeneratedMutant]] = {}
    for mutant in generate_mutants():
        assert mutant.bug is not None
        groups.setdefault((mutant.bug.name, mutant.style), []).append(mutant)
    return [group[number % len(group)] for number, group in enumerate(groups.values())]


@dataclass(frozen=True)
class _Make:
    """Builds a mutant: the function, or an instance of the class with its default sizes."""

    bug: Bug
    style: Style
    size: str

    def __call__(self) -> Any:
        found = getattr(load_source(mutate(self.bug, self.style, SIZES[self.size])), self.style.target)
        return found() if isinstance(found, type) else found


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="qkv-mutants-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _write(source: str) -> Path:
    """The file of a source, so that lines and code can be shown."""
    file = _folder() / f"mutant_{hashlib.sha256(source.encode()).hexdigest()[:12]}.py"
    if not file.exists():
        file.write_text(source, encoding="utf-8")
    return file


def load_source(source: str) -> Any:
    """The module of a source."""
    file = _write(source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
