"""What happens to a link, and what its session has done about it; see :mod:`r2ccl.protocol.nic_session`."""

from __future__ import annotations

from dataclasses import dataclass

#: What a link's two connections are for.
CONTROL = 1
BULK = 2
BOTH = frozenset((CONTROL, BULK))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The link shall exist."""


@dataclass(frozen=True, slots=True)
class Established:
    """A connection stands. ``alone``: no other link to the peer is up."""

    purpose: int
    alone: bool


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """A connection ended, or a dial failed. ``by_peer``: it was the peer who ended it."""

    purpose: int
    cause: str
    by_peer: bool = False


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Out of service by decision: silence, NIC down here, or the peer said so (``by_peer``)."""

    cause: str
    by_peer: bool = False


@dataclass(frozen=True, slots=True)
class Surrendered:
    """A healthy link whose connections must end because they hold memory that its owner wants back (decision 7)."""


@dataclass(frozen=True, slots=True)
class Dismissed:
    """Not needed any more, whatever its state: a better way to the peer is in service."""

    cause: str


@dataclass(frozen=True, slots=True)
class Encouraged:
    """Something says that dialling may succeed now: a carrier is back. ``usable``: our own NIC is up."""

    usable: bool


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """No link to the peer is up: this one is needed now."""


@dataclass(frozen=True, slots=True)
class Echoed:
    """The peer's actor answered our echo."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that this machine armed."""

    token: int


Event = (
    Wanted
    | Established
    | ConnectionFailed
    | Withdrawn
    | Surrendered
    | Dismissed
    | Encouraged
    | LeftAlone
    | Echoed
    | TimerFired
)

# Effects.


@dataclass(frozen=True, slots=True)
class Dial:
    """Dial these connections, each with a fresh socket; what was being dialled for them is given up."""

    purposes: frozenset[int] = BOTH


@dataclass(frozen=True, slots=True)
class AbortConnections:
    """End every connection and dial of this link that stood before the current event."""


@dataclass(frozen=True, slots=True)
class SendEcho:
    """Ask the peer's actor for a sign on the control connection."""


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Fire ``TimerFired(token)`` after ``delay_s``."""

    token: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class CameUp:
    """The link carries from now on."""


@dataclass(frozen=True, slots=True)
class WentDown:
    """The link had been up and carries no longer."""

    cause: str


Effect = Dial | AbortConnections | SendEcho | ArmTimer | CameUp | WentDown
