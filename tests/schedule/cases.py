"""Shapes to try algorithms with: parts even, uneven and empty, from every root that matters."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

from r2ccl.schedule.algorithms import IN_PARTS, Algorithm
from r2ccl.schedule.ir import Program, Receive, Send, Shape, segments
from r2ccl.schedule.semantics import Collective, broadcast

BIG = 1 << 40  # proofs look at segments, not at elements, so this costs no more


def name_of(known: Algorithm) -> str:
    """For the names of tests."""
    return f"{known.collective}-{known.name}"


def has_root(known: Algorithm) -> bool:
    return known.collective in ("broadcast", "reduce", "gather", "scatter")


def takes_equal_blocks_only(known: Algorithm) -> bool:
    return name_of(known) == "all_to_all-bruck"


def even(known: Algorithm, ranks: int, count: int, root: int = 0) -> list[Shape]:
    """The shapes of all ranks for ``count`` elements, cut as evenly as possible. All_to_all has so many a rank."""
    if known.collective == "barrier":
        return [Shape(0, root)] * ranks
    if known.collective not in IN_PARTS:
        return [Shape(count, root)] * ranks
    return from_parts(known, [stop - start for start, stop in segments(count, ranks)], root)


def from_parts(known: Algorithm, parts: Sequence[int], root: int = 0) -> list[Shape]:
    """The shapes of all ranks. In an all_to_all each of the sizes is that of one block of each rank."""
    ranks = len(parts)
    if known.collective != "all_to_all":
        return [Shape.in_parts(parts, root)] * ranks
    if takes_equal_blocks_only(known):
        parts = [max(parts)] * ranks
    rows = [[parts[(source + 2 * target) % ranks] for target in range(ranks)] for source in range(ranks)]
    return [
        Shape.in_blocks(rows[rank], [row[rank] for row in rows], stride=max(max(row) for row in rows))
        for rank in range(ranks)
    ]


#: Even and uneven nodes, ranks in order and not; the last is one node alone.
LAYOUTS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((0, 1), (2, 3)),
    ((0, 1, 2), (3,)),
    ((0,), (1, 2, 3)),
    ((0, 2), (1, 3)),
    ((0, 1), (2, 3), (4,)),
    ((0, 1, 2), (3, 4)),
    ((0, 1, 2, 3, 4), (5, 6)),
    ((0, 3, 5), (1,), (2, 4, 6, 7)),
    ((0, 1, 2), (3, 4, 5), (6, 7, 8)),
    tuple(tuple(range(first, first + 4)) for first in range(0, 16, 4)),
    ((0, 1, 2),),
)


def on_nodes(shapes: Sequence[Shape], nodes: tuple[tuple[int, ...], ...]) -> list[Shape]:
    """The same, for ranks that share nodes."""
    return [dataclasses.replace(shape, nodes=nodes) for shape in shapes]


def cases(known: Algorithm, ranks: int, root: int = 0) -> Iterator[list[Shape]]:
    """Many shapes: few and many elements, and parts of all sorts."""
    for count in sorted({0, 1, 2, ranks - 1, ranks, ranks + 1, 3 * ranks + 1, 1001, BIG}):
        yield even(known, ranks, count, root)
    if known.collective in IN_PARTS and not takes_equal_blocks_only(known):
        generator = random.Random(ranks)
        yield from_parts(known, [3] * ranks, root)
        yield from_parts(known, list(range(ranks)), root)
        for alone in sorted({0, ranks // 2, ranks - 1}):
            yield from_parts(known, [7 * (rank == alone) for rank in range(ranks)], root)
            yield from_parts(known, [7 * (rank != alone) for rank in range(ranks)], root)
        for _ in range(2):
            yield random_parts(known, ranks, 9, root, generator)


def random_parts(known: Algorithm, ranks: int, most: int, root: int, generator: random.Random) -> list[Shape]:
    return from_parts(known, [generator.choice([0, generator.randint(0, most)]) for _ in range(ranks)], root)


def signalled_relay() -> tuple[list[Program], Collective]:
    """Rank 0 passes on what rank 1 sent it, after a signal that rank 1 gives when it has heard of its arrival."""
    programs = [
        Program(
            0,
            4,
            (Send(1, 1, 0, 0, (0,)), Send(3, 2, 0, 4, (1,), needs_ack=True)),
            (Receive(0, 1, 0, 4), Receive(2, 1, 0, 0)),
        ),
        Program(1, 4, (Send(0, 0, 0, 4), Send(2, 0, 0, 0, (0,), needs_ack=True)), (Receive(1, 0, 0, 0),)),
        Program(2, 4, (), (Receive(3, 0, 0, 4),)),
    ]
    return programs, broadcast(3, 4, 1)
