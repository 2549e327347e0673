"""What a training was like that lost a NIC in the middle, beside one that did not. Pure: steps in, figures out.

All times are of the machine's monotonic clock, which its processes share. Rank 0's steps are looked at; DDP keeps the
others in step with it.

* Hit step: the one in which the NIC was cut, by rank 0's clock, or the one after, whichever took longer: a cut between
  two all-reduces is noticed in the next one. How much longer it took is told by the median of the steps before.
* The same steps of the training beside it, which nothing happened to, say how long steps take by chance.
* Outside the hit steps: medians of the same steps of both trainings, in three parts, before the cut, without the NIC,
  and with it again. Each pair of trainings gives one difference; the mean of those has an interval by Student's t.
* Replanned: the first step with another epoch than the first step, in either training. From there on sums may be added
  in another order, so losses may differ in their last digits; before, not in a bit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Steps that are slower than others by nature: memory is first touched, connections are made.
WARM_UP: Final = 10
#: So many steps say what is usual before a cut.
USUAL_STEPS: Final = 50
#: Student's t for a two-sided interval of 95 %, by degrees of freedom from 1; beyond, that of the normal distribution.
STUDENT_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL: Final = 1.96


@dataclass(frozen=True, slots=True)
class Step:
    """One step, as rank 0 tells it."""

    number: int
    loss: float
    #: The loss to the bit.
    bits: str
    began_s: float
    seconds: float
    epoch: int = 0
    resent_bytes: int = 0

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Step:
        return cls(
            told["step"], told["loss"], told["bits"], told["began"], told["seconds"],
            told.get("epoch", 0), told.get("resent_bytes", 0),
        )  # fmt: skip

    @property
    def ms(self) -> float:
        return self.seconds * 1e3


@dataclass(frozen=True, slots=True)
class Training:
    """One training. Times are None for what was not done."""

    backend: str
    steps: tuple[Step, ...]
    cut_s: float | None = None
    restored_s: float | None = None
    #: How it ended, if not well.
    trouble: str = ""
    ended_s: float = 0.0

    def step_at(self, time_s: float) -> int:
        """Index of the step that was under way, or the next to come."""
        for index, step in enumerate(self.steps):
            if time_s < step.began_s + step.seconds:
                return index
        return len(self.steps) - 1

    @property
    def last(self) -> int:
        """The number of the last step."""
        return self.steps[-1].number if self.steps else 0

    @property
    def died_after_s(self) -> float | None:
        """From the cut to the end of the last process, if it did not end well."""
        return self.ended_s - self.cut_s if self.trouble and self.cut_s is not None else None


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of some differences, and where the true one lies with 95 %."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Of one value alone nothing is known but itself."""
        mean, count = statistics.fmean(values), len(values)
        if count < 2:
            return cls(mean, -math.inf, math.inf, count)
        student = STUDENT_T[count - 2] if count - 2 < len(STUDENT_T) else NORMAL
        half = student * statistics.stdev(values) / math.sqrt(count)
        return cls(mean, mean - half, mean + half, count)

    @property
    def has_zero(self) -> bool:
        return self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class Hit:
    """What a cut or a return did to the step that it hit."""

    step: int
    #: How much longer than usual it took, and the same steps of the training beside it.
    longer_ms: float
    beside_ms: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two trainings with the same numbers, one of which lost a NIC."""

    steps: int
    replanned_step: int | None
    first_different_step: int | None
    largest_difference: float
    loss: tuple[float, float]
    resent_bytes: int
    cut: Hit
    restored: Hit
    #: By part, the medians in ms: unharmed, harmed.
    medians_ms: Mapping[str, tuple[float, float]]

    @property
    def is_true(self) -> bool:
        """No bit differs before the ranks planned anew."""
        if self.first_different_step is None:
            return True
        return self.replanned_step is not None and self.first_different_step >= self.replanned_step


PARTS: Final = ("before the cut", "without the NIC", "with it again", "all steps but those hit")


def parts(harmed: Training) -> dict[str, range | tuple[int, ...]]:
    """The indices of the steps of each part."""
    cut, restored = _cut_and_restored(harmed)
    before = range(min(WARM_UP, cut), cut)
    without = range(cut + 2, restored)
    again = range(restored + 2, len(harmed.steps))
    return dict(zip(PARTS, (before, without, again, (*before, *without, *again)), strict=True))


def _cut_and_restored(harmed: Training) -> tuple[int, int]:
    if harmed.cut_s is None or harmed.restored_s is None:
        raise ValueError("nothing was cut in this training, or not given back")
    return harmed.step_at(harmed.cut_s), harmed.step_at(harmed.restored_s)


def pair(unharmed: Training, harmed: Training) -> Pair:
    """Both trainings, step by step."""
    ours, beside = harmed.steps, unharmed.steps
    both = list(zip(ours, beside, strict=True))
    cut, restored = _cut_and_restored(harmed)
    return Pair(
        steps=len(ours),
        replanned_step=_first(both, lambda a, b: (a.epoch, b.epoch) != (ours[0].epoch, beside[0].epoch)),
        first_different_step=_first(both, lambda a, b: a.bits != b.bits),
        largest_difference=max(abs(a.loss - b.loss) for a, b in both),
        loss=(beside[-1].loss, ours[-1].loss),
        resent_bytes=ours[-1].resent_bytes,
        cut=_hit(ours, beside, cut),
        restored=_hit(ours, beside, restored),
        medians_ms={
            name: (median_ms(beside, indices), median_ms(ours, indices))
            for name, indices in parts(harmed).items()
            if indices
        },
    )


def _first(both: list[tuple[Step, Step]], differs: Callable[[Step, Step], bool]) -> int | None:
    return next((a.number for a, b in both if differs(a, b)), None)


def _hit(ours: Sequence[Step], beside: Sequence[Step], index: int) -> Hit:
    return Hit(ours[index].number, _longer_ms(ours, index), _longer_ms(beside, index))


def _longer_ms(steps: Sequence[Step], index: int) -> float:
    usual = median_ms(steps, range(max(0, index - USUAL_STEPS), index)) if index else 0.0
    return max(step.ms for step in steps[index : index + 2]) - usual


def median_ms(steps: Sequence[Step], indices: range | tuple[int, ...]) -> float:
    """Of the steps with these indices."""
    return statistics.median(steps[index].ms for index in indices)


def step_time(pairs: Sequence[Pair], part: str) -> Interval:
    """How much longer steps took with the NIC lost than beside it, as a part of one."""
    medians = [one.medians_ms[part] for one in pairs]
    return Interval.of([harmed / unharmed - 1 for unharmed, harmed in medians])


def beside_peer(ours: Sequence[Training], theirs: Sequence[Training], part: str) -> tuple[float, float, Interval]:
    """Median step times in ms of the harmed trainings of r2ccl and its peer in one part, and ours by theirs, less 1."""
    pairs = [
        (median_ms(one.steps, parts(one)[part]), median_ms(other.steps, parts(other)[part]))
        for one, other in zip(ours, theirs, strict=True)
    ]
    ratios = Interval.of([mine / peer - 1 for mine, peer in pairs])
    return statistics.median(mine for mine, _ in pairs), statistics.median(peer for _, peer in pairs), ratios
