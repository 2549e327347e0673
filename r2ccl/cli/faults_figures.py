"""What is seen of one fault, and what many of them come to. Pure: times in, figures out.

All times are of the machine's monotonic clock, which its processes share.

* Detection: from the fault to the first event that any rank records of it. What came back, and lanes, are no evidence.
* Repair: from the fault to the last lane that any rank moved or spread over others because of it; of a killed process,
  until the last of the others was told that it is lost.
* Gap: the longest time in which nothing arrived at some rank, less the usual. For the operations alike.
* Rates are bytes of payload that each rank must send, by time: of the slowest rank, which a ring waits for.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from r2ccl.cli.demo_report import RankRecord, Window, stall_s

_CAUSE: Final = re.compile(r'\bcause=("(?:[^"\\]|\\.)*"|\S+)')
_CHANGE: Final = re.compile(r"(?:^| )(?![\w-]+=)(\S+->\S+)")
#: Which rank or NIC it was makes no other cause.
_NUMBER: Final = re.compile(r"\b(rank|nic) ?\d+")
#: Said of a path that returned.
_RETURNS: Final = ("->UP", "DISSOLVED->BOUND")
#: Of a lane that was spread over no other.
_NOBODY_LEFT: Final = "survivors=none"
#: What is recorded besides faults.
_NO_EVIDENCE: Final = ("waiting", "admitted")


@dataclass(frozen=True, slots=True)
class Happening:
    """An event of some rank's log."""

    time_s: float
    rank: int
    name: str
    text: str

    @property
    def cause(self) -> str:
        """As the log has it, without numbers of ranks and NICs; the name where there is none."""
        found = _CAUSE.search(self.text)
        return _NUMBER.sub(r"\1 N", found[1].strip('"')) if found else self.name

    @property
    def is_return(self) -> bool:
        """Whether it tells of something that came back."""
        found = _CHANGE.search(self.text)
        return found is not None and found[1].endswith(_RETURNS)

    def concerns(self, rank: int, nic: int | None) -> bool:
        """Whether it is about this NIC of the rank, or about the rank if there is none."""
        which = r"\d+" if nic is None else str(nic)
        if self.rank == rank:
            return re.search(rf"\bnic{which}\b", self.text) is not None
        return re.search(rf"\brank ?{rank}[. ]nic ?{which}\b|\bpeer={rank}\b", self.text) is not None

    @property
    def is_of_a_lane(self) -> bool:
        return self.name.startswith("lane")


@dataclass(frozen=True, slots=True)
class Trial:
    """One fault. None: there was none, or it could not be told."""

    detected_by: str = ""
    detection_ms: float | None = None
    repair_ms: float | None = None
    gap_ms: float | None = None
    operation_gap_ms: float | None = None
    before_gbit_s: float | None = None
    during_gbit_s: float | None = None
    operations: int = 0
    wrong_elements: int = 0
    #: What a rank failed with, where it should not.
    error: str = ""
    #: And all that it wrote.
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        """The inverse of ``Trial(**...)``."""
        return asdict(self)


def first_evidence(
    happenings: Iterable[Happening], window: Window, hit: Collection[tuple[int, int | None]]
) -> Happening | None:
    """What told first of a fault of these ranks' NICs."""
    evidence = [
        one for one in happenings
        if any(one.concerns(*each) for each in hit) and window[0] <= one.time_s <= window[1]
        and not one.is_return and not one.is_of_a_lane and one.name not in _NO_EVIDENCE
    ]  # fmt: skip
    return min(evidence, key=lambda one: one.time_s, default=None)


def last_repair(happenings: Iterable[Happening], window: Window) -> Happening | None:
    """The last lane that found another way; None also where some lane found none."""
    repairs = [
        one for one in happenings if window[0] <= one.time_s <= window[1] and one.is_of_a_lane and not one.is_return
    ]
    if any(_NOBODY_LEFT in one.text for one in repairs):
        return None
    return max(repairs, key=lambda one: one.time_s, default=None)


def since_ms(fault_s: float, happening: Happening | None) -> float | None:
    """How long after the fault."""
    return None if happening is None else 1e3 * (happening.time_s - fault_s)


def arrival_gap_ms(records: Sequence[RankRecord], fault_s: float, until_s: float, window_s: float) -> float:
    """The longest of all ranks, of data."""
    return max(
        1e3 * stall_s([time_s for time_s, _, _ in record.arrivals], fault_s, until_s, window_s) for record in records
    )


def operation_gap_ms(records: Sequence[RankRecord], fault_s: float, until_s: float, window_s: float) -> float:
    """The longest of all ranks, of completed operations."""
    return max(1e3 * stall_s(record.completions, fault_s, until_s, window_s) for record in records)


def completed(records: Sequence[RankRecord], window: Window) -> int:
    """Operations within the time, on the rank with the fewest."""
    return min(
        bisect_right(record.completions, window[1]) - bisect_left(record.completions, window[0]) for record in records
    )


def received_gbit_s(records: Sequence[RankRecord], window: Window) -> float:
    """By whoever received least."""
    seconds = window[1] - window[0]
    received = [
        sum(size for time_s, _, size in record.arrivals if window[0] <= time_s < window[1]) for record in records
    ]
    return min(received) * 8 / 1e9 / seconds


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of many, and the largest or, of rates, the smallest."""

    median: float
    worst: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None], *, low_is_bad: bool = False) -> Spread | None:
        """None if there is nothing."""
        there = [value for value in values if value is not None]
        if not there:
            return None
        return cls(statistics.median(there), min(there) if low_is_bad else max(there), len(there))


@dataclass(frozen=True, slots=True)
class Figures:
    """All trials of one fault."""

    trials: int
    #: What told first, and how often.
    detected_by: tuple[tuple[str, int], ...]
    detection_ms: Spread | None
    repair_ms: Spread | None
    gap_ms: Spread | None
    operation_gap_ms: Spread | None
    before_gbit_s: Spread | None
    during_gbit_s: Spread | None
    operations: int
    wrong_elements: int
    errors: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> Figures:
        """Medians."""
        return cls(
            len(trials),
            tuple(Counter(trial.detected_by for trial in trials if trial.detected_by).most_common()),
            Spread.of(trial.detection_ms for trial in trials),
            Spread.of(trial.repair_ms for trial in trials),
            Spread.of(trial.gap_ms for trial in trials),
            Spread.of(trial.operation_gap_ms for trial in trials),
            Spread.of((trial.before_gbit_s for trial in trials), low_is_bad=True),
            Spread.of((trial.during_gbit_s for trial in trials), low_is_bad=True),
            sum(trial.operations for trial in trials),
            sum(trial.wrong_elements for trial in trials),
            tuple(Counter(trial.error for trial in trials if trial.error).most_common()),
        )


def trials_of(part: Sequence[Mapping[str, Any]]) -> list[Trial]:
    """From what was kept as JSON."""
    return [Trial(**kept) for kept in part]
