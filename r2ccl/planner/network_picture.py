"""What the hosts of a job saw of their network before it starts: plain data, gathered by ``r2ccl topology-check``.

Each rank tells of its NICs, and of every (own NIC, NIC of another rank) pair that it tried. Together that is the
picture which ``network_findings`` and ``survival`` judge. It says what was seen and nothing else; what it means is said
there.

A *pair* is directed: rank 0's nic0 that reaches rank 1's nic0 says nothing about the way back.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

#: Largest IPv4 packet: nothing bigger can be tried, whatever the interface (such as lo, 65,536) allows.
IP_BYTES_MAX = 65535


class Outcome(enum.StrEnum):
    """What came of a connect from one NIC to another."""

    REACHED = "reached"  #: and who answered proved to be the rank and NIC that was wanted
    STRANGER = "stranger"  #: somebody accepted who is not
    REFUSED = "refused"  #: a kernel answered that nobody listens there: another host, or a firewall
    SILENT = "silent"  #: nothing came back in time
    NO_ROUTE = "no route"  #: no way there, or nobody has that address
    FAILED = "failed"  #: our own socket could not be made


@dataclass(frozen=True, slots=True)
class NicView:
    """A NIC as its own rank sees it. Zero and empty where the system does not say."""

    index: int
    name: str
    address: str
    prefix_length: int = 0
    mac: str = ""
    speed_mbit_s: int = 0
    mtu_bytes: int = 1500
    driver: str = ""
    bus_address: str = ""
    numa_node: int | None = None
    #: Switched on, and with a carrier.
    up: bool = True
    #: The host answers ARP requests for this address on this NIC only (arp_ignore and arp_announce), or need not.
    answers_for_itself: bool = True

    @property
    def network(self) -> ipaddress.IPv4Network | None:
        """The subnet that the NIC is in, where its prefix is known."""
        if not self.prefix_length:
            return None
        return ipaddress.IPv4Network(f"{self.address}/{self.prefix_length}", strict=False)


@dataclass(frozen=True, slots=True)
class HostView:
    """A rank, its host and its NICs in the order of their indices."""

    rank: int
    host: str
    #: Ranks of one node share a network namespace; see ``transport.node_identity``.
    node: str
    nics: tuple[NicView, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """From a NIC of one rank to a NIC of another."""

    source: int
    source_nic: int
    target: int
    target_nic: int

    @property
    def back(self) -> Pair:
        """The other way."""
        return Pair(self.target, self.target_nic, self.source, self.source_nic)


@dataclass(frozen=True, slots=True)
class Reach:
    """What came of trying a pair. Times are of connects that a kernel answered; 0 where none did."""

    pair: Pair
    outcome: Outcome
    detail: str = ""
    connect_min_s: float = 0.0
    connect_median_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PathMtu:
    """The largest packet that passed a pair unfragmented. ``path_bytes`` 0: not even a small one was answered."""

    pair: Pair
    path_bytes: int
    #: The network said that larger packets are too large. Without that they vanish, and nobody knows why.
    told: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """What one stream carried for a short while: a lower bound."""

    pair: Pair
    bytes_s: float


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far a rank's wall clock is ahead of rank 0's, known to within ``uncertainty_s`` (half a round trip)."""

    rank: int
    offset_s: float
    uncertainty_s: float
    rtt_min_s: float
    rtt_median_s: float


@dataclass(frozen=True, slots=True)
class Picture:
    """All that was seen. ``links``: for each two ranks (lower first) the NICs that r2ccl would join; no other pair
    carries anything."""

    hosts: tuple[HostView, ...]
    reaches: tuple[Reach, ...]
    links: tuple[Pair, ...]
    mtus: tuple[PathMtu, ...] = ()
    rates: tuple[Rate, ...] = ()
    clocks: tuple[ClockOffset, ...] = ()

    def nic(self, rank: int, nic: int) -> NicView:
        """A rank's NIC."""
        return self.hosts[rank].nics[nic]

    def nics(self) -> Iterator[tuple[HostView, NicView]]:
        """All NICs, by rank and index."""
        for host in self.hosts:
            for nic in host.nics:
                yield host, nic

    def name(self, rank: int, nic: int) -> str:
        """The NIC for a person: ``rank 1 nic0 (eth0)``."""
        return f"rank {rank} nic{nic} ({self.nic(rank, nic).name})"

    @property
    def reached(self) -> frozenset[Pair]:
        """All pairs that answered as they should."""
        return frozenset(reach.pair for reach in self.reaches if reach.outcome is Outcome.REACHED)

    def device(self, rank: int, nic: int) -> tuple[str, str, str]:
        """What is lost together: ranks of one node may share a NIC."""
        view = self.nic(rank, nic)
        return (self.hosts[rank].node, view.name, view.address)


def needs_the_network(one: HostView, other: HostView) -> bool:
    """Do two ranks have a network between them? Those of one node have none, but for addresses of loopback, which
    stand in for NICs where a job is tried on one machine."""
    if one.node != other.node:
        return True
    return all(ipaddress.IPv4Address(nic.address).is_loopback for host in (one, other) for nic in host.nics)
