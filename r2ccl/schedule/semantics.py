"""What each collective means, as data: who holds what before, who must hold what after, who must have heard from whom.

A value is described by its *contributors*: the ranks whose initial elements at the same position went into it, each
exactly once, as a bit mask. That says everything about a sum and nothing about its order; that all ranks add in the
same order, so that their bits agree, is asked for whatever the collective (``schedule.check``).

All ranks share one space of positions. Where the data is cut into parts, part i is what rank i brings or gets, and the
parts follow one another; any of them may be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from r2ccl.schedule.ir import spans


@dataclass(frozen=True, slots=True)
class Holding:
    """Before: ``rank`` holds values of its own in ``[start, stop)``. What nobody's holding names is garbage."""

    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """After: ``[start, stop)`` of ``rank`` is the reduction of exactly the ``contributors``' initial values."""

    rank: int
    start: int
    stop: int
    contributors: int


@dataclass(frozen=True, slots=True)
class Hearing:
    """After: ``rank`` knows that each rank of the mask ``entered`` has entered the operation."""

    rank: int
    entered: int


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective for a number of ranks and elements. What no expectation names may hold anything afterwards."""

    name: str
    ranks: int
    count: int
    holdings: tuple[Holding, ...]
    expectations: tuple[Expectation, ...]
    hearings: tuple[Hearing, ...] = ()


def all_reduce(ranks: int, count: int) -> Collective:
    """Everybody ends with the reduction of everybody's elements."""
    everyone = (1 << ranks) - 1
    return Collective(
        "all_reduce",
        ranks,
        count,
        holdings=tuple(Holding(rank, 0, count) for rank in range(ranks)),
        expectations=tuple(Expectation(rank, 0, count, everyone) for rank in range(ranks)),
    )


def broadcast(ranks: int, count: int, root: int) -> Collective:
    """Everybody ends with the root's elements; what the others held does not matter."""
    return Collective(
        "broadcast",
        ranks,
        count,
        holdings=(Holding(root, 0, count),),
        expectations=tuple(Expectation(rank, 0, count, 1 << root) for rank in range(ranks)),
    )


def barrier(ranks: int) -> Collective:
    """Nobody leaves before everybody has entered. No values at all."""
    everyone = (1 << ranks) - 1
    return Collective(
        "barrier",
        ranks,
        0,
        holdings=(),
        expectations=(),
        hearings=tuple(Hearing(rank, everyone) for rank in range(ranks)),
    )


def reduce(ranks: int, count: int, root: int) -> Collective:
    """The root ends with the reduction of everybody's elements; what the others hold then does not matter."""
    return Collective(
        "reduce",
        ranks,
        count,
        holdings=tuple(Holding(rank, 0, count) for rank in range(ranks)),
        expectations=(Expectation(root, 0, count, (1 << ranks) - 1),),
    )


def all_gather(parts: Sequence[int]) -> Collective:
    """Everybody ends with everybody's part."""
    everywhere = [
        Expectation(rank, start, stop, 1 << owner)
        for rank in range(len(parts))
        for owner, (start, stop) in enumerate(spans(parts))
    ]
    return Collective("all_gather", len(parts), sum(parts), _own_parts(parts), tuple(everywhere))


def reduce_scatter(parts: Sequence[int]) -> Collective:
    """Each rank ends with the reduction of everybody's elements in its part."""
    ranks, count = len(parts), sum(parts)
    return Collective(
        "reduce_scatter",
        ranks,
        count,
        holdings=tuple(Holding(rank, 0, count) for rank in range(ranks)),
        expectations=tuple(Expectation(rank, *span, (1 << ranks) - 1) for rank, span in enumerate(spans(parts))),
    )


def gather(parts: Sequence[int], root: int) -> Collective:
    """The root ends with everybody's part."""
    at_root = tuple(Expectation(root, *span, 1 << owner) for owner, span in enumerate(spans(parts)))
    return Collective("gather", len(parts), sum(parts), _own_parts(parts), at_root)


def scatter(parts: Sequence[int], root: int) -> Collective:
    """Each rank ends with its part of the root's elements."""
    return Collective(
        "scatter",
        len(parts),
        sum(parts),
        holdings=(Holding(root, 0, sum(parts)),),
        expectations=tuple(Expectation(rank, *span, 1 << root) for rank, span in enumerate(spans(parts))),
    )


def _own_parts(parts: Sequence[int]) -> tuple[Holding, ...]:
    return tuple(Holding(rank, *span) for rank, span in enumerate(spans(parts)))


def all_to_all(blocks: Sequence[Sequence[int]], stride: int) -> Collective:
    """Rank j ends with ``blocks[i][j]`` elements of each rank i. They lie at ``(i * ranks + j) * stride``."""
    ranks = len(blocks)
    at = [
        (source, target, (source * ranks + target) * stride, (source * ranks + target) * stride + size)
        for source, row in enumerate(blocks)
        for target, size in enumerate(row)
    ]
    return Collective(
        "all_to_all",
        ranks,
        ranks * ranks * stride,
        holdings=tuple(Holding(source, start, stop) for source, _, start, stop in at),
        expectations=tuple(Expectation(target, start, stop, 1 << source) for source, target, start, stop in at),
    )
