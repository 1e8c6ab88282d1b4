"""Timing that can be compared: everything in one run, in turns, in shuffled order; medians with their spread."""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Call = Callable[[], object]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Timing:
    """How long one competitor took, round by round, in seconds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The times that a quarter and three quarters of the rounds stayed below."""
        return quantile(self.seconds, 0.25), quantile(self.seconds, 0.75)


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one competitor was as another, with a 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"


def orders(names: Sequence[str], rounds: int, seed: int = 0) -> list[list[str]]:
    """Who comes when: each once a round, in an order drawn anew for each round."""
    chance = random.Random(seed)
    return [chance.sample(list(names), len(names)) for _ in range(rounds)]


def interleaved(
    calls: Mapping[str, Call], rounds: int, *, warm: int = 1, seed: int = 0, clock: Callable[[], float] | None = None
) -> dict[str, Timing]:
    """Time every call once a round, so that what else the machine does falls on all alike.

    warm: calls of each before the first that counts.
    """
    if rounds < 1:
        raise ValueError(f"there is at least 1 round; got {rounds}")
    now = time.perf_counter if clock is None else clock
    for call in calls.values():
        for _ in range(warm):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for order in orders(list(calls), rounds, seed):
        for name in order:
            start = now()
            calls[name]()
            seconds[name].append(now() - start)
    return {name: Timing(name, tuple(times)) for name, times in seconds.items()}


def speed_ratio(ours: Timing, theirs: Timing, *, draws: int = 1000, seed: int = 0) -> Ratio:
    """Their median time over ours: above 1, ours is the faster.

    The interval is a bootstrap over rounds: both are drawn from the same rounds, since what slowed one round
    down slowed both down.
    """
    if len(ours.seconds) != len(theirs.seconds):
        raise ValueError(f"both ran in the same rounds; got {len(ours.seconds)} and {len(theirs.seconds)}")
    chance, rounds = random.Random(seed), range(len(ours.seconds))
    ratios = []
    for _ in range(draws):
        drawn = chance.choices(rounds, k=len(rounds))
        ratios.append(
            statistics.median(theirs.seconds[i] for i in drawn) / statistics.median(ours.seconds[i] for i in drawn)
        )
    return Ratio(theirs.median / ours.median, quantile(ratios, 0.025), quantile(ratios, 0.975))


def quantile(values: Sequence[int | float], share: float) -> float:
    """The value that this share of the values stays below, between neighbours by straight line.

    >>> quantile([4.0, 1.0, 2.0, 3.0, 5.0], 0.25)
    2.0
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def fitted_exponent(sizes: Sequence[int | float], costs: Sequence[int | float]) -> float | None:
    """The power p of cost ≈ a·size^p, by least squares on logarithms; None if fewer than two costs are above 0.

    >>> round(fitted_exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    points = [(math.log(size), math.log(cost)) for size, cost in zip(sizes, costs, strict=True) if cost > 0]
    if len({x for x, _ in points}) < 2:
        return None
    slope, _ = statistics.linear_regression(*zip(*points, strict=True))
    return slope
