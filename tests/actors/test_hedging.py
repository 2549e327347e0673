"""Twins in a whole world: a slow path is overtaken, a lost one loses nothing, and nothing is counted twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from r2ccl.sim.world import World
from tests.simulated import simulate, together

SLOW_BYTES_S = 20e6
ELEMENTS = 1 << 20


async def reduce_while(world: World, meanwhile: Callable[[], Any]) -> float:
    """An all-reduce over two paths, one of them slow from now on; ``meanwhile`` is called each millisecond. Returns
    how long it took."""
    world.fabric.path((0, 0), (1, 0)).bandwidth_bytes_s = SLOW_BYTES_S
    arrays = [np.arange(ELEMENTS, dtype=np.int64) + rank for rank in range(2)]
    began_s = world.loop.time()
    reduction = asyncio.ensure_future(together(world, lambda comm: comm.all_reduce(arrays[comm.rank])))
    while not reduction.done():
        meanwhile()
        await asyncio.sleep(0.001)
    await reduction
    for array in arrays:
        np.testing.assert_array_equal(array, 2 * np.arange(ELEMENTS, dtype=np.int64) + 1)
    return world.loop.time() - began_s


def owed(world: World) -> int:
    return sum(
        len(lane.outstanding) + lane.outstanding_bytes
        for runtime in world.runtimes
        for lanes in runtime.courier.lanes.values()
        for lane in lanes
    )


async def until_nothing_is_owed(world: World) -> None:
    await asyncio.sleep(1.0)
    assert owed(world) == 0
    assert all(runtime.courier.hedger.remembered == 0 for runtime in world.runtimes)
    assert all(runtime.courier.unsettled == 0 for runtime in world.runtimes)


def hedge(world: World) -> Callable[[], None]:
    courier = world.runtimes[0].courier
    slow = next(lane for lane in courier.lanes[1] if lane.link is not None and lane.link.id.local_nic == 0)

    def suspect() -> None:
        """From when it has something on, and again and again, as the health monitor does."""
        if slow.outstanding or slow.is_diverted:
            slow.is_diverted = slow.link.is_late = True
            courier.hedge(slow)

    return suspect


def test_hedging_shortens_an_operation_that_waits_for_a_slow_path() -> None:
    took_s: list[float] = []

    async def plain(world: World) -> None:
        took_s.append(await reduce_while(world, lambda: None))

    async def hedged(world: World) -> None:
        took_s.append(await reduce_while(world, hedge(world)))
        counters = world.communicators[0].counters
        hedger = world.runtimes[0].courier.hedger
        assert hedger.hedged_bytes > 0
        assert counters.link(1, 1).resent_bytes == hedger.hedged_bytes
        assert counters.link(0, 1).resent_bytes == 0
        await until_nothing_is_owed(world)

    simulate(plain)
    simulate(hedged)
    assert took_s[1] < 0.7 * took_s[0]


def test_a_suspect_that_dies_with_its_chunks_hedged_loses_nothing() -> None:
    async def story(world: World) -> None:
        send = hedge(world)
        was_cut = False

        def meanwhile() -> None:
            nonlocal was_cut
            send()
            if not was_cut and world.runtimes[0].courier.hedger.remembered > 0:
                was_cut = True
                world.fabric.cut((0, 0))

        await reduce_while(world, meanwhile)
        assert was_cut
        await until_nothing_is_owed(world)

    simulate(story)


def test_a_path_that_dies_with_the_twins_leaves_the_chunks_to_the_suspect() -> None:
    async def story(world: World) -> None:
        send = hedge(world)
        looks = 0

        def meanwhile() -> None:
            nonlocal looks
            looks += 1
            if looks == 5:
                send()
                assert world.runtimes[0].courier.hedger.remembered > 0
                world.fabric.silent_drop((0, 1))

        await reduce_while(world, meanwhile)
        await until_nothing_is_owed(world)

    simulate(story)


def test_an_operation_that_fails_with_twins_on_their_way_leaves_nothing_behind() -> None:
    async def story(world: World) -> None:
        world.fabric.path((0, 0), (1, 0)).bandwidth_bytes_s = SLOW_BYTES_S
        arrays = [np.ones(ELEMENTS) for _ in range(2)]
        running = asyncio.ensure_future(world.communicators[0].all_reduce(arrays[0]))
        other = asyncio.ensure_future(world.communicators[1].all_reduce(arrays[1]))
        await asyncio.sleep(0.004)
        hedge(world)()
        assert world.runtimes[0].courier.hedger.remembered > 0
        world.fabric.kill(1)
        await asyncio.wait([running], timeout=20)
        assert running.exception() is not None
        assert world.runtimes[0].courier.unsettled == 0
        assert all(not lane.outstanding_bytes for lane in world.runtimes[0].courier.lanes[1])
        assert world.runtimes[0].courier.hedger.remembered == 0
        other.cancel()

    simulate(story)


def test_one_sided_writes_are_not_hedged() -> None:
    async def story(world: World) -> None:
        await reduce_while(world, hedge(world))
        assert world.runtimes[0].courier.hedger.hedged_bytes == 0

    simulate(story, one_sided=True)


def test_a_suspicion_ends_also_when_nothing_is_owed_any_more() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(0.3)
        runtime = world.runtimes[0]
        lane = runtime.courier.lanes[1][0]
        lane.link.is_late = lane.is_diverted = True
        assert not lane.outstanding
        assert not lane.link.watched
        runtime.health.look_closely()
        await asyncio.sleep(0.1)
        assert not lane.link.is_late
        assert not lane.is_diverted

    simulate(story)


def test_a_lane_that_leaves_its_link_gets_no_twins() -> None:
    async def story(world: World) -> None:
        send = hedge(world)
        other = next(lane for lane in world.runtimes[0].courier.lanes[1] if lane.link.id.local_nic == 1)

        def leaving() -> None:
            other.is_leaving = True
            send()
            other.is_leaving = False

        await reduce_while(world, leaving)
        assert world.runtimes[0].courier.hedger.hedged_bytes == 0

    simulate(story)
