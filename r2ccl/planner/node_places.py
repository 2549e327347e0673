"""Which rank one is among those of its node, and which node among those that have such a rank.

Launchers and Horovod count so: the ranks of a node by *local* index, and the nodes that have a rank of that index, in
the order of their first ranks, by *cross* index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One rank's."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    #: All nodes have as many ranks.
    is_homogeneous: bool


def grouped(nodes: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Ranks by node, in the order of their first. ``nodes``: the name of the node of each rank."""
    members: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        members.setdefault(node, []).append(number)
    return tuple(map(tuple, members.values()))


def place_of(rank: int, nodes: Sequence[str]) -> NodePlace:
    """``nodes``: the name of the node of each rank."""
    members = grouped(nodes)
    beside = next(ranks for ranks in members if rank in ranks)
    index = beside.index(rank)
    across = [ranks[index] for ranks in members if len(ranks) > index]
    is_homogeneous = len(set(map(len, members))) == 1
    return NodePlace(index, len(beside), across.index(rank), len(across), is_homogeneous)
