"""Circuits and the frames that relays carry: names, accounts, gaps, one hop, and who is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.relay import (
    CANDIDATES_MAX,
    Candidates,
    Circuit,
    Word,
    check_hop,
    pack_relayed,
    read_relayed,
    trim,
)
from r2ccl.protocol.wire import HEADER_BYTES, BadFrame, Kind, pack_header, repack_header, unpack_header

PATIENCE_S = 0.2


@given(
    st.sampled_from(Word),
    st.integers(0, 99),
    st.integers(0, 99),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_a_relayed_frame_comes_back_as_it_was_packed(
    word: Word, source: int, target: int, circuit: int, number: int, received: int
) -> None:
    header = unpack_header(
        pack_relayed(word, source, target, circuit, purpose=2, number=number, received=received, payload_bytes=7)
    )
    assert (header.kind, header.payload_bytes) == (Kind.RELAYED, 7)
    assert read_relayed(header) == (word, source, target, circuit, 2, number, received)
    assert unpack_header(repack_header(header)) == header


@pytest.mark.parametrize("word", [0, max(Word) + 1, 2**32 - 1])
def test_a_word_that_does_not_exist_is_refused(word: int) -> None:
    with pytest.raises(BadFrame, match="word"):
        read_relayed(unpack_header(pack_header(Kind.RELAYED, 0, 0, step=word)))


def test_a_circuit_for_no_purpose_is_refused() -> None:
    with pytest.raises(BadFrame, match="purpose 3"):
        read_relayed(unpack_header(pack_relayed(Word.DIAL, 0, 1, 2, purpose=3)))


def test_what_is_trimmed_keeps_its_name_and_number() -> None:
    whole = read_relayed(unpack_header(pack_relayed(Word.FRAME, 3, 4, 5, number=6, received=7, payload_bytes=1000)))
    trimmed = unpack_header(trim(whole))
    assert trimmed.payload_bytes == HEADER_BYTES
    assert read_relayed(trimmed) == whole._replace(word=Word.TRIMMED)


@pytest.mark.parametrize(("source", "target", "carrier", "rank"), [(0, 1, 0, 2), (0, 1, 2, 1)])
def test_one_hop_is_from_a_neighbour_to_another_or_through_a_neighbour_to_us(
    source: int, target: int, carrier: int, rank: int
) -> None:
    check_hop(unpack_header(pack_relayed(Word.FRAME, source, target, 9)), carrier, rank, size=4)


@pytest.mark.parametrize(
    ("source", "target", "carrier", "rank"),
    [
        (0, 1, 3, 2),  # through a neighbour to a third: two hops
        (0, 2, 0, 2),  # from a neighbour to us, who are linked
        (2, 1, 0, 2),  # our own, back again
        (0, 0, 1, 2),
        (0, 4, 0, 2),  # no such rank
        (4, 2, 0, 2),
    ],
)
def test_what_is_not_one_hop_is_refused(source: int, target: int, carrier: int, rank: int) -> None:
    with pytest.raises(BadFrame):
        check_hop(unpack_header(pack_relayed(Word.FRAME, source, target, 9)), carrier, rank, size=4)


# Accounts.


def test_what_was_sent_is_in_flight_until_the_other_end_has_it() -> None:
    here, there = Circuit(0.0), Circuit(0.0)
    assert [here.send(100, 0.0), here.send(50, 0.0)] == [1, 2]
    assert here.in_flight_bytes == 150
    assert there.take(1, 100)
    assert there.owes_receipt
    here.hear(there.told(), 0.1)
    assert here.in_flight_bytes == 50
    assert not there.owes_receipt
    here.hear(0, 0.2)  # an older frame, by another path
    assert here.in_flight_bytes == 50
    assert here.silence_s(0.5) == pytest.approx(0.3)


@given(st.lists(st.booleans(), max_size=30))
def test_a_circuit_takes_all_frames_up_to_the_first_gap_and_none_after(lost: list[bool]) -> None:
    here, there = Circuit(0.0), Circuit(0.0)
    taken = [there.take(number, 10) for number in (here.send(10, 0.0) for _ in lost) if not lost[number - 1]]
    whole = lost.index(True) if True in lost else len(lost)
    assert taken == [True] * whole + [False] * (len(taken) - whole)
    assert there.received_bytes == 10 * whole


def test_a_frame_that_comes_twice_is_no_next_frame() -> None:
    circuit = Circuit(0.0)
    assert circuit.take(1, 10)
    assert not circuit.take(1, 10)


def test_nobody_has_received_more_than_was_sent() -> None:
    circuit = Circuit(0.0)
    circuit.send(10, 0.0)
    with pytest.raises(BadFrame):
        circuit.hear(11, 0.0)


# When others are asked.


def test_others_are_asked_when_bytes_are_in_flight_and_nothing_came_for_a_while() -> None:
    circuit = Circuit(0.0)
    assert not circuit.should_ask(PATIENCE_S, 100.0), "nothing is in flight"
    circuit.send(10, 100.0)
    assert not circuit.should_ask(PATIENCE_S, 100.1), "not for long"
    circuit.send(10, 100.1)
    assert circuit.should_ask(PATIENCE_S, 100.2), "a second frame does not make it wait longer"
    circuit.hear(10, 100.2)
    assert not circuit.should_ask(PATIENCE_S, 100.3)
    assert circuit.should_ask(PATIENCE_S, 100.45)


def test_others_are_asked_once_in_a_while_and_whatever_comes_ends_the_asking() -> None:
    circuit = Circuit(0.0)
    circuit.send(10, 0.0)
    circuit.ask(0.25)
    assert circuit.is_asking
    assert not circuit.should_ask(PATIENCE_S, 0.4)
    assert circuit.should_ask(PATIENCE_S, 0.45)
    circuit.hear(0, 0.46)
    assert not circuit.is_asking


# Who is asked.


@given(st.integers(0, 20), st.integers(0, 20), st.lists(st.integers(0, 40), unique=True).map(sorted))
def test_everybody_who_is_reached_is_asked_in_turn(rank: int, peer: int, reached: list[int]) -> None:
    candidates = Candidates(rank)
    rounds = -(-len(reached) // CANDIDATES_MAX)
    chosen = [candidates.choose(peer, reached) for _ in range(rounds)]
    assert set().union(*chosen) == set(reached)
    assert all(len(some) == len(set(some)) == min(CANDIDATES_MAX, len(reached)) for some in chosen)


def test_nobody_is_asked_where_nobody_is_reached() -> None:
    assert Candidates(0).choose(1, []) == []


def test_different_pairs_ask_different_ranks_first() -> None:
    reached = list(range(10, 20))
    firsts = {Candidates(rank).choose(peer, reached)[0] for rank in range(5) for peer in range(5, 10)}
    assert len(firsts) > 5
