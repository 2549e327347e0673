"""Ranks that have not the same number of NICs, and links that are all that is left: some lane takes them."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from r2ccl.actors.first_dials import LATE_LINKS_S
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Device
from tests.simulated import together


class Unlike(World):
    """Rank 0 has two NICs, every other rank as many as the shape says."""

    def _devices(self, rank: int) -> list[Device]:
        count = 2 if rank == 0 else self.shape.nics
        nics = [Nic(index, f"nic{index}", Endpoint("memory", f"rank{rank}", index)) for index in range(count)]
        return [self.fabric.device(nic, rank, rank + 1) for nic in nics]


def bound(world: World, rank: int, peer: int) -> set[tuple[int, int]]:
    links = [lane.link for lane in world.runtimes[rank].courier.lanes[peer] if lane.link is not None]
    return {(link.id.local_nic, link.id.remote_nic) for link in links}


async def all_reduce(world: World) -> None:
    arrays = await together(world, lambda comm: comm.all_reduce(np.ones(1 << 18, np.float32)))
    assert all(np.all(array == len(world.runtimes)) for array in arrays)


def test_a_spare_serves_from_the_start_where_nothing_else_came() -> None:
    async def main() -> None:
        world = World(Shape(ranks=2, nics=1, spares=1))
        world.fabric.silent_drop_link((0, 0), (1, 0))
        await world.start()
        await asyncio.sleep(LATE_LINKS_S)
        assert bound(world, 0, 1) == bound(world, 1, 0) == {(1, 1)}
        await all_reduce(world)
        await world.close()

    run(main())


@pytest.mark.parametrize("nics", [3, 4])
def test_a_nic_that_comes_back_carries_again_where_the_peer_has_more_nics(nics: int) -> None:
    async def main() -> None:
        world = Unlike(Shape(ranks=2, nics=nics))
        await world.start()
        before = bound(world, 0, 1)
        assert {local for local, _ in before} == {0, 1}
        for nic in (0, 1):
            world.fabric.cut((0, nic))
            await asyncio.sleep(1.0)
            await all_reduce(world)
            assert {local for local, _ in bound(world, 0, 1)} == {1 - nic}
            world.fabric.restore((0, nic))
            await asyncio.sleep(5.0)
            await all_reduce(world)
            assert {local for local, _ in bound(world, 0, 1)} == {0, 1}
        await world.close()

    run(main())


def test_a_lane_that_was_left_without_a_link_hears_of_one_that_another_s_loss_made_useful() -> None:
    async def main() -> None:
        world = World(Shape(ranks=2, nics=2))
        await world.start()
        await asyncio.sleep(1.0)
        for nic in (0, 1):
            world.fabric.silent_drop_link((0, nic), (1, nic))
            for _ in range(20):
                await all_reduce(world)
                await asyncio.sleep(0.1)
        assert bound(world, 0, 1) == bound(world, 1, 0) == {(0, 1), (1, 0)}
        await world.close()

    run(main())
