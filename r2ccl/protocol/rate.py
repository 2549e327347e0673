"""How fast a lane is, from what is acknowledged and when.

A rate is bytes over time in which the wire had work; the estimate is their mean over about the last tenth of a second
of such time. So it forgets as fast on a slow lane as on a fast one, and a sample counts for as long as it took: a late
wake-up of 20 ms, which no rate of a sample tells from a slow wire, for less than a fifth.

When the wire had work is not obvious from here. While chunks are outstanding it may have delivered all of them, and an
acknowledgement be on its way. So time counts while the lane is full, or work waits that it could have; and a chunk that
took long by itself counts, if its acknowledgement was asked for: compared with such a time the acknowledgement's way is
short. Even then what is waited for may not be the wire:

    the kernel says that all has arrived, or that the peer does not read       the peer's process is busy or stopped
    this process was away                                                      (decision 17)

Both are seen by whoever watches the sockets, who then says ``void``. A sample may be wrong all the same, so one
has a quarter's weight at most. The second in a row that is less than half of the estimate is no accident, and has half.

A chunk that took less than half of what the estimate says proves that the lane is twice as fast at least. No wake-up
makes a chunk arrive early, so this is believed at once, one doubling a chunk: a burst that some shapers let through
after idleness is shorter than that.
"""

from __future__ import annotations

import math

#: How much busy time the estimate remembers.
MEMORY_S = 0.1
#: No sample weighs more, however long it took.
WEIGHT_MAX = 0.25
#: Of a sample below ``LOW`` of the estimate that follows another.
WEIGHT_LOW = 0.5
LOW = 0.5
#: A rate is measured over at least this many bytes, or this long: over less the jitter of acknowledgements counts most.
RATE_BYTES_MIN = 512 << 10
RATE_S_MIN = 0.005
#: What a chunk that goes alone takes at least, to be a measurement.
ALONE_S_MIN = 0.010
#: A lane that was empty for longer had nothing to do, even if something waited.
GAP_S = 0.0005
#: So many times faster than estimated is no jitter.
PROOF = 2.0


class Rate:
    """The estimate of one lane."""

    __slots__ = ("_busy_s", "_bytes", "_emptied_s", "_is_low", "_since_s", "bytes_s")

    def __init__(self, bytes_s: float) -> None:
        #: Bytes per second.
        self.bytes_s = bytes_s
        #: How much busy time was measured, as far as it matters: until then the mean is that of all there was.
        self._busy_s = 0.0
        #: Since when the wire has been busy without a break, or the last sample was taken; None: since the next
        #: acknowledgement.
        self._since_s: float | None = None
        self._bytes = 0
        #: When the lane became empty while something waited.
        self._emptied_s = -1.0
        self._is_low = False

    @property
    def is_measured(self) -> bool:
        """It has seen traffic; until then it is what was said of the NIC."""
        return self._busy_s > 0

    def began(self, now: float) -> None:
        """A chunk was put on the empty lane."""
        if now - self._emptied_s > GAP_S:
            self.restart(now)

    def restart(self, now: float) -> None:
        """The wire is known to have work from now on; of what was before nothing can be said."""
        self._since_s = now
        self._bytes = 0

    def void(self) -> None:
        """What is outstanding does not wait for the wire."""
        self._since_s = None
        self._bytes = 0

    def acknowledged(self, size: int, took_s: float, now: float, is_busy: bool, was_asked: bool) -> bool:
        """A chunk arrived ``took_s`` after it was put. ``is_busy``: the lane is full, or more waits and may come at
        once. ``was_asked``: its acknowledgement was. Returns whether the estimate changed."""
        if is_busy:
            self._emptied_s = now
        if size > took_s * self.bytes_s * PROOF:
            self.bytes_s *= PROOF
            self._busy_s = max(self._busy_s, took_s)
            self.restart(now)
            return True
        if self._since_s is None or not (is_busy or (was_asked and took_s >= ALONE_S_MIN)):
            self.restart(now)
            return False
        self._bytes += size
        busy_s = now - self._since_s
        if busy_s <= 0 or (self._bytes < RATE_BYTES_MIN and busy_s < RATE_S_MIN):
            return False
        self._learn(self._bytes / busy_s, busy_s)
        self.restart(now)
        return True

    def _learn(self, bytes_s: float, took_s: float) -> None:
        was_low, self._is_low = self._is_low, bytes_s < LOW * self.bytes_s
        if not self._busy_s:
            self.bytes_s = bytes_s
        else:
            weight = min(WEIGHT_MAX, max(1 - math.exp(-took_s / MEMORY_S), took_s / (self._busy_s + took_s)))
            if was_low and self._is_low:
                weight = WEIGHT_LOW
            self.bytes_s += weight * (bytes_s - self.bytes_s)
        self._busy_s = min(MEMORY_S, self._busy_s + took_s)
