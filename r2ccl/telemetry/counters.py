"""What was sent, resent, received and dropped, counted per (own NIC, peer) and for the job.

These are plain objects with plain integers, because they are written for every chunk: whoever moves a chunk holds the
right :class:`LinkCounters` and adds to its fields, with no call, no lock and no name looked up. Everything here lives
on one event loop. Reading is the rare case, so that is where sums are made (:meth:`Counters.snapshot`).

Counters only grow. Who wants a rate takes two snapshots and divides by the time between them.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from r2ccl.ids import nic_name


@dataclass(slots=True)
class LinkCounters:
    """What passed between one NIC of ours and one peer, on whichever of the peer's NICs."""

    #: Payloads handed to the transport, those sent again included.
    sent_bytes: int = 0
    sent_chunks: int = 0
    #: The part of ``sent`` that had gone out before. It goes up when a path is lost, and with every twin.
    resent_bytes: int = 0
    resent_chunks: int = 0
    #: Payloads that arrived whole, duplicates included.
    received_bytes: int = 0
    received_chunks: int = 0
    #: Arrived, and had been there already: dropped by name.
    duplicate_chunks: int = 0
    #: Arrived with a wrong checksum: asked for again.
    spoiled_chunks: int = 0
    acks_sent: int = 0
    acks_received: int = 0


def no_traffic() -> dict[str, int]:
    """Every counter by its name, at nought."""
    return dataclasses.asdict(LinkCounters())


def retransmit_ratio(total: Mapping[str, int]) -> float:
    """Resent bytes / sent bytes, from 0 to 1: what repairs and losses cost of what was sent. 0 if nothing was."""
    return total["resent_bytes"] / total["sent_bytes"] if total["sent_bytes"] else 0.0


@dataclass(slots=True)
class Counters:
    """All counters of one rank. Bounded by (own NICs x peers) and by the capacity given to ``record_arrivals``."""

    #: A lane moved off a lost NIC, or its chunks were spread over the others.
    failovers: int = 0
    #: Bytes that arrived before this rank had called their operation, and waited within the peer's credit.
    parked_bytes: int = 0
    #: What this rank carried for two others that did not reach each other, and frames of it that it had no room for.
    relayed_bytes: int = 0
    relay_dropped_frames: int = 0
    #: Why somebody was turned away at a listener of ours -> how many; see ``telemetry.strangers``.
    strangers: dict[str, int] = dataclasses.field(default_factory=dict)
    #: (time_s, own NIC, bytes) of the latest arrivals, oldest first; None unless somebody asked for it.
    arrivals: deque[tuple[float, int, int]] | None = None
    _links: dict[tuple[int, int], LinkCounters] = dataclasses.field(default_factory=dict)

    def link(self, local_nic: int, peer: int) -> LinkCounters:
        """The counters of one NIC towards one peer, made on first use. Keep the result: it is never replaced."""
        key = (local_nic, peer)
        counters = self._links.get(key)
        if counters is None:
            counters = self._links[key] = LinkCounters()
        return counters

    def bytes_by_nic(self) -> dict[int, tuple[int, int]]:
        """By own NIC: all bytes that were sent on it, and that arrived."""
        sums: dict[int, tuple[int, int]] = {}
        for (nic, _), counters in self._links.items():
            sent, received = sums.get(nic, (0, 0))
            sums[nic] = sent + counters.sent_bytes, received + counters.received_bytes
        return sums

    def record_arrivals(self, capacity: int) -> None:
        """Keep the latest ``capacity`` arrivals, for a plot of throughput over time; what was kept so far is dropped.

        Off by default: it costs a tuple per chunk. The writer does ``if counters.arrivals is not None``.
        """
        if capacity < 1:
            raise ValueError(f"a record of {capacity} arrivals keeps nothing")
        self.arrivals = deque(maxlen=capacity)

    def snapshot(self) -> dict[str, Any]:
        """Everything but the arrivals as plain dicts and ints, ready for JSON: the job's, per NIC, per peer, per pair.

        Keys are spelled as in logs: ``nic0``, ``rank3``, ``nic0->rank3``; what others carried for this rank is counted
        as a NIC's that is called ``relay``.
        """
        total = no_traffic()
        nics: dict[str, dict[str, int]] = {}
        peers: dict[str, dict[str, int]] = {}
        links: dict[str, dict[str, int]] = {}
        for (nic, peer), counters in sorted(self._links.items()):
            row = links[f"{nic_name(nic)}->rank{peer}"] = dataclasses.asdict(counters)
            of_nic = nics.setdefault(nic_name(nic), no_traffic())
            of_peer = peers.setdefault(f"rank{peer}", no_traffic())
            for sums in (total, of_nic, of_peer):
                for name, value in row.items():
                    sums[name] += value
        return {
            "failovers": self.failovers,
            "parked_bytes": self.parked_bytes,
            "relayed_bytes": self.relayed_bytes,
            "relay_dropped_frames": self.relay_dropped_frames,
            "strangers": dict(sorted(self.strangers.items())),
            "total": total,
            "nics": nics,
            "peers": peers,
            "links": links,
        }
