"""The short way of tiny operations: one small chunk to a peer, from a copy, and one of its back.

An operation of a few bytes costs what is done about it, not what is sent, and that is nearly the same for every one of
them. So the commonest of all has a way of its own, on which what ten functions decide is decided by two: ``start`` and
``arrived``. They take it only while everything is as usual, and look at that each time; else they change nothing, and
the operation goes the way of all others from there.

It is a short cut and no second way of working. It uses the same ledger, outbox, lanes and machine, and leaves them as
the others would (``tests/actors/test_express.py`` compares), so whatever happens next, the loss of a link, a duplicate,
an abort, a difference of calls, meets an operation like any other. What is not as usual:

    start      the transport writes one-sided · a member has left · a call that a peer announced might be another ·
               a peer asked to hear of it
    arrived    not the chunk that is due · not the next operation to finish · a part of it came another way · calls of
               this communicator differ
"""

from __future__ import annotations

from typing import Protocol

from r2ccl.actors.asks import Asks
from r2ccl.actors.courier import Courier
from r2ccl.actors.failing import Failing
from r2ccl.actors.inbox import Inbox
from r2ccl.actors.operation import Operation
from r2ccl.actors.shared import Shared
from r2ccl.protocol.collective import ExchangeMachine
from r2ccl.protocol.lanes import Parcel
from r2ccl.protocol.ledger import Ledger
from r2ccl.protocol.wire import Flag, Header


class Host(Protocol):
    """A coordinator, as far as it is needed here."""

    communicator: int
    shared: Shared
    courier: Courier
    ledger: Ledger
    running: dict[int, Operation]
    failing: Failing
    asks: Asks


class Express:
    """One communicator's."""

    def __init__(self, host: Host, inbox: Inbox) -> None:
        self._host = host
        self._inbox = inbox
        self._communicator = host.communicator
        self._courier = host.courier
        self._running = host.running
        self._ledger = host.ledger
        self._is_possible = not host.shared.one_sided

    def start(self, operation: Operation) -> bool:
        """Start an operation that was numbered and may start. False: it is to be started as any other."""
        exchange, number = operation.planned.exchange, operation.number
        failing = self._host.failing
        if exchange is None or not self._is_possible or failing.left or not failing.differences.are_silent_on(number):
            return False
        courier, peer = self._courier, exchange.peer
        machine = operation.machine = ExchangeMachine(operation.planned.waits)
        operation.turn = courier.take_turn()
        outlives = not exchange.needs_ack or courier.outboxes[peer].may_copy
        parcel = Parcel(
            self._communicator, number, exchange.send_step, peer, 0, exchange.send_mark,
            bytes(operation.arrays[exchange.send_array].bytes[exchange.send_start : exchange.send_stop]),
            None if outlives else operation, 0, operation.planned.chunk_bytes, operation.turn,
        )  # fmt: skip
        self._running[number] = operation
        if not courier.submit(parcel):
            self._host.asks.ask(operation, peer)
        if outlives:
            machine.acks_left = 0
        if number in self._inbox.parked:
            self._inbox.unpark(operation)
        return True

    def arrived(self, operation: Operation, header: Header, payload: memoryview) -> bool:
        """A small chunk of a running operation came, all of it. False: it is to be taken in as any other."""
        planned = operation.planned
        exchange = planned.exchange
        if (
            exchange is None
            or header.fingerprint != exchange.mark
            or header.source != exchange.peer
            or header.step != exchange.step
            or header.chunk
            or len(payload) != exchange.size
            or not self._is_possible
            or self._host.failing.differences.since is not None
        ):
            return False
        number, peer, courier = operation.number, exchange.peer, self._courier
        if not self._ledger.finish_with(number, exchange.step, peer):
            return False
        if not header.flags & Flag.LOCKSTEP:
            (self._inbox.acks_wanted if header.flags & Flag.ACK_WANTED else self._inbox.acks_owed).add(peer)
        acknowledged = header.acknowledged
        courier.peer_entered(peer, self._communicator, acknowledged - 1 if acknowledged > number else number)
        if acknowledged:
            courier.completed_by(peer, self._communicator, acknowledged)
        if self._running.get(number) is operation:  # else what the header told led to its failure
            self._inbox.coordinator.exchange_arrived(operation, payload)
        return True
