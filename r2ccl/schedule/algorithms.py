"""Every algorithm by name, with the collective that it is for: the one list that planner, commands and tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from r2ccl.schedule import barrier, broadcast, halving_doubling, recursive_doubling, ring, semantics
from r2ccl.schedule.ir import Program

#: (ranks, rank, count, root) to that rank's program, without building any other's. Who has no root ignores it.
Build = Callable[[int, int, int, int], Program]

#: (ranks, count, root) to what the collective means.
Means = Callable[[int, int, int], semantics.Collective]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to do one collective."""

    name: str
    collective: str
    build: Build
    means: Means

    def all_programs(self, ranks: int, count: int, root: int = 0) -> list[Program]:
        """The whole schedule, for those who look at it from outside: checks, simulators, people."""
        return [self.build(ranks, rank, count, root) for rank in range(ranks)]


def _all_reduce(name: str, build: Callable[[int, int, int], Program]) -> Algorithm:
    return Algorithm(
        name,
        "all_reduce",
        lambda ranks, rank, count, root: build(ranks, rank, count),
        lambda ranks, count, root: semantics.all_reduce(ranks, count),
    )


ALGORITHMS: tuple[Algorithm, ...] = (
    _all_reduce("recursive_doubling", recursive_doubling.all_reduce),
    _all_reduce("halving_doubling", halving_doubling.all_reduce),
    _all_reduce("ring", ring.all_reduce),
    Algorithm("binomial", "broadcast", broadcast.binomial, semantics.broadcast),
    Algorithm("chain", "broadcast", broadcast.chain, semantics.broadcast),
    Algorithm(
        "dissemination",
        "barrier",
        lambda ranks, rank, count, root: barrier.dissemination(ranks, rank),
        lambda ranks, count, root: semantics.barrier(ranks),
    ),
)


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name. Raises ``ValueError``."""
    for known in ALGORITHMS:
        if known.name == name:
            return known
    raise ValueError(f"no algorithm is called {name!r}; there are {', '.join(known.name for known in ALGORITHMS)}")
