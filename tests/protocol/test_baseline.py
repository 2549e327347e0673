"""What is usual, how it is learned, and when something is no longer so: false alarms counted, faults found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import NormalDist

import pytest

from r2ccl.protocol.baseline import (
    TAIL_FIRST,
    Baseline,
    Change,
    HoldDown,
    Strictness,
    Watch,
    confirmations_needed,
)

STRICT = Strictness()
SAMPLES_MIN = STRICT.samples_min
NORMAL = NormalDist()
#: Samples a minute of 16,384 NICs, each looked at every 5 s.
SAMPLES_A_MINUTE = 16_384 * 12


def baseline(values: Iterable[float], memory: int = 1024) -> Baseline:
    made = Baseline(SAMPLES_MIN, memory, 0.001)
    for value in values:
        made.learn(value)
    return made


def watch(levels: int = 1, strictness: Strictness = STRICT, presumed: float | None = None) -> Watch:
    return Watch(strictness, lambda _centre: 0.25, 0.01, levels, presumed)


def taught(levels: int = 1, strictness: Strictness = STRICT, seed: int = 1) -> Watch:
    """A watch that saw a thousand values around nought, a sigma of 0.1."""
    made, rng = watch(levels, strictness), random.Random(seed)
    for second in range(-1000, 0):
        assert made.look(rng.gauss(0, 0.1), float(second)) is None
    return made


def look_often(subject: Watch, value: float, start: int, looks: int) -> list[tuple[int, Change]]:
    """One look a second; what changed, and when."""
    changes = [(second, subject.look(value, float(second))) for second in range(start, start + looks)]
    return [(second, change) for second, change in changes if change is not None]


# What is usual.


def test_nothing_is_usual_before_there_are_enough_samples() -> None:
    assert not baseline([1.0] * (SAMPLES_MIN - 1)).is_ready
    assert baseline([1.0] * SAMPLES_MIN).is_ready


@pytest.mark.parametrize("seed", range(5))
def test_centre_and_sigma_of_normal_data_are_found(seed: int) -> None:
    rng = random.Random(seed)
    learned = baseline(rng.gauss(10, 2) for _ in range(5000))
    assert learned.centre == pytest.approx(10, abs=0.4)
    assert learned.sigma == pytest.approx(2, rel=0.2)


def test_one_sample_in_ten_that_lies_far_out_does_not_move_the_centre_and_hardly_the_sigma() -> None:
    rng = random.Random(1)
    learned = baseline(1e9 if rng.random() < 0.1 else rng.gauss(10, 2) for _ in range(5000))
    assert learned.centre == pytest.approx(10, abs=0.8)
    assert learned.sigma < 3


def test_samples_that_are_all_alike_are_their_own_centre_and_have_a_width_still() -> None:
    learned = baseline([0.5] * 500)
    assert learned.centre == 0.5
    assert learned.sigma == pytest.approx(0.001 / 1.349)


def test_a_better_regime_is_believed_within_a_hundred_samples() -> None:
    rng = random.Random(1)
    learned = baseline(rng.gauss(10, 0.2) for _ in range(5000))
    for _ in range(100):
        learned.learn(rng.gauss(8, 0.2))
    assert learned.centre == pytest.approx(8, abs=0.5)


def test_a_worse_regime_is_believed_slowly() -> None:
    rng = random.Random(1)
    learned = baseline(rng.gauss(10, 0.2) for _ in range(5000))
    for _ in range(100):
        learned.learn(rng.gauss(12, 0.2))
    assert learned.centre < 10.3


# Raised and cleared.


def test_what_stays_over_the_limit_is_raised_at_the_third_sample() -> None:
    assert look_often(taught(), 1.0, 0, 4) == [(2, Change.RAISED)]


def test_two_samples_over_the_limit_in_every_five_raise_nothing() -> None:
    subject = taught()
    for second in range(50):
        assert subject.look(1.0 if second % 5 < 2 else 0.0, float(second)) is None


def test_what_is_over_three_sigmas_and_below_the_floor_raises_nothing() -> None:
    subject, rng = watch(), random.Random(1)
    for second in range(1000):
        subject.look(rng.gauss(0, 0.01), float(second))
    assert look_often(subject, 0.2, 1000, 20) == []
    assert look_often(subject, 0.4, 1020, 5) != []


def test_nobody_is_accused_without_a_history_unless_something_is_presumed() -> None:
    assert look_often(watch(), 100.0, 0, 200) == []
    assert look_often(watch(presumed=0.0), 100.0, 0, 5) == [(3, Change.RAISED)]


def test_a_fault_is_not_learned_while_it_is_confirmed_and_while_it_stands() -> None:
    subject = taught()
    reference = subject.reference(0)
    assert reference is not None
    before = (reference.centre, reference.sigma, subject.tail)
    look_often(subject, 1.0, 0, 500)
    assert subject.reference(0) is reference
    assert reference.centre == pytest.approx(before[0], abs=0.002)
    assert subject.tail <= before[2]


def test_what_was_raised_is_cleared_after_the_hold_down() -> None:
    subject = taught()
    look_often(subject, 1.0, 0, 5)
    # Three clean samples outvote the last two of the fault.
    assert look_often(subject, 0.0, 5, 20) == [(7 + int(STRICT.hold_down_s), Change.CLEARED)]


def test_between_the_two_limits_nothing_is_raised_and_nothing_cleared() -> None:
    between = 0.24
    assert look_often(taught(), between, 0, 100) == []
    subject = taught()
    look_often(subject, 1.0, 0, 5)
    assert look_often(subject, between, 5, 100) == []


def test_the_hold_down_begins_anew_when_the_fault_is_back_and_one_outlier_does_not_do_that() -> None:
    subject = taught()
    look_often(subject, 1.0, 0, 5)
    assert look_often(subject, 0.0, 5, 8) == []
    assert look_often(subject, 1.0, 13, 5) == []
    assert look_often(subject, 0.0, 18, 6) == []
    assert subject.look(1.0, 24.0) is None
    (cleared_at, change), *rest = look_often(subject, 0.0, 25, 10)
    assert (change, rest) == (Change.CLEARED, [])
    assert cleared_at == 20 + STRICT.hold_down_s


def test_the_hold_down_doubles_when_it_is_raised_again_soon_up_to_its_limit_and_is_forgiven_later() -> None:
    hold = HoldDown(10.0, 35.0, 6.0)
    periods, now = [], 0.0
    for _ in range(4):
        hold.raised(now)
        periods.append(hold.period_s)
        hold.cleared(now + hold.period_s)
        now += hold.period_s + 1.0
    assert periods == [10.0, 20.0, 35.0, 35.0]
    hold.raised(now + 6 * 35.0)
    assert hold.period_s == 10.0


def test_after_long_without_a_quiet_time_the_new_state_is_learned_as_usual() -> None:
    subject = taught()
    assert look_often(subject, 1.0, 0, 1900) == [(2, Change.RAISED), (2 + int(STRICT.relearn_s), Change.CLEARED)]
    assert look_often(subject, 3.0, 1900, 10) != []


def test_our_own_stall_voids_what_was_gathered_and_the_quiet_time_too() -> None:
    subject = taught()
    look_often(subject, 1.0, 0, 2)
    subject.void()
    assert look_often(subject, 1.0, 2, 2) == []
    assert look_often(subject, 1.0, 4, 1) == [(4, Change.RAISED)]
    look_often(subject, 0.0, 5, 9)
    subject.void()
    assert look_often(subject, 0.0, 14, 20) == [(14 + int(STRICT.hold_down_s), Change.CLEARED)]


# Load.


def test_each_level_of_load_has_its_own_usual() -> None:
    subject = watch(levels=3)
    for second in range(300):
        subject.look(float(second % 3), float(second), level=second % 3)
    assert [subject.reference(level) is not None for level in range(3)] == [True] * 3
    for second in range(300, 600):
        assert subject.look(float(second % 3), float(second), level=second % 3) is None
    changes = [subject.look(2.0, 600.0 + second, level=0) for second in range(5)]
    assert Change.RAISED in changes


def test_an_idle_path_without_a_history_of_its_own_is_compared_with_a_fuller_one_and_never_the_other_way_round() -> (
    None
):
    fuller = watch(levels=3)
    for second in range(100):
        fuller.look(1.0, float(second), level=2)
    changes = [fuller.look(3.0, 100.0 + second, level=0) for second in range(5)]
    assert Change.RAISED in changes
    idle = watch(levels=3)
    for second in range(100):
        idle.look(1.0, float(second), level=0)
    assert all(idle.look(3.0, 100.0 + second, level=2) is None for second in range(20))


def test_other_levels_learn_nothing_while_a_fault_stands() -> None:
    subject = taught(levels=2)
    look_often(subject, 1.0, 0, 5)
    for second in range(5, 105):
        subject.look(1.0, float(second), level=1)
    assert subject.reference(1) is None


# False alarms.


def test_more_samples_must_agree_on_a_path_whose_healthy_samples_are_often_over_the_limit() -> None:
    needed = [confirmations_needed(STRICT, tail) for tail in (0.0, 0.00135, 0.01, 0.02, 0.5)]
    assert needed == [3, 3, 4, 5, 5]
    assert confirmations_needed(STRICT, TAIL_FIRST) == 4


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of a healthy path, and how probable one above a value is."""

    draw: Callable[[random.Random], float]
    tail: Callable[[float], float]


def normal(spread: float) -> Latencies:
    return Latencies(lambda rng: max(0.01, rng.gauss(1, spread)), lambda value: 1 - NORMAL.cdf((value - 1) / spread))


def lognormal(sigma: float) -> Latencies:
    return Latencies(lambda rng: math.exp(rng.gauss(0, sigma)), lambda value: 1 - NORMAL.cdf(math.log(value) / sigma))


def spiky(sigma: float, share: float, factor: float) -> Latencies:
    """Lognormal, and a share of the samples is so many times longer: a queue somewhere, now and then."""
    core = lognormal(sigma)
    return Latencies(
        lambda rng: core.draw(rng) * (factor if rng.random() < share else 1),
        lambda value: (1 - share) * core.tail(value) + share * core.tail(value / factor),
    )


def pareto(power: float) -> Latencies:
    return Latencies(lambda rng: rng.paretovariate(power), lambda value: min(1.0, value**-power))


@pytest.mark.parametrize(
    ("latencies", "a_minute_at_most"),
    [
        pytest.param(normal(0.1), 0.01, id="normal, 10 %"),
        pytest.param(normal(0.2), 0.01, id="normal, 20 %"),
        pytest.param(lognormal(0.2), 0.05, id="lognormal, 0.2"),
        pytest.param(lognormal(0.5), 0.05, id="lognormal, 0.5"),
        pytest.param(lognormal(1.0), 0.05, id="lognormal, 1.0"),
        pytest.param(spiky(0.1, 0.02, 10), 0.2, id="2 % are ten times longer"),
        pytest.param(pareto(3), 0.5, id="pareto, 3"),
    ],
)
def test_healthy_latencies_of_a_large_job_raise_far_less_than_one_alarm_a_minute(
    latencies: Latencies, a_minute_at_most: float
) -> None:
    """A few paths are simulated with their limits as they learn them. How probable an alarm is at each sample then
    follows from the distribution, so that what happens once in a hundred million samples need not be waited for."""
    rng, probabilities, raised = random.Random(7), [], 0
    for _path in range(12):
        subject = watch()
        for second in range(0, 5 * 1000, 5):
            reference = subject.reference(0)
            if reference is not None and subject.raised_since_s is None:
                over = latencies.tail(math.exp(subject.limit(reference)))
                probabilities.append(_at_least(subject.needed, STRICT.window, over))
            raised += subject.look(math.log(latencies.draw(rng)), float(second)) is Change.RAISED
    assert raised == 0
    assert SAMPLES_A_MINUTE * sum(probabilities) / len(probabilities) < a_minute_at_most


def _at_least(needed: int, window: int, probability: float) -> float:
    return sum(
        math.comb(window, hits) * probability**hits * (1 - probability) ** (window - hits)
        for hits in range(needed, window + 1)
    )


@pytest.mark.parametrize(
    ("latencies", "share_found"),
    [
        pytest.param(normal(0.1), 1.0, id="normal, 10 %"),
        pytest.param(lognormal(0.1), 1.0, id="lognormal, 0.1"),
        pytest.param(spiky(0.1, 0.02, 10), 1.0, id="2 % are ten times longer"),
        pytest.param(lognormal(0.2), 0.4, id="lognormal, 0.2"),
    ],
)
def test_a_latency_that_doubles_is_found_within_five_samples(latencies: Latencies, share_found: float) -> None:
    rng, found = random.Random(3), 0
    paths = 20
    for _path in range(paths):
        subject = watch()
        for second in range(500):
            assert subject.look(math.log(latencies.draw(rng)), float(second)) is None
        found += any(
            subject.look(math.log(2 * latencies.draw(rng)), 500.0 + second) is Change.RAISED for second in range(5)
        )
    assert found >= share_found * paths
