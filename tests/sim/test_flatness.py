"""Series that leak and series that do not, made up."""

from __future__ import annotations

import math
import random

import pytest

from r2ccl.sim.flatness import VALUES_MIN, Allowance, judge

MIB = float(1 << 20)
MEMORY = Allowance(2 * MIB, 0.01, "")
COUNT = Allowance(2, 0.0, "")
SECONDS = 600
TIMES = [float(second) for second in range(SECONDS)]


def noise(seed: int, width: float) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0, width) for _ in TIMES]


def warm_up(level: float, rise: float) -> list[float]:
    """A process that starts, and whose caches fill."""
    return [level + rise * (1 - math.exp(-second / 40)) for second in TIMES]


def test_a_constant_is_flat():
    verdict = judge(TIMES, [26.0] * SECONDS, COUNT)
    assert verdict.is_flat
    assert (verdict.start, verdict.middle, verdict.end, verdict.growth) == (26, 26, 26, 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_process_that_warms_up_and_then_swings_is_flat(seed: int):
    series = [value + swing for value, swing in zip(warm_up(60 * MIB, 40 * MIB), noise(seed, 3 * MIB), strict=True)]
    assert judge(TIMES, series, MEMORY).is_flat


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_leak_under_large_swings_is_found(seed: int):
    """40 KiB a second: 12 MiB in the second half, under swings of 3 MiB."""
    swings = noise(seed, 3 * MIB)
    series = [v + s + 40 * 1024 * t for t, v, s in zip(TIMES, warm_up(60 * MIB, 40 * MIB), swings, strict=True)]
    verdict = judge(TIMES, series, MEMORY)
    assert not verdict.is_flat
    assert verdict.growth == pytest.approx(12 * MIB, rel=0.25)


def test_one_task_more_every_minute_is_found():
    assert not judge(TIMES, [7.0 + second // 60 for second in range(SECONDS)], COUNT).is_flat


def test_one_descriptor_more_for_ever_is_no_leak():
    assert judge(TIMES, [26.0 + (second > 450) for second in range(SECONDS)], COUNT).is_flat


def test_a_cache_that_is_emptied_when_it_is_full_is_flat():
    assert judge(TIMES, [100.0 + second * 7 % 300 for second in range(SECONDS)], COUNT).is_flat


def test_wild_points_do_not_hide_a_leak_and_are_none():
    rng = random.Random(1)
    wild = {rng.randrange(SECONDS) for _ in range(SECONDS // 20)}
    assert judge(TIMES, [50.0 + 900 * (second in wild) for second in range(SECONDS)], COUNT).is_flat
    leaking = [50.0 + second / 30 + 900 * (second in wild) for second in range(SECONDS)]
    assert not judge(TIMES, leaking, COUNT).is_flat


def test_what_grew_before_the_second_half_does_not_count():
    assert judge(TIMES, [float(min(second, SECONDS // 2)) for second in range(SECONDS)], COUNT).is_flat


def test_a_share_of_the_level_is_allowed():
    """Steps of 0.5 % of a large table, where the amount alone would be too little."""
    series = [10_000.0 + 50 * (second > 400) + second / 100 for second in range(SECONDS)]
    assert judge(TIMES, series, Allowance(2, 0.02, "")).is_flat
    assert not judge(TIMES, series, Allowance(2, 0.0, "")).is_flat


def test_what_shrinks_is_flat():
    assert judge(TIMES, [900.0 - second for second in range(SECONDS)], COUNT).is_flat


def test_readings_at_uneven_times_are_judged_by_time():
    """The same line, read more and more seldom, as by a process that is stopped now and then."""
    times = [second**1.5 for second in range(100)]
    verdict = judge(times, [5.0 + 0.01 * time for time in times], COUNT)
    assert verdict.growth == pytest.approx(0.01 * (times[-1] - times[50]), rel=0.01)
    assert not verdict.is_flat


def test_too_few_values_are_refused():
    with pytest.raises(ValueError, match="too few"):
        judge(TIMES[: VALUES_MIN - 1], TIMES[: VALUES_MIN - 1], COUNT)
    judge(TIMES[:VALUES_MIN], TIMES[:VALUES_MIN], COUNT)
