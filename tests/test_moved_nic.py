"""A NIC that is given another address is the same NIC: its links come back there."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from r2ccl.sim.world import World
from tests.simulated import simulate, together


@pytest.mark.parametrize("mover", [0, 1], ids=["who dials", "who is dialled"])
@pytest.mark.parametrize("one_sided", [False, True], ids=["two-sided", "one-sided"])
def test_a_nic_that_lost_its_address_carries_again_at_another(mover, one_sided):
    async def story(world: World) -> None:
        runtime = world.runtimes[mover]
        world.fabric.silent_drop((mover, 0))  # without an address nobody reaches it
        runtime.nic_changed(0, False, "address")
        await asyncio.sleep(0.5)
        assert "nic0->" not in "".join(str(link.id) for link in runtime.courier.links_up(1 - mover))
        old = runtime.ports[0].nic.endpoint
        world.fabric.restore((mover, 0))
        runtime.nic_moved(0, "elsewhere", "eth2", up=True)
        await asyncio.sleep(2)
        assert runtime.courier.moved[0].host == "elsewhere"
        assert runtime.courier.moved[0] != old
        other = world.runtimes[1 - mover]
        assert other.shared.endpoint(mover, 0) == runtime.courier.moved[0]
        for side, peer in ((runtime, 1 - mover), (other, mover)):
            assert {str(link.id) for link in side.courier.links_up(peer)} >= {f"nic0->rank{peer}.nic0"}
        arrays = [np.full(200_000, rank + 1, np.int32) for rank in range(2)]
        await together(world, lambda comm: comm.all_reduce(arrays[comm.rank]))
        assert all((array == 3).all() for array in arrays)
        assert all(comm.counters.link(0, 1 - comm.rank).received_bytes for comm in world.communicators)

    simulate(story, one_sided=one_sided)


def test_a_notice_of_a_nic_that_was_never_announced_is_ignored():
    async def story(world: World) -> None:
        world.runtimes[0].courier.moved[7] = world.runtimes[0].ports[0].nic.endpoint
        world.runtimes[0].courier.notify(1)
        await asyncio.sleep(0.1)
        assert not world.runtimes[1].shared.moved

    simulate(story)
