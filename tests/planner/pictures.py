"""Pictures of networks to judge: a healthy one, and what is changed about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from r2ccl.cli.topology_conductor import links_of, pairs_to_try
from r2ccl.planner.network_picture import HostView, NicView, Outcome, Pair, PathMtu, Picture, Reach


def nic(rank: int, index: int) -> NicView:
    """As the lab makes them: a subnet for each rail."""
    return NicView(
        index=index,
        name=f"eth{index}",
        address=f"10.200.{index}.{rank + 1}",
        prefix_length=24,
        mac=f"02:00:00:00:{index:02x}:{rank + 1:02x}",
        speed_mbit_s=10_000,
    )


def hosts_with(nics: Iterable[int]) -> tuple[HostView, ...]:
    """A host for each number of NICs."""
    return tuple(
        HostView(rank, f"host{rank}", f"node{rank}", tuple(nic(rank, index) for index in range(count)))
        for rank, count in enumerate(nics)
    )


def picture_of(
    hosts: tuple[HostView, ...], works: Callable[[Pair], bool] = lambda pair: True, backup_paths: int = 2
) -> Picture:
    """Everything was tried; what works answered, the rest was silent."""
    reaches = tuple(
        Reach(pair, Outcome.REACHED, "", 0.0001, 0.0002) if works(pair) else Reach(pair, Outcome.SILENT, "no answer")
        for pairs in pairs_to_try(hosts).values()
        for pair in pairs
    )
    mtus = tuple(PathMtu(reach.pair, 1500) for reach in reaches if reach.outcome is Outcome.REACHED)
    return Picture(hosts, reaches, links_of(hosts, backup_paths), mtus)


def on_rails(pair: Pair) -> bool:
    """Rails are networks of their own."""
    return pair.source_nic == pair.target_nic


def healthy(hosts: int = 3, nics: int = 2) -> Picture:
    """Nothing is wrong with it."""
    return picture_of(hosts_with([nics] * hosts), on_rails)


def touches(pair: Pair, rank: int, nic_index: int) -> bool:
    """Is that NIC one of the two?"""
    return (rank, nic_index) in ((pair.source, pair.source_nic), (pair.target, pair.target_nic))


def without_nic(picture: Picture, rank: int, nic_index: int, up: bool = True) -> Picture:
    """The NIC reaches nobody and nobody reaches it."""
    changed = with_nic(picture, rank, nic_index, up=up)
    return picture_of(changed.hosts, lambda pair: on_rails(pair) and not touches(pair, rank, nic_index))


def with_nic(picture: Picture, rank: int, nic_index: int, **fields: object) -> Picture:
    """Another view of one NIC."""
    host = picture.hosts[rank]
    nics = list(host.nics)
    nics[nic_index] = dataclasses.replace(nics[nic_index], **fields)  # type: ignore[arg-type]
    hosts = list(picture.hosts)
    hosts[rank] = dataclasses.replace(host, nics=tuple(nics))
    return dataclasses.replace(picture, hosts=tuple(hosts))
