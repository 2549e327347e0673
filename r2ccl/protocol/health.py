"""How a link's silence becomes a verdict.

A link is *silent* when bytes are in flight on it and nothing was acknowledged or received on any of its connections
for a while. Three things are not silence. An idle link: nothing is in flight, so nothing is owed. A closed window: the
peer's kernel answers when ours asks whether it is open again, its process just doesn't read; a process that computes,
or is stopped for minutes, is therefore never taken for dead. And our own absence: if this judge was not called in
time, the evidence is as old as its absence is long, so it starts anew, after the sockets were read (decisions 16, 17).

The kernel keeps the evidence for us: it knows what is in flight and when it last heard from the other side. Bulk is
also judged alone, with more patience, because a path may pass beats and swallow bulk.

A cleverer judge would estimate a probability from the link's history. It would need a model of the traffic, and
training traffic has none; a limit in milliseconds can be explained to the person who is woken up by it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

#: A judge called later than this many of its periods has been away.
LATE_PERIODS = 3.0


class Sample(Protocol):
    """What health needs to know of a connection; transport.interface.PathSample fits."""

    @property
    def in_flight_bytes(self) -> int: ...
    @property
    def silence_s(self) -> float: ...
    @property
    def limited(self) -> bool: ...
    @property
    def probing(self) -> bool: ...


class Health(enum.Enum):
    """Green: no complaint. Yellow: late. Red: silent."""

    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"


class OwnStall:
    """Notices that this process was away, and for how long altogether: a tick that was due did not come."""

    __slots__ = ("_expected_s", "_period_s", "total_s")

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._expected_s: float | None = None
        #: All time that this process was away, as far as ticks have noticed.
        self.total_s = 0.0

    def expect(self, due_s: float) -> None:
        """When the next tick is due."""
        self._expected_s = due_s

    def tick(self, now: float) -> bool:
        """Was this tick so late that evidence gathered meanwhile is void?"""
        away_s = self._unnoticed_s(now)
        self._expected_s = None
        self.total_s += away_s
        return away_s > 0

    def away_s(self, now: float) -> float:
        """All time that this process was away, for time-outs to subtract: other timers may come before the tick."""
        return self.total_s + self._unnoticed_s(now)

    def _unnoticed_s(self, now: float) -> float:
        if self._expected_s is None:
            return 0.0
        late_s = now - self._expected_s
        return late_s if late_s >= (LATE_PERIODS - 1) * self._period_s else 0.0


class LinkHealth:
    """The judge of one link."""

    __slots__ = ("_bulk_limit_s", "_bulk_since_s", "_in_flight_since_s", "_limit_s", "silence_s")

    def __init__(self, silence_s: float, bulk_silence_s: float) -> None:
        self._limit_s = silence_s
        self._bulk_limit_s = bulk_silence_s
        #: Since when bytes have been in flight at every look; None: they were not at the last.
        self._in_flight_since_s: float | None = None
        self._bulk_since_s: float | None = None
        #: How long it had been silent at the last look.
        self.silence_s = 0.0

    def void(self) -> None:
        """Forget all evidence: we were away, or the connections are new."""
        self._in_flight_since_s = None
        self._bulk_since_s = None
        self.silence_s = 0.0

    def judge(self, control: Sample, bulk: Sample, now: float) -> Health:
        """A look at both connections."""
        if not (_owes(control) or _owes(bulk)):
            self.void()
            return Health.GREEN
        if self._in_flight_since_s is None:
            self._in_flight_since_s = now
        silence_s = min(now - self._in_flight_since_s, _shortest_silence([control, bulk]))
        self.silence_s = silence_s
        if silence_s >= self._limit_s or self._bulk_is_silent(bulk, now):
            self.silence_s = max(silence_s, bulk.silence_s if _owes(bulk) else 0.0)
            return Health.RED
        return Health.YELLOW if silence_s >= self._limit_s / 2 else Health.GREEN

    def _bulk_is_silent(self, bulk: Sample, now: float) -> bool:
        if not _owes(bulk):
            self._bulk_since_s = None
            return False
        if self._bulk_since_s is None:
            self._bulk_since_s = now
        return min(now - self._bulk_since_s, bulk.silence_s) >= self._bulk_limit_s


def _owes(sample: Sample) -> bool:
    """Does the peer's kernel owe an answer on this connection?"""
    return sample.probing or (sample.in_flight_bytes > 0 and not sample.limited)


def _shortest_silence(samples: Sequence[Sample]) -> float:
    return min(sample.silence_s for sample in samples)
