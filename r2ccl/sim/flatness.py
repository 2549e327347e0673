"""Is a series of measurements flat, or does something leak? Pure: times and values in, a verdict out.

What a program keeps rises while it warms up (caches, pools, the allocator's arenas), so only the second half is judged.
There, it swings with the work under way, by much more than a leak adds within a second, and once in a while it jumps.
So the slope is that of Theil and Sen, the median of the slopes between every two points, which a quarter of wild points
does not move; the points are medians of blocks, so that an hour costs no more than a minute. Slope times duration is
the growth, which must stay below a bound of three parts:

    what the measure is allowed in any case, because the process that is measured is no clock
    a share of its level, for what is allocated in steps that grow with it
    what swings like these may add up to by chance: the residuals' spread, times the standard error of a slope

A leak is a line: its residuals are small, so the third part is small exactly where the growth is large. A constant that
is doubled once, in the middle, is no line, but is above the first two parts if it matters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

#: Points that slopes are taken between.
BLOCKS_MAX: Final = 60
#: Fewer, of which half are judged, say nothing.
VALUES_MIN: Final = 12
#: Standard errors that chance is allowed: once in 15,000 series if the swings were independent, which they nearly are.
ERRORS: Final = 4.0
#: From a median absolute deviation to a standard deviation.
_MAD_TO_DEVIATION: Final = 1.4826


@dataclass(frozen=True, slots=True)
class Allowance:
    """What growth in the second half means nothing."""

    amount: float
    share: float
    #: In words: where the amount comes from.
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one series. ``start`` and ``end`` are medians of the first and last tenth."""

    start: float
    middle: float
    end: float
    #: In the second half, by its slope.
    growth: float
    bound: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.bound


def judge(times_s: Sequence[float], values: Sequence[float], allowance: Allowance) -> Verdict:
    """Of a series in order of time. Raises ValueError if it is too short to tell."""
    if len(times_s) != len(values) or len(values) < VALUES_MIN:
        raise ValueError(f"{len(values)} values are too few to say whether they grow")
    times, series = np.asarray(times_s, np.float64), np.asarray(values, np.float64)
    tenth = max(1, len(series) // 10)
    half = len(series) // 2
    x, y = _blocks(times[half:]), _blocks(series[half:])
    slope = _slope(x, y)
    residuals = y - slope * (x - x[0])
    spread = _MAD_TO_DEVIATION * float(np.median(np.abs(residuals - np.median(residuals))))
    middle = float(np.median(series[half : half + tenth]))
    chance = ERRORS * spread * math.sqrt(12 / len(y))
    return Verdict(
        start=float(np.median(series[:tenth])),
        middle=middle,
        end=float(np.median(series[-tenth:])),
        growth=slope * float(times[-1] - times[half]),
        bound=allowance.amount + allowance.share * abs(middle) + chance,
    )


def _blocks(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Medians of at most BLOCKS_MAX stretches."""
    stretches = np.array_split(values, min(BLOCKS_MAX, len(values)))
    return np.array([np.median(stretch) for stretch in stretches])


def _slope(x: np.ndarray[tuple[int], np.dtype[np.float64]], y: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    one, other = np.triu_indices(len(x), 1)
    apart = x[other] - x[one]
    return float(np.median((y[other] - y[one])[apart > 0] / apart[apart > 0])) if np.any(apart > 0) else 0.0
