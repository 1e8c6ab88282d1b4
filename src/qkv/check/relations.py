"""Relations that right code keeps, as lines of a script: for functions f(q, k, v) with x = (q, k, v), else f(x).

Each line of code is what `--repro` writes; an AssertionError that begins with "counter-example" shows the bug.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from qkv.check.contract import Contract
from qkv.check.hypotheses.formula import Design
from qkv.check.hypotheses.identify import SMALL, Observed, find_designs
from qkv.check.hypotheses.observe import Layout, observe_module
from qkv.check.implementation import Implementation


@dataclass(frozen=True)
class Relation:
    """A relation, the ids of the checks that it reproduces, and the lines of a script that test it.

    Args:
        causal: it holds for every causal implementation.
        level: "function" for f(q, k, v), "module" for f(x), "any" for both.
    """

    name: str
    checks: tuple[str, ...]
    lines: tuple[str, ...]
    level: str = "any"
    causal: bool = False
    vectors: bool = False
    textbook: bool = False
    min_rows: int = 1
    min_tokens: int = 1
    heads: int = 2
    head_dim: int = 4

    def holds(self, contract: Contract, is_function: bool, tokens: int | None) -> bool:
        """Whether right code under this contract keeps it."""
        if self.causal and contract.kind not in ("causal", "window"):
            return False
        if self.vectors and tokens is not None:
            return False
        if self.textbook and not contract.textbook:
            return False
        return self.level == "any" or (self.level == "function") == is_function


CHANGE = "y = x.clone(); z = y.select(N, {at}); z.copy_(z.flip(-1) + 1 if x.is_floating_point() else z % 7 + 3)"


def write_lines(relation: Relation, is_function: bool) -> list[str]:
    """The lines for a function, where x is (3, b, h, t, d), or for a module, where x is (b, t, c) or (b, t).

    In the lines, g is the call, N the axis of tokens, ROWS that of rows, and EARLIER all outputs but the last.
    """
    words = {"g(": "f(*", "N": "3", "ROWS": "1", "EARLIER": "[:, :, :-1]", "FIRST": "[:, :, 0]"}
    if not is_function:
        words = {"g(": "f(", "N": "1", "ROWS": "0", "EARLIER": "[:, :-1]", "FIRST": "[:, 0]"}
    pattern = r"\bg\(|(?:\bN\b|\bROWS\b|EARLIER|FIRST)"
    return [re.sub(pattern, lambda match: words[match.group()], line) for line in relation.lines]


RELATIONS = (
    Relation(
        "deterministic",
        ("deterministic-in-eval",),
        ('assert torch.allclose(g(x), g(x)), "counter-example: two calls on the same input differ"',),
    ),
    Relation(
        "inputs",
        ("inputs-not-mutated",),
        ("before = x.clone()", "g(x)", 'assert torch.equal(x, before), "counter-example: the input was changed"'),
    ),
    Relation(
        "leak",
        ("causal", "kind", "layers"),
        (
            CHANGE.format(at=-1),
            "before, after = g(x)EARLIER, g(y)EARLIER",
            'assert torch.allclose(before, after), "counter-example: the last token changes an earlier output"',
        ),
        causal=True,
        min_tokens=2,
    ),
    Relation(
        "past",
        ("past-reachable", "kind"),
        (
            CHANGE.format(at=0),
            "before, after = g(x)FIRST, g(y)FIRST",
            'assert not torch.allclose(before, after), "counter-example: an output ignores its own token"',
        ),
        causal=True,
    ),
    Relation(
        "truncation",
        ("truncation", "lengths-agree", "lengths", "causal"),
        (
            "whole, cut = g(x)EARLIER, g(x.narrow(N, 0, x.shape[N] - 1))",
            'assert torch.allclose(whole, cut), "counter-example: without the last token the earlier outputs differ"',
        ),
        causal=True,
        min_tokens=2,
    ),
    Relation(
        "batch",
        ("batch",),
        (
            "together, alone = g(x)[:1], g(x.narrow(ROWS, 0, 1))",
            'assert torch.allclose(together, alone), "counter-example: the first row alone has another output"',
        ),
        min_rows=2,
    ),
    Relation(
        "state",
        ("state",),
        (
            "before = g(x); g(torch.cat((x, x, x), N))",
            'assert torch.allclose(g(x), before), "counter-example: the output differs after a longer call"',
        ),
    ),
    Relation(
        "gradients",
        ("paths-agree",),
        (
            "with torch.no_grad(): a = g(x)",
            "b = g(x.clone().requires_grad_() if x.is_floating_point() else x)",
            'assert torch.allclose(a, b), "counter-example: with gradients the output differs"',
        ),
    ),
    Relation(
        "training",
        ("paths-agree",),
        (
            "a = f(x); layer.train(); b = f(x)",
            'assert torch.allclose(a, b), "counter-example: in training mode the output differs"',
        ),
        level="module",
    ),
    Relation(
        "formula",
        ("formula", "scale", "rows-sum-to-one", "causal", "head-independence", "dtype", "grouped-heads", "softmax"),
        (
            "q, k, v = x",
            "t = q.shape[-2]",
            "mask = torch.ones(t, t, dtype=torch.bool).{triangle}",
            "weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, float('-inf')).softmax(-1)",
            'assert torch.allclose(f(q, k, v), weights @ v), "counter-example: not softmax(q·kᵀ/√d) v"',
        ),
        level="function",
        textbook=True,
    ),
    Relation(
        "float32",
        ("dtype",),
        (
            "high = g(x); torch.set_default_dtype(torch.float32); 'layer' in globals() and layer.float()",
            "low = g(x.float() if x.is_floating_point() else x)",
            'assert torch.allclose(low.double(), high, rtol=1e-3, atol=1e-4), "counter-example: float32 is off"',
        ),
    ),
    Relation(
        "large",
        ("finite",),
        ('assert g(x * 1e4).isfinite().all(), "counter-example: large finite inputs give NaN or infinity"',),
        vectors=True,
    ),
    Relation(
        "derivative",
        ("gradient",),
        (
            "x.requires_grad_(); out = g(x); w, u = torch.randn_like(out), torch.randn_like(x)",
            "grad = torch.autograd.grad((out * w).sum(), x, allow_unused=True)[0] if out.requires_grad else None",
            "slope = 0.0 if grad is None else (grad * u).sum()",
            "quotient = ((g(x + 1e-6 * u) - g(x - 1e-6 * u)) * w).sum() / 2e-6",
            'assert abs(slope - quotient) <= 1e-4 * (1 + abs(quotient)), "counter-example: not the derivative"',
        ),
        vectors=True,
    ),
)


def formula_relation(impl: Implementation, contract: Contract) -> Relation | None:
    """A module compared with the formula, by hooks on its projections; None if they are not modules of their own."""
    if impl.module is None or not contract.textbook:
        return None
    for group in observe_module(impl):
        for layout, observer in group:
            seen = Observed(observer).all(SMALL)
            if seen:
                designs = [d for d in find_designs(contract, seen[0][1]) if not d.alibi and d.base == 10_000.0]
                lines = _formula_lines(impl, layout, designs[0], contract) if designs else None
                if lines is not None:
                    return Relation("formula", (), lines, level="module")
    return None


def _formula_lines(impl: Implementation, layout: Layout, design: Design, contract: Contract) -> tuple[str, ...] | None:
    names = layout.names
    if layout.sequence_first or layout.heads_last or layout.reader is None or not all(names):
        return None
    parts = dict.fromkeys(names[:3])
    h, g, d = layout.heads, layout.kv_heads, layout.head_dim
    if len(parts) == 3:
        features = f"[seen[n][1] for n in {tuple(parts)!r}]"
    elif len(parts) == 1 and layout.parts[0][1].startswith("grouped"):
        features = f"seen[{names[0]!r}][1].split({(h * d, g * d, g * d)!r}, -1)"
    else:
        return None
    lines = [
        "seen = {}",
        "hook = lambda name: lambda part, inputs, out: inputs and seen.update({name: (inputs[0], out)}) or None",
        "[part.register_forward_hook(hook(name)) for name, part in layer.named_modules()]",
        "f(x); t = x.shape[1]",
        f"q, k, v = (y.unflatten(-1, (-1, {d})).transpose(1, 2) for y in {features})",
    ]
    if design.rotary != "none":
        pair = "y.chunk(2, -1)" if design.rotary == "halves" else "(y[..., 0::2], y[..., 1::2])"
        join = "torch.cat(z, -1)" if design.rotary == "halves" else "torch.stack(z, -1).flatten(-2)"
        lines += [
            f"angles = torch.arange(t)[:, None] * 10_000.0 ** (-torch.arange(0, {d}, 2) / {d})",
            "turn = lambda a, b: (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())",
            f"q, k = ((lambda z: {join})(turn(*{pair})) for y in (q, k))",
        ]
    if g < h:
        lines += [f"k, v = (y.repeat_interleave({h // g}, 1) for y in (k, v))"]
    triangle = "tril()" if contract.kind == "causal" else "logical_not().logical_not()"
    lines += [
        f"mask = torch.ones(t, t, dtype=torch.bool).{triangle}",
        f"weights = (q @ k.mT * {d} ** -0.5).masked_fill(~mask, float('-inf')).softmax(-1)",
        "expected = (weights @ v).transpose(1, 2).flatten(2)",
        f'assert torch.allclose(seen[{names[3]!r}][0], expected), "counter-example: not softmax(q·kᵀ/√d) v"',
    ]
    return tuple(lines)
