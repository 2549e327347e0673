"""What a lane takes, what it measures, and what comes back when its link is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from r2ccl.ids import RELAY_NIC, LinkId
from r2ccl.protocol.lane_choice import pick_lane
from r2ccl.protocol.lanes import (
    ALONE_PERIOD_S,
    CHUNKS_MIN,
    HEADROOM,
    QUEUE_S_MAX,
    ROUND_TRIP_MEMORY_S,
    ROUND_TRIP_MIN_S,
    TELLING_BYTES,
    Lane,
    Parcel,
    Probe,
    choose_link,
    takes_link,
)

KIB = 1024
CHUNK = 256 * KIB
BANDWIDTH = 1e9


@dataclass(slots=True)
class FakeLink:
    """As much of a link as lanes look at."""

    id: LinkId = field(default_factory=lambda: LinkId(1, 0, 0))
    is_up: bool = True
    is_rail: bool = True


def lane(index: int = 0, bandwidth: float = BANDWIDTH) -> Lane:
    made = Lane(index, 1, CHUNK, bandwidth)
    made.link = FakeLink()
    return made


def parcel(chunk: int = 0, size: int = CHUNK) -> Parcel:
    return Parcel(1, 0, 0, 1, chunk, 0, bytes(size))


def test_a_lane_holds_what_was_put_until_it_is_settled() -> None:
    one, two, subject = parcel(1), parcel(2, 10), lane()
    subject.put(one, 0.0)
    subject.put(two, 0.0)
    assert list(subject.outstanding) == [one, two]
    assert subject.outstanding_bytes == CHUNK + 10
    assert one.lane is two.lane is subject
    subject.settle(one, 0.001)
    assert (list(subject.outstanding), subject.outstanding_bytes) == ([two], 10)
    assert one.lane is None


def test_a_chunk_counts_how_often_it_was_sent() -> None:
    subject, chunk = lane(), parcel()
    subject.put(chunk, 1.0)
    subject.take_back()
    subject.put(chunk, 2.0)
    assert (chunk.times_sent, chunk.sent_at_s) == (2, 2.0)


def test_an_empty_lane_takes_any_chunk_and_a_filled_one_no_more_than_its_window() -> None:
    subject = lane()
    assert subject.window_bytes == 2 * CHUNKS_MIN * CHUNK
    assert subject.has_room(100 * CHUNK)
    for chunk in range(2 * CHUNKS_MIN):
        assert subject.has_room(CHUNK)
        subject.put(parcel(chunk), 0.0)
    assert not subject.has_room(1)
    assert subject.has_room(0)


def test_everything_unacknowledged_comes_back_in_order_and_the_lane_is_empty() -> None:
    subject = lane()
    chunks = [parcel(chunk) for chunk in range(4)]
    for chunk in chunks:
        subject.put(chunk, 0.0)
    subject.settle(chunks[1], 0.1)
    assert subject.take_back() == [chunks[0], chunks[2], chunks[3]]
    assert (subject.outstanding_bytes, list(subject.outstanding)) == (0, [])
    assert all(chunk.lane is None for chunk in chunks)
    assert subject.take_back() == []


def test_what_nobody_wants_is_dropped_without_being_measured() -> None:
    subject, chunk = lane(), parcel()
    subject.put(chunk, 0.0)
    subject.drop(chunk)
    assert (subject.outstanding_bytes, chunk.lane, subject.round_trip_s) == (0, None, 0.0)


def test_an_acknowledgement_is_asked_for_each_quarter_of_the_window() -> None:
    subject = lane()
    asked = [subject.put(parcel(chunk, CHUNK // 2), 0.0) for chunk in range(6)]
    assert asked == [False, True] * 3


def test_a_full_lane_has_always_asked_for_an_acknowledgement_of_something_it_holds() -> None:
    for size in (1, 100 * KIB, CHUNK, 3 * CHUNK):
        subject = lane()
        asked = False
        while subject.has_room(size) and len(subject.outstanding) < 2000:
            asked |= subject.put(parcel(0, size), 0.0)
        assert asked or subject.has_room(size)


def test_the_estimate_follows_what_is_acknowledged_and_the_window_follows_the_estimate() -> None:
    subject = lane(bandwidth=1e8)
    now = 0.0
    previous = parcel()
    subject.put(previous, now)
    for chunk in range(2000):
        following = parcel(chunk)
        subject.put(following, now)
        now += CHUNK / 5e8
        subject.settle(previous, now, more_waits=True)
        previous = following
    assert subject.bandwidth == pytest.approx(5e8, rel=0.01)
    assert subject.round_trip_s == pytest.approx(CHUNK / 5e8)
    assert subject.window_bytes == pytest.approx(HEADROOM * 5e8 * ROUND_TRIP_MIN_S, rel=0.01)


def test_a_chunk_that_goes_alone_measures_the_round_trip() -> None:
    subject = lane()
    sent = parcel()
    subject.put(sent, 0.0)
    subject.settle(sent, 0.0005)
    assert (subject.bandwidth, subject.round_trip_s) == (BANDWIDTH, 0.0005)


def test_the_acknowledgement_of_a_chunk_that_goes_alone_is_asked_for_now_and_then() -> None:
    subject = lane()
    subject.window_bytes = 100 * CHUNK
    asked = []
    for step in range(4):
        sent = parcel(step)
        asked.append(subject.put(sent, 1.0 + step * ALONE_PERIOD_S / 2))
        subject.settle(sent, 1.0 + step * ALONE_PERIOD_S / 2 + 0.0001)
    assert asked == [True, False, True, False]
    assert not subject.put(parcel(9, CHUNK // 4), 9.0)


def test_how_long_a_chunk_took_is_only_asked_of_those_that_met_an_empty_lane() -> None:
    subject = lane()
    first, second = parcel(0), parcel(1)
    assert subject.put(first, 1.0)
    assert subject.put(second, 1.0)
    assert (first.was_timed, second.was_timed) == (True, False)


def test_a_lane_that_proves_to_be_faster_is_to_be_measured_further() -> None:
    subject = lane(bandwidth=1e6)
    sent = parcel()
    subject.put(sent, 0.0)
    assert subject.settle(sent, 0.001)
    assert subject.bandwidth == 2e6
    assert subject.probe_due is Probe.OVERDUE


def test_a_chunk_that_is_put_is_a_probe() -> None:
    subject = lane()
    subject.probe_due = Probe.DUE
    subject.put(parcel(), 0.0)
    assert subject.probe_due is Probe.NONE


def test_small_chunks_say_nothing_about_bandwidth_or_round_trip() -> None:
    subject = lane()
    for chunk in range(100):
        sent = parcel(chunk, CHUNK // 2 - 1)
        subject.put(sent, float(chunk))
        subject.settle(sent, chunk + 0.5)
    assert (subject.bandwidth, subject.round_trip_s) == (BANDWIDTH, 0.0)


@pytest.mark.parametrize(("size", "tells"), [(TELLING_BYTES // 2, True), (TELLING_BYTES // 2 - 1, False)])
def test_where_whole_chunks_are_very_large_smaller_ones_measure_too(size: int, tells: bool) -> None:
    subject = Lane(0, 1, 16 * TELLING_BYTES, BANDWIDTH)
    sent = parcel(0, size)
    subject.put(sent, 0.0)
    subject.settle(sent, 0.5)
    assert (subject.round_trip_s == 0.5) is tells


def test_the_shortest_round_trip_is_kept_for_a_while_and_then_replaced() -> None:
    subject = lane()

    def measure(now: float, round_trip_s: float) -> float:
        sent = parcel()
        subject.put(sent, now)
        subject.settle(sent, now + round_trip_s)
        return subject.round_trip_s

    assert measure(0.0, 0.002) == pytest.approx(0.002)
    assert measure(1.0, 0.001) == pytest.approx(0.001)
    assert measure(2.0, 0.030) == pytest.approx(0.001)
    assert measure(2.0 + ROUND_TRIP_MEMORY_S, 0.030) == pytest.approx(0.030)


def busy_for_long(subject: Lane, bytes_s: float) -> None:
    now = 0.0
    for chunk in range(100):
        sent = parcel(chunk)
        subject.put(sent, now)
        now += CHUNK / bytes_s
        subject.settle(sent, now, more_waits=True)


def test_a_lane_has_room_for_two_chunks_and_for_one_only_where_two_would_make_it_look_late() -> None:
    subject = lane(bandwidth=1e9)
    subject.round_trip_s = 0.0001
    busy_for_long(subject, 1.05 * CHUNKS_MIN * CHUNK / QUEUE_S_MAX)
    assert subject.has_room(CHUNK)
    subject.put(parcel(), 0.0)
    assert subject.has_room(CHUNK)
    subject.put(parcel(), 0.0)
    assert not subject.has_room(CHUNK)
    slower = lane(bandwidth=1e9)
    busy_for_long(slower, 0.95 * CHUNKS_MIN * CHUNK / QUEUE_S_MAX)
    slower.put(parcel(), 0.0)
    assert not slower.has_room(CHUNK)


def link(local_nic: int, remote_nic: int) -> FakeLink:
    return FakeLink(LinkId(1, local_nic, remote_nic), is_rail=local_nic == remote_nic)


def test_a_lane_prefers_rails_then_its_home_and_never_a_link_in_use() -> None:
    home, rail, home_cross, cross = link(0, 0), link(1, 1), link(0, 1), link(1, 0)
    assert choose_link(0, [cross, rail, home_cross, home], []) is home
    assert choose_link(0, [cross, home_cross, rail], []) is rail
    assert choose_link(0, [cross, home_cross], []) is home_cross
    assert choose_link(0, [cross, rail], [rail]) is None
    assert choose_link(0, [], []) is None


def test_a_link_across_rails_is_taken_only_if_no_other_lane_uses_either_of_its_nics() -> None:
    rail, both_free, local_used, remote_used = link(2, 2), link(0, 1), link(2, 1), link(0, 2)
    assert choose_link(0, [local_used, remote_used, rail], [rail]) is None
    assert choose_link(0, [local_used, remote_used, both_free, rail], [rail]) is both_free
    assert choose_link(0, [local_used, remote_used], []) is remote_used


def test_a_relayed_link_is_taken_only_where_no_other_is_up() -> None:
    relayed, direct = link(RELAY_NIC, RELAY_NIC), link(1, 0)
    assert choose_link(0, [relayed], []) is relayed
    assert choose_link(0, [relayed, direct], []) is direct
    assert choose_link(0, [relayed, direct], [direct]) is None


def test_a_lane_over_two_hops_holds_a_chunk_for_each_and_starts_to_measure_anew() -> None:
    moved = lane()
    for number in range(4):
        sent = parcel(number)
        moved.put(sent, 0.0)
        moved.settle(sent, 0.0001)
    moved.window_bytes = 2 * CHUNK
    moved.lead_over(2)
    assert moved.window_bytes == 4 * CHUNK
    assert moved.round_trip_s == 0
    moved.lead_over(1)
    assert moved.window_bytes == 4 * CHUNK, "what is under way stays within the window"


def test_a_lane_whose_relay_is_full_sends_half_as_much_and_never_less_than_a_chunk() -> None:
    narrow = lane()
    windows = []
    for _ in range(4):
        narrow.narrow()
        windows.append(narrow.window_bytes)
    assert windows == [2 * CHUNK, CHUNK, CHUNK, CHUNK]


def test_links_of_equal_merit_are_taken_in_the_order_of_their_nics() -> None:
    assert choose_link(0, [link(2, 2), link(1, 1)], []).id == LinkId(1, 1, 1)
    assert choose_link(0, [link(2, 1), link(1, 2)], []).id == LinkId(1, 1, 2)


def test_a_lane_without_a_link_waits_for_a_rail_and_one_that_lost_its_own_takes_any() -> None:
    waiting, orphan = lane(), lane()
    waiting.link = orphan.link = None
    orphan.is_orphan = True
    assert takes_link(waiting, link(0, 0), stands_by=False, lanes=[waiting])
    assert not takes_link(waiting, link(0, 1), stands_by=True, lanes=[waiting])
    assert takes_link(orphan, link(0, 1), stands_by=True, lanes=[orphan])


def test_only_a_lane_across_rails_takes_another_link_and_only_a_rail() -> None:
    moved = lane()
    for own, offered, taken in (
        (link(0, 1), link(0, 0), True),
        (link(0, 1), link(1, 0), False),
        (link(1, 1), link(0, 0), False),
    ):
        moved.link = own
        assert takes_link(moved, offered, stands_by=False, lanes=[moved]) is taken


def test_a_lane_that_leaves_its_link_gets_no_chunk_even_if_it_is_the_only_one() -> None:
    leaving = lane()
    leaving.is_leaving = True
    assert pick_lane([leaving], CHUNK) is None
    leaving.is_diverted = True
    assert pick_lane([leaving], CHUNK) is None
    other = lane(1)
    assert pick_lane([leaving, other], CHUNK) is other


def test_a_parcel_names_itself_in_logs() -> None:
    assert repr(Parcel(9, 3, 2, 1, 5, 0, b"")) == "Parcel(op=3 step=2 chunk=5 to=1)"
