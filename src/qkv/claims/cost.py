"""Claims about cost: memory and time of plain and fused attention against length, compared with an RNN."""

import math
import os
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from qkv._figures import Lines
from qkv._threads import one_thread
from qkv.claims.claim import Claim, ExperimentResult, Knob, near
from qkv.claims.experiment import Lab

FAMILY = "self-attention"
TICK = 1e-6  # seconds: the resolution of processor time


def cost(lab: Lab, shortest: int, dim: int, repeats: int) -> ExperimentResult:
    lengths = [shortest, 2 * shortest, 4 * shortest]

    def plain(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return lab.attention(q, k, v, return_weights=True)

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return lab.attention(q, k, v, bias=torch.zeros(q.shape[-2], k.shape[-2]))

    runs: dict[str, Callable[..., object]] = {"plain": plain, "fused": lab.attention, "fused, full mask": masked}
    memory: dict[str, list[float]] = {name: [] for name in runs}
    seconds: dict[str, list[float]] = {"plain": [], "fused": []}
    operations: list[float] = []
    with torch.no_grad():
        for n in lengths:
            lab.progress(f"{n} tokens")
            qkv = [lab.draw(1, 1, n, dim).float() for _ in range(3)]
            with FlopCounterMode(display=False) as counted:
                plain(*qkv)
            operations.append(counted.get_total_flops())
            for name, run in runs.items():
                memory[name].append(peak_bytes(partial(run, *qkv)))
                if name in seconds:
                    seconds[name].append(min(cpu_seconds(partial(run, *qkv)) for _ in range(repeats)))
    powers = {name: exponent(found) for name, found in memory.items()}
    speed = {
        name: math.log(max(found[-1], TICK) / max(found[0], TICK)) / math.log(4) for name, found in seconds.items()
    }
    crossing = flops_crossing(dim)
    return ExperimentResult(
        {
            **{f"memory, {name}: exponent of n": power for name, power in powers.items()},
            **{f"time, {name}: exponent of n": power for name, power in speed.items()},
            f"memory, plain, n = {lengths[-1]}, MiB": memory["plain"][-1] / 2**20,
            f"memory, fused, n = {lengths[-1]}, MiB": memory["fused"][-1] / 2**20,
            "length at which attention costs as much as an RNN, over d": crossing,
        },
        (
            near("plain memory grows as n²", powers["plain"], 2.0, 0.15),
            near("fused memory grows as n", powers["fused"], 1.0, 0.15),
            near("with a full n×n mask fused memory grows as n² again", powers["fused, full mask"], 2.0, 0.15),
            # times are shown but not judged: on a busy machine they vary
            near("operations grow as n²", math.log(operations[-1] / operations[0]) / math.log(4), 2.0, 0.01),
            near("n²d and an RNN's nd² cross at n/d", crossing, 1.0, 0.3),
        ),
        (
            Lines(
                "memory beyond the inputs",
                "tokens n",
                "MiB",
                lengths,
                {name: [b / 2**20 for b in found] for name, found in memory.items()},
                logx=True,
                logy=True,
                roles={"plain": "wrong", "fused": "query", "fused, full mask": "key"},
            ),
            Lines(
                "time",
                "tokens n",
                "seconds of one core",
                lengths,
                seconds,
                logx=True,
                logy=True,
                roles={"plain": "wrong", "fused": "query"},
            ),
        ),
    )


def peak_bytes(run: Callable[[], object]) -> float:
    """The peak of allocated bytes beyond those held before, from PyTorch's profiler."""
    run()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # keep the profiler from writing to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    del result
    current = peak = 0
    results: Any = profiler.profiler.kineto_results if profiler.profiler is not None else None
    for event in results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return float(peak)


def cpu_seconds(run: Callable[[], object]) -> float:
    """The user time of one thread: other programs, page allocation by the system and spinning threads do not count."""
    with one_thread():
        began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        run()
        return resource.getrusage(resource.RUSAGE_SELF).ru_utime - began


def exponent(found: list[float]) -> float:
    """p of a + b·n^p through three lengths, each twice the last."""
    first, second, third = found
    rise = (third - second) / max(second - first, 1e-12)
    return float(torch.tensor(max(rise, 1e-12)).log2())


def flops_crossing(dim: int) -> float:
    """The length, over d, at which attention needs as many operations as an RNN's two matrices."""
    ratios = {}
    for n in (dim // 2, dim, 2 * dim):
        q = torch.zeros(1, 1, n, dim)
        with FlopCounterMode(display=False) as attending:
            _ = (q @ q.mT) @ q
        with FlopCounterMode(display=False) as recurring:
            layer, state = nn.RNNCell(dim, dim), torch.zeros(1, dim)
            for t in range(n):
                state = layer(q[0, :, t], state)
        ratios[n] = attending.get_total_flops() / recurring.get_total_flops()
    lengths = sorted(ratios)
    steepness = (ratios[lengths[-1]] - ratios[lengths[0]]) / (lengths[-1] - lengths[0])
    return (lengths[0] + (1 - ratios[lengths[0]]) / steepness) / dim


CLAIMS = (
    Claim(
        "cost",
        FAMILY,
        "Plain attention holds n² numbers, fused n, both take n² time; a full mask makes fused memory n² again.",
        "holds",
        "",
        cost,
        (
            Knob("shortest", 1024, "shortest length; two doublings follow", (64, 2048)),
            Knob("dim", 32, "head dim", (2, 256)),
            Knob("repeats", 2, "timings of each; the fastest counts", (1, 20)),
        ),
        ("written-out",),
        "Memory differs, time does not.",
        cost="seconds",
        overturn={"repeats": 1},
    ),
)
