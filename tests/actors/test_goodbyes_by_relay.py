"""A rank that closes while others carry what it still owes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from r2ccl.protocol.relay import RelayedFrame, Word
from r2ccl.protocol.session_events import Withdrawn
from r2ccl.sim.world import World
from r2ccl.transport.interface import Purpose
from tests.actors.relayed_worlds import carrier, listen, part, relayed_world


@pytest.mark.parametrize("one_sided", [False, True])
def test_a_relay_that_lost_its_way_to_a_rank_that_closes_does_not_speak_for_it(one_sided: bool) -> None:
    """What that rank sent last was lost with the relay, and it waits for us: another relay brings it."""

    async def story(world: World) -> None:
        await part(world)
        by, deaf = carrier(world, 0, 1), True
        listen(world, 0, lambda frame: not (deaf and frame.word is Word.FRAME and is_bulk(frame)))
        await world.communicators[1].send(np.arange(8.0), 0)
        closing = asyncio.ensure_future(world.communicators[1].close())
        await asyncio.sleep(0.01)
        # A goodbye follows the messages before it.
        assert 1 not in world.runtimes[0]._partings._said_goodbye
        deaf = False
        received = np.zeros(8)
        world.fabric.silent_drop_link((1, 0), (by, 0))
        world.runtimes[by].ports[0].step(world.runtimes[by].ports[0].links[1, 0], Withdrawn("silence"))
        await world.communicators[0].recv(received, 1)
        assert list(received) == list(range(8))
        await asyncio.gather(closing, *(comm.close() for comm in world.communicators))

    def is_bulk(frame: RelayedFrame) -> bool:
        return frame.purpose == Purpose.BULK and frame.source == 1

    relayed_world(story, ranks=4, nics=2, one_sided=one_sided, closes=False)
