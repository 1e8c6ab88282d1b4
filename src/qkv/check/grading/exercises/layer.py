"""Attention layers: judged as they stand, and as functions of q, k and v by choosing their weights.

Where a rubric says which of a layer's projections are queries, keys, values and output, the grader can make the layer
compute attention of any q, k and v: tokens are unit vectors, so each projection is a table of what we want to come out.

Axes: b batch · h heads · t queries · s keys · d head width · c model width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qkv.check.checks.masked import check_masked
from qkv.check.checks.weights import check_weights
from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.functions import HEADS, WIDTH
from qkv.check.grading.exercises.common import PRODUCERS, Opened, without_gradients
from qkv.check.grading.exercises.exercise import Exercise, Producer, equality
from qkv.check.grading.proxy import crossed, of_shape, opened
from qkv.check.grading.remote import Remote, UnansweredError
from qkv.check.hypotheses import explained
from qkv.check.subject import Subject

if TYPE_CHECKING:
    from qkv.check.grading.rubric import Rubric

WEIGHED = ("rows sum to one", "scale", "head independence")
MASKED = ("mask polarity", "fully masked row")
PARTS = ("query", "key", "value", "output")
MODEL = HEADS * WIDTH


class Layer(Opened):
    """An attention layer; `parts` maps query, key, value and output to the names of its linear layers."""

    def __init__(self, remote: Remote, rubric: Rubric, shell: nn.Module) -> None:
        settings = rubric.interface.settings
        self.remote, self.parts, self.mask = remote, settings.get("parts", {}), settings.get("mask")
        self.three = settings.get("call", "x") == "query, key, value"
        subject = Subject(
            name=rubric.interface.name,
            level="layer",
            how=rubric.interface.signature,
            run=self.run,
            width=settings.get("width", MODEL),
            length=settings.get("length", 12),
            dtype=getattr(torch, remote.dtype),
            module=shell,
        )
        super().__init__(subject, rubric.contract, shell)

    def run(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        return of_shape(crossed(self.remote, [x] * (3 if self.three else 1), {}, self.weights), tuple(x.shape))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """The layer as a function, by choosing its weights; a causal layer is always causal."""
        b, _, t, _ = q.shape
        s = k.shape[2]
        if (k.shape[1] != q.shape[1]) or (t != s and not self.three):
            raise ValueError("this layer takes neither fewer heads of keys nor unequal lengths")
        tables = {"query": q, "key": k, "value": v}
        weights: dict[str, Tensor] = dict(self.weights)
        for part, wanted in tables.items():
            weights |= self._table(part, wanted)
        if "output" in self.parts:
            name = self.parts["output"]
            weights |= self.filled(name, torch.eye(MODEL, dtype=torch.float64))
        queries, keys = (_unit_vectors(b, length).to(self.subject.dtype) for length in (t, s))
        named = {} if allowed is None or self.mask is None else {self.mask: allowed}
        places = [queries, keys, keys] if self.three else [queries]
        out = of_shape(crossed(self.remote, places, named, weights), (b, t, MODEL)).double()
        return out.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    def _table(self, part: str, wanted: Tensor) -> dict[str, Tensor]:
        """A projection that gives token i of row b the vector wanted for it."""
        rows = wanted.transpose(1, 2).flatten(2).flatten(0, 1)  # (b t) (h d)
        return self.filled(self.parts[part], torch.cat((rows, rows.new_zeros(MODEL - rows.shape[0], MODEL))).mT)

    def filled(self, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """A linear layer's weights: this matrix, and no bias."""
        weight = self.weight(f"{name}.weight", (MODEL, MODEL))
        filled = {f"{name}.weight": matrix.to(weight.dtype)}
        if f"{name}.bias" in self.weights:
            filled[f"{name}.bias"] = torch.zeros_like(self.weights[f"{name}.bias"])
        return filled

    def weight(self, name: str, size: tuple[int, ...]) -> Tensor:
        """One of its parameters, if it is there and has the size that the interface says."""
        found = self.weights.get(name)
        if found is None:
            there = ", ".join(sorted(self.weights)[:8]) or "none"
            raise UnansweredError(f"it has no parameter {name!r}, which the interface names; it has {there}")
        if tuple(found.shape) != size:
            raise UnansweredError(f"its {name} has shape {tuple(found.shape)}, expected {size}")
        return found

    @property
    def inside(self) -> Subject:
        """The layer as a function of q, k and v."""
        built_in = "built in" if self.contract.kind == "causal" else None
        subject = replace(self.subject, level="function", attend=self.attend, flag=built_in, module=None)
        if self.mask is None:
            return subject
        return replace(subject, masked=True, polarity=self.polarity())

    def polarity(self) -> str | None:
        """What True means in its mask, by hiding one key both ways: a hidden value must not matter."""
        generator = torch.Generator().manual_seed(38)
        q, k, v = (torch.randn(1, HEADS, 5, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask[:, 2] = False
        hidden, free = (v.clone() for _ in range(2))
        hidden[:, :, 2] += 1.0
        free[:, :, [0, 1, 3, 4]] += 1.0
        with torch.no_grad():
            before, without, others = (self.attend(q, k, value, mask) for value in (v, hidden, free))
        moved, may = (float((after - before).abs().max().nan_to_num(nan=1e30)) for after in (without, others))
        if moved <= 1e-3 * may:
            return "true-attends"
        return "true-masks" if may <= 1e-3 * moved else None


def _unit_vectors(batch: int, length: int) -> Tensor:
    """A different unit vector for each token of each row."""
    if batch * length > MODEL:
        raise ValueError(f"{batch} rows of {length} tokens are more than {MODEL} unit vectors")
    return torch.eye(MODEL, dtype=torch.float64)[: batch * length].view(batch, length, MODEL)


def prepare(remote: Remote, rubric: Rubric) -> Layer:
    """Open it in float64; where its code knows no float64, in float32."""
    failed = None
    for dtype in ("float64", "float32"):
        remote.dtype = dtype
        layer = Layer(remote, rubric, opened(remote, rubric_seed(remote)))
        try:
            with torch.no_grad():
                layer.run(layer.subject.draw(1, 4, torch.Generator().manual_seed(32)))
            return layer
        except UnansweredError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def rubric_seed(remote: Remote) -> int:
    return remote.seed % 2**31


def formula(layer: Layer) -> list[Finding]:
    """The output equals that of the written formula with the same weights and inputs."""
    x = layer.subject.draw(2, layer.subject.length, torch.Generator().manual_seed(33))
    expected = _reference(layer, x)
    off = float((layer.subject.run(x) - expected).abs().max() / expected.abs().max())
    off = off if off == off else float("inf")
    limit = 1e-6 if layer.subject.dtype == torch.float64 else 1e-3
    words = "with the same weights its output differs from the formula's"
    hint = None
    if off > limit:
        cause = explained(layer.inside, layer.contract)
        hint = (
            f"explained exactly: {cause.words}"
            if cause
            else "the weights are named as agreed, but are used differently"
        )
    return equality("formula", off, limit, words, hint)


def _reference(layer: Layer, x: Tensor) -> Tensor:
    """softmax(q·kᵀ/√d) v, head by head, projected."""

    def projected(part: str, to: Tensor) -> Tensor:
        name = layer.parts[part]
        bias = layer.weights.get(f"{name}.bias")
        out = to @ layer.weight(f"{name}.weight", (MODEL, MODEL)).mT
        return out if bias is None else out + bias

    q, k, v = (projected(part, x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for part in PARTS[:3])
    scores = q @ k.mT * _scale(layer.contract)
    if layer.contract.kind == "causal":
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return projected("output", out) if "output" in layer.parts else out


def _scale(contract: Contract) -> float:
    return WIDTH**-0.5 if contract.scale in (None, "head") else float(contract.scale)


def weighed(layer: Layer) -> list[Finding]:
    """As for functions; the scale of a causal layer is read off its last query, which nothing is hidden from."""
    findings = check_weights(layer.inside, layer.contract)
    if layer.subject.dtype != torch.float64:  # those limits are for float64
        findings = [_rounded(finding) for finding in findings]
    if layer.contract.kind != "causal":
        return findings
    return [_last_scale(layer) if finding.check == "scale" else finding for finding in findings]


def _rounded(finding: Finding) -> Finding:
    small = finding.score is not None and finding.score <= 1e-4
    return replace(finding, verdict="pass", hint=None) if small and finding.verdict == "fail" else finding


def _last_scale(layer: Layer) -> Finding:
    generator = torch.Generator().manual_seed(37)
    q, k = (torch.randn(2, HEADS, WIDTH, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    weights = layer.attend(q, k, torch.eye(WIDTH, dtype=torch.float64).expand_as(q))[:, :, -1]
    scores = (q[:, :, -1:] @ k.mT).squeeze(-2)
    if not bool((weights > 1e-12).all()):
        return Finding(
            "scale", "fail", None, "the last query's weights are not all positive, so no scale can be read off"
        )
    x, y = (part - part.mean(-1, keepdim=True) for part in (scores, weights.log()))
    slope = float((x * y).sum() / (x * x).sum())
    promised = _scale(layer.contract)
    score = abs(slope / promised - 1)
    known = {1.0: "the scale is missing", 1 / WIDTH: "the root is missing, or it is applied twice",
             WIDTH**0.5: "it is inverted", MODEL**-0.5: "it is that of the model's width"}  # fmt: skip
    said = next((f": {words}" for value, words in known.items() if abs(slope / value - 1) < 0.01), "")
    bent = float((y - slope * x).abs().max() / y.abs().max())
    evidence = f"log-weights of the last query grow with q·k by {slope:.4f}, promised {promised:.4f}{said}"
    if bent > 1e-3:
        return Finding("scale", "fail", bent, f"log-weights are not a straight line of q·k (off by {bent:.2g})")
    hint = f"multiply q·k by {promised:.4g}, once, before the softmax"
    return Finding("scale", "pass" if score <= 0.01 else "fail", score, evidence, None if score <= 0.01 else hint)


def unequal(layer: Layer) -> list[Finding]:
    """Queries may be fewer, or more, than keys."""
    generator = torch.Generator().manual_seed(34)
    worst = 0.0
    for t, s in ((3, 7), (7, 3)):
        q, k, v = (torch.randn(2, HEADS, n, WIDTH, generator=generator, dtype=torch.float64) for n in (t, s, s))
        expected = (q @ k.mT * _scale(layer.contract)).softmax(-1) @ v
        off = float((layer.attend(q, k, v) - expected).abs().max() / expected.abs().max())
        worst = max(worst, off if off == off else float("inf"))
    limit = 1e-6 if layer.subject.dtype == torch.float64 else 1e-3
    hint = "the lengths of queries and keys differ in cross-attention: take each from its own input"
    return equality("unequal lengths", worst, limit, "3 queries on 7 keys, and 7 on 3, differ from the formula", hint)


def validate(rubric: Rubric, where: str) -> None:
    """Choosing weights needs to know which they are, and the sizes that the checks draw."""
    settings, inner = rubric.interface.settings, {*WEIGHED, *MASKED, "formula", "unequal lengths"}
    asked = sorted(inner & set(rubric.checks))
    parts: Any = settings.get("parts", {})
    strange = set(settings) - {"parts", "width", "length", "call", "mask"}
    if strange:
        raise ValueError(f"{where}: an interface of a layer has no {sorted(strange)[0]!r}")
    if rubric.interface.build is None:
        raise ValueError(f'{where}: a layer is a class: class = "…"')
    if asked and (settings.get("width", MODEL) != MODEL or not set(PARTS[:3]) <= set(parts) <= set(PARTS)):
        raise ValueError(
            f"{where}: the check {asked[0]!r} needs interface.width = {MODEL}, {HEADS} heads, and interface.parts with "
            f"query, key, value (and output)"
        )
    if {*MASKED} & set(asked) and "mask" not in settings:
        raise ValueError(f'{where}: checks of masks need the name of its argument: interface.mask = "mask"')


LAYER = Exercise(
    prepare,
    (
        *PRODUCERS,
        Producer(WEIGHED, without_gradients(weighed)),
        Producer(MASKED, lambda layer: check_masked(layer.inside, layer.contract)),
        Producer(("formula",), without_gradients(formula)),
        Producer(("unequal lengths",), without_gradients(unequal)),
    ),
    validate,
)
