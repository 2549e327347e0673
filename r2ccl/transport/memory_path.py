"""What lies between two NICs of the memory transport: ports, and one-way paths from port to port.

A port is a NIC with its cable: it sends one piece after another and receives one after another, so all connections of
a NIC share its bandwidth. A path adds its own latency, and may be severed without either port noticing. That is the
whole model of a network: no switches, no queues but the ports' own, and nothing is lost except on a dead path.

Time is reserved when a piece starts, for the sending and the receiving port at once. That is a cut-through switch: a
piece begins to arrive while its end is still being sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

#: (rank, index of its NIC).
PortName = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Model:
    """Numbers of the machines at both ends. The defaults are those of a Linux host on a 10 Gbit/s network."""

    latency_s: float = 50e-6
    bandwidth_bytes_s: float = 1.25e9
    #: What a connection hands to the network at once, and so how finely connections share a NIC.
    piece_bytes: int = 64 << 10
    #: What a kernel takes over from a sender before it is acknowledged.
    socket_buffer_bytes: int = 256 << 10
    #: What a kernel keeps for a receiver who does not read.
    window_bytes: int = 256 << 10
    #: Payloads up to here arrive whole (``chunk``); larger ones ask for a destination.
    small_bytes: int = 16 << 10
    #: After a path is back, when the kernel's timer sends again what was lost on it.
    resend_after_s: float = 0.2
    dial_timeout_s: float = 1.0
    #: One-sided hardware gives up after this: about seven attempts of 67 ms.
    flush_after_s: float = 0.5
    #: How long one-sided hardware collects completions before the process sees them, as one batch; and how long what
    #: was put into shared memory lies there before the loop looks.
    completion_delay_s: float = 10e-6
    #: NICs of unlike indices have no route to one another: each rail is a network of its own.
    rails_apart: bool = False


@dataclass(slots=True)
class Port:
    """One NIC and its cable."""

    name: PortName
    bandwidth_bytes_s: float
    carrier: bool = True
    #: Swallows everything without any event.
    silent: bool = False
    sending_free_at: float = 0.0
    receiving_free_at: float = 0.0

    @property
    def passes(self) -> bool:
        return self.carrier and not self.silent


class PathUser(Protocol):
    def path_returned(self) -> None: ...


class Path:
    """One direction between two ports."""

    def __init__(self, source: Port, target: Port, latency_s: float, routed: bool = True) -> None:
        self.source = source
        self.target = target
        self.latency_s = latency_s
        self.bandwidth_bytes_s = float("inf")
        self.severed = False
        #: Nothing ever passes: there is no route. Unlike ``severed`` no fault's end changes it.
        self.routed = routed
        self.alive = source.passes and target.passes and routed
        #: How often this path died. What set out under another number is lost.
        self.losses = 0
        #: All and only pipes that may have something to send again when the path returns. Ordered, for determinism.
        self._users: dict[PathUser, None] = {}

    def join(self, user: PathUser) -> None:
        self._users[user] = None

    def leave(self, user: PathUser) -> None:
        self._users.pop(user, None)

    def refresh(self) -> None:
        """Find out whether the path is alive, after a port or the path itself changed."""
        alive = self.source.passes and self.target.passes and not self.severed and self.routed
        if alive == self.alive:
            return
        self.alive = alive
        if not alive:
            self.losses += 1
            return
        for user in tuple(self._users):
            user.path_returned()

    def reserve(self, size_bytes: int, now: float) -> tuple[float, float]:
        """Take the ports' time for one piece: when its last byte has left, and when it has arrived."""
        start = max(now, self.source.sending_free_at)
        departed = start + size_bytes / min(self.source.bandwidth_bytes_s, self.bandwidth_bytes_s)
        self.source.sending_free_at = departed
        if not self.alive:
            return departed, departed + self.latency_s
        begins_to_arrive = max(start + self.latency_s, self.target.receiving_free_at)
        arrived = max(departed + self.latency_s, begins_to_arrive + size_bytes / self.target.bandwidth_bytes_s)
        self.target.receiving_free_at = arrived
        return departed, arrived
