"""NICs for where there are no namespaces: loopback at a NIC's speed, with a cable to pull.

Each rank wraps its own devices with the faulty transport and hears of every cut. The rank whose NIC it is holds back
whatever that NIC sends or should receive, and with ``link-down`` is told of a lost carrier as its kernel would tell it.
The others hold back what goes to that NIC or comes from it: on loopback their kernels would go on acknowledging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from r2ccl.clock import MonotonicClock
from r2ccl.transport.fault_rules import PASS, Guard, Passage, Rule, Verdict, rate
from r2ccl.transport.faulty import FaultyDevice
from r2ccl.transport.interface import Connection, Device

Fault = Literal["link-down", "silent-drop"]
#: Told a NIC of ours and whether it has a carrier.
CarrierListener = Callable[[int, bool], None]

#: Smaller frames (beats, acknowledgements, notices) pass at once: a real NIC sends them between the packets of bulk.
PACED_BYTES_MIN = 4096


class EmulatedNics:
    """The devices of one rank."""

    def __init__(self, rate_mbit_s: float, fault: str) -> None:
        self._rate_mbit_s = rate_mbit_s
        self._fault = fault
        self._devices: dict[int, FaultyDevice] = {}
        #: (rank, NIC) -> what undoes the cut, here.
        self._cuts: dict[tuple[int, int], list[Guard]] = {}
        self._listener: CarrierListener | None = None

    def wrap(self, device: Device) -> Device:
        """To be given to ``connect``."""
        wrapped = FaultyDevice(device, asyncio.get_running_loop(), MonotonicClock(), self._carrier_changed)
        wrapped.install(paced(rate(self._rate_mbit_s * 1e6 / 8)))
        self._devices[device.nic.index] = wrapped
        return wrapped

    def tell_carriers_to(self, listener: CarrierListener) -> None:
        """Who stands in for those that listen to the kernel."""
        self._listener = listener

    def cut_own(self, rank: int, nic: int) -> None:
        """Our NIC fails."""
        device = self._devices[nic]
        self._cuts[rank, nic] = [device.cut() if self._fault == "link-down" else device.silence()]

    def cut_other(self, rank: int, nic: int) -> None:
        """A peer's NIC fails: silence from there, as seen from all of ours."""

        def covers(connection: Connection) -> bool:
            return (connection.peer, connection.remote_nic) == (rank, nic)

        self._cuts[rank, nic] = [device.silence(covers) for device in self._devices.values()]

    def restore(self, rank: int, nic: int) -> None:
        """Undo either."""
        for guard in self._cuts.pop((rank, nic)):
            guard.remove()

    def _carrier_changed(self, nic: int, up: bool) -> None:
        if self._listener is not None:
            self._listener(nic, up)


def paced(pace: Rule) -> Rule:
    """The rule for frames that count, none for small ones."""

    def judge(passage: Passage) -> Verdict:
        return PASS if passage.payload_bytes < PACED_BYTES_MIN else pace(passage)

    return judge
