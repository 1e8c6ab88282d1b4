"""The influence map and the kind of attention that it shows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import run
from qkv.check.influence import InfluenceMap, name_kind


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (lambda i, j: j <= i, "causal"),
        (lambda i, j: j == j, "bidirectional"),
        (lambda i, j: (j <= i) & (j > i - 3), "window of 3"),
        (lambda i, j: (j <= i + 1) & (j >= i - 2), "window, 2 back and 1 ahead"),
        (lambda i, j: (j <= i) | (j < 4), "prefix of 4"),
        (lambda i, j: j // 3 <= i // 3, "chunks of 3"),
        (lambda i, j: (j // 3 <= i // 3) & (j // 3 >= i // 3 - 1), "chunks of 3, 1 before"),
        (lambda i, j: j == i, "each token alone"),
        (lambda i, j: (i + j) % 2 == 0, "irregular"),
        (lambda i, j: j != j, "no influence: no input changes any output"),
    ],
)
def test_name_kind_reads_the_kind_off_the_influence_map(pattern, name):
    i, j = torch.arange(10)[:, None], torch.arange(10)[None, :]
    effects = (pattern(i, j) & torch.ones(10, 10, dtype=torch.bool)).double()
    assert name_kind(InfluenceMap(effects, 1e-6)) == name


class Chunks(nn.Module):
    """Causal attention inside chunks that are longer than a short sequence, or unscaled attention to all."""

    chunk, scale, causal = 16, None, True

    def __init__(self, dim=32, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def attend(self, x):
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
        return self.out(out.transpose(1, 2).flatten(2))

    def forward(self, x):
        return torch.cat([self.attend(part) for part in x.split(self.chunk, 1)], 1)


class Unscaled(Chunks):
    chunk, scale, causal = 10_000, 1.0, False


@pytest.mark.parametrize(("target", "kind"), [(Chunks, "chunked"), (Unscaled, "bidirectional")])
def test_run_accepts_the_kind_at_other_head_counts(target, kind):
    report = run(target, kind=kind)
    assert report.ok, report.failed
