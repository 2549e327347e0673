"""NICs for where there are no namespaces: loopback at a NIC's speed, with a cable to pull.

A rank wraps its own devices with the faulty transport. A cut holds back whatever the NIC sends or should receive. With
``link-down`` the rank is told, as its kernel would tell it of a lost carrier; with ``silent-drop`` nobody is.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from r2ccl.clock import MonotonicClock
from r2ccl.transport.fault_rules import PASS, Guard, Passage, Rule, Verdict, rate
from r2ccl.transport.faulty import FaultyDevice
from r2ccl.transport.interface import Device

Fault = Literal["link-down", "silent-drop"]

#: Smaller frames (beats, acknowledgements, notices) pass at once: a real NIC sends them between the packets of bulk.
PACED_BYTES_MIN = 4096


class EmulatedNics:
    """The devices of one rank."""

    def __init__(self, rate_mbit_s: float, fault: str) -> None:
        self._rate_mbit_s = rate_mbit_s
        self._fault = fault
        self._devices: dict[int, FaultyDevice] = {}
        self._cuts: dict[int, Guard] = {}

    def wrap(self, device: Device) -> Device:
        """To be given to ``connect``."""
        wrapped = FaultyDevice(device, asyncio.get_running_loop(), MonotonicClock())
        wrapped.install(paced(rate(self._rate_mbit_s * 1e6 / 8)))
        self._devices[device.nic.index] = wrapped
        return wrapped

    def cut(self, nic: int) -> None:
        """Let the NIC fail."""
        device = self._devices[nic]
        self._cuts[nic] = device.cut() if self._fault == "link-down" else device.silence()

    def restore(self, nic: int) -> None:
        """Undo :meth:`cut`."""
        self._cuts.pop(nic).remove()


def paced(pace: Rule) -> Rule:
    """The rule for frames that count, none for small ones."""

    def judge(passage: Passage) -> Verdict:
        return PASS if passage.payload_bytes < PACED_BYTES_MIN else pace(passage)

    return judge
