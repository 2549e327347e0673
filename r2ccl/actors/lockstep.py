"""The shortest way: ranks of one machine that call a small operation at about the same moment.

Each puts its chunks where the other sees them (``transport.interface.Posts``), looks for what is due, and goes on, all
within the call: no chunk has a parcel, a lane or an acknowledgement, and no turn of the loop passes. An operation of
which this is true from beginning to end costs a third of what it costs otherwise (docs/performance.md).

It is a short cut and no second way of working. The moves are those that the operation's machine would make, found by
asking it once for each plan (``planning.moves_of``). Where one cannot be made at once, for the peer is late, its ring
full, its chunk not the one that is due, the moves made so far are told to machine and ledger, and the operation goes on
like any other (``_goes_on``). What was posted is an ordinary frame: who is not in lockstep takes it in as such.

**What is not acknowledged must not be lost.** Memory loses nothing, and what the peer has read it has, in its ledger or
parked. But the connection may end before it has read. So what was posted stays where it lies until it was read as a
whole, and when a path to the peer changes what was not is sent again (``resync``), as ordinary chunks, and the ledger
over there drops what it has. That is all that is kept, and copied only then.

Only operations in which every rank hears of every other are for it, so nobody runs ahead of a rank by more than one
operation of a communicator. What is small, and goes out from a copy anyway, needs no credit then; else it does.
"""

from __future__ import annotations

import math
from typing import Protocol

from r2ccl.actors.asks import Asks
from r2ccl.actors.courier import Courier
from r2ccl.actors.failing import Failing
from r2ccl.actors.inbox import Inbox
from r2ccl.actors.operation import Move, Operation, Planned
from r2ccl.actors.sending import Sending
from r2ccl.actors.shared import Shared
from r2ccl.protocol.collective import begin
from r2ccl.protocol.lanes import Parcel
from r2ccl.protocol.ledger import Ledger
from r2ccl.protocol.wire import Flag, Header, Kind, pack_header
from r2ccl.telemetry.counters import LinkCounters
from r2ccl.transport.interface import Posts

#: A number, because every header's kind is compared with it.
_CHUNK = Kind.CHUNK.value
_LOCKSTEP = Flag.LOCKSTEP
#: So many operations are done within a call each; then the loop has a turn. Whoever awaits the last lets it have that,
#: and what is called before, such as by what each one's end calls back, goes the usual way.
CALLS_PER_TURN = 16
#: One of more than this takes all of a turn's share, and chunks need credit.
SMALL_BYTES = 128 << 10
#: Each move may have to be waited for. So many are waited for in any case; of longer operations no more is begun in
#: lockstep after this long.
MOVES_UNTIMED = 4
LONGEST_S = 0.01
#: A peer that no memory is shared with may share some later.
LOOK_AGAIN_AFTER = 256


class Host(Protocol):
    """A coordinator, as far as it is needed here."""

    communicator: int
    shared: Shared
    courier: Courier
    ledger: Ledger
    running: dict[int, Operation]
    failing: Failing
    asks: Asks

    def announce(self, operation: Operation, peer: int) -> None: ...
    def end(self, operation: Operation) -> None: ...
    def end_if_complete(self, operation: Operation) -> None: ...


class Lockstep:
    """One communicator's."""

    def __init__(self, host: Host, inbox: Inbox, sending: Sending) -> None:
        self._host = host
        self._inbox = inbox
        self._sending = sending
        self._rank = host.shared.rank
        self._courier = host.courier
        self._ledger = host.ledger
        self._communicator = host.communicator
        self._clock = host.shared.clock
        self._is_possible = not host.shared.one_sided
        #: The short way to a peer, and the counters of its link.
        self._ways: dict[int, tuple[Posts, LinkCounters]] = {}
        #: Peers that no memory is shared with, and how often we declined because of them.
        self._without: set[int] = set()
        self._declined = 0
        self._calls_left = CALLS_PER_TURN

    def start(self, operation: Operation) -> bool:
        """Start an operation that was numbered and may start. False: nothing was done."""
        moves, number = operation.planned.moves, operation.number
        if not moves or not self._is_possible or not self._is_usual(number) or not self._may_reach(moves):
            return False
        parked = self._inbox.parked.get(number, ())
        if parked and any(header.flags != _LOCKSTEP for header, _ in parked):
            return False
        until_s = math.inf
        for made, move in enumerate(moves):
            if made == MOVES_UNTIMED:
                until_s = self._clock.now() + LONGEST_S
            is_late = made > MOVES_UNTIMED and self._clock.now() > until_s
            if is_late or not (self._post(operation, move) if move.is_send else self._take(operation, move)):
                if made:
                    self._goes_on(operation, moves[:made])
                return made > 0
        self._all_made(operation)
        return True

    def _all_made(self, operation: Operation) -> None:
        number = operation.number
        self._ledger.finish(number)
        self._all_entered(operation)
        if number in self._inbox.parked:
            for move in operation.planned.moves:
                if not move.is_send:
                    self._inbox.drop_parked(number, move)
        self._calls_left -= 1 if len(operation.arrays[0].bytes) <= SMALL_BYTES else CALLS_PER_TURN
        if self._calls_left <= 0:
            operation.work.give_way()
            self._host.shared.loop.call_soon(self._turn)
        self._host.end(operation)

    def _all_entered(self, operation: Operation) -> None:
        """It is known of who says nothing to us, too."""
        for peer in operation.planned.unheard:
            self._courier.peer_entered(peer, self._communicator, operation.number)

    def _turn(self) -> None:
        """The loop has had a turn."""
        self._calls_left = CALLS_PER_TURN

    def _is_usual(self, number: int) -> bool:
        """Nothing else runs, nobody said anything about this operation or has left, and the loop has its turns."""
        host = self._host
        failing = host.failing
        return (
            self._calls_left > 0
            and not host.running
            and self._ledger.completed == number
            and not failing.left
            and failing.differences.are_silent_on(number)
        )

    def _may_reach(self, moves: tuple[Move, ...]) -> bool:
        """Is there no peer among them that no memory is shared with?"""
        if not self._without or not any(move.peer in self._without for move in moves):
            return True
        self._declined += 1
        if self._declined % LOOK_AGAIN_AFTER == 0:
            self._without.clear()
        return False

    def resync(self, peer: int) -> None:
        """A path to the peer changed: it may not have read what was posted."""
        self._without.discard(peer)
        way = self._ways.pop(peer, None)
        host, failed_from = self._host, self._inbox.failed_from
        if way is None or peer in host.failing.left or peer in host.shared.lost:
            return
        for (_, number, move, planned), payload in way[0].left(self):
            # What came before a failure, or before we left, the peer may still wait for.
            if failed_from is None or number < failed_from:
                self._send_again(number, move, planned, payload)

    def _send_again(self, number: int, move: Move, planned: Planned, payload: bytes) -> None:
        parcel = Parcel(
            self._communicator, number, move.step, move.peer, 0, move.fingerprint, payload, None, move.part,
            planned.chunk_bytes, self._courier.take_turn(),
        )  # fmt: skip
        if not self._courier.submit(parcel):
            self._host.asks.ask_about(number, planned, move.peer)

    # Moves.

    def _way(self, peer: int) -> tuple[Posts, LinkCounters] | None:
        for lane in self._courier.lanes[peer]:
            link = lane.link
            if link is None or link.bulk is None or link.checks:
                continue
            posts = link.bulk.posts
            if posts is not None:
                way = self._ways[peer] = (posts, link.counters)
                return way
        self._without.add(peer)
        return None

    def _post(self, operation: Operation, move: Move) -> bool:
        way = self._ways.get(move.peer) or self._way(move.peer)
        if way is None:
            return False
        posts, counters = way
        number, start, stop = operation.number, move.start, move.stop
        payload, size = operation.arrays[move.array].bytes[start:stop], stop - start
        is_free = size <= SMALL_BYTES and operation.planned.copied[move.part]
        if not is_free and not self._courier.outboxes[move.peer].may_post(self._communicator, number, size):
            return False
        header = pack_header(
            _CHUNK, _LOCKSTEP, size, self._communicator, number, move.step, self._rank, move.peer, 0, move.fingerprint,
            number,
        )  # fmt: skip
        if not posts.post(header, payload, (self, number, move, operation.planned)):
            return False
        counters.sent_bytes += size
        counters.sent_chunks += 1
        return True

    def _take(self, operation: Operation, move: Move) -> bool:
        for header, payload in self._inbox.parked.get(operation.number, ()):
            if self._is_due(operation, move, header):
                self._inbox.coordinator.take(operation, move.part, memoryview(payload))
                return True
        way = self._ways.get(move.peer) or self._way(move.peer)
        if way is None:
            return False
        posts, counters = way
        frame = posts.next_frame(True)
        if frame is None or not self._is_due(operation, move, frame[0]):
            return False
        self._inbox.coordinator.take(operation, move.part, frame[1])
        posts.take(frame)
        counters.received_bytes += move.stop - move.start
        counters.received_chunks += 1
        if move.is_final:
            self._all_entered(operation)
        outbox = self._courier.outboxes[move.peer]
        if not outbox.is_level(self._communicator, operation.number):
            self._courier.completed_by(move.peer, self._communicator, operation.number)
            self._courier.peer_entered(move.peer, self._communicator, operation.number)
        return True

    def _is_due(self, operation: Operation, move: Move, header: Header) -> bool:
        number = operation.number
        name = (self._communicator, number, move.step, move.peer, self._rank, 0, move.fingerprint)
        return (
            header.kind == _CHUNK
            and header.flags == _LOCKSTEP
            and header[4:11] == name  # from its communicator to its fingerprint
            and header.payload_bytes == move.stop - move.start
            and header.acknowledged == number
        )

    def _goes_on(self, operation: Operation, made: tuple[Move, ...]) -> None:
        """Not all could be done at once: from here on the operation is one like any other."""
        host, number = self._host, operation.number
        machine = operation.machine = begin(operation.planned.waits)
        operation.turn = self._courier.take_turn()
        host.running[number] = operation
        for peer in operation.hearers(False):
            host.announce(operation, peer)
        to_send = dict.fromkeys(machine.start())
        for move in made:
            if move.is_send:
                del to_send[move.part, 0]
                machine.settled(move.part)
            else:
                if not self._inbox.drop_parked(number, move):
                    self._ledger.accept(number, move.step, move.peer, 0)
                    self._ledger.owe_nothing(number, move.step, move.peer)
                to_send.update(dict.fromkeys(machine.applied(move.part, 0)[0]))
                operation.received_all(move.part)
        for piece in to_send:
            self._sending.send(operation, piece)
        if number in self._inbox.parked:
            self._inbox.unpark(operation)
        host.end_if_complete(operation)
        host.failing.fail_without(operation)
