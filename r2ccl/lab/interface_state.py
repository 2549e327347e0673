"""What an interface is before a fault, as the kernel's own messages, so that exactly this can be put back.

A qdisc, an address and a route are kept as the attributes in which the kernel told of them, and go back to it as they
are. Nothing here knows what they mean, beyond what is needed to find those that a fault would take away.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from r2ccl.errors import UsageError
from r2ccl.lab.fault_undo import HEADER, NLMSG_ERROR

NLM_F_DUMP: Final = 0x301
NLMSG_DONE: Final = 3
RTM_NEWLINK, RTM_GETLINK = 16, 18
RTM_NEWADDR, RTM_GETADDR = 20, 22
RTM_NEWROUTE, RTM_GETROUTE = 24, 26
RTM_NEWNEIGH, RTM_GETNEIGH = 28, 30
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38

IFINFO: Final = struct.Struct("=BxHiII")
IFADDR: Final = struct.Struct("=BBBBi")
RTMSG: Final = struct.Struct("=BBBBBBBBI")
NDMSG: Final = struct.Struct("=BxxxiHBB")
TCMSG: Final = struct.Struct("=BxxxiIII")
ATTRIBUTE: Final = struct.Struct("=HH")
NEXT_HOP: Final = struct.Struct("=HBBi")

IFLA_IFNAME = 3
IFA_ADDRESS, IFA_LOCAL = 1, 2
RTA_OIF, RTA_MULTIPATH, RTA_NH_ID = 4, 9, 30
TCA_KIND, TCA_OPTIONS = 1, 2

IFF_UP = 1
NUD_PERMANENT = 0x80
RTM_F_CLONED = 0x200
RTPROT_KERNEL = 2
RTN_UNICAST = 1
RT_TABLE_MAIN = 254
#: Of a next hop's flags these two are asked for; the others are news.
RTNH_ASKED = 0x2 | 0x4
TC_ROOT: Final = 0xFFFFFFFF
TC_INGRESS: Final = 0xFFFFFFF1


@dataclass(frozen=True, slots=True)
class Qdisc:
    """One qdisc, by the kernel's own words. ``handle`` 0: what the kernel gives to who asks for none."""

    kind: str
    handle: int
    parent: int
    options: bytes | None


@dataclass(frozen=True, slots=True)
class InterfaceState:
    """What a fault may change. The lists are bodies of messages that bring back what is lost when it goes down."""

    name: str
    index: int
    up: bool
    qdiscs: tuple[Qdisc, ...]
    addresses: tuple[bytes, ...]
    neighbours: tuple[bytes, ...]
    routes: tuple[bytes, ...]
    #: Routes by next hops that are objects of their own, and go with them.
    has_next_hop_objects: bool
    carries_default_route: bool
    #: All of its addresses, as text.
    own: frozenset[str]


def read_state(interface: str) -> InterfaceState:
    """Of an interface in the calling thread's namespace. Raises :class:`UsageError` if there is none."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        index, flags = _find(kernel, interface)
        qdiscs = tuple(_qdiscs(kernel, index))
        addresses = [body for body in _dump(kernel, RTM_GETADDR, IFADDR) if IFADDR.unpack_from(body)[4] == index]
        neighbours = tuple(_neighbours(kernel, index))
        routes = [body for body in _dump(kernel, RTM_GETROUTE, RTMSG) if _goes_by(body, index)]
    return InterfaceState(
        name=interface,
        index=index,
        up=bool(flags & IFF_UP),
        qdiscs=qdiscs,
        addresses=tuple(body for body in addresses if body[0] == socket.AF_INET6),
        neighbours=neighbours,
        routes=tuple(_as_asked_for(body) for body in routes if _must_be_put_back(body)),
        has_next_hop_objects=any(RTA_NH_ID in attributes(body, RTMSG.size) for body in routes),
        carries_default_route=any(_is_default(body) for body in routes),
        own=frozenset(_address(body) for body in addresses),
    )


def attributes(body: bytes, offset: int) -> dict[int, bytes]:
    """The attributes behind a message's fixed part, by type."""
    found = {}
    while offset + ATTRIBUTE.size <= len(body):
        length, kind = ATTRIBUTE.unpack_from(body, offset)
        if length < ATTRIBUTE.size:
            break
        found[kind & 0x3FFF] = body[offset + ATTRIBUTE.size : offset + length]
        offset += -(-length // 4) * 4
    return found


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return (ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value).ljust(-(-(4 + len(value)) // 4) * 4, b"\0")


def _dump(kernel: socket.socket, kind: int, fixed: struct.Struct) -> Iterator[bytes]:
    """The bodies of all that the kernel has of a kind."""
    kernel.send(HEADER.pack(HEADER.size + fixed.size, kind, NLM_F_DUMP, 1, 0) + bytes(fixed.size))
    while True:
        answer = kernel.recv(1 << 18)
        offset = 0
        while offset < len(answer):
            length, answered, *_ = HEADER.unpack_from(answer, offset)
            body = answer[offset + HEADER.size : offset + length]
            if answered == NLMSG_DONE:
                return
            if answered == NLMSG_ERROR:
                raise OSError(-struct.unpack_from("=i", body)[0], "the kernel does not tell its network state")
            yield body
            offset += -(-length // 4) * 4


def _find(kernel: socket.socket, interface: str) -> tuple[int, int]:
    names = []
    found = None
    for body in _dump(kernel, RTM_GETLINK, IFINFO):
        name = attributes(body, IFINFO.size)[IFLA_IFNAME].rstrip(b"\0").decode(errors="replace")
        names.append(name)
        if name == interface:
            _, _, index, flags, _ = IFINFO.unpack_from(body)
            found = index, flags
    if found is None:
        raise UsageError(f"there is no interface {interface!r} here; there are {', '.join(names)}")
    return found


def _qdiscs(kernel: socket.socket, index: int) -> Iterator[Qdisc]:
    for body in _dump(kernel, RTM_GETQDISC, TCMSG):
        _, of, handle, parent, _ = TCMSG.unpack_from(body)
        if of == index:
            own = attributes(body, TCMSG.size)
            yield Qdisc(own[TCA_KIND].rstrip(b"\0").decode(), handle, parent, own.get(TCA_OPTIONS))


def _neighbours(kernel: socket.socket, index: int) -> Iterator[bytes]:
    for body in _dump(kernel, RTM_GETNEIGH, NDMSG):
        family, of, state, *_ = NDMSG.unpack_from(body)
        if of == index and state & NUD_PERMANENT and family in (socket.AF_INET, socket.AF_INET6):
            yield body


def _hops(body: bytes) -> Iterator[tuple[int, int]]:
    """(offset within the attribute, interface) of the next hops of a route with several."""
    several = attributes(body, RTMSG.size).get(RTA_MULTIPATH, b"")
    offset = 0
    while offset + NEXT_HOP.size <= len(several):
        length, _, _, index = NEXT_HOP.unpack_from(several, offset)
        yield offset, index
        offset += max(NEXT_HOP.size, -(-length // 4) * 4)


def _goes_by(body: bytes, index: int) -> bool:
    out = attributes(body, RTMSG.size).get(RTA_OIF)
    return (out is not None and struct.unpack("=i", out)[0] == index) or any(hop == index for _, hop in _hops(body))


def _is_default(body: bytes) -> bool:
    """In the main table; policy routing keeps defaults of its own for each of a host's NICs."""
    _, length, _, _, table, _, _, kind, _ = RTMSG.unpack_from(body)
    return (length, kind, table) == (0, RTN_UNICAST, RT_TABLE_MAIN)


def _must_be_put_back(body: bytes) -> bool:
    """The kernel's own routes come back with the addresses that they belong to."""
    _, _, _, _, _, protocol, _, _, flags = RTMSG.unpack_from(body)
    return protocol != RTPROT_KERNEL and not flags & RTM_F_CLONED


def _as_asked_for(body: bytes) -> bytes:
    """Without the kernel's remarks on the state of a route, which it does not take back."""
    copy = bytearray(body)
    flags = RTMSG.unpack_from(copy)[8] & RTNH_ASKED
    struct.pack_into("=I", copy, RTMSG.size - 4, flags)
    offset = RTMSG.size
    while offset + ATTRIBUTE.size <= len(copy):
        length, kind = ATTRIBUTE.unpack_from(copy, offset)
        if kind & 0x3FFF == RTA_MULTIPATH:
            for hop, _ in _hops(body):
                copy[offset + ATTRIBUTE.size + hop + 2] &= RTNH_ASKED
        offset += max(ATTRIBUTE.size, -(-length // 4) * 4)
    return bytes(copy)


def _address(body: bytes) -> str:
    own = attributes(body, IFADDR.size)
    raw = own.get(IFA_LOCAL) or own.get(IFA_ADDRESS, b"")
    return socket.inet_ntop(body[0], raw) if len(raw) in (4, 16) else ""
