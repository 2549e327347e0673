"""What there is: NICs, the ranks that own them, and where each can be reached. Plain data, no behaviour."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack  # type: ignore[import-untyped, unused-ignore]

from r2ccl.checks import exactly, unsigned
from r2ccl.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a device listens. ``family`` is ``"inet"``, ``"inet6"``, ``"shared"`` or ``"memory"``."""

    family: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if self.family == "inet6" else f"{self.host}:{self.port}"


#: Longest text in an announcement: names, hosts.
_WORD_CHARACTERS_MAX: Final = 255


def checked_endpoint(family: Any, host: Any, port: Any) -> Endpoint:
    """Where somebody says that it listens. Raises ``ValueError`` for what is no address: we look up no names."""
    if family == "memory":
        return Endpoint("memory", _word(host), unsigned(port, 16))
    if family not in ("inet", "inet6"):
        raise ValueError(f"no family {family!r:.40}")
    kind = ipaddress.IPv4Address if family == "inet" else ipaddress.IPv6Address
    kind(_word(host))
    return Endpoint(family, host, unsigned(port, 16))


@dataclass(frozen=True, slots=True)
class Nic:
    """One interface of one rank, or one of several lanes over it. Its identity is ``index``, not its address."""

    index: int
    name: str
    endpoint: Endpoint
    #: Nominal speed; 0 where the system does not say.
    speed_mbit_s: int = 0
    mtu_bytes: int = 1500
    #: A spare carries no share until another NIC is lost.
    spare: bool = False


def lanes_over_device(nic: Nic, nics: Sequence[Nic]) -> list[int]:
    """Indices of all NICs that are the same interface with the same address (see ``transport.nic_lanes``)."""
    where = (nic.name, nic.endpoint.host)
    return [other.index for other in nics if (other.name, other.endpoint.host) == where]


def device_label(nic: Nic, nics: Sequence[Nic]) -> str:
    """The interface for a person; where several lanes go over it, which one this is."""
    lanes = lanes_over_device(nic, nics)
    return nic.name if len(lanes) == 1 else f"{nic.name}, lane {lanes.index(nic.index) + 1} of {len(lanes)}"


@dataclass(frozen=True, slots=True)
class Member:
    """One rank as it announced itself."""

    rank: int
    #: Random per process and connect: tells a restarted rank from the one that was there before.
    incarnation: int
    #: Ranks with equal ``node`` share a network namespace and a /dev/shm, as far as a hash can tell (node_identity).
    node: str
    nics: tuple[Nic, ...]
    #: What messages cost where this rank is, if it was measured. Only that of rank 0 counts.
    tuning: Tuning | None = None

    @property
    def carrying(self) -> tuple[Nic, ...]:
        """The NICs that carry a share from the start."""
        return tuple(nic for nic in self.nics if not nic.spare)


def shared_memory_endpoint(member: Member) -> Endpoint:
    """Where a rank's neighbours on its node ask for memory to share: by a name that no other process takes."""
    return Endpoint("shared", f"r2ccl-{member.rank}-{member.incarnation:016x}", 0)


#: Most NICs of a rank, lanes over the same interface included.
NICS_MAX: Final = 1024

#: The job's members in rank order.
AddressBook = tuple[Member, ...]


def pack_member(member: Member) -> bytes:
    """One member as msgpack, for the rendezvous."""
    nics = [
        [n.index, n.name, n.endpoint.family, n.endpoint.host, n.endpoint.port, n.speed_mbit_s, n.mtu_bytes, n.spare]
        for n in member.nics
    ]
    tuning = [] if member.tuning is None else member.tuning.as_numbers()
    packed: bytes = msgpack.packb([member.rank, member.incarnation, member.node, nics, tuning])
    return packed


def unpack_member(packed: bytes) -> Member:
    """The inverse of :func:`pack_member`. Raises ``ValueError`` on anything that is not a member."""
    try:
        fields = msgpack.unpackb(packed, max_array_len=NICS_MAX, max_map_len=0, max_ext_len=0)
        rank, incarnation, node, nics, numbers = fields
        announced = tuple(_nic(index, *nic) for index, nic in enumerate(exactly(list, nics)))
        tuning = Tuning.from_numbers(numbers) if exactly(list, numbers) else None
        return Member(unsigned(rank, 32), unsigned(incarnation), _word(node), announced, tuning)
    except (TypeError, ValueError, msgpack.UnpackException) as bad:
        raise ValueError(f"not an announcement of a member: {bad}") from bad


def _nic(place: int, index: Any, name: Any, family: Any, host: Any, port: Any, speed: Any, mtu: Any, spare: Any) -> Nic:
    if unsigned(index, 32) != place:
        raise ValueError(f"NIC {index} is announced as number {place}")
    endpoint = checked_endpoint(family, host, port)
    return Nic(index, _word(name), endpoint, unsigned(speed), unsigned(mtu), exactly(bool, spare))


def _word(value: Any) -> str:
    if type(value) is not str or len(value) > _WORD_CHARACTERS_MAX or not value.isprintable():
        raise ValueError(f"{value!r:.40} is no name")
    return value
