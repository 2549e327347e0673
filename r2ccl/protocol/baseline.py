"""What is usual for a path, and when it is no longer.

"Above the mean by three sigmas" flaps: on healthy normal data it fires once in 740 samples, which over a large job is
hundreds of times a minute, and latencies have heavier tails than that. Five things make it hold:

* **Ranks, not sums.** What is usual are three quartiles, each of which a sample moves by the same small step towards
  itself, however far out it lies. An outlier weighs no more than its neighbour, and the state is three numbers.
* **One history for each level of load.** A full path is slower than an idle one, which is no fault of it.
* **Several samples together.** k of the last n must be over the limit. k rises with how often this path's own healthy
  samples are over it, so that a path with a long tail is judged by that tail: the smallest k whose false alarms, were
  samples independent, are rarer than a given rate.
* **Two limits.** What was raised is cleared below a lower limit than raised it, and only after a hold-down that doubles
  each time it is raised again soon after.
* **A sample is learned only once it left the window unaccused**, so that a fault never becomes its own baseline.

Values are such that more is worse; who watches for too little turns the sign. Ratios are best handed over as
logarithms: a lognormal tail is then a normal one.

A new regime that is better is believed soon. One that is worse is not, but it is not held against the path for ever:
after ``relearn_s`` without a quiet time, what is usual is learned anew.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

#: Between the quartiles of normal data there are this many sigmas.
QUARTILES_SIGMAS = 1.349
#: Of a step: 2/n of the distance between the quartiles makes an estimate from n samples about as good as sorting them.
GAIN = 2.0
#: This many samples in a row below the lower quartile (by chance: 1 in 4 billion) are a new, better regime.
REGIME_SAMPLES = 16
#: A limit that rests on n samples is wider by this over the root of n: what few samples tell they tell badly.
YOUTH = 1.5
#: How often a healthy path is over its limit is remembered over this many samples.
TAIL_MEMORY = 1024
#: Before it has a history it is taken for this, as if so many samples had said so: far more than the one in 740 of
#: normal data, so that a path is found spiky before it is accused of it.
TAIL_FIRST = 0.01
TAIL_FIRST_SAMPLES = 100


class Baseline:
    """What is usual of one quantity: its quartiles, learned one sample at a time, in constant time and space."""

    __slots__ = (
        "_better",
        "_first",
        "_lower",
        "_median",
        "_memory",
        "_resolution",
        "_samples_min",
        "_upper",
        "samples",
    )

    def __init__(self, samples_min: int, memory: int, resolution: float) -> None:
        self._samples_min = samples_min
        self._memory = memory
        #: Values nearer to each other than this are one: all alike, they still have a width.
        self._resolution = resolution
        #: The first samples, until there are enough to sort.
        self._first: list[float] = []
        self._lower = self._median = self._upper = 0.0
        #: Samples that the estimate rests on, at most ``memory``.
        self.samples = 0
        #: How many in a row were below the lower quartile.
        self._better = 0

    @property
    def is_ready(self) -> bool:
        return self.samples >= self._samples_min

    @property
    def centre(self) -> float:
        return self._median

    @property
    def sigma(self) -> float:
        """Robust: only the middle half of the samples has a say."""
        return self._width / QUARTILES_SIGMAS

    @property
    def _width(self) -> float:
        return max(self._upper - self._lower, self._resolution)

    def learn(self, value: float) -> None:
        """A sample of a healthy moment."""
        self.samples = min(self.samples + 1, self._memory)
        if not self._first and self.samples > self._samples_min:
            self._step(value)
            return
        self._first.append(value)
        if self.is_ready:
            ordered = sorted(self._first)
            self._lower, self._median, self._upper = (ordered[len(ordered) * quarter // 4] for quarter in (1, 2, 3))
            self._first.clear()

    def _step(self, value: float) -> None:
        self._better = self._better + 1 if value < self._lower else 0
        if self._better == REGIME_SAMPLES:
            self._better = 0
            self.samples = max(REGIME_SAMPLES, self._samples_min)
        step = GAIN * self._width / self.samples
        self._lower += _towards(value, self._lower, 0.25) * step
        self._median += _towards(value, self._median, 0.5) * step
        self._upper += _towards(value, self._upper, 0.75) * step


def _towards(value: float, quantile: float, share: float) -> float:
    """How many steps a quantile moves for a sample: at rest where ``share`` of the samples are below it."""
    if value == quantile:
        return 0.0
    return share if value > quantile else share - 1.0


class Change(enum.Enum):
    """What a look changed."""

    RAISED = "raised"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Strictness:
    """When to raise and when to clear. Times in seconds."""

    #: Robust sigmas above the centre: over ``sigmas`` a sample counts, below ``sigmas_leave`` it is clean.
    sigmas: float = 3.0
    sigmas_leave: float = 1.5
    #: At least ``confirmations`` of the last ``window`` samples.
    confirmations: int = 3
    window: int = 5
    #: False alarms in a sample of a healthy path, at most.
    false_alarms: float = 1e-7
    samples_min: int = 32
    memory: int = 1024
    hold_down_s: float = 10.0
    hold_down_max_s: float = 300.0
    #: Raised again within so many hold-downs after it was cleared: the hold-down doubles.
    forgive_hold_downs: float = 6.0
    relearn_s: float = 1800.0

    def __post_init__(self) -> None:
        assert 0 < self.sigmas_leave <= self.sigmas
        assert 0 < self.confirmations <= self.window


def confirmations_needed(strictness: Strictness, tail: float) -> int:
    """The least k, not below ``confirmations``, with which a path whose healthy samples are over the limit with
    probability ``tail`` is falsely accused rarely enough; all of the window where none is rare enough."""
    window = strictness.window
    for needed in range(strictness.confirmations, window):
        if math.comb(window, needed) * tail**needed <= strictness.false_alarms:
            return needed
    return window


class HoldDown:
    """How long must be clean what was raised: twice as long each time that it is raised again soon."""

    __slots__ = ("_cleared_at_s", "_first_s", "_forgive", "_most_s", "period_s")

    def __init__(self, first_s: float, most_s: float, forgive_hold_downs: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._forgive = forgive_hold_downs
        self._cleared_at_s: float | None = None
        self.period_s = first_s

    def raised(self, now: float) -> None:
        """It begins."""
        cleared_at_s = self._cleared_at_s
        if cleared_at_s is not None and now - cleared_at_s < self._forgive * self.period_s:
            self.period_s = min(2 * self.period_s, self._most_s)
        else:
            self.period_s = self._first_s

    def cleared(self, now: float) -> None:
        """It is over."""
        self._cleared_at_s = now


@dataclass(slots=True)
class _Seen:
    """A sample in the window."""

    value: float
    level: int
    is_over: bool


class Watch:
    """One quantity of one path: what is usual at each level of load, and whether it is so now.

    ``floor`` tells how far above a centre a value must be at least to count, whatever the sigmas say: a difference
    that nobody would feel accuses nobody. ``resolution`` is the least difference that is one at all. ``presumed`` is
    what counts as usual before there is a history; None: without one nobody is accused.
    """

    __slots__ = (
        "_baselines",
        "_clean_since_s",
        "_floor",
        "_hold_down",
        "_levels",
        "_presumed",
        "_resolution",
        "_strictness",
        "_tail_samples",
        "_window",
        "raised_since_s",
        "tail",
    )

    def __init__(
        self,
        strictness: Strictness,
        floor: Callable[[float], float],
        resolution: float,
        levels: int = 1,
        presumed: float | None = None,
    ) -> None:
        self._strictness = strictness
        self._floor = floor
        self._resolution = resolution
        self._levels = levels
        self._presumed = None if presumed is None else self._constant(presumed)
        self._baselines = self._fresh()
        self._hold_down = HoldDown(strictness.hold_down_s, strictness.hold_down_max_s, strictness.forgive_hold_downs)
        #: The latest samples, none of them learned. Those that raised it, and come after, never are.
        self._window: deque[_Seen] = deque()
        #: None: all is as usual.
        self.raised_since_s: float | None = None
        #: Raised, and since then not dirty again.
        self._clean_since_s: float | None = None
        #: How often healthy samples are over the limit.
        self.tail = TAIL_FIRST
        self._tail_samples = TAIL_FIRST_SAMPLES

    def _fresh(self) -> list[Baseline]:
        return [self._empty() for _level in range(self._levels)]

    def _empty(self) -> Baseline:
        return Baseline(self._strictness.samples_min, self._strictness.memory, self._resolution)

    def _constant(self, value: float) -> Baseline:
        """As if each sample so far had been this."""
        baseline = self._empty()
        for _sample in range(self._strictness.samples_min):
            baseline.learn(value)
        return baseline

    def reference(self, level: int) -> Baseline | None:
        """What a sample is compared with: its own level's history, or a fuller level's, for a path that carries less
        has no reason to be worse; else what is presumed. None: there is nothing yet."""
        return next((baseline for baseline in self._baselines[level:] if baseline.is_ready), self._presumed)

    def limit(self, baseline: Baseline) -> float:
        """Over this a sample counts."""
        return baseline.centre + max(self._strictness.sigmas * self._sigma(baseline), self._floor(baseline.centre))

    def _limit_leave(self, baseline: Baseline) -> float:
        return baseline.centre + max(
            self._strictness.sigmas_leave * self._sigma(baseline), self._floor(baseline.centre) / 2
        )

    def exonerates(self, value: float, level: int = 0) -> bool:
        """Would it speak for what was raised?"""
        reference = self.reference(level)
        return self.raised_since_s is not None and reference is not None and value <= self._limit_leave(reference)

    @staticmethod
    def _sigma(baseline: Baseline) -> float:
        return baseline.sigma * (1 + YOUTH / math.sqrt(baseline.samples))

    @property
    def needed(self) -> int:
        """Of the last ``window`` samples so many must be over the limit."""
        return confirmations_needed(self._strictness, self.tail)

    @property
    def hold_down_s(self) -> float:
        return self._hold_down.period_s

    def void(self) -> None:
        """We were away ourselves: what was gathered accuses nobody, and proves no quiet time either."""
        self._window.clear()
        self._clean_since_s = None

    def forget(self) -> None:
        """It is another path from now on. How long it must hold still is not forgotten."""
        self.void()
        self._baselines = self._fresh()
        self.raised_since_s = None
        self.tail = TAIL_FIRST
        self._tail_samples = TAIL_FIRST_SAMPLES

    def look(self, value: float, now: float, level: int = 0) -> Change | None:
        """A sample. Samples that accuse nobody must not come here."""
        reference = self.reference(level)
        if reference is None:
            if self.raised_since_s is None:
                self._baselines[level].learn(value)
            return None
        if self.raised_since_s is not None:
            return self._look_again(_Seen(value, level, value > self._limit_leave(reference)), now)
        self._append(_Seen(value, level, value > self.limit(reference)), learn=self._learn)
        if not self._window[-1].is_over or self._over() < self.needed:
            return None
        self.raised_since_s = now
        self._clean_since_s = None
        self._hold_down.raised(now)
        return Change.RAISED

    def _look_again(self, seen: _Seen, now: float) -> Change | None:
        assert self.raised_since_s is not None
        self._append(seen, learn=lambda _seen: None)
        if self._over() >= self._strictness.confirmations:
            self._clean_since_s = None
            if now - self.raised_since_s < self._strictness.relearn_s:
                return None
            self.forget()
        else:
            if self._clean_since_s is None:
                self._clean_since_s = now
            if len(self._window) < self._strictness.window or now - self._clean_since_s < self._hold_down.period_s:
                return None
        self._window.clear()
        self.raised_since_s = None
        self._hold_down.cleared(now)
        return Change.CLEARED

    def _append(self, seen: _Seen, learn: Callable[[_Seen], None]) -> None:
        if len(self._window) == self._strictness.window:
            learn(self._window.popleft())
        self._window.append(seen)

    def _over(self) -> int:
        return sum(seen.is_over for seen in self._window)

    def _learn(self, seen: _Seen) -> None:
        self._tail_samples = min(self._tail_samples + 1, TAIL_MEMORY)
        self.tail += (seen.is_over - self.tail) / self._tail_samples
        self._baselines[seen.level].learn(seen.value)
