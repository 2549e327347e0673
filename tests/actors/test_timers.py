"""Limits on what others do do not count our own absence, whoever keeps them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from r2ccl import ANY
from r2ccl.actors.messages import PeerParted
from r2ccl.actors.partings import Partings
from r2ccl.actors.timers import Timers
from r2ccl.communicator import Communicator
from r2ccl.errors import CollectiveTimeout, PeerLost
from r2ccl.sim.loop import run
from r2ccl.sim.world import World
from tests.simulated import simulate


def test_a_timer_that_counts_while_awake_waits_for_each_absence_once_more() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        timers, fired = Timers(loop), list[tuple[str, float]]()
        away_s = 0.0
        timers.away_s = lambda: away_s
        timers.after(1.0, lambda: fired.append(("after", loop.time())))
        timers.while_awake(1.0, lambda: fired.append(("awake", loop.time())))
        cancelled = timers.while_awake(1.0, lambda: fired.append(("cancelled", loop.time())))
        began = loop.time()
        await asyncio.sleep(0.5)
        away_s = 0.3
        await asyncio.sleep(0.6)
        cancelled.cancel()
        away_s = 0.5
        await asyncio.sleep(1.0)
        assert [(who, round(at - began, 6)) for who, at in fired] == [("after", 1.0), ("awake", 1.5)]
        assert len(timers) == 0

    run(main())


@pytest.mark.parametrize("count", [3, 100_000])
@pytest.mark.parametrize("source", [1, ANY], ids=["specific", "any"])
def test_a_receive_does_not_count_our_own_absence(source: int, count: int) -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        x = np.zeros(count)
        receiving = first.recv(x, source, timeout=1.0)
        await asyncio.sleep(0.5)
        world.fabric.freeze(0)
        await asyncio.sleep(1.5)
        sending = second.send(np.ones(count), 0)
        await asyncio.sleep(3.0)
        world.fabric.thaw(0)
        await asyncio.gather(receiving, sending)
        assert (x == 1).all()

    simulate(story)


def test_a_receive_of_any_that_nobody_sends_to_ends_after_its_limit_and_our_absence() -> None:
    async def story(world: World) -> None:
        first = world.communicators[0]
        receiving = first.recv(np.zeros(3), ANY, timeout=1.0)
        await asyncio.sleep(0.5)
        world.fabric.freeze(0)
        await asyncio.sleep(3.0)
        world.fabric.thaw(0)
        began_s = world.clock.now()
        with pytest.raises(CollectiveTimeout):
            await receiving
        assert world.clock.now() - began_s < 4.0

    simulate(story)


def test_who_shrinks_does_not_count_its_own_absence() -> None:
    async def story(world: World) -> None:
        first, second, third = world.communicators
        third.abort()
        for one in (first, second):
            with pytest.raises(PeerLost):
                await one.barrier()
        shrinking = first.shrink(timeout=1.0)
        await asyncio.sleep(0.5)
        world.fabric.freeze(0)
        await asyncio.sleep(4.5)
        world.fabric.thaw(0)
        await asyncio.sleep(0.1)
        other = second.shrink()
        made = await asyncio.gather(shrinking, other)
        assert all(isinstance(one, Communicator) and one.size == 2 for one in made)
        await asyncio.gather(*(one.barrier() for one in made))

    simulate(story, ranks=3)


def test_a_peer_that_said_goodbye_is_not_taken_for_cut_off_by_our_own_absence() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        away_s, told = 0.0, list[object]()
        timers = Timers(loop)
        timers.away_s = lambda: away_s
        shared: Any = SimpleNamespace(timers=timers, settings=SimpleNamespace(unreachable_after_s=2.0), peers=[1])
        courier: Any = SimpleNamespace(links_up=lambda _: [], farewells=[])
        nobody: Any = SimpleNamespace(is_needed=False)
        partings = Partings(shared, [], courier, told.append, lambda: None, nobody)
        partings.goodbye_heard(1, heard_ours=True)
        partings.paths_lost(1)
        away_s = 1.5
        await asyncio.sleep(3.4)
        assert told == []
        await asyncio.sleep(0.2)
        assert told == [PeerParted(1)]

    run(main())
