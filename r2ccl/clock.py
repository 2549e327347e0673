"""The only file that reads time. Everybody else is given a clock or a ``now``.

Event loops have clocks too, but uvloop's ticks in milliseconds, too coarse for a round trip of fifty microseconds.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some fixed moment, never going back. Differences mean something within one process only."""

    def now(self) -> float: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    now = staticmethod(time.monotonic)


def wall_clock_s() -> float:
    """Seconds since 1970, for people who read logs; no decision may depend on it."""
    return time.time()
