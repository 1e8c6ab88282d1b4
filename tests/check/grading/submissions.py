"""A right solution of each exercise, and its usual mistakes: the text to replace, its replacement, the properties lost."""

# ruff: noqa: E501

CAUSAL = """
import math, torch
from torch import nn

class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.n_embd)
        self.query = nn.Linear(config.n_embd, config.n_embd)
        self.value = nn.Linear(config.n_embd, config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.drop = nn.Dropout(config.attn_pdrop)
        self.n_head = config.n_head
        self.register_buffer("mask", torch.tril(torch.ones(config.block_size, config.block_size)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.n_head, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        att = q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])
        att = att.masked_fill(self.mask[:t, :t] == 0, float("-inf"))
        att = att.softmax(-1)
        att = self.drop(att)
        return self.proj((att @ v).transpose(1, 2).reshape(b, t, c))
"""
CAUSAL_WRONG = {
    "no scale": ((" / math.sqrt(k.shape[-1])", ""), {"scale 1/√d", "equals the formula"}),
    "scale of the model": (("k.shape[-1])", "c)"), {"scale 1/√d", "equals the formula"}),
    "no mask": (("att = att.masked_fill(self.mask[:t, :t] == 0, float(\"-inf\"))", ""), {"no future", "equals the formula"}),
    "mask of −5": (('float("-inf")', "-5.0"), {"no future", "equals the formula"}),
    "mask after the softmax": (
        ("att = att.softmax(-1)", "att = (q @ k.transpose(-2, -1) / math.sqrt(k.shape[-1])).softmax(-1) * self.mask[:t, :t]"),
        {"no future", "softmax over keys", "equals the formula"},
    ),
    "softmax over queries": (("softmax(-1)", "softmax(-2)"), {"no future", "softmax over keys", "equals the formula"}),
    "not itself": (('self.mask[:t, :t] == 0, float("-inf")', "self.mask[:t, :t].tril(-1) == 0, -1e9"), {"no future", "whole past", "equals the formula"}),
    "one token ahead": (("config.block_size, config.block_size)))", "config.block_size, config.block_size), 1))"), {"no future", "equals the formula"}),
    "a window": (("self.mask[:t, :t] == 0", "torch.triu(self.mask[:t, :t], -7) == 0"), {"whole past", "equals the formula"}),
    "no transpose": (
        ("f(x).view(b, t, self.n_head, -1).transpose(1, 2)", "f(x).view(b, self.n_head, t, -1)"),
        {"no future", "independent heads", "equals the formula"},
    ),
    "dropout in eval": (("self.drop(att)", "nn.functional.dropout(att, 0.1)"), {"deterministic, independent rows"}),
    "detached weights": (("(att @ v)", "(att.detach() @ v)"), {"gradients"}),
    "batch mean": (("return self.proj(", "return x.mean(0, keepdim=True) + self.proj("), {"deterministic, independent rows", "softmax over keys", "scale 1/√d", "equals the formula"}),
    "no max subtracted": (("att.softmax(-1)", "att.exp() / att.exp().sum(-1, keepdim=True)"), {"runs"}),
}  # fmt: skip

MULTI_HEAD = """
import math, torch
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.heads, self.head_dim = num_heads, embed_dim // num_heads

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        q, k, v = self.split(self.q_proj(query)), self.split(self.k_proj(key)), self.split(self.v_proj(value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        out = scores.softmax(-1) @ v
        return self.out_proj(out.transpose(1, 2).flatten(2)), scores
"""
MULTI_HEAD_WRONG = {
    "mask inverted": (("~mask", "mask"), {"mask"}),
    "mask of −∞": (("-1e9", "float('-inf')"), {"fully masked row"}),
    "scale twice": (("math.sqrt(self.head_dim)", "self.head_dim"), {"scale 1/√d", "equals the formula"}),
    "self-attention only": (("self.k_proj(key)", "self.k_proj(query)"), {"cross-attention"}),
    "causal": (
        ("scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)",
         "scores = (q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)).masked_fill(torch.ones(q.shape[2], k.shape[2]).triu(1) > 0, -1e9)"),
        {"sees everything", "cross-attention", "equals the formula"},
    ),
    "no output projection": (("self.out_proj(out.transpose(1, 2).flatten(2))", "out.transpose(1, 2).flatten(2)"), {"equals the formula"}),
    "no scale": ((" / math.sqrt(self.head_dim)", ""), {"scale 1/√d", "equals the formula"}),
    "softmax over queries": (("scores.softmax(-1)", "scores.softmax(-2)"), {"softmax over keys", "equals the formula"}),
    "values from key": (("self.v_proj(value)", "self.v_proj(key)"), {"cross-attention"}),
    "masked scores are 0": (("-1e9", "0.0"), {"mask"}),
    "mask never used": (("scores = scores.masked_fill(~mask, -1e9)", "pass"), {"mask"}),
    "mask after the softmax": (
        ("scores.masked_fill(~mask, -1e9)\n        out = scores.softmax(-1) @ v",
         "scores\n        out = (scores.softmax(-1) if mask is None else scores.softmax(-1) * mask) @ v"),
        {"mask"},
    ),
    "mask on values only": (
        ("scores.masked_fill(~mask, -1e9)\n        out = scores.softmax(-1) @ v",
         "scores\n        kept = torch.ones_like(scores) if mask is None else mask.to(scores)\n        weights = scores.softmax(-1)\n"
         "        out = weights * kept @ v / (weights * kept).sum(-1, keepdim=True).clamp(min=0.5) if mask is not None else weights @ v"),
        {"mask"},
    ),
    "no transpose": (("x.view(x.shape[0], x.shape[1], self.heads, self.head_dim).transpose(1, 2)", "x.reshape(x.shape[0], self.heads, x.shape[1], self.head_dim)"), None),
}  # fmt: skip

SYNTHESIZER = """
import torch
from torch import nn

class SynthesizerAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.w1 = nn.Linear(config.n_embd, config.n_embd)
        self.value = nn.Linear(config.n_embd, config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.w2 = nn.Parameter(torch.zeros(config.n_embd // config.n_head, config.block_size - 1))
        self.b2 = nn.Parameter(torch.zeros(config.block_size - 1))
        self.n_head = config.n_head

    def forward(self, x):
        b, t, c = x.shape
        v = self.value(x).view(b, t, self.n_head, -1).transpose(1, 2)
        h = torch.relu(self.w1(x)).view(b, t, self.n_head, -1).transpose(1, 2)
        scores = (h @ self.w2 + self.b2)[..., :t]
        future = torch.ones(t, t).triu(1) > 0
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, t, c))
"""
SYNTHESIZER_WRONG = {
    "no ReLU": (("torch.relu(self.w1(x))", "self.w1(x)"), {"equals the formula"}),
    "no offset": ((" + self.b2", ""), {"equals the formula"}),
    "no mask": (("scores.masked_fill(future, float(\"-inf\"))", "scores"), {"no future", "equals the formula"}),
    "mask after the softmax": (
        ("scores.masked_fill(future, float(\"-inf\")).softmax(-1)", "scores.softmax(-1).masked_fill(future, 0.0)"),
        {"softmax over keys", "equals the formula", "no future"},
    ),
    "scaled": (("(h @ self.w2 + self.b2)[..., :t]", "(h @ self.w2 + self.b2)[..., :t] / h.shape[-1] ** 0.5"), {"equals the formula"}),
    "last columns": (("[..., :t]", "[..., -t:]"), {"equals the formula"}),
    "softmax over queries": ((".softmax(-1)", ".softmax(-2)"), {"no future", "softmax over keys", "equals the formula"}),
    "ReLU of the scores": (("(h @ self.w2 + self.b2)[", "torch.relu(h @ self.w2 + self.b2)["), {"equals the formula"}),
    "one token ahead": (("triu(1)", "triu(2)"), {"no future", "equals the formula"}),
    "masked with 0": (('float("-inf")', "0.0"), {"no future", "equals the formula"}),
    "dropout in eval": (("(weights @ v)", "(nn.functional.dropout(weights) @ v)"), {"deterministic, independent rows"}),
    "detached": (("(weights @ v)", "(weights.detach() @ v)"), {"gradients"}),
    "scores meet keys": (("(h @ self.w2 + self.b2)[..., :t]", "h @ h.transpose(-2, -1)"), {"scores without keys", "equals the formula"}),
}  # fmt: skip

PATCHES = """
from torch import nn

class PatchEmbedding(nn.Module):
    def __init__(self, image_size, patch_size, in_channels, embed_dim):
        super().__init__()
        self.p = patch_size
        self.proj = nn.Linear(in_channels * patch_size**2, embed_dim)

    def forward(self, images):
        b, c, h, w = images.shape
        p = self.p
        cut = images.reshape(b, c, h // p, p, w // p, p)
        patches = cut.permute(0, 2, 4, 1, 3, 5)
        return self.proj(patches.reshape(b, (h // p) * (w // p), c * p * p))
"""
PATCHES_WRONG = {
    "reshaped at once": (("patches.reshape(", "images.reshape("), {"independent patches", "equals the formula"}),
    "columns first": (("permute(0, 2, 4, 1, 3, 5)", "permute(0, 4, 2, 1, 3, 5)"), {"order", "equals the formula"}),
    "channels last": (("permute(0, 2, 4, 1, 3, 5)", "permute(0, 2, 4, 3, 5, 1)"), {"equals the formula"}),
    "channels first": (("return self.proj(patches.reshape(b, (h // p) * (w // p), c * p * p))",
                        "return self.proj(patches.reshape(b, (h // p) * (w // p), c * p * p)).transpose(1, 2)"), None),
    "detached": (("return self.proj(patches", "return self.proj(patches.detach()"), {"gradients"}),
    "an activation": (("return self.proj(patches.reshape(b, (h // p) * (w // p), c * p * p))", "return self.proj(patches.reshape(b, (h // p) * (w // p), c * p * p)).tanh()"), {"equals the formula"}),
    "no bias": (("return self.proj(patches.reshape(b, (h // p) * (w // p), c * p * p))", "return patches.reshape(b, (h // p) * (w // p), c * p * p) @ self.proj.weight.T"), {"equals the formula"}),
    "mean over the batch": (("return self.proj(", "return images.mean() + self.proj("), None),
    "centered over the batch": (("        b, c, h, w = images.shape\n", "        images = images - images.mean(0, keepdim=True)\n        b, c, h, w = images.shape\n"), {"deterministic, independent images", "equals the formula"}),
}  # fmt: skip

SPANS = """
def corrupt(document, block_size, rng):
    length = rng.randint(4, int(block_size * 7 / 8))
    text = document[:length]
    count = max(1, int(len(text) * rng.uniform(0.1, 0.4)))
    start = rng.randint(0, len(text) - count)
    prefix, masked, suffix = text[:start], text[start : start + count], text[start + count :]
    out = prefix + "⁇" + suffix + "⁇" + masked
    return out + "□" * (block_size - len(out))
"""
SPANS_WRONG = {
    "no padding": ((' + "□" * (block_size - len(out))', ""), {"length"}),
    "no second sign": (('suffix + "⁇" + masked', "suffix + masked"), {"form"}),
    "masked in the middle": (('prefix + "⁇" + suffix + "⁇" + masked', 'prefix + "⁇" + masked + "⁇" + suffix'),
                             {"content in order"}),
    "the span stays": (("suffix = text[:start], text[start : start + count], text[start + count :]", "suffix = text[:start], text[start : start + count], text[start:]"), {"content in order"}),
    "never cut": (("text = document[:length]", "text = document[: block_size - 2]"), {"cut"}),
    "half is masked": (("rng.uniform(0.1, 0.4)", "rng.uniform(0.4, 0.6)"), {"about a quarter"}),
    "always at the start": (("rng.randint(0, len(text) - count)", "0"), {"anywhere"}),
    "two paddings": (("□\" * (block_size", "□\" * (block_size + 1"), {"length"}),
    "its own generator": (("    length = rng", "    import random\n    rng = random.Random()\n    length = rng"), {"randomness"}),
}  # fmt: skip

ROPE = """
import torch

def apply_rope(x, positions):
    d = x.shape[-1]
    freq = 10000 ** (-torch.arange(0, d, 2) / d)
    angle = positions[:, None] * freq
    a, b = x[..., 0::2], x[..., 1::2]
    out = torch.stack((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)
    return out.flatten(-2)
"""
ROPE_WRONG = {
    "halves": (("a, b = x[..., 0::2], x[..., 1::2]\n    out = torch.stack(", "a, b = x.chunk(2, -1)\n    out = torch.stack("), {"equals the formula", "position 0"}),
    "the other way": (("a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()", "a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()"), {"equals the formula"}),
    "no rotation": (("b * angle.cos() + a * angle.sin()", "b * angle.cos() - a * angle.sin()"), {"a rotation", "relative positions", "equals the formula"}),
    "positions of its own": (("positions[:, None]", "torch.arange(x.shape[2])[:, None]"), {"uses positions", "equals the formula"}),
    "from 1": (("positions[:, None]", "(positions[:, None] + 1)"), {"position 0", "equals the formula"}),
    "rotated partner": (("    out = torch.stack((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)", "    b = b * angle.cos() + a * angle.sin()\n    out = torch.stack((a * angle.cos() - b * angle.sin(), b), -1)"), {"a rotation", "relative positions", "equals the formula"}),
    "half the exponent": (("-torch.arange(0, d, 2) / d", "-torch.arange(d // 2) / d"), {"equals the formula"}),
    "another base": (("10000 **", "1000 **"), {"equals the formula"}),
    "one speed": (("10000 ** (-torch.arange(0, d, 2) / d)", "torch.ones(d // 2)"), {"equals the formula"}),
    "added": (("return out.flatten(-2)", "return x + out.flatten(-2) - x.flip(-1)"), None),
    "detached": (("return out.flatten(-2)", "return out.flatten(-2).detach()"), {"gradient"}),
}  # fmt: skip

EXERCISES = {
    "causal-self-attention": (CAUSAL, CAUSAL_WRONG),
    "multi-head-attention": (MULTI_HEAD, MULTI_HEAD_WRONG),
    "dense-synthesizer": (SYNTHESIZER, SYNTHESIZER_WRONG),
    "vit-patch-embedding": (PATCHES, PATCHES_WRONG),
    "span-corruption": (SPANS, SPANS_WRONG),
    "rope": (ROPE, ROPE_WRONG),
}
