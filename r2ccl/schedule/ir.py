"""Collectives as data: who sends which segment to whom, in which step, after what. Knows no NIC, no byte, no time.

A *program* is one rank's part. It is a list of sends and a list of receives over one logical space of ``count``
positions, the same on all ranks: a transfer has the same positions at both ends, so a position says which data it is.
Where it lies in a rank's memory (input, output, work memory) is for whoever executes the program to say. A transfer's
name is (step, source, target); no two transfers of a schedule share all three.

Order comes only from ``after``: a send or receive waits for the receives it lists (indices into the same program's
``receives``). If a listed receive covers exactly the same segments, the wait is chunk by chunk, which is what makes
pipelines flow; otherwise it is for the whole receive. What has no ``after`` may go at once.

From ``after`` alone follows too whether a send, or the own operand of a reduction, is what this rank had at first or
what it received: the latter where a receive into these positions is among what it waits for, itself or through others'
waits. So whoever executes the program may keep the two in different memory.

A message usually is one segment. A few algorithms gather several (``also``), in programs that send from copies: such a
message is put together when it is copied, is one chunk however long it is, and is never reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

#: [start, stop) in positions.
Segment = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schedule depends on besides the number of ranks and the rank."""

    #: The elements of the buffer; where it is cut into parts, their sum. Not used by all_to_all.
    count: int = 0
    root: int = 0
    #: all_gather, reduce_scatter, gather, scatter: each rank's part. all_to_all: what this rank sends to each.
    parts: tuple[int, ...] = ()
    #: all_to_all: what this rank receives from each.
    out_parts: tuple[int, ...] = ()
    #: all_to_all: the distance between blocks. It need be the same on all ranks only where their programs are compared;
    #: 0: the largest block that this rank sends or receives.
    stride: int = 0
    #: The ranks of each node, in order; empty: every rank is on a node of its own, or it does not matter.
    nodes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if min(self.count, self.root, self.stride, *self.parts, *self.out_parts) < 0:
            raise ValueError(f"a negative number in {self}")
        if self.parts and not self.out_parts and self.count != sum(self.parts):
            raise ValueError(f"the parts of {self} are {sum(self.parts)} elements")
        if self.out_parts and len(self.parts) != len(self.out_parts):
            raise ValueError(f"{self} sends to {len(self.parts)} ranks and receives from {len(self.out_parts)}")
        if 0 < self.stride < max(self.parts + self.out_parts, default=0):
            raise ValueError(f"blocks of {self} overlap")

    @classmethod
    def in_parts(cls, parts: Sequence[int], root: int = 0) -> Shape:
        """Of a collective whose buffer is cut into one part for each rank."""
        return cls(sum(parts), root, tuple(parts))

    @classmethod
    def in_blocks(cls, parts: Sequence[int], out_parts: Sequence[int], stride: int = 0) -> Shape:
        """Of an all_to_all: what this rank sends to each and receives from each."""
        return cls(parts=tuple(parts), out_parts=tuple(out_parts), stride=stride)

    @property
    def block_stride(self) -> int:
        """all_to_all: how far apart blocks lie. The one from i to j is at ``(i * ranks + j) * block_stride``."""
        return self.stride or max(self.parts + self.out_parts, default=0)

    def nodes_of(self, ranks: int) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node; without nodes each is alone on its own."""
        return self.nodes or tuple((rank,) for rank in range(ranks))

    def nodes_from_root(self, ranks: int) -> tuple[tuple[int, ...], ...]:
        """The nodes around the circle from the root's on, which begins with the root."""
        nodes = self.nodes_of(ranks)
        home = next(number for number, node in enumerate(nodes) if self.root in node)
        first = nodes[home].index(self.root)
        return ((*nodes[home][first:], *nodes[home][:first]), *nodes[home + 1 :], *nodes[:home])

    def from_root(self, ranks: int) -> Sequence[int]:
        """All ranks around the circle from the root on; node by node."""
        if not self.nodes:
            return [*range(self.root, ranks), *range(self.root)]
        return [*chain.from_iterable(self.nodes_from_root(ranks))]


@dataclass(frozen=True, slots=True)
class Send:
    """``buffer[start:stop]`` goes to ``target``."""

    step: int
    target: int
    start: int
    stop: int
    after: tuple[int, ...] = ()
    #: The operation may not end before this send is acknowledged, because nothing this rank receives later proves
    #: that it arrived. ``schedule.check`` proves that the other sends are covered by causality.
    needs_ack: bool = False
    #: Further segments that travel in the same message, behind the first and in this order.
    also: tuple[Segment, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        return ((self.start, self.stop), *self.also)


@dataclass(frozen=True, slots=True)
class Receive:
    """What ``source`` sends lands in ``buffer[start:stop]``: copied, or reduced into what is there."""

    step: int
    source: int
    start: int
    stop: int
    reduce: bool = False
    #: With ``reduce``: the received operand is the left one. Bits depend on it (max(0.0, -0.0), sums of NaNs).
    received_first: bool = False
    after: tuple[int, ...] = ()
    #: Further segments of the same message, as the send has them. Only without ``reduce``.
    also: tuple[Segment, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        return ((self.start, self.stop), *self.also)


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's part of a schedule."""

    rank: int
    count: int
    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]
    #: Every send must go out from a copy made when it is ready: the same elements are reduced into meanwhile, or it has
    #: several segments. Only for messages up to the eager limit.
    sends_from_copies: bool = False


def segments(count: int, parts: int) -> list[Segment]:
    """Cut ``count`` elements into ``parts`` segments whose lengths differ by at most one; some may be empty."""
    base, longer = divmod(count, parts)
    bounds = [index * base + min(index, longer) for index in range(parts + 1)]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def spans(parts: Sequence[int]) -> list[Segment]:
    """Where each of the parts lies when they follow one another."""
    bounds = [0, *accumulate(parts)]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def run_of_parts(parts: Sequence[int], first: int, number: int) -> tuple[Segment, ...]:
    """Where the parts from ``first`` on lie: one segment, two if they go on from the last to part 0, none if empty."""
    cut = spans(parts)
    last = first + number
    runs = [cut[first:last], cut[: max(0, last - len(parts))]]
    segments = [(run[0][0], run[-1][1]) for run in runs if run]
    return tuple((start, stop) for start, stop in segments if stop > start)
