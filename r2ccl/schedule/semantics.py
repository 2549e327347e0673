"""What each collective means, as data: who holds what before, who must hold what after, who must have heard from whom.

A value is described by its *contributors*: the ranks whose initial elements at the same position went into it, each
exactly once, as a bit mask. That says everything about a sum and nothing about its order; that all ranks add in the
same order, so that their bits agree, is asked for whatever the collective (``schedule.check``).

A further collective is one more function here. Reduce would expect all contributors on the root alone; all-gather in
one buffer would hold rank i's segment on rank i alone and expect all segments everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass


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
