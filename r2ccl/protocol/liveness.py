"""When a peer counts as gone, and why.

*Dead* needs two proofs: a control connection ended without a goodbye, and a new connection on a healthy path is
refused, that is, the peer's kernel answers and nobody listens. One alone is not enough: connections end for many
reasons, and a refusal may come from a port that is not open yet. *Unreachable* is the lack of any path for the whole
grace time, less the time that we ourselves were away. A peer that answers slowly, or not at all, while its kernel
acknowledges, is neither: it computes, or somebody stopped it (decisions 16 to 18).

    state       event                       -> state        effects
    ALIVE       connection ended            DOUBTED         Probe, timer
                no path left                CUT_OFF         timer
    DOUBTED     refused                     GONE            Declare dead
                a path answers              ALIVE
                timer                       DOUBTED         Probe, timer
                no path left                CUT_OFF         timer
    CUT_OFF     a path answers              ALIVE
                refused                     GONE            Declare dead (if a connection had ended)
                timer (grace)               GONE            Declare unreachable
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

    __slots__ = ("_ended", "_grace_s", "_probes", "_stalled_s", "_token", "peer", "state")

    def __init__(self, peer: int, unreachable_after_s: float) -> None:
        self.peer = peer
        self.state = PeerState.ALIVE
        self._grace_s = unreachable_after_s
        #: How a connection ended, if one did since the peer was last heard.
        self._ended = ""
        self._probes = 0
        self._token = 0
        #: Our own absence so far, when the grace time began.
        self._stalled_s = 0.0

    @property
    def is_over(self) -> bool:
        return self.state in (PeerState.GONE, PeerState.LEFT)

    def connection_ended(self, how: str) -> list[Effect]:
        """A control connection ended without our asking."""
        if self.is_over:
            return []
        self._ended = how
        if self.state is PeerState.DOUBTED:
            return []
        if self.state is PeerState.ALIVE:
            self.state = PeerState.DOUBTED
            self._probes = 0
            return [Probe(), self._arm(PROBE_INTERVAL_S)]
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

    def no_path(self, stalled_s: float) -> list[Effect]:
        """The last link went out of service. ``stalled_s``: our own absence so far, ever."""
        if self.is_over or self.state is PeerState.CUT_OFF:
            return []
        self.state = PeerState.CUT_OFF
        self._stalled_s = stalled_s
        return [Probe(), self._arm(self._grace_s)]

    def said_goodbye(self) -> None:
        """Its connections may end from now on."""
        if self.state is not PeerState.GONE:
            self.state = PeerState.LEFT

    def timer_fired(self, token: int, stalled_s: float) -> list[Effect]:
        """A timer that this machine armed."""
        if token != self._token or self.is_over:
            return []
        if self.state is PeerState.DOUBTED:
            self._probes += 1
            return [Probe(), self._arm(PROBE_INTERVAL_S if self._probes < PROBES_FAST else PROBE_INTERVAL_SLOW_S)]
        if self.state is not PeerState.CUT_OFF:
            return []
        away_s = stalled_s - self._stalled_s
        if away_s > 0:
            self._stalled_s = stalled_s
            return [Probe(), self._arm(min(away_s, self._grace_s))]
        self.state = PeerState.GONE
        return [Declare("unreachable", f"no path for {self._grace_s:g} s")]

    def _arm(self, delay_s: float) -> ArmTimer:
        self._token += 1
        return ArmTimer(self._token, delay_s)
