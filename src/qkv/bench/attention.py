"""Benchmark of attention: qkv, PyTorch's kernel and the plain formula over lengths; time, memory and their growth.

Axes: b batch · h heads · t tokens · d head dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.bench import OnNote
from qkv.bench.measure import (
    Timing,
    fit_exponent,
    measure_memory,
    run_in_fresh_process,
    speed_ratio,
    time_interleaved,
)
from qkv.bench.report import BenchmarkResult, Column, Table
from qkv.nn.attention import attention

HEADS, HEAD_DIM = 4, 64


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal=True)


def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ / √d) v as a textbook writes it."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ v


IMPLEMENTATIONS = {"qkv.attention": ours, "PyTorch's kernel": kernel, "the formula": formula}


def random_inputs(length: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, length, HEAD_DIM)
    return q, k, v


def benchmark_attention(quick: bool, on_note: OnNote) -> BenchmarkResult:
    lengths = (256, 512, 1024) if quick else (256, 512, 1024, 2048, 4096)
    long_lengths = (1024, 4096) if quick else (1024, 2048, 4096, 8192)
    times: dict[str, list[float]] = {name: [] for name in IMPLEMENTATIONS}
    rows = []
    for length in lengths:
        on_note(f"{length} tokens")
        found = _time_length(length, rounds=9 if quick else 15)
        for name, timing in found.items():
            times[name].append(timing.median)
        medians = [timing.median * 1e3 for timing in found.values()]
        ratios = [str(speed_ratio(found["qkv.attention"], found[name])) for name in ("PyTorch's kernel", "the formula")]
        rows.append((length, *medians, *ratios))
    peaks = {}
    for name in IMPLEMENTATIONS:
        on_note(f"memory of {name}")
        peaks[name] = [call_memory(name, length) for length in long_lengths]
    columns = tuple(Column(name, "ms", 3) for name in IMPLEMENTATIONS)
    speed = (Column("speed relative to the kernel", "×"), Column("speed relative to the formula", "×"))
    memory = tuple(Column(f"{length:,} tokens", "MiB", 1) for length in long_lengths)
    growth = tuple(
        (
            name,
            *(None if peak is None else peak / 2**20 for peak in peaks[name]),
            fit_exponent(long_lengths, [peak or 0 for peak in peaks[name]]),
        )
        for name in IMPLEMENTATIONS
    )
    powers = tuple((name, fit_exponent(lengths, times[name])) for name in IMPLEMENTATIONS)
    return BenchmarkResult(
        "attention",
        f"Causal attention, forward pass: {HEADS} heads of dimension {HEAD_DIM}, float32, batch 1. Each memory peak is "
        "that of one call in a fresh process.",
        (
            Table("Time", (Column("tokens"), *columns, *speed), tuple(rows)),
            Table("Time grows as n to the power", (Column("", ""), Column("power")), powers),
            Table("Peak memory of one call", (Column("", ""), *memory, Column("grows as n to the power")), growth),
        ),
    )


@torch.inference_mode()
def _time_length(length: int, rounds: int) -> dict[str, Timing]:
    q, k, v = random_inputs(length)
    calls = {name: lambda call=call: call(q, k, v) for name, call in IMPLEMENTATIONS.items()}
    return time_interleaved(calls, rounds, warmup=2)


def call_memory(name: str, length: int) -> int | None:
    """The bytes that one call adds to the peak memory of a fresh process; None if it failed."""
    try:
        return run_in_fresh_process("qkv.bench.attention:measure_call_memory", name, length)
    except RuntimeError:
        return None


@torch.inference_mode()
def measure_call_memory(name: str, length: int) -> int:
    call = IMPLEMENTATIONS[name]
    call(*random_inputs(64))  # what the first call sets up does not count
    inputs = random_inputs(length)
    return measure_memory(lambda: call(*inputs))
