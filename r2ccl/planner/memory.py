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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

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


class _Planner:
    def __init__(self, program: Program, layout: Layout, arrays: int) -> None:
        self._program = program
        self._arrays = arrays
        self._inputs = [region for region in layout.inputs if region.start < region.stop]
        self._outputs = [region for region in layout.outputs if region.start < region.stop]
        self._before = _writes_before(program)
        #: Positions that must lie side by side, and do not in the outputs: their home is work memory.
        self._work = self._work_segments()
        self._first: dict[tuple[int, int], Copy] = {}

    def plan(self) -> MemoryPlan:
        sends = tuple(
            tuple(self._read(segment, self._written(send.after)) for segment in send.segments)
            for send in self._program.sends
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
            work=sum(stop - start for start, stop in self._work),
            results=tuple(Span(r.array, r.offset, r.offset + r.stop - r.start) for r in self._outputs),
        )

    def _written(self, after: Iterable[int]) -> list[Segment]:
        """What has been received by then."""
        indices = {index for receive in after for index in (receive, *self._before[receive])}
        return [segment for index in sorted(indices) for segment in self._program.receives[index].segments]

    def _operand(self, receive: Receive, home: Span) -> Span | None:
        if not receive.reduce:
            return None
        own = self._read((receive.start, receive.stop), self._written(receive.after))
        return None if own == home else own

    def _read(self, segment: Segment, written: Sequence[Segment]) -> Span:
        """Where a segment's values are, after these writes."""
        missing = _without(segment, written)
        if not missing:
            return self._home(segment)
        if missing == [segment]:
            region = _containing(self._inputs, segment)
            if region is not None:
                return _span(region, segment)
        for gap in missing:
            self._copy_home(gap)
        return self._home(segment)

    def _copy_home(self, segment: Segment) -> None:
        for region in self._inputs:
            start, stop = max(region.start, segment[0]), min(region.stop, segment[1])
            if start < stop:
                self._copy_first((start, stop), region)

    def _copy_first(self, segment: Segment, region: Region) -> None:
        for part in self._homes_of(segment):
            copy = Copy(_span(region, part), self._home(part))
            if copy.source != copy.target:
                self._first[part] = copy

    def _copy_what_nobody_writes(self) -> None:
        """Results that were there from the start, such as a rank's own part of what it gathers."""
        received = [segment for receive in self._program.receives for segment in receive.segments]
        for region in self._outputs:
            for gap in _without((region.start, region.stop), received):
                for source in self._inputs:
                    start, stop = max(source.start, gap[0]), min(source.stop, gap[1])
                    if start < stop:
                        self._copy_first((start, stop), source)

    def _homes_of(self, segment: Segment) -> Iterator[Segment]:
        """The segment, cut where its home changes arrays."""
        for start, stop in self._work:
            if max(start, segment[0]) < min(stop, segment[1]):
                yield (max(start, segment[0]), min(stop, segment[1]))
        for gap in _without(segment, self._work):
            for region in self._outputs:
                if max(region.start, gap[0]) < min(region.stop, gap[1]):
                    yield (max(region.start, gap[0]), min(region.stop, gap[1]))

    def _home(self, segment: Segment) -> Span:
        if segment[0] == segment[1]:
            return Span(0 if self._arrays else self._arrays, 0, 0)
        used = 0
        for start, stop in self._work:
            if start <= segment[0] and segment[1] <= stop:
                return Span(self._arrays, used + segment[0] - start, used + segment[1] - start)
            used += stop - start
        region = _containing(self._outputs, segment)
        assert region is not None, f"{segment} has no home"
        return _span(region, segment)

    def _results_from_work(self) -> Iterator[Copy]:
        for region in self._outputs:
            for start, stop in self._work:
                begin, end = max(start, region.start), min(stop, region.stop)
                if begin < end:
                    yield Copy(self._home((begin, end)), _span(region, (begin, end)))

    def _work_segments(self) -> list[Segment]:
        """Whatever no single output holds, and with it all that shares a transfer with some of it."""
        every = [segment for part in self._parts() for segment in part.segments if segment[0] < segment[1]]
        homeless = _merged(segment for segment in self._needing_home() if _containing(self._outputs, segment) is None)
        while True:
            drawn_in = [
                segment
                for segment in every
                if any(start < segment[1] and segment[0] < stop for start, stop in homeless)
                and not any(start <= segment[0] and segment[1] <= stop for start, stop in homeless)
                and segment in self._homed
            ]
            if not drawn_in:
                return homeless
            homeless = _merged([*homeless, *drawn_in])

    def _parts(self) -> Iterator[Send | Receive]:
        yield from self._program.sends
        yield from self._program.receives

    def _needing_home(self) -> list[Segment]:
        """What is received, and what is sent from more than one place."""
        needing = [segment for receive in self._program.receives for segment in receive.segments]
        for send in self._program.sends:
            written = self._written(send.after)
            for segment in send.segments:
                untouched = _without(segment, written) == [segment]
                if not (untouched and _containing(self._inputs, segment) is not None):
                    needing.append(segment)
        needing = [segment for segment in needing if segment[0] < segment[1]]
        self._homed = set(needing)
        return needing


def _writes_before(program: Program) -> list[frozenset[int]]:
    """Per receive: the receives that are over before it begins, by this rank's own lists."""
    before: list[frozenset[int] | None] = [None] * len(program.receives)

    def of(index: int) -> frozenset[int]:
        known = before[index]
        if known is None:
            after = program.receives[index].after
            known = before[index] = frozenset(after).union(*(of(other) for other in after))
        return known

    return [of(index) for index in range(len(program.receives))]


def _containing(regions: Iterable[Region], segment: Segment) -> Region | None:
    return next((r for r in regions if r.start <= segment[0] and segment[1] <= r.stop), None)


def _span(region: Region, segment: Segment) -> Span:
    start = region.offset + segment[0] - region.start
    return Span(region.array, start, start + segment[1] - segment[0])


def _without(segment: Segment, others: Iterable[Segment]) -> list[Segment]:
    """What of the segment none of the others covers, in order."""
    left = [segment] if segment[0] < segment[1] else []
    for start, stop in others:
        left = [
            piece
            for begin, end in left
            for piece in ((begin, min(end, start)), (max(begin, stop), end))
            if piece[0] < piece[1]
        ]
    return left


def _merged(segments: Iterable[Segment]) -> list[Segment]:
    """Their union: in order, those that touch or overlap joined."""
    joined: list[Segment] = []
    for start, stop in sorted(segments):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined
