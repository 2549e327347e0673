"""Every algorithm by collective and name: the one list that planner, commands and tests share.

Names are unique within a collective: there are a ring for all_reduce, one for all_gather and one for reduce_scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from r2ccl.schedule import (
    barrier,
    broadcast,
    bruck,
    direct,
    halving_doubling,
    hierarchical,
    recursive_doubling,
    reduce,
    ring,
    semantics,
    subtrees,
)
from r2ccl.schedule.ir import Program, Shape

#: (ranks, rank, shape) to that rank's program, without building any other's.
Build = Callable[[int, int, Shape], Program]

#: The collectives that need ``Shape.parts``, one for each rank.
IN_PARTS = frozenset({"all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"})


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to do one collective."""

    collective: str
    name: str
    program: Build
    #: Whether its programs send from copies: never to be used for messages above the eager limit.
    sends_from_copies: bool = False

    def build(self, ranks: int, rank: int, shape: Shape) -> Program:
        """The program of ``rank`` among so many. Raises ``ValueError`` for a shape that does not fit."""
        if not 0 <= shape.root < ranks:
            raise ValueError(f"root {shape.root} of {ranks} ranks")
        if self.collective in IN_PARTS and len(shape.parts) != ranks:
            raise ValueError(f"{self.collective} of {ranks} ranks has {len(shape.parts)} parts")
        if self.collective == "all_to_all" and len(shape.out_parts) != ranks:
            raise ValueError(f"all_to_all of {ranks} ranks receives from {len(shape.out_parts)}")
        if shape.nodes and sorted(rank for node in shape.nodes for rank in node) != list(range(ranks)):
            raise ValueError(
                f"nodes of {[len(node) for node in shape.nodes]} ranks do not have each of {ranks} ranks once"
            )
        return self.program(ranks, rank, shape)

    def all_programs(self, shapes: Sequence[Shape]) -> list[Program]:
        """The whole schedule, for those who look at it from outside: checks, simulators, people.

        There is one shape for each rank. Except for all_to_all, where each rank knows its own blocks, all are equal.
        """
        return [self.build(len(shapes), rank, shape) for rank, shape in enumerate(shapes)]

    def means(self, shapes: Sequence[Shape]) -> semantics.Collective:
        """What the collective means for ranks that have these shapes."""
        return meaning(self.collective, shapes)


def meaning(collective: str, shapes: Sequence[Shape]) -> semantics.Collective:
    """What a collective means for ranks that have these shapes. Raises ``ValueError`` if they do not fit together."""
    if collective == "all_to_all":
        return _meaning_of_all_to_all(shapes)
    ranks, shape = len(shapes), shapes[0]
    if any(other != shape for other in shapes):
        raise ValueError(f"shapes of {collective} differ between ranks")
    match collective:
        case "all_reduce":
            return semantics.all_reduce(ranks, shape.count)
        case "broadcast":
            return semantics.broadcast(ranks, shape.count, shape.root)
        case "barrier":
            return semantics.barrier(ranks)
        case "reduce":
            return semantics.reduce(ranks, shape.count, shape.root)
    return _meaning_in_parts(collective, ranks, shape)


def _meaning_in_parts(collective: str, ranks: int, shape: Shape) -> semantics.Collective:
    match collective:
        case "all_gather":
            return semantics.all_gather(shape.parts)
        case "reduce_scatter":
            return semantics.reduce_scatter(shape.parts)
        case "gather":
            return semantics.gather(shape.parts, shape.root)
        case "scatter":
            return semantics.scatter(shape.parts, shape.root)
    raise ValueError(f"no collective is called {collective!r}")


def _meaning_of_all_to_all(shapes: Sequence[Shape]) -> semantics.Collective:
    for source, row in enumerate(shapes):
        for target, column in enumerate(shapes):
            if row.parts[target] != column.out_parts[source] or row.block_stride != column.block_stride:
                raise ValueError(f"ranks {source} and {target} differ about the block from {source} to {target}")
    return semantics.all_to_all([shape.parts for shape in shapes], shapes[0].block_stride)


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("all_reduce", "recursive_doubling", recursive_doubling.all_reduce, sends_from_copies=True),
    Algorithm("all_reduce", "hierarchical", hierarchical.all_reduce),
    Algorithm("all_reduce", "halving_doubling", halving_doubling.all_reduce),
    Algorithm("all_reduce", "ring", ring.all_reduce),
    Algorithm("broadcast", "hierarchical", hierarchical.broadcast),
    Algorithm("broadcast", "binomial", broadcast.binomial),
    Algorithm("broadcast", "chain", broadcast.chain),
    Algorithm("barrier", "dissemination", barrier.dissemination),
    Algorithm("reduce", "binomial", reduce.binomial),
    Algorithm("reduce", "chain", reduce.chain),
    Algorithm("all_gather", "bruck", bruck.all_gather, sends_from_copies=True),
    Algorithm("all_gather", "hierarchical", hierarchical.all_gather),
    Algorithm("all_gather", "ring", ring.all_gather),
    Algorithm("reduce_scatter", "direct", direct.reduce_scatter),
    Algorithm("reduce_scatter", "hierarchical", hierarchical.reduce_scatter),
    Algorithm("reduce_scatter", "ring", ring.reduce_scatter),
    Algorithm("gather", "binomial", subtrees.gather, sends_from_copies=True),
    Algorithm("gather", "direct", direct.gather),
    Algorithm("scatter", "binomial", subtrees.scatter, sends_from_copies=True),
    Algorithm("scatter", "direct", direct.scatter),
    Algorithm("all_to_all", "bruck", bruck.all_to_all, sends_from_copies=True),
    Algorithm("all_to_all", "direct", direct.all_to_all),
)


def algorithm(collective: str, name: str) -> Algorithm:
    """The algorithm of that name for that collective. Raises ``ValueError``."""
    names = [known.name for known in ALGORITHMS if known.collective == collective]
    for known in ALGORITHMS:
        if (known.collective, known.name) == (collective, name):
            return known
    raise ValueError(f"no algorithm for {collective} is called {name!r}; there are {', '.join(names) or 'none'}")
