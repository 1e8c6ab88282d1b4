"""Overhead of `qkv.attention(causal=True)` over the raw kernel, and the memory of a long call.

    python bench/causal_overhead.py

Both are timed in turns in one run and compared by medians; memory is the growth of the process's peak.
"""

import resource
import statistics
import time

import torch
import torch.nn.functional as F

import qkv


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def overhead(tokens: int, repeats: int = 60) -> float:
    q, k, v = (torch.randn(1, 8, tokens, 64) for _ in range(3))
    calls = {
        "raw": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "qkv": lambda: qkv.attention(q, k, v, causal=True),
    }
    times = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(seconds(call))
    medians = {name: statistics.median(values[5:]) for name, values in times.items()}
    return medians["qkv"] / medians["raw"]


def growth(tokens: int) -> float:
    q, k, v = (torch.randn(1, 1, tokens, 16) for _ in range(3))
    before = peak_mib()
    qkv.attention(q, k, v, causal=True)
    return peak_mib() - before


if __name__ == "__main__":
    with torch.no_grad():
        for tokens in (128, 1024):
            print(f"{tokens:6} tokens: {overhead(tokens):.3f} × the raw kernel's time")
        print(f" 32768 tokens: peak memory grows by {growth(32768):.0f} MiB (a boolean n² mask alone: 1024 MiB)")
