"""Carries everything to peers: chunks by the lane that will be done first, control frames by any live path.

Control is state, not events: what was said on a path that then died is said again, whole, on the next (``resync``).
So control frames need no sequence numbers and no retries; only a notice carries a version, and aborts and goodbyes are
said again until they are answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from r2ccl.actors.hedging import choose_twins, make_hedger
from r2ccl.actors.link import Link
from r2ccl.actors.links import Port
from r2ccl.actors.shared import Shared
from r2ccl.protocol.lane_choice import even_out, pick_lane, take_next
from r2ccl.protocol.lanes import Lane, Parcel
from r2ccl.protocol.ledger import Ledger
from r2ccl.protocol.link_speeds import LinkSpeeds
from r2ccl.protocol.nic_session import LinkState
from r2ccl.protocol.outbox import Outbox
from r2ccl.protocol.wire import Ack, Entered, Flag, Kind, Notice, checksum, pack_control, pack_header
from r2ccl.topology import Endpoint


class Courier:
    """One per rank. Owns the outboxes and lanes; transport actors decide which link a lane is bound to."""

    def __init__(self, shared: Shared, ports: list[Port]) -> None:
        self._shared = shared
        self._ports = ports
        self._clock = shared.clock
        #: communicator -> its ledger, for the acknowledgement that rides in every header.
        self.ledgers: dict[int, Ledger] = {}
        settings = shared.settings
        written_above = settings.eager_bytes if shared.one_sided else None
        self.outboxes = {peer: Outbox(peer, shared.credit_bytes(peer), written_above) for peer in shared.peers}
        #: What was written one-sided on links that were lost since, until the peer has fenced them:
        #: (peer, own NIC, peer's NIC) -> incident and parcels. Bounded by the lanes' windows.
        self._unfenced: dict[tuple[int, int, int], tuple[int, list[Parcel]]] = {}
        self.lanes: dict[int, list[Lane]] = {peer: [] for peer in shared.peers}
        #: Chunks on lanes or waiting, over all peers: the health monitor looks closely while there are any.
        self.unsettled = 0
        self.on_busy: Callable[[], None] = lambda: None  #: Called when ``unsettled`` leaves zero.
        self.on_repaired: Callable[[int], None] = lambda peer: None  #: What a lost link had can go out on another.
        self.on_settled: list[Callable[[], None]] = []  #: Whoever waits for acknowledgements (actors.departing).
        self.peers: dict[int, tuple[int, ...]] = {}  #: communicator -> its other members.
        #: What to say again to a peer after a path change, one function per communicator.
        self.resyncs: list[Callable[[int], None]] = []
        self.farewells: list[Callable[[int], None]] = []  #: Said after all that: nothing more comes.
        self._notice_version = 0
        self.hedger = make_hedger(settings)
        #: Our NICs that were given another address since they were announced: where each listens now.
        self.moved: dict[int, Endpoint] = {}
        self._turns = 0
        self._speeds = {peer: LinkSpeeds() for peer in shared.peers}

    # Chunks.

    def take_turn(self) -> int:
        """An operation starts: its place in line, over all communicators."""
        self._turns += 1
        return self._turns

    def submit(self, parcel: Parcel) -> bool:
        """Send a chunk as soon as the peer's credit and a lane allow. False: the peer must say that it has a place."""
        if not self.unsettled:
            self.on_busy()
        self.unsettled += 1
        outbox = self.outboxes[parcel.target]
        if not outbox.submit(parcel):
            return False
        self._route(outbox, parcel)
        return True

    def submit_all(self, outbox: Outbox, parcels: Iterable[Parcel]) -> None:
        """Chunks that the peer's entering released."""
        for parcel in parcels:
            self._route(outbox, parcel)

    def _route(self, outbox: Outbox, parcel: Parcel) -> None:
        if not outbox.waiting:
            lane = pick_lane(self.lanes[outbox.peer], len(parcel.payload))
            if lane is not None:
                self.put(lane, parcel)
                return
        outbox.line_up(parcel)

    def pump(self, peer: int) -> None:
        """A lane has room again, or is new: send what waits."""
        waiting = self.outboxes[peer].waiting
        lanes = self.lanes[peer]
        while waiting and (taken := take_next(lanes, waiting)) is not None:
            self.put(*taken)

    def put(self, lane: Lane, parcel: Parcel) -> None:
        """Hand a chunk to the lane's link."""
        ack_wanted = lane.put(parcel, self._clock.now())
        self.hedger.sent(len(parcel.payload))
        self._transmit(lane, parcel, Flag.ACK_WANTED if ack_wanted else 0)

    def hedge(self, lane: Lane) -> None:
        """Something speaks against the lane's link: some of its chunks also go out on other lanes of the peer.

        To be called again while the suspicion lasts.
        """
        now = self._clock.now()
        for other, parcel in choose_twins(self.hedger, lane, self.lanes[lane.peer], self._shared, now):
            other.put_twin(parcel, now)
            self._transmit(other, parcel, Flag.ACK_WANTED)

    def _transmit(self, lane: Lane, parcel: Parcel, flags: int) -> None:
        link: Link = lane.link
        payload, counters = parcel.payload, link.counters
        size, digest = len(payload), 0
        counters.sent_bytes += size
        counters.sent_chunks += 1
        flags |= (parcel.times_sent & Flag.COPY_MASK) << Flag.COPY_SHIFT
        if parcel.times_sent > 1:
            flags |= Flag.RESENT
            counters.resent_bytes += size
            counters.resent_chunks += 1
        if link.checks and size:
            flags |= Flag.CHECKSUMMED
            digest = checksum(payload)
        header = pack_header(
            Kind.CHUNK, flags, size, parcel.communicator, parcel.operation, parcel.step, self._shared.rank,
            parcel.target, parcel.chunk, parcel.fingerprint, self.ledgers[parcel.communicator].completed, digest,
        )  # fmt: skip
        assert link.bulk is not None, "a lane is bound to links that are up only"
        if link.bulk.one_sided and size > self._shared.settings.eager_bytes:
            assert isinstance(payload, memoryview)
            landing = self.outboxes[parcel.target].landing(parcel)
            parcel.was_written = True
            link.bulk.write(header, payload, landing, parcel.chunk * parcel.chunk_bytes)
        else:
            # What a relay holds may come late, as a write may, and would be overtaken by one elsewhere.
            relayed_write = link.id.is_relayed and self._shared.one_sided
            parcel.was_written = relayed_write and size > self._shared.settings.eager_bytes
            link.bulk.send(header, payload)

    def take_back(self, lane: Lane, link: Link | None) -> None:
        """The lane's link is lost: its chunks go to the head of the peer's queue.

        Those that hardware may still be writing into the peer's memory wait until the peer says that it has ended its
        side of the link: only then can a second path not be overtaken by the first (decision 3).
        """
        parcels = lane.take_back()
        written = [parcel for parcel in parcels if parcel.was_written]
        self.outboxes[lane.peer].give_back(parcel for parcel in parcels if not parcel.was_written)
        if written:
            assert link is not None
            key = (lane.peer, link.id.local_nic, link.id.remote_nic)
            _, before = self._unfenced.get(key, (0, []))
            self._unfenced[key] = (link.session.incident, before + written)

    def fenced(self, peer: int, local_nic: int, remote_nic: int, incident: int) -> None:
        """The peer has ended its side of a link that we lost, and has acknowledged all that landed before."""
        waited_for, parcels = self._unfenced.get((peer, local_nic, remote_nic), (0, []))
        if not parcels or incident < waited_for:
            return
        del self._unfenced[peer, local_nic, remote_nic]
        self.outboxes[peer].give_back(parcel for parcel in parcels if not parcel.is_settled)
        self.pump(peer)

    # What comes back.

    def acknowledged(self, peer: int, ack: Ack) -> None:
        """An acknowledgement arrived, on whatever path."""
        entered = max(ack.completed, ack.entered)
        if entered and ack.communicator in self.peers:  # else a goodbye that is said again after all have left
            self.peer_entered(peer, ack.communicator, entered - 1)
        self._settle(peer, self.outboxes[peer].acknowledged(ack))

    def completed_by(self, peer: int, communicator: int, completed: int) -> None:
        """The number that rides in every chunk's header."""
        settled = self.outboxes[peer].completed(communicator, completed)
        if settled:
            self._settle(peer, settled)

    def peer_entered(self, peer: int, communicator: int, operation: int) -> None:
        """The peer is in the operation: it has a place for its chunks."""
        outbox = self.outboxes[peer]
        if outbox.entered_by_peer(communicator) <= operation:
            self.submit_all(outbox, outbox.entered(communicator, operation))
            self._count(outbox, ())

    def may_land(self, peer: int, entered: Entered) -> None:
        """The peer told where an operation's transfers may be written."""
        outbox = self.outboxes[peer]
        self.submit_all(outbox, outbox.may_land(entered.communicator, entered.operation, entered.landings))

    def settle_operation(self, communicator: int, operation: int, targets: Iterable[int]) -> None:
        """The operation ended well here: what it sent is known to have arrived, so its memory is needed no more."""
        for peer in targets:
            if settled := self.outboxes[peer].settle_operation(communicator, operation):
                self._settle(peer, settled, tell=False)

    def forget(self, communicator: int, operation: int) -> None:
        """Operations from this one on failed: get their memory back from every path (decision 7)."""
        for peer, outbox in self.outboxes.items():
            for parcel in outbox.forget(communicator, operation):
                self._drop(parcel)
            # What they leave room for on lanes is for operations that go on.
            self.pump(peer)

    def failure_is_known(self, communicator: int, peers: Iterable[int]) -> None:
        """These keep nothing of operations that failed here. What that leaves room for in the credit may go."""
        for peer in peers:
            self.outboxes[peer].failure_is_known(communicator)
            self._use_credit(peer)

    def is_under_way(self, communicator: int) -> bool:
        """See the outboxes'."""
        return any(self.outboxes[peer].is_under_way(communicator) for peer in self.peers[communicator])

    def left(self, communicator: int, peer: int) -> None:
        """A member has left a communicator, and keeps nothing of it."""
        self.outboxes[peer].left(communicator)
        self._use_credit(peer)

    def _use_credit(self, peer: int) -> None:
        outbox = self.outboxes[peer]
        self.submit_all(outbox, outbox.release())
        self.pump(peer)

    def dismiss(self, communicator: int, resync: Callable[[int], None]) -> None:
        """Nobody calls anything in a communicator any more: forget it."""
        for peer in self.peers.pop(communicator):
            for parcel in self.outboxes[peer].dismiss(communicator):
                self._drop(parcel)
            self.failure_is_known(communicator, (peer,))
        del self.ledgers[communicator]
        self.resyncs.remove(resync)

    def abandon(self, peer: int, is_dead: bool) -> None:
        """The peer is gone and acknowledges nothing more; dead, it needs nothing more, either: an operation that it was
        in, and that has all it is to receive, is done."""
        outbox = self.outboxes[peer]
        gone = outbox.abandon()
        for parcel in gone:
            self._drop(parcel)
        self._unfenced = {key: waiting for key, waiting in self._unfenced.items() if key[0] != peer}
        for told in self.on_settled:
            told()
        for parcel in gone if is_dead else ():
            if parcel.owner is not None and parcel.operation < outbox.entered_by_peer(parcel.communicator):
                parcel.owner.target_died(parcel)

    def _drop(self, parcel: Parcel) -> None:
        parcel.is_settled = True
        self.unsettled -= 1
        self.hedger.settled(parcel)
        if parcel.lane is not None:
            parcel.lane.drop(parcel)

    def _settle(self, peer: int, parcels: Iterable[Parcel], tell: bool = True) -> None:
        now = self._clock.now()
        more_waits = self.is_pressed(peer)
        count = 0
        measured = False
        owned: list[Parcel] = []
        for parcel in parcels:
            count += 1
            parcel.is_settled = True
            if parcel.times_sent > 1:
                self.hedger.settled(parcel)
            if parcel.lane is not None and parcel.lane.settle(parcel, now, more_waits):
                measured = True
            if tell and parcel.owner is not None:
                owned.append(parcel)
        self.unsettled -= count
        if measured:
            even_out(self.lanes[peer])
        self.pump(peer)
        if owned:
            self._count(self.outboxes[peer], owned)
        for told in self.on_settled:
            told()

    def _count(self, outbox: Outbox, settled: Sequence[Parcel]) -> None:
        if not settled and not outbox.has_early:
            return
        for parcel in outbox.count(settled):
            parcel.owner.parcel_settled(parcel)

    def arrived(self, peer: int, size: int) -> None:
        """Chunks of the peer arrived here: by which links they come tells which of them are slow."""
        speeds = self._speeds[peer]
        if speeds.arrived(size):
            links = self.links_up(peer)
            slow = speeds.slow([(link.id, link.counters.received_bytes, _rate(link.lane)) for link in links])
            for link in links:
                link.is_slow = link.id in slow

    def resend(self, peer: int, communicator: int, operation: int, step: int, chunk: int, copy: int) -> None:
        """The peer got this copy of a chunk spoiled and asks for it again; perhaps not for the first time."""
        parcel = self.outboxes[peer].find(communicator, operation, step, chunk)
        if parcel is None or (parcel.was_written and copy != parcel.times_sent & Flag.COPY_MASK):
            return  # in the second case another is on its way: a third would be written over it, after it was used
        if (lane := parcel.lane) is not None and lane.link.is_up:
            lane.drop(parcel)
            if lane.link.id.is_relayed:
                lane.narrow()  # the relay had no room
            self.put(lane, parcel)

    # Control.

    def tell(self, peer: int, kind: Kind, body: list[Any]) -> bool:
        """A control frame, on the best path there is. False: there is none; a resync will say it."""
        link = self.path(peer)
        if link is None or link.control is None:
            return False
        link.control.send(*pack_control(kind, self._shared.rank, peer, body))
        if not link.watched:
            # It may serve no lane: if it is dead, nobody else would notice before the next idle beat.
            link.watched = True
            self.on_busy()
        if kind is Kind.ACK:
            link.counters.acks_sent += 1
        return True

    def path(self, peer: int) -> Link | None:
        """A link whose control connection stands: of those in service rather one that is not late, then one that is not
        slow, then a rail; else one on probation."""
        best: tuple[bool, bool, bool] | None = None
        chosen: Link | None = None
        fallback: Link | None = None
        for port in self._ports:
            for link in port.links.values():
                if link.id.peer != peer or link.control is None:
                    continue
                if link.session.state is LinkState.UP:
                    worth = (link.holds_up, link.is_slow, not link.is_rail)
                    if not any(worth):
                        return link
                    if best is None or worth < best:
                        best, chosen = worth, link
                elif link.session.state is LinkState.PROBATION:
                    fallback = link
        return chosen or fallback

    def links_up(self, peer: int) -> list[Link]:
        """All links to the peer that are in service."""
        return [link for port in self._ports for link in port.links.values() if link.id.peer == peer and link.is_up]

    def notify(self, peer: int) -> None:
        """Tell the peer which of our NICs and links to it are out of service, on any live path (decision 19).

        Not of links that the peer ended itself: it may have let them in again before the notice comes, and would take
        that for a new loss. Nor, for the same reason, of those being dialled, unless a relay is all that is left: then
        the peer may not know yet, and would go on to use them.
        """
        self._notice_version += 1
        lost = {LinkState.DOWN}
        if all(link.id.is_relayed for link in self.links_up(peer)):
            lost.add(LinkState.DIALLING)
        down = tuple(port.nic.index for port in self._ports if not port.is_up)
        links = tuple(
            (link.id.local_nic, link.id.remote_nic, link.session.incident)
            for port in self._ports
            for link in port.links.values()
            if link.id.peer == peer
            and link.session.state in lost
            and link.session.incident
            and not link.session.ended_by_peer
        )
        links += tuple(
            (key[1], key[2], incident)
            for key, (incident, _) in self._unfenced.items()
            if key[0] == peer and (key[1], key[2]) not in {link[:2] for link in links}
        )
        moved = tuple((nic, to.family, to.host, to.port) for nic, to in self.moved.items())
        self.tell(peer, Kind.NOTICE, Notice(self._notice_version, down, links, moved).body())

    def ask_fences(self, peer: int) -> None:
        """The peer's paths changed: what it said of fences may have been lost with one. The notice asks again."""
        if any(key[0] == peer for key in self._unfenced):
            self.notify(peer)

    def confirm_fences(self, peer: int, links: Iterable[tuple[int, int, int]]) -> None:
        """Our side of these links has ended. What landed is acknowledged first: only the gap may be sent again."""
        for say in [*self.resyncs, *self.farewells]:
            say(peer)
        self.tell(peer, Kind.FENCED, [number for link in links for number in link])

    def resync(self, peer: int) -> None:
        """Say again whatever the peer may have missed when a path was lost."""
        self.notify(peer)
        for say in [*self.resyncs, *self.farewells]:
            say(peer)

    def is_pressed(self, peer: int) -> bool:
        """Do chunks wait because no lane to the peer has room?"""
        return bool(self.outboxes[peer].waiting)


def _rate(lane: Lane | None) -> float:
    return lane.bandwidth if lane is not None and lane.is_measured else 0.0
