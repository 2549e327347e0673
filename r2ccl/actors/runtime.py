"""All actors of one rank, put together: the only file that names them all.

    ports            one per NIC, for relays, for shared memory: device and links (no actors: devices, timers call)
    evidence         looks at links that are not silent (no actor either: the health monitor's tick calls it)
    transport-i      lane i to every peer, at home on the i-th carrying NIC; restarts on a spare
    health           watches links and peers
    profiler         keeps the estimates of unused lanes honest
    coordinator-c    one per communicator

Started in this order, stopped in reverse.
"""

from __future__ import annotations

import asyncio
import functools

from r2ccl.actors.actor import Actor, Full, Mailbox
from r2ccl.actors.arrivals import ArrivalsDesk
from r2ccl.actors.causes import DEAD
from r2ccl.actors.communicators import Communicators
from r2ccl.actors.coordinator import Coordinator
from r2ccl.actors.courier import Courier
from r2ccl.actors.diagnosing import Diagnosing
from r2ccl.actors.evidence_desk import EvidenceDesk
from r2ccl.actors.first_dials import FirstDials
from r2ccl.actors.health_monitor import HealthMonitor
from r2ccl.actors.hearing import Hearing
from r2ccl.actors.link import Link
from r2ccl.actors.link_log import record_down, record_up
from r2ccl.actors.links import DIRECT_AGAIN, Port
from r2ccl.actors.messages import (
    ConnectionEnded,
    DialRefused,
    EchoHeard,
    GoodbyeHeard,
    LinkLost,
    LinkOffered,
    NicCameBack,
    NicWentDown,
    PathsChanged,
    PeerAnswered,
    PeerGone,
)
from r2ccl.actors.nic_reports import NicReports
from r2ccl.actors.partings import Partings
from r2ccl.actors.profiler import Profiler
from r2ccl.actors.registration import Registrar
from r2ccl.actors.relaying import RelayPort, Relays
from r2ccl.actors.report import moment, own_address
from r2ccl.actors.shared import Shared
from r2ccl.actors.sharing import Sharing
from r2ccl.actors.supervisor import ChildSpec, Supervisor
from r2ccl.actors.transport_actor import LaneBox, TransportActor, add_lane
from r2ccl.actors.work import Look
from r2ccl.ids import WORLD
from r2ccl.planner.choose import largest_chunk_bytes
from r2ccl.planner.picture import announced_bandwidth, first_picture
from r2ccl.protocol.lanes import Lane, adds_to, takes_link
from r2ccl.protocol.wire import Header, Kind
from r2ccl.transport.interface import Device

#: Control messages waiting for one actor: a few per peer and link are normal, this many are a bug.
MAILBOX_CAPACITY = 16384


class Runtime:
    """One rank's actors. Made by the composition roots; ``start`` begins to dial."""

    def __init__(self, shared: Shared, devices: list[Device], memory: Device | None = None) -> None:
        self.shared = shared
        self.is_closed = False
        self.is_in_child = False  #: This is a fork of the process that it belongs to.
        self.look: Look | None = None  #: How who awaits an operation looks for news first.
        #: One for each NIC, and all there are.
        self.ports: list[Port] = []
        self.all_ports: list[Port] = []
        self.courier = Courier(shared, self.all_ports)
        self.evidence = EvidenceDesk(shared, self.ports, self.courier, self._own_stall_s)
        self.desk = ArrivalsDesk(shared, self.courier)
        self.relays = Relays(shared, self.courier)
        self._relay_port = RelayPort(shared, self.relays, self.desk, self, self.courier)
        self.ports.extend(Port(shared, device, self.desk, self, self.relays) for device in devices)
        self.sharing = Sharing(shared, memory, self.desk, self, self.relays, self.courier)
        self.first_dials = FirstDials(shared, self.ports, self.sharing, self.courier)
        # Shared memory first, so that control goes by it. Between two ranks there is nobody to relay.
        relaying = [self._relay_port] if shared.size > 2 else []
        self.all_ports.extend([*self.sharing.ports, *self.ports, *relaying])
        self.diagnosing = Diagnosing(shared, self.ports, self.courier)
        self.supervisor = Supervisor(shared.clock, self._give_up)
        self.communicators = Communicators(
            shared, self.courier, self.desk, self.supervisor, Registrar(devices), self._own_stall_s, self._surrender
        )
        self.coordinators = self.communicators.coordinators
        self._homes: dict[str, int] = {}
        #: Waits for links to come up: resolved by ``link_came_up``.
        self._watchers: list[asyncio.Future[None]] = []
        self._partings = Partings(
            shared, self.all_ports, self.courier, self.communicators.peer_gone, self._wake_watchers, self.relays
        )
        self._hearing = Hearing(
            self.courier, self.communicators, self.diagnosing, lambda: self.health, self._goodbye_heard
        )
        self._nic_reports = NicReports(shared, self.ports, self.courier, self.communicators.report)
        self._add_children()

    def _add_children(self) -> None:
        shared, settings = self.shared, self.shared.settings
        picture = first_picture(shared.members, settings.chunk_bytes, settings.eager_bytes, tuning=shared.tuning)
        shared.events.moment = functools.partial(moment, self.coordinators)
        chunk_bytes = largest_chunk_bytes(picture)
        for index, nic in enumerate(shared.members[shared.rank].carrying):
            name = f"transport-{index}"
            self._homes[name] = nic.index
            box = LaneBox()
            for peer in shared.peers:
                add_lane(box, self.courier, Lane(index, peer, chunk_bytes, announced_bandwidth(nic)))
            self.supervisor.add(ChildSpec(name, functools.partial(self._transport_actor, name, index, box)))
        self.supervisor.add(ChildSpec("health", self._health_monitor))
        self.courier.on_busy = self._busy
        self.supervisor.add(ChildSpec("profiler", self._profiler))

    def _transport_actor(self, name: str, index: int, box: LaneBox, predecessor: Actor | None) -> TransportActor:
        del predecessor  # what it leaves behind is in the box
        home = self._homes[name]
        return TransportActor(
            name, index, home, self.shared, self.courier, box, self._find_spare, self._move, self._offer
        )

    def _health_monitor(self, predecessor: Actor | None) -> HealthMonitor:
        mailbox = Mailbox(MAILBOX_CAPACITY, Full.REFUSE) if predecessor is None else predecessor.mailbox
        return HealthMonitor(
            self.shared, mailbox, self.all_ports, self.courier, self.evidence, self._peer_gone, self._own_nic_changed
        )

    def _profiler(self, predecessor: Actor | None) -> Profiler:
        mailbox = Mailbox(MAILBOX_CAPACITY, Full.DROP_OLDEST) if predecessor is None else predecessor.mailbox
        return Profiler(self.shared, mailbox, self.courier)

    def _give_up(self, name: str, failure: Exception) -> None:
        for coordinator in self.coordinators.values():
            first = coordinator.failing.first_unfinished()
            coordinator.failing.fail(first, "aborted", f"actor {name} keeps failing: {failure!r}", ())

    @property
    def health(self) -> HealthMonitor:
        """The health monitor."""
        monitor: HealthMonitor = self.supervisor.child("health")
        return monitor

    def _busy(self) -> None:
        self.health.look_closely()
        self._nic_reports.look_closely()

    # Beginning.

    def start(self) -> None:
        """Accept, and dial what will carry."""
        for port in self.all_ports:
            port.device.listen(port)
        self.first_dials.begin()

    async def connected(self) -> None:
        """Wait until each peer has a path, and a moment longer for other links that will carry."""
        await self.first_dials.answered(self._next_link)
        for peer in self.shared.peers:
            self._settle_for_spares(peer)

    def _settle_for_spares(self, peer: int) -> None:
        """Where nothing came up but what stands by, nobody has a link yet that could be lost: it serves from now on."""
        links = self.courier.links_up(peer)
        if all(self._stands_by(link) for link in links):
            for lane in self.courier.lanes[peer]:
                lane.is_orphan = lane.link is None
            for link in links:
                self._offer(link)

    async def _next_link(self, timeout_s: float | None) -> bool:
        watcher: asyncio.Future[None] = self.shared.loop.create_future()
        self._watchers.append(watcher)
        done, _ = await asyncio.wait([watcher], timeout=timeout_s)
        if watcher in self._watchers:
            self._watchers.remove(watcher)
        return bool(done)

    def coordinator(self, communicator: int, members: tuple[int, ...] | None = None) -> Coordinator:
        """The coordinator of a communicator, started on first use. ``members``: ranks in the job; None: all."""
        return self.communicators.open(communicator, tuple(range(self.shared.size)) if members is None else members)

    def _own_stall_s(self) -> float:
        return self.health.stall.away_s(self.shared.clock.now())

    # What ports say (links.Switchboard).

    def control(self, link: Link, header: Header, body: memoryview) -> None:
        """A control frame. Raises BadFrame, which ends the connection."""
        self._hearing.control(link, header, body)

    def link_came_up(self, link: Link) -> None:
        """A link carries from now on: offer it to a lane; tell the peer what it may have missed."""
        peer = link.id.peer
        record_up(self.shared.events, link)
        self.diagnosing.link_came_up(link.id)
        self._offer(link)
        if not link.id.is_relayed:
            self._relay_port.dismiss(peer, DIRECT_AGAIN)
        self._paths_changed(peer)
        self.courier.resync(peer)
        self._wake_watchers()

    def _offer(self, link: Link) -> None:
        if link.id.is_relayed and self.relays.way_to(link.id.peer) is not None:
            return  # the peer has not got that far, or does not know yet
        taken = [lane.link for lane in self.courier.lanes[link.id.peer] if lane.link is not None]
        if not adds_to(taken, link):
            return
        stands_by, lanes = self._stands_by(link), self.courier.lanes[link.id.peer]
        candidates = [self.supervisor.child(name) for name in self._homes]
        candidates.sort(key=lambda actor: actor.home_nic != link.id.local_nic)
        for actor in candidates:
            if takes_link(actor.lanes[link.id.peer], link, stands_by, lanes):
                actor.tell(LinkOffered(link))
                return

    def _stands_by(self, link: Link) -> bool:
        nics = self.shared.members[link.id.peer].nics
        if link.id.is_shared or not link.is_rail:
            return not link.is_rail
        return self.ports[link.id.local_nic].nic.spare or nics[link.id.remote_nic].spare

    def link_went_down(self, link: Link, cause: str) -> None:
        """A link carries no longer: its lane moves, the peer is told."""
        record_down(self.shared.events, link, cause)
        self.diagnosing.link_went_down(link, cause)
        self.evidence.link_lost(link)
        self._paths_changed(link.id.peer)
        if link.lane is not None:
            # Who binds the lane anew tells the peer, when the lane's chunks are back.
            self.supervisor.child(f"transport-{link.lane.index}").tell(LinkLost(link, cause))
        else:
            self.courier.resync(link.id.peer)

    def _paths_changed(self, peer: int) -> None:
        links_up = len(self.courier.links_up(peer))
        self.sharing.bypass_nics(peer)
        self._nic_reports.look_closely()
        if not links_up:
            self._partings.paths_lost(peer)
        self.health.tell(PathsChanged(peer, links_up))

    def connection_ended(self, peer: int, how: str) -> bool:
        """A connection ended without our asking. Returns whether that was to be expected: the peer left."""
        if self._partings.connection_ended(peer):
            return True
        self.health.tell(ConnectionEnded(peer, how))
        return False

    def dial_refused(self, peer: int) -> None:
        """Nobody listens there."""
        self.health.tell(DialRefused(peer))

    def peer_answered(self, peer: int) -> None:
        """The peer admitted a connection."""
        self.health.tell(PeerAnswered(peer))

    def echo_heard(self, link: Link, incident: int) -> None:
        """The peer has dialled the link anew after an incident of its own."""
        self.health.tell(EchoHeard(link.id.peer, link.id.remote_nic, link.id.local_nic, incident))

    def has_path(self, peer: int) -> bool:
        """Is any link to the peer in service?"""
        return bool(self.courier.links_up(peer))

    # NICs.

    def nic_changed(self, nic: int, up: bool, cause: str) -> None:
        """The system says that one of our NICs lost or found its carrier."""
        self.diagnosing.nic_changed(nic, up)
        self.health.tell(NicCameBack(nic, cause) if up else NicWentDown(nic, cause))

    def nic_moved(self, nic: int, host: str, interface_name: str, up: bool) -> None:
        """One of our NICs has another address, or another interface. Its identity stays (decision 20)."""
        was = own_address(self, nic)
        try:
            self.courier.moved[nic] = endpoint = self.ports[nic].device.move(host, interface_name)
        except OSError as error:
            self.shared.events.record("nic_not_back", nic=f"nic{nic}", host=host, error=str(error))
            return
        self.shared.events.record("nic_moved", nic=f"nic{nic}", change=f"{was}->{endpoint}", cause="address")
        self.ports[nic].nic = self.ports[nic].device.nic
        self.nic_changed(nic, up, "address")

    def _own_nic_changed(self, message: NicWentDown | NicCameBack) -> None:
        for name in self._homes:
            self.supervisor.child(name).tell(message)

    def _find_spare(self, actor: TransportActor) -> int | None:
        """A NIC that is up, nobody's home, and reaches somebody."""
        taken = set(self._homes.values())
        for port in self.ports:
            if port.is_up and port.nic.index not in taken and any(link.is_up for link in port.links.values()):
                return port.nic.index
        return None

    def _move(self, actor: TransportActor, nic: int) -> None:
        """The planned restart of a transport actor on another NIC, with its mailbox."""
        self._homes[actor.name] = nic
        self.supervisor.move(actor.name)

    def _surrender(self, communicator: int, operation: int) -> None:
        for port in self.all_ports:
            port.withdraw(communicator, operation)

    # The end.

    def _peer_gone(self, gone: PeerGone) -> None:
        gone = self.diagnosing.explain(gone)
        try:
            for port in self.all_ports:
                port.surrender(gone.peer)
            self.courier.abandon(gone.peer, gone.cause == DEAD)
        finally:  # also when a callback raised
            self._partings.lost(gone.peer)
            self.communicators.peer_gone(gone)

    def _goodbye_heard(self, goodbye: GoodbyeHeard, heard_ours: bool) -> None:
        self.communicators.tell(goodbye.communicator, goodbye)
        if self.desk.is_retired(goodbye.communicator) and not heard_ours:
            # Forgotten here, for all have left; the peer says it again because ours may have been lost with its path.
            self.courier.tell(goodbye.peer, Kind.GOODBYE, [goodbye.communicator, 0, 1])
        if goodbye.communicator == WORLD:
            # The rank itself goes, and not only from a group.
            self.health.tell(goodbye)
            self._partings.goodbye_heard(goodbye.peer, heard_ours)

    @property
    def is_closing(self) -> bool:
        """Has ``close`` begun, or is it over?"""
        return self._partings.is_closing or self.is_closed

    def _wake_watchers(self) -> None:
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)
        self._watchers.clear()

    async def close(self, timeout_s: float) -> None:
        """Say goodbye, linger until all others did and know of ours, end everything; by ``timeout_s`` in any case.

        May be called twice: the second call waits for the first.
        """
        if self.is_closing:
            while not self.is_closed:
                await self._next_link(None)
            return
        self._partings.is_closing = True
        self.first_dials.stop()
        try:
            deadline_s = self.shared.clock.now() + timeout_s
            while self._partings.waited_for():
                due_s, now = self._partings.speak(), self.shared.clock.now()
                if now >= deadline_s:
                    break
                await self._next_link(min(due_s, deadline_s) - now)
        finally:
            self.abort()

    def abort(self) -> None:
        """End everything now, without a word."""
        if self.is_closed:
            return
        self.is_closed = True
        self.supervisor.stop()
        self.shared.timers.cancel_all()
        self.desk.close()
        for port in reversed(self.all_ports):  # that of relays says goodbye over the others
            port.close()
        self._wake_watchers()
