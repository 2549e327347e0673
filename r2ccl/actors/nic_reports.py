"""What this rank tells all others of its NICs: which carry nothing, and what the others steadily carry.

A look every quarter of a second while bytes are owed, and as long as something is about to change. A NIC carries
nothing if it is down, or if no lane is bound to any of its links: a spare in wait, or a NIC whose lanes a spare has.
Its bandwidth is the sum of what its busy lanes are measured at, and counts only while more chunks wait than they have
room for: what a program sends now and then says nothing about a NIC. What :mod:`r2ccl.protocol.steadiness` calls steady
is reported.

On loopback memory and cores set the pace, not a NIC: there only being up or down is reported, so that no other process
that takes a core makes all ranks plan anew."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from r2ccl.actors.courier import Courier
from r2ccl.actors.epochs import announced_steps, pack_report
from r2ccl.actors.links import Port
from r2ccl.actors.shared import Shared
from r2ccl.actors.timers import Timer
from r2ccl.planner.picture import announced_bandwidth
from r2ccl.protocol.steadiness import Steadiness, bandwidth_of
from r2ccl.topology import Nic

#: A second, in which a step must hold, has four looks, one more than it takes.
PERIOD_S = 0.25


class NicReports:
    """One per rank. ``tell`` gets each new report."""

    def __init__(self, shared: Shared, ports: list[Port], courier: Courier, tell: Callable[[bytes], None]) -> None:
        self._shared = shared
        self._ports = ports
        self._courier = courier
        self._tell = tell
        self._member = shared.members[shared.rank]
        self._judges = [Steadiness(step) for step in announced_steps(self._member)]
        #: By NIC whether it carried anything at the last look.
        self._carried = [judge.step is not None for judge in self._judges]
        self._timer: Timer | None = None
        #: The newest; empty: all is as announced.
        self.report = b""

    def look_closely(self) -> None:
        """Bytes are owed, or a link changed: what is told may change."""
        if self._timer is None:
            self._timer = self._shared.timers.after(PERIOD_S, self._look)

    def _look(self) -> None:
        self._timer = None
        # While this rank is cut off it would learn nothing of its own NICs: those of all others may be down.
        if any(link.is_up for port in self._ports for link in port.links.values()):
            self._look_at_all()
        if self._courier.unsettled or any(judge.due_s is not None for judge in self._judges):
            self.look_closely()

    def _look_at_all(self) -> None:
        # All, also if the first has changed.
        if any([self._look_at(index, port) for index, port in enumerate(self._ports)]):
            report = pack_report(self._member, [judge.step for judge in self._judges])
            if report != self.report:
                self.report = report
                self._tell(report)

    def _look_at(self, index: int, port: Port) -> bool:
        """Has what is told of the NIC changed?"""
        judge, now = self._judges[index], self._shared.clock.now()
        if port.is_up and not port.links:
            return False  # all peers have left, so nobody knows
        if not _carries(port):
            self._carried[index] = False
            return judge.measured(None, now)
        bandwidth = None if _is_loopback(port.nic) else self._bandwidth(port)
        if bandwidth is None and (judge.step is None or not self._carried[index]):
            # It is back, and will carry what it did before, until that is measured.
            carried = judge.carried
            bandwidth = announced_bandwidth(port.nic) if carried is None else bandwidth_of(carried)
        self._carried[index] = True
        return judge.settle(now) if bandwidth is None else judge.measured(bandwidth, now)

    def _bandwidth(self, port: Port) -> float | None:
        """Bytes per second, measured; None: nobody asks for all that it has."""
        bandwidth, waits = 0.0, False
        for link in port.links.values():
            lane = link.lane
            if lane is not None and lane.outstanding and lane.is_measured:
                bandwidth += lane.bandwidth
                waits |= self._courier.is_pressed(lane.peer)
        return bandwidth if waits else None


def _carries(port: Port) -> bool:
    return port.is_up and any(link.is_up and link.lane is not None for link in port.links.values())


def _is_loopback(nic: Nic) -> bool:
    return nic.endpoint.family != "memory" and ipaddress.ip_address(nic.endpoint.host).is_loopback
