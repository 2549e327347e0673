"""How fast a lane is thought to be, from what is acknowledged and when."""

from __future__ import annotations

import random

import pytest

from r2ccl.protocol.rate import ALONE_S_MIN, GAP_S, MEMORY_S, SLOW_CHUNKS, Rate

CHUNK = 256 * 1024


def busy(subject: Rate, bytes_s: float, seconds: float, now: float = 0.0) -> float:
    """Chunk after chunk on a wire of this speed, and always one more waiting. Returns when that ended."""
    until = now + seconds
    while now < until:
        subject.began(now)
        took_s = CHUNK / bytes_s
        now += took_s
        subject.acknowledged(CHUNK, 3 * took_s, now, is_busy=True, was_timed=True)
    return now


def alone(subject: Rate, took_s: float, now: float, was_timed: bool = True) -> bool:
    subject.began(now)
    return subject.acknowledged(CHUNK, took_s, now + took_s, is_busy=False, was_timed=was_timed)


def test_the_first_measurement_replaces_what_the_nic_said() -> None:
    subject = Rate(1.25e9)
    assert not subject.is_measured
    busy(subject, 6e7, 0.02)
    assert subject.is_measured
    assert subject.bytes_s == pytest.approx(6e7)


@pytest.mark.parametrize("bytes_s", [6.25e6, 6.25e7, 2e9])
def test_a_tenth_of_the_speed_is_believed_within_half_a_second_or_a_dozen_chunks(bytes_s: float) -> None:
    subject = Rate(bytes_s)
    now = busy(subject, bytes_s, 1.0)
    assert subject.bytes_s == pytest.approx(bytes_s)
    busy(subject, bytes_s / 10, max(0.5, 12 * CHUNK / (bytes_s / 10)), now)
    assert subject.bytes_s < 0.12 * bytes_s


@pytest.mark.parametrize("bytes_s", [6.25e6, 6.25e7, 2e9])
def test_and_so_is_its_return(bytes_s: float) -> None:
    subject = Rate(bytes_s / 10)
    now = busy(subject, bytes_s / 10, 1.0)
    busy(subject, bytes_s, max(0.5, 40 * CHUNK / bytes_s), now)
    assert subject.bytes_s > 0.9 * bytes_s


def test_noise_of_five_percent_hardly_shows() -> None:
    subject, rng, now = Rate(1e8), random.Random(1), 0.0
    now = busy(subject, 1e8, 1.0, now)
    seen = []
    for _ in range(2000):
        now = busy(subject, 1e8 * rng.uniform(0.95, 1.05), CHUNK / 1e8 / 2, now)
        seen.append(subject.bytes_s)
    assert 0.97e8 < min(seen) < max(seen) < 1.03e8


def test_a_late_wakeup_of_twenty_milliseconds_costs_less_than_a_fifth() -> None:
    subject = Rate(1e9)
    now = busy(subject, 1e9, 1.0)
    subject.acknowledged(CHUNK, 0.02, now + 0.02, is_busy=True, was_timed=True)
    assert subject.bytes_s > 0.8e9


def test_one_sample_however_long_costs_no_more_than_a_quarter() -> None:
    subject = Rate(1e9)
    now = busy(subject, 1e9, 1.0)
    subject.acknowledged(CHUNK, 5.0, now + 5.0, is_busy=True, was_timed=True)
    assert 0.75e9 <= subject.bytes_s < 0.76e9


def test_what_waits_for_a_process_is_no_measurement() -> None:
    subject = Rate(1e9)
    now = busy(subject, 1e9, 1.0)
    subject.began(now)
    subject.void()
    for _ in range(3):
        assert not subject.acknowledged(CHUNK, 5.0, now + 5.0, is_busy=True, was_timed=True)
    assert subject.bytes_s == pytest.approx(1e9)


def test_time_in_which_the_lane_was_empty_does_not_count() -> None:
    subject = Rate(1e9)
    now = busy(subject, 1e9, 1.0)
    for _ in range(1000):
        now = busy(subject, 1e9, 3 * CHUNK / 1e9, now + 2 * GAP_S)
    assert subject.bytes_s == pytest.approx(1e9)


def test_an_acknowledgement_that_nobody_asked_for_says_nothing_however_late() -> None:
    subject = Rate(1e9)
    for step in range(10):
        assert not alone(subject, 0.1, float(step), was_timed=False)
    assert subject.bytes_s == 1e9


def test_a_chunk_that_took_long_by_itself_is_a_sample() -> None:
    subject = Rate(1e7)
    now = busy(subject, 1e7, 1.0)
    assert alone(subject, 1.5 * CHUNK / 1e7, now + 1.0)
    assert 0.9e7 < subject.bytes_s < 1e7


def test_chunks_that_go_alone_and_twice_as_slowly_as_expected_are_believed_when_they_are_several_in_a_row() -> None:
    subject = Rate(1e9)
    now = busy(subject, 1e9, 1.0)
    took_s = 8 * CHUNK / 1e9
    assert took_s < ALONE_S_MIN
    for step in range(SLOW_CHUNKS - 1):
        assert not alone(subject, took_s, now + 1 + step)
    assert not alone(subject, 1.2 * CHUNK / 1e9, now + 9)
    for step in range(SLOW_CHUNKS - 1):
        assert not alone(subject, took_s, now + 10 + step)
    assert alone(subject, took_s, now + 20)
    assert subject.bytes_s == pytest.approx((1e9 + 1e9 / 8) / 2)


def test_a_chunk_that_came_early_proves_the_lane_faster_and_at_most_twice_as_fast() -> None:
    subject = Rate(1e8)
    assert alone(subject, CHUNK / 1.5e8, 0.0)
    assert subject.bytes_s == pytest.approx(1.5e8)
    assert alone(subject, CHUNK / 1e10, 1.0)
    assert subject.bytes_s == pytest.approx(3e8)
    assert not alone(subject, CHUNK / 3.1e8, 2.0)
    assert subject.bytes_s == pytest.approx(3e8)


def test_the_estimate_forgets_what_was_measured_long_ago() -> None:
    subject = Rate(1e8)
    now = busy(subject, 1e8, 10.0)
    before = subject.bytes_s
    busy(subject, 0.7e8, MEMORY_S, now)
    half_way = (before - subject.bytes_s) / 0.3e8
    assert 0.5 < half_way < 0.75


def test_where_acknowledgements_come_in_bursts_the_mean_of_samples_tells() -> None:
    subject, now = Rate(1e9), 0.0
    subject.began(now)
    for _ in range(200):
        now += 0.008
        subject.acknowledged(CHUNK, 0.01, now, is_busy=True, was_timed=True)
        for _ in range(30):
            now += 1e-6
            subject.acknowledged(CHUNK, 0.01, now, is_busy=True, was_timed=True)
    assert subject.bytes_s == pytest.approx(31 * CHUNK / 0.008, rel=0.1)
    assert subject.burst_bytes_s > 20 * subject.bytes_s
    busy(subject, 1e8, 0.1, now)
    assert subject.burst_bytes_s < 3e8
