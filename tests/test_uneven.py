"""Uneven all-to-alls in which one rank sends what the other does not expect: both are told, nobody waits for ever."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from r2ccl.actors.work import Work
from r2ccl.errors import CollectiveMismatch, R2cclError
from r2ccl.sim.world import World
from tests.simulated import simulate


async def outcome(work: Work) -> object:
    try:
        return await work
    except R2cclError as error:
        return error


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("late", [0.0, 0.1], ids=["sender late", "receiver late"])
@pytest.mark.parametrize(
    ("sent", "expected"),
    [(100_000, 0), (0, 100_000), (100_000, 10), (100_000, 20_000), (20_000, 100_000), (5, 0), (0, 5), (1_000_000, 0)],
)
def test_blocks_that_one_sends_and_another_does_not_expect_are_a_mismatch(
    sent: int, expected: int, late: float, one_sided: bool
) -> None:
    """``sent`` by rank 0 to rank 1, which expects so many."""

    async def story(world: World) -> None:
        async def call(rank: int, out_counts: list[int], counts: list[int]) -> object:
            await asyncio.sleep(late if rank else 0.1 - late)
            comm = world.communicators[rank]
            work = comm.all_to_all(np.zeros(sum(out_counts)), np.ones(sum(counts)), out_counts, counts)
            return await outcome(work)

        errors = await asyncio.wait_for(
            asyncio.gather(
                call(0, [1, 2, 3], [1, sent, 3]),
                call(1, [expected, 1, 1], [2, 1, 1]),
                call(2, [3, 1, 1], [3, 1, 1]),
            ),
            5.0,
        )
        assert isinstance(errors[1], CollectiveMismatch), errors
        # What was little went out from a copy; whoever has ended well by then hears of it with the next call.
        await asyncio.sleep(1.0)
        for comm in world.communicators:
            with pytest.raises(CollectiveMismatch):
                comm.barrier()

    simulate(story, ranks=3, one_sided=one_sided)


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("elements", [0, 10, 20_000, 200_000])
def test_blocks_of_any_size_beside_empty_ones_arrive(elements: int, one_sided: bool) -> None:
    async def story(world: World) -> None:
        sizes = [[0, elements, 0], [elements, 1, elements], [7, 0, elements]]
        outs = [np.zeros(sum(row[rank] for row in sizes)) for rank in range(3)]
        works = [
            comm.all_to_all(
                outs[comm.rank],
                np.full(sum(sizes[comm.rank]), comm.rank + 1.0),
                [row[comm.rank] for row in sizes],
                sizes[comm.rank],
            )
            for comm in world.communicators
        ]
        for work in works:
            await asyncio.wait_for(work, 5.0)
        for rank, out in enumerate(outs):
            right = np.concatenate([np.full(sizes[source][rank], source + 1.0) for source in range(3)])
            assert (out == right).all()

    simulate(story, ranks=3, one_sided=one_sided)
