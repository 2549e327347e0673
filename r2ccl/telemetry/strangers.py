"""Who was turned away at the door: counted by reason, and told in few lines, however many come.

Whoever reaches one of our ports can be refused a thousand times a second, and a line for each would be a second attack.
So of each reason the first is told at once, and what follows is counted only; when ``QUIET_S`` have passed, one line
says how many there were, and after such a line it is quiet for as long again. That is at most one line per reason in
that time. What is untold at the end is told then.

``Refusals`` decides, and is given the time. ``Strangers`` counts, has the timer, and writes the events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from r2ccl.telemetry.event_log import EventLog

#: For so long a reason that was told is not told again.
QUIET_S = 10.0
#: The longest part of what a stranger brought about that is told.
WORDS_MAX = 300

# Why somebody was turned away, besides what a handshake says (``protocol.handshake.Reason``).
#: Hung up before its handshake was done: port scanners, who was killed, members who only knock.
LEFT: Final = "left"
#: Did not prove itself in time.
SLOW: Final = "slow"
#: Made room for others who came later.
CROWDED: Final = "crowded"
#: A member whose messages at the rendezvous make no sense.
NONSENSE: Final = "nonsense"
#: Everyday: members knock, ranks look for their rendezvous, and find another job's.
_EVERYDAY: Final = frozenset((LEFT, "job"))


class Refusals:
    """Which refusals are told. Bounded by the number of reasons."""

    __slots__ = ("_quiet_until_s", "_untold")

    def __init__(self) -> None:
        self._quiet_until_s: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def refuse(self, reason: str, now: float) -> bool:
        """Somebody was refused. Returns whether to tell it now; else it is counted."""
        if reason in self._untold or now < self._quiet_until_s.get(reason, now):
            self._untold[reason] = self._untold.get(reason, 0) + 1
            return False
        self._quiet_until_s[reason] = now + QUIET_S
        return True

    @property
    def due_s(self) -> float | None:
        """When something is to be told that was only counted. None: there is nothing."""
        return min((self._quiet_until_s[reason] for reason in self._untold), default=None)

    def take_due(self, now: float) -> dict[str, int]:
        """Reasons whose time has come, and how many were refused for each since it was told last."""
        due = {reason: n for reason, n in self._untold.items() if self._quiet_until_s[reason] <= now}
        for reason in due:
            del self._untold[reason]
            self._quiet_until_s[reason] = now + QUIET_S
        return due

    def take_all(self) -> dict[str, int]:
        """As at the end."""
        untold, self._untold = self._untold, {}
        return untold


class Strangers:
    """One per rank, for all its listeners."""

    def __init__(self, loop: asyncio.AbstractEventLoop, events: EventLog) -> None:
        #: Reason -> how many; what ``comm.stats()`` shows.
        self.refused: dict[str, int] = {}
        self._loop = loop
        self._events = events
        self._refusals = Refusals()
        self._timer: asyncio.TimerHandle | None = None

    def refuse(self, reason: str, at: str, by: str, says: str) -> None:
        """Somebody was turned away: why, at which door, where it came from, and what was wrong."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        if self._refusals.refuse(reason, self._loop.time()):
            self._tell(reason, {"at": at, "by": by, "says": says[:WORDS_MAX]})
        elif self._timer is None:
            self._wait()

    def close(self) -> None:
        """Tell what is untold. May be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_counted(self._refusals.take_all())

    def _wait(self) -> None:
        due_s = self._refusals.due_s
        self._timer = None if due_s is None else self._loop.call_at(due_s, self._due)

    def _due(self) -> None:
        # A loop may run its timers a moment early; what is not due then is asked for again.
        self._tell_counted(self._refusals.take_due(self._loop.time()))
        self._wait()

    def _tell_counted(self, counted: Mapping[str, int]) -> None:
        for reason, number in counted.items():
            self._tell(reason, {"more": number})

    def _tell(self, reason: str, fields: Mapping[str, object]) -> None:
        level = logging.INFO if reason in _EVERYDAY else logging.WARNING
        self._events.record("stranger", level=level, refused=reason, **fields)
