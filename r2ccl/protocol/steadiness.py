"""When a NIC's bandwidth has changed enough, and for long enough, that all ranks should plan anew.

A plan is worth changing for a NIC at half its speed, not for one at 90 %. So bandwidths are told in steps of a quarter
of an octave (19 %), and a NIC stays on its step until measurements are more than a band away from the middle of it:

    rounding to the nearest step                        0.50 steps
    noise of 5 % in the measurement that was rounded    0.30 (four times the binary logarithm of 0.95)
    noise of 5 % the other way in the present ones      0.30

which is 1.1, so noise of 5 % never leaves the band, wherever the true value lies between two steps. A step that was
told is left only at twice that, a factor of 1.46: what a neighbour or a busy core takes from a NIC for a second is no
reason for all ranks to plan anew, and what they would plan for three quarters of a bandwidth is what they have. A step
that was left is replaced by one that all measurements of the last second were within the band of: a ramp is told when
it ends, a spike not at all. A NIC that is down is a step of its own; it says so once and then no more, so one word
suffices, if nothing contradicts it for the second. Its lanes have long moved off it: that needs no agreement.

Considered and declined: a smoothed average. It follows a collapse slowly, and never stops creeping after."""

from __future__ import annotations

import math
from collections.abc import Iterable

STEPS_PER_OCTAVE = 4
#: How far from the middle of a step that is to be told a measurement may lie, in steps; and from one that was told.
BAND_STEPS = 1.15
LEAVE_STEPS = 2.2
#: How long a new step must have held.
HOLD_S = 1.0
#: So many measurements make a bandwidth; of fewer in the second, one could be a freak.
MEASUREMENTS_MIN = 3
#: If none follows for so long, they were a freak: whoever waits for what comes of them waits no more.
FORGET_S = 2.0
#: A step is told as a byte, and 0 says down: the highest is 10^19 bytes/s.
STEP_MAX = 254


def step_of(bandwidth_bytes_s: float) -> int:
    """The nearest step."""
    return min(max(0, round(_place(bandwidth_bytes_s))), STEP_MAX)


def bandwidth_of(step: int) -> float:
    """The middle of a step, in bytes/s."""
    bandwidth_bytes_s: float = 2.0 ** (step / STEPS_PER_OCTAVE)
    return bandwidth_bytes_s


def pack_steps(steps: Iterable[int | None]) -> bytes:
    """A rank's NICs in the order of their indices, as it reports them; None is down."""
    return bytes(0 if step is None else step + 1 for step in steps)


def read_steps(report: bytes) -> tuple[int | None, ...]:
    """The NICs of a report. Every string of bytes is one."""
    return tuple(byte - 1 if byte else None for byte in report)


def _place(bandwidth_bytes_s: float) -> float:
    """Where it lies on the scale whose whole numbers are the steps."""
    return STEPS_PER_OCTAVE * math.log2(max(1.0, bandwidth_bytes_s))


def _fits(step: int | None, bandwidth_bytes_s: float | None, within_steps: float) -> bool:
    if step is None or bandwidth_bytes_s is None:
        return step is None and bandwidth_bytes_s is None
    place = min(_place(bandwidth_bytes_s), float(STEP_MAX))
    return abs(place - step) <= within_steps


class Steadiness:
    """The judge of one NIC."""

    __slots__ = ("_candidate", "_measured_at_s", "_measurements", "_since_s", "carried", "step")

    def __init__(self, step: int | None) -> None:
        #: What holds and may be told; None: down.
        self.step = step
        #: The last that was told of it while it carried; None: it never did.
        self.carried = step
        #: What would follow, since when, and how many measurements say so. Since None: nothing would.
        self._candidate: int | None = None
        self._since_s: float | None = None
        self._measurements = 0
        self._measured_at_s = 0.0

    @property
    def due_s(self) -> float | None:
        """When to ``settle``, if no measurement comes before."""
        return None if self._since_s is None else self._since_s + HOLD_S

    def measured(self, bandwidth_bytes_s: float | None, now: float) -> bool:
        """The NIC carries this much, or (None) is down. Has the step changed?"""
        if _fits(self.step, bandwidth_bytes_s, LEAVE_STEPS):
            self._since_s = None
            return False
        band_steps = LEAVE_STEPS if self._candidate == self.carried else BAND_STEPS
        if self._since_s is None or not _fits(self._candidate, bandwidth_bytes_s, band_steps):
            self._candidate = self._candidate_for(bandwidth_bytes_s)
            self._since_s = now
            self._measurements = 0
        self._measurements += 1
        self._measured_at_s = now
        return self.settle(now)

    def _candidate_for(self, bandwidth_bytes_s: float | None) -> int | None:
        """What comes back and carries about what it did before is what it was."""
        if bandwidth_bytes_s is None:
            return None
        return self.carried if _fits(self.carried, bandwidth_bytes_s, LEAVE_STEPS) else step_of(bandwidth_bytes_s)

    def settle(self, now: float) -> bool:
        """Nothing new was measured. Has what was measured last held for long enough, so that the step changed?"""
        if self._since_s is None or now - self._since_s < HOLD_S:
            return False
        if self._candidate is not None and self._measurements < MEASUREMENTS_MIN:
            if now - self._measured_at_s >= FORGET_S:
                self._since_s = None
            return False
        self.step = self._candidate
        self.carried = self.carried if self.step is None else self.step
        self._since_s = None
        return True
