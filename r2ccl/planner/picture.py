"""The picture of the network that all ranks agree on, and plan from. Data, versioned by its epoch.

What a message costs comes from what ``r2ccl tune`` measured, if rank 0 announced it, for the wire that the ranks'
slowest step goes by: memory if all of them are on one node, else loopback if all their NICs are there, else the
network. Without figures of that wire the constants below hold. The speed of NICs never comes from there: they announce
it, and report it anew when it changes; on a network a byte takes as long as the slower of the two says.

In epoch 0 it follows from what the ranks announced when they met: each knows the same book of addresses and the same
planning settings, so each draws the same picture without a message. A later one differs from it by what ranks report of
their NICs since, and those reports are agreed on (:mod:`r2ccl.protocol.agreement`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from r2ccl.config import CHUNK_BYTES_MOST, KIB
from r2ccl.planner.cost import DELTA_S_PER_BYTE, Wires, measured_wires
from r2ccl.planner.node_places import grouped
from r2ccl.planner.requests import CollectiveKind, Request
from r2ccl.topology import Member, Nic
from r2ccl.tuning import Tuning, WireCost

#: Where nothing was measured: about what a small message between two event loops costs over loopback TCP.
DEFAULT_LATENCY_S = 30e-6
#: Where the system doesn't say how fast a NIC is (loopback, veth): 10 Gbit/s, which one core can just about fill.
DEFAULT_BANDWIDTH_BYTES_S = 1.25e9
#: A byte's second trip to memory between ranks of one machine, where nothing was measured. With a network's figure four
#: ranks would go by the ring from 400 KiB up; but halving and doubling, with four steps instead of six, took less time
#: up to 2 MiB by shared memory and 4 MiB by loopback, by a tenth to a third.
DELTA_ON_ONE_MACHINE_S_PER_BYTE = 1.5e-11
#: So much larger may chunks be between ranks of one machine than over a network.
ON_ONE_MACHINE = 8
#: And so much larger what counts as small: a collective of two or four ranks took half the time from copies at 128 KiB,
#: two thirds at 256 KiB, and longer at 512 KiB.
SMALL_ON_ONE_MACHINE = 4
_BYTES_S_PER_MBIT_S = 125_000.0


@dataclass(frozen=True, slots=True)
class NicEstimate:
    """What one carrying NIC of a rank is believed to do."""

    bandwidth_bytes_s: float = DEFAULT_BANDWIDTH_BYTES_S
    latency_s: float = DEFAULT_LATENCY_S


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that a plan may depend on besides the request."""

    epoch: int
    #: By rank: its NICs that carry a share now. Spares and dead ones are left out.
    nics: tuple[tuple[NicEstimate, ...], ...]
    #: The settings' largest chunk over a network.
    chunk_bytes: int = 256 * KIB
    #: The largest message that may go out from a copy, over a network.
    eager_bytes: int = 64 * KIB
    #: The ranks of each node, if there are several nodes and some rank is not alone on its own; else empty.
    nodes: tuple[tuple[int, ...], ...] = ()
    #: By rank: how many ranks of its node send by the same interfaces, itself among them. Empty where ``nodes`` is.
    sharers: tuple[int, ...] = ()
    #: The setting R2CCL_HIERARCHY is "on": hierarchical schedules are used wherever there are some.
    insists: bool = False
    #: What was measured; None: nothing.
    tuning: Tuning | None = None
    #: Which kind of wire the slowest step goes by.
    wire: str = "network"
    #: The algorithms that were asked for, as R2CCL_ALGORITHMS has them.
    algorithms: str = ""
    #: What is no small message is written into its receiver's memory, which must be told where first.
    one_sided: bool = False

    def __post_init__(self) -> None:
        if self.nodes and (
            sorted(rank for node in self.nodes for rank in node) != list(range(len(self.nics)))
            or len(self.sharers) != len(self.nics)
        ):
            raise ValueError(f"nodes {self.nodes}, sharers {self.sharers} do not fit {len(self.nics)} ranks")
        for rank, nics in enumerate(self.nics):
            if not nics or any(nic.bandwidth_bytes_s <= 0 for nic in nics):
                raise ValueError(f"rank {rank} has no NIC that carries anything, or one without bandwidth")

    @property
    def cost(self) -> WireCost | None:
        """What was measured on the wire of the slowest step; None: nothing."""
        found: WireCost | None = None if self.tuning is None else getattr(self.tuning, self.wire)
        return found

    @property
    def seconds_per_byte(self) -> float:
        """Of a rank, over all its NICs."""
        announced = 1 / self.rank_bandwidth_bytes_s
        if self.cost is None:
            return announced
        measured = self.cost.beta_s_per_byte
        # A NIC that was lost, or became slow, is known here and not in the file. Elsewhere cores set the pace.
        return max(announced, measured) if self.wire == "network" else measured

    def wires(self, chunk_bytes: int) -> Wires:
        """Of a rank, over all its NICs, in chunks of that size."""
        if self.tuning is None or self.cost is None:
            delta = DELTA_S_PER_BYTE if self.wire == "network" else DELTA_ON_ONE_MACHINE_S_PER_BYTE
            return Wires(self.latency_s, self.seconds_per_byte, chunk_bytes, delta_s_per_byte=delta)
        return measured_wires(self.cost, self.seconds_per_byte, self.tuning.gamma_s_per_byte, chunk_bytes)

    @property
    def chunk_bytes_most(self) -> int:
        """The largest chunk. Between ranks of one machine bytes are soon there, and what a chunk costs in itself was a
        fifth to a third of all at 256 KiB; and no path is lost there with the chunk that is on it."""
        if self.wire == "network":
            return self.chunk_bytes
        return min(CHUNK_BYTES_MOST, ON_ONE_MACHINE * self.chunk_bytes)

    def small_bytes(self, kind: CollectiveKind) -> int:
        """The largest collective all of which may go out from copies. With a root, whoever hears from nobody would run
        ahead by more, and hear the later that calls differ."""
        if self.wire == "network" or self.one_sided or kind.has_root:
            return self.eager_bytes
        return SMALL_ON_ONE_MACHINE * self.eager_bytes

    def is_small(self, request: Request) -> bool:
        """May all of it go out from copies? All ranks say the same: of what is uneven they know unlike sums."""
        return not request.uneven and request.payload_bytes <= self.small_bytes(request.kind)

    @property
    def latency_s(self) -> float:
        """Of the slowest NIC: a step is over when its last message is."""
        return max(nic.latency_s for nics in self.nics for nic in nics)

    @property
    def rank_bandwidth_bytes_s(self) -> float:
        """Of the rank that has the least, over all its NICs: every rank moves as much as any, so it sets the pace."""
        return min(sum(nic.bandwidth_bytes_s for nic in nics) for nics in self.nics)

    @property
    def node_bandwidth_bytes_s(self) -> float:
        """Of the node that has the least, over all its interfaces, each counted once. Needs ``nodes``."""
        own = [sum(nic.bandwidth_bytes_s for nic in nics) for nics in self.nics]
        return min(sum(own[rank] / self.sharers[rank] for rank in node) for node in self.nodes)

    @property
    def slowest_nic_bytes_s(self) -> float:
        return min(nic.bandwidth_bytes_s for nics in self.nics for nic in nics)


def announced_bandwidth(nic: Nic) -> float:
    """Bytes per second, as the NIC's owner announced it when the ranks met."""
    return nic.speed_mbit_s * _BYTES_S_PER_MBIT_S if nic.speed_mbit_s else DEFAULT_BANDWIDTH_BYTES_S


def first_picture(
    book: Sequence[Member],
    chunk_bytes: int,
    eager_bytes: int,
    hierarchy: str = "auto",
    tuning: Tuning | None = None,
    algorithms: str = "",
    one_sided: bool = False,
) -> Picture:
    """The picture of epoch 0, from what the members announced. ``hierarchy`` and ``algorithms``: the settings
    R2CCL_HIERARCHY and R2CCL_ALGORITHMS; ``tuning``: what rank 0 of the job announced; ``one_sided``: how the job's
    NICs write."""
    nodes = _nodes(book) if hierarchy != "off" else ()
    return Picture(
        epoch=0,
        nics=tuple(tuple(NicEstimate(announced_bandwidth(nic)) for nic in member.carrying) for member in book),
        chunk_bytes=chunk_bytes,
        eager_bytes=eager_bytes,
        nodes=nodes,
        sharers=_sharers(book, nodes),
        insists=hierarchy == "on",
        tuning=tuning,
        wire=wire_among(book, tuning),
        algorithms=algorithms,
        one_sided=one_sided,
    )


def _nodes(book: Sequence[Member]) -> tuple[tuple[int, ...], ...]:
    """Places in the book by node, in the order of their first."""
    nodes = grouped([member.node for member in book])
    return nodes if 1 < len(nodes) < len(book) else ()


def _sharers(book: Sequence[Member], nodes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    sharers = [1] * len(book) if nodes else []
    for node in nodes:
        interfaces = [{(nic.name, nic.endpoint.host) for nic in book[place].carrying} for place in node]
        for place, own in zip(node, interfaces, strict=True):
            sharers[place] = sum(not own.isdisjoint(others) for others in interfaces)
    return tuple(sharers)


def wire_among(book: Sequence[Member], tuning: Tuning | None) -> str:
    """The wire that the slowest step among these ranks goes by. Rank 0 leaves figures of shared memory out where it
    shares none, so that nobody needs to know how the others are set."""
    if tuning is not None and tuning.shared_memory is not None and len({member.node for member in book}) == 1:
        return "shared_memory"
    hosts = [nic.endpoint.host for member in book for nic in member.carrying]
    return "loopback" if all(host.startswith("127.") for host in hosts) else "network"


def later_picture(first: Picture, epoch: int, reported: Sequence[Sequence[float | None]]) -> Picture:
    """The picture of a later epoch. ``reported``: by rank what each of its NICs carries, in bytes per second; None:
    nothing. Of a rank whose NICs all carry nothing, or that says nothing of them, what it announced still counts: if it
    were so nobody would plan anything."""
    nics = tuple(
        tuple(NicEstimate(carried) for carried in own if carried is not None) or announced
        for announced, own in zip(first.nics, reported, strict=True)
    )
    return dataclasses.replace(first, epoch=epoch, nics=nics)


def even_picture(
    ranks: int,
    nics_per_rank: int = 1,
    bandwidth_bytes_s: float = DEFAULT_BANDWIDTH_BYTES_S,
    latency_s: float = DEFAULT_LATENCY_S,
    chunk_bytes: int = 256 * KIB,
    eager_bytes: int = 64 * KIB,
) -> Picture:
    """A picture in which all NICs are alike."""
    nics = (NicEstimate(bandwidth_bytes_s, latency_s),) * nics_per_rank
    return Picture(0, (nics,) * ranks, chunk_bytes, eager_bytes)
