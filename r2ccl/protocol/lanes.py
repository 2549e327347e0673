"""What is on its way to a peer, and by which link; what comes back when a NIC dies.

A lane is a mailbox for one peer, bound to one link at a time. It remembers each chunk that it handed to the link
until the peer acknowledges it; its window bounds exactly those. When the link dies they go to the head of the peer's
queue, whose other chunks are within the bounds of operations and credit. The lane is bound to another link (a spare's,
if there is one) or dissolved; whichever lanes have room take the chunks from there (decisions 5, 14 and 23).

A chunk whose lane is suspected may be on two lanes at once: its own, and that of its twin (decision 4). Both count it
until it is settled; a lane that is lost leaves it to the other. Nobody knows which of the two was acknowledged, so it
measures neither.

Lanes belong to the sender: it alone picks, from what it knows, and nothing is negotiated; how, is said in
``lane_choice``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

from r2ccl.protocol.rate import Rate

#: A lane never holds less than this many chunks, or the wire would idle while an acknowledgement travels.
CHUNKS_MIN = 2
#: But one where so many would take longer than this, less than the silence that ends a link. What stands in a NIC's
#: queue delays what the link is judged by, and the acknowledgement's way is short against such a chunk's. At 25 ms a
#: NIC that was slow for a while stayed at half its speed: one chunk at a time measured little more than that.
QUEUE_S_MAX = 0.040
#: How far beyond bandwidth x round trip a lane may fill: half a product more, for the acknowledgements' jitter.
HEADROOM = 1.5
#: Taken for the round trip where the measured one is shorter: on a busy machine a process that became runnable waits
#: this long for a core, and a window measured on an idle moment would starve the lane (0.8 against 2.2 GB/s on
#: loopback). And a ring that hangs on one NIC of 500 Mbit/s, the others having two, reached 92 % of what a plain TCP
#: stream carries at 3 and 4 ms, 96 % at 6, 99 % at 8 (``r2ccl faults link-down``); but what stands in a NIC's queue
#: when it becomes slow has to go out there.
ROUND_TRIP_MIN_S = 0.006
#: A round-trip minimum older than this is replaced, so that a path that became longer is noticed.
ROUND_TRIP_MEMORY_S = 10.0


#: A chunk measures if it is half as large as a whole one, or as this.
TELLING_BYTES = 256 << 10
#: A rate that rose by so much at once may be higher still.
PROVEN = 1.2
#: How often the acknowledgement of a chunk that goes alone is asked for, to measure the lane.
ALONE_PERIOD_S = 0.010


class Probe(enum.IntEnum):
    """How badly a lane that carried nothing for a while needs a chunk, to be measured by."""

    NONE = 0
    #: It is due for one that nobody waits for soon.
    DUE = 1
    #: There was none: for the next, whatever it is.
    OVERDUE = 2


#: Looked up once, because it is set for every chunk.
_NO_PROBE = Probe.NONE


class Parcel:
    """A chunk on its way. Plain slots: one is made for every chunk."""

    __slots__ = (
        "chunk",
        "chunk_bytes",
        "communicator",
        "fingerprint",
        "is_settled",
        "lane",
        "operation",
        "owner",
        "payload",
        "send",
        "sent_at_s",
        "step",
        "target",
        "times_sent",
        "turn",
        "twin",
        "was_timed",
        "was_hedged",
        "was_written",
    )

    def __init__(
        self,
        communicator: int,
        operation: int,
        step: int,
        target: int,
        chunk: int,
        fingerprint: int,
        payload: bytes | memoryview,
        owner: Any = None,
        send: int = 0,
        chunk_bytes: int = 0,
        turn: int = 0,
    ) -> None:
        self.communicator = communicator
        self.operation = operation
        self.step = step
        self.target = target
        self.chunk = chunk
        self.fingerprint = fingerprint
        self.payload = payload
        #: Whom to tell when it is settled; None once it went out from a copy.
        self.owner = owner
        self.send = send
        #: Bytes of every chunk of the transfer but the last: chunk x this is where it begins.
        self.chunk_bytes = chunk_bytes
        #: Its operation's place in line: lower goes first.
        self.turn = turn
        #: The lane that holds it, while it is neither settled nor waiting.
        self.lane: Lane | None = None
        #: Another lane that holds it, too; never without the first.
        self.twin: Lane | None = None
        #: When it was last put it met an empty lane, and its acknowledgement was asked for.
        self.was_timed = False
        #: Since it was last put it also went out elsewhere: an acknowledgement may be of either.
        self.was_hedged = False
        self.sent_at_s = 0.0
        self.times_sent = 0
        #: It went out as a one-sided write: before it goes out elsewhere the peer must fence that path.
        self.was_written = False
        #: Acknowledged, or nobody wants it any more.
        self.is_settled = False

    def __repr__(self) -> str:
        return f"Parcel(op={self.operation} step={self.step} chunk={self.chunk} to={self.target})"


class Lane:
    """A transport actor's mailbox for one peer."""

    __slots__ = (
        "_asked_alone_s",
        "_round_trip_at_s",
        "chunk_bytes",
        "hops",
        "index",
        "is_diverted",
        "is_leaving",
        "is_orphan",
        "link",
        "outstanding",
        "outstanding_bytes",
        "pace",
        "peer",
        "probe_due",
        "progressed_at_s",
        "rate",
        "round_trip_s",
        "unasked_bytes",
        "window_bytes",
    )

    def __init__(self, index: int, peer: int, chunk_bytes: int, bandwidth: float) -> None:
        self.index = index
        self.peer = peer
        #: The link that it is bound to; None while it has none.
        self.link: Any = None
        #: It had a link and lost it: it takes any, also a spare.
        self.is_orphan = False
        #: Its link answers late: new chunks go by other lanes, as long as any is up.
        self.is_diverted = False
        #: It goes back to its own rail as soon as nothing of its is on its way: no new chunks until then.
        self.is_leaving = False
        #: When a chunk of its was last settled that can only have come this way.
        self.progressed_at_s = 0.0
        #: All and only chunks that were put on this lane and are not settled, oldest first.
        self.outstanding: dict[Parcel, None] = {}
        self.outstanding_bytes = 0
        #: Of a whole chunk. It is set anew when plans cut others.
        self.chunk_bytes = chunk_bytes
        self.rate = Rate(bandwidth)
        #: Bytes per second to reckon with: the rate, made even with those of lanes that are about as fast.
        self.pace = bandwidth
        #: The shortest time from put to settled lately, for chunks that met an empty lane.
        self.round_trip_s = 0.0
        self._round_trip_at_s = 0.0
        self.probe_due = Probe.NONE
        #: Put since an acknowledgement was last asked for.
        self.unasked_bytes = 0
        #: Ranks that take a chunk in full before it goes on, the receiver included.
        self.hops = 1
        self._asked_alone_s = 0.0
        #: A lane starts with room for a few chunks; what it measures then decides.
        self.window_bytes = 2 * CHUNKS_MIN * chunk_bytes

    @property
    def bandwidth(self) -> float:
        """Bytes per second, as measured lately; what the NIC says of itself until then."""
        return self.rate.steady_bytes_s or self.rate.bytes_s

    @property
    def is_measured(self) -> bool:
        """The bandwidth has seen traffic."""
        return self.rate.is_measured

    def has_room(self, size: int) -> bool:
        """Does a chunk of this size fit the window? An empty lane takes any."""
        return not self.outstanding or self.outstanding_bytes + size <= self.window_bytes

    @property
    def room_bytes(self) -> int:
        """What still fits the window."""
        return max(0, self.window_bytes - self.outstanding_bytes)

    @property
    def twin_room_bytes(self) -> int:
        """What still fits for twins: as much again as the window. They are older than what waits, which would leave
        them no room: it takes all that there is the moment that it is there."""
        return max(0, 2 * self.window_bytes - self.outstanding_bytes)

    def finish_s(self, size: int) -> float:
        """When a chunk put now is expected to have left, counted from now."""
        return (self.outstanding_bytes + size) / self.pace

    def put(self, parcel: Parcel, now: float) -> bool:
        """The chunk is this lane's until it is settled or taken back. Returns whether to ask for an acknowledgement.

        A quarter of the window at a time: the wire never idles, and most chunks need no frame of their own in return.
        And now and then for a chunk that goes alone, to measure how long it takes.
        """
        is_alone = not self.outstanding
        self._hold(parcel, now)
        parcel.lane = self
        parcel.sent_at_s = now
        parcel.was_timed = parcel.was_hedged = False
        self.probe_due = _NO_PROBE
        self.unasked_bytes += len(parcel.payload)
        if self.unasked_bytes * 4 < self.window_bytes and not (
            is_alone and now - self._asked_alone_s >= ALONE_PERIOD_S and self._tells(parcel)
        ):
            return False
        if is_alone:
            self._asked_alone_s = now
        self.unasked_bytes = 0
        parcel.was_timed = is_alone
        return True

    def put_twin(self, parcel: Parcel, now: float) -> None:
        """A chunk of another lane goes out here, too. Whoever puts it asks for an acknowledgement."""
        assert parcel.lane is not None
        assert parcel.lane is not self
        assert parcel.twin is None
        self._hold(parcel, now)
        parcel.twin = self
        parcel.was_hedged = True

    def _hold(self, parcel: Parcel, now: float) -> None:
        if not self.outstanding:
            self.rate.began(now)
        self.outstanding[parcel] = None
        self.outstanding_bytes += len(parcel.payload)
        parcel.times_sent += 1

    def _release(self, parcel: Parcel) -> None:
        """The other lane, if there is one, has it alone from now on."""
        del self.outstanding[parcel]
        self.outstanding_bytes -= len(parcel.payload)
        if parcel.lane is self:
            parcel.lane = parcel.twin
        parcel.twin = None

    def settle(self, parcel: Parcel, now: float, more_waits: bool = False) -> bool:
        """The peer has it, by this lane or by its twin's. ``more_waits``: for any lane to it. Returns whether the rate
        was measured anew."""
        twin = parcel.twin
        self._release(parcel)
        if parcel.was_hedged:
            self.rate.restart(now)
            if twin is not None:
                twin._release(parcel)
                twin.rate.restart(now)
            return False
        self.progressed_at_s = now
        if not self._tells(parcel):
            return False
        return self._measure(parcel, now, more_waits or 2 * self.outstanding_bytes > self.window_bytes)

    def drop(self, parcel: Parcel) -> None:
        """The chunk's operation failed, or it is sent anew: no lane waits for it any more."""
        twin = parcel.twin
        self._release(parcel)
        if twin is not None:
            twin._release(parcel)

    def take_back(self) -> list[Parcel]:
        """Everything unacknowledged that is on no other lane, oldest first: the link is gone."""
        parcels = [parcel for parcel in self.outstanding if parcel.twin is None]
        for parcel in list(self.outstanding):
            self._release(parcel)
        return parcels

    def lead_over(self, hops: int) -> None:
        """The lane's link leads over so many hops. Each of them holds a chunk while the one before sends the next."""
        if hops != self.hops:
            self.hops = hops
            self.round_trip_s = 0.0
            self.window_bytes = max(self.window_bytes, CHUNKS_MIN * hops * self.chunk_bytes)

    def narrow(self) -> None:
        """More was under way than fits: send less at a time, until it is measured again."""
        self.window_bytes = max(self.chunk_bytes, self.window_bytes // 2)

    def _tells(self, parcel: Parcel) -> bool:
        return 2 * len(parcel.payload) >= min(self.chunk_bytes, TELLING_BYTES)

    def _measure(self, parcel: Parcel, now: float, is_busy: bool) -> bool:
        round_trip_s = now - parcel.sent_at_s
        if (
            round_trip_s < self.round_trip_s
            or now - self._round_trip_at_s > ROUND_TRIP_MEMORY_S
            or not self.round_trip_s
        ):
            self.round_trip_s = round_trip_s
            self._round_trip_at_s = now
        before = self.rate.bytes_s
        if not self.rate.acknowledged(len(parcel.payload), round_trip_s, now, is_busy, parcel.was_timed):
            return False
        if self.rate.bytes_s > PROVEN * before:
            self.probe_due = Probe.OVERDUE  # there may be more to it
        bandwidth = self.bandwidth
        held_s = max(self.round_trip_s, ROUND_TRIP_MIN_S * self.hops)
        chunks = CHUNKS_MIN if CHUNKS_MIN * self.chunk_bytes <= QUEUE_S_MAX * bandwidth else 1
        self.window_bytes = max(
            chunks * self.hops * self.chunk_bytes,
            int(HEADROOM * max(bandwidth, self.rate.burst_bytes_s) * held_s),
        )
        return True


def choose_link(home_nic: int, links_up: Iterable[Any], taken: Iterable[Any]) -> Any:
    """Which link a lane is bound to: one on its home NIC, else one that no other lane of this peer uses.

    ``links_up`` are objects with ``id``, a ``LinkId``, and ``is_rail``. Shared memory comes before all others. Of those
    rails come first, a spare's too: links across rails may pass a router. Of rails one by a NIC of ours that no other
    lane of this peer uses: where the peer has more NICs than we, several rails leave by each of ours. One across rails
    is taken only if no other lane uses either of its NICs: else it would add nothing but what it takes from that lane,
    and may share a NIC with whatever was just lost in silence. A relayed one
    is taken only where no other is up. Returns None when no link that is up would add anything.
    """
    links_up, taken = list(links_up), list(taken)
    direct = [link for link in links_up if not link.id.is_relayed]
    free = [link for link in direct or links_up if adds_to(taken, link)]
    if not free:
        return None
    used = {other.id.local_nic for other in taken}
    return min(
        free,
        key=lambda link: (
            not link.id.is_shared,
            not link.is_rail,
            link.id.local_nic in used,
            link.id.local_nic != home_nic,
            link.id.local_nic,
            link.id.remote_nic,
        ),
    )


def adds_to(taken: Sequence[Any], link: Any) -> bool:
    """Would a link bring what those that serve lanes of its peer do not have? See :func:`choose_link`."""
    for other in taken:
        same_local, same_remote = other.id.local_nic == link.id.local_nic, other.id.remote_nic == link.id.remote_nic
        if (same_local and same_remote) or (not link.is_rail and (same_local or same_remote)):
            return False
    return True


def takes_link(lane: Lane, link: Any, stands_by: bool, lanes: Sequence[Lane]) -> bool:
    """Does a lane take a link that came into service? ``lanes``: all of its peer.

    One that has none yet waits for one that carries; one that lost its own takes any, also what ``stands_by``: a
    spare's, or one across rails. A lane that found refuge across rails goes back to a rail: across rails it shares a
    NIC with another lane, and a router with everybody. So does one that shares our NIC with another lane, if the rail
    leaves by a NIC of ours that serves none: where the peer has more NICs than we, rails share ours. One lane at a time
    goes, or two would go to one NIC. From a NIC any lane goes to shared memory, and from there to none.
    """
    if lane.link is None:
        return lane.is_orphan or not stands_by
    if lane.is_leaving or not link.is_rail:
        return False
    if link.id.is_shared or lane.link.id.is_shared:
        return not lane.link.id.is_shared
    if not lane.link.is_rail:
        return True
    used = [other.link.id.local_nic for other in lanes if other.link is not None]
    is_shared = used.count(lane.link.id.local_nic) > 1
    return is_shared and link.id.local_nic not in used and not any(other.is_leaving for other in lanes)
