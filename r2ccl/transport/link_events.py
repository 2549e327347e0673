"""Learning within a millisecond that an interface lost its carrier: a plain netlink socket on the event loop.

The kernel broadcasts every change of a link to whoever asks. This file reads those messages (:func:`parse`, pure),
keeps what is up, and tells changes only: the kernel repeats itself whenever anything about a link changes, and a
listener who acted on each repeat would count flaps that did not happen.

When the kernel had more to say than the socket could hold it says ENOBUFS, once, and the messages are gone. Then all
links are asked for anew, over the same socket, so that there is one way in which states arrive. We ask netlink and not
/sys, because /sys shows the network namespace that was current when it was mounted, which need not be ours.

Only Linux has this. Elsewhere :func:`link_events_available` is False and faults are found by silence alone. A library
for netlink would cost every rank 150 ms of import for these two hundred lines.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import logging
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# From linux/netlink.h, linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h and linux/if.h.
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_RTM_NEWLINK, _RTM_DELLINK, _RTM_GETLINK, _RTM_NEWADDR, _RTM_DELADDR = 16, 17, 18, 20, 21
_NLM_F_REQUEST, _NLM_F_DUMP = 0x001, 0x300
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR = 0x01, 0x10
_IFF_UP, _IFF_LOWER_UP = 0x1, 0x10000
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_CARRIER, _IFLA_INFO_KIND = 3, 10, 18, 33, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_AF_UNSPEC = 0
_ATTRIBUTE_TYPE_MASK = 0x3FFF
_MESSAGE = struct.Struct("=IHHII")
_LINK = struct.Struct("=BBHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
#: One read. The kernel's own dump messages have at most 32 KiB.
_READ_BYTES = 64 << 10
#: Messages read in one turn of the loop; more follow on the next.
_READS_PER_TURN = 16
#: Room for a storm of changes: some thousand messages.
_RECEIVE_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """The state of one link. ``up``: switched on, and with a carrier."""

    interface_name: str
    interface_index: int
    up: bool
    removed: bool = False
    #: Such as ``veth``, ``bridge``, ``dummy``, ``wireguard``; empty for hardware.
    kind: str = ""
    #: Index of the bridge or bond that the link is a port of; 0: none.
    master_index: int = 0


@dataclass(frozen=True, slots=True)
class AddressEvent:
    """An IPv4 address came to an interface or left it."""

    interface_index: int
    host: str
    removed: bool = False


class DumpEnd(enum.Enum):
    """All links that we had asked for have been told."""

    DUMP_END = enum.auto()


Event = LinkEvent | AddressEvent | DumpEnd


def link_events_available() -> bool:
    """Whether this system tells of changes of links."""
    return sys.platform == "linux"


def parse(data: bytes) -> list[Event]:
    """The events in what one read of the socket gave. What is cut short or not understood is left out."""
    return [event for kind, body in _messages(data) if (event := _event(kind, body)) is not None]


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _MESSAGE.size <= len(data):
        length, kind, _flags, _sequence, _port = _MESSAGE.unpack_from(data, offset)
        if length < _MESSAGE.size or offset + length > len(data):
            return
        yield kind, data[offset + _MESSAGE.size : offset + length]
        offset += _aligned(length)


def _event(kind: int, body: bytes) -> Event | None:
    if kind in (_RTM_NEWLINK, _RTM_DELLINK):
        return _link_event(body, removed=kind == _RTM_DELLINK)
    if kind in (_RTM_NEWADDR, _RTM_DELADDR):
        return _address_event(body, removed=kind == _RTM_DELADDR)
    # An error can only be the answer to our one request: then nothing more is coming either.
    return DumpEnd.DUMP_END if kind in (_NLMSG_DONE, _NLMSG_ERROR) else None


def _link_event(body: bytes, removed: bool) -> LinkEvent | None:
    if len(body) < _LINK.size:
        return None
    family, _pad, _type, index, flags, _change = _LINK.unpack_from(body)
    if family != _AF_UNSPEC:
        # A bridge tells of its ports in messages of the same kinds: a port that leaves is no interface that vanishes.
        return None
    attributes = _attributes(body[_LINK.size :])
    name = _text(attributes.get(_IFLA_IFNAME, b""))
    carrier = attributes.get(_IFLA_CARRIER, b"")
    has_carrier = carrier[0] != 0 if carrier else bool(flags & _IFF_LOWER_UP)
    information = _attributes(attributes.get(_IFLA_LINKINFO, b""))
    return LinkEvent(
        interface_name=name,
        interface_index=index,
        up=not removed and bool(flags & _IFF_UP) and has_carrier,
        removed=removed,
        kind=_text(information.get(_IFLA_INFO_KIND, b"")),
        master_index=_number(attributes.get(_IFLA_MASTER, b"")),
    )


def _address_event(body: bytes, removed: bool) -> AddressEvent | None:
    if len(body) < _ADDRESS.size:
        return None
    family, _prefix, _flags, _scope, index = _ADDRESS.unpack_from(body)
    attributes = _attributes(body[_ADDRESS.size :])
    packed = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS) or b""
    if family != socket.AF_INET or len(packed) != 4:
        return None
    return AddressEvent(index, socket.inet_ntoa(packed), removed)


def _attributes(data: bytes) -> dict[int, bytes]:
    attributes: dict[int, bytes] = {}
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > len(data):
            break
        attributes[kind & _ATTRIBUTE_TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += _aligned(length)
    return attributes


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _text(attribute: bytes) -> str:
    return attribute.split(b"\0", 1)[0].decode("utf-8", "replace")


def _number(attribute: bytes) -> int:
    return int.from_bytes(attribute, sys.byteorder) if len(attribute) == 4 else 0


def _dump_request() -> bytes:
    length = _MESSAGE.size + _LINK.size
    head = _MESSAGE.pack(length, _RTM_GETLINK, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0)
    return head + _LINK.pack(_AF_UNSPEC, 0, 0, 0, 0, 0)


def _open(groups: int) -> socket.socket:
    # The names are missing from the typing of other systems; nobody comes here on those.
    family: int = getattr(socket, "AF_NETLINK")  # noqa: B009
    netlink = socket.socket(family, socket.SOCK_RAW, getattr(socket, "NETLINK_ROUTE"))  # noqa: B009
    try:
        netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        netlink.bind((0, groups))
    except OSError:
        netlink.close()
        raise
    return netlink


def read_links(timeout_s: float = 1.0) -> list[LinkEvent]:
    """All links as they are now. Blocks for the kernel's answer, which takes microseconds. Raises ``OSError``."""
    links: list[LinkEvent] = []
    with _open(groups=0) as netlink:
        netlink.settimeout(timeout_s)
        netlink.send(_dump_request())
        while True:
            events = parse(netlink.recv(_READ_BYTES))
            links += [event for event in events if isinstance(event, LinkEvent)]
            if DumpEnd.DUMP_END in events:
                return links


class LinkStates:
    """What is known about all links, and which of the kernel's messages are news. Pure."""

    def __init__(self) -> None:
        #: Index to last state told; links that were removed are not in it.
        self._known: dict[int, LinkEvent] = {}
        #: Links heard of since the last dump was asked for, or None if none is under way.
        self._dumped: set[int] | None = None

    def link(self, interface_name: str) -> LinkEvent | None:
        """The last known state of the link of that name."""
        return next((link for link in self._known.values() if link.interface_name == interface_name), None)

    def begin_dump(self) -> None:
        """All links are about to be told; one that will not be is gone."""
        self._dumped = set()

    @property
    def dumping(self) -> bool:
        return self._dumped is not None

    def handle(self, event: Event) -> list[LinkEvent | AddressEvent]:
        """The news in an event."""
        match event:
            case LinkEvent():
                return self._hear(event)
            case AddressEvent():
                return [event]
            case DumpEnd.DUMP_END:
                return self._end_dump()

    def _hear(self, event: LinkEvent) -> list[LinkEvent | AddressEvent]:
        index = event.interface_index
        if event.removed:
            return [event] if self._known.pop(index, None) is not None else []
        if self._dumped is not None:
            self._dumped.add(index)
        before = self._known.get(index)
        self._known[index] = event
        return [] if before == event else [event]

    def _end_dump(self) -> list[LinkEvent | AddressEvent]:
        dumped, self._dumped = self._dumped, None
        if dumped is None:
            return []
        gone = [link for index, link in sorted(self._known.items()) if index not in dumped]
        news: list[LinkEvent | AddressEvent] = []
        for link in gone:
            news += self._hear(LinkEvent(link.interface_name, link.interface_index, up=False, removed=True))
        return news


class LinkWatcher:
    """Calls back on the event loop for every change of a link, and first for every link that there is.

    ``on_address`` hears of IPv4 addresses that come and go. Callbacks must not raise, and end with :meth:`close`.
    If the kernel stops answering, that is logged and the watcher closes: faults are then found by silence alone.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_link: Callable[[LinkEvent], None],
        on_address: Callable[[AddressEvent], None] | None = None,
    ) -> None:
        self._loop = loop
        self._on_link = on_link
        self._on_address = on_address
        self._states = LinkStates()
        self._netlink: socket.socket | None = None
        self._dump_again = False

    def open(self) -> None:
        """Begin to listen. Raises ``OSError`` where the system has no such thing or does not let us."""
        if not link_events_available():
            raise OSError(errno.EAFNOSUPPORT, f"{sys.platform} does not tell of changes of links")
        self._netlink = _open(_RTMGRP_LINK | _RTMGRP_IPV4_IFADDR)
        self._netlink.setblocking(False)
        self._loop.add_reader(self._netlink.fileno(), self._readable)
        self._ask_for_all(self._netlink)

    def close(self) -> None:
        """Stop. May be called twice."""
        netlink, self._netlink = self._netlink, None
        if netlink is not None:
            self._loop.remove_reader(netlink.fileno())
            netlink.close()

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of the socket, without the parent's loop."""
        if self._netlink is not None:
            self._netlink.close()

    def fileno(self) -> int:
        """The socket's descriptor, or -1 when closed: it must be closed in a forked child."""
        return -1 if self._netlink is None else self._netlink.fileno()

    def link(self, interface_name: str) -> LinkEvent | None:
        """The last known state of a link, or None if there is none of that name."""
        return self._states.link(interface_name)

    def _ask_for_all(self, netlink: socket.socket) -> None:
        # The kernel answers one dump at a time on a socket, and refuses a second with EBUSY.
        if self._states.dumping:
            self._dump_again = True
            return
        self._states.begin_dump()
        netlink.send(_dump_request())

    def _readable(self) -> None:
        for _ in range(_READS_PER_TURN):
            netlink = self._netlink
            if netlink is None:
                return
            try:
                data = netlink.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    logging.getLogger(__name__).error("link events ended: %s", failure)
                    self.close()
                    return
                logging.getLogger(__name__).info("netlink overran: all links are read anew")
                self._ask_for_all(netlink)
                continue
            self._tell(parse(data))

    def _tell(self, events: list[Event]) -> None:
        for event in events:
            for news in self._states.handle(event):
                if self._netlink is None:
                    return
                if isinstance(news, LinkEvent):
                    self._on_link(news)
                elif self._on_address is not None:
                    self._on_address(news)
            if event is DumpEnd.DUMP_END and self._dump_again and self._netlink is not None:
                self._dump_again = False
                self._ask_for_all(self._netlink)
