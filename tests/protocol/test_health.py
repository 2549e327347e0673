"""What is silence and what is not, and how a process notices that it was away itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from r2ccl.protocol.health import Health, LinkHealth, OwnStall

SILENCE_S, BULK_SILENCE_S = 0.060, 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """What one connection says at one moment."""

    in_flight_bytes: int
    silence_s: float
    limited: bool = False
    probing: bool = False


IDLE = Look(0, 100.0, limited=True)


def judge() -> LinkHealth:
    return LinkHealth(SILENCE_S, BULK_SILENCE_S)


def watch(looks: list[tuple[float, Look, Look]]) -> list[Health]:
    judging = judge()
    return [judging.judge(control, bulk, now) for now, control, bulk in looks]


def test_bytes_in_flight_and_no_sign_is_late_and_then_silent() -> None:
    looks = [(now / 100, IDLE, Look(1, 10.0)) for now in range(8)]
    green, yellow, red = [Health.GREEN] * 3, [Health.YELLOW] * 3, [Health.RED] * 2
    assert watch(looks) == green + yellow + red


def test_silence_begins_when_bytes_are_first_seen_in_flight_not_when_something_was_last_heard() -> None:
    assert watch([(5.0, IDLE, Look(1, 3600.0))]) == [Health.GREEN]


def test_an_idle_link_is_never_silent() -> None:
    assert watch([(float(now), IDLE, IDLE) for now in range(100)]) == [Health.GREEN] * 100


def test_a_closed_window_is_never_silence() -> None:
    looks = [(float(now), IDLE, Look(1 << 20, float(now), limited=True)) for now in range(100)]
    assert watch(looks) == [Health.GREEN] * 100


def test_a_closed_window_is_silence_when_nobody_answers_whether_it_is_open_again() -> None:
    asked = Look(0, 3600.0, limited=True, probing=True)
    assert watch([(now / 100, IDLE, asked) for now in range(7)])[-1] is Health.RED
    assert watch([(now / 100, asked, IDLE) for now in range(7)])[-1] is Health.RED
    answered = [Look(0, now / 100, limited=True, probing=now % 5 == 0) for now in range(100)]
    assert watch([(now / 100, look, look) for now, look in enumerate(answered)]) == [Health.GREEN] * 100


def test_a_sign_on_either_connection_is_a_sign_of_the_link() -> None:
    looks = [(now / 100, Look(1, 0.005), Look(1, now / 100)) for now in range(40)]
    assert watch(looks) == [Health.GREEN] * 40
    looks = [(now / 100, Look(1, now / 100), Look(1, 0.005)) for now in range(40)]
    assert watch(looks) == [Health.GREEN] * 40


def test_control_alone_can_be_silent() -> None:
    assert watch([(0.0, Look(64, 1.0), IDLE), (0.06, Look(64, 1.0), IDLE)])[-1] is Health.RED


def test_bytes_that_were_not_in_flight_at_the_last_look_begin_anew() -> None:
    looks = [(0.0, IDLE, Look(1, 9.0)), (0.05, IDLE, IDLE), (0.06, IDLE, Look(1, 9.0)), (0.11, IDLE, Look(1, 9.0))]
    assert watch(looks) == [Health.GREEN, Health.GREEN, Health.GREEN, Health.YELLOW]


def test_bulk_alone_is_judged_under_green_beats_with_more_patience() -> None:
    looks = [(now / 10, Look(1, 0.001), Look(1, now / 10)) for now in range(7)]
    assert watch(looks) == [Health.GREEN] * 5 + [Health.RED] * 2


def test_bulk_that_is_acknowledged_now_and_then_is_not_silent() -> None:
    looks = [(now / 10, Look(1, 0.001), Look(1, 0.4)) for now in range(20)]
    assert watch(looks) == [Health.GREEN] * 20


@pytest.mark.parametrize("pause", [IDLE, Look(9, 0.3, limited=True)])
def test_bulk_that_paused_begins_anew(pause: Look) -> None:
    beats = Look(1, 0.001)
    looks = [(0.0, beats, Look(1, 9.0)), (0.4, beats, pause), (0.45, beats, Look(1, 9.0)), (0.9, beats, Look(1, 9.0))]
    assert watch(looks) == [Health.GREEN] * 4


def test_void_evidence_begins_anew() -> None:
    judging = judge()
    judging.judge(IDLE, Look(1, 9.0), 0.0)
    assert judging.judge(IDLE, Look(1, 9.0), 0.06) is Health.RED
    judging.void()
    assert judging.judge(IDLE, Look(1, 9.0), 0.07) is Health.GREEN
    assert judging.judge(IDLE, Look(1, 9.0), 0.13) is Health.RED


def test_a_tick_that_comes_much_too_late_says_that_we_were_away() -> None:
    stall = OwnStall(0.010)
    stall.expect(1.010)
    assert not stall.tick(1.029)
    assert stall.total_s == 0.0
    stall.expect(1.039)
    assert stall.tick(4.039)
    assert stall.total_s == pytest.approx(3.0)


def test_absences_add_up_and_one_is_counted_once() -> None:
    stall = OwnStall(0.010)
    for begin in (0.0, 10.0):
        stall.expect(begin)
        assert stall.tick(begin + 2.0)
        assert not stall.tick(begin + 5.0)
    assert stall.total_s == pytest.approx(4.0)


def test_an_absence_counts_before_the_tick_that_notices_it_and_only_once() -> None:
    stall = OwnStall(0.010)
    stall.expect(1.0)
    assert stall.away_s(1.019) == 0.0
    assert stall.away_s(3.0) == pytest.approx(2.0)
    assert stall.tick(3.0)
    assert stall.away_s(3.0) == stall.total_s == pytest.approx(2.0)


def test_where_no_tick_is_due_none_is_late() -> None:
    stall = OwnStall(0.010)
    assert not stall.tick(100.0)
    stall.expect(200.0)
    assert not stall.tick(150.0)
    assert stall.total_s == 0.0
