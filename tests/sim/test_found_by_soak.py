"""What an hour of virtual time found, each as a world of its own: seeds change, these do not."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from r2ccl.communicator import Communicator
from r2ccl.errors import PeerLost
from r2ccl.protocol.wire import Kind
from r2ccl.sim.gauges import timers_by_purpose
from r2ccl.sim.world import World
from r2ccl.vocabulary import ANY
from tests.simulated import simulate, together

MESSAGES = 4


@pytest.mark.parametrize("of_a_group", [True, False])
@pytest.mark.parametrize("nic", [0, 1])
def test_a_goodbye_does_not_overtake_the_messages_before_it(nic: int, of_a_group: bool) -> None:
    """Small messages end when they are copied. One was lost with its path, the goodbye came by the other, and a receive
    from any, which knows no channel before something of it comes, was told that nobody sends to it."""

    async def story(world: World) -> None:
        got: list[int] = []

        async def handle(rank: int) -> Communicator:
            comm = world.communicators[rank]
            return await comm.new_group([0, 1]) if of_a_group else comm

        async def sender() -> None:
            comm = await handle(0)
            await asyncio.sleep(0.1)
            world.fabric.silent_drop((0, nic))
            for number in range(MESSAGES):
                # With tags of their own, so that none tells of another's channel.
                await comm.send(np.array([number], np.int64), 1, tag=number)
            await comm.close()

        async def receiver() -> None:
            comm = await handle(1)
            receives: list[Any] = [comm.recv(np.zeros(1, np.int64), ANY, tag=number) for number in range(MESSAGES)]
            got.extend([int((await receive)[0]) for receive in receives])
            await comm.close()

        async with asyncio.timeout(30):
            await asyncio.gather(sender(), receiver())
        assert got == list(range(MESSAGES))
        world.fabric.restore((0, nic))

    simulate(story)


def test_a_message_that_nobody_takes_does_not_keep_its_sender_from_leaving() -> None:
    """What is beyond the peer's credit is not sent, and is not waited for."""

    async def story(world: World) -> None:
        group, other = [await comm.new_group([0, 1]) for comm in world.communicators]
        for tag in range(4):
            await group.send(np.zeros(200, np.int64), 1, tag=tag)
        began = world.loop.time()
        await group.close()
        assert world.loop.time() - began < 0.1
        await other.close()

    simulate(story, credit_bytes=3000, chunk_bytes=2048)


def test_a_receive_from_any_still_hears_that_all_have_left() -> None:
    async def story(world: World) -> None:
        group, other = [await comm.new_group([0, 1]) for comm in world.communicators]
        receive = other.recv(np.zeros(1), ANY, tag=3)
        await group.close()
        with pytest.raises(PeerLost, match="they closed"):
            async with asyncio.timeout(5):
                await receive

    simulate(story)


def test_a_goodbye_that_is_said_again_after_all_have_left_leaves_nothing() -> None:
    """It was taken for news of a communicator that is known, and left an entry for ever: one for each goodbye that was
    lost with its path."""

    async def story(world: World) -> None:
        async def use(comm: Communicator) -> int:
            group = await comm.new_group([0, 1])
            await group.all_reduce(np.ones(10))
            number: int = group._coordinator.communicator
            await group.close()
            return number

        number, _ = await together(world, use)
        await asyncio.sleep(1.0)
        (runtime, _), (_, other) = world.runtimes, world.runtimes
        assert number not in runtime.communicators.coordinators
        assert number not in runtime.courier.outboxes[1]._entered
        other.courier.tell(0, Kind.GOODBYE, [number, 1, 0])
        await asyncio.sleep(1.0)
        assert number not in runtime.courier.outboxes[1]._entered

    simulate(story)


def test_a_link_that_flaps_leaves_no_timers_behind() -> None:
    """Each flap left one, for as long as its quiet time would have taken: a minute in the end."""

    async def story(world: World) -> None:
        most = 0
        for number in range(40):
            world.fabric.cut((0, 1))
            await asyncio.sleep(0.05)
            world.fabric.restore((0, 1))
            await asyncio.sleep(0.05 + 0.05 * number)
            most = max(most, timers_by_purpose(world.runtimes)["timer Port._timer_fired"])
        assert most <= sum(len(port.links) for runtime in world.runtimes for port in runtime.ports)
        await asyncio.sleep(120.0)

    simulate(story, stable_s=60.0, quiet_max_s=60.0)
