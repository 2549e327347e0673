"""Keeps the estimates of unused lanes honest.

A lane that carries measures itself with every acknowledgement. One that carries nothing learns nothing, and a bad
estimate from a bad moment, or a NIC that was slow for a while, would keep it from ever being used again; so from time
to time a chunk goes there to measure it (decision 14). If there is none for half a second that can be spared, the next
one goes, whoever waits for it: so that this costs little also on a very slow lane, it is asked of a lane for a small
part of the time only.
"""

from __future__ import annotations

import asyncio

from r2ccl.actors.actor import Actor, Mailbox
from r2ccl.actors.courier import Courier
from r2ccl.actors.shared import Shared
from r2ccl.protocol.lanes import Lane, Probe

PERIOD_S = 0.5
#: An unused lane is probed once in so many times that a chunk is expected to take there, but at least once in
#: ``PAUSE_S_MAX``: the estimate may be wrong.
CHUNKS_PER_PROBE = 20
PAUSE_S_MAX = 10.0


class Profiler(Actor):
    """One per rank."""

    def __init__(self, shared: Shared, mailbox: Mailbox, courier: Courier) -> None:
        super().__init__("profiler", shared.loop, mailbox)
        self._shared = shared
        self._courier = courier
        self._timer: asyncio.TimerHandle | None = None
        #: (peer, lane) -> when it was found unused and was not probed yet, at the earliest.
        self._probed_s: dict[tuple[int, int], float] = {}

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
        now = self._shared.clock.now()
        for lanes in self._courier.lanes.values():
            # Also of a program that sends a little now and then something is on its way, but seldom at this moment.
            if any(lane.outstanding or lane.progressed_at_s > now - PERIOD_S for lane in lanes):
                for lane in lanes:
                    if not lane.outstanding:
                        self._probe(lane, now)
        self._timer = self._loop.call_later(PERIOD_S, self._tick)

    def _probe(self, lane: Lane, now: float) -> None:
        if lane.probe_due:
            lane.probe_due = Probe.OVERDUE
            return
        pause_s = min(PAUSE_S_MAX, CHUNKS_PER_PROBE * lane.chunk_bytes / lane.bandwidth)
        if now - self._probed_s.get((lane.peer, lane.index), -PAUSE_S_MAX) >= pause_s:
            lane.probe_due = Probe.DUE
            self._probed_s[lane.peer, lane.index] = now
