"""How many bytes went through an interface, whosever they are: those beyond what we moved are others'.

The counters and how they are asked for are those of :mod:`r2ccl.transport.link_statistics`. What the kernel counts has
headers, and acknowledgements; who compares must allow for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from r2ccl.topology import Nic
from r2ccl.transport.link_statistics import interface_index, read_row

# Of struct rtnl_link_stats64.
_RX_BYTES: Final = 2
_TX_BYTES: Final = 3


def read_bytes(index: int) -> tuple[int, int] | None:
    """Sent and received by an interface since it exists; None: the kernel does not say, or there is no such one."""
    row = read_row(index)
    return None if row is None else (row[_TX_BYTES], row[_RX_BYTES])


class NicTraffic:
    """What went through the interface of each NIC since the last look. A NIC is asked for where it is."""

    def __init__(
        self,
        read: Callable[[int], tuple[int, int] | None] = read_bytes,
        index: Callable[[str], int] = interface_index,
    ) -> None:
        self._read = read
        self._index = index
        #: NIC -> which interface it was, and what that had counted.
        self._before: dict[int, tuple[int, tuple[int, int] | None]] = {}

    def new_bytes(self, nic: Nic) -> tuple[int, int] | None:
        """Sent and received; None at the first look, and where the counters are not those of last time: another
        interface, or a driver that began anew."""
        index = self._index(nic.name)
        counted = self._read(index)
        before_index, before = self._before.get(nic.index, (0, None))
        self._before[nic.index] = index, counted
        if counted is None or before is None or index != before_index:
            return None
        sent_bytes, received_bytes = counted[0] - before[0], counted[1] - before[1]
        return None if sent_bytes < 0 or received_bytes < 0 else (sent_bytes, received_bytes)
