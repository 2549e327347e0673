"""The ledger alone, and joined with the other end's outbox by a wire that loses, doubles and reorders."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.protocol.lanes import Parcel
from r2ccl.protocol.ledger import Ledger, Offer
from r2ccl.protocol.outbox import Outbox
from r2ccl.protocol.wire import BITMAP_BYTES_MAX, Ack, OpenTransfer

SENDER = 7
COMMUNICATOR = 5


def test_the_first_header_of_a_name_owns_the_destination_and_another_is_a_twin() -> None:
    ledger = Ledger()
    assert ledger.offer(0, 0, SENDER, 3, "a") is Offer.FIRST
    assert ledger.offer(0, 0, SENDER, 3, "b") is Offer.TWIN
    assert ledger.offer(0, 0, SENDER, 4, "b") is Offer.FIRST
    assert ledger.offer(0, 1, SENDER, 3, "b") is Offer.FIRST
    assert ledger.offer(0, 0, SENDER + 1, 3, "b") is Offer.FIRST


def test_whoever_completes_first_counts_and_learns_who_owns_the_destination() -> None:
    ledger = Ledger()
    ledger.offer(0, 0, SENDER, 3, "slow")
    ledger.offer(0, 0, SENDER, 3, "fast")
    assert ledger.accept(0, 0, SENDER, 3) == (True, "slow")
    assert ledger.accept(0, 0, SENDER, 3) == (False, None)
    assert ledger.offer(0, 0, SENDER, 3, "late") is Offer.DUPLICATE


def test_a_small_chunk_needs_no_offer() -> None:
    ledger = Ledger()
    assert ledger.accept(2, 0, SENDER, 0) == (True, None)
    assert ledger.offer(2, 0, SENDER, 0, "a") is Offer.DUPLICATE


def test_a_name_whose_connection_ended_is_free_again() -> None:
    ledger = Ledger()
    ledger.offer(0, 0, SENDER, 3, "a")
    ledger.forsake(0, 0, SENDER, 3, "b")
    assert ledger.offer(0, 0, SENDER, 3, "b") is Offer.TWIN
    ledger.forsake(0, 0, SENDER, 3, "a")
    assert ledger.offer(0, 0, SENDER, 3, "b") is Offer.FIRST
    assert ledger.accept(0, 0, SENDER, 3) == (True, "b")


def test_forsaking_what_was_never_offered_is_harmless() -> None:
    ledger = Ledger()
    ledger.forsake(0, 0, SENDER, 3, "a")
    assert ledger.acknowledge_all(SENDER) == ()


def test_a_name_of_a_finished_operation_is_a_duplicate() -> None:
    ledger = Ledger()
    ledger.accept(0, 0, SENDER, 0)
    assert ledger.finish(0)
    assert ledger.completed == 1
    assert ledger.offer(0, 0, SENDER, 0, "a") is Offer.DUPLICATE
    assert ledger.accept(0, 0, SENDER, 0) == (False, None)
    assert ledger.duplicates == 2
    assert not ledger.finish(0)


def test_operations_that_finish_out_of_order_are_completed_together() -> None:
    ledger = Ledger()
    for operation in (0, 1, 2):
        ledger.accept(operation, 0, SENDER, 0)
    assert not ledger.finish(2)
    assert not ledger.finish(1)
    assert ledger.completed == 0
    assert ledger.offer(1, 0, SENDER, 0, "a") is Offer.DUPLICATE
    assert ledger.finish(0)
    assert ledger.completed == 3
    assert ledger.acknowledge_all(SENDER) == ()


def test_a_twin_that_ends_after_its_operation_finished_is_acknowledged_again() -> None:
    ledger = Ledger()
    ledger.offer(1, 0, SENDER, 0, "a")
    ledger.offer(1, 0, SENDER, 0, "b")
    ledger.accept(1, 0, SENDER, 0)
    ledger.finish(1)
    ledger.acknowledge(SENDER)
    assert ledger.accept(1, 0, SENDER, 0) == (False, None)
    assert ledger.acknowledge(SENDER) == (OpenTransfer(1, 0, 1, b""),)


def test_an_acknowledgement_names_what_changed_since_the_last_and_all_names_everything() -> None:
    ledger = Ledger()
    ledger.accept(4, 0, SENDER, 0)
    ledger.accept(4, 1, SENDER, 2)
    assert ledger.owes(SENDER)
    assert ledger.acknowledge(SENDER) == (OpenTransfer(4, 0, 1, b""), OpenTransfer(4, 1, 0, b"\x04"))
    assert not ledger.owes(SENDER)
    assert ledger.acknowledge(SENDER) == ()
    ledger.accept(4, 1, SENDER, 0)
    ledger.accept(4, 1, SENDER, 12)
    assert ledger.acknowledge(SENDER) == (OpenTransfer(4, 1, 1, b"\x02\x08"),)
    assert ledger.acknowledge_all(SENDER) == (OpenTransfer(4, 0, 1, b""), OpenTransfer(4, 1, 1, b"\x02\x08"))
    assert ledger.acknowledge_all(SENDER + 1) == ()


def test_a_duplicate_is_acknowledged_again() -> None:
    ledger = Ledger()
    ledger.accept(4, 0, SENDER, 0)
    ledger.acknowledge(SENDER)
    assert ledger.offer(4, 0, SENDER, 0, "a") is Offer.DUPLICATE
    assert ledger.acknowledge(SENDER) == (OpenTransfer(4, 0, 1, b""),)


def test_a_duplicate_of_a_completed_operation_is_acknowledged_by_the_number_alone() -> None:
    ledger = Ledger()
    ledger.accept(0, 0, SENDER, 0)
    ledger.finish(0)
    ledger.acknowledge(SENDER)
    ledger.offer(0, 0, SENDER, 0, "a")
    assert ledger.owes(SENDER)
    assert ledger.acknowledge(SENDER) == ()


def test_what_has_arrived_is_known_by_name_also_when_its_operation_is_over() -> None:
    ledger = Ledger()
    assert not ledger.has(1, 0, SENDER, 3)
    ledger.offer(1, 0, SENDER, 3, "a")
    assert not ledger.has(1, 0, SENDER, 3)
    ledger.accept(1, 0, SENDER, 3)
    assert ledger.has(1, 0, SENDER, 3)
    assert not ledger.has(1, 0, SENDER, 2)
    ledger.finish(1)
    assert ledger.has(1, 0, SENDER, 2)
    ledger.finish(0)
    assert ledger.has(0, 0, SENDER, 0)


def test_a_spoiled_chunk_is_missing_until_it_comes_right() -> None:
    ledger = Ledger()
    ledger.spoiled(3, 1, SENDER, 9, 1)
    ledger.spoiled(3, 0, SENDER, 2, 1)
    ledger.spoiled(3, 0, SENDER, 2, 2)
    ledger.spoiled(3, 0, SENDER + 1, 2, 7)
    assert ledger.missing(SENDER) == [(3, 0, 2, 2), (3, 1, 9, 1)]
    ledger.accept(3, 0, SENDER, 2)
    assert ledger.missing(SENDER) == [(3, 1, 9, 1)]
    ledger.accept(3, 1, SENDER, 9)
    assert ledger.missing(SENDER) == []
    assert ledger.missing(SENDER + 1) == [(3, 0, 2, 7)]


@given(st.sets(st.integers(0, 300)))
def test_a_bitmap_says_exactly_what_arrived(arrived: set[int]) -> None:
    ledger = Ledger()
    for chunk in sorted(arrived, reverse=True):
        ledger.accept(0, 0, SENDER, chunk)
    said = set()
    for transfer in ledger.acknowledge(SENDER):
        bits = int.from_bytes(transfer.bits, "little")
        said = set(range(transfer.base)) | {transfer.base + i for i in range(bits.bit_length()) if bits >> i & 1}
    assert said == arrived


@dataclass(slots=True)
class Carrier:
    """One connection: the chunk that it is delivering, if any."""

    name: str
    parcel: Parcel | None = None
    offer: Offer | None = None


class Journey:
    """A sender's outbox and a receiver's ledger, and everything on the wire between them."""

    def __init__(self, shape: list[list[int]], draw: random.Random) -> None:
        self.draw = draw
        self.outbox = Outbox(1, credit_bytes=1 << 30)
        self.ledger = Ledger()
        self.carriers = [Carrier(name) for name in "abc"]
        self.acks: list[Ack] = []
        self.arrived: Counter[tuple[int, int, int]] = Counter()
        self.settled: Counter[Parcel] = Counter()
        self.parcels = [
            Parcel(COMMUNICATOR, operation, step, 1, chunk, 0, b"x")
            for operation, steps in enumerate(shape)
            for step, chunks in enumerate(steps)
            for chunk in range(chunks)
        ]
        self.left = Counter(parcel.operation for parcel in self.parcels)
        for parcel in self.parcels:
            assert self.outbox.submit(parcel)
        for operation, steps in enumerate(shape):
            if not sum(steps):
                self.ledger.finish(operation)

    def step(self) -> None:
        """Anything may happen."""
        carrier = self.draw.choice(self.carriers)
        roll = self.draw.random()
        if carrier.parcel is None:
            self.begin(carrier, self.draw.choice(self.parcels))
        elif roll < 0.25:
            self.lose(carrier)
        else:
            self.complete(carrier)
        if self.draw.random() < 0.3:
            everything = self.draw.random() < 0.3
            transfers = self.ledger.acknowledge_all(SENDER) if everything else self.ledger.acknowledge(SENDER)
            self.acks.append(Ack(COMMUNICATOR, self.ledger.completed, transfers))
        if self.acks and self.draw.random() < 0.5:
            ack = self.draw.choice(self.acks)
            if self.draw.random() < 0.7:
                self.acks.remove(ack)
            if self.draw.random() < 0.6:
                self.hear(ack)

    def begin(self, carrier: Carrier, parcel: Parcel) -> None:
        carrier.parcel = parcel
        carrier.offer = self.ledger.offer(parcel.operation, parcel.step, SENDER, parcel.chunk, carrier.name)

    def complete(self, carrier: Carrier) -> None:
        parcel, offer = carrier.parcel, carrier.offer
        assert parcel is not None
        carrier.parcel = None
        if offer is Offer.DUPLICATE:
            return
        rivals = [other for other in self.carriers if other.parcel is parcel and other.offer is Offer.FIRST]
        counts, owner = self.ledger.accept(parcel.operation, parcel.step, SENDER, parcel.chunk)
        if counts:
            owners = [carrier.name] if offer is Offer.FIRST else [other.name for other in rivals]
            assert owners == ([] if owner is None else [owner]), (
                "who writes to the destination must be known, one at most"
            )
            self.arrived[parcel.operation, parcel.step, parcel.chunk] += 1
            self.left[parcel.operation] -= 1
            if not self.left[parcel.operation]:
                self.ledger.finish(parcel.operation)

    def lose(self, carrier: Carrier) -> None:
        parcel = carrier.parcel
        assert parcel is not None
        carrier.parcel = None
        self.ledger.forsake(parcel.operation, parcel.step, SENDER, parcel.chunk, carrier.name)

    def hear(self, ack: Ack) -> None:
        self.settled.update(self.outbox.acknowledged(ack))

    def heal(self) -> None:
        """The wire is whole again: everything unsettled goes out once more, and everything is acknowledged."""
        for carrier in self.carriers:
            if carrier.parcel is not None:
                self.lose(carrier)
        for parcel in self.parcels:
            if self.outbox.find(COMMUNICATOR, parcel.operation, parcel.step, parcel.chunk) is not None:
                self.begin(self.carriers[0], parcel)
                self.complete(self.carriers[0])
        self.hear(Ack(COMMUNICATOR, self.ledger.completed, self.ledger.acknowledge_all(SENDER)))


@settings(max_examples=200, deadline=None)
@given(
    shape=st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=5),
    steps=st.integers(0, 120),
    draw=st.randoms(use_true_random=False),
)
def test_on_any_wire_everything_arrives_once_and_is_settled_once_and_nothing_is_lost(
    shape: list[list[int]], steps: int, draw: random.Random
) -> None:
    journey = Journey(shape, draw)
    if journey.parcels:
        for _ in range(steps):
            journey.step()
    settled_before_it_arrived = [
        parcel for parcel in journey.settled if not journey.arrived[parcel.operation, parcel.step, parcel.chunk]
    ]
    assert not settled_before_it_arrived
    journey.heal()
    assert set(journey.arrived.values()) <= {1}
    assert set(journey.settled.values()) <= {1}
    assert len(journey.arrived) == len(journey.settled) == len(journey.parcels)
    assert journey.outbox.unsettled() == 0
    assert journey.ledger.completed == len(shape)


def test_a_bitmap_tells_of_no_more_chunks_than_a_frame_can_carry():
    ledger = Ledger()
    last = 16 * BITMAP_BYTES_MAX
    for chunk in (1, 8 * BITMAP_BYTES_MAX - 1, 8 * BITMAP_BYTES_MAX, last):
        ledger.accept(0, 0, 1, chunk)
    (told,) = ledger.acknowledge(1)
    assert len(told.bits) == BITMAP_BYTES_MAX
    assert told.base == 0


def test_an_operation_of_one_chunk_that_is_due_is_finished_at_once() -> None:
    ledger = Ledger()
    assert ledger.finish_with(0, 5, SENDER)
    assert ledger.finish_with(1, 5, SENDER)
    assert ledger.completed == 2
    assert ledger.offer(1, 5, SENDER, 0, "late") is Offer.DUPLICATE
    assert ledger.duplicates == 1


def test_what_is_not_so_simple_changes_nothing() -> None:
    ahead = Ledger()
    assert not ahead.finish_with(1, 5, SENDER)
    behind = Ledger()
    behind.finish(0)
    assert not behind.finish_with(0, 5, SENDER)
    with_later = Ledger()
    with_later.finish(1)
    assert not with_later.finish_with(0, 5, SENDER)
    on_its_way = Ledger()
    on_its_way.offer(0, 5, SENDER, 0, "another path")
    assert not on_its_way.finish_with(0, 5, SENDER)
    spoiled = Ledger()
    spoiled.spoiled(0, 5, SENDER, 0, 1)
    assert not spoiled.finish_with(0, 5, SENDER)
    assert spoiled.missing(SENDER) == [(0, 5, 0, 1)]
    assert [one.completed for one in (ahead, behind, with_later, on_its_way, spoiled)] == [0, 1, 0, 0, 0]
