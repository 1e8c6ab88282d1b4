"""Attention in bfloat16 on a CPU, forward and backward: PyTorch's kernel and qkv: python bench/half_attention.py"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import qkv

TOKENS, HEADS, HEAD_DIM, ROUNDS = 4096, 6, 32, 5  # tokens of a batch
LENGTHS = (32, 64, 128, 256, 512, 1024)


def milliseconds(attend: Callable[[Tensor, Tensor, Tensor], Tensor], length: int) -> float:
    """Least time of a forward and backward pass."""
    shape = (TOKENS // length, HEADS, length, HEAD_DIM)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    gradient, times = torch.randn(shape, dtype=torch.bfloat16), []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        attend(q, k, v).backward(gradient)
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


if __name__ == "__main__":
    for length in LENGTHS:
        kernel, ours = milliseconds(F.scaled_dot_product_attention, length), milliseconds(qkv.attention, length)
        print(f"{length:5} tokens: PyTorch {kernel:6.1f} ms, qkv {ours:6.1f} ms, {kernel / ours:.2f} times as fast")
