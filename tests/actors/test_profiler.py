"""A lane that a bad moment made look slow is found out again."""

from __future__ import annotations

import asyncio

import numpy as np

from r2ccl.sim.world import World
from tests.simulated import simulate, together


def test_a_lane_with_a_bad_estimate_gets_its_share_back():
    async def story(world: World) -> None:
        forgotten = world.runtimes[0].courier.lanes[1][0]
        forgotten.rate.bytes_s = forgotten.pace = 1.0
        counters = world.communicators[0].counters.link(0, 1)
        arrays = [np.ones(1 << 20, np.int32) for _ in range(2)]

        async def a_while(seconds: float) -> int:
            before, end = counters.sent_chunks, world.loop.time() + seconds
            while world.loop.time() < end:
                await together(world, lambda comm: comm.all_reduce(arrays[comm.rank]))
                await asyncio.sleep(0.01)
            return counters.sent_chunks - before

        await a_while(4.5)
        assert forgotten.bandwidth > 1e8
        other = world.communicators[0].counters.link(1, 1)
        before = other.sent_chunks
        share = await a_while(1)
        assert share > 0.3 * (share + other.sent_chunks - before)

    simulate(story)
