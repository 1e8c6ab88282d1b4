"""The influence map and the kind of attention that it shows."""

import pytest
import torch

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
