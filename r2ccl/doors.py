"""What a rank opens before it meets the others: a device for each NIC, and one for memory shared with its node.

Addresses must be known before they can be announced, so listeners are bound first, and listen once the others are
known.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable, Sequence

from r2ccl.ids import SHARED_NIC
from r2ccl.topology import Member, Nic, shared_memory_endpoint
from r2ccl.transport.joined import Joined
from r2ccl.transport.shared_memory import SharedMemoryDevice
from r2ccl.transport.shared_ring import rings_work_here
from r2ccl.transport.tcp import Admission, TcpDevice

logger = logging.getLogger("r2ccl")


class Doors:
    """One rank's. Closed by whoever fails before the devices are somebody else's."""

    def __init__(self, nics: Sequence[Nic], admission: Admission, loop: asyncio.AbstractEventLoop) -> None:
        self._joined = Joined()
        self.devices = [TcpDevice(nic, admission, loop, self._joined) for nic in nics]
        self._admission = admission
        self._loop = loop
        self._memory: SharedMemoryDevice | None = None

    def reserve(self) -> tuple[Nic, ...]:
        """The NICs with the addresses that they can be reached by. Raises ``OSError``."""
        return tuple(dataclasses.replace(device.nic, endpoint=device.reserve()) for device in self.devices)

    def share_memory(self, member: Member) -> None:
        """Where neighbours can ask for memory to share, before they can have heard of us; not on every machine."""
        if not rings_work_here():
            return
        nic = Nic(SHARED_NIC, "memory", shared_memory_endpoint(member))
        memory = SharedMemoryDevice(nic, self._admission, self._loop)
        try:
            memory.reserve()
        except OSError as error:
            logger.warning("no shared memory (%s): ranks of this node use NICs", error)
            return
        self._memory = memory

    @property
    def shares_memory(self) -> bool:
        """Can neighbours ask for it?"""
        return self._memory is not None

    def memory_among(self, ranks: int) -> SharedMemoryDevice | None:
        """The device for memory, if this node has so many ranks that there are others."""
        if self._memory is None:
            return None
        if ranks == 1:
            self._memory.close()
            self._memory = None
            return None
        self._memory.expect(ranks, len(os.sched_getaffinity(0)))
        return self._memory

    def look_for(self, is_over: Callable[[], bool]) -> None:
        """Somebody awaits what ``is_over`` tells the end of: say all that there is to say, and, where the answer may
        be in memory soon, look for it."""
        self._joined.flush()
        if self._memory is not None and not is_over():
            self._memory.look_for(is_over)

    def close(self) -> None:
        """All of them."""
        for device in self.devices:
            device.close()
        if self._memory is not None:
            self._memory.close()
