"""Which chunks of a suspect go out twice: on which path, how many, how often, and never which."""

from __future__ import annotations

import random

import pytest

from r2ccl.protocol.hedging import FORGIVE_PAUSES, Hedge, Hedger, HedgingLimits, Path
from r2ccl.protocol.lanes import Parcel

CHUNK = 1000
LIMITS = HedgingLimits(share=0.1, burst_bytes=10 * CHUNK, progress_s=0.1, pause_s=0.02, pause_max_s=0.1)
SUSPECT = "suspect"


def parcels(count: int, first: int = 0) -> list[Parcel]:
    return [Parcel(1, 0, 0, 1, chunk, 0, bytes(CHUNK)) for chunk in range(first, first + count)]


def path(
    key: str, room: int = 100, progressed_at_s: float = 0.0, finish_s: float = 0.0, bandwidth: float = 1e6
) -> Path:
    return Path(key, room * CHUNK, finish_s, bandwidth, progressed_at_s)


def hedger(limits: HedgingLimits = LIMITS) -> Hedger:
    return Hedger(limits)


def test_the_oldest_chunks_go_out_on_another_path_at_the_first_suspicion() -> None:
    chunks = parcels(3)
    assert hedger().suspect(SUSPECT, chunks, [path("b")], 0.0) == [Hedge(chunk, "b") for chunk in chunks]


def test_no_more_goes_out_than_fits_the_other_path() -> None:
    chunks = parcels(5)
    assert hedger().suspect(SUSPECT, chunks, [path("b", room=2)], 0.0) == [Hedge(chunk, "b") for chunk in chunks[:2]]


def test_chunks_go_where_they_are_done_first_counting_those_put_just_now() -> None:
    chunks = parcels(3)
    others = [path("slow", bandwidth=1e5), path("busy", finish_s=0.0015), path("free")]
    assert hedger().suspect(SUSPECT, chunks, others, 0.0) == [
        Hedge(chunks[0], "free"),
        Hedge(chunks[1], "free"),
        Hedge(chunks[2], "busy"),
    ]


def test_a_path_that_makes_no_progress_gets_no_twins() -> None:
    chunks, subject = parcels(1), hedger()
    assert subject.suspect(SUSPECT, chunks, [path("b", progressed_at_s=0.0)], 0.2) == []
    assert subject.suspect(SUSPECT, chunks, [], 0.2) == []
    assert subject.suspect(SUSPECT, chunks, [path("b", progressed_at_s=0.15)], 0.2) == [Hedge(chunks[0], "b")]


def test_a_round_that_hedged_nothing_costs_no_pause() -> None:
    chunks, subject = parcels(1), hedger()
    assert subject.suspect(SUSPECT, chunks, [], 0.0) == []
    assert subject.suspect(SUSPECT, chunks, [path("b")], 0.001) != []


def test_a_suspect_is_never_its_own_backup() -> None:
    assert hedger().suspect(SUSPECT, parcels(1), [path(SUSPECT)], 0.0) == []


def test_a_chunk_is_hedged_at_most_once_on_each_connection() -> None:
    chunks, subject = parcels(1), hedger()
    assert subject.suspect("a", chunks, [path("b")], 0.0) == [Hedge(chunks[0], "b")]
    assert subject.suspect("a", chunks, [path("b")], 0.05) == []
    assert subject.suspect("b", chunks, [path("a", progressed_at_s=0.1)], 0.1) == []
    assert subject.suspect("b", chunks, [path("c", progressed_at_s=0.1)], 0.1) == [Hedge(chunks[0], "c")]
    # The link is back, over a new connection.
    assert subject.suspect("c", chunks, [path("a, again", progressed_at_s=0.1)], 0.1) == [Hedge(chunks[0], "a, again")]


def test_what_hardware_writes_and_what_is_settled_is_not_hedged() -> None:
    written, settled, plain = chunks = parcels(3)
    written.was_written = True
    settled.is_settled = True
    assert hedger().suspect(SUSPECT, chunks, [path("b")], 0.0) == [Hedge(plain, "b")]


def test_what_was_settled_is_forgotten() -> None:
    chunks, subject = parcels(3), hedger()
    subject.suspect(SUSPECT, chunks, [path("b")], 0.0)
    assert subject.remembered == 3
    for chunk in [*chunks, *parcels(1)]:
        subject.settled(chunk)
    assert subject.remembered == 0


# The budget.


def test_the_budget_ends_a_round_and_younger_chunks_are_not_served_before_older_ones() -> None:
    big = Parcel(1, 0, 0, 1, 0, 0, bytes(9 * CHUNK))
    two, small = parcels(2, first=1), Parcel(1, 0, 0, 1, 3, 0, bytes(1))
    subject = hedger()
    assert subject.suspect(SUSPECT, [big, *two, small], [path("b")], 0.0) == [Hedge(big, "b"), Hedge(two[0], "b")]
    assert (subject.budget_bytes, subject.hedged_bytes, subject.hedged_chunks) == (0, 10 * CHUNK, 2)


def test_what_was_sent_earns_a_tenth_and_time_earns_nothing() -> None:
    chunks, subject = parcels(30), hedger()
    assert len(subject.suspect("a", chunks[:10], [path("b")], 0.0)) == 10
    assert subject.suspect("b", chunks[10:], [path("c", progressed_at_s=1e6)], 1e6) == []
    subject.sent(20 * CHUNK)
    assert len(subject.suspect("b", chunks[10:], [path("c", progressed_at_s=1e6)], 1e6)) == 2


def test_no_more_than_a_burst_is_saved_up() -> None:
    subject = hedger()
    subject.sent(10**12)
    assert subject.budget_bytes == LIMITS.burst_bytes


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_twins_are_at_most_a_tenth_of_the_traffic_and_a_burst(seed: int) -> None:
    rng, subject, sent = random.Random(seed), hedger(), 0
    for turn in range(3000):
        now = turn / 1000
        if rng.random() < 0.5:
            size = rng.randrange(3 * CHUNK)
            subject.sent(size)
            sent += size
        others = [path(key, rng.randrange(4), now) for key in "bcd"]
        for hedge in subject.suspect(rng.choice("abcd"), parcels(rng.randrange(5)), others, now):
            if rng.random() < 0.9:
                subject.settled(hedge.parcel)
        assert subject.hedged_bytes <= LIMITS.burst_bytes + LIMITS.share * sent
    assert subject.hedged_bytes > LIMITS.burst_bytes


# Back-off.


def rounds(subject: Hedger, suspect: str, start_s: float, milliseconds: int) -> list[int]:
    """A look each millisecond, with a new chunk each time: at which milliseconds something was hedged."""
    hedged = []
    for millisecond in range(milliseconds):
        now = start_s + millisecond / 1000
        subject.sent(10 * CHUNK)
        if subject.suspect(suspect, parcels(1), [path("b", progressed_at_s=now)], now):
            hedged.append(millisecond)
    return hedged


def test_the_pause_between_rounds_doubles_up_to_its_limit() -> None:
    gaps = rounds(hedger(), SUSPECT, 0.0, 400)
    assert [later - earlier for earlier, later in zip(gaps, gaps[1:], strict=False)] == pytest.approx(
        [20, 40, 80, 100, 100], abs=1
    )


def test_another_suspect_does_not_wait_for_the_first_ones_pause() -> None:
    subject = hedger()
    assert rounds(subject, "a", 0.0, 1) == rounds(subject, "c", 0.0, 1) == [0]


def test_a_suspect_that_behaved_for_long_starts_with_the_shortest_pause_again() -> None:
    subject = hedger()
    rounds(subject, SUSPECT, 0.0, 400)
    later_s = 0.4 + FORGIVE_PAUSES * LIMITS.pause_max_s + 0.001
    assert rounds(subject, SUSPECT, later_s, 30)[:2] == pytest.approx([0, 20], abs=1)
