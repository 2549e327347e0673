"""In a fork of a rank's process whatever was under way ends, and says nothing: the parent goes on with it."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

from r2ccl import ANY
from r2ccl.actors.work import Work
from r2ccl.errors import CommunicatorClosed
from r2ccl.sim.world import World
from tests.simulated import simulate


def test_everything_that_is_under_way_ends_in_a_forked_child(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        comm = world.communicators[0]
        shrinking, splitting = await comm.new_group([0, 1]), await comm.new_group([0, 1])
        works: list[Work] = [
            comm.recv(np.zeros(5), ANY, 3),
            comm.recv(np.zeros(5), 1, 3),
            comm.recv(np.zeros(5), 1, 4),
            comm.send(np.zeros(100_000), 1),
            comm.all_reduce(np.ones(100_000)),
            comm.broadcast_object(None, 1),
            comm.broadcast_object(None, 1),
            shrinking.shrink(),
            shrinking.shrink(timeout=9.0),
            splitting.split(0),
        ]
        with comm.batch() as batch:
            works += [batch.all_reduce(np.ones(5)), batch.broadcast(np.ones(5), 1)]
        await asyncio.sleep(0.1)
        assert not any(work.done() for work in works)
        world.fabric.fork(0)
        comm.close_in_child()
        for work in works:
            with pytest.raises(CommunicatorClosed, match="this process is a fork"):
                await work

    simulate(story, close_timeout_s=0.1)
    gc.collect()
    assert caplog.text == ""


def test_what_nobody_awaits_in_a_forked_child_is_not_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        comm = world.communicators[0]
        group = await comm.new_group([0, 1])
        works = [comm.recv(np.zeros(5), ANY), comm.broadcast_object(None, 1), group.shrink(), comm.barrier()]
        await asyncio.sleep(0.1)
        world.fabric.fork(0)
        comm.close_in_child()
        assert all(work.done() for work in works)

    simulate(story, close_timeout_s=0.1)
    gc.collect()
    assert "nobody awaited" not in caplog.text
