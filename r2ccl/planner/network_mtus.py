"""What the sizes of packets that pass say.

Both ends of a TCP connection tell each other how much they take, so NICs of unlike MTU get on: the smaller one holds.
What neither end knows of is a smaller MTU in between. A router there should say so (ICMP), and senders adapt. A switch
cannot, and many firewalls drop the word: a *black hole*. Then small packets pass, so connects, handshakes and
heartbeats do, and every full packet vanishes, resent or not. A job connects, and the link stalls with the first chunk;
r2ccl takes it for silent and moves on to another NIC, where there is one, and comes back to it again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from r2ccl.planner.network_picture import IP_BYTES_MAX, PathMtu, Picture
from r2ccl.planner.network_remarks import Finding, Kind, note, problem

#: Pairs that one sentence names; of more, the number is told.
_NAMED_MAX = 4


def mtu_findings(picture: Picture) -> Iterator[Finding]:
    """What is to be said about MTUs, pairs with the same to say together."""
    yield from _unlike_interfaces(picture)
    small = [mtu for mtu in picture.mtus if mtu.path_bytes < agreed_bytes(picture, mtu)]
    small.sort(key=lambda mtu: _sort_key(picture, mtu))
    for (path_bytes, agreed, told), group in groupby(small, key=lambda mtu: _sort_key(picture, mtu)):
        pairs = _named(picture, list(group))
        if path_bytes == 0:
            yield note(
                Kind.MTU_UNKNOWN,
                f"{pairs}: no packet of ours was answered, so the path MTU is not known (is UDP let through?)",
            )
        elif told:
            yield note(
                Kind.MTU_REDUCED,
                f"{pairs}: interface MTU {agreed}, path MTU {path_bytes}; the network says so to senders, which adapt",
            )
        else:
            yield problem(
                Kind.MTU_BLACK_HOLE,
                f"{pairs}: interface MTU {agreed}, path MTU {path_bytes}: larger packets vanish without a word, so "
                f"connects succeed and bulk stalls. `ip link set dev NIC mtu {path_bytes}` at both ends, or mend the "
                "switch in between",
            )


def agreed_bytes(picture: Picture, mtu: PathMtu) -> int:
    """The largest packet that both ends of a pair take."""
    pair = mtu.pair
    ends = picture.nic(pair.source, pair.source_nic), picture.nic(pair.target, pair.target_nic)
    return min(IP_BYTES_MAX, *(nic.mtu_bytes for nic in ends))


def _unlike_interfaces(picture: Picture) -> Iterator[Finding]:
    for rail in range(max((len(host.nics) for host in picture.hosts), default=0)):
        nics = [(host.rank, host.nics[rail]) for host in picture.hosts if rail < len(host.nics)]
        if len({nic.mtu_bytes for _, nic in nics}) > 1:
            words = ", ".join(f"rank {rank}: {nic.mtu_bytes}" for rank, nic in nics)
            yield note(Kind.UNLIKE_MTUS, f"the NICs of rail {rail} have unlike MTUs ({words}): the smaller one holds")


def _sort_key(picture: Picture, mtu: PathMtu) -> tuple[int, int, bool]:
    return (mtu.path_bytes, agreed_bytes(picture, mtu), mtu.told)


def _named(picture: Picture, mtus: list[PathMtu]) -> str:
    words = [
        f"{picture.name(mtu.pair.source, mtu.pair.source_nic)} to {picture.name(mtu.pair.target, mtu.pair.target_nic)}"
        for mtu in mtus[:_NAMED_MAX]
    ]
    more = f" and {len(mtus) - _NAMED_MAX} more pairs" if len(mtus) > _NAMED_MAX else ""
    return ", ".join(words) + more
