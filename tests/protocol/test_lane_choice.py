"""Which lane the next chunk goes to, and which chunk a slow lane takes out of turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest

from r2ccl.protocol.lane_choice import ALIKE, LOOK_AHEAD_MAX, even_out, pick_lane, take_next
from r2ccl.protocol.lanes import Lane, Parcel, Probe

CHUNK = 256 * 1024
BANDWIDTH = 1e9


@dataclass(slots=True)
class FakeLink:
    """As much of a link as lanes look at."""

    is_up: bool = True


def lane(index: int = 0, bandwidth: float = BANDWIDTH) -> Lane:
    made = Lane(index, 1, CHUNK, bandwidth)
    made.link = FakeLink()
    return made


def parcel(chunk: int = 0, size: int = CHUNK) -> Parcel:
    return Parcel(1, 0, 0, 1, chunk, 0, bytes(size))


def queue(chunks: int) -> deque[Parcel]:
    return deque(parcel(chunk) for chunk in range(chunks))


def taken(lanes: list[Lane], waiting: deque[Parcel]) -> int | None:
    """The place of the chunk that the first lane of a tenth of the speed or less takes out of the queue, if it does."""
    before = list(waiting)
    took = take_next(lanes, waiting)
    if took is None:
        return None
    slow, chunk = took
    assert slow.bandwidth <= BANDWIDTH / 10
    assert chunk not in waiting
    return before.index(chunk)


def fill(subject: Lane) -> None:
    while subject.has_room(CHUNK):
        subject.put(parcel(), 0.0)


def measure(subject: Lane, bytes_s: float) -> None:
    """As if it had carried for long."""
    now = 0.0
    for chunk in range(200):
        sent = parcel(chunk)
        subject.put(sent, now)
        now += CHUNK / bytes_s
        subject.settle(sent, now, more_waits=True)
    assert subject.rate.bytes_s == pytest.approx(bytes_s, rel=0.02)


def test_the_next_chunk_goes_where_it_is_expected_to_be_done_first() -> None:
    slow, fast = lane(0, 1e8), lane(1, 1e9)
    assert pick_lane([slow, fast], CHUNK) is fast
    fast.window_bytes = 100 * CHUNK
    for chunk in range(8):
        fast.put(parcel(chunk), 0.0)
    assert pick_lane([slow, fast], CHUNK) is fast
    fast.put(parcel(), 0.0)
    fast.put(parcel(), 0.0)
    assert pick_lane([slow, fast], CHUNK) is slow


def test_the_next_chunk_waits_for_a_full_lane_that_is_done_with_it_before_an_empty_slow_one() -> None:
    slow, fast = lane(0, 1e8), lane(1, 1e9)
    fill(fast)
    assert pick_lane([slow, fast], CHUNK) is None
    assert pick_lane([slow], CHUNK) is slow
    faster = lane(2, 2.1e8)
    assert pick_lane([faster, fast], CHUNK) is faster


def test_no_lane_is_idle_while_work_waits_if_all_are_about_as_fast() -> None:
    for other_bandwidth in (0.5 * BANDWIDTH, 0.9 * BANDWIDTH, BANDWIDTH, 1.1 * BANDWIDTH, 2 * BANDWIDTH):
        one, other = lane(0), lane(1, other_bandwidth)
        fill(other)
        assert pick_lane([one, other], CHUNK) is one


def test_a_slow_lane_takes_the_first_chunk_that_the_fast_one_would_not_have_done_by_then() -> None:
    slow, fast = lane(0, 1e8), lane(1, 1e9)
    fast.window_bytes = 2 * CHUNK
    fill(fast)
    # In the time of one chunk on the slow lane the fast one does ten: the two that it has, and the first eight.
    assert taken([slow, fast], queue(8)) == 7
    assert taken([slow, fast], queue(100)) == 7
    assert taken([slow, fast], queue(7)) is None


def test_several_fast_lanes_are_reckoned_with_together() -> None:
    slow, one, other = lane(0, 1e8), lane(1, 1e9), lane(2, 1e9)
    one.window_bytes = other.window_bytes = 2 * CHUNK
    fill(one)
    fill(other)
    assert taken([slow, one, other], queue(100)) == 20 - 4 - 1
    other.link.is_up = False
    assert taken([slow, one, other], queue(100)) == 7
    other.link = None
    assert taken([slow, one, other], queue(100)) == 7
    other.link = FakeLink()
    other.is_diverted = True
    assert taken([slow, one, other], queue(100)) == 7


def test_what_a_slow_lane_has_already_pushes_its_next_chunk_back() -> None:
    slow, fast = lane(0, 1e8), lane(1, 1e9)
    slow.put(parcel(), 0.0)
    fast.window_bytes = 2 * CHUNK
    fill(fast)
    assert taken([slow, fast], queue(100)) == 17


def test_each_chunk_is_judged_by_its_own_size() -> None:
    slow, fast = lane(0, 1e8), lane(1, 1e9)
    fast.window_bytes = 2 * CHUNK
    fill(fast)
    waiting = queue(3)
    waiting[0] = parcel(0, CHUNK // 2)
    assert taken([slow, fast], waiting) is None
    waiting[2] = parcel(2, CHUNK // 16)
    assert taken([slow, fast], waiting) == 2


def test_chunks_that_nobody_wants_any_more_neither_wait_nor_are_taken() -> None:
    slow, fast = lane(0, 1e8), lane(1, 1e9)
    fast.window_bytes = 2 * CHUNK
    fill(fast)
    waiting = queue(100)
    for index in (0, 3, 7):
        waiting[index].is_settled = True
    assert taken([slow, fast], waiting) == 10


def test_a_queue_of_which_nothing_is_wanted_any_more_is_empty() -> None:
    waiting = queue(3)
    for chunk in waiting:
        chunk.is_settled = True
    assert take_next([lane()], waiting) is None
    assert not waiting


def test_the_head_goes_first_where_a_lane_is_done_with_it_soonest() -> None:
    waiting, one = queue(3), lane()
    head = waiting[0]
    assert take_next([one], waiting) == (one, head)
    assert len(waiting) == 2


def test_a_probe_is_not_wasted_on_what_nobody_wants() -> None:
    slow, fast = lane(0, 1e3), lane(1, 1e9)
    fill(fast)
    slow.probe_due = Probe.DUE
    waiting = queue(4)
    waiting[3].is_settled = True
    assert taken([fast, slow], waiting) == 2
    waiting[1].is_settled = waiting[2].is_settled = True
    assert taken([fast, slow], waiting) is None


def test_a_lane_that_is_very_slow_takes_nothing_and_nobody_looks_far_for_it() -> None:
    slow, fast = lane(0, BANDWIDTH / (LOOK_AHEAD_MAX + 1)), lane(1)
    fast.window_bytes = 2 * CHUNK
    fill(fast)
    assert taken([slow, fast], queue(3 * LOOK_AHEAD_MAX)) is None


def test_lanes_that_are_full_diverted_or_down_take_nothing_out_of_turn() -> None:
    slow, fast = lane(0, 1e8), lane(1, 1e9)
    fast.window_bytes = 2 * CHUNK
    fill(fast)
    slow.is_diverted = True
    assert taken([slow, fast], queue(100)) is None
    slow.is_diverted, slow.link.is_up = False, False
    assert taken([slow, fast], queue(100)) is None
    slow.link.is_up = True
    fill(slow)
    assert taken([slow, fast], queue(100)) is None


def test_a_lane_that_is_due_to_be_probed_gets_the_chunk_that_is_waited_for_last() -> None:
    slow, fast = lane(0, 1e3), lane(1, 1e9)
    fill(fast)
    slow.probe_due = Probe.DUE
    assert pick_lane([fast, slow], CHUNK) is None
    assert taken([fast, slow], queue(3)) == 2
    assert taken([fast, slow], queue(3 * LOOK_AHEAD_MAX)) == LOOK_AHEAD_MAX - 1
    assert taken([fast, slow], queue(1)) is None
    slow.put(parcel(), 0.0)
    assert slow.probe_due is Probe.NONE


def test_a_lane_that_is_overdue_gets_the_next_chunk_whatever_its_estimate_says() -> None:
    slow, fast = lane(0, 1e3), lane(1, 1e9)
    slow.probe_due = Probe.OVERDUE
    assert pick_lane([fast, slow], CHUNK) is slow
    slow.put(parcel(), 0.0)
    assert pick_lane([fast, slow], CHUNK) is fast
    slow.probe_due = Probe.OVERDUE
    assert pick_lane([fast, slow], CHUNK) is fast
    slow.take_back()
    slow.link.is_up = False
    assert pick_lane([fast, slow], CHUNK) is fast


def test_of_equal_lanes_the_first_is_taken() -> None:
    one, other = lane(0), lane(1)
    assert pick_lane([one, other], CHUNK) is one


def test_lanes_without_a_link_or_whose_link_just_went_down_are_passed_over() -> None:
    unbound, dead, last = lane(0), lane(1), lane(2, 1.0)
    unbound.link = None
    dead.link.is_up = False
    assert pick_lane([unbound, dead, last], CHUNK) is last
    assert pick_lane([unbound, dead], CHUNK) is None
    assert pick_lane([], CHUNK) is None


def test_rates_that_noise_may_have_set_apart_count_as_equal() -> None:
    one, other, slow = lane(0), lane(1), lane(2)
    measure(one, 1e8)
    measure(other, 0.95e8)
    measure(slow, 0.3e8)
    even_out([slow, other, one])
    assert one.pace == other.pace == one.bandwidth
    assert slow.pace == slow.bandwidth
    assert pick_lane([other, one, slow], CHUNK) is other
    measure(other, ALIKE * 0.9e8)
    even_out([slow, other, one])
    assert other.pace == other.bandwidth


def test_of_a_lane_that_was_not_measured_no_more_is_believed_than_of_the_best_that_was() -> None:
    boast, fast, slow = lane(0), lane(1), lane(2)
    measure(fast, 1e8)
    measure(slow, 1e7)
    even_out([boast, fast, slow])
    assert boast.pace == fast.rate.bytes_s
    assert not boast.is_measured
    # The best may have been measured at a bad moment: what is believed follows it.
    measure(fast, 4e8)
    even_out([boast, fast, slow])
    assert boast.pace == fast.rate.bytes_s > 1e8
    modest = lane(3, 5e7)
    even_out([modest, fast, slow])
    assert modest.bandwidth == 5e7


def test_where_nothing_was_measured_what_the_nics_say_of_themselves_holds() -> None:
    one, other = lane(0, 1e9), lane(1, 1e8)
    even_out([one, other])
    assert (one.pace, other.pace) == (1e9, 1e8)
