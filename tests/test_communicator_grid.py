"""Every collective against numpy: ranks 1 to 8, from nothing to several chunks, every root, every dtype and op."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from r2ccl.communicator import Communicator
from r2ccl.sim.world import World
from tests.simulated import simulate, together
from tests.surface import Surface, run_dtypes, run_sizes


@pytest.mark.parametrize("one_sided", [False, True], ids=["two_sided", "one_sided"])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_collective_is_right_at_every_size_and_from_every_root(ranks: int, one_sided: bool) -> None:
    async def story(world: World) -> None:
        made = await together(world, lambda c: run_sizes(Surface(c)))
        assert len(set(made)) == 1
        assert made[0] > 60

    simulate(story, ranks, one_sided=one_sided)


@pytest.mark.parametrize("one_sided", [False, True], ids=["two_sided", "one_sided"])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_dtype_and_op_gives_numpys_bits_on_all_ranks(ranks: int, one_sided: bool) -> None:
    async def story(world: World) -> None:
        counts = (1, 101) if ranks <= 4 and not one_sided else (101,)
        made = await together(world, lambda c: run_dtypes(Surface(c), counts))
        assert len(set(made)) == 1
        assert made[0] > 700

    simulate(story, ranks, one_sided=one_sided)


def test_nobody_leaves_a_barrier_before_all_have_entered() -> None:
    async def story(world: World) -> None:
        entered: list[int] = []

        async def enter(communicator: Communicator) -> None:
            await asyncio.sleep(communicator.rank * 0.01)
            entered.append(communicator.rank)
            await communicator.barrier()
            assert len(entered) == world.shape.ranks

        await together(world, enter)

    simulate(story, ranks=5)


def test_many_operations_in_flight_each_keep_their_own_bytes() -> None:
    async def story(world: World) -> None:
        arrays = [[np.full(3000 * (k % 5), rank + k, np.int32) for k in range(40)] for rank in range(3)]
        works = [[c.all_reduce(x) for x in arrays[c.rank]] for c in world.communicators]
        for row in works:
            for k, work in enumerate(row):
                assert np.all(await work == 3 * k + 3)

    simulate(story, ranks=3)
