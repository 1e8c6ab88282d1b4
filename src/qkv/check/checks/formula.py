"""Functions of q, k, v against the written formula, softmax(q·kᵀ·scale + mask) v, over shapes, dtypes and gradients.

Which form of the formula a function follows (causal or not, which scale) is measured at one shape. If it follows one
there, it must follow it everywhere: a formula that holds at 12 tokens and not at 65 is a bug whatever was promised.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from qkv.check.calling.functions import HEAD_DIM, HEADS
from qkv.check.checks.gradient import weighted_gradients
from qkv.check.checks.positions import alibi_slopes
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, relative_difference
from qkv.check.influence import name_pattern
from qkv.check.report import Finding, judge
from qkv.check.shapes import Options

Shape = tuple[int, int, int, int, int]  # b, h, t, s, d
Mode = Literal["plain", "causal", "mask"]
Rounded = tuple[str, torch.dtype]  # what is rounded, and to what
ROUNDED = (
    "scores",
    "weights",
    "queries and keys",
    "queries and keys and their products",
    "values",
)  # what code may hold in too few bits
BASE: Shape = (2, HEADS, 12, 12, HEAD_DIM)
SHAPES: tuple[Shape, ...] = (
    (1, 1, 1, 1, 8), (2, 4, 1, 1, 8), (1, 3, 2, 2, 40), (5, 6, 3, 3, 8), (2, 3, 13, 13, 64), (1, 4, 16, 16, 8),
    (1, 4, 17, 17, 8), (2, 1, 33, 33, 40), (1, 6, 65, 65, 8), (2, 4, 129, 129, 8), (1, 2, 257, 257, 8),
    (2, 4, 1, 13, 8), (1, 3, 1, 65, 40), (2, 4, 3, 12, 8), (1, 4, 17, 33, 8), (5, 4, 64, 129, 8), (1, 4, 1, 257, 64),
    (1, 4, 33, 17, 8),
)  # fmt: skip
LONG_SHAPES: tuple[Shape, ...] = ((1, 2, 513, 513, 8), (1, 1, 1025, 1025, 8), (1, 1, 1, 4096, 8), (1, 1, 64, 2049, 64))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Formula:
    """One form of the formula: its scale for d = 8, whether that is d^-½, and where its causal mask sits, if any.

    alibi: the form of the slopes of a bias by distance (`alibi_slopes`), if there is one.
    hides: the function's own mask (b, h, t, s), from q, k and a mask; for kinds that other checks judge, as chunks.
    """

    scale: float
    by_head_dim: bool
    causal: Literal["bottom-right", "top-left"] | None
    alibi: str | None = None
    window: int | None = None
    hides: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, rounded: Rounded | None = None
    ) -> Tensor:
        def store(name: str, x: Tensor) -> Tensor:
            return x if rounded is None or name not in rounded[0] else x.to(rounded[1]).to(x.dtype)

        scale = self.scale * (HEAD_DIM / q.shape[-1]) ** 0.5 if self.by_head_dim else self.scale
        mask = mask if self.hides is None else ~self.hides(q, k, mask)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        q, k, v = store("queries and keys", q), store("queries and keys", k), store("values", v)
        scores = store("scores", scale * store("products", q @ k.mT))
        t, s = scores.shape[-2:]
        if self.alibi is not None:
            slopes = torch.tensor(alibi_slopes(q.shape[1])[self.alibi], dtype=torch.float64).to(q)
            distance = torch.arange(t)[:, None] + s - t - torch.arange(s)
            scores = scores - slopes[:, None, None] * distance.abs().to(q)
        if self.causal is not None:
            allowed = torch.ones(t, s, dtype=torch.bool, device=q.device)
            allowed = allowed.tril(s - t if self.causal == "bottom-right" else 0)
            if self.window is not None:
                places = torch.arange(t, device=q.device)[:, None] + (s - t if self.causal == "bottom-right" else 0)
                allowed &= places - torch.arange(s, device=q.device) < self.window
            mask = allowed if mask is None else mask & allowed
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = store("weights", scores.softmax(-1))
        return (weights if mask is None else weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)) @ v


def check_formula(impl: Implementation, contract: Contract, options: Options | None = None) -> list[Finding]:
    """The formula at one shape, if promised, and at all others, if it holds at one."""
    findings: list[Finding] = []
    fitting: dict[Mode, list[Formula]] = {mode: fit_formula(impl, contract, mode) for mode in modes(impl)}
    if contract.textbook:
        findings.append(_check_promise(impl, contract, fitting["plain"]))
    else:
        findings.append(Finding("formula", "n/a", None, "the contract does not have both a scale and a softmax"))
    if contract.position == "alibi":
        fits = any(fitting.values())
        words = "outputs are those of a bias with the slopes 2^(−8/h), 2^(−16/h), …"
        if fits:
            findings.append(Finding("alibi", "pass", 0.0, words))
        else:
            hint = "the bias is not −slope · distance, or the slopes are not 2^(−8/h), 2^(−16/h), …"
            findings.append(Finding("alibi", "fail", 1.0, f"not: {words}", hint, "alibi"))
    if any(fitting.values()):
        options = options or Options()
        shapes = (*SHAPES, *(LONG_SHAPES if options.thorough else ()))
        shapes = tuple(dict.fromkeys(_allowed_shape(impl, shape) for shape in shapes))
        found = _check_shapes(impl, {mode: found for mode, found in fitting.items() if found}, shapes)
        if found.verdict == "fail" and contract.kind is None and _limits_past(impl):
            contract = replace(contract, kind="chunked")
            fitting = {mode: fit_formula(impl, contract, mode) for mode in modes(impl)}
            found = _check_shapes(impl, {mode: found for mode, found in fitting.items() if found}, shapes)
        findings.append(found)
        findings += _check_dtypes(impl, fitting, DTYPES if options.dtype is None else (options.dtype,))
    return findings


def base_shape(impl: Implementation) -> Shape:
    """The shape at which the form of the formula is measured: 12 tokens, or the nearest number that it takes."""
    return _allowed_shape(impl, BASE)


def _allowed_shape(impl: Implementation, shape: Shape) -> Shape:
    """The shape with the nearest lengths that a function takes."""
    b, h, t, s, d = shape
    return b, h, impl.nearest_length(t), impl.nearest_length(s), d


def modes(impl: Implementation) -> tuple[Mode, ...]:
    """The ways to call a function."""
    found: list[Mode] = ["plain"]
    if impl.causal_flag is not None:
        found.append("causal")
    if impl.takes_mask:
        found.append("mask")
    return tuple(found)


def fit_formula(impl: Implementation, contract: Contract, mode: Mode) -> list[Formula]:
    """The forms of the formula that give the outputs of a function at one shape."""
    q, k, v = random_parts(impl, base_shape(impl))
    try:
        out = _call(impl, mode, q, k, v)
    except Exception:  # it does not take this mode
        return []
    scales = {HEAD_DIM**-0.5: True, 1.0: False}
    promised = contract.scale_for(HEAD_DIM)
    if promised is not None:
        scales.setdefault(promised, contract.scale == "head")
    biases = tuple(alibi_slopes(HEADS)) if contract.position == "alibi" else (None,)
    forms = [
        Formula(scale, by_head_dim, causal, alibi, contract.window if causal is not None else None)
        for scale, by_head_dim in scales.items()
        for causal in (None, "bottom-right", "top-left")
        for alibi in biases
    ]
    if contract.kind in ("chunked", "prefix"):
        hides = partial(_hidden_keys, impl, mode)
        forms = [Formula(scale, by_head_dim, None, None, None, hides) for scale, by_head_dim in scales.items()]
    return [form for form in forms if relative_difference(_expect(form, mode, q, k, v), out) <= _limit(impl)]


def _hidden_keys(impl: Implementation, mode: Mode, q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """(b, h, t, s): which keys have no weight, read with unit vectors as values, as many at a time as features."""
    with torch.no_grad():
        q, k = q.detach().double(), k.detach().double()
        units, d = torch.eye(k.shape[2], dtype=torch.float64), q.shape[-1]
        units = torch.nn.functional.pad(units, (0, -k.shape[2] % d))
        parts = [_call(impl, mode, q, k, part.expand(*k.shape[:2], -1, -1)) for part in units.split(d, -1)]
    return torch.cat(parts, -1)[..., : k.shape[2]] == 0


def _limits_past(impl: Implementation) -> bool:
    """Whether a causal function sees a window or its own chunk only, in a sequence that is longer."""
    n = impl.nearest_length(65)
    try:
        seen = ~_hidden_keys(impl, "plain", *random_parts(impl, (1, 1, n, n, HEAD_DIM))[:2])[0, 0]
    except Exception:  # this length is refused
        return False
    return name_pattern(seen).startswith(("window of", "chunks of"))


def _limit(impl: Implementation) -> float:
    """The largest relative difference from the formula, for a function that computes in float64 or in float32."""
    return 1e-9 if impl.dtype == torch.float64 else 2e-5


def _check_promise(impl: Implementation, contract: Contract, fitting: list[Formula]) -> Finding:
    """Where scale and softmax are promised, the output must equal the written formula, causal or not."""
    q, k, v = random_parts(impl, base_shape(impl))
    scale = contract.scale_for(HEAD_DIM)
    assert scale is not None
    biases = tuple(alibi_slopes(HEADS)) if contract.position == "alibi" else (None,)
    masks = (None,) if contract.kind == "bidirectional" else (None, "bottom-right")
    allowed = [Formula(scale, False, causal, alibi) for causal in masks for alibi in biases]
    allowed += [form for form in fitting if form.hides is not None and form.scale == scale]
    out = _call(impl, "plain", q, k, v)
    score = min(relative_difference(form(q, k, v), out) for form in allowed)
    difference = f"the output differs from softmax(q·kᵀ·{scale:.4g}) v by {score:.2g} (relative)"
    evidence = f"{impl.without_mask}{difference}"
    return Finding("formula", "pass" if score <= _limit(impl) else "fail", score, evidence)


def _check_shapes(impl: Implementation, fitting: dict[Mode, list[Formula]], shapes: tuple[Shape, ...]) -> Finding:
    """The formula holds at every shape, with its gradients."""
    worst, where, refused = 0.0, "", []
    wrong, fine = set[Shape](), set[Shape]()
    for mode, forms in fitting.items():
        # a window mask of (queries, queries) broadcasts for one query: judged only where other numbers are taken
        square = any(form.window is not None for form in forms) and not _takes_fewer_queries(impl, mode)
        for shape in _shapes_for(forms, shapes):
            if square and shape[2] != shape[3]:
                continue
            try:
                forward, backward = compare_shape(impl, mode, forms, shape)
            except Exception as error:
                refused.append(f"{_words(shape)} {type(error).__name__}")
                continue
            (fine if max(forward, backward / 100) <= _limit(impl) else wrong).add(shape)
            for score, what in ((forward, "output"), (backward / 100, "gradient")):
                if score > max(worst, _limit(impl)):
                    worst, where = score, f"the {what} {'' if mode == 'plain' else f'({mode}) '}at {_words(shape)}"
    name, limit = "formula (shapes)", _limit(impl)
    if worst <= limit:
        more = f"; refused: {', '.join(dict.fromkeys(refused))}" if refused else ""
        return Finding(name, "pass", worst, f"outputs and gradients follow the formula at {len(shapes)} shapes{more}")
    evidence = f"{where} is off by {worst:.2g} (relative), though the formula holds at {_words(base_shape(impl))}"
    hint, family = _explain(impl, fitting)
    return Finding(name, "fail", worst, evidence, hint, family, "", _condition(wrong, fine - wrong))


def _takes_fewer_queries(impl: Implementation, mode: Mode) -> bool:
    try:
        _call(impl, mode, *random_parts(impl, _allowed_shape(impl, (2, 4, 3, 12, 8))))
    except Exception:  # it takes as many queries as keys only
        return False
    return True


def _condition(wrong: set[Shape], fine: set[Shape]) -> str:
    """What the shapes at which it is wrong have in common, and the others have not."""
    tests: dict[str, Callable[[Shape], bool]] = {
        "for one query": lambda shape: shape[2] == 1,
        "for one query on more keys": lambda shape: shape[2] == 1 < shape[3],
        "with more keys than queries": lambda shape: shape[2] < shape[3],
        "for as many keys as queries": lambda shape: shape[2] == shape[3],
        "for a batch of more than one": lambda shape: shape[0] > 1,
        "for a batch of one": lambda shape: shape[0] == 1,
        "for an odd number of keys": lambda shape: shape[3] % 2 == 1,
        "for an odd number of heads": lambda shape: shape[1] % 2 == 1,
    }
    for size in (2, 3, 8, 12, 16, 32, 64, 128):
        tests[f"with more than {size} keys"] = lambda shape, size=size: shape[3] > size
        tests[f"with more than {size} queries"] = lambda shape, size=size: shape[2] > size
        tests[f"with a head dim above {size}"] = lambda shape, size=size: shape[4] > size
    fits = (words for words, test in tests.items() if all(map(test, wrong)) and not any(map(test, fine)))
    return next(fits, "") if fine else ""


def _shapes_for(forms: list[Formula], shapes: tuple[Shape, ...]) -> list[Shape]:
    """A causal function with fewer keys than queries has rows that see nothing: what they give is open."""
    return [
        shape
        for shape in shapes
        if shape[2] <= shape[3] or all(form.causal is None and form.hides is None for form in forms)
    ]


def compare_shape(impl: Implementation, mode: Mode, forms: list[Formula], shape: Shape) -> tuple[float, float]:
    """How far outputs and gradients are from the nearest form of the formula (relative)."""
    given, own = random_parts(impl, shape), random_parts(impl, shape)
    gradients = impl.differentiable and shape[2] * shape[3] <= 65 * 65
    with torch.set_grad_enabled(gradients):
        leaves = [part.requires_grad_(gradients) for part in given]
        out = _call(impl, mode, *(part * 1 if gradients else part for part in leaves))
        expected = [_expect(form, mode, *(part.requires_grad_(gradients) for part in own)) for form in forms]
    scores = [relative_difference(other.detach(), out.detach()) for other in expected]
    best = min(range(len(forms)), key=lambda place: scores[place])
    if not gradients or scores[best] > 1e-9:
        return scores[best], 0.0
    if not out.requires_grad:
        return scores[best], float("inf")
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(46), dtype=out.dtype)
    theirs, ours = (weighted_gradients(side, weights, parts) for side, parts in ((expected[best], own), (out, leaves)))
    off = [
        relative_difference(a, torch.zeros_like(a) if b is None else b)
        for a, b in zip(theirs, ours, strict=True)
        if a is not None and float(a.abs().max()) > 1e-12
    ]
    return scores[best], max(off, default=0.0)


def _explain(impl: Implementation, fitting: dict[Mode, list[Formula]]) -> tuple[str, str]:
    """What a function does wrong at the shapes where the formula fails."""
    for mode, forms in fitting.items():
        for shape in _shapes_for(forms, SHAPES):
            q, k, v = random_parts(impl, _allowed_shape(impl, shape))
            try:
                out = _call(impl, mode, q, k, v)
                expected = [_expect(form, mode, q, k, v) for form in forms]
                if min(relative_difference(other, out) for other in expected) <= 1e-9:
                    continue
                sums = _call(impl, mode, q, k, torch.ones_like(v))
            except Exception:  # refused at this shape
                continue
            if not bool(out.isfinite().all()):
                return "a row that may attend to nothing, or an overflow", "overflow"
            if relative_difference(torch.ones_like(sums), sums) > 1e-6:
                return (
                    "the weights of a query no longer sum to 1: blocks are not rescaled or not divided",
                    "softmax replaced",
                )
            if mode == "mask" and any(relative_difference(form(q, k, v), out) <= 1e-9 for form in forms):
                return "the mask is ignored at this shape", "mask dropped"
            if mode == "causal" and relative_difference(Formula(forms[0].scale, True, None)(q, k, v), out) <= 1e-9:
                return "there is no causal mask at this shape", "no mask"
            return (
                "the weights change with the shape: blocks, padding of keys, a scale or a mask of another size",
                "paths differ",
            )
    return _explain_gradients(impl, fitting)


def _explain_gradients(impl: Implementation, fitting: dict[Mode, list[Formula]]) -> tuple[str, str]:
    """Which gradient of a function is wrong: missing, a multiple of the right one, or another."""
    if not impl.differentiable:
        return "the outputs are right, the gradients are not", "detached"
    mode: Mode = next(mode for mode, forms in fitting.items() if forms)
    forms = fitting[mode]
    shape = base_shape(impl)
    for other in _shapes_for(forms, tuple(_allowed_shape(impl, shape) for shape in SHAPES)):
        try:
            shape = other if compare_shape(impl, mode, forms, other)[1] > 1e-6 else shape
        except Exception:  # refused at this shape
            continue
    own, parts = ([part.requires_grad_() for part in random_parts(impl, shape)] for _ in range(2))
    with torch.enable_grad():
        out = _call(impl, mode, *(part * 1 for part in parts))
        every = [_expect(form, mode, *own) for form in forms]  # several scales may be one at the usual shape
        expected = min(every, key=lambda other: relative_difference(other.detach(), out.detach()))
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(46), dtype=torch.float64).to(out)
    if not out.requires_grad:
        return "the output has no gradient", "detached"
    gradients = zip(*(weighted_gradients(side, weights, x) for side, x in ((expected, own), (out, parts))), strict=True)
    wrong = []
    for name, (right, found) in zip(("queries", "keys", "values"), gradients, strict=True):
        assert right is not None
        if found is None or float(found.abs().max()) == 0:
            return f"{name} get no gradient: something detaches them", "detached"
        factor = float((right * found).sum() / (right * right).sum())
        if relative_difference(right, found) > 1e-6:
            exact = relative_difference(factor * right, found) <= 1e-6
            wrong.append(
                f"the gradient of the {name} is {f'{factor:.4g} times what it should be' if exact else 'wrong'}"
            )
    words = "; ".join(wrong) or "the outputs are right, the gradients are not"
    return f"{words} (a hand-written backward pass)", "wrong gradient"


def _check_dtypes(
    impl: Implementation, fitting: dict[Mode, list[Formula]], dtypes: tuple[torch.dtype, ...]
) -> Iterator[Finding]:
    """In 32 and 16 bits a function errs at most three times as much as the formula in the same dtype."""
    form = next(iter(fitting["plain"] or next(found for found in fitting.values() if found)))
    mode: Mode = "plain" if fitting["plain"] else next(mode for mode, found in fitting.items() if found)
    worst, words, refused, where = 0.0, [], [], []
    hint = "part of the computation has lower precision than the inputs: scores and softmax need float32 at least"
    for dtype in dtypes:
        for shape, size in (((2, 4, 32, 32, 8), 1.0), ((2, 4, 32, 32, 8), 30.0), ((1, 4, 257, 257, 64), 1.0)):
            q, k, v = (part.to(dtype) for part in random_parts(impl, _allowed_shape(impl, shape)))
            q = q * size
            exact = _expect(form, mode, q.double(), k.double(), v.double())
            try:
                found = _call(impl, mode, q, k, v).double()
            except Exception as error:
                refused.append(f"{_name(dtype)} raises {type(error).__name__}")
                break
            naive = float((_expect(form, mode, q, k, v).double() - exact).abs().max())
            limit = 3 * naive + 4 * torch.finfo(dtype).eps * float(exact.abs().max())
            error = float((found - exact).abs().nan_to_num(nan=float("inf")).max())
            if error > limit:
                where.append(f"in {_name(dtype)}")
            if error / limit > worst:
                worst = error / limit
                words = [f"{_name(dtype)}, inputs × {size:g}: error {error:.2g}, that of the formula {naive:.2g}"]
                coarse = _find_rounding(form, mode, (q, k, v), found, exact) if worst > 1 else None
                if coarse is not None:
                    hint = f"{coarse[0]} are held in {_name(coarse[1])}, though the inputs are {_name(dtype)}"
    evidence = "; ".join([*words, *dict.fromkeys(refused)])
    yield judge("dtype", worst, 1.0, evidence, hint, "low precision", " and ".join(dict.fromkeys(where)))


def _find_rounding(
    form: Formula, mode: Mode, inputs: tuple[Tensor, ...], found: Tensor, exact: Tensor
) -> Rounded | None:
    """What was rounded to another 16-bit dtype, if the output is much nearer to that than to the exact one."""
    wide = [x.double() for x in inputs]
    errors: dict[Rounded, float] = {}
    for dtype in (torch.bfloat16, torch.float16):
        for name in ROUNDED if dtype != inputs[0].dtype else ():
            others = [_expect(form, mode, *given, rounded=(name, dtype)).double() for given in (wide, inputs)]
            off = [float((other - found).pow(2).mean().nan_to_num(nan=float("inf"))) for other in others]
            errors[name, dtype] = min(off)
    best = min(errors, key=lambda one: errors[one])
    return best if errors[best] <= 0.25 * float((exact - found).pow(2).mean()) else None


# -- inputs and calls --------------------------------------------------------------------------------------------------


def random_parts(impl: Implementation, shape: Shape) -> list[Tensor]:
    """Random q, k and v of a shape, with as many key heads as a function insists on."""
    b, h, t, s, d = shape
    generator = torch.Generator().manual_seed(47 + t + s)
    sizes = ((h, t), (impl.key_heads(h), s), (impl.key_heads(h), s))
    return [torch.randn(b, heads, length, d, generator=generator, dtype=torch.float64) for heads, length in sizes]


def _random_mask(t: int, s: int) -> Tensor:
    """A mask (t, s) under which every query sees its own key and about half of the others."""
    mask = torch.rand(t, s, generator=torch.Generator().manual_seed(48)) < 0.5
    mask[torch.arange(t), torch.arange(t) * s // t] = True
    return mask


def _call(impl: Implementation, mode: Mode, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attention: Callable[..., Tensor] | None = impl.attention
    assert attention is not None
    mask = _random_mask(q.shape[2], k.shape[2]) if mode == "mask" else None
    return attention(q, k, v, mask, causal=mode == "causal")


def _expect(form: Formula, mode: Mode, q: Tensor, k: Tensor, v: Tensor, *, rounded: Rounded | None = None) -> Tensor:
    return form(q, k, v, _random_mask(q.shape[2], k.shape[2]) if mode == "mask" else None, rounded)


def _words(shape: Shape) -> str:
    b, h, t, s, d = shape
    tokens = f"{t} tokens" if t == s else f"{t} quer{'y' if t == 1 else 'ies'} on {s} keys"
    return f"{tokens}, {h} head{'s' if h > 1 else ''} of {d}, batch {b}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
