"""A link as this rank sees it: its session, its connections, and what is known of how it fares."""

from __future__ import annotations

from r2ccl.actors.timers import Timer
from r2ccl.ids import LinkId
from r2ccl.protocol.evidence import LinkEvidence, load_level
from r2ccl.protocol.health import LinkHealth
from r2ccl.protocol.holes import Holes
from r2ccl.protocol.lanes import Lane
from r2ccl.protocol.lookout import Lookout
from r2ccl.protocol.nic_session import LinkState, NicSession
from r2ccl.telemetry.counters import LinkCounters
from r2ccl.transport.interface import Connection, PathSample


class Link:
    """A (local NIC, remote NIC) pair towards one peer, with its connections."""

    __slots__ = (
        "beaten_at_s",
        "bulk",
        "bulk_holes",
        "checks",
        "control",
        "control_holes",
        "counters",
        "dials",
        "evidence",
        "health",
        "is_bypassed",
        "is_late",
        "is_rail",
        "is_slow",
        "id",
        "lane",
        "lookout",
        "session",
        "timer",
        "watched",
    )

    def __init__(
        self,
        link_id: LinkId,
        machine: NicSession,
        health: LinkHealth,
        patience_s: float,
        evidence: LinkEvidence,
        counters: LinkCounters,
        checks: bool,
        is_rail: bool = True,
    ) -> None:
        self.id = link_id
        #: It joins NICs of equal index. Others stand by (``protocol.paths``).
        self.is_rail = is_rail
        self.session = machine
        self.health = health
        #: Whether what we said on its connections stands still behind lost packets.
        self.control_holes, self.bulk_holes = Holes(patience_s), Holes(patience_s)
        #: What speaks against it while it is not silent, and what was seen of it since the last look.
        self.evidence = evidence
        self.lookout = Lookout()
        self.counters = counters
        #: Chunks on it carry checksums.
        self.checks = checks
        self.control: Connection | None = None
        self.bulk: Connection | None = None
        #: Connections being made; all and only those whose end has not been reported.
        self.dials: list[Connection] = []
        #: The session's latest. Those before it mean nothing to it, and are ended: a quiet time is up to a minute long.
        self.timer: Timer | None = None
        #: The lane that it serves.
        self.lane: Lane | None = None
        #: A beat is on its way: look again soon.
        self.watched = False
        #: Bytes are in flight and nothing was heard for half the time that makes it silent: control goes by others.
        self.is_late = False
        #: Memory is shared with its peer, and carries what is new.
        self.is_bypassed = False
        #: Others bring far more from the peer: control goes by those, and does not queue behind chunks here.
        self.is_slow = False
        self.beaten_at_s = 0.0

    @property
    def is_up(self) -> bool:
        return self.session.state is LinkState.UP

    def route(self) -> None:
        """Its lane gets no new chunks while it is late, or held up by a hole, or left for a faster one (the shadow
        route), or for memory; to be called when one of them changes, and when it got a lane."""
        if self.lane is not None:
            self.lane.is_diverted = self.holds_chunks_up or self.is_bypassed or self.evidence.is_diverted

    @property
    def holds_up(self) -> bool:
        """What is said on its control connection would come late, as far as we know."""
        return self.is_late or self.control_holes.is_held_up

    @property
    def holds_chunks_up(self) -> bool:
        """Likewise chunks."""
        return self.is_late or self.bulk_holes.is_held_up

    @property
    def is_suspected(self) -> bool:
        """Something of what is new goes by others."""
        return self.holds_up or self.holds_chunks_up

    @property
    def is_unanswered(self) -> bool:
        """Another word is to be said on its control connection, because what was said last may be lost, and whoever
        gets the next one says so; or because bulk that nobody waits for any more stands still, and the link must not
        seem silent. Memory loses nothing: there it is the peer that does not read."""
        return (self.control_holes.is_unanswered or self.bulk_holes.is_unanswered) and not self.id.is_shared

    def void(self) -> None:
        """Nobody looked, or we were away: what was gathered of its connections is void."""
        held_up = self.bulk_holes.is_held_up
        self.health.void()
        self.control_holes.void()
        self.bulk_holes.void()
        if held_up:
            self.route()

    def glance(self, control: PathSample, bulk: PathSample, pressed: bool, now: float) -> None:
        """Both accounts as they are now. ``pressed``: chunks to the peer wait because no lane has room."""
        lane = self.lane
        load = load_level(lane.outstanding_bytes, lane.window_bytes) if lane is not None else 0
        self.lookout.glance(control, bulk, load, pressed, now)
        self.control_holes.look(control, now)
        self.bulk_holes.look(bulk, now)

    def __repr__(self) -> str:
        return f"<Link {self.id} {self.session.state.value}>"
