"""What all actors of one rank have in common: who we are, what time it is, where to count."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

from r2ccl.actors.causes import Loss
from r2ccl.actors.timers import Timers
from r2ccl.clock import Clock
from r2ccl.config import Settings
from r2ccl.protocol.nic_session import SessionTimes
from r2ccl.telemetry.counters import Counters
from r2ccl.telemetry.event_log import EventLog
from r2ccl.topology import AddressBook, Endpoint, Nic

#: Assumed where a NIC doesn't say its speed; lanes measure within a few chunks.
BANDWIDTH_BYTES_S = 1.25e9


@dataclass(frozen=True, slots=True)
class Shared:
    """Made once by the composition root, never changed; what it points to may be."""

    rank: int
    members: AddressBook
    settings: Settings
    clock: Clock
    loop: asyncio.AbstractEventLoop
    events: EventLog
    counters: Counters = field(default_factory=Counters)
    #: (peer, its NIC) -> where it is now, if it moved since it was announced.
    moved: dict[tuple[int, int], Endpoint] = field(default_factory=dict)
    #: Ranks that are dead or unreachable.
    lost: dict[int, Loss] = field(default_factory=dict)
    #: The devices write into peers' memory (RDMA) instead of sending for a receiver to sort.
    one_sided: bool = False
    timers: Timers = field(init=False)
    #: The thread on which all actors run.
    thread: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "timers", Timers(self.loop))
        object.__setattr__(self, "thread", threading.get_ident())

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def peers(self) -> list[int]:
        """All other ranks."""
        return [member.rank for member in self.members if member.rank != self.rank]

    def endpoint(self, peer: int, nic: int) -> Endpoint:
        """Where a peer's NIC is reached."""
        return self.moved.get((peer, nic)) or self.members[peer].nics[nic].endpoint

    def checks(self, peer: int) -> bool:
        """Do chunks to this peer carry checksums? Within a node memory is the wire, and they would cost a quarter."""
        if self.settings.checksum == "auto":
            return self.members[peer].node != self.members[self.rank].node
        return self.settings.checksum == "on"

    def session_times(self) -> SessionTimes:
        """The periods of link sessions."""
        s = self.settings
        return SessionTimes(s.dial_timeout_s, s.redial_s, s.quiet_s, s.quiet_max_s, s.stable_s)


def nominal_bandwidth(nic: Nic) -> float:
    """What a lane on this NIC is expected to carry, in bytes per second, until it has been measured."""
    return nic.speed_mbit_s * 125_000.0 if nic.speed_mbit_s else BANDWIDTH_BYTES_S
