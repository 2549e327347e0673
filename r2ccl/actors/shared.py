"""What all actors of one rank have in common: who we are, what time it is, where to count."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from r2ccl.actors.causes import Loss
from r2ccl.actors.timers import Timers
from r2ccl.clock import Clock
from r2ccl.config import Settings
from r2ccl.ids import RELAY_NIC, SHARED_NIC
from r2ccl.protocol.baseline import Strictness
from r2ccl.protocol.dial_patience import crowd
from r2ccl.protocol.evidence import EvidenceLimits, LinkEvidence, SwitchBudget
from r2ccl.protocol.nic_session import SessionTimes
from r2ccl.protocol.outbox import CREDIT_ON_ONE_MACHINE
from r2ccl.telemetry.counters import Counters
from r2ccl.telemetry.event_log import EventLog
from r2ccl.topology import AddressBook, Endpoint, Nic, shared_memory_endpoint
from r2ccl.tuning import Tuning


def no_errors(nic: Nic) -> int | None:
    """Of interfaces that count none."""
    return None


def no_bytes(nic: Nic) -> tuple[int, int] | None:
    """Of interfaces that count none."""
    return None


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
    #: Errors that the interface of a NIC of ours has counted since this was last asked; None: it does not say.
    new_errors: Callable[[Nic], int | None] = no_errors
    #: Likewise bytes, sent and received, whosever they are.
    new_bytes: Callable[[Nic], tuple[int, int] | None] = no_bytes
    timers: Timers = field(init=False)
    #: How often this rank may leave a slow link for another.
    switches: SwitchBudget = field(init=False)
    #: The thread on which all actors run.
    thread: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "timers", Timers(self.loop))
        budget = SwitchBudget(self.settings.switch_refill_s, self.settings.switch_burst)
        object.__setattr__(self, "switches", budget)
        object.__setattr__(self, "thread", threading.get_ident())

    @property
    def tuning(self) -> Tuning | None:
        """What messages cost, the same on all ranks: what rank 0 announced."""
        return self.members[0].tuning

    def credit_bytes(self, peer: int) -> int:
        """How much of operations that it has not entered the peer keeps."""
        is_near = self.members[peer].node == self.members[self.rank].node
        return self.settings.credit_bytes * (CREDIT_ON_ONE_MACHINE if is_near else 1)

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def peers(self) -> list[int]:
        """All other ranks."""
        return [member.rank for member in self.members if member.rank != self.rank]

    def endpoint(self, peer: int, nic: int) -> Endpoint:
        """Where a peer's NIC is reached."""
        if nic == RELAY_NIC:
            return Endpoint("relay", f"rank{peer}", 0)
        moved = self.moved.get((peer, nic))
        if moved is None and nic == SHARED_NIC:
            return shared_memory_endpoint(self.members[peer])
        return moved or self.members[peer].nics[nic].endpoint

    @property
    def neighbours(self) -> list[int]:
        """The other ranks of our node, as far as a hash can tell."""
        return [peer for peer in self.peers if self.members[peer].node == self.members[self.rank].node]

    def checks(self, peer: int) -> bool:
        """Do chunks to this peer carry checksums? Within a node memory is the wire, and they would cost a quarter."""
        if self.settings.checksum == "auto":
            return self.members[peer].node != self.members[self.rank].node
        return self.settings.checksum == "on"

    def session_times(self) -> SessionTimes:
        """The periods of link sessions."""
        s = self.settings
        return SessionTimes(s.dial_timeout_s, s.redial_s, s.quiet_s, s.quiet_max_s, s.stable_s, crowd=crowd(self.size))

    def link_evidence(self) -> LinkEvidence:
        """What will speak against a link of ours, by the limits of the settings."""
        s = self.settings
        strictness = Strictness(
            sigmas=s.evidence_sigmas,
            sigmas_leave=s.evidence_sigmas / 2,
            confirmations=min(s.evidence_confirmations, s.evidence_window),
            window=s.evidence_window,
            hold_down_s=s.hold_down_s,
            hold_down_max_s=max(s.hold_down_s, s.hold_down_max_s),
            relearn_s=s.relearn_s,
        )
        limits = EvidenceLimits(strictness, s.latency_excess, s.latency_excess_s, s.share_least, s.resent_excess)
        return LinkEvidence(limits, self.switches)
