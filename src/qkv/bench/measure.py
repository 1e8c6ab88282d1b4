"""Comparable measurements: interleaved timing with medians and intervals; time and memory in a fresh process."""

import importlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """The seconds that one call took, round by round."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile."""
        return quantile(self.seconds, 0.25), quantile(self.seconds, 0.75)


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one call is as another, with a 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"


def random_orders(names: Sequence[str], rounds: int, seed: int = 0) -> list[list[str]]:
    """A new random order of all names for each round."""
    generator = random.Random(seed)
    return [generator.sample(list(names), len(names)) for _ in range(rounds)]


def time_interleaved(
    calls: Mapping[str, Call],
    rounds: int,
    *,
    warmup: int = 1,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every call once a round, so that other load on the machine affects all of them equally.

    warmup: calls of each before the first one that counts.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    for call in calls.values():
        for _ in range(warmup):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for order in random_orders(list(calls), rounds, seed):
        for name in order:
            start = clock()
            calls[name]()
            seconds[name].append(clock() - start)
    return {name: Timing(name, tuple(times)) for name, times in seconds.items()}


def speed_ratio(ours: Timing, theirs: Timing, *, draws: int = 1000, seed: int = 0) -> Ratio:
    """Their median time over ours: above 1, ours is faster.

    The interval is a bootstrap over rounds. Both are drawn from the same rounds, because load that slowed one call of a
    round slowed the other as well.
    """
    if len(ours.seconds) != len(theirs.seconds):
        raise ValueError(f"both need the same rounds; got {len(ours.seconds)} and {len(theirs.seconds)}")
    generator, rounds = random.Random(seed), range(len(ours.seconds))
    ratios = []
    for _ in range(draws):
        drawn = generator.choices(rounds, k=len(rounds))
        ratios.append(
            statistics.median(theirs.seconds[i] for i in drawn) / statistics.median(ours.seconds[i] for i in drawn)
        )
    return Ratio(theirs.median / ours.median, quantile(ratios, 0.025), quantile(ratios, 0.975))


def quantile(values: Sequence[int | float], share: float) -> float:
    """The quantile of some values, with linear interpolation.

    >>> quantile([4.0, 1.0, 2.0, 3.0, 5.0], 0.25)
    2.0
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def fit_exponent(sizes: Sequence[int | float], costs: Sequence[int | float]) -> float | None:
    """The power p of cost ≈ a·size^p, by least squares on logarithms; None if fewer than two costs are above 0.

    >>> round(fit_exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    points = [(math.log(size), math.log(cost)) for size, cost in zip(sizes, costs, strict=True) if cost > 0]
    if len({x for x, _ in points}) < 2:
        return None
    slope, _ = statistics.linear_regression(*zip(*points, strict=True))
    return slope


def run_in_fresh_process(
    function: str, *arguments: Any, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> Any:
    """Call "package.module:function" in a new process and return its JSON result; RuntimeError if it fails."""
    command = [sys.executable, "-m", "qkv.bench.measure", function, json.dumps(arguments)]
    path = os.pathsep.join(place for place in sys.path if place)
    environment = {**os.environ, "PYTHONPATH": path, **(env or {})}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not finished within {timeout:g} s") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RuntimeError(f"failed: {reason}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_memory(call: Call) -> int:
    """The bytes by which a call raises this process's peak memory; run it in a fresh process."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = _read_status("VmRSS:")
    except OSError:
        before = peak_memory()
    call()
    return max(peak_memory() - before, 0)


def peak_memory() -> int:
    """The largest memory of this process so far, in bytes."""
    try:
        return _read_status("VmHWM:")
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _read_status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {name}")


if __name__ == "__main__":
    _module, _, _function = sys.argv[1].partition(":")
    _result = getattr(importlib.import_module(_module), _function)(*json.loads(sys.argv[2]))
    sys.stdout.write(f"\n{json.dumps(_result)}\n")
