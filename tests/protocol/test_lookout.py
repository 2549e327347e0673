"""What a look is made of: answers without the smoothing, shares, ratios, and what accuses nobody."""

from __future__ import annotations

import dataclasses
import random

import pytest

from r2ccl.protocol.evidence import Look
from r2ccl.protocol.lookout import GLANCES_LEAST, PAUSE_S, SEGMENTS_LEAST, STREAM_ANSWERS, Lookout

MILLISECOND = 0.001
WEIGHT = 1 / 8


@dataclasses.dataclass
class Kernel:
    """A connection's account, smoothed as kernels do."""

    in_flight_bytes: int = 0
    limited: bool = True
    #: That of the handshake.
    rtt_s: float = 5 * MILLISECOND
    rtt_weight: float = WEIGHT
    answered_segments: int = 0
    sent_segments: int = 0
    resent_segments: int = 0
    acked_bytes: int = 0

    def answers(self, *answers_s: float) -> None:
        for answer_s in answers_s:
            self.rtt_s += WEIGHT * (answer_s - self.rtt_s)
            self.answered_segments += 1


class Watched:
    """A link that is glanced at, and its two connections."""

    def __init__(self) -> None:
        self.lookout = Lookout()
        self.control, self.bulk = Kernel(), Kernel()
        self.now = 0.0
        self.glance()

    def glance(self, after_s: float = 0.0, load: int = 0, pressed: bool = False) -> None:
        self.now += after_s
        accounts = dataclasses.replace(self.control), dataclasses.replace(self.bulk)
        self.lookout.glance(*accounts, load, pressed, self.now)

    def look(self, fair_share_bytes: float | None = None, errors: int | None = None) -> Look:
        return self.lookout.look(fair_share_bytes, None, errors, self.now)


def test_the_smoothing_of_the_kernel_is_undone_exactly_where_one_segment_was_answered() -> None:
    watched, rng = Watched(), random.Random(1)
    for _look in range(50):
        took_s = rng.lognormvariate(-7, 0.5)
        watched.control.answers(took_s)
        watched.glance(after_s=1.0)
        assert watched.look().rtt_s == pytest.approx(took_s)


def test_several_answers_of_equal_length_are_found_and_of_unequal_length_never_exaggerated() -> None:
    watched = Watched()
    watched.control.answers(MILLISECOND)
    watched.glance(after_s=1.0)
    watched.look()
    watched.control.answers(*[3 * MILLISECOND] * 5)
    watched.glance(after_s=1.0)
    assert watched.look().rtt_s == pytest.approx(3 * MILLISECOND)
    # The kernel took two of these together: it moved its estimate less often than it answered segments.
    watched.control.answers(9 * MILLISECOND)
    watched.control.answered_segments += 1
    watched.glance(after_s=1.0)
    rtt_s = watched.look().rtt_s
    assert rtt_s is not None
    assert 3 * MILLISECOND < rtt_s < 9 * MILLISECOND


def test_the_shortest_answer_of_a_look_counts_with_the_load_at_that_moment() -> None:
    watched = Watched()
    watched.bulk.rtt_weight = 1.0
    for load, took_s in ((1, 0.004), (2, 0.002), (0, 0.003)):
        watched.bulk.rtt_s = took_s
        watched.bulk.answered_segments += STREAM_ANSWERS
        watched.glance(after_s=0.01, load=load)
    look = watched.look()
    assert (look.rtt_s, look.load) == (0.002, 2)
    assert watched.lookout.latest_rtt_s == 0.002


def test_a_look_says_whether_the_nic_carried_much_for_others() -> None:
    watched = Watched()
    for among_others in (True, False):
        assert watched.lookout.look(None, None, None, 0.0, among_others) == Look(among_others=among_others)


def test_an_answer_that_a_kernel_may_have_kept_back_does_not_count() -> None:
    watched = Watched()
    watched.control.answers(MILLISECOND)
    watched.glance(after_s=PAUSE_S)
    assert watched.look().rtt_s == pytest.approx(MILLISECOND)
    for _beat in range(20):
        watched.control.answers(40 * MILLISECOND)
        watched.glance(after_s=0.01)
    assert watched.look().rtt_s is None
    # It is still what the next answer is reckoned from.
    watched.control.answers(MILLISECOND)
    watched.glance(after_s=PAUSE_S)
    assert watched.look().rtt_s == pytest.approx(MILLISECOND)


def test_a_look_without_an_answer_measures_nothing_and_the_latest_answer_stays_known() -> None:
    watched = Watched()
    watched.control.answers(MILLISECOND)
    watched.glance(after_s=1.0)
    watched.look()
    watched.glance(after_s=1.0)
    assert watched.look() == Look()
    assert watched.lookout.latest_rtt_s == pytest.approx(MILLISECOND)


def press(watched: Watched, glances: int, pressed: int, bytes_each: int = 1000) -> None:
    for number in range(glances):
        watched.bulk.acked_bytes += bytes_each
        watched.glance(after_s=0.01, pressed=number < pressed)


def test_throughput_is_what_the_far_kernel_got_per_second_beside_the_fair_share() -> None:
    watched = Watched()
    press(watched, glances=100, pressed=100)
    assert watched.lookout.carried_bytes == 100_000
    assert watched.lookout.is_pressed
    look = watched.look(fair_share_bytes=150_000)
    assert look.throughput == pytest.approx(100_000)
    assert look.fair_share == pytest.approx(150_000)
    assert watched.lookout.carried_bytes == 0


@pytest.mark.parametrize(("glances", "pressed"), [(100, 49), (GLANCES_LEAST - 2, GLANCES_LEAST - 2), (100, 0)])
def test_a_link_that_is_offered_little_is_not_asked_why_it_carried_little(glances: int, pressed: int) -> None:
    watched = Watched()
    press(watched, glances, pressed)
    assert not watched.lookout.is_pressed


def test_where_nobody_knows_the_fair_share_throughput_is_not_judged() -> None:
    watched = Watched()
    press(watched, glances=100, pressed=100)
    assert watched.look(fair_share_bytes=None).throughput is None


def test_the_resent_ratio_is_taken_of_enough_segments_however_many_looks_they_need() -> None:
    watched = Watched()
    step = SEGMENTS_LEAST // 4
    ratios = []
    for _look in range(8):
        watched.bulk.sent_segments += step - 10
        watched.control.sent_segments += 10
        watched.bulk.resent_segments += 5
        watched.glance(after_s=1.0)
        ratios.append(watched.look().resent_ratio)
    assert ratios == [None, None, None, 5 / step, None, None, None, 5 / step]


def test_a_window_closed_for_long_makes_the_look_accuse_nobody_and_a_moment_does_not() -> None:
    for closed, limited in ((5, False), (20, True)):
        watched = Watched()
        for number in range(100):
            watched.bulk.in_flight_bytes, watched.bulk.limited = 1000, number < closed
            watched.glance(after_s=0.01)
        assert watched.look().limited is limited
        watched.bulk.limited = False
        watched.glance(after_s=0.01)
        assert not watched.look().limited


def test_an_idle_connection_is_no_closed_window() -> None:
    watched = Watched()
    watched.glance(after_s=1.0)
    assert not watched.look().limited


def test_after_a_stall_of_our_own_what_was_gathered_is_void_and_counting_begins_anew() -> None:
    watched = Watched()
    press(watched, glances=100, pressed=100)
    watched.bulk.sent_segments += SEGMENTS_LEAST
    watched.bulk.resent_segments += SEGMENTS_LEAST
    watched.control.answers(MILLISECOND)
    watched.glance(after_s=1.0, pressed=True)
    watched.lookout.restart()
    assert watched.lookout.latest_rtt_s is not None
    watched.control.answers(5.0)
    watched.bulk.acked_bytes += 1 << 20
    watched.bulk.sent_segments += SEGMENTS_LEAST
    watched.glance(after_s=3.0)
    assert watched.look(fair_share_bytes=1.0) == Look()
    press(watched, glances=10, pressed=10)
    assert watched.look(fair_share_bytes=1.0).throughput == pytest.approx(100_000)


def test_what_comes_back_after_a_loss_has_accounts_that_begin_at_nought() -> None:
    watched = Watched()
    press(watched, glances=10, pressed=10)
    watched.control.answers(MILLISECOND)
    watched.glance(after_s=1.0)
    watched.lookout.forget()
    assert watched.lookout.latest_rtt_s is None
    watched.control, watched.bulk = Kernel(), Kernel()
    watched.glance(after_s=1.0)
    press(watched, glances=10, pressed=10, bytes_each=7)
    assert watched.lookout.carried_bytes == 70
    assert watched.look(errors=3) == Look(errors=3)
