"""What a rank tells about itself: where in its life it is, what it is made of, and how its NICs and peers fare.

Only reading, and only when somebody asks: nothing here is called for a chunk. Names and states are those of the log, so
that a line there can be looked up here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Protocol

from r2ccl.actors.epochs import Epochs
from r2ccl.actors.link import Link
from r2ccl.actors.links import Port
from r2ccl.protocol.evidence import Evidence
from r2ccl.protocol.lanes import Lane
from r2ccl.telemetry.counters import no_traffic, retransmit_ratio
from r2ccl.topology import Endpoint, device_label, lanes_over_device

if TYPE_CHECKING:
    from r2ccl.actors.runtime import Runtime

_TITLES = ("NIC", "device", "address", "speed", "MTU", "share", "reaches ranks")


class Numbering(Protocol):
    """Whoever numbers the operations of a communicator."""

    next_operation: int

    @property
    def epoch(self) -> int: ...

    @property
    def running(self) -> Mapping[int, Any]: ...

    @property
    def waiting(self) -> Sized: ...


def moment(numberings: Mapping[int, Numbering]) -> dict[str, object]:
    """When in the life of the job something happened: the operation that runs, and its communicator's newest epoch.

    Of several that run it is the one that started first, because it is what other ranks wait for; if none runs, the
    last one called. The communicator is named where there are several.
    """
    running = [(run.turn, id_, number) for id_, of in numberings.items() for number, run in of.running.items()]
    if running:
        _, communicator, operation = min(running)
    else:
        called = [(id_, of.next_operation - 1) for id_, of in numberings.items() if of.next_operation]
        if not called:
            return {"epoch": max((of.epoch for of in numberings.values()), default=0), "op": "none"}
        communicator, operation = called[0]
    where = {"communicator": f"{communicator:x}"} if len(numberings) > 1 else {}
    return {"epoch": numberings[communicator].epoch, "op": operation, **where}


def start_table(runtime: Runtime, left_out: Iterable[tuple[str, str]]) -> str:
    """The NICs of this rank, what each reaches, and which interfaces were left out and why: several lines."""
    shared = runtime.shared
    rows = [_TITLES]
    nics = [port.nic for port in runtime.ports]
    for port in runtime.ports:
        nic = port.nic
        reached = sorted(link.id.peer for link in port.links.values() if link.is_up and link.is_rail)
        rows.append((
            f"nic{nic.index}", device_label(nic, nics), str(own_address(runtime, nic.index)),
            f"{nic.speed_mbit_s} Mbit/s" if nic.speed_mbit_s else "unknown", str(nic.mtu_bytes),
            "spare" if nic.spare else "carries", ranges(reached) or "none",
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"NICs of rank {shared.rank} of {shared.size}, node {shared.members[shared.rank].node}:"]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for port in runtime.sharing.ports:
        neighbours = sorted(link.id.peer for link in port.links.values() if link.is_up)
        lines.append(
            f"memory shared with ranks: {ranges(neighbours) or 'none'}; links by NICs to these follow, and stand by"
        )
    lines += [f"left out: {name}: {reason}" for name, reason in left_out]
    return "\n  ".join(lines)


def own_address(runtime: Runtime, nic: int) -> Endpoint:
    """Where one of our NICs listens: where it was announced, or where it is since."""
    return runtime.courier.moved.get(nic) or runtime.shared.endpoint(runtime.shared.rank, nic)


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, runs of three and more as one: ``0-6, 9``."""
    runs: list[list[int]] = []
    for number in dict.fromkeys(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def stats(runtime: Runtime, numbering: Numbering, rank: int, size: int, epochs: Epochs) -> dict[str, Any]:
    """See ``Communicator.stats``, where each key is explained."""
    operations = {
        "called": numbering.next_operation,
        "running": len(numbering.running),
        "waiting": len(numbering.waiting),
    }
    agreed = {"epoch": epochs.newest.epoch, "agreement": epochs.waiting, "plans": epochs.newest.reasons}
    return {"rank": rank, "size": size, **agreed, "operations": operations, **_network(runtime)}


def _network(runtime: Runtime) -> dict[str, Any]:
    counted, ports = runtime.shared.counters.snapshot(), runtime.all_ports
    rtts_s = {link.id: _rtt_s(link) for port in ports for link in port.links.values()}
    lanes = [lane for lanes in runtime.courier.lanes.values() for lane in lanes]
    links = {
        str(link.id): {
            "state": link.session.state.value,
            "flaps": link.session.flaps,
            "cause": link.session.cause,
            "backup": not link.is_rail,
            "rtt_s": rtts_s[link.id],
            "suspicion": link.evidence.suspicion.value,
            "evidence": [_evidence(evidence) for evidence in link.evidence.standing.values()],
            "route": "shadow" if link.evidence.is_diverted else "home",
        }
        for port in ports
        for link in port.links.values()
    }
    nics = {f"nic{port.nic.index}": _nic(runtime, port, lanes, rtts_s) for port in runtime.ports}
    peers = {f"rank{peer}": _peer(runtime, peer, rtts_s) for peer in runtime.shared.peers}
    return {
        "ccl_retransmit_ratio": retransmit_ratio(counted["total"]),
        "counters": counted,
        "nics": {name: state | _traffic(counted["nics"].get(name)) for name, state in nics.items()},
        "peers": {name: state | _traffic(counted["peers"].get(name)) for name, state in peers.items()},
        "links": links,
        "incidents": runtime.diagnosing.incidents(),
        "lanes": {f"lane{lane.index}->rank{lane.peer}": _lane(lane) for lane in lanes},
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {"kind": evidence.kind.value, "since_s": evidence.since_s, "says": str(evidence)}


def _nic(runtime: Runtime, port: Port, lanes: Sequence[Lane], rtts_s: Mapping[Any, float | None]) -> dict[str, Any]:
    nic, nics = port.nic, [port.nic for port in runtime.ports]
    bandwidths = [
        lane.bandwidth
        for lane in lanes
        if lane.is_measured and lane.link is not None and lane.link.id.local_nic == nic.index
    ]
    return {
        "device": nic.name,
        "shares_device_with": [f"nic{index}" for index in lanes_over_device(nic, nics) if index != nic.index],
        "address": str(own_address(runtime, nic.index)),
        "state": "up" if port.is_up else "down",
        "spare": nic.spare,
        "speed_mbit_s": nic.speed_mbit_s,
        "mtu_bytes": nic.mtu_bytes,
        "bandwidth_bytes_s": max(bandwidths, default=None),
        "rtt_s": _shortest(rtt_s for link, rtt_s in rtts_s.items() if link.local_nic == nic.index),
    }


def _peer(runtime: Runtime, peer: int, rtts_s: Mapping[Any, float | None]) -> dict[str, Any]:
    bandwidths = [
        lane.bandwidth for lane in runtime.courier.lanes[peer] if lane.is_measured and lane.link is not None
    ]  # fmt: skip
    return {
        "state": runtime.health.peers[peer].state.value,
        "links_up": len(runtime.courier.links_up(peer)),
        "bandwidth_bytes_s": sum(bandwidths) if bandwidths else None,
        "rtt_s": _shortest(rtt_s for link, rtt_s in rtts_s.items() if link.peer == peer),
    }


def _traffic(counted: Mapping[str, int] | None) -> dict[str, float]:
    row = counted or no_traffic()
    return {**row, "ccl_retransmit_ratio": retransmit_ratio(row)}


def _lane(lane: Lane) -> dict[str, Any]:
    return {
        "link": str(lane.link.id) if lane.link is not None else None,
        "bandwidth_bytes_s": lane.bandwidth,
        "measured": lane.is_measured,
        "round_trip_s": lane.round_trip_s,
        "window_bytes": lane.window_bytes,
        "outstanding_bytes": lane.outstanding_bytes,
    }


def _rtt_s(link: Link) -> float | None:
    """As the transport measures it: without the time that the peer's program takes to answer."""
    return link.control.sample().rtt_s if link.is_up and link.control is not None else None


def _shortest(rtts_s: Iterable[float | None]) -> float | None:
    return min((rtt_s for rtt_s in rtts_s if rtt_s is not None), default=None)
