"""What a run of ``r2ccl performance`` measured, and what follows from it. Pure: numbers in, numbers out.

A *part* is one contest: several *sides* (r2ccl in one or two ways, its peers, the floor) that took turns at each size.
Of each turn a side has one time, the median of its operations; all else follows from those: medians over the rounds,
and ratios of turns of the same round, because what disturbs a machine lasts longer than a round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from r2ccl.cli.bench_collectives import COLLECTIVES
from r2ccl.cli.bench_report import Spread

#: How sure an interval is.
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Measured:
    """All turns of one side at one size."""

    side: str
    size_bytes: int
    #: Of an operation, by round: the median of each turn's, and their mean. Of a window, where there are windows.
    times_s: tuple[float, ...]
    means_s: tuple[float, ...]
    #: Processor time of an operation, all ranks together, by round.
    cpu_s: tuple[float, ...]
    #: None: nothing was checked, as with sides that move bytes and reduce nothing.
    wrong: int | None
    #: Of tickers, in all ranks and rounds.
    gaps_s: tuple[float, ...] = ()

    @classmethod
    def parse(cls, read: Mapping[str, Any]) -> Measured:
        """The inverse of ``asdict``."""
        lists = {name: tuple(read[name]) for name in ("times_s", "means_s", "cpu_s", "gaps_s")}
        return cls(**{**read, **lists})

    @property
    def time_s(self) -> Spread:
        return Spread.of(self.times_s)


@dataclass(frozen=True, slots=True)
class Part:
    """One contest."""

    key: str
    ranks: int
    measured: tuple[Measured, ...]
    #: Operations in flight.
    window: int = 1
    tick_s: float = 0.0
    #: Side -> what it says it is, such as a version.
    about: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, read: Mapping[str, Any]) -> Part:
        """The inverse of :meth:`as_json`."""
        return cls(**{**read, "measured": tuple(Measured.parse(one) for one in read["measured"])})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def sizes(self) -> list[int]:
        return sorted({one.size_bytes for one in self.measured})

    @property
    def sides(self) -> list[str]:
        """In the order in which they were named."""
        return list(dict.fromkeys(one.side for one in self.measured))

    def at(self, side: str, size: int) -> Measured | None:
        return next((one for one in self.measured if (one.side, one.size_bytes) == (side, size)), None)

    def of(self, side: str) -> Iterator[Measured]:
        """By size."""
        return (one for size in self.sizes if (one := self.at(side, size)) is not None)

    def ratio(self, side: str, other: str, size: int) -> Spread | None:
        """Of times, round by round: below 1, the side took less time. None where one of them is missing."""
        ratios = self.ratios(side, other, size)
        return Spread.of(ratios) if ratios else None

    def ratios(self, side: str, other: str, size: int) -> list[float]:
        """See :meth:`ratio`."""
        one, two = self.at(side, size), self.at(other, size)
        if one is None or two is None:
            return []
        return [mine / its for mine, its in zip(one.times_s, two.times_s, strict=True)]

    def cpu_ratios(self, side: str, other: str, size: int) -> list[float]:
        """Of processor times, round by round."""
        one, two = self.at(side, size), self.at(other, size)
        if one is None or two is None or not all(two.cpu_s):
            return []
        return [mine / its for mine, its in zip(one.cpu_s, two.cpu_s, strict=True)]

    def moved_bytes(self, size: int) -> float:
        """What a rank sends, and receives, in an all-reduce of this size."""
        return size * COLLECTIVES["all_reduce"].bus_factor(self.ranks)

    def busbw_gb_s(self, one: Measured) -> float:
        """In GB/s of 10^9 bytes."""
        return self.moved_bytes(one.size_bytes) / one.time_s.median / 1e9

    def cpu_s_per_gb(self, one: Measured) -> float:
        """Seconds of processor time for each GB that was sent, all ranks together."""
        return statistics.median(one.cpu_s) / (self.moved_bytes(one.size_bytes) * self.ranks / 1e9)

    def rate(self, one: Measured) -> float:
        """Operations a second: so many in flight at once, over all rounds."""
        return self.window / statistics.fmean(one.means_s)

    @property
    def wrong(self) -> int:
        return sum(one.wrong or 0 for one in self.measured)


@dataclass(slots=True)
class Results:
    """All parts so far."""

    parts: dict[str, Part] = field(default_factory=dict)
    #: Side or part -> why it is missing.
    left_out: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    others_s: float = 0.0

    @classmethod
    def parse(cls, read: Mapping[str, Any]) -> Results:
        """The inverse of :meth:`as_json`."""
        parts = {key: Part.parse(part) for key, part in read["parts"].items()}
        return cls(parts, dict(read["left_out"]), dict(read["facts"]), read["seconds"], read["others_s"])

    def as_json(self) -> dict[str, Any]:
        return {
            "parts": {key: part.as_json() for key, part in self.parts.items()}, "left_out": self.left_out,
            "facts": self.facts, "seconds": self.seconds, "others_s": self.others_s,
        }  # fmt: skip

    @property
    def wrong(self) -> int:
        return sum(part.wrong for part in self.parts.values())


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def interval_of_median(values: Sequence[float], confidence: float = CONFIDENCE) -> Spread:
    """The median, and between which two of the values the true one lies with this confidence.

    By the binomial distribution, so nothing is assumed about how the values are spread: each is above the true median
    with probability 1/2. Of fewer than six values all are taken, and they are less sure than that.
    """
    ordered, number = sorted(values), len(values)
    below, at = 0.0, 0
    while at < number // 2:
        below += math.comb(number, at) / 2**number
        if 2 * below > 1 - confidence:
            break
        at += 1
    first = max(0, at - 1)
    return Spread(statistics.median(ordered), ordered[first], ordered[number - 1 - first])
