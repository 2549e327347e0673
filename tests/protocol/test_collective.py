"""The machines of all ranks of every algorithm, joined by a network that delivers in any order.

The network is as unkind as the contract permits: what a rank sends without copying is read when it arrives, so a rank
that goes on too early sends garbage, and a rank that is done scribbles over its buffer at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.protocol.collective import (
    CollectiveMachine,
    ExchangeMachine,
    Machine,
    Piece,
    Waits,
    begin,
    chunks_of,
    prepare,
)
from r2ccl.schedule.algorithms import ALGORITHMS, Algorithm, algorithm
from r2ccl.schedule.ir import Program, Receive, Send
from tests.schedule.cases import even, name_of

Values = np.ndarray[tuple[int], np.dtype[np.int64]]
GARBAGE = -(1 << 40)


@dataclass(slots=True)
class Member:
    """One rank: its machine, its buffer, and what its coordinator would keep."""

    waits: Waits
    machine: Machine
    buffer: Values
    held: dict[Piece, Values] = field(default_factory=dict)
    result: Values | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A chunk on its way; ``copy`` is what it says if it went out from a copy."""

    rank: int
    send: int
    chunk: int
    copy: Values | None


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """News for the sender that a chunk has arrived."""

    rank: int
    send: int


class Job:
    """All ranks of one operation. ``draw`` decides what happens next."""

    def __init__(self, known: Algorithm, ranks: int, count: int, chunk_elements: int, draw: random.Random) -> None:
        shapes = even(known, ranks, count)
        self.collective = known.means(shapes)
        self.draw = draw
        self.wire: list[Delivery | Acknowledgement] = []
        self.members = []
        for program in known.all_programs(shapes):
            waits = prepare(program, chunk_elements)
            buffer = np.array([draw.randrange(1000) for _ in range(program.count)], np.int64)
            self.members.append(Member(waits, begin(waits), buffer))
        self.initial = [member.buffer.copy() for member in self.members]
        self.holds = 0

    def run(self) -> None:
        """Until nothing is on its way any more."""
        late = list(range(len(self.members)))
        self.draw.shuffle(late)
        while late or self.wire:
            if late and (not self.wire or self.draw.random() < 0.2):
                self.enter(late.pop())
                continue
            ready = [item for item in self.wire if not self.is_early(item, late)]
            if ready:
                item = self.draw.choice(ready)
                self.wire.remove(item)
                self.deliver(item)
            else:
                self.enter(late.pop())

    def is_early(self, item: Delivery | Acknowledgement, late: list[int]) -> bool:
        return isinstance(item, Delivery) and self.members[item.rank].waits.program.sends[item.send].target in late

    def enter(self, rank: int) -> None:
        for piece in self.members[rank].machine.start():
            self.send(rank, piece)
        self.leave_if_complete(rank)

    def send(self, rank: int, piece: Piece) -> None:
        member = self.members[rank]
        program = member.waits.program
        copy = self.read(member, program.sends[piece[0]], piece[1]) if program.sends_from_copies else None
        self.wire.append(Delivery(rank, *piece, copy))
        if copy is not None:
            member.machine.settled(piece[0])

    @staticmethod
    def places(member: Member, transfer: Send | Receive, chunk: int) -> list[slice]:
        if transfer.also:
            return [slice(start, stop) for start, stop in transfer.segments]
        return [slice(*member.waits.chunk_range(transfer.start, transfer.stop, chunk))]

    def read(self, member: Member, transfer: Send | Receive, chunk: int) -> Values:
        return np.concatenate([member.buffer[place] for place in self.places(member, transfer, chunk)])

    def deliver(self, item: Delivery | Acknowledgement) -> None:
        member = self.members[item.rank]
        if isinstance(item, Acknowledgement):
            if member.result is None:
                member.machine.settled(item.send)
                self.leave_if_complete(item.rank)
            return
        send = member.waits.program.sends[item.send]
        payload = self.read(member, send, item.chunk) if item.copy is None else item.copy
        target = self.members[send.target]
        self.arrive(send.target, target.waits.receive_index[send.step, item.rank], item.chunk, payload)
        if item.copy is None:
            self.wire.append(Acknowledgement(item.rank, item.send))

    def arrive(self, rank: int, receive: int, chunk: int, payload: Values) -> None:
        member = self.members[rank]
        if not member.machine.arrived(receive, chunk):
            self.holds += 1
            member.held[receive, chunk] = payload
            return
        what = member.waits.program.receives[receive]
        result = self.read(member, what, chunk) + payload if what.reduce else payload
        for place in self.places(member, what, chunk):
            length = place.stop - place.start
            member.buffer[place], result = result[:length], result[length:]
        assert not len(result)
        sends, released = member.machine.applied(receive, chunk)
        for piece in sends:
            self.send(rank, piece)
        for held in released:
            self.arrive(rank, *held, member.held.pop(held))
        self.leave_if_complete(rank)

    def leave_if_complete(self, rank: int) -> None:
        member = self.members[rank]
        if member.result is None and member.machine.is_complete:
            member.result = member.buffer.copy()
            member.buffer[:] = GARBAGE

    def verify(self) -> None:
        for expectation in self.collective.expectations:
            result = self.members[expectation.rank].result
            assert result is not None, f"rank {expectation.rank} is not done"
            owners = [rank for rank in range(len(self.members)) if expectation.contributors >> rank & 1]
            right = sum(self.initial[rank] for rank in owners)
            span = slice(expectation.start, expectation.stop)
            np.testing.assert_array_equal(result[span], np.asarray(right)[span])
        assert all(member.result is not None and not member.held for member in self.members)


@pytest.mark.parametrize("known", ALGORITHMS, ids=name_of)
@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(1, 9),
    count=st.sampled_from([0, 1, 2, 7, 16, 33]),
    chunk_elements=st.sampled_from([1, 2, 3, 5, 64]),
    draw=st.randoms(use_true_random=False),
)
def test_every_algorithm_ends_right_in_any_order_of_delivery(
    known: Algorithm, ranks: int, count: int, chunk_elements: int, draw: random.Random
) -> None:
    job = Job(known, ranks, count, chunk_elements, draw)
    job.run()
    job.verify()


@pytest.mark.parametrize("name", ["recursive_doubling", "halving_doubling"])
def test_chunks_that_come_too_early_are_held_where_partners_change(name: str) -> None:
    job = Job(algorithm("all_reduce", name), 6, 32, 1, random.Random(1))
    job.run()
    job.verify()
    assert job.holds > 0, "nothing had to wait: the test proves nothing about holding"


def machine(program: Program, chunk_elements: int = 2) -> CollectiveMachine:
    return CollectiveMachine(prepare(program, chunk_elements))


#: Rank 1 of three: what it gets from 0 it passes to 2, and it sends its own half when all of that is there.
RELAY = Program(
    rank=1,
    count=8,
    sends=(
        Send(0, 2, 0, 4, after=(0,), needs_ack=True),
        Send(1, 2, 4, 8, after=(0,)),
        Send(2, 0, 6, 8),
    ),
    receives=(Receive(0, 0, 0, 4), Receive(1, 2, 0, 4, reduce=True, after=(0,)), Receive(2, 2, 4, 8, after=(0,))),
)


def test_what_waits_for_nothing_goes_at_the_start() -> None:
    assert list(machine(RELAY).start()) == [(2, 0)]


def test_a_send_of_the_same_segment_follows_chunk_by_chunk_and_another_the_whole_receive() -> None:
    relay = machine(RELAY)
    assert relay.arrived(0, 1)
    assert relay.applied(0, 1) == ([(0, 1)], [])
    assert relay.arrived(0, 0)
    assert relay.applied(0, 0) == ([(0, 0), (1, 0), (1, 1)], [])


def test_a_receive_waits_for_its_chunk_or_for_the_whole_and_is_handed_back_once() -> None:
    relay = machine(RELAY)
    assert not relay.arrived(1, 0)
    assert not relay.arrived(2, 1)
    assert not relay.may_apply(1, 1)
    relay.arrived(0, 0)
    assert relay.applied(0, 0) == ([(0, 0)], [(1, 0)])
    relay.arrived(0, 1)
    assert relay.applied(0, 1) == ([(0, 1), (1, 0), (1, 1)], [(2, 1)])
    assert relay.may_apply(2, 0)
    assert relay.applied(1, 0) == ([], [])


def test_a_receive_is_received_when_its_last_chunk_is_applied() -> None:
    relay = machine(RELAY)
    relay.applied(0, 0)
    assert not relay.is_received(0)
    relay.applied(0, 1)
    assert relay.is_received(0)
    assert not relay.is_received(1)


def test_an_operation_is_complete_when_all_is_applied_and_needed_acknowledgements_are_there() -> None:
    relay = machine(RELAY)
    for receive in range(3):
        for chunk in range(2):
            assert relay.arrived(receive, chunk)
            relay.applied(receive, chunk)
    assert relay.chunks_left == 0
    assert not relay.is_complete
    relay.settled(0)
    relay.settled(2)
    assert not relay.is_complete
    relay.settled(0)
    assert relay.is_complete


def test_a_chunk_applied_twice_is_a_bug() -> None:
    relay = machine(RELAY)
    relay.applied(0, 0)
    with pytest.raises(AssertionError, match="chunk 0 of receive 0 was applied twice"):
        relay.applied(0, 0)


def test_more_acknowledgements_than_chunks_are_a_bug() -> None:
    relay = machine(RELAY)
    relay.settled(0)
    relay.settled(0)
    with pytest.raises(AssertionError, match="more chunks settled than were sent"):
        relay.settled(0)


def test_an_empty_transfer_is_one_empty_chunk() -> None:
    assert chunks_of(5, 5, 2) == 1
    token = machine(Program(0, 0, (Send(1, 1, 0, 0, after=(0,), needs_ack=True),), (Receive(0, 1, 0, 0),)))
    assert token.waits.chunk_range(0, 0, 0) == (0, 0)
    assert list(token.start()) == []
    assert token.arrived(0, 0)
    assert token.applied(0, 0) == ([(0, 0)], [])
    token.settled(0)
    assert token.is_complete


def test_a_rank_on_its_own_is_complete_before_it_begins() -> None:
    alone = machine(Program(0, 5, (), ()))
    assert list(alone.start()) == []
    assert alone.is_complete


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 9))
def test_chunks_cut_a_segment_without_gap_or_overlap(start: int, length: int, chunk_elements: int) -> None:
    waits = prepare(Program(0, 100, (), ()), chunk_elements)
    pieces = [
        waits.chunk_range(start, start + length, c) for c in range(chunks_of(start, start + length, chunk_elements))
    ]
    assert pieces[0][0] == start
    assert pieces[-1][1] == start + length
    assert all(one[1] == other[0] for one, other in zip(pieces, pieces[1:], strict=False))
    assert all(last - first <= chunk_elements for first, last in pieces)


#: Two ranks' all-reduce, on rank 0: both halves of it at once.
EXCHANGE = Program(0, 4, (Send(0, 1, 0, 4, needs_ack=True),), (Receive(0, 1, 0, 4, reduce=True),))


def told(machine: Machine, settles_first: bool) -> list[object]:
    """All that a machine says of an exchange, in both orders in which it may go."""
    said: list[object] = [list(machine.start()), machine.is_received(0), machine.may_apply(0, 0)]
    for settles in (settles_first, not settles_first):
        if settles:
            machine.settled(0)
        else:
            said += [machine.arrived(0, 0), machine.applied(0, 0)]
        said.append((machine.is_complete, machine.is_received(0), machine.chunks_left, machine.acks_left))
    return said


@pytest.mark.parametrize("settles_first", [True, False])
def test_the_machine_of_an_exchange_says_what_that_of_all_operations_says(settles_first: bool) -> None:
    waits = prepare(EXCHANGE, 4)
    assert waits.is_exchange
    assert isinstance(begin(waits), ExchangeMachine)
    assert told(ExchangeMachine(waits), settles_first) == told(CollectiveMachine(waits), settles_first)


def test_a_chunk_of_an_exchange_that_is_applied_twice_is_a_bug_as_is_one_acknowledged_twice() -> None:
    exchange = begin(prepare(EXCHANGE, 4))
    exchange.applied(0, 0)
    with pytest.raises(AssertionError, match="applied twice"):
        exchange.applied(0, 0)
    exchange.settled(0)
    with pytest.raises(AssertionError, match="more chunks settled"):
        exchange.settled(0)


@pytest.mark.parametrize(
    "program",
    [
        Program(0, 4, EXCHANGE.sends, (Receive(0, 1, 0, 4), Receive(1, 1, 0, 4, after=(0,)))),
        Program(0, 4, (Send(0, 1, 0, 4, after=(0,)),), EXCHANGE.receives),
        Program(0, 4, (), EXCHANGE.receives),
        Program(0, 4, EXCHANGE.sends, ()),
        Program(0, 8, EXCHANGE.sends, (Receive(0, 1, 0, 8),)),
    ],
    ids=["two receives", "the send waits", "no send", "no receive", "two chunks"],
)
def test_all_else_is_no_exchange(program: Program) -> None:
    waits = prepare(program, 4)
    assert not waits.is_exchange
    assert isinstance(begin(waits), CollectiveMachine)
