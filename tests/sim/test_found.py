"""What the swarm found in calls of several communicators, each as a world of its own: seeds change, these do not."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from r2ccl.actors.messages import PeerGone
from r2ccl.communicator import Communicator
from r2ccl.errors import PeerLost, R2cclError
from r2ccl.sim.checkers import kept
from r2ccl.sim.world import World
from r2ccl.vocabulary import ANY
from tests.simulated import simulate

ELEMENTS = 1 << 20


def ones(count: int = ELEMENTS) -> Any:
    return np.ones(count, np.float32)


@pytest.mark.parametrize("nics", [1, 2])
def test_what_came_for_a_group_to_come_does_not_fill_the_lane(nics: int) -> None:
    """Without an acknowledgement it did, and the operation that the group's making waited for came no more."""

    async def story(world: World) -> None:
        async def early(comm: Communicator) -> None:
            group = await comm.new_group([0, 1])
            of_group, x = group.all_reduce(ones()), ones()
            await comm.all_reduce(x)
            await of_group
            assert np.all(x == 2)

        async def late(comm: Communicator) -> None:
            await comm.all_reduce(ones())
            group, x = await comm.new_group([0, 1]), ones()
            await group.all_reduce(x)
            assert np.all(x == 2)

        async with asyncio.timeout(30):
            await asyncio.gather(early(world.communicators[0]), late(world.communicators[1]))

    simulate(story, nics=nics)


@pytest.mark.parametrize("cut", [False, True])
def test_what_came_for_a_group_to_come_is_acknowledged_once_more_when_a_path_is_lost(cut: bool) -> None:
    async def story(world: World) -> None:
        early = await world.communicators[0].new_group([0, 1])
        work, x = early.all_reduce(ones()), ones()
        await asyncio.sleep(0.0002)
        if cut:
            world.fabric.cut((0, 1))
        await asyncio.sleep(0.1)
        assert world.runtimes[0].courier.unsettled <= 8
        group = await world.communicators[1].new_group([0, 1])
        await asyncio.gather(group.all_reduce(x), work)
        assert np.all(x == 2)
        await asyncio.sleep(0.1)
        assert [text for runtime in world.runtimes for text in kept(runtime)] == []

    simulate(story)


@pytest.mark.parametrize("count", [0, 1, 1000, ELEMENTS])
def test_a_message_that_comes_before_its_group_is_found_by_a_receive_from_any(count: int) -> None:
    async def story(world: World) -> None:
        async def sender(comm: Communicator) -> None:
            group = await comm.new_group([1, 0])
            await group.send(ones(count), 1, tag=3)

        async def receiver(comm: Communicator) -> None:
            await asyncio.sleep(0.1)
            group, x = await comm.new_group([1, 0]), np.zeros(count, np.float32)
            work = group.recv(x, ANY, tag=3)
            await work
            assert work.source == 0
            assert np.all(x == 1)

        async with asyncio.timeout(30):
            await asyncio.gather(sender(world.communicators[1]), receiver(world.communicators[0]))

    simulate(story)


def test_who_is_lost_to_one_hears_of_it_from_the_others() -> None:
    """Rank 0 gives rank 1 up, which knows nothing of it. Rank 2, to which rank 1 is not lost, tells it."""

    async def story(world: World) -> None:
        # It ends at once, and is kept by rank 2, which never receives it.
        await world.communicators[1].send(ones(10), 2)
        works = [comm.all_reduce(ones(1)) for comm in world.communicators]
        world.runtimes[0]._peer_gone(PeerGone(1, "unreachable", "by this test"))
        for work in works:
            with pytest.raises(PeerLost, match="by this test"):
                async with asyncio.timeout(5):
                    await work
        await asyncio.sleep(1)
        assert [text for runtime in world.runtimes for text in kept(runtime)] == []

    simulate(story, ranks=3)


def test_a_group_is_made_where_the_communicator_has_failed_too_and_goes_on_without_the_dead() -> None:
    async def story(world: World) -> None:
        early = await world.communicators[0].new_group([0, 1])
        work, x = early.all_reduce(ones(10)), ones(10)
        world.fabric.kill(2)
        with pytest.raises(PeerLost):
            await world.communicators[1].barrier()
        late = await world.communicators[1].new_group([0, 1])
        await asyncio.gather(work, late.all_reduce(x))
        assert np.all(x == 2)
        of_the_dead = await world.communicators[1].new_group([1, 2])
        with pytest.raises(PeerLost):
            await of_the_dead.barrier()

    simulate(story, ranks=3)


def test_a_group_that_a_failed_split_made_in_part_fails_and_nobody_waits_for_ever() -> None:
    """Rank 0 has its group, rank 1 never will, as it heard of a failure first. What is made from such a group fails,
    too."""

    async def story(world: World) -> None:
        first, second, third = world.communicators
        for nic in range(2):
            world.fabric.path((2, nic), (1, nic)).latency_s = 0.01
        splits = [comm.split(color) for comm, color in ((first, 0), (third, 1))]
        mine = second.split(0)
        group = await splits[0]
        assert not mine.done()
        second._coordinator.failing.fail(mine.operation, "aborted", "by this test", ())
        with pytest.raises(R2cclError, match="by this test"):
            await mine
        deeper = await group.new_group([0, 1])
        for call in (group.barrier(), deeper.barrier()):
            with pytest.raises(R2cclError, match="by this test"):
                async with asyncio.timeout(5):
                    await call

    simulate(story, ranks=3)


@pytest.mark.parametrize("cut_at_s", [1e-6, 2e-5, 1e-4, 1e-3])
def test_a_small_message_that_waits_for_credit_comes_though_what_was_said_of_it_is_lost(cut_at_s: float) -> None:
    async def story(world: World) -> None:
        async def sender(comm: Communicator) -> None:
            work = comm.all_reduce(ones())
            await comm.send(ones(10), 1)
            await asyncio.sleep(cut_at_s)
            world.fabric.cut((0, 0))
            await work

        async def receiver(comm: Communicator) -> None:
            x = np.zeros(10, np.float32)
            await comm.recv(x, ANY)
            assert np.all(x == 1)
            await comm.all_reduce(ones())

        async with asyncio.timeout(30):
            await asyncio.gather(sender(world.communicators[0]), receiver(world.communicators[1]))

    simulate(story)


def test_what_was_sent_to_who_never_makes_the_group_is_forgotten_on_both_sides_when_the_group_fails() -> None:
    async def story(world: World) -> None:
        early = await world.communicators[0].new_group([0, 1])
        await early.send(ones(10), 1)
        await asyncio.sleep(0.01)
        assert world.runtimes[1].desk.stranded_bytes() == 40
        early._coordinator.failing.fail(0, "aborted", "by this test", ())
        await asyncio.sleep(0.1)
        assert [text for runtime in world.runtimes for text in kept(runtime)] == []

    simulate(story)
