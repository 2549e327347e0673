"""How fast a lane is, from what is acknowledged and when.

A rate is bytes over time in which the wire had work; the estimate is their mean over about the last tenth of a second
of such time. So it forgets as fast on a slow lane as on a fast one, and a sample counts for as long as it took: a late
wake-up of 20 ms, which no rate of a sample tells from a slow wire, for less than a fifth.

When the wire had work is not obvious from here. While chunks are outstanding it may have delivered all of them, and an
acknowledgement be on its way. So time counts while the lane is full, or work waits that it could have. Even then what
is waited for may not be the wire:

    the kernel says that all has arrived, or that the peer does not read       the peer's process is busy or stopped
    this process was away                                                      (decision 17)

Both are seen by whoever watches the sockets, who then says ``void``. A sample may be wrong all the same, so one
has a quarter's weight at most. The second in a row that is less than half of the estimate is no accident, and has half.

Where operations are small a lane is never full. There its chunks are compared with the estimate one by one:

    it took less than the estimate says       nothing makes a chunk arrive early, so the lane is as fast as that.
                                              At most a doubling for each: some shapers let a burst through
    it took long, and its acknowledgement     compared with such a time the acknowledgement's way is short: a sample
    was asked for
    it took twice as long as the estimate     one may have been kept waiting by a process, or a few; the third in a row
    says, and was asked for, too              is a sample
"""

from __future__ import annotations

import math

#: How much busy time the estimate remembers.
MEMORY_S = 0.1
#: No sample weighs more, however long it took.
WEIGHT_MAX = 0.25
#: Of a sample below ``LOW`` of the estimate that is no accident.
WEIGHT_LOW = 0.5
LOW = 0.5
#: A rate is measured over at least this many bytes, or this long: over less the jitter of acknowledgements counts most.
RATE_BYTES_MIN = 512 << 10
RATE_S_MIN = 0.005
#: What a chunk that goes alone takes at least to be a sample, and to be one with others like it.
ALONE_S_MIN = 0.010
SLOW_S_MIN = 0.001
SLOW_CHUNKS = 3
BURST_WEIGHT = 0.125
#: A lane that was empty for longer had nothing to do, even if something waited.
GAP_S = 0.0005
#: So many times faster than estimated is no jitter; and how far one chunk raises the estimate at most.
PROOF = 1.25
STEP_MAX = 2.0


class Rate:
    """The estimate of one lane."""

    __slots__ = (
        "_busy_s",
        "_bytes",
        "_emptied_s",
        "_is_low",
        "_since_s",
        "_slow_chunks",
        "burst_bytes_s",
        "bytes_s",
        "steady_bytes_s",
    )

    def __init__(self, bytes_s: float) -> None:
        #: Bytes per second that the next chunk is expected at.
        self.bytes_s = bytes_s
        #: The same without chunks that came early: what a shaper's bucket or a switch's buffer lets through at once
        #: says nothing about the rate of many. 0: not measured.
        self.steady_bytes_s = 0.0
        #: The mean of samples, however short: where acknowledgements come in bursts, because processes wait for a core,
        #: it is far above the rate, and says how much a lane may hold so that it does not stand idle meanwhile.
        self.burst_bytes_s = 0.0
        #: How much busy time was measured, as far as it matters: until then the mean is that of all there was.
        self._busy_s = 0.0
        #: Since when the wire has been busy without a break, or the last sample was taken; None: since the next
        #: acknowledgement.
        self._since_s: float | None = None
        self._bytes = 0
        #: When the lane became empty while something waited.
        self._emptied_s = -1.0
        self._is_low = False
        #: Chunks in a row that took twice as long as expected.
        self._slow_chunks = 0

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
        self._slow_chunks = 0

    def acknowledged(self, size: int, took_s: float, now: float, is_busy: bool, was_timed: bool) -> bool:
        """A chunk arrived ``took_s`` after it was put. ``is_busy``: the lane is full, or more waits and may come at
        once. ``was_timed``: it met an empty lane, and its acknowledgement was asked for. Returns whether the estimate
        changed."""
        if size > took_s * self.bytes_s * PROOF:
            self.bytes_s = size / max(took_s, size / (self.bytes_s * STEP_MAX))
            self._busy_s = max(self._busy_s, took_s)
            self._slow_chunks = 0
            self._go_on(now, is_busy)
            return True
        if self._since_s is None:
            self._go_on(now, is_busy)
            return False
        if not is_busy:
            return was_timed and self._alone(size, took_s, now)
        self._bytes += size
        busy_s = now - self._since_s
        if busy_s <= 0 or (self._bytes < RATE_BYTES_MIN and busy_s < RATE_S_MIN):
            self._emptied_s = now
            return False
        sample_bytes_s = self._bytes / busy_s
        is_low = sample_bytes_s < LOW * self.bytes_s
        if self._busy_s:
            self._learn(sample_bytes_s, busy_s, is_low and self._is_low)
        else:
            self.bytes_s = sample_bytes_s
            self._busy_s = busy_s
        self._steady(sample_bytes_s, busy_s, is_low and self._is_low)
        weight = 1.0 if is_low and self._is_low else BURST_WEIGHT
        self.burst_bytes_s += weight * (sample_bytes_s - self.burst_bytes_s)
        self._is_low = is_low
        self._go_on(now, is_busy)
        return True

    def _go_on(self, now: float, is_busy: bool) -> None:
        self.restart(now)
        if is_busy:
            self._emptied_s = now

    def _alone(self, size: int, took_s: float, now: float) -> bool:
        self.restart(now)
        if size < LOW * self.bytes_s * took_s and took_s >= SLOW_S_MIN:
            self._slow_chunks += 1
        else:
            self._slow_chunks = 0
        is_slow = self._slow_chunks >= SLOW_CHUNKS
        if is_slow or took_s >= ALONE_S_MIN:
            self._learn(size / took_s, took_s, is_slow)
            return True
        return False

    def _steady(self, bytes_s: float, took_s: float, is_sure: bool) -> None:
        weight = WEIGHT_LOW if is_sure else min(WEIGHT_MAX, 1 - math.exp(-took_s / MEMORY_S))
        self.steady_bytes_s += (weight if self.steady_bytes_s else 1.0) * (bytes_s - self.steady_bytes_s)

    def _learn(self, bytes_s: float, took_s: float, is_sure: bool) -> None:
        weight = WEIGHT_LOW
        if not is_sure:
            weight = min(WEIGHT_MAX, max(1 - math.exp(-took_s / MEMORY_S), took_s / (self._busy_s + took_s)))
        self.bytes_s += weight * (bytes_s - self.bytes_s)
        self._busy_s = min(MEMORY_S, self._busy_s + took_s)
