"""Sets of positions as segments, with answers in logarithmic time: plans for a thousand ranks ask very often."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from r2ccl.schedule.ir import Segment


def merged(segments: Iterable[Segment]) -> list[Segment]:
    """Their union: in order, those that touch or overlap joined."""
    joined: list[Segment] = []
    for start, stop in sorted(segments):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


class Union:
    """The union of some segments, none of which is empty."""

    __slots__ = ("_starts", "_stops", "segments")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.segments = merged(segments)
        self._starts = [start for start, _ in self.segments]
        self._stops = [stop for _, stop in self.segments]

    def touching(self, segment: Segment) -> Iterator[int]:
        """Which of ``segments`` have positions in common with one that is not empty, in order."""
        yield from range(bisect_right(self._stops, segment[0]), bisect_left(self._starts, segment[1]))

    def touches(self, segment: Segment) -> bool:
        """Is any position of it in the union?"""
        return bisect_right(self._stops, segment[0]) < bisect_left(self._starts, segment[1])

    def holder(self, segment: Segment) -> int | None:
        """Which of ``segments`` has all positions of one that is not empty."""
        place = bisect_right(self._starts, segment[0]) - 1
        return place if place >= 0 and segment[1] <= self._stops[place] else None

    def rest_of(self, segment: Segment) -> list[Segment]:
        """What of the segment is not in the union, in order."""
        at, stop = segment
        gaps = []
        for place in self.touching(segment):
            if at < self._starts[place]:
                gaps.append((at, self._starts[place]))
            at = self._stops[place]
        return [*gaps, (at, stop)] if at < stop else gaps


class Overlaps:
    """Segments that may overlap, each with a number: which of them touch a given one?"""

    __slots__ = ("_furthest", "_numbered", "_starts")

    def __init__(self, numbered: Iterable[tuple[Segment, int]]) -> None:
        self._numbered: Sequence[tuple[Segment, int]] = sorted(numbered)
        self._starts = [segment[0] for segment, _ in self._numbered]
        #: How far the segments up to here reach.
        self._furthest = list(accumulate((segment[1] for segment, _ in self._numbered), max))

    def touching(self, segment: Segment) -> Iterator[tuple[Segment, int]]:
        """All that have positions in common with it."""
        place = bisect_left(self._starts, segment[1]) - 1
        while place >= 0 and self._furthest[place] > segment[0]:
            found, number = self._numbered[place]
            if found[1] > segment[0] and found[0] < found[1]:
                yield found, number
            place -= 1
