"""Keeps the estimates of unused lanes honest.

A lane that carries measures itself with every acknowledgement. One that carries nothing learns nothing, and a bad
estimate from a bad moment would keep it from ever being used again; so once a second its estimate drifts back towards
its NIC's speed, and one chunk goes there to measure it (decision 14).
"""

from __future__ import annotations

import asyncio

from r2ccl.actors.actor import Actor, Mailbox
from r2ccl.actors.courier import Courier
from r2ccl.actors.shared import Shared

PERIOD_S = 1.0
#: Share of the distance to the NIC's speed that an idle lane's estimate moves in a period.
DRIFT = 0.1


class Profiler(Actor):
    """One per rank."""

    def __init__(self, shared: Shared, mailbox: Mailbox, courier: Courier) -> None:
        super().__init__("profiler", shared.loop, mailbox)
        self._shared = shared
        self._courier = courier
        self._timer: asyncio.TimerHandle | None = None
        #: Estimate that each lane started with: its NIC's speed.
        self._nominal = {id(lane): lane.bandwidth for lanes in courier.lanes.values() for lane in lanes}

    def start(self) -> None:
        """Begin to profile."""
        super().start()
        self._timer = self._loop.call_later(PERIOD_S, self._tick)

    def stop(self) -> None:
        """Profile no more."""
        super().stop()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        for lanes in self._courier.lanes.values():
            busy = any(lane.outstanding for lane in lanes)
            for lane in lanes:
                if busy and not lane.outstanding:
                    lane.bandwidth += DRIFT * (self._nominal[id(lane)] - lane.bandwidth)
                    lane.probe_due = True
        self._timer = self._loop.call_later(PERIOD_S, self._tick)
