"""When a peer counts as gone, and why.

*Dead* needs two proofs: a connection ended without a goodbye, and a new connection on a healthy path is
refused, that is, the peer's kernel answers and nobody listens. One alone is not enough: connections end for many
reasons, and a refusal may come from a port that is not open yet. *Unreachable* is the lack of any path for the whole
grace time, less the time that we ourselves were away: the grace time is used up in the short periods between probes,
and a period that took long because nobody was there to see its end counts no more than another. A peer that answers
slowly, or not at all, while its kernel acknowledges, is neither: it computes, or somebody stopped it (decisions 16 to
18).

    state       event                       -> state        effects
    ALIVE       connection ended            DOUBTED         Probe, timer
                no path left                CUT_OFF         timer
    DOUBTED     refused                     GONE            Declare dead
                a path answers              ALIVE
                timer                       DOUBTED         Probe, timer
                no path left                CUT_OFF         timer
    CUT_OFF     a link is in service        ALIVE
                refused                     GONE            Declare dead (if a connection had ended)
                timer                       CUT_OFF         Probe, timer
                timer, grace used up        GONE            Declare unreachable
    these two   a NIC of ours returned                      Probe
    any         goodbye                     LEFT            none: its connections may end now
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

#: Between probes of a doubted peer. A dying process may still accept for a moment while its sockets are closed in turn.
PROBE_INTERVAL_S = 0.01
#: Probes come this often at first and then every redial period: a NIC may just be unable to answer.
PROBES_FAST = 10
PROBE_INTERVAL_SLOW_S = 0.2


class PeerState(enum.Enum):
    """See the table above."""

    ALIVE = "alive"
    DOUBTED = "doubted"
    CUT_OFF = "cut off"
    LEFT = "left"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Probe:
    """Dial the peer on every path that may be healthy, to see whether anybody listens."""


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Call ``timer_fired(token)`` after ``delay_s``."""

    token: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Declare:
    """The peer is gone. ``cause``: dead or unreachable."""

    cause: str
    verdict: str


Effect = Probe | ArmTimer | Declare


class PeerLiveness:
    """The judge of one peer."""

    __slots__ = ("_ended", "_grace_left_s", "_grace_s", "_probes", "_token", "peer", "state")

    def __init__(self, peer: int, unreachable_after_s: float) -> None:
        self.peer = peer
        self.state = PeerState.ALIVE
        self._grace_s = unreachable_after_s
        #: How a connection ended, if one did since the peer was last heard.
        self._ended = ""
        self._probes = 0
        self._token = 0
        #: What is left of the grace time, less the period that runs.
        self._grace_left_s = 0.0

    @property
    def is_over(self) -> bool:
        return self.state in (PeerState.GONE, PeerState.LEFT)

    def connection_ended(self, how: str) -> list[Effect]:
        """A connection ended without our asking."""
        if self.is_over:
            return []
        self._ended = how
        if self.state is PeerState.DOUBTED:
            return []
        if self.state is PeerState.ALIVE:
            self.state = PeerState.DOUBTED
            self._probes = 0
            return [Probe(), self._arm(self._interval_s())]
        return [Probe()]

    def refused(self) -> list[Effect]:
        """A dial on a healthy path found nobody listening."""
        if self.is_over or not self._ended:
            return []
        self.state = PeerState.GONE
        return [Declare("dead", f"connection ended ({self._ended}) and a new one is refused")]

    def answered(self) -> None:
        """A connection or probe was admitted: somebody is there."""
        if not self.is_over and self.state is not PeerState.CUT_OFF:
            self.state = PeerState.ALIVE
            self._ended = ""
            self._token += 1

    def path_found(self) -> None:
        """A link is in service again."""
        if not self.is_over:
            self.state = PeerState.ALIVE
            self._ended = ""
            self._token += 1

    def no_path(self) -> list[Effect]:
        """The last link went out of service."""
        if self.is_over or self.state is PeerState.CUT_OFF:
            return []
        self.state = PeerState.CUT_OFF
        self._probes = 0
        self._grace_left_s = self._grace_s
        return [Probe(), self._arm_within_grace()]

    def nic_returned(self) -> list[Effect]:
        """One of our NICs can be used again: a path that was in doubt may be whole now."""
        return [Probe()] if self.state in (PeerState.DOUBTED, PeerState.CUT_OFF) else []

    def said_goodbye(self) -> None:
        """Its connections may end from now on."""
        if self.state is not PeerState.GONE:
            self.state = PeerState.LEFT

    def timer_fired(self, token: int) -> list[Effect]:
        """A timer that this machine armed."""
        if token != self._token or self.state not in (PeerState.DOUBTED, PeerState.CUT_OFF):
            return []
        self._probes += 1
        if self.state is PeerState.DOUBTED:
            return [Probe(), self._arm(self._interval_s())]
        if self._grace_left_s > 0:
            return [Probe(), self._arm_within_grace()]
        self.state = PeerState.GONE
        return [Declare("unreachable", f"no path for {self._grace_s:g} s")]

    def _interval_s(self) -> float:
        return PROBE_INTERVAL_S if self._probes < PROBES_FAST else PROBE_INTERVAL_SLOW_S

    def _arm_within_grace(self) -> ArmTimer:
        delay_s = min(self._interval_s(), self._grace_left_s)
        self._grace_left_s -= delay_s
        return self._arm(delay_s)

    def _arm(self, delay_s: float) -> ArmTimer:
        self._token += 1
        return ArmTimer(self._token, delay_s)
