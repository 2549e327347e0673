"""A rank that dies when its operation is over here, and not yet elsewhere: who has its data needs no more of it."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest

import r2ccl
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World


async def _awaited(work: object) -> None:
    await work  # type: ignore[misc]


async def _left(world: World, x: list[np.ndarray], late: int, delay_s: float) -> tuple[int, r2ccl.Work]:
    """Two ranks call, one of them late. Whose call is over first is killed in that moment; the other, and its call."""
    works: list[r2ccl.Work] = []
    dead: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def die(rank: int) -> None:
        if not dead.done():
            dead.set_result(rank)
            world.fabric.kill(rank)

    for rank in (1 - late, late):
        works.append(world.communicators[rank].all_reduce(x[rank]))
        works[-1].when_done(partial(die, rank))
        if rank != late:
            await asyncio.sleep(delay_s)
    left = 1 - await dead
    return left, works[left == late]


@pytest.mark.parametrize("one_node", [False, True])
@pytest.mark.parametrize("nics", [1, 2])
@pytest.mark.parametrize("elements", [70_000, 300_000])  # acknowledged, and sent from the caller's memory
def test_who_has_everything_of_a_rank_that_died_ends_well(elements: int, nics: int, one_node: bool) -> None:
    async def main(late: int, delay_s: float) -> None:
        world = World(Shape(2, nics, one_node=one_node))
        await world.start()
        x = [np.ones(elements, np.float32) for _ in range(2)]
        left, work = await _left(world, x, late, delay_s)
        await asyncio.ensure_future(_awaited(work))
        assert x[left].tolist() == [2.0] * elements
        with pytest.raises(r2ccl.PeerLost):
            await asyncio.ensure_future(_awaited(world.communicators[left].all_reduce(x[left])))
        await world.close()

    for late in (0, 1):
        for delay_s in (0.0, 1e-4, 3e-4, 1e-2):
            run(main(late, delay_s))


def test_what_only_sends_does_not_end_well_when_its_target_dies() -> None:
    async def main() -> None:
        world = World(Shape(2, 1))
        await world.start()
        x = np.ones(7_000_000, np.float32)
        sent = asyncio.ensure_future(_awaited(world.communicators[0].send(x, 1)))
        world.communicators[1].recv(np.empty_like(x), 0).hush()
        await asyncio.sleep(1e-3)
        assert not sent.done()
        world.fabric.kill(1)
        with pytest.raises(r2ccl.PeerLost):
            await sent
        await world.close()

    run(main())


def test_what_a_callback_raises_then_keeps_nobody_from_hearing_of_the_death() -> None:
    async def main() -> None:
        world = World(Shape(2, 1))
        await world.start()
        raised: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: raised.append(str(context.get("exception"))))

        def careless() -> None:
            raise ValueError("careless")

        left, work = await _left(world, [np.ones(300_000, np.float32) for _ in range(2)], 1, 0.01)
        assert not work.done()
        work.when_done(careless)
        with pytest.raises(r2ccl.PeerLost):
            await asyncio.ensure_future(_awaited(world.communicators[left].all_reduce(np.ones(1))))
        assert raised == ["careless"]
        await world.close()

    run(main())
