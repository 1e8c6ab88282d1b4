"""Coding styles of attention: each is the source of a right implementation, in named steps that a bug can replace.

The steps of all styles use the same names: q, k, v are (b, h, t, d), mask is (t, s) with True = may attend, scores and
weights are (b, h, t, s), out is (b, h, t, d). `Style.source` puts the steps together.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

# the steps of the plain style; every other style replaces some of them by code that does the same
STEPS = {
    "inputs": "t, s = q.shape[-2], k.shape[-2]",
    "rotate": "q, k = rotate(q, torch.arange(s - t, s)), rotate(k, torch.arange(s))",
    "share": "k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))",
    "scale": "scale = q.shape[-1] ** -0.5",
    "scores": "scores = q @ k.transpose(-2, -1) * scale",
    "mask": "mask = torch.ones(t, s, dtype=torch.bool, device=q.device).tril(s - t)",
    "masked": "scores = scores.masked_fill(~mask, float('-inf'))",
    "softmax": "weights = scores.softmax(-1)",
    "average": "out = weights @ v",
    "end": "",
    "split": "q, k, v = (y.view(*y.shape[:2], -1, self.head_dim).transpose(1, 2) for y in (q, k, v))",
    "merge": "out = out.transpose(1, 2).reshape(*x.shape)",
}
CORE = ("inputs", "share", "scale", "scores", "mask", "masked", "softmax", "average", "end")
ROTATE = '''
def rotate(x, positions):
    """Rotary positions, with pairs in halves."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

'''
FUNCTION = """import torch
import torch.nn.functional as F


def attention(q, k, v, is_causal=False):
{core}
    return out
"""
LAYER = """import torch
import torch.nn.functional as F
from torch import nn
{rotate_function}

class Attention(nn.Module):
    def __init__(self, dim=32, heads=4{more_arguments}):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
{projections}
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
{project}
{split}
{core}
{merge}
        return self.out(out)
"""
MODEL = """

class Model(nn.Module):
    def __init__(self, vocab_size=64, dim=32, heads=4):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, dim)
        self.blocks = nn.ModuleList(Attention(dim, heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size)

    def forward(self, idx):
        x = self.tokens(idx)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))
"""
SEPARATE = {
    "projections": "self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))",
    "project": "q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)",
}
GROUPED = {
    "more_arguments": ", kv_heads=2",
    "projections": "self.to_q = nn.Linear(dim, dim, bias=False)\n"
    "self.to_k, self.to_v = (nn.Linear(dim, kv_heads * self.head_dim, bias=False) for _ in range(2))",
    "project": "q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)",
}
FUSED = {
    "projections": "self.qkv = nn.Linear(dim, 3 * dim, bias=False)",
    "project": "q, k, v = self.qkv(x).chunk(3, dim=-1)",
}
ONLINE = """total, largest = 0.0, torch.full(scores.shape[:-1] + (1,), -1e30).to(scores)
out = torch.zeros_like(q)
for part, values in zip(scores.split(16, -1), v.split(16, -2)):
    new = torch.maximum(largest, part.amax(-1, keepdim=True))
    factor, powers = (largest - new).exp(), (part - new).exp()
{rescale}
    largest = new
out = out / total"""
RESCALE = "total = total * factor + powers.sum(-1, keepdim=True)\nout = out * factor + powers @ values"


@dataclass(frozen=True)
class Style:
    """A way to write attention.

    Args:
        name: the style in words.
        target: the function or class to check.
        steps: the steps that it writes otherwise; None for steps that it does not have.
        parts: the projections of a layer.
        rotary: whether it has rotary positions.
    """

    name: str
    target: str
    steps: Mapping[str, str | None] = field(default_factory=dict)
    parts: Mapping[str, str] | None = None
    rotary: bool = False

    def has(self, step: str) -> bool:
        """Whether a bug in this step can be written in this style."""
        if step in ("split", "merge"):
            return self.parts is not None
        if step == "rotate":
            return self.rotary
        if step == "rescale":
            return "rescale" in self.steps
        return self.steps.get(step, "") is not None

    def step(self, name: str) -> str:
        """The code of a step."""
        return self.steps.get(name, STEPS.get(name)) or ""

    def source(self, changed: Mapping[str, str] | None = None) -> str:
        """The source, with the code of some steps replaced."""
        code = {name: self.step(name) for name in (*STEPS, "rescale")} | dict(changed or {})
        code["average"] = code["average"].replace("{rescale}", textwrap.indent(code["rescale"], "    "))
        names = ("rotate", *CORE) if self.rotary else CORE
        if self.rotary:  # rotary positions need the lengths
            names = ("inputs", "rotate", *CORE[1:])
        lines = [code[name] for name in names if code[name]]
        if self.parts is None:
            return FUNCTION.format(core=textwrap.indent("\n".join(lines), "    "))

        def inside(text: str) -> str:
            return textwrap.indent(text, 8 * " ")

        layer = LAYER.format(
            rotate_function=ROTATE.rstrip() + "\n" if self.rotary else "",
            more_arguments=self.parts.get("more_arguments", ""),
            projections=inside(self.parts["projections"]),
            project=inside(self.parts["project"]),
            split=inside(code["split"]),
            core=inside("\n".join(lines)),
            merge=inside(code["merge"]),
        )
        return layer + (MODEL if self.target == "Model" else "")


EINSUM = {
    "scores": 'scores = torch.einsum("bhtd,bhsd->bhts", q, k) * scale',
    "masked": "scores = torch.where(mask, scores, torch.full_like(scores, float('-inf')))",
    "softmax": "weights = (scores - scores.amax(-1, keepdim=True)).exp()\n"
    "weights = weights / weights.sum(-1, keepdim=True)",
    "average": 'out = torch.einsum("bhts,bhsd->bhtd", weights, v)',
}
SDPA: dict[str, str | None] = {
    "scores": None,
    "masked": None,
    "softmax": None,
    "average": "out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)",
}
BLOCKS: dict[str, str | None] = {"softmax": None, "average": ONLINE, "rescale": RESCALE}
LOOP: dict[str, str | None] = {
    "scores": "scores = torch.stack([q[:, h] @ k[:, h].transpose(-2, -1) for h in range(q.shape[1])], 1) * scale",
    "average": "out = torch.stack([weights[:, h] @ v[:, h] for h in range(q.shape[1])], 1)",
}
FUSED_SPLIT = "q, k, v = (y.unflatten(-1, (self.heads, self.head_dim)).permute(0, 2, 1, 3) for y in (q, k, v))"

STYLES = (
    Style("function", "attention"),
    Style("function, online softmax in blocks", "attention", BLOCKS),
    Style("layer, separate projections", "Attention", LOOP, SEPARATE, rotary=True),
    Style("layer, fused projection and einsum", "Attention", {**EINSUM, "split": FUSED_SPLIT}, FUSED),
    Style("layer, grouped heads and fused kernel", "Attention", SDPA, GROUPED),
    Style("model", "Model", EINSUM, SEPARATE),
)
