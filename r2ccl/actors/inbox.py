"""One communicator's incoming chunks: where the bytes of each go, and what happens when they are there.

For every chunk whose header was read the inbox asks the ledger, and picks the memory: the user's array if the chunk is
the first of its name and is to be copied there; a scratch piece if it is to be reduced, must wait its turn, or is a
twin; parked memory if the operation has not been called here yet; nothing at all if it is a duplicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from r2ccl.actors.courier import Courier
from r2ccl.actors.operation import Move, Operation, Scratch, ScratchPool
from r2ccl.actors.shared import Shared
from r2ccl.protocol.ledger import Ledger, Offer
from r2ccl.protocol.outbox import OPERATIONS_AHEAD_MAX
from r2ccl.protocol.wire import BadFrame, Flag, Header
from r2ccl.transport.interface import Connection

#: An operation number further ahead than this is no number of a peer that keeps the rules.
AHEAD_MAX = 4 * OPERATIONS_AHEAD_MAX
#: No transfer has as many chunks: a bitmap of 8 MiB.
CHUNKS_MAX = 1 << 26

#: Makes a connection discard what it still receives.
Displace = Callable[[Any], None]


class Landing:
    """A chunk that is being received in place: on loan to one connection."""

    __slots__ = ("inbox", "operation", "receive", "scratch")

    def __init__(self, inbox: Inbox | None, operation: Operation | None, receive: int, scratch: Scratch | None) -> None:
        #: None: the bytes are to be thrown away.
        self.inbox = inbox
        #: None: not called here yet, the bytes are parked.
        self.operation = operation
        self.receive = receive
        #: None: the destination is the user's buffer.
        self.scratch = scratch


class Coordinator(Protocol):
    """Who decides what arrived pieces mean."""

    def piece_arrived(self, operation: Operation, receive: int, chunk: int, scratch: Scratch | None) -> None: ...
    def whole_arrived(self, operation: Operation, receive: int, chunk: int, payload: memoryview) -> None: ...
    def exchange_arrived(self, operation: Operation, payload: memoryview) -> None: ...
    def take(self, operation: Operation, receive: int, payload: memoryview) -> None: ...
    def calls_differ(self, header: Header) -> None: ...
    def misfit(self, header: Header, why: BadFrame) -> None: ...
    def peer_reached(self, peer: int, operation: int) -> None: ...
    def flush_acks(self) -> None: ...


class Express(Protocol):
    """See ``actors.express``."""

    def arrived(self, operation: Operation, header: Header, payload: memoryview) -> bool: ...


class Inbox:
    """One communicator's incoming chunks."""

    def __init__(
        self,
        communicator: int,
        shared: Shared,
        courier: Courier,
        coordinator: Coordinator,
        pool: ScratchPool,
        ledger: Ledger,
    ) -> None:
        self.communicator = communicator
        self.ledger = ledger
        self.pool = pool
        #: Operations that run: machine started, receives known.
        self.running: dict[int, Operation] = {}
        #: Chunks of operations not called yet: within the senders' credit.
        self.parked: dict[int, list[tuple[Header, bytes | bytearray]]] = {}
        #: Peers that wait for an acknowledgement now, and those that can wait a little.
        self.acks_wanted: set[int] = set()
        self.acks_owed: set[int] = set()
        self.failed_from: int | None = None
        #: Called when something came of an operation that was not called here yet.
        self.on_unclaimed: Callable[[], None] = lambda: None
        self.coordinator = coordinator
        #: The short way of small chunks; None until there is one.
        self.express: Express | None = None
        self._shared = shared
        self._courier = courier

    def check(self, header: Header) -> None:
        """Refuse what no peer that keeps the rules would send."""
        if header.operation > self.ledger.completed + AHEAD_MAX or header.chunk >= CHUNKS_MAX:
            raise BadFrame(f"chunk {header.chunk} of operation {header.operation} is too far ahead")

    def note(self, header: Header) -> None:
        """What every chunk's header tells besides: how far its sender is, and what it has of ours. Not before its call
        was compared with ours: to hear that a peer has entered may end an operation."""
        self.coordinator.peer_reached(header.source, max(header.operation, header.acknowledged - 1))
        if header.acknowledged:
            self._courier.completed_by(header.source, self.communicator, header.acknowledged)

    def place(self, connection: Connection, header: Header) -> Landing:
        """Decide where a chunk goes that is received in place."""
        offer = self.ledger.offer(header.operation, header.step, header.source, header.chunk, connection)
        if offer is Offer.DUPLICATE:
            self.duplicate(connection, header)
            return Landing(None, None, 0, None)
        operation = self.running.get(header.operation)
        if operation is None:
            return Landing(self, None, 0, self.pool.take(header.payload_bytes))
        receive = self.fit(operation, header)
        if receive < 0:
            self.ledger.forsake(header.operation, header.step, header.source, header.chunk, connection)
            return Landing(None, None, 0, None)
        assert operation.machine is not None
        planned = operation.planned
        copied = not planned.waits.program.receives[receive].reduce and not planned.receive_pieces[receive]
        in_place = copied and offer is Offer.FIRST and operation.machine.may_apply(receive, header.chunk)
        return Landing(self, operation, receive, None if in_place else self.pool.take(header.payload_bytes))

    def fit(self, operation: Operation, header: Header) -> int:
        """The receive that the chunk belongs to; -1: the sender called something else, and the coordinator knows."""
        planned = operation.planned
        receive = planned.waits.receive_index.get((header.step, header.source), -1)
        expected = planned.fingerprint if receive < 0 else planned.receive_marks[receive]
        if header.fingerprint != expected:
            self.coordinator.calls_differ(header)
            return -1
        if receive < 0 or header.chunk >= planned.waits.receive_chunks[receive]:
            raise BadFrame(
                f"operation {header.operation} has no chunk {header.chunk} of step {header.step} from {header.source}"
            )
        start, stop = planned.receive_spans[receive][header.chunk]
        if stop - start != header.payload_bytes:
            raise BadFrame(f"a chunk of {header.payload_bytes} bytes where {stop - start} are due")
        return receive

    def _fit_late(self, operation: Operation, header: Header) -> int:
        """As :meth:`fit` for a chunk that is acknowledged already: it will not come again, and who calls us now may
        have nothing to do with its connection."""
        try:
            return self.fit(operation, header)
        except BadFrame as bad:
            self.coordinator.misfit(header, bad)
            return -1

    def lacks(self, operation: Operation, source: int) -> bool:
        """Are there chunks of the operation that have not come from a member?"""
        waits = operation.planned.waits
        return any(
            receive.source == source
            and not all(self.ledger.has(operation.number, receive.step, source, chunk) for chunk in range(chunks))
            for receive, chunks in zip(waits.program.receives, waits.receive_chunks, strict=True)
        )

    def memory(self, landing: Landing, header: Header) -> memoryview:
        """The bytes that a landing stands for."""
        if landing.scratch is not None:
            return landing.scratch.view[: header.payload_bytes]
        assert landing.operation is not None
        planned = landing.operation.planned
        start, stop = planned.receive_spans[landing.receive][header.chunk]
        return landing.operation.arrays[planned.receive_arrays[landing.receive]].bytes[start:stop]

    def landed(self, connection: Connection, landing: Landing, header: Header, displace: Displace) -> None:
        """The bytes are there. A slower writer of the same chunk is displaced before anybody touches the
        destination."""
        counts, owner = self.ledger.accept(header.operation, header.step, header.source, header.chunk)
        self._owe(header, counts)
        if not counts:
            if landing.scratch is not None:
                self.pool.give(landing.scratch)
            self._shared.counters.link(connection.local_nic, header.source).duplicate_chunks += 1
            return
        if owner is not None and owner is not connection:
            displace(owner)
        operation = landing.operation
        if operation is None:
            # It may have been called while the chunk was on its way in.
            operation = self.running.get(header.operation)
            if operation is None:
                self._park(header, landing.scratch)
                return
            landing.receive = self._fit_late(operation, header)
        if landing.receive >= 0:
            self.coordinator.piece_arrived(operation, landing.receive, header.chunk, landing.scratch)
        elif landing.scratch is not None:
            self.pool.give(landing.scratch)

    def whole(self, connection: Connection, header: Header, payload: memoryview, displace: Displace) -> None:
        """A small chunk, all of it. As :meth:`landed`."""
        operation = self.running.get(header.operation)
        if operation is not None and self.express is not None and self.express.arrived(operation, header, payload):
            return
        receive = 0 if operation is None else self.fit(operation, header)
        self.note(header)
        if operation is None and header.operation in self.running:
            # What the header told ended an operation, and this one had waited for its place.
            operation = self.running[header.operation]
            receive = self.fit(operation, header)
        if receive < 0:
            return
        counts, owner = self.ledger.accept(header.operation, header.step, header.source, header.chunk)
        self._owe(header, counts)
        if not counts:
            self._shared.counters.link(connection.local_nic, header.source).duplicate_chunks += 1
            return
        if owner is not None:
            displace(owner)
        if operation is None:
            self._keep(header, bytes(payload))
        else:
            self.coordinator.whole_arrived(operation, receive, header.chunk, payload)

    def take_over(self, header: Header, payload: bytes) -> None:
        """A chunk that came, and was acknowledged, before the communicator was made here."""
        self.note(header)
        self._keep(header, payload)

    def unpark(self, operation: Operation) -> None:
        """The operation runs from now on: apply what came before."""
        for header, payload in self.parked.pop(operation.number, ()):
            self._shared.counters.parked_bytes -= len(payload)
            receive = self._fit_late(operation, header)
            if receive >= 0 and header.operation in self.running:
                self.coordinator.whole_arrived(operation, receive, header.chunk, memoryview(payload))
            # Its sender may wait to hear that we are here: what was parked counts against the credit until then.
            self._owe(header, False)
        self.coordinator.flush_acks()

    def forget(self, operation: int) -> None:
        """Operations from this one on failed: keep nothing of theirs."""
        self.failed_from = operation if self.failed_from is None else min(operation, self.failed_from)
        for number in [number for number in self.parked if number >= operation]:
            self._shared.counters.parked_bytes -= sum(len(payload) for _, payload in self.parked.pop(number))

    def let_go(self, operation: Operation) -> None:
        """The operation failed: what was held for its turn is free again."""
        held, operation.held = operation.held, None
        for scratch in () if held is None else held.values():
            if scratch is not None:
                self.pool.give(scratch)

    def _park(self, header: Header, scratch: Scratch | None) -> None:
        assert scratch is not None
        self._keep(header, bytes(scratch.view[: header.payload_bytes]))
        self.pool.give(scratch)

    def _keep(self, header: Header, payload: bytes) -> None:
        if self.failed_from is not None and header.operation >= self.failed_from:
            return
        self.parked.setdefault(header.operation, []).append((header, payload))
        self._shared.counters.parked_bytes += len(payload)
        self.on_unclaimed()

    def drop_parked(self, operation: int, move: Move) -> bool:
        """A parked chunk was used where it lay. Returns whether there was one."""
        for chunk in self.parked.get(operation, ()):
            header, payload = chunk
            if (header.step, header.source) == (move.step, move.peer):
                self._shared.counters.parked_bytes -= len(payload)
                self.parked[operation].remove(chunk)
                if not self.parked[operation]:
                    del self.parked[operation]
                return True
        return False

    def _owe(self, header: Header, is_new: bool) -> None:
        if header.flags & Flag.LOCKSTEP:
            if is_new:  # else it may have come before from who waits for the acknowledgement
                self.ledger.owe_nothing(header.operation, header.step, header.source)
            return
        (self.acks_wanted if header.flags & Flag.ACK_WANTED else self.acks_owed).add(header.source)

    def has(self, header: Header) -> bool:
        """Has the chunk arrived before?"""
        return self.ledger.has(header.operation, header.step, header.source, header.chunk)

    def duplicate(self, connection: Connection, header: Header) -> None:
        """A chunk that was here already: acknowledged again, no more."""
        self._shared.counters.link(connection.local_nic, header.source).duplicate_chunks += 1
        self._owe(header, False)
