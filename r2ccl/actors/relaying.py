"""Relays: what this rank carries for others, and the port whose links others carry (``protocol.relay``).

A rank carries for any two of its peers that it has a link in service with, if they ask; it is not asked whether it
wants to. It keeps nothing but what waits in the connection to the target, which is bounded (R2CCL_RELAY_QUEUE).

A relayed link is a last resort: it is tried where no direct link is in service, together with links across rails, and
dismissed as soon as a direct one is up; its lane then finds that one, with what was not acknowledged at the head of the
queue, as after any loss.
"""

from __future__ import annotations

from collections.abc import Iterable

from r2ccl.actors.circuits import RelayConnection, RelayDevice, Way
from r2ccl.actors.courier import Courier
from r2ccl.actors.link import Link
from r2ccl.actors.links import Port
from r2ccl.actors.receivers import Arrivals, Switchboard
from r2ccl.actors.shared import Shared
from r2ccl.ids import RELAY_NIC
from r2ccl.protocol import session_events as session
from r2ccl.protocol.nic_session import LinkState
from r2ccl.protocol.relay import EXPECTING, Word, check_hop, pack_relayed, read_relayed, trim
from r2ccl.protocol.wire import HEADER_BYTES, Header, repack_header
from r2ccl.topology import Member
from r2ccl.transport.interface import Connection, Purpose

#: A rank that closes goes on carrying for others until nobody has asked it to for so long: two goodbyes' time.
IDLE_S = 0.25
#: What may wait in the control connection to a peer: frames of control are small, and dropping one ends its circuit.
CONTROL_QUEUE_BYTES_MAX = 4 << 20


class Relays:
    """What links bring that is no frame of theirs: carried on, or handed to the circuit that it belongs to."""

    def __init__(self, shared: Shared, courier: Courier) -> None:
        self._shared = shared
        self._courier = courier
        self.device = RelayDevice(shared, self.way_to, self._use)
        #: Connection -> the relayed frame that is being received on it.
        self._incoming: dict[Connection, bytearray] = {}
        #: When it last carried something for others.
        self._carried_at_s = -IDLE_S

    @property
    def is_needed(self) -> bool:
        """Others say goodbye to one another through this rank, and would wait for the grace time if it went."""
        return self._shared.clock.now() < self._carried_at_s + IDLE_S

    def way_to(self, rank: int) -> Way | None:
        """A direct link in service to a rank, rather one that is not late; always the same, so that frames keep their
        order."""
        links = [link for link in self._courier.links_up(rank) if not link.id.is_relayed]
        return Way.over(min(links, key=lambda link: link.is_late, default=None))

    def _use(self, way: Way) -> None:
        """The link may serve no lane of ours: it is watched as long as anything is in flight on it."""
        if not way.link.watched:
            way.link.watched = True
            self._courier.on_busy()

    # What ports say.

    def destination(self, connection: Connection, header: Header) -> memoryview:
        """Where a large relayed frame goes."""
        frame = self._incoming[connection] = bytearray(header.payload_bytes)
        return memoryview(frame)

    def landed(self, link: Link | None, connection: Connection, header: Header) -> None:
        """A large relayed frame is there."""
        self.arrived(link, connection, header, self._incoming.pop(connection))

    def arrived(
        self, link: Link | None, connection: Connection, header: Header, payload: bytearray | memoryview
    ) -> None:
        """A relayed frame. Raises :class:`BadFrame`."""
        check_hop(header, connection.peer, self._shared.rank, self._shared.size)
        if link is None or connection not in (link.control, link.bulk):
            return
        if header.target == self._shared.rank:
            self.device.heard(link, read_relayed(header), payload)
        else:
            self._carry(link, connection, header, payload)

    def _carry(self, link: Link, connection: Connection, header: Header, payload: bytearray | memoryview) -> None:
        counters, frame = self._shared.counters, read_relayed(header)
        is_bulk = connection.purpose is Purpose.BULK
        way = self.way_to(header.target)
        on = None if way is None else way.bulk if is_bulk else way.control
        waiting_bytes = 0 if on is None else on.sample().unsent_bytes
        if way is None or on is None or (not is_bulk and waiting_bytes > CONTROL_QUEUE_BYTES_MAX):
            if link.control is not None and frame.word in EXPECTING:
                answer = pack_relayed(Word.NO_ROUTE, header.target, header.source, header.communicator)
                link.control.send(answer, b"")
            return
        self._carried_at_s = self._shared.clock.now()
        whole = repack_header(header)
        if frame.word is Word.FRAME and is_bulk and waiting_bytes > self._shared.settings.relay_queue_bytes:
            counters.relay_dropped_frames += 1
            whole, payload = trim(frame), payload[:HEADER_BYTES]
        counters.relayed_bytes += len(payload)
        # A small payload is lent for this call only.
        on.send(whole, bytes(payload) if isinstance(payload, memoryview) else memoryview(payload))
        self._use(way)

    def spoiled(self, connection: Connection) -> None:
        """Its checksum is wrong; it is missed by its number."""
        self._incoming.pop(connection, None)

    def connection_over(self, connection: Connection) -> None:
        """A connection of a link ended."""
        self._incoming.pop(connection, None)
        self.device.carrier_lost(connection)

    def batch_ended(self) -> None:
        """No more events of a link in this turn of the loop."""
        self.device.batch_ended()


class RelayPort(Port):
    """The port of relayed links: one to each peer that is not reached otherwise."""

    def __init__(
        self, shared: Shared, relays: Relays, arrivals: Arrivals, switchboard: Switchboard, courier: Courier
    ) -> None:
        super().__init__(shared, relays.device, arrivals, switchboard, relays)
        self._courier = courier
        #: peer -> when it was last dialled at once.
        self._dialled_at_s: dict[int, float] = {}
        #: Those for whom a period runs, at the end of which they are dialled.
        self._waiting: set[int] = set()
        relays.device.on_trimmed = arrivals.trimmed

    def remote_nics(self, member: Member) -> Iterable[int]:
        """See :meth:`Port.remote_nics`."""
        return (RELAY_NIC,)

    def left_alone(self, peer: int, remote_nic: int) -> None:
        """No link to the peer is in service. If it is the peer that dials, it may not know yet, and is asked to.

        At most once in a redial period: a circuit takes less than a millisecond to be made, and one that ends as soon
        would be made, and everything that was sent on it sent again, a thousand times a second.
        """
        if peer in self._left or peer in self._waiting:
            return
        now, period_s = self._shared.clock.now(), self._shared.settings.redial_s
        wait_s = self._dialled_at_s.get(peer, -period_s) + period_s - now
        if wait_s > 0:
            self._waiting.add(peer)
            self._shared.timers.after(wait_s, self._still_alone, peer)
            return
        self._dialled_at_s[peer] = now
        super().left_alone(peer, remote_nic)
        self.probe(peer, remote_nic)

    def _still_alone(self, peer: int) -> None:
        self._waiting.discard(peer)
        if not self._switchboard.has_path(peer):
            self.left_alone(peer, RELAY_NIC)

    def probe(self, peer: int, remote_nic: int) -> None:
        """Ask the peer to dial. Who dials itself does so by its session's timer."""
        if peer in self._left:
            return
        link = self.link(peer, remote_nic)
        if not link.session.dialler and link.session.state in (LinkState.ABSENT, LinkState.DOWN):
            super().probe(peer, remote_nic)

    def _probe_answered(self, connection: Connection) -> None:
        link = self.link(connection.peer, RELAY_NIC)
        if connection in link.dials:
            link.dials.remove(connection)
            connection.abort()
            self._switchboard.peer_answered(connection.peer)
            return
        super().left_alone(connection.peer, RELAY_NIC)

    def dismiss(self, peer: int, cause: str) -> None:
        """A direct link to the peer is in service."""
        link = self.links.get((peer, RELAY_NIC))
        if link is not None and link.session.state is not LinkState.ABSENT:
            self.step(link, session.Dismissed(cause))

    def tidy(self) -> None:
        """Dismiss what is not needed here: a peer may have dialled when a direct link was up again."""
        for link in list(self.links.values()):
            if link.lane is None and any(not other.id.is_relayed for other in self._courier.links_up(link.id.peer)):
                self.dismiss(link.id.peer, "not needed")

    def established(self, connection: Connection) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        super().established(connection)
        if isinstance(connection, RelayConnection) and connection.purpose is Purpose.CONTROL and connection.way:
            self._shared.events.record("relayed", peer=connection.peer, by=connection.way.carrier)
