"""What actors tell one another: one frozen class for each thing that can be said.

Chunks and acknowledgements are not here. They are the one exception: they pass by direct calls, since at a few
microseconds a chunk the mailbox would cost more than the work.
"""

from __future__ import annotations

from dataclasses import dataclass

from r2ccl.actors.link import Link
from r2ccl.protocol.wire import Abort, Entered, Notice


@dataclass(frozen=True, slots=True)
class NicWentDown:
    """Our own NIC lost its carrier, its address or itself."""

    nic: int
    cause: str


@dataclass(frozen=True, slots=True)
class NicCameBack:
    """Our own NIC can be used again, as far as the system knows."""

    nic: int
    cause: str = "carrier"


@dataclass(frozen=True, slots=True)
class LinkOffered:
    """A link is in service and serves no lane yet."""

    link: Link


@dataclass(frozen=True, slots=True)
class LinkLost:
    """A link that served a lane is out of service."""

    link: Link
    cause: str


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """A connection to a peer ended without our asking."""

    peer: int
    how: str


@dataclass(frozen=True, slots=True)
class DialRefused:
    """Nobody listens at the peer's endpoint, says its kernel."""

    peer: int


@dataclass(frozen=True, slots=True)
class PeerAnswered:
    """The peer admitted a connection."""

    peer: int


@dataclass(frozen=True, slots=True)
class PathsChanged:
    """The number of links in service to a peer changed."""

    peer: int
    links_up: int


@dataclass(frozen=True, slots=True)
class NoticeHeard:
    """A peer told which of its NICs and links are out of service."""

    peer: int
    notice: Notice


@dataclass(frozen=True, slots=True)
class EchoHeard:
    """A peer asks for an echo on a link that was made anew after it had taken the link out of service so often."""

    peer: int
    remote_nic: int
    local_nic: int
    incident: int


@dataclass(frozen=True, slots=True)
class GoodbyeHeard:
    """A peer is closing; it has everything of the communicator's operations below ``completed``."""

    peer: int
    communicator: int
    completed: int


@dataclass(frozen=True, slots=True)
class EnteredHeard:
    """A peer says which operation it is in."""

    peer: int
    entered: Entered


@dataclass(frozen=True, slots=True)
class AbortHeard:
    """A peer failed an operation."""

    peer: int
    abort: Abort


@dataclass(frozen=True, slots=True)
class AbortAcknowledged:
    """A peer knows of our abort of this operation and all later ones."""

    peer: int
    communicator: int
    operation: int


@dataclass(frozen=True, slots=True)
class PeerGone:
    """A peer is dead or unreachable."""

    peer: int
    cause: str
    verdict: str


@dataclass(frozen=True, slots=True)
class PeerParted:
    """A peer said goodbye, and nothing more can come from it."""

    peer: int


TransportMessage = NicWentDown | NicCameBack | LinkOffered | LinkLost
HealthMessage = (
    NicWentDown
    | NicCameBack
    | ConnectionEnded
    | DialRefused
    | PeerAnswered
    | PathsChanged
    | NoticeHeard
    | EchoHeard
    | GoodbyeHeard
)
CoordinatorMessage = EnteredHeard | AbortHeard | AbortAcknowledged | PeerGone | GoodbyeHeard | PeerParted
