"""What attention costs: memory and time against length, plain, fused, and beside an RNN."""

import math
import os
import resource
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from qkv._figures import Lines
from qkv.claims.claim import Claim, Knob, Lab, Measured
from qkv.claims.predicates import near

FAMILY = "self-attention"
TICK = 1e-6  # seconds: what a clock of processor time tells apart


def cost(lab: Lab, shortest: int, width: int, repeats: int) -> Measured:
    lengths = [shortest, 2 * shortest, 4 * shortest]
    plain: Callable[..., Tensor] = lambda q, k, v, n: lab.attention(q, k, v, return_weights=True)  # noqa: E731
    fused: Callable[..., Tensor] = lambda q, k, v, n: lab.attention(q, k, v)  # noqa: E731

    def masked(q: Tensor, k: Tensor, v: Tensor, n: int) -> Tensor:
        return lab.attention(q, k, v, bias=torch.zeros(n, n))

    memory: dict[str, list[float]] = {"plain": [], "fused": [], "fused, full mask": []}
    seconds: dict[str, list[float]] = {"plain": [], "fused": []}
    operations: list[float] = []
    with torch.no_grad():
        for n in lengths:
            lab.note(f"{n} tokens")
            q, k, v = (lab.draw(1, 1, n, width).float() for _ in range(3))
            with FlopCounterMode(display=False) as counted:
                plain(q, k, v, n)
            operations.append(counted.get_total_flops())
            for name, run in (("plain", plain), ("fused", fused), ("fused, full mask", masked)):
                memory[name].append(peak_bytes(lambda run=run, q=q, k=k, v=v, n=n: run(q, k, v, n)))
                if name in seconds:
                    timed = [cpu_seconds(lambda run=run, q=q, k=k, v=v, n=n: run(q, k, v, n)) for _ in range(repeats)]
                    seconds[name].append(min(timed))
    powers = {name: exponent(found) for name, found in memory.items()}
    speed = {
        name: math.log(max(found[-1], TICK) / max(found[0], TICK)) / math.log(4) for name, found in seconds.items()
    }
    crossing = flops_crossing(width)
    return Measured(
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
            near("with a full n×n mask it grows as n² again", powers["fused, full mask"], 2.0, 0.15),
            # times are shown and not judged: on a busy machine they follow no law
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
    """The most bytes held at once, beyond those held before, by what PyTorch's allocator says."""
    run()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would write to stderr that it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = run()
    del kept
    held = most = 0
    results: Any = seen.profiler.kineto_results if seen.profiler is not None else None
    for event in results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return float(most)


def cpu_seconds(run: Callable[[], object]) -> float:
    """One thread's own processor time: other programs, the system's handing out of pages, and threads that spin while
    they wait for one another do not count."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        run()
        return resource.getrusage(resource.RUSAGE_SELF).ru_utime - began
    finally:
        torch.set_num_threads(threads)


def exponent(found: list[float]) -> float:
    """p of a + b·n^p through three lengths, each twice the last."""
    first, second, third = found
    rise = (third - second) / max(second - first, 1e-12)
    return float(torch.tensor(max(rise, 1e-12)).log2())


def flops_crossing(width: int) -> float:
    """The length, over d, at which scores and averages cost as much as an RNN's two matrices; by counted operations."""
    ratios = {}
    for n in (width // 2, width, 2 * width):
        q = torch.zeros(1, 1, n, width)
        with FlopCounterMode(display=False) as attending:
            _ = (q @ q.mT) @ q
        with FlopCounterMode(display=False) as recurring:
            layer, state = nn.RNNCell(width, width), torch.zeros(1, width)
            for t in range(n):
                state = layer(q[0, :, t], state)
        ratios[n] = attending.get_total_flops() / recurring.get_total_flops()
    lengths = sorted(ratios)
    steepness = (ratios[lengths[-1]] - ratios[lengths[0]]) / (lengths[-1] - lengths[0])
    return (lengths[0] + (1 - ratios[lengths[0]]) / steepness) / width


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
            Knob("width", 32, "width of the head", (2, 256)),
            Knob("repeats", 2, "timings of each, the fastest counts", (1, 20)),
        ),
        ("written-out",),
        "Memory parts ways, time does not.",
        cost="seconds",
        overturn={"repeats": 1},
    ),
)
