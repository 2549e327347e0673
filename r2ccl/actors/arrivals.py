"""The arrivals desk: takes all chunks of all connections, and hands each to the inbox of its communicator.

Members make a communicator at different moments, so chunks of one that does not exist here yet are kept, up to a bound,
and acknowledged: what waits for a communicator must not fill the lane that others share, for its making may wait for
them. A chunk of a message between two ranks makes the channel it belongs to."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

from r2ccl.actors.courier import Courier
from r2ccl.actors.inbox import AHEAD_MAX, CHUNKS_MAX, Inbox, Landing
from r2ccl.actors.operation import Scratch
from r2ccl.actors.shared import Shared
from r2ccl.protocol.ledger import Ledger, frames_of
from r2ccl.protocol.wire import CHUNK_BYTES_MAX, Ack, BadFrame, Flag, Header, Kind, OpenTransfer
from r2ccl.transport.interface import Connection

#: Kept for communicators that this rank has not made, for each rank of the job: far beyond any credit. What one chunk
#: takes besides its bytes.
STRANGERS_BYTES_MAX = 64 << 20
STRANGER_BYTES = 512
#: Communicators and channels that are remembered after their end, for what is late: a chunk in the buffer of a peer
#: that was stopped, a goodbye that is said again after a minute. With ten ended a second that is most of an hour.
RETIRED_MAX = 1 << 15


class _ToCome:
    """A communicator that this rank has not made yet: what arrived, which its inbox will take over."""

    __slots__ = ("chunks", "ledger")

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.chunks: list[tuple[Header, bytes]] = []


class ArrivalsDesk:
    """All communicators' incoming chunks. What ports call; see transport.interface.Receiver."""

    def __init__(self, shared: Shared, courier: Courier) -> None:
        self._shared = shared
        self._courier = courier
        self._inboxes: dict[int, Inbox] = {}
        #: Those that got something since the last batch ended, in order.
        self._touched: dict[Inbox, None] = {}
        #: Communicators that are no more, the latest of them.
        self._retired: dict[int, None] = {}
        #: Makes the channel that a message of a rank (source, tag) is the first of, if it is one.
        self.adopt: Callable[[int, int, int], object] = lambda communicator, source, tag: None
        #: Connection -> the chunk it is receiving in place.
        self._landings: dict[Connection, Landing] = {}
        self._headers: dict[Connection, Header] = {}
        self._to_come: dict[int, _ToCome] = {}
        self._strangers_kept = 0
        courier.resyncs.append(self._resync)
        #: A mapping, so that its pages exist only when something was thrown away, and go when it goes: a block this
        #: size from the allocator ends in the heap, once one was freed, and keeps that from shrinking.
        self._trash = memoryview(mmap.mmap(-1, CHUNK_BYTES_MAX))

    def add(self, inbox: Inbox) -> None:
        """A communicator exists here from now on."""
        self._inboxes[inbox.communicator] = inbox
        to_come = self._to_come.pop(inbox.communicator, None)
        if to_come is None:
            return
        for header, payload in to_come.chunks:
            self._strangers_kept -= STRANGER_BYTES + len(payload)
            inbox.take_over(header, payload)
        for peer in self._shared.peers:
            self._ask_again(peer, inbox.communicator, to_come.ledger)

    def ledger(self, communicator: int) -> Ledger:
        """The ledger of a communicator that is being made: it knows what has come."""
        to_come = self._to_come.get(communicator)
        return Ledger() if to_come is None else to_come.ledger

    def strangers(self) -> list[tuple[int, int, int]]:
        """(communicator, source, step) of chunks that are kept for communicators to come."""
        return [
            (number, header.source, header.step) for number, kept in self._to_come.items() for header, _ in kept.chunks
        ]

    def stranded_bytes(self) -> int:
        """Of those chunks."""
        return sum(len(payload) for kept in self._to_come.values() for _, payload in kept.chunks)

    def forget(self, communicator: int) -> None:
        """A communicator has failed that this rank has not made, and so called nothing in: keep nothing of it."""
        to_come = self._to_come.get(communicator)
        if to_come is not None:
            self._drop(to_come, lambda _: True)

    def abandon(self, peer: int) -> None:
        """A rank is gone: no communicator that it is in will work."""
        for to_come in self._to_come.values():
            self._drop(to_come, lambda header: header.source == peer)

    def _drop(self, to_come: _ToCome, unwanted: Callable[[Header], bool]) -> None:
        chunks = to_come.chunks
        self._strangers_kept -= sum(STRANGER_BYTES + len(payload) for header, payload in chunks if unwanted(header))
        to_come.chunks = [chunk for chunk in chunks if not unwanted(chunk[0])]

    def retire(self, communicator: int) -> None:
        """A communicator is no more. What still comes of it is late: nobody waits for it."""
        del self._inboxes[communicator]
        self._retired[communicator] = None
        if len(self._retired) > RETIRED_MAX:
            del self._retired[next(iter(self._retired))]

    def is_retired(self, communicator: int) -> bool:
        """Is it no more?"""
        return communicator in self._retired

    def close(self) -> None:
        """The rank ends: what hardware reports as written while its connections are ended concerns nobody."""
        self._inboxes.clear()

    def destination(self, connection: Connection, header: Header) -> memoryview:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        self._verify(connection, header)
        inbox = self._inbox(header)
        if inbox is None:
            is_late = header.communicator in self._retired
            landing = Landing(None, None, 0, None if is_late else Scratch(header.payload_bytes))
        else:
            inbox.check(header)
            landing = inbox.place(connection, header)
            inbox.note(header)
        self._landings[connection] = landing
        self._headers[connection] = header
        if landing.inbox is None:
            return self._trash[: header.payload_bytes] if landing.scratch is None else landing.scratch.view
        return landing.inbox.memory(landing, header)

    def _inbox(self, header: Header) -> Inbox | None:
        inbox = self._inboxes.get(header.communicator)
        if inbox is None:
            self.adopt(header.communicator, header.source, header.step)
            inbox = self._inboxes.get(header.communicator)
        if inbox is not None:
            self._touched[inbox] = None
        return inbox

    def landed(self, connection: Connection, header: Header) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        landing = self._landings.pop(connection, None)
        if landing is None:
            landing = self._written(connection, header)
            if landing is None:
                return
        else:
            del self._headers[connection]
        self._count(connection, header)
        if landing.inbox is not None:
            self._touched[landing.inbox] = None
            landing.inbox.landed(connection, landing, header, self._displace)
        elif landing.scratch is not None:
            self._whole(connection, header, landing.scratch.view)

    def _written(self, connection: Connection, header: Header) -> Landing | None:
        """A one-sided write was notified: its bytes are where we had said. None: nobody wants them any more."""
        self._verify(connection, header)
        inbox = self._inboxes.get(header.communicator)
        operation = None if inbox is None else inbox.running.get(header.operation)
        if inbox is None or operation is None:
            return None
        inbox.check(header)
        receive = inbox.fit(operation, header)
        inbox.note(header)
        return None if receive < 0 else Landing(inbox, operation, receive, None)

    def chunk(self, connection: Connection, header: Header, payload: memoryview) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        self._verify(connection, header)
        self._count(connection, header)
        self._whole(connection, header, payload)

    def _whole(self, connection: Connection, header: Header, payload: memoryview) -> None:
        inbox = self._inbox(header)
        if header.communicator in self._retired:
            return
        if inbox is None:
            self._keep(connection, header, bytes(payload))
            return
        inbox.check(header)
        inbox.whole(connection, header, payload, self._displace)

    def _keep(self, connection: Connection, header: Header, payload: bytes) -> None:
        if header.operation > AHEAD_MAX or header.chunk >= CHUNKS_MAX:
            raise BadFrame(f"chunk {header.chunk} of operation {header.operation} is too far ahead")
        to_come = self._to_come.get(header.communicator)
        if to_come is None:
            to_come = self._to_come[header.communicator] = _ToCome()
        name = (header.operation, header.step, header.source, header.chunk)
        if to_come.ledger.has(*name):
            self._shared.counters.link(connection.local_nic, header.source).duplicate_chunks += 1
        elif self._strangers_kept + STRANGER_BYTES + len(payload) > STRANGERS_BYTES_MAX * self._shared.size:
            raise BadFrame("too much for communicators that do not exist here")
        else:
            self._strangers_kept += STRANGER_BYTES + len(payload)
            to_come.chunks.append((header, payload))
        to_come.ledger.accept(*name)
        self._say_arrived(header.source, header.communicator, to_come.ledger.acknowledge(header.source))

    def _say_arrived(self, peer: int, communicator: int, transfers: tuple[OpenTransfer, ...]) -> None:
        for some in frames_of(transfers):
            self._courier.tell(peer, Kind.ACK, Ack(communicator, 0, some).body())

    def _ask_again(self, peer: int, communicator: int, ledger: Ledger) -> None:
        for name in ledger.missing(peer):
            self._courier.tell(peer, Kind.REPEAT, [communicator, *name])

    def _resync(self, peer: int) -> None:
        """A path changed: say again what the peer may have missed about communicators to come."""
        for communicator, to_come in self._to_come.items():
            transfers = to_come.ledger.acknowledge_all(peer)
            if transfers:
                self._say_arrived(peer, communicator, transfers)
            self._ask_again(peer, communicator, to_come.ledger)

    def spoiled(self, connection: Connection, header: Header) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`. The chunk is asked for again, unless it is a duplicate.

        A duplicate is often wrong: its memory belongs to what came after, once the first copy had arrived.
        """
        self._let_go(connection)
        if self._ask_for(connection, header):
            self._shared.counters.link(connection.local_nic, header.source).spoiled_chunks += 1

    def trimmed(self, connection: Connection, header: Header) -> None:
        """A relay had room for the chunk's header only: as one that is spoiled, but nobody's fault."""
        self._verify(connection, header)
        if header.kind != Kind.CHUNK:
            raise BadFrame(f"a frame of kind {header.kind} was trimmed")
        self._ask_for(connection, header)

    def _ask_for(self, connection: Connection, header: Header) -> bool:
        """Ask for a chunk again. False: it was here already."""
        inbox = self._inboxes.get(header.communicator)
        if inbox is not None and inbox.has(header):
            self._touched[inbox] = None
            inbox.duplicate(connection, header)
            return False
        if header.communicator in self._retired:
            return True
        ledger = self._to_come.setdefault(header.communicator, _ToCome()).ledger if inbox is None else inbox.ledger
        copy = header.flags >> Flag.COPY_SHIFT
        ledger.spoiled(header.operation, header.step, header.source, header.chunk, copy)
        name = [header.communicator, header.operation, header.step, header.chunk, copy]
        self._courier.tell(header.source, Kind.REPEAT, name)
        return True

    def connection_over(self, connection: Connection) -> None:
        """The connection writes no more: what it was receiving is anybody's again."""
        self._let_go(connection)

    def batch_ended(self, connection: Connection) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        # Not all there are: every channel of messages has one.
        touched, self._touched = self._touched, {}
        for inbox in touched:
            if inbox.acks_wanted or inbox.acks_owed:
                inbox.coordinator.flush_acks()

    def withdraw(self, communicator: int, operation: int) -> None:
        """Operations from this one on failed: no path may write to their memory any more (decision 7)."""
        for connection in list(self._landings):
            header = self._headers[connection]
            if header.communicator == communicator and header.operation >= operation:
                self._let_go(connection)
                connection.discard_incoming()

    def _displace(self, connection: Any) -> None:
        """A twin was faster: the first writer discards, before anybody else touches the destination."""
        if connection in self._landings:
            connection.discard_incoming()
            self._release(self._landings.pop(connection))
            del self._headers[connection]

    def _let_go(self, connection: Connection) -> None:
        landing = self._landings.pop(connection, None)
        if landing is None:
            return
        header = self._headers.pop(connection)
        if landing.inbox is not None:
            name = (header.operation, header.step, header.source, header.chunk)
            landing.inbox.ledger.forsake(*name, connection)
        self._release(landing)

    def _release(self, landing: Landing) -> None:
        if landing.scratch is not None and landing.inbox is not None:
            landing.inbox.pool.give(landing.scratch)

    def _count(self, connection: Connection, header: Header) -> None:
        counters = self._shared.counters
        link = counters.link(connection.local_nic, header.source)
        link.received_bytes += header.payload_bytes
        link.received_chunks += 1
        self._courier.arrived(header.source, header.payload_bytes)
        if counters.arrivals is not None:
            counters.arrivals.append((self._shared.clock.now(), connection.local_nic, header.payload_bytes))

    def _verify(self, connection: Connection, header: Header) -> None:
        if header.source != connection.peer or header.target != self._shared.rank:
            raise BadFrame(f"a chunk from {header.source} to {header.target} on a connection of rank {connection.peer}")
