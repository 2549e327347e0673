"""One NIC's links: their connections, and the session machine of each carried out.

A port is what a transport needs as its receiver. Chunks go straight on to the arrivals desk, control frames to the
switchboard, which is the runtime; everything about connections becomes an event of the link's session, whose effects
are carried out here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, assert_never

from r2ccl.actors.link import Link
from r2ccl.actors.receivers import Arrivals, RelayedFrames, Switchboard
from r2ccl.actors.shared import Shared
from r2ccl.ids import LinkId
from r2ccl.protocol import session_events as session
from r2ccl.protocol.dial_window import DialWindow
from r2ccl.protocol.echo import pack_echo, read_echo
from r2ccl.protocol.health import LinkHealth
from r2ccl.protocol.nic_session import LinkState, NicSession
from r2ccl.protocol.paths import is_rail
from r2ccl.protocol.wire import Header, Kind, unpack_body
from r2ccl.topology import Member
from r2ccl.transport.interface import Connection, Device, Loss, Purpose

#: Why a link is out of service whose peer said goodbye or is gone.
PEER_LEFT = "peer left"
#: A direct link is in service, so a relayed one is not needed.
DIRECT_AGAIN = "a direct link is up"
#: A plain number, because every frame's kind is compared with it.
_RELAYED: Final = Kind.RELAYED.value


class Port:
    """One NIC, its device, and all links that leave by it. A Receiver for the device."""

    def __init__(
        self, shared: Shared, device: Device, arrivals: Arrivals, switchboard: Switchboard, relays: RelayedFrames
    ) -> None:
        self.nic = device.nic
        self.device = device
        self.is_up = True
        self._shared = shared
        self._arrivals = arrivals
        self._switchboard = switchboard
        self._relays = relays
        #: (peer, remote NIC) -> link. Bounded by peers x their NICs.
        self.links: dict[tuple[int, int], Link] = {}
        self._left: set[int] = set()
        self._window = DialWindow()

    def link(self, peer: int, remote_nic: int) -> Link:
        """The link to a peer's NIC, made on first use."""
        link = self.links.get((peer, remote_nic))
        if link is None:
            shared, settings = self._shared, self._shared.settings
            ours, theirs = (len(shared.members[rank].nics) for rank in (shared.rank, peer))
            on_rail = is_rail(self.nic.index, remote_nic, ours, theirs)
            link = Link(
                LinkId(peer, self.nic.index, remote_nic),
                NicSession(shared.rank < peer, shared.session_times(), backup=not on_rail),
                LinkHealth(settings.silence_s, settings.bulk_silence_s),
                settings.heartbeat_s,
                shared.link_evidence(),
                shared.counters.link(self.nic.index, peer),
                shared.checks(peer),
                on_rail,
            )
            link.session.usable = self.is_up
            self.links[peer, remote_nic] = link
        return link

    def remote_nics(self, member: Member) -> Iterable[int]:
        """What links to a member can lead to from here."""
        return (nic.index for nic in member.nics)

    def tidy(self) -> None:
        """Now and then: let go of what nobody needs."""

    def want(self, peer: int, remote_nic: int) -> None:
        """The link shall exist; whoever of the two is the dialler dials."""
        if peer in self._left:
            return
        link = self.link(peer, remote_nic)
        is_first = link.session.state is LinkState.ABSENT and link.session.dialler and link.session.usable
        if not is_first or self._window.admit((peer, remote_nic)):
            self.step(link, session.Wanted())

    def _dialled(self, way: tuple[int, int]) -> None:
        """A dial is over, well or not: another may begin."""
        if self._window.over(way):
            # Not within this step: its effects come first.
            self._shared.timers.after(0.0, self._dial_next)

    def _dial_next(self) -> None:
        while (way := self._window.following()) is not None:
            self.want(*way)

    def left_alone(self, peer: int, remote_nic: int) -> None:
        """No link to the peer is in service: this one is needed now, also if no plan named it."""
        if peer not in self._left:
            self.step(self.link(peer, remote_nic), session.LeftAlone())

    def nic_went_down(self, cause: str) -> None:
        """Every link of this NIC is out of service, without waiting for silence."""
        self.is_up = False
        for link in list(self.links.values()):
            self.step(link, session.Encouraged(usable=False))
            self.step(link, session.Withdrawn(cause))

    def nic_came_back(self) -> None:
        """The NIC is a candidate again."""
        self.is_up = True
        for link in list(self.links.values()):
            self.step(link, session.Encouraged(usable=True))

    def probe(self, peer: int, remote_nic: int) -> None:
        """See whether anybody listens there. The answer comes as established or lost."""
        endpoint = self._shared.endpoint(peer, remote_nic)
        link = self.link(peer, remote_nic)
        for pending in [dial for dial in link.dials if dial.purpose is Purpose.PROBE]:
            link.dials.remove(pending)
            pending.abort()
        link.dials.append(self.device.dial(peer, remote_nic, endpoint, Purpose.PROBE))

    def peer_leaves(self, peer: int) -> bool:
        """The peer said goodbye, and a connection of its ended: no more dialling, no more sending. What still stands
        may hold chunks that nobody has read yet, and ends by itself. Returns whether anything does."""
        self._left.add(peer)
        for key in [key for key in self.links if key[0] == peer]:
            link = self.links[key]
            for dial in link.dials:
                dial.abort()
            link.dials.clear()
            if link.control is None and link.bulk is None:
                del self.links[key]
                self._dialled(key)
            if link.is_up:
                link.session.state = LinkState.DOWN
                self._switchboard.link_went_down(link, PEER_LEFT)
        return any(key[0] == peer for key in self.links)

    def withdraw(self, communicator: int, operation: int) -> None:
        """End each connection that is in the middle of a chunk of an operation that failed, or of a later one (decision
        7)."""
        for link in list(self.links.values()):
            if link.bulk is not None and not link.bulk.withdraw(communicator, operation):
                self.step(link, session.Surrendered())

    def surrender(self, peer: int) -> None:
        """As :meth:`withdraw`, of all that goes to a peer."""
        for key in [key for key in self.links if key[0] == peer]:
            if self.links[key].bulk is not None:
                self.step(self.links[key], session.Surrendered())

    def peer_left(self, peer: int) -> None:
        """The peer is gone for good."""
        self._left.add(peer)
        for key in [key for key in self.links if key[0] == peer]:
            link = self.links.pop(key)
            self._dialled(key)
            self._abort(link)
            if link.is_up:
                link.session.state = LinkState.DOWN
                self._switchboard.link_went_down(link, PEER_LEFT)

    def close(self) -> None:
        """End everything, without telling anybody."""
        for link in self.links.values():
            self._abort(link)
        self.links.clear()
        self.device.close()

    def step(self, link: Link, event: session.Event) -> None:
        """One event of a link's session, and its effects."""
        was = link.session.state
        effects = link.session.handle(event, self._shared.clock.now())
        self._stepped(link, was, event)
        for effect in effects:
            self._perform(link, effect)

    def _stepped(self, link: Link, was: LinkState, event: session.Event) -> None:
        """Steps on the way between being in service and not, which is what the event log keeps."""
        if link.session.state is not was:
            if was is LinkState.DIALLING:
                self._dialled((link.id.peer, link.id.remote_nic))
            self._shared.events.trace(
                "session", link=str(link.id), change=f"{was.name}->{link.session.state.name}",
                cause=link.session.cause or type(event).__name__,
            )  # fmt: skip

    def _perform(self, link: Link, effect: session.Effect) -> None:
        match effect:
            case session.Dial():
                self._dial(link, effect)
            case session.AbortConnections():
                self._abort(link)
            case session.SendEcho():
                if link.control is not None:
                    link.control.send(*pack_echo(Kind.ECHO, self._shared.rank, link.id.peer, link.session.incident))
            case session.ArmTimer():
                if link.timer is not None:
                    link.timer.cancel()
                link.timer = self._shared.timers.after(effect.delay_s, self._timer_fired, link, effect.token)
            case session.CameUp():
                link.void()
                self._switchboard.link_came_up(link)
            case session.WentDown():
                self._switchboard.link_went_down(link, effect.cause)
            case _:
                assert_never(effect)

    def _timer_fired(self, link: Link, token: int) -> None:
        if self.links.get((link.id.peer, link.id.remote_nic)) is link:
            self.step(link, session.TimerFired(token))

    def _dial(self, link: Link, dial: session.Dial) -> None:
        if link.id.peer in self._left:
            return
        endpoint = self._shared.endpoint(link.id.peer, link.id.remote_nic)
        wanted = [purpose for purpose in (Purpose.CONTROL, Purpose.BULK) if purpose in dial.purposes]
        for pending in [pending for pending in link.dials if pending.purpose in wanted]:
            link.dials.remove(pending)
            pending.abort()
        for purpose in wanted:
            link.dials.append(self.device.dial(link.id.peer, link.id.remote_nic, endpoint, purpose))

    def _abort(self, link: Link) -> None:
        connections = [link.control, link.bulk, *link.dials]
        link.control = link.bulk = None
        link.dials.clear()
        for connection in connections:
            if connection is not None:
                connection.abort()
                self._arrivals.connection_over(connection)
                self._relays.connection_over(connection)

    # What the device says.

    def established(self, connection: Connection) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        peer = connection.peer
        known = 0 <= peer < self._shared.size and peer != self._shared.rank and peer not in self._left
        member = self._shared.members[peer] if known else None
        if (
            member is None
            or connection.peer_incarnation != member.incarnation
            or connection.remote_nic not in self.remote_nics(member)
        ):
            connection.abort()
            return
        if connection.purpose is Purpose.PROBE:
            self._probe_answered(connection)
            return
        link = self.link(peer, connection.remote_nic)
        if connection in link.dials:
            link.dials.remove(connection)
        alone = not self._switchboard.has_path(peer)
        was, event = link.session.state, session.Established(connection.purpose, alone)
        effects = link.session.handle(event, self._shared.clock.now())
        self._stepped(link, was, event)
        for effect in effects:
            if isinstance(effect, session.AbortConnections):
                self._abort(link)
        if connection.purpose is Purpose.CONTROL:
            link.control = connection
        else:
            link.bulk = connection
        for effect in effects:
            if not isinstance(effect, session.AbortConnections):
                self._perform(link, effect)
        self._switchboard.peer_answered(peer)

    def _probe_answered(self, connection: Connection) -> None:
        """A probe of ours, or of the peer's, got through: this is the moment to dial the link, if it is down."""
        link = self.links.get((connection.peer, connection.remote_nic))
        if link is None:
            return
        if connection in link.dials:
            link.dials.remove(connection)
            connection.abort()
            self._switchboard.peer_answered(connection.peer)
        self.step(link, session.Encouraged(usable=self.is_up))

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        self._arrivals.connection_over(connection)
        self._relays.connection_over(connection)
        peer = connection.peer
        link = self.links.get((peer, connection.remote_nic))
        if link is None:
            return
        if loss is Loss.REFUSED and link.session.served:
            # Where no link ever stood it may be a router's firewall that refuses, or somebody else who has the address.
            self._switchboard.dial_refused(peer)
        was_dial = connection in link.dials
        if was_dial:
            link.dials.remove(connection)
            if connection.purpose is Purpose.PROBE:
                return
        elif connection is link.control:
            link.control = None
        elif connection is link.bulk:
            link.bulk = None
        else:
            return
        # A dying process closes its sockets in any order, and after the first we end the others ourselves.
        ended = not was_dial and loss in (Loss.END_OF_FILE, Loss.RESET)
        if ended and self._switchboard.connection_ended(peer, loss.value):
            return
        self.step(link, session.ConnectionFailed(connection.purpose, loss.value, by_peer=ended))

    def destination(self, connection: Connection, header: Header) -> memoryview:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        if header.kind == _RELAYED:
            return self._relays.destination(connection, header)
        return self._arrivals.destination(connection, header)

    def landed(self, connection: Connection, header: Header) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        if header.kind == _RELAYED:
            self._relays.landed(self.links.get((connection.peer, connection.remote_nic)), connection, header)
            return
        self._arrivals.landed(connection, header)

    def chunk(self, connection: Connection, header: Header, payload: memoryview) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        if header.kind == _RELAYED:
            link = self.links.get((connection.peer, connection.remote_nic))
            self._relays.arrived(link, connection, header, payload)
            return
        self._arrivals.chunk(connection, header, payload)

    def spoiled(self, connection: Connection, header: Header) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        if header.kind == _RELAYED:
            self._relays.spoiled(connection)
            return
        self._arrivals.spoiled(connection, header)

    def batch_ended(self, connection: Connection) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        self._arrivals.batch_ended(connection)
        self._relays.batch_ended()

    def control(self, connection: Connection, header: Header, body: memoryview) -> None:
        """See :class:`~r2ccl.transport.interface.Receiver`."""
        link = self.links.get((connection.peer, connection.remote_nic))
        if link is None or connection not in (link.control, link.bulk):
            return
        if header.kind == Kind.ECHO:
            incident = read_echo(unpack_body(body))
            connection.send(*pack_echo(Kind.ECHO_REPLY, self._shared.rank, connection.peer, link.session.incident))
            self._switchboard.echo_heard(link, incident)
        elif header.kind == Kind.ECHO_REPLY:
            self.step(link, session.Echoed())
        elif header.kind != Kind.BEAT:
            self._switchboard.control(link, header, body)
