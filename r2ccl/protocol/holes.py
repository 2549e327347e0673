"""Notices that what we said on a connection stands still, though the link is not silent.

A connection delivers in order: a packet that is lost holds up all behind it until it has been sent again. Mostly that
takes one round trip. Where it was lost again, or was the last for now, the kernel waits for a timer (200 ms, if it
cannot be told otherwise), and meanwhile it may send nothing new, because congestion control shrank to what is missing.
The link looks well all the while: the peer's beats arrive. But acknowledgements that stand still stop the peer's lanes,
all of them, and chunks stop the operation (decision 4).

Two things are told, each from what the far kernel has acknowledged *in order* since the last look:

    unanswered      bytes were in flight for so long, and no more of them was acknowledged. They may be on their way, or
                    the last of them was lost. A word sent after them finds out: an answer to it alone shows the hole,
                    and the kernel sends again what is missing. So nothing else follows from it
    a hole          the kernel itself takes packets for lost, and for so long has not got over it. What can take another
                    path shall take it; the link is not accused, for lost packets alone are no silence

So long is a heartbeat and two round trips, whichever is more: an answer takes one, and the kernel needs two to fill a
hole. By a heartbeat alone a path of 25 ms would never be answered in time, and every beat would ask for another.

A closed window is neither, as for silence: the peer does not read, and its kernel says so."""

from __future__ import annotations

from typing import Protocol

#: Of round trips: one until the kernel hears that something is missing, one until it hears that it arrived.
FILL_ROUND_TRIPS = 2


class Account(Protocol):
    """What must be known of a connection; transport.interface.PathSample fits."""

    @property
    def in_flight_bytes(self) -> int: ...
    @property
    def missing_segments(self) -> int: ...
    @property
    def acked_bytes(self) -> int: ...
    @property
    def rtt_s(self) -> float: ...
    @property
    def limited(self) -> bool: ...


class Holes:
    """The judge of one connection."""

    __slots__ = ("_acked_bytes", "_missing_since_s", "_patience_s", "_since_s", "is_held_up", "is_unanswered")

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        #: What was acknowledged in order at the last look at which bytes were in flight.
        self._acked_bytes = 0
        #: Since when no more was; None: nothing was in flight.
        self._since_s: float | None = None
        #: Since when, besides, packets are missing.
        self._missing_since_s: float | None = None
        #: What is in flight has waited for an answer for so long.
        self.is_unanswered = False
        #: It waits behind a hole that is not filled.
        self.is_held_up = False

    def void(self) -> None:
        """Forget all: we were away, nothing was looked at, or the connection is new."""
        self._since_s = self._missing_since_s = None
        self.is_unanswered = self.is_held_up = False

    def look(self, account: Account, now: float) -> None:
        """The account as it is now."""
        if account.limited or not account.in_flight_bytes:
            self.void()
            return
        if self._since_s is None or account.acked_bytes != self._acked_bytes:
            self._acked_bytes = account.acked_bytes
            self._since_s = now
            self._missing_since_s = None
        if not account.missing_segments:
            self._missing_since_s = None
        elif self._missing_since_s is None:
            self._missing_since_s = now
        fill_s = max(self._patience_s, FILL_ROUND_TRIPS * account.rtt_s)
        self.is_unanswered = now - self._since_s >= fill_s
        self.is_held_up = self._missing_since_s is not None and now - self._missing_since_s >= fill_s
