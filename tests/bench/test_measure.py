"""Timing statistics against closed forms."""

import itertools
import math

import pytest

from qkv.bench.measure import Timing, fit_exponent, quantile, random_orders, speed_ratio, time_interleaved


@pytest.mark.parametrize("power", [0.5, 1.0, 1.7, 2.0, 3.0])
def test_fit_exponent_finds_a_power_law(power: float):
    sizes = [64, 128, 512, 4096]
    assert math.isclose(fit_exponent(sizes, [3e-7 * size**power for size in sizes]) or 0, power, rel_tol=1e-9)


def test_fit_exponent_ignores_costs_of_zero():
    assert fit_exponent([1, 2, 4], [0, 0, 5]) is None
    assert math.isclose(fit_exponent([1, 2, 4, 8], [0, 2, 4, 8]) or 0, 1.0)


def test_fit_exponent_is_not_moved_by_balanced_noise():
    sizes = [1, 1, 2, 2, 4, 4]
    costs = [size**2 * noise for size, noise in zip(sizes, itertools.cycle((1.1, 1 / 1.1)), strict=False)]
    assert math.isclose(fit_exponent(sizes, costs) or 0, 2.0, rel_tol=1e-9)


def test_timing_median_and_quartiles():
    timing = Timing("x", (5.0, 1.0, 2.0, 4.0, 3.0))
    assert (timing.median, timing.quartiles) == (3.0, (2.0, 4.0))
    assert quantile([10.0, 20.0], 0.25) == 12.5
    assert quantile([7.0], 0.975) == 7.0


def test_every_competitor_runs_once_a_round_in_changing_order():
    found = random_orders(["a", "b", "c", "d"], 40)
    assert all(sorted(order) == ["a", "b", "c", "d"] for order in found)
    assert {order[0] for order in found} == {"a", "b", "c", "d"}
    assert found == random_orders(["a", "b", "c", "d"], 40) != random_orders(["a", "b", "c", "d"], 40, seed=1)


def test_calls_are_timed_in_turns_after_warming_up():
    called: list[str] = []
    ticks = itertools.count()
    calls = {"a": lambda: called.append("a"), "b": lambda: called.append("b")}
    found = time_interleaved(calls, 5, warmup=2, clock=lambda: float(next(ticks)))
    assert called[:4] == ["a", "a", "b", "b"]
    assert [sorted(called[i : i + 2]) for i in range(4, 14, 2)] == [["a", "b"]] * 5
    assert found["a"].seconds == (1.0,) * 5


def test_a_ratio_says_how_many_times_as_fast_ours_is():
    ours, theirs = Timing("ours", (1.0, 2.0, 1.0)), Timing("theirs", (3.0, 6.0, 3.0))
    ratio = speed_ratio(ours, theirs)
    assert ratio.value == 3.0 and ratio.low <= 3.0 <= ratio.high
    # a slow round slows both: drawn together, no interval is left
    steady = speed_ratio(Timing("ours", (1.0,) * 9), Timing("theirs", (1.5,) * 9))
    assert (steady.value, steady.low, steady.high) == (1.5, 1.5, 1.5)


def test_the_interval_widens_with_the_spread():
    theirs = Timing("theirs", (2.0,) * 9)
    narrow = speed_ratio(Timing("ours", tuple(1 + 0.01 * i for i in range(9))), theirs)
    wide = speed_ratio(Timing("ours", tuple(1 + 0.1 * i for i in range(9))), theirs)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low) > 0


def test_speed_ratio_and_time_interleaved_reject_wrong_rounds():
    with pytest.raises(ValueError, match="same rounds"):
        speed_ratio(Timing("a", (1.0,)), Timing("b", (1.0, 2.0)))
    with pytest.raises(ValueError, match="at least 1"):
        time_interleaved({"a": int}, 0)
