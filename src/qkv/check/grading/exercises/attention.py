"""Grade attention: multi-head and causal self-attention layers, and functions attention(q, k, v, …).

Where a rubric says which projections of a layer are queries, keys, values and output, the grader makes the layer
compute attention of any q, k and v: tokens are unit vectors, so each projection is a table of the wanted vectors.

Axes: b batch · h heads · t queries · s keys · d head dim · c model dim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.check.calling.functions import HEAD_DIM, HEADS, function_implementation
from qkv.check.checks.attention_function import check_layout, check_masks, check_weights
from qkv.check.contract import Contract
from qkv.check.explain import explain_function
from qkv.check.grading.client import Sandbox, SubmissionError, derive_seed
from qkv.check.grading.exercises.common import (
    BATCH_CHECKS,
    EXPLAINED,
    FIX,
    LAYER_CHECKS,
    PARAMETER_GRADIENTS,
    Exercise,
    GradedCheck,
    GradedLayer,
    check_shape_of_layer,
    compare,
    no_grad,
    relative_error,
)
from qkv.check.grading.exercises.projections import Layout, explain_attention, layouts, named_layout
from qkv.check.grading.proxy import call_remote, check_shape, load_parameters
from qkv.check.implementation import Implementation
from qkv.check.report import BUG_FAMILIES, Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

WEIGHT_CHECKS = ("rows sum to one", "scale", "head independence")
MASK_CHECKS = ("mask polarity", "fully masked row")
PARTS = ("query", "key", "value", "output")
MODEL_DIM = HEADS * HEAD_DIM
BY_OUTPUT = ("causal", "truncation", "past reachable", "kind", *WEIGHT_CHECKS, *BATCH_CHECKS)
NO_FUTURE = ("causal", "truncation")
BREAKS = {
    "no mask": NO_FUTURE,
    "mask off by one": (*NO_FUTURE, "past reachable"),
    "mask transposed": (*NO_FUTURE, "past reachable"),
    "mask not −∞": NO_FUTURE,
    "mask after softmax": ("rows sum to one", *NO_FUTURE),
    "leak": NO_FUTURE,
    "window": ("past reachable",),
    "softmax axis": ("rows sum to one", *NO_FUTURE),
    "softmax replaced": ("rows sum to one",),
    "scale": ("scale",),
    "scores changed": (),
    "heads mixed": ("head independence", *NO_FUTURE),
    "inputs swapped": (),
    "mask inverted": (*NO_FUTURE, "past reachable"),
    "no projection": (),
    "input added": (),
    "first row": BATCH_CHECKS,
}  # which checks a mistake breaks by itself, besides the formula
MAX_LAYOUTS = 500
ROUNDED = ("gradient", "gradients of parameters")  # measured with small steps, which large scores round away
HIDES = {
    "mask off by one": ROUNDED,
    "mask inverted": ROUNDED,
    "softmax axis": (*MASK_CHECKS, "unequal lengths"),
    "heads mixed": ("unequal lengths",),
}  # what else fails only because of a mistake
WRONG_MASKS = (
    ("mask off by one", "a query does not see itself; the first one sees nothing, so its softmax is over all tokens",
     lambda ones: ones.triu(0), BUG_FAMILIES["mask off by one"]),
    ("mask inverted", "the mask is inverted: it hides the past and shows the future", lambda ones: ones.tril(0),
     "hide what the mask excludes: masked_fill(mask == 0, −∞) where the mask is 1 for key ≤ query"),
    ("mask inverted", "the mask is inverted: it hides the past and shows the future and the token itself",
     lambda ones: ones.tril(-1), "hide key > query: where a mask is True for these, fill where it is True"),
)  # masks that hide with a large number, not −∞: the family, the mistake, what is hidden, the fix  # fmt: skip
# a mask argument that does not hide: the mistake, and what it makes of the scores s and the weights w (m: may attend)
WRONG_MASK_ARGUMENTS = {
    "the mask is never used": lambda s, m: s.softmax(-1),
    "masked scores become 0, not −∞": lambda s, m: (s * m).softmax(-1),
    "masked weights are set to 0 after the softmax, so that the rest does not sum to 1": lambda s, m: s.softmax(-1) * m,
    "the mask is added to the scores as 0 and 1": lambda s, m: (s + m).softmax(-1),
    "the mask is transposed": lambda s, m: s.masked_fill(~m.mT, -1e30).softmax(-1),
    **{
        f"masked scores become {value:g}, not −∞": lambda s, m, value=value: s.masked_fill(~m, value).softmax(-1)
        for value in (1.0, -1.0, 1e-9, -5.0, -10.0, -100.0)
    },
}


class GradedAttention(GradedLayer):
    """An attention layer; `parts` maps query, key, value and output to the usual names of its linear layers."""

    def __init__(self, sandbox: Sandbox, rubric: GradedExercise, parameters: nn.Module) -> None:
        settings = rubric.interface.settings
        self.sandbox, self.parts, self.mask = sandbox, settings.get("parts", {}), settings.get("mask")
        self.takes_qkv = settings.get("call", "x") == "query, key, value"
        self._layout: Layout | None = None
        config: Any = (rubric.interface.build or {}).get("config", {})
        self.block_size: int | None = config.get("block_size") if isinstance(config, dict) else None
        self.pad_to: int | None = None  # the only length that it takes; shorter inputs then get zeros at their end
        self.by_row = False  # whether it is called row by row, because it returns only one row of a batch
        self.call_error: SubmissionError | None = None  # why it is padded, or called row by row
        implementation = Implementation(
            name=rubric.interface.name,
            level="layer",
            how=rubric.interface.signature,
            run=self.run,
            dim=settings.get("dim", MODEL_DIM),
            length=settings.get("length", 12),
            dtype=getattr(torch, sandbox.dtype),
            module=parameters,
        )
        super().__init__(implementation, rubric.contract, parameters)

    def run(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        if self.takes_qkv:
            return check_shape(call_remote(self.sandbox, [x, x, x], {}, self.weights), tuple(x.shape))
        return self.call(x, self.weights)

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Its output for x, called as `find_other_call` found that it works.

        A block that begins with x gives the same for x, because a layer that gets whole blocks is causal.
        """
        if self.by_row:
            rows = [call_remote(self.sandbox, [row[None]], {}, weights) for row in x]
            return torch.stack([check_shape(out.reshape(out.shape[-2:]), tuple(x.shape[1:])) for out in rows])
        whole = x if self.pad_to is None else F.pad(x, (0, 0, 0, self.pad_to - x.shape[1]))
        return check_shape(call_remote(self.sandbox, [whole], {}, weights), tuple(whole.shape))[:, : x.shape[1]]

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        values_apart: bool = False,
    ) -> Tensor:
        """The layer as a function of q, k and v, by choosing its weights; a causal layer is always causal.

        values_apart: the tokens that give the values are not those that give the keys.
        """
        b, _, t, _ = q.shape
        s = k.shape[2]
        if (k.shape[1] != q.shape[1]) or (t != s and not self.takes_qkv):
            raise ValueError("this layer takes neither fewer key heads nor unequal lengths")
        weights: dict[str, Tensor] = dict(self.weights)
        if values_apart:
            v = v.flip(2)
        for part, wanted in {"query": q, "key": k, "value": v}.items():
            weights = self._set_projection(weights, part, wanted)
        if "output" in self.layout:
            identity = torch.eye(MODEL_DIM, dtype=torch.float64).unflatten(1, (HEADS, HEAD_DIM))
            weights = self.layout["output"].write(weights, identity)
        queries, keys = (_unit_vectors(b, length).to(self.implementation.dtype) for length in (t, s))
        kwargs = {} if mask is None or self.mask is None else {self.mask: mask}
        if self.takes_qkv or kwargs:
            inputs = [queries, keys, keys.flip(1) if values_apart else keys] if self.takes_qkv else [queries]
            out = check_shape(call_remote(self.sandbox, inputs, kwargs, weights), (b, t, MODEL_DIM)).double()
        else:
            out = self.call(queries, weights).double()
        return out.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

    def _set_projection(self, weights: dict[str, Tensor], part: str, wanted: Tensor) -> dict[str, Tensor]:
        """Weights of a projection that gives token i of row b the vector wanted for it."""
        rows = wanted.transpose(1, 2).flatten(2).flatten(0, 1)  # (b t) (h d)
        padding = rows.new_zeros(MODEL_DIM - rows.shape[0], MODEL_DIM)
        matrix = torch.cat((rows, padding)).mT.unflatten(0, (HEADS, HEAD_DIM))
        return self.layout[part].write(weights, matrix)

    @property
    def layout(self) -> Layout:
        """Where its projections are: those that the interface names, or those with which the formula explains it."""
        if self._layout is None:
            self._layout = self._find_layout()
        return self._layout

    def _find_layout(self) -> Layout:
        named = named_layout(self.weights, self.parts, MODEL_DIM, HEADS)
        if named is not None:
            return named
        with_output = "output" in self.parts
        candidates = list(islice(layouts(self.weights, MODEL_DIM, HEADS, with_output=with_output), MAX_LAYOUTS))
        if not candidates:
            names = ", ".join(f"{n} {tuple(w.shape)}" for n, w in list(self.weights.items())[:8]) or "none"
            raise SubmissionError(f"no queries, keys, values and output are found among its parameters: {names}")
        x = self.implementation.random_input(2, 7, torch.Generator().manual_seed(45))
        causal = self.contract.kind == "causal"
        with torch.no_grad():
            found = self.run(x)
            explained = explain_attention(x, found, self.weights, candidates, tolerance(self), causal=causal)
        return explained[0] if explained else candidates[0]

    def project(self, part: str, x: Tensor) -> Tensor:
        """x through the projection of this part, computed by the grader, with heads side by side."""
        matrix, bias = self.layout[part].read(self.weights)
        out = x @ (matrix.flatten(1).mT if part == "output" else matrix.flatten(0, 1).mT)
        return out if bias is None else out + bias.flatten()

    @property
    def as_function(self) -> Implementation:
        """The layer as a function of q, k and v."""
        built_in = "built in" if self.contract.kind == "causal" else None
        implementation = replace(
            self.implementation, level="function", attention=self.attend, causal_flag=built_in, module=None
        )
        if self.mask is None:
            return implementation
        polarity = self.mask_polarity() or self.contract.mask  # a mask that hides nothing is judged by `check_mask`
        return replace(implementation, takes_mask=True, mask_polarity=polarity)

    def mask_polarity(self) -> str | None:
        """What True means in its mask: hide one key both ways, and see which value no longer matters."""
        generator = torch.Generator().manual_seed(38)
        q, k, v = (torch.randn(1, HEADS, 5, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask[:, 2] = False
        false_changed, true_changed = v.clone(), v.clone()
        false_changed[:, :, 2] += 1.0
        true_changed[:, :, [0, 1, 3, 4]] += 1.0
        with torch.no_grad():
            before, false_after, true_after = (self.attend(q, k, x, mask) for x in (v, false_changed, true_changed))
        false_effect, true_effect = (
            float((after - before).abs().max().nan_to_num(nan=1e30)) for after in (false_after, true_after)
        )
        if false_effect <= 1e-3 * true_effect:
            return "true-attends"
        return "true-masks" if true_effect <= 1e-3 * false_effect else None


def _unit_vectors(batch: int, length: int) -> Tensor:
    """A different unit vector for each token of each row."""
    if batch * length > MODEL_DIM:
        raise ValueError(f"{batch} rows of {length} tokens need more than {MODEL_DIM} unit vectors")
    return torch.eye(MODEL_DIM, dtype=torch.float64)[: batch * length].view(batch, length, MODEL_DIM)


def parameter_seed(sandbox: Sandbox) -> int:
    """The seed of the parameters that the grader draws."""
    return derive_seed(sandbox.seed, "parameters")


def prepare_layer(sandbox: Sandbox, rubric: GradedExercise) -> GradedAttention:
    """Open the layer in float64, or in float32 where its code does not work in float64."""
    first_error = None
    for dtype in ("float64", "float32"):
        sandbox.dtype = dtype
        layer = GradedAttention(sandbox, rubric, load_parameters(sandbox, parameter_seed(sandbox)))
        x = layer.implementation.random_input(2, 4, torch.Generator().manual_seed(32))
        try:
            with torch.no_grad():
                layer.run(x)
            return layer
        except SubmissionError as error:
            first_error = first_error or error
            if find_other_call(layer, x, error):
                return layer
    assert first_error is not None
    raise first_error


def find_other_call(layer: GradedAttention, x: Tensor, error: SubmissionError) -> bool:
    """Whether a layer that fails for x works for one row at a time, or, if it is causal, for whole blocks only.

    Then it is called in that way from here on: the error costs the points of its shape, and the rest is graded.
    """
    if layer.takes_qkv or error.stage != "call":
        return False
    size = layer.block_size if layer.contract.kind == "causal" else None
    for by_row, pad_to in ((True, None), *(((False, size), (False, size - 1)) if size else ())):
        layer.by_row, layer.pad_to = by_row, pad_to
        try:
            with torch.no_grad():
                layer.run(x)
        except (SubmissionError, RuntimeError):
            layer.by_row, layer.pad_to = False, None
        else:
            layer.call_error = error
            return True
    return False


def check_layer_shape(layer: GradedAttention) -> list[Finding]:
    """As for any layer; one that works only in another way fails with the error of the usual call."""
    if layer.call_error is not None:
        evidence = f"for a batch of 2 sequences of 4 tokens the call failed: {layer.call_error}"
        return [Finding("shape", "fail", None, evidence)]
    return check_shape_of_layer(layer)


def check_formula(layer: GradedAttention) -> list[Finding]:
    """The output equals that of the formula with the same weights and inputs."""
    x = layer.implementation.random_input(2, layer.implementation.length, torch.Generator().manual_seed(33))
    error = relative_error(layer.implementation.run(x), _expected_output(layer, x))
    limit = tolerance(layer)
    hint = family = None
    if error > limit:
        hint = "its weights are used differently: q·k/√d, a causal mask, a softmax over keys, weights · v, projection"
        cause = _explain_output(layer)
        cause = cause or _explain_heads(layer)
        if cause is None and (found := explain_function(layer.as_function, layer.contract)):
            cause = found.family, found.mistake, found.fix
        if cause:
            family, hint = cause[0], f"{EXPLAINED}{cause[1]}{FIX}{cause[2]}"
    evidence = "with the same weights its output differs from the formula's"
    return [replace(finding, family=family) for finding in compare("formula", error, limit, evidence, hint)]


def _explain_output(layer: GradedAttention) -> tuple[str, str, str] | None:
    """The family, the mistake and the fix of what its outputs show, without choosing its weights."""
    inputs = [layer.implementation.random_input(2, length, torch.Generator().manual_seed(48)) for length in (5, 7)]
    outputs = [layer.implementation.run(x) for x in inputs]

    def are(expected: list[Tensor]) -> bool:
        return max(map(relative_error, outputs, expected)) <= tolerance(layer)

    def explains(hidden: Callable[[Tensor], Tensor]) -> bool:
        masks = [hidden(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)) for x in inputs]
        pairs = list(zip(inputs, masks, strict=True))
        return any(are([_expected_output(layer, x, mask, added=added) for x, mask in pairs]) for added in (False, True))

    if "output" in layer.layout and are([_expected_output(layer, x, project=False) for x in inputs]):
        return "no projection", "the output projection is never applied", "return the projection of the merged heads"
    if are([_expected_output(layer, x) + x for x in inputs]):
        words = "the input is added to the output (a residual connection)"
        return "input added", words, "leave it out: the block adds it, not this layer"
    if are([_expected_output(layer, x[:1]).expand_as(x) for x in inputs]):
        return "first row", "every row of a batch gets the output of the first one", "use all of x, not x[0]"
    masks = WRONG_MASKS if layer.contract.kind == "causal" else ()
    return next(((family, words, fix) for family, words, hidden, fix in masks if explains(hidden)), None)


def _explain_heads(layer: GradedAttention) -> tuple[str, str, str] | None:
    """As above, for heads that are split or merged in the wrong way: no weights can be measured through them."""
    x = layer.implementation.random_input(2, 7, torch.Generator().manual_seed(48))
    causal = layer.contract.kind == "causal"
    best = explain_attention(
        x, layer.implementation.run(x), layer.weights, [layer.layout], tolerance(layer), causal=causal
    )
    if best is None or best[1].split not in ("tokens", "merge", "both"):
        return None
    return "heads mixed", best[1].words, best[1].fix


def tolerance(layer: GradedAttention) -> float:
    return 1e-6 if layer.implementation.dtype == torch.float64 else 1e-3


def _expected_output(
    layer: GradedAttention, x: Tensor, hidden: Tensor | None = None, *, added: bool = False, project: bool = True
) -> Tensor:
    """softmax(q·kᵀ/√d) v, head by head, projected.

    hidden: the keys that a wrong mask gives a very low score; added: it is added to theirs, which still tells them
    apart where all of them are hidden.
    """
    q, k, v = (layer.project(part, x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for part in PARTS[:3])
    scores = q @ k.mT * _promised_scale(layer.contract)
    if hidden is not None:
        scores = scores - 1e6 * hidden if added else scores.masked_fill(hidden, -1e30)
    elif layer.contract.kind == "causal":
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    out = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return layer.project("output", out) if project and "output" in layer.layout else out


def _promised_scale(contract: Contract) -> float:
    return HEAD_DIM**-0.5 if contract.scale in (None, "head") else float(contract.scale)


def check_layer_weights(layer: GradedAttention) -> list[Finding]:
    """As for functions. The scale of a causal layer is measured at its last query, which sees every key."""
    findings = check_weights(layer.as_function, layer.contract)
    if layer.implementation.dtype != torch.float64:  # the limits of those checks are for float64
        findings = [_allow_rounding(finding) for finding in findings]
    if layer.contract.kind != "causal":
        return findings
    return [_check_last_scale(layer) if finding.check == "scale" else finding for finding in findings]


def _allow_rounding(finding: Finding) -> Finding:
    small = finding.score is not None and finding.score <= 1e-4
    return replace(finding, verdict="pass", hint=None) if small and finding.verdict == "fail" else finding


def _check_last_scale(layer: GradedAttention) -> Finding:
    """Fit log(weights) = scale · q·k + constant at the last query."""
    generator = torch.Generator().manual_seed(37)
    q, k = (torch.randn(2, HEADS, HEAD_DIM, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    weights = layer.attend(q, k, torch.eye(HEAD_DIM, dtype=torch.float64).expand_as(q))[:, :, -1]
    scores = (q[:, :, -1:] @ k.mT).squeeze(-2)
    if not bool((weights > 1e-12).all()):
        evidence = "the last query's weights are not all positive, so no scale can be measured"
        return Finding("scale", "fail", None, evidence)
    x, y = (part - part.mean(-1, keepdim=True) for part in (scores, weights.log()))
    slope = float((x * y).sum() / (x * x).sum())
    residual = float((y - slope * x).abs().max() / y.abs().max())
    if residual > 1e-3:
        return Finding("scale", "fail", residual, f"log-weights are not linear in q·k (off by {residual:.2g})")
    promised = _promised_scale(layer.contract)
    score = abs(slope / promised - 1)
    known = {1.0: "the scale is missing", 1 / HEAD_DIM: "the root is missing, or it is applied twice",
             HEAD_DIM**0.5: "it is inverted", MODEL_DIM**-0.5: "model dim instead of head dim"}  # fmt: skip
    cause = next((f" ({words})" for value, words in known.items() if abs(slope / value - 1) < 0.01), "")
    evidence = f"q·k is multiplied by {slope:.4f}{cause}; required: {promised:.4f}"
    if score <= 0.01:
        return Finding("scale", "pass", score, evidence)
    return Finding("scale", "fail", score, evidence, f"multiply q·k by {promised:.4g}, once, before the softmax")


def check_unequal_lengths(layer: GradedAttention) -> list[Finding]:
    """There may be fewer queries than keys, or more, and the values may come from other tokens than the keys.

    Compared with the formula, or with what the layer itself gives for equal lengths: a wrong scale is judged elsewhere.
    """
    generator = torch.Generator().manual_seed(34)

    def draw(length: int) -> Tensor:
        return torch.randn(2, HEADS, length, HEAD_DIM, generator=generator, dtype=torch.float64)

    def error_of(found: Tensor, q: Tensor, k: Tensor, v: Tensor, own: Callable[[], Tensor]) -> float:
        error = relative_error(found, (q @ k.mT * _promised_scale(layer.contract)).softmax(-1) @ v)
        return error if error <= tolerance(layer) else min(error, relative_error(found, own()))

    worst = 0.0
    for t, s in ((3, 7), (7, 3)):
        q, k, v = draw(t), draw(s), draw(s)
        starts = [
            min(start, max(t - s, 0)) for start in range(0, t, s)
        ]  # queries in parts of s, the last one moved back

        def by_parts(q: Tensor = q, k: Tensor = k, v: Tensor = v, s: int = s, starts: list[int] = starts) -> Tensor:
            t = q.shape[2]
            whole = q.new_zeros(q.shape)
            for start in starts:
                part = F.pad(q[:, :, start : start + s], (0, 0, 0, max(0, s - t)))
                whole[:, :, start : start + s] = layer.attend(part, k, v)[:, :, : min(s, t)]
            return whole

        worst = max(worst, error_of(layer.attend(q, k, v), q, k, v, by_parts))
    if worst > tolerance(layer) or not layer.takes_qkv:
        evidence = "3 queries on 7 keys, and 7 on 3, differ from the formula"
        hint = "in cross-attention queries and keys differ in length: take each length from its own input"
        return compare("unequal lengths", worst, tolerance(layer), evidence, hint)
    q, k, v = draw(5), draw(5), draw(5)
    apart = layer.attend(q, k, v, values_apart=True)
    error = error_of(apart, q, k, v, lambda: layer.attend(q, k, v))
    hint = "queries come from query, keys from key and values from value: check which input each projection gets"
    evidence = "with other tokens as value than as key, the output differs from the formula"
    return compare("unequal lengths", error, tolerance(layer), evidence, hint)


def check_mask(layer: GradedAttention) -> list[Finding]:
    """What True means in the mask, or why it hides nothing; and a query that may attend to nothing."""
    findings = check_masks(layer.as_function, layer.contract)
    if layer.mask_polarity() is None:
        evidence = "a key that the mask hides still changes the output, whichever of True and False hides it"
    elif (left_over := _find_effect_of_hidden_keys(layer)) is not None:
        evidence = left_over
    else:
        return findings
    cause = _explain_mask(layer)
    fix = "fill the scores that the mask excludes with −∞, before the softmax: scores.masked_fill(~mask, −∞)"
    hint = f"{EXPLAINED}{cause}{FIX}{fix}" if cause else fix
    failed = Finding("mask polarity", "fail", None, evidence, hint)
    wrong = [finding.check == "mask polarity" and finding.verdict == "pass" for finding in findings]
    if layer.mask_polarity() is None:
        wrong = [finding.check == "mask polarity" for finding in findings]
    return [failed if replaced else finding for finding, replaced in zip(findings, wrong, strict=True)]


def _find_effect_of_hidden_keys(layer: GradedAttention) -> str | None:
    """What hidden keys still do although their values do not matter, as evidence; None if they do nothing.

    Compared with calls without a mask, so that another mistake in the weights is not charged here again.
    """
    generator = torch.Generator().manual_seed(50)
    q, k, v = (torch.randn(2, HEADS, 5, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[:, 2] = False
    mask = mask if layer.contract.mask != "true-masks" else ~mask
    other_keys = k.clone()
    other_keys[:, :, 2] = torch.randn(2, HEADS, HEAD_DIM, generator=generator, dtype=torch.float64)
    limit = tolerance(layer)
    with torch.no_grad():
        moved = relative_error(layer.attend(q, other_keys, v, mask), layer.attend(q, k, v, mask))
        total, total_masked = (layer.attend(q, k, torch.ones_like(v), *rest) for rest in ((), (mask,)))
    if relative_error(total_masked, total) > limit and relative_error(total, torch.ones_like(v)) <= limit:
        low, high = float(total_masked.min()), float(total_masked.max())
        return f"with a mask that hides one key, the weights of a query sum to {low:.3g} to {high:.3g}, not to 1"
    if moved > limit:
        return "the key of a token that the mask hides still changes the output"
    return None


def _explain_mask(layer: GradedAttention) -> str | None:
    """What is done with the mask in place of hiding what it excludes, if a formula with this gives the outputs."""
    generator = torch.Generator().manual_seed(49)
    q, k, v = (torch.randn(2, HEADS, 5, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(5, 5, generator=generator) < 0.6
    mask[0] = True
    mask[:, 0] = True
    found = layer.attend(q, k, v, mask)
    scores = q @ k.mT * _promised_scale(layer.contract)
    for mistake, weights in WRONG_MASK_ARGUMENTS.items():
        if relative_error(found, weights(scores, mask) @ v) <= tolerance(layer):
            return mistake
    return None


def validate_layer(rubric: GradedExercise, where: str) -> None:
    """Checks that choose weights need the names of the projections, and the sizes that the checks draw."""
    settings = rubric.interface.settings
    needs_parts = {*WEIGHT_CHECKS, *MASK_CHECKS, "formula", "unequal lengths"}
    asked = sorted(needs_parts & set(rubric.checks))
    parts: Any = settings.get("parts", {})
    unknown = sorted(set(settings) - {"parts", "dim", "length", "call", "mask"})
    if unknown:
        raise ValueError(
            f"{where}: the interface of a layer has no {unknown[0]!r}; it has parts, dim, length, call, mask"
        )
    if rubric.interface.build is None:
        raise ValueError(f'{where}: a layer is a class: class = "…"')
    if asked and (settings.get("dim", MODEL_DIM) != MODEL_DIM or not set(PARTS[:3]) <= set(parts) <= set(PARTS)):
        raise ValueError(
            f"{where}: the check {asked[0]!r} needs interface.dim = {MODEL_DIM}, {HEADS} heads, and interface.parts "
            f"with query, key, value (and output)"
        )
    if {*MASK_CHECKS} & set(asked) and "mask" not in settings:
        raise ValueError(f'{where}: mask checks need the name of the mask argument: interface.mask = "mask"')


ATTENTION_LAYER = Exercise(
    prepare_layer,
    (
        GradedCheck(("shape",), no_grad(check_layer_shape)),
        *(check for check in LAYER_CHECKS if "shape" not in check.names),
        GradedCheck(WEIGHT_CHECKS, no_grad(check_layer_weights)),
        GradedCheck(MASK_CHECKS, check_mask),
        GradedCheck(("formula",), no_grad(check_formula)),
        GradedCheck(("unequal lengths",), no_grad(check_unequal_lengths)),
    ),
    validate_layer,
    breaks=BREAKS,
    by_output=BY_OUTPUT,
    hides=HIDES,
)


def prepare_function(sandbox: Sandbox, rubric: GradedExercise) -> GradedLayer:
    """The submission as a Python function with the signature that the interface names."""
    extra = [rubric.interface.settings[name] for name in ("mask", "causal") if name in rubric.interface.settings]

    def attention(q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
        return call_remote(sandbox, (q, k, v), kwargs)

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("q", "k", "v", *extra)]
    attention.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    sandbox.describe()  # raises here if the file does not run
    try:
        with torch.no_grad():
            implementation = function_implementation(attention, rubric.interface.name, rubric.contract)
    except ValueError as error:
        raise SubmissionError(str(error).split(". Declare")[0]) from None
    return GradedLayer(implementation, rubric.contract, nn.Module())


def validate_function(rubric: GradedExercise, where: str) -> None:
    if rubric.interface.build is not None:
        raise ValueError(f'{where}: this exercise is a function: function = "…"')
    unknown = sorted(set(rubric.interface.settings) - {"mask", "causal"})
    if unknown:
        raise ValueError(f"{where}: the interface of a function has no {unknown[0]!r}; it has mask and causal")


def _formula_of_function(layer: GradedLayer) -> Finding:
    """softmax(q·kᵀ · scale) v, without a mask."""
    assert layer.implementation.attention is not None
    generator = torch.Generator().manual_seed(47)
    q, k, v = (torch.randn(2, HEADS, 6, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    expected = (q @ k.mT * _promised_scale(layer.contract)).softmax(-1) @ v
    error = relative_error(layer.implementation.attention(q, k, v), expected)
    hint = "multiply q·k by the scale, take the softmax over the keys, multiply by v"
    return compare("formula", error, 1e-6, "the output differs from softmax(q·kᵀ · scale) v", hint)[0]


ATTENTION_FUNCTION = Exercise(
    prepare_function,
    (
        *(check for check in LAYER_CHECKS if check is not PARAMETER_GRADIENTS),
        GradedCheck(WEIGHT_CHECKS, no_grad(lambda layer: check_weights(layer.implementation, layer.contract))),
        GradedCheck(MASK_CHECKS, lambda layer: check_masks(layer.implementation, layer.contract)),
        GradedCheck(
            ("alignment", "grouped heads", "formula"),
            no_grad(lambda layer: [*check_layout(layer.implementation, layer.contract), _formula_of_function(layer)]),
        ),
    ),
    validate_function,
)
