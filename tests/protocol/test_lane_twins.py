"""A chunk on two lanes at once: who holds it, who lets go of it, and who measures nothing by it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from r2ccl.protocol.lane_choice import pick_lane
from r2ccl.protocol.lanes import Lane, Parcel, Probe

CHUNK = 256 << 10
BANDWIDTH = 1e9


@dataclass(slots=True)
class FakeLink:
    """As much of a link as lanes look at."""

    is_up: bool = True


def lane(index: int = 0) -> Lane:
    made = Lane(index, 1, CHUNK, BANDWIDTH)
    made.link = FakeLink()
    return made


def parcel(chunk: int = 0) -> Parcel:
    return Parcel(1, 0, 0, 1, chunk, 0, bytes(CHUNK))


def hedged() -> tuple[Parcel, Lane, Lane]:
    """A chunk on its own lane since 0.0 and on a twin's since 1.0."""
    chunk, own, other = parcel(), lane(0), lane(1)
    own.put(chunk, 0.0)
    other.put_twin(chunk, 1.0)
    return chunk, own, other


def holders(chunk: Parcel) -> tuple[Lane | None, Lane | None]:
    return chunk.lane, chunk.twin


def is_empty(subject: Lane) -> bool:
    return not subject.outstanding and subject.outstanding_bytes == 0


def test_both_lanes_hold_a_hedged_chunk_and_it_counts_as_sent_twice() -> None:
    chunk, own, other = hedged()
    assert holders(chunk) == (own, other)
    assert own.outstanding_bytes == other.outstanding_bytes == CHUNK
    assert (chunk.times_sent, chunk.sent_at_s) == (2, 0.0)


def test_settling_releases_both_windows_and_measures_neither_lane() -> None:
    chunk, own, other = hedged()
    own.settle(chunk, 2.0)
    assert is_empty(own)
    assert is_empty(other)
    assert holders(chunk) == (None, None)
    assert own.round_trip_s == other.round_trip_s == 0.0
    assert own.bandwidth == other.bandwidth == BANDWIDTH
    assert own.progressed_at_s == other.progressed_at_s == 0.0


def test_a_lane_measures_again_from_the_moment_an_ambiguous_chunk_was_settled() -> None:
    chunk, own, _ = hedged()
    more = parcel(1)
    own.put(more, 1.0)
    own.settle(chunk, 2.0, more_waits=True)
    assert not own.is_measured
    own.settle(more, 2.5, more_waits=True)
    assert own.is_measured
    assert own.bandwidth == CHUNK / 0.5


def test_dropping_releases_both_windows() -> None:
    chunk, own, other = hedged()
    own.drop(chunk)
    assert is_empty(own)
    assert is_empty(other)
    assert holders(chunk) == (None, None)


@pytest.mark.parametrize("lost_first", [0, 1])
def test_a_lost_lane_leaves_a_hedged_chunk_to_the_other_and_gives_it_back_only_when_that_is_lost_too(
    lost_first: int,
) -> None:
    chunk, *lanes = hedged()
    first, second = lanes[lost_first], lanes[1 - lost_first]
    assert first.take_back() == []
    assert is_empty(first)
    assert holders(chunk) == (second, None)
    assert second.outstanding_bytes == CHUNK
    assert second.take_back() == [chunk]
    assert is_empty(second)
    assert holders(chunk) == (None, None)


def test_a_lost_lane_gives_back_in_order_what_it_held_alone() -> None:
    chunk, own, _ = hedged()
    alone = [parcel(number) for number in (1, 2)]
    for each in alone:
        own.put(each, 1.0)
    assert own.take_back() == alone
    assert chunk.lane is not None


def test_who_holds_a_chunk_alone_after_a_hedge_still_measures_nothing_by_it() -> None:
    chunk, own, other = hedged()
    own.take_back()
    other.settle(chunk, 1.001)
    assert is_empty(other)
    assert other.round_trip_s == 0.0


def test_a_chunk_put_anew_after_both_were_lost_is_measured_again() -> None:
    chunk, own, other = hedged()
    own.take_back()
    other.take_back()
    own.put(chunk, 5.0)
    own.settle(chunk, 5.25)
    assert own.round_trip_s == 0.25
    assert own.progressed_at_s == 5.25


def test_a_chunk_has_one_twin_and_not_on_its_own_lane() -> None:
    chunk, own, _ = hedged()
    with pytest.raises(AssertionError):
        lane(2).put_twin(chunk, 2.0)
    own.take_back()
    with pytest.raises(AssertionError):
        own.put_twin(parcel(), 2.0)


def test_twins_find_room_in_a_full_window_and_as_much_again_is_all() -> None:
    full = lane()
    number = 0
    while full.has_room(CHUNK):
        full.put(parcel(number), 0.0)
        number += 1
    assert full.room_bytes < CHUNK
    room_bytes = full.twin_room_bytes
    assert room_bytes == full.room_bytes + full.window_bytes
    other = lane(1)
    chunks = [parcel(number + index) for index in range(room_bytes // CHUNK + 1)]
    for chunk in chunks:
        other.put(chunk, 0.0)
        full.put_twin(chunk, 0.0)
    assert full.twin_room_bytes == 0


def test_new_chunks_pass_by_a_diverted_lane_even_where_the_others_are_full_or_it_is_to_be_probed() -> None:
    diverted, other = lane(0), lane(1)
    diverted.is_diverted, diverted.probe_due = True, Probe.OVERDUE
    assert pick_lane([diverted, other], CHUNK) is other
    while other.has_room(CHUNK):
        other.put(parcel(), 0.0)
    assert pick_lane([diverted, other], CHUNK) is None


def test_a_diverted_lane_is_better_than_none() -> None:
    diverted, other = lane(0), lane(1)
    diverted.is_diverted = True
    other.link.is_up = False
    assert pick_lane([diverted, other], CHUNK) is diverted
    other.link = None
    assert pick_lane([diverted, other], CHUNK) is diverted
