"""What a soak measures of a process, and of the ranks in it, once a second; and what of it may grow.

Values are kept in flat arrays of numbers, so that the measuring itself grows by a few bytes a second.
"""

from __future__ import annotations

import asyncio
import gc
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

import psutil

from r2ccl.actors.arrivals import RETIRED_MAX
from r2ccl.actors.diagnosing import ASKS_OPEN_MAX
from r2ccl.actors.runtime import Runtime
from r2ccl.config import Settings
from r2ccl.protocol.roll_call import CALLS_MAX
from r2ccl.sim.census import census
from r2ccl.sim.flatness import VALUES_MIN, Allowance, Verdict, judge

MIB: Final = 1 << 20

#: By measure: what it may grow by in the second half. The order is that of the report.
ALLOWED: Final[Mapping[str, Allowance]] = MappingProxyType(
    {
        "memory": Allowance(
            2 * MIB, 0.01, "the allocator keeps what it likes; smaller leaks show as objects or entries"
        ),
        "descriptors": Allowance(2, 0.0, "a dial under way at one end and not at the other"),
        "tasks": Allowance(2, 0.0, "a round's programs; one more for ever would be a leak in a hundred seconds"),
        "timers": Allowance(8, 0.0, "each link has one or two, and links come and go"),
        "objects": Allowance(1500, 0.01, "those of the operations under way; one per operation is far more"),
    }
)
ENTRIES: Final = Allowance(24, 0.05, "entries of operations under way; one per fault or group is more within minutes")
#: Tables that keep the latest of something up to a limit, and that fill so slowly that they grow for long: entries at
#: most, for each entry of another table, or (None) in all.
LIMITED: Final[Mapping[str, tuple[int, str | None]]] = MappingProxyType(
    {
        "ArrivalsDesk._retired": (RETIRED_MAX, None),
        "Diagnosing._asks": (ASKS_OPEN_MAX, "Diagnosing._allowances"),
        "Differences._finished": (Settings().running_max, "Communicators.coordinators"),
        "RollCall._calls": (CALLS_MAX, "RollCall._entered"),
    }
)


@dataclass(frozen=True, slots=True)
class Reading:
    """At one moment."""

    time_s: float
    memory: float
    descriptors: float
    tasks: float
    timers: float
    #: Counting these takes a while; None: not this time. Entries: see sim.census.
    objects: float | None = None
    entries: Counter[str] | None = None

    def as_json(self) -> dict[str, Any]:
        """The inverse of :meth:`parse`."""
        return {name.name: getattr(self, name.name) for name in fields(self)}

    @classmethod
    def parse(cls, told: Mapping[str, Any], begin_s: float) -> Reading:
        """From JSON; times are counted from ``begin_s``."""
        entries = None if told["entries"] is None else Counter[str](told["entries"])
        return cls(**{**told, "time_s": told["time_s"] - begin_s, "entries": entries})


def read(now: float, runtimes: Sequence[Runtime], process: psutil.Process, timers: int, *, counts: bool) -> Reading:
    """Measure this process. ``timers`` are for the caller to count. ``counts``: objects and entries, too."""
    return Reading(
        now,
        process.memory_info().rss,
        process.num_fds(),
        len(asyncio.all_tasks()),
        timers,
        len(gc.get_objects()) if counts else None,
        census(runtimes) + timers_by_purpose(runtimes) if counts else None,
    )


def timers_by_purpose(runtimes: Iterable[Runtime]) -> Counter[str]:
    """How many timers the actors have set, by what they will call."""
    waiting = [timer for runtime in runtimes for timer in runtime.shared.timers._waiting]
    return Counter(f"timer {getattr(timer._function, '__qualname__', 'of others')}" for timer in waiting)


@dataclass(slots=True)
class Series:
    """Of one measure."""

    times_s: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, time_s: float, value: float) -> None:
        """The next one."""
        self.times_s.append(time_s)
        self.values.append(value)


@dataclass(slots=True)
class Track:
    """All readings of one process."""

    name: str
    measures: dict[str, Series] = field(default_factory=lambda: {name: Series() for name in ALLOWED})
    entries: dict[str, Series] = field(default_factory=dict)

    def add(self, reading: Reading) -> None:
        """The next one."""
        for name, series in self.measures.items():
            value = getattr(reading, name)
            if value is not None:
                series.add(reading.time_s, value)
        if reading.entries is not None:
            for name in reading.entries.keys() - self.entries.keys():
                # It had none up to now.
                earlier = list(self.measures["objects"].times_s)[:-1]
                self.entries[name] = Series(array("d", earlier), array("d", [0.0] * len(earlier)))
            for name, series in self.entries.items():
                series.add(reading.time_s, reading.entries[name])

    def verdicts(self) -> dict[str, Verdict]:
        """Of all measures, and of every kind of entries, under its name; none of what was read too seldom to tell."""
        return {
            name: judge(series.times_s, series.values, self._allowance(name))
            for name, series in (*self.measures.items(), *sorted(self.entries.items()))
            if len(series.values) >= VALUES_MIN
        }

    def _allowance(self, name: str) -> Allowance:
        each, holders = LIMITED.get(name, (0, name))
        if not each or (holders is not None and holders not in self.entries):
            return ALLOWED.get(name, ENTRIES)
        values = self.entries[name].values
        held = [1.0] * len(values) if holders is None else self.entries[holders].values
        if any(value > each * number for value, number in zip(values, held, strict=True)):
            return ENTRIES
        return Allowance(each * max(held), 0.0, f"it keeps the latest {each:,}, and no more")
