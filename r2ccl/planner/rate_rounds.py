"""Who sends to whom while rates are measured, so that no two measurements share a wire.

NIC after NIC, all hosts at once, each to another host: every NIC sends one stream and receives at most one, as in a
ring, and a wire carries both directions. So a round takes one measurement's time, whatever the number of hosts.
"""

from __future__ import annotations

from r2ccl.planner.network_picture import Pair, Picture


def rate_rounds(picture: Picture) -> list[list[Pair]]:
    """One round per index of NICs; a NIC that reaches none of its rail is left out."""
    rounds = []
    for nic in range(max((len(host.nics) for host in picture.hosts), default=0)):
        if pairs := _round(picture, nic):
            rounds.append(pairs)
    return rounds


def _round(picture: Picture, nic: int) -> list[Pair]:
    size, reached = len(picture.hosts), picture.reached
    pairs: list[Pair] = []
    #: Devices, because ranks of one host may share a NIC.
    sending: set[tuple[str, str, str]] = set()
    receiving: set[tuple[str, str, str]] = set()
    for source in range(size):
        if nic >= len(picture.hosts[source].nics) or picture.device(source, nic) in sending:
            continue
        for distance in range(1, size):
            pair = Pair(source, nic, (source + distance) % size, nic)
            if pair in reached and picture.device(pair.target, nic) not in receiving:
                sending.add(picture.device(source, nic))
                receiving.add(picture.device(pair.target, nic))
                pairs.append(pair)
                break
    return pairs
