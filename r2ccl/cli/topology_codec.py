"""The picture's parts as plain lists, for messages between ranks. Who sent them is proven; they are checked all the
same, because versions and bugs differ where people do not."""

from __future__ import annotations

from typing import Any

from r2ccl.cli.topology_wire import Ended
from r2ccl.planner.network_picture import HostView, NicView, Outcome, Pair, PathMtu, Reach


def pack_view(view: HostView) -> list[Any]:
    """A rank's own view."""
    nics = [
        [
            nic.index, nic.name, nic.address, nic.prefix_length, nic.mac, nic.speed_mbit_s, nic.mtu_bytes, nic.driver,
            nic.bus_address, nic.numa_node, nic.up, nic.answers_for_itself,
        ]
        for nic in view.nics
    ]  # fmt: skip
    return [view.rank, view.host, view.node, nics]


def unpack_view(packed: Any) -> HostView:
    """Raises :class:`Ended`."""
    try:
        rank, host, node, nics = packed
        return HostView(
            int(rank),
            str(host),
            str(node),
            tuple(
                NicView(
                    int(index), str(name), str(address), int(prefix), str(mac), int(speed), int(mtu), str(driver),
                    str(bus), None if numa is None else int(numa), bool(up), bool(own),
                )
                for index, name, address, prefix, mac, speed, mtu, driver, bus, numa, up, own in nics
            ),
        )  # fmt: skip
    except (TypeError, ValueError) as bad:
        raise Ended(f"it sent a view that cannot be read: {bad}") from bad


def pack_pairs(pairs: list[Pair]) -> list[Any]:
    """Pairs."""
    return [[pair.source, pair.source_nic, pair.target, pair.target_nic] for pair in pairs]


def unpack_pairs(packed: Any) -> list[Pair]:
    """Raises :class:`Ended`."""
    try:
        return [_pair(fields) for fields in packed]
    except (TypeError, ValueError) as bad:
        raise Ended(f"it sent pairs that cannot be read: {bad}") from bad


def _pair(fields: Any) -> Pair:
    source, source_nic, target, target_nic = fields
    return Pair(int(source), int(source_nic), int(target), int(target_nic))


def pack_reaches(reaches: list[Reach]) -> list[Any]:
    """What came of reaching."""
    return [
        [*pack_pairs([reach.pair]), reach.outcome.value, reach.detail, reach.connect_min_s, reach.connect_median_s]
        for reach in reaches
    ]


def unpack_reaches(packed: Any) -> list[Reach]:
    """Raises :class:`Ended`."""
    try:
        return [
            Reach(_pair(pair), Outcome(outcome), str(detail), float(least_s), float(median_s))
            for pair, outcome, detail, least_s, median_s in packed
        ]
    except (TypeError, ValueError) as bad:
        raise Ended(f"it sent outcomes that cannot be read: {bad}") from bad


def pack_mtus(mtus: list[PathMtu]) -> list[Any]:
    """Sizes of packets that pass."""
    return [[*pack_pairs([mtu.pair]), mtu.path_bytes, mtu.told] for mtu in mtus]


def unpack_mtus(packed: Any) -> list[PathMtu]:
    """Raises :class:`Ended`."""
    try:
        return [PathMtu(_pair(pair), int(path_bytes), bool(told)) for pair, path_bytes, told in packed]
    except (TypeError, ValueError) as bad:
        raise Ended(f"it sent sizes that cannot be read: {bad}") from bad
