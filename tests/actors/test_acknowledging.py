"""How often chunks are acknowledged."""

from __future__ import annotations

import asyncio

import numpy as np

from r2ccl.communicator import Communicator
from r2ccl.config import Settings
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World

RANKS = 4
OPERATIONS = 20
#: By the ring: six transfers from the one before, of one chunk each.
ELEMENTS = 4 * 17_000


def test_a_rank_that_sends_several_transfers_of_an_operation_is_told_when_all_are_there() -> None:
    """And no sooner, unless it asks: a frame for each would cost as much as the chunk."""

    async def main() -> None:
        world = World(Shape(RANKS, 1, settings=Settings(algorithms="all_reduce=ring")), 1)
        await world.start()
        x = [np.ones(ELEMENTS, np.float32) for _ in range(RANKS)]
        before = [_acks_sent(comm) for comm in world.communicators]
        for _ in range(OPERATIONS):
            works = [comm.all_reduce(mine) for comm, mine in zip(world.communicators, x, strict=True)]
            await asyncio.gather(*(asyncio.ensure_future(_awaited(work)) for work in works))
        for comm, at_first in zip(world.communicators, before, strict=True):
            assert _acks_sent(comm) - at_first <= 2 * OPERATIONS
        await world.close()

    run(main())


def _acks_sent(comm: Communicator) -> int:
    return int(comm.counters.snapshot()["total"]["acks_sent"])


async def _awaited(work: object) -> None:
    await work  # type: ignore[misc]
