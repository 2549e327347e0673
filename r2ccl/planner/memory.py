"""Where a schedule's positions live in one rank's memory: what a send reads, where a receive lands, what is copied.

A schedule works on one row of positions, the same on all ranks. A rank has the arrays that its caller passed, and work
memory for what passes through. Each position has at most two places:

* where its *initial* value is: in an input array, which is only ever read;
* its *home*, where received values go: in an output array, or else in work memory. In place, home and input are one.

From ``after`` follows whether a send, or the own operand of a reduction, is an initial or a received value. So what is
reduced for the first time goes from input to home without a copy made before, and a caller's input stays unharmed.
Copies remain where a transfer's positions do not lie in one array next to one another: initial values are copied home
when the operation starts, results that live in work memory go to the caller's arrays when it ends.

All numbers are elements. Pure: the same on every call with equal arguments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from r2ccl.planner.intervals import Overlaps, Union
from r2ccl.schedule.ir import Program, Receive, Segment, Send


@dataclass(frozen=True, slots=True)
class Region:
    """Positions [start, stop) lie in an array of the caller's, from ``offset`` on."""

    start: int
    stop: int
    #: Which array, in the order in which the caller passed them.
    array: int
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Which positions a rank's caller passed, and where results belong. Regions are in order and do not overlap."""

    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """``stop - start`` elements of an array. Work memory is the array behind the caller's."""

    array: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Elements to copy from one array to another."""

    source: Span
    target: Span


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The answer, for one program."""

    #: Per send, per segment.
    sends: tuple[tuple[Span, ...], ...]
    #: Per receive, per segment: where the result goes.
    receives: tuple[tuple[Span, ...], ...]
    #: Per receive: the own operand of a reduction, where it is not what the result replaces.
    operands: tuple[Span | None, ...]
    #: Before anything else, and after everything.
    first: tuple[Copy, ...]
    last: tuple[Copy, ...]
    #: Elements of work memory.
    work: int
    #: Of the outputs: what the operation's last touch (an average's division) is for.
    results: tuple[Span, ...]


def in_place(count: int) -> Layout:
    """One array, read and written."""
    whole = (Region(0, count, 0, 0),)
    return Layout(whole, whole)


def plan_memory(program: Program, layout: Layout, arrays: int) -> MemoryPlan:
    """Find a place for everything. ``arrays``: how many the caller passed."""
    return _Planner(program, layout, arrays).plan()


class _Regions:
    """Regions in order that do not overlap."""

    def __init__(self, regions: Iterable[Region]) -> None:
        self.all = [region for region in regions if region.start < region.stop]
        self._starts = [region.start for region in self.all]
        self._stops = [region.stop for region in self.all]

    def containing(self, segment: Segment) -> Region | None:
        """The one that holds all of it."""
        place = bisect_right(self._starts, segment[0]) - 1
        return self.all[place] if place >= 0 and segment[1] <= self._stops[place] else None

    def touching(self, segment: Segment) -> list[Region]:
        """Those that hold some of it."""
        return self.all[bisect_right(self._stops, segment[0]) : bisect_left(self._starts, segment[1])]


class _Writes:
    """What a rank has received when something begins, by its own lists of what waits for what."""

    def __init__(self, program: Program) -> None:
        receives = program.receives
        numbered = [(segment, index) for index, receive in enumerate(receives) for segment in receive.segments]
        self._overlaps = Overlaps(numbered)
        #: Receives as bits of a number: those of exactly this segment, and by receive those that are over before.
        self._exactly: dict[Segment, int] = {}
        for segment, index in numbered:
            self._exactly[segment] = self._exactly.get(segment, 0) | 1 << index
        self._before: list[int | None] = [None] * len(receives)
        for index in range(len(receives)):
            self._find_before(receives, index)

    def _find_before(self, receives: Sequence[Receive], index: int) -> None:
        """Without recursion: chains are as long as there are ranks."""
        path = [index]
        while path:
            missing = [other for other in receives[path[-1]].after if self._before[other] is None]
            if self._before[path[-1]] is None and missing:
                path += missing
            else:
                here = path.pop()
                self._before[here] = self.over(receives[here].after)

    def over(self, after: Iterable[int]) -> int:
        """These receives and all before them, as bits."""
        bits = 0
        for receive in after:
            bits |= 1 << receive | (self._before[receive] or 0)
        return bits

    def missing(self, segment: Segment, over: int) -> list[Segment]:
        """What of the segment has not been received by the time that these are over, in order."""
        if segment[0] == segment[1]:
            return []
        if not over:
            return [segment]
        if self._exactly.get(segment, 0) & over:
            return []
        return Union(found for found, index in self._overlaps.touching(segment) if over >> index & 1).rest_of(segment)


class _Planner:
    def __init__(self, program: Program, layout: Layout, arrays: int) -> None:
        self._program = program
        self._arrays = arrays
        self._inputs = _Regions(layout.inputs)
        self._outputs = _Regions(layout.outputs)
        self._writes = _Writes(program)
        #: By send: which receives are over before it begins.
        self._over_before = [self._writes.over(send.after) for send in program.sends]
        #: Positions that must lie side by side, and do not in the outputs: their home is work memory.
        self._work = self._work_segments()
        #: How much work memory lies before each of them.
        self._work_before = [0, *accumulate(stop - start for start, stop in self._work.segments)]
        self._first: dict[tuple[int, int], Copy] = {}

    def plan(self) -> MemoryPlan:
        sends = tuple(
            tuple(self._read(segment, over) for segment in send.segments)
            for send, over in zip(self._program.sends, self._over_before, strict=True)
        )
        receives = tuple(tuple(self._home(segment) for segment in r.segments) for r in self._program.receives)
        operands = tuple(
            self._operand(receive, spans[0]) for receive, spans in zip(self._program.receives, receives, strict=True)
        )
        last = tuple(self._results_from_work())
        self._copy_what_nobody_writes()
        return MemoryPlan(
            sends=sends,
            receives=receives,
            operands=operands,
            first=tuple(self._first[key] for key in sorted(self._first)),
            last=last,
            work=self._work_before[-1],
            results=tuple(Span(r.array, r.offset, r.offset + r.stop - r.start) for r in self._outputs.all),
        )

    def _operand(self, receive: Receive, home: Span) -> Span | None:
        if not receive.reduce:
            return None
        own = self._read((receive.start, receive.stop), self._writes.over(receive.after))
        return None if own == home else own

    def _read(self, segment: Segment, over: int) -> Span:
        """Where a segment's values are, after these receives."""
        missing = self._writes.missing(segment, over)
        if not missing:
            return self._home(segment)
        if missing == [segment]:
            region = self._inputs.containing(segment)
            if region is not None:
                return _span(region, segment)
        for gap in missing:
            self._copy_home(gap)
        return self._home(segment)

    def _copy_home(self, segment: Segment) -> None:
        for region in self._inputs.touching(segment):
            self._copy_first((max(region.start, segment[0]), min(region.stop, segment[1])), region)

    def _copy_first(self, segment: Segment, region: Region) -> None:
        for part in self._homes_of(segment):
            copy = Copy(_span(region, part), self._home(part))
            if copy.source != copy.target:
                self._first[part] = copy

    def _copy_what_nobody_writes(self) -> None:
        """Results that were there from the start, such as a rank's own part of what it gathers."""
        every = (segment for receive in self._program.receives for segment in receive.segments)
        received = Union(segment for segment in every if segment[0] < segment[1])
        for region in self._outputs.all:
            for gap in received.rest_of((region.start, region.stop)):
                self._copy_home(gap)

    def _homes_of(self, segment: Segment) -> Iterator[Segment]:
        """The segment, cut where its home changes arrays."""
        for place in self._work.touching(segment):
            start, stop = self._work.segments[place]
            yield (max(start, segment[0]), min(stop, segment[1]))
        for gap in self._work.rest_of(segment):
            for region in self._outputs.touching(gap):
                yield (max(region.start, gap[0]), min(region.stop, gap[1]))

    def _home(self, segment: Segment) -> Span:
        if segment[0] == segment[1]:
            return Span(0 if self._arrays else self._arrays, 0, 0)
        place = self._work.holder(segment)
        if place is not None:
            start = self._work_before[place] + segment[0] - self._work.segments[place][0]
            return Span(self._arrays, start, start + segment[1] - segment[0])
        region = self._outputs.containing(segment)
        assert region is not None, f"{segment} has no home"
        return _span(region, segment)

    def _results_from_work(self) -> Iterator[Copy]:
        for region in self._outputs.all:
            for place in self._work.touching((region.start, region.stop)):
                start, stop = self._work.segments[place]
                part = (max(start, region.start), min(stop, region.stop))
                yield Copy(self._home(part), _span(region, part))

    def _work_segments(self) -> Union:
        """Whatever no single output holds, and with it all that shares a transfer with some of it."""
        needing = self._needing_home()
        homed = set(needing)
        homeless = Union(segment for segment in needing if self._outputs.containing(segment) is None)
        if not homeless.segments:
            return homeless
        every = {segment for part in self._parts() for segment in part.segments if segment[0] < segment[1]} & homed
        while True:
            drawn_in = [s for s in every if homeless.touches(s) and homeless.holder(s) is None]
            if not drawn_in:
                return homeless
            homeless = Union([*homeless.segments, *drawn_in])

    def _parts(self) -> Iterator[Send | Receive]:
        yield from self._program.sends
        yield from self._program.receives

    def _needing_home(self) -> list[Segment]:
        """What is received, and what is sent from more than one place."""
        needing = [segment for receive in self._program.receives for segment in receive.segments]
        for send, over in zip(self._program.sends, self._over_before, strict=True):
            for segment in send.segments:
                untouched = self._writes.missing(segment, over) == [segment]
                if not (untouched and self._inputs.containing(segment) is not None):
                    needing.append(segment)
        return [segment for segment in needing if segment[0] < segment[1]]


def _span(region: Region, segment: Segment) -> Span:
    start = region.offset + segment[0] - region.start
    return Span(region.array, start, start + segment[1] - segment[0])
