"""Attention: ours, PyTorch's kernel and the written formula, over lengths; time, memory, and how both grow.

Axes: b batch · h heads · t tokens · d head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.bench.measure import Note, fitted_exponent, interleaved, speed_ratio
from qkv.bench.peak import in_child
from qkv.bench.result import Column, Result, Table
from qkv.nn.attention import attention

HEADS, WIDTH = 4, 64


def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, causal=True)


def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ / √d) v as a textbook writes it."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


COMPETITORS = {"qkv.attention": ours, "PyTorch's kernel": kernel, "the formula": formula}


def inputs(length: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, HEADS, length, WIDTH)
    return q, k, v


def run(quick: bool, note: Note) -> Result:
    lengths = (256, 512, 1024) if quick else (256, 512, 1024, 2048, 4096)
    long = (1024, 4096) if quick else (1024, 2048, 4096, 8192)
    times: dict[str, list[float]] = {name: [] for name in COMPETITORS}
    rows = []
    for length in lengths:
        note(f"{length} tokens")
        found = _timed(length, rounds=9 if quick else 15)
        us, them = found["qkv.attention"], found["PyTorch's kernel"]
        for name, timing in found.items():
            times[name].append(timing.median)
        medians = [timing.median * 1e3 for timing in found.values()]
        rows.append((length, *medians, str(speed_ratio(us, them)), str(speed_ratio(us, found["the formula"]))))
    peaks = {}
    for name in COMPETITORS:
        note(f"memory of {name}")
        peaks[name] = [in_child(name, length) for length in long]
    columns = tuple(Column(name, "ms", 3) for name in COMPETITORS)
    speed = (Column("as fast as the kernel", "×"), Column("as fast as the formula", "×"))
    memory = tuple(Column(f"{length:,} tokens", "MiB", 1) for length in long)
    growth = tuple(
        (name, *(_mib(peak) for peak in peaks[name]), fitted_exponent(long, [peak or 0 for peak in peaks[name]]))
        for name in COMPETITORS
    )
    powers = tuple((name, fitted_exponent(lengths, times[name])) for name in COMPETITORS)
    return Result(
        "attention",
        f"Causal attention of {HEADS} heads, {WIDTH} wide, float32, batch 1, forward; every peak of memory is that of "
        "one call in a process of its own.",
        (
            Table("Time", (Column("tokens"), *columns, *speed), tuple(rows)),
            Table("Time grows as n to the power", (Column("", ""), Column("power")), powers),
            Table("Peak memory of one call", (Column("", ""), *memory, Column("grows as n to the power")), growth),
        ),
    )


@torch.inference_mode()
def _timed(length: int, rounds: int):
    q, k, v = inputs(length)
    return interleaved({name: lambda call=call: call(q, k, v) for name, call in COMPETITORS.items()}, rounds, warm=2)


def _mib(peak: int | None) -> float | None:
    return None if peak is None else peak / 2**20
