"""What the sizes of packets that pass say.

Both ends of a TCP connection tell each other how much they take, so NICs of unlike MTU get on: the smaller one holds.
What neither end knows of is a smaller MTU in between. A router there should say so (ICMP), and senders adapt. A switch
cannot, and many firewalls drop the word: a *black hole*. Then small packets pass, so connects, handshakes and
heartbeats do, and every full packet vanishes, resent or not. A job connects, and the link stalls with the first chunk;
r2ccl takes it for silent and moves on to another NIC, where there is one, and comes back to it again and again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from r2ccl.planner.network_picture import IP_BYTES_MAX, Pair, PathMtu, Picture
from r2ccl.planner.network_remarks import Finding, Kind, note, problem

#: Pairs that one sentence names; of more, the number is told.
_NAMED_MAX = 4


@dataclass(frozen=True, slots=True)
class _Narrow:
    """Two NICs between which less passes than both take, in one direction or both. The smaller path MTU counts."""

    names: str
    path_bytes: int
    agreed_bytes: int
    told: bool

    @property
    def what_is_said(self) -> tuple[int, int, bool]:
        """Of pairs that are alike in this the same is to be said."""
        return (self.path_bytes, self.agreed_bytes, self.told)


def mtu_findings(picture: Picture) -> Iterator[Finding]:
    """What is to be said about MTUs, pairs with the same to say together."""
    yield from _unlike_interfaces(picture)
    narrow = sorted(_narrow(picture), key=lambda each: each.what_is_said)
    for (path_bytes, agreed, told), group in groupby(narrow, key=lambda each: each.what_is_said):
        pairs = _named([each.names for each in group])
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


def black_holes(picture: Picture) -> set[Pair]:
    """Pairs, in both directions, where large packets vanish in one: data or what answers it is lost."""
    holes = {mtu.pair for mtu in picture.mtus if 0 < mtu.path_bytes < agreed_bytes(picture, mtu) and not mtu.told}
    return holes | {pair.back for pair in holes}


def _narrow(picture: Picture) -> Iterator[_Narrow]:
    small = {mtu.pair: mtu for mtu in picture.mtus if mtu.path_bytes < agreed_bytes(picture, mtu)}
    for pair, mtu in small.items():
        back = small.get(pair.back)
        if back is not None and pair.source > pair.target:
            continue  # told with the way there
        narrower = mtu if back is None else min(mtu, back, key=lambda each: each.path_bytes)
        ends = picture.name(pair.source, pair.source_nic), picture.name(pair.target, pair.target_nic)
        names = (" to " if back is None else " and ").join(ends)
        yield _Narrow(names, narrower.path_bytes, agreed_bytes(picture, mtu), narrower.told)


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


def _named(names: list[str]) -> str:
    more = f"; and {len(names) - _NAMED_MAX} more pairs" if len(names) > _NAMED_MAX else ""
    return "; ".join(names[:_NAMED_MAX]) + more
