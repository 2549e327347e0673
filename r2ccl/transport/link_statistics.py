"""What an interface has counted. Errors, for a bad cable shows here before anything is lost for good; the other numbers
are for ``link_traffic``.

The kernel is asked over netlink and not in /sys, because /sys shows the network namespace that was current when it was
mounted, which need not be ours. It answers while the request is being sent, so nothing is waited for, and a socket for
each question (20 microseconds) leaves nothing open that a fork would inherit.

Errors are what the wire or the hardware spoils. What was dropped, missed or overran speaks of a host that is too slow
(ours), and no link is accused of that. A virtual pair of interfaces never counts an error.

Only Linux has this. Elsewhere, and where the interface is gone, there is no answer, and no evidence.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from r2ccl.topology import Nic

# From linux/netlink.h, linux/rtnetlink.h and linux/if_link.h.
_RTM_NEWSTATS, _RTM_GETSTATS = 92, 94
_NLM_F_REQUEST = 0x001
_IFLA_STATS_LINK_64 = 1
_MESSAGE = struct.Struct("=IHHII")
_STATISTICS = struct.Struct("=BBHII")
_ATTRIBUTE = struct.Struct("=HH")
_READ_BYTES = 4096
#: struct rtnl_link_stats64: a row of 64-bit numbers, to which newer kernels append.
_RX_ERRORS, _TX_ERRORS = 4, 5
_RX_LENGTH, _RX_CRC, _RX_FRAME = 10, 12, 13
_TX_ABORTED, _TX_CARRIER = 16, 17
_COUNTERS_LEAST = 23


@dataclass(frozen=True, slots=True)
class InterfaceErrors:
    """Errors since the interface exists, or since its driver began to count anew."""

    received: int
    sent: int
    #: Of those received, frames whose checksum was wrong: cable, plug or transceiver.
    checksum: int

    @property
    def total(self) -> int:
        return self.received + self.sent


def read_errors(interface_index: int) -> InterfaceErrors | None:
    """What errors the kernel has counted for an interface; None: it does not say, or there is no such interface."""
    row = read_row(interface_index)
    return None if row is None else _errors(row)


def read_row(interface_index: int) -> tuple[int, ...] | None:
    """All that the kernel has counted for an interface, as far as it always has; None as above."""
    if sys.platform != "linux" or interface_index <= 0:
        return None
    # The names are missing from the typing of other systems; nobody comes here on those.
    family: int = getattr(socket, "AF_NETLINK")  # noqa: B009
    try:
        with socket.socket(family, socket.SOCK_RAW, getattr(socket, "NETLINK_ROUTE")) as netlink:  # noqa: B009
            netlink.setblocking(False)
            netlink.send(request(interface_index))
            return parse_row(netlink.recv(_READ_BYTES))
    except OSError:
        # No descriptor left, or not allowed to ask: what is not told accuses nobody.
        return None


def request(interface_index: int) -> bytes:
    """The question for one interface's counters."""
    length = _MESSAGE.size + _STATISTICS.size
    head = _MESSAGE.pack(length, _RTM_GETSTATS, _NLM_F_REQUEST, 1, 0)
    return head + _STATISTICS.pack(0, 0, 0, interface_index, 1 << (_IFLA_STATS_LINK_64 - 1))


def parse(data: bytes) -> InterfaceErrors | None:
    """The errors in the kernel's answer; None: it is an error, or cut short."""
    row = parse_row(data)
    return None if row is None else _errors(row)


def parse_row(data: bytes) -> tuple[int, ...] | None:
    """The counters in the kernel's answer; None as above."""
    if len(data) < _MESSAGE.size + _STATISTICS.size:
        return None
    length, kind, _flags, _sequence, _port = _MESSAGE.unpack_from(data)
    if kind != _RTM_NEWSTATS or length > len(data):
        return None
    offset = _MESSAGE.size + _STATISTICS.size
    while offset + _ATTRIBUTE.size <= length:
        size, attribute = _ATTRIBUTE.unpack_from(data, offset)
        if size < _ATTRIBUTE.size or offset + size > length:
            return None
        if attribute == _IFLA_STATS_LINK_64:
            return _row(data[offset + _ATTRIBUTE.size : offset + size])
        offset += (size + 3) & ~3
    return None


def _row(counters: bytes) -> tuple[int, ...] | None:
    if len(counters) < 8 * _COUNTERS_LEAST:
        return None
    return struct.unpack_from(f"={_COUNTERS_LEAST}Q", counters)


def _errors(row: tuple[int, ...]) -> InterfaceErrors:
    # Most drivers count each of the special errors also among all errors, some do not.
    return InterfaceErrors(
        received=max(row[_RX_ERRORS], row[_RX_LENGTH] + row[_RX_CRC] + row[_RX_FRAME]),
        sent=max(row[_TX_ERRORS], row[_TX_ABORTED] + row[_TX_CARRIER]),
        checksum=row[_RX_CRC],
    )


class ErrorCounter:
    """What was counted since the last look, of one NIC. Pure."""

    __slots__ = ("_before", "_interface_index")

    def __init__(self) -> None:
        self._interface_index = 0
        self._before: InterfaceErrors | None = None

    def since_last(self, interface_index: int, errors: InterfaceErrors | None) -> int | None:
        """New errors; None at the first look, and where the counters are not those of last time: another interface,
        or a driver that began anew."""
        before, self._before = self._before, errors
        is_same = interface_index == self._interface_index
        self._interface_index = interface_index
        if errors is None or before is None or not is_same:
            return None
        if errors.received < before.received or errors.sent < before.sent:
            return None
        return errors.total - before.total


def interface_index(name: str) -> int:
    """The number by which the kernel knows an interface; 0: there is none of that name now."""
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


class NicErrors:
    """What was counted since the last look, of each NIC of a rank. A NIC is asked for at the interface where it is."""

    def __init__(
        self,
        read: Callable[[int], InterfaceErrors | None] = read_errors,
        index: Callable[[str], int] = interface_index,
    ) -> None:
        self._read = read
        self._index = index
        self._counters: dict[int, ErrorCounter] = {}

    def new_errors(self, nic: Nic) -> int | None:
        """See :meth:`ErrorCounter.since_last`."""
        index = self._index(nic.name)
        return self._counters.setdefault(nic.index, ErrorCounter()).since_last(index, self._read(index))
