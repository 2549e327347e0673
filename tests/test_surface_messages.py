"""Messages between two ranks: which receive gets which, how they wait, and how they fail."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import numpy as np
import pytest

from r2ccl import ANY
from r2ccl.communicator import Communicator
from r2ccl.sim.world import World
from tests.messages import BEYOND_CREDIT, BULKY, bulky, message, room
from tests.simulated import simulate, together


@pytest.mark.parametrize("one_sided", [False, True], ids=["two_sided", "one_sided"])
@pytest.mark.parametrize("count", [0, 1, 10, BULKY // 4, BEYOND_CREDIT // 4])
def test_the_nth_receive_gets_the_nth_message_of_its_source_and_tag(count: int, one_sided: bool) -> None:
    async def story(world: World) -> None:
        first, second, third = world.communicators
        sent = [(c, tag, k) for k in range(3) for c in (first, third) for tag in (5, 0)]
        sending = [c.send(message(100 * c.rank + 10 * tag + k, count), 1, tag) for c, tag, k in sent]
        # In another order than they were sent in.
        rooms = {(c.rank, tag, k): room(count) for tag in (0, 5) for c in (third, first) for k in range(3)}
        receiving = [second.recv(rooms[source, tag, k], source, tag) for source, tag, k in rooms]
        for work in (*sending, *receiving):
            await work
        for (source, tag, k), got in rooms.items():
            assert (got == 100 * source + 10 * tag + k).all()

    simulate(story, ranks=3, one_sided=one_sided)


def test_a_receive_from_any_gets_what_is_there_first_and_says_whose_it_is() -> None:
    async def story(world: World) -> None:
        first, second, third = world.communicators
        rooms = [room(), room()]
        receiving = [first.recv(one) for one in rooms]
        assert [work.source for work in receiving] == [None, None]
        await third.send(message(3), 0)
        assert await receiving[0] is rooms[0]
        await second.send(message(2), 0)
        await receiving[1]
        assert [work.source for work in receiving] == [2, 1]
        assert [one[0] for one in rooms] == [3, 2]

    simulate(story, ranks=3)


def test_receives_from_any_are_served_in_the_order_of_the_calls() -> None:
    async def story(world: World) -> None:
        first, second, _ = world.communicators
        rooms = [room() for _ in range(20)]
        receiving = [first.recv(one) for one in rooms]
        sending = [second.send(message(k), 0) for k in range(20)]
        for work in (*sending, *receiving):
            await work
        assert [one[0] for one in rooms] == list(range(20))

    simulate(story, ranks=3)


def test_a_specific_receive_behind_one_from_any_waits_its_turn_for_the_same_source() -> None:
    """The first message of the source belongs to whoever called first."""

    async def story(world: World) -> None:
        first, second, _ = world.communicators
        anyone, specific = room(), room()
        any_work, specific_work = first.recv(anyone), first.recv(specific, 1)
        await second.send(message(1), 0)
        await any_work
        await asyncio.sleep(1.0)
        assert not specific_work.done()
        await second.send(message(2), 0)
        await specific_work
        assert (anyone[0], specific[0]) == (1, 2)

    simulate(story, ranks=3)


def test_a_specific_receive_behind_one_from_any_takes_its_sources_second_message() -> None:
    async def story(world: World) -> None:
        first, second, _ = world.communicators
        sending = [second.send(message(k), 0) for k in (1, 2)]
        await asyncio.sleep(0.5)
        rooms = [room(), room()]
        specific = [first.recv(rooms[0]), first.recv(rooms[1], 1)]
        for work in (*specific, *sending):
            await work
        assert [one[0] for one in rooms] == [1, 2]

    simulate(story, ranks=3)


def test_other_tags_do_not_wait_for_a_receive_from_any() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        waiting = first.recv(room(), ANY, 1)
        got = room()
        receiving = first.recv(got, 1, 2)
        await second.send(message(7), 0, 2)
        await receiving
        assert got[0] == 7
        assert not waiting.done()
        await second.send(message(8), 0, 1)
        await waiting

    simulate(story)


@pytest.mark.parametrize("one_sided", [False, True], ids=["two_sided", "one_sided"])
@pytest.mark.parametrize("source", [0, ANY], ids=["specific", "any"])
@pytest.mark.parametrize("size", [0, 40, BULKY, BEYOND_CREDIT])
def test_a_message_waits_for_a_receiver_that_comes_late(size: int, source: int, one_sided: bool) -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        sending = first.send(bulky(5, size), 1)
        await asyncio.sleep(3.0)
        assert sending.done() == (size <= 40)
        got = bulky(0, size)
        receiving = second.recv(got, source)
        await receiving
        await sending
        assert (got == 5).all()
        assert receiving.source == 0

    simulate(story, one_sided=one_sided)


def test_many_bulky_messages_at_once_wait_for_receivers_of_any() -> None:
    async def story(world: World) -> None:
        first, *others = world.communicators
        sending = [c.send(bulky(10 * c.rank + k, BEYOND_CREDIT), 0) for k in range(3) for c in others]
        await asyncio.sleep(1.0)
        seen: dict[int, list[int]] = {1: [], 2: []}
        for _ in range(6):
            got = bulky(0, BEYOND_CREDIT)
            receiving = first.recv(got)
            await receiving
            assert receiving.source is not None
            assert (got == got[0]).all()
            seen[receiving.source].append(int(got[0]))
        for work in sending:
            await work
        assert seen == {1: [10, 11, 12], 2: [20, 21, 22]}

    simulate(story, ranks=3)


def test_messages_both_ways_at_once_do_not_wait_for_one_another() -> None:
    async def story(world: World) -> None:
        async def exchange(c: Communicator) -> None:
            other = 1 - c.rank
            sending, got = c.send(bulky(c.rank, BEYOND_CREDIT), other), bulky(9, BEYOND_CREDIT)
            await c.recv(got, other)
            await sending
            assert (got == other).all()

        await together(world, exchange)

    simulate(story)


def test_collectives_and_messages_of_one_communicator_do_not_disturb_each_other() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        x, y = np.ones(70_000), np.ones(70_000)
        got = room()
        # The ranks call them in different orders, which messages may.
        works = [first.all_reduce(x), first.send(message(4), 1)]
        works += [second.recv(got, 0), second.all_reduce(y)]
        for work in works:
            await work
        assert (x == 2).all()
        assert got[0] == 4

    simulate(story)


def test_messages_survive_the_loss_of_a_nic() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        sending = [first.send(bulky(k, BEYOND_CREDIT), 1, tag) for tag in (0, 1) for k in range(3)]
        rooms = [bulky(9, BEYOND_CREDIT) for _ in sending]
        receiving = [second.recv(one, ANY, tag) for tag, one in zip((0, 0, 0, 1, 1, 1), rooms, strict=True)]
        world.runtimes[0].ports[0].nic_went_down("carrier")
        for work in (*sending, *receiving):
            await work
        assert [one[0] for one in rooms] == [0, 1, 2] * 2
        assert all((one == one[0]).all() for one in rooms)

    simulate(story)


def test_thousands_of_messages_leave_nothing_behind() -> None:
    async def story(world: World) -> None:
        first, second = world.communicators
        sent, got = message(1), room()

        async def exchange(count: int) -> None:
            for k in range(count):
                source = ANY if k % 2 else 0
                sending = first.send(sent, 1, k % 3)
                await second.recv(got, source, k % 3)
                await sending

        await exchange(1000)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await exchange(4000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown < 200_000, f"{grown / 4000:.0f} bytes for each message"

    simulate(story)
