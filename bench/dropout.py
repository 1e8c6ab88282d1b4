"""Dropout on a CPU, PyTorch's and qkv's, forward and backward: python bench/dropout.py"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.nn.dropout import dropout

ELEMENTS, REPEATS = 1 << 20, 20


def milliseconds(function: Callable[[Tensor, float], Tensor]) -> float:
    """The shortest of REPEATS calls."""
    x, best = torch.randn(ELEMENTS, requires_grad=True), float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        function(x, 0.1).sum().backward()
        best = min(best, time.perf_counter() - start)
    return 1000 * best


if __name__ == "__main__":
    theirs, ours = milliseconds(F.dropout), milliseconds(dropout)
    print(f"{ELEMENTS:,} elements, {torch.get_num_threads()} threads: ", end="")
    print(f"PyTorch {theirs:.1f} ms, qkv {ours:.1f} ms, {theirs / ours:.1f} times as fast")
