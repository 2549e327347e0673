"""Groups of ranks: made, used side by side, and ended apart."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from r2ccl import ANY, Communicator
from r2ccl.errors import CollectiveMismatch, CollectiveTimeout, CommunicatorClosed, PeerLost
from r2ccl.ids import WORLD
from r2ccl.protocol.wire import Kind
from r2ccl.sim.world import World
from tests.simulated import called, simulate, together

Array = npt.NDArray[Any]


async def split(world: World, colors: Sequence[int | None], keys: Sequence[int]) -> list[Communicator | None]:
    return await together(world, lambda c: c.split(colors[c.rank], keys[c.rank]))


def members(groups: Sequence[Communicator | None]) -> list[tuple[int, ...] | None]:
    return [None if group is None else group.members for group in groups]


async def is_whole(groups: Sequence[Communicator | None], count: int = 70_001) -> None:
    """Every group reduces its own."""
    there = [group for group in groups if group is not None]
    arrays = [np.full(count, group.members[group.rank] + 1, np.int64) for group in there]
    await asyncio.gather(*(_reduce(group, x) for group, x in zip(there, arrays, strict=True)))
    for group, x in zip(there, arrays, strict=True):
        assert (x == sum(member + 1 for member in group.members)).all()


async def _reduce(group: Communicator, x: Array) -> None:
    await group.all_reduce(x)


# split and new_group.


def test_a_group_knows_the_node_of_each_of_its_members() -> None:
    async def story(world: World) -> None:
        assert all(c.nodes == ("node0", "node1", "node2") for c in world.communicators)
        groups = await split(world, [None, 0, 0], [0, 2, 1])
        assert [group and (group.nodes, group.node) for group in groups] == [
            None, (("node2", "node1"), "node1"), (("node2", "node1"), "node2")
        ]  # fmt: skip

    simulate(story, ranks=3)


def test_a_split_orders_by_key_and_then_by_rank_and_leaves_out_who_wants_none() -> None:
    async def story(world: World) -> None:
        groups = await split(world, [0, 7, 0, None, 7, 0], [2, 0, 1, 9, 0, 1])
        assert members(groups) == [(2, 5, 0), (1, 4), (2, 5, 0), None, (1, 4), (2, 5, 0)]
        assert [group.rank if group else None for group in groups] == [2, 0, 0, None, 1, 1]
        await is_whole(groups)
        assert await split(world, [None] * 6, [0] * 6) == [None] * 6
        await together(world, lambda c: c.barrier())

    simulate(story, ranks=6)


def test_groups_of_groups_have_ranks_of_their_own_and_members_of_the_job() -> None:
    async def story(world: World) -> None:
        outer = [g for g in await split(world, [0, 0, 0, 1, 1, 1], [0, -1, -2, 0, 0, 0]) if g is not None]
        inner = await asyncio.gather(*(_split(group, group.rank % 2) for group in outer))
        # Outer: (2, 1, 0) and (3, 4, 5).
        assert members(inner) == [(2, 0), (1,), (2, 0), (3, 5), (4,), (3, 5)]
        await asyncio.gather(is_whole(outer), is_whole(inner))

    simulate(story, ranks=6)


async def _split(group: Communicator, color: int) -> Communicator | None:
    made: Communicator | None = await group.split(color)
    return made


def test_the_same_split_twice_makes_different_groups() -> None:
    async def story(world: World) -> None:
        one = await split(world, [0, 0, 1], [0, 0, 0])
        other = await split(world, [0, 0, 1], [0, 0, 0])
        await asyncio.gather(is_whole(one), is_whole(other))
        left, right = one[0], other[1]
        assert left is not None
        assert right is not None
        # If they were one, their operations would meet.
        work = left.barrier()
        waiting = right.barrier()
        await asyncio.sleep(1.0)
        assert not work.done()
        assert not waiting.done()
        second, first = one[1], other[0]
        assert second is not None
        assert first is not None
        await second.barrier()
        await first.barrier()
        await work
        await waiting

    simulate(story, ranks=3)


def test_a_new_group_is_called_by_its_members_alone_and_has_their_order() -> None:
    async def story(world: World) -> None:
        groups = [await world.communicators[rank].new_group([3, 1]) for rank in (1, 3)]
        assert members(groups) == [(3, 1), (3, 1)]
        assert [group.rank for group in groups] == [1, 0]
        again = [await world.communicators[rank].new_group([3, 1]) for rank in (1, 3)]
        await asyncio.gather(is_whole(groups), is_whole(again))
        assert await world.communicators[0].new_group([3, 1]) is None
        assert called(world.communicators[1]) == 0

    simulate(story, ranks=4)


def test_operations_of_groups_may_be_called_in_opposite_orders() -> None:
    async def story(world: World) -> None:
        one, other = [await split(world, [0] * 3, [0] * 3) for _ in range(2)]
        works = []
        for rank in range(3):
            mine = [one[rank], other[rank], world.communicators[rank]]
            for group in mine if rank % 2 else reversed(mine):
                assert group is not None
                works += [(group.all_reduce(x := np.full(400_000, 1, np.float32)), x) for _ in range(3)]
        for work, x in works:
            await work
            assert (x == 3).all()

    simulate(story, ranks=3)


def test_messages_of_groups_with_the_same_ranks_and_tags_do_not_meet() -> None:
    async def story(world: World) -> None:
        one, other = [await split(world, [0, 0], [0, 0]) for _ in range(2)]
        senders = [world.communicators[0], one[0], other[0]]
        receivers = [world.communicators[1], one[1], other[1]]
        sending = [c.send(np.array([k]), 1) for k, c in enumerate(senders) if c is not None]
        for k in (2, 0, 1):
            receiver, got = receivers[k], np.array([9])
            assert receiver is not None
            await receiver.recv(got, ANY)
            assert got[0] == k
        for work in sending:
            await work

    simulate(story)


# How groups end.


def test_closing_a_group_leaves_the_others_at_work() -> None:
    async def story(world: World) -> None:
        one, other = [await split(world, [0] * 3, [0] * 3) for _ in range(2)]
        await is_whole(one)
        await asyncio.gather(*(group.close() for group in one if group is not None))
        for group in one:
            assert group is not None
            with pytest.raises(CommunicatorClosed, match="closed"):
                group.barrier()
        await is_whole(other)
        await together(world, lambda c: c.barrier())

    simulate(story, ranks=3)


def test_a_group_that_one_member_closed_fails_for_the_others_and_nothing_else_does() -> None:
    async def story(world: World) -> None:
        groups = await split(world, [0] * 3, [0] * 3)
        first, second, third = (group for group in groups if group is not None)
        await first.close()
        with pytest.raises(PeerLost, match="closed") as lost:
            await second.barrier()
        assert lost.value.ranks == (0,)
        with pytest.raises(PeerLost):
            await third.barrier()
        await together(world, lambda c: c.barrier())

    simulate(story, ranks=3)


def test_thousands_of_groups_come_and_go_without_a_trace() -> None:
    async def story(world: World) -> None:
        for turn in range(200):
            groups = await split(world, [turn, turn], [0, 0])
            await is_whole(groups, 10)
            await asyncio.gather(*(group.close() for group in groups if group is not None))
        await asyncio.sleep(1.0)
        assert [len(runtime.coordinators) for runtime in world.runtimes] == [1, 1]

    simulate(story)


def test_a_death_fails_the_groups_of_the_dead_and_no_others() -> None:
    async def story(world: World) -> None:
        groups = await split(world, [0, 0, 1, 1], [0] * 4)
        unharmed, harmed = groups[0], groups[2]
        assert unharmed is not None
        assert harmed is not None
        waiting = harmed.barrier()
        world.fabric.kill(3)
        with pytest.raises(PeerLost) as lost:
            await waiting
        # Ranks of the job, not of the group.
        assert lost.value.ranks == (3,)
        await is_whole(groups[:2])
        with pytest.raises(PeerLost):
            await world.communicators[0].barrier()
        await is_whole(groups[:2])

    simulate(story, ranks=4, close_timeout_s=0.1)


def test_errors_of_groups_name_ranks_of_the_job() -> None:
    async def story(world: World) -> None:
        groups = [g for g in await split(world, [None, 0, None, 0], [0] * 4) if g is not None]
        late = groups[0].barrier(timeout=1.0)
        with pytest.raises(CollectiveTimeout) as timed_out:
            await late
        assert timed_out.value.not_entered == (3,)
        groups = [g for g in await split(world, [None, 0, None, 0], [0] * 4) if g is not None]
        works = [groups[0].barrier(), groups[1].all_reduce(np.ones(3))]
        for work in works:
            with pytest.raises(CollectiveMismatch) as differ:
                await work
            assert differ.value.calls == {1: "barrier()", 3: "all_reduce(float64[3], sum)"}
        await together(world, lambda c: c.barrier())

    simulate(story, ranks=4, close_timeout_s=0.1)


def test_groups_that_are_made_and_closed_leave_nothing() -> None:
    async def story(world: World) -> None:
        async def once() -> None:
            groups = await together(world, lambda comm: comm.split(comm.rank % 2))
            await asyncio.gather(*(group.all_reduce(np.ones(5)) for group in groups))
            await asyncio.gather(*(group.broadcast_object([1], 0) for group in groups))
            x = np.zeros(5)
            for work in (groups[0].send(np.ones(5), 1, 7), groups[2].recv(x, 0, 7)):
                await work
            await asyncio.gather(*(group.close() for group in groups))

        for _ in range(5):
            await once()
        await asyncio.sleep(1.0)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            await once()
        await asyncio.sleep(1.0)
        gc.collect()
        grown = (tracemalloc.get_traced_memory()[0] - before) / 50
        tracemalloc.stop()
        # Some bytes remain: the ids, so that what is late is known as such, and the event log.
        assert grown < 4096, f"{grown:.0f} bytes for each round of four ranks"
        for runtime in world.runtimes:
            assert len(runtime.coordinators) == len(runtime.courier.ledgers) == 1
            assert len(runtime.coordinators[WORLD].failing.on_left) == 1

    simulate(story, ranks=4)


def test_a_group_may_be_closed_again_when_all_have_left_it() -> None:
    async def story(world: World) -> None:
        groups = [group for group in await split(world, [0, 0], [0, 0]) if group is not None]
        await asyncio.gather(*(group.close() for group in groups), *(group.close() for group in groups))
        await asyncio.sleep(1.0)
        await asyncio.gather(*(group.close() for group in groups))
        await together(world, lambda c: c.barrier())

    simulate(story)


@pytest.mark.parametrize("one_sided", [False, True])
def test_memory_that_a_closing_group_gives_back_is_not_written_any_more(one_sided: bool) -> None:
    async def story(world: World) -> None:
        first, second = (group for group in await split(world, [0, 0], [0, 0]) if group is not None)
        x, y = np.ones(5_000_000), np.zeros(5_000_000)
        sent, received = first.send(x, 1), second.recv(y, 0)
        await asyncio.sleep(0.005)
        await second.close(timeout=0.001)
        assert isinstance(received.exception(), CommunicatorClosed)
        assert y.any()
        y[:] = 7.0
        with pytest.raises(PeerLost, match="closed"):
            await sent
        await asyncio.sleep(1.0)
        assert (y == 7.0).all()
        await together(world, lambda c: c.barrier())

    simulate(story, one_sided=one_sided)


@pytest.mark.parametrize("one_sided", [False, True])
def test_what_is_begun_with_a_member_that_has_left_ends_and_leaves_nothing(one_sided: bool) -> None:
    async def story(world: World) -> None:
        for begin in (
            lambda group: group.send(np.ones(1_000_000), 0),
            lambda group: group.recv(np.ones(1_000_000), 0),
            lambda group: group.recv(np.ones(10), 0),
            lambda group: group.broadcast_object(None, 0),
        ):
            first, second = (group for group in await split(world, [0, 0], [0, 0]) if group is not None)
            await first.close()
            await asyncio.sleep(1.0)
            with pytest.raises(PeerLost, match="closed"):
                await asyncio.wait_for(begin(second), 10.0)
            await second.close()
        await asyncio.sleep(1.0)
        assert [list(runtime.coordinators) for runtime in world.runtimes] == [[WORLD], [WORLD]]

    simulate(story, one_sided=one_sided)


def test_a_goodbye_that_is_lost_with_its_path_is_said_again_to_who_asks() -> None:
    async def story(world: World) -> None:
        first, second = (group for group in await split(world, [0, 0], [0, 0]) if group is not None)
        await second.close()
        await asyncio.sleep(0.1)
        for nic in (0, 1):
            world.fabric.silent_drop_link((0, nic), (1, nic))
        await first.close()
        await asyncio.sleep(1.0)
        for nic in (0, 1):
            world.fabric.restore_link((0, nic), (1, nic))
        await together(world, lambda c: c.barrier())
        await asyncio.sleep(1.0)
        assert [list(runtime.coordinators) for runtime in world.runtimes] == [[WORLD], [WORLD]]

    simulate(story)


def test_a_goodbye_that_is_lost_while_its_sender_forgets_the_group_leaves_nothing_of_it() -> None:
    """The sender sees its path go, says all again that it knows, and knows the group no more; the other saw no path
    change at all, as where the link was on probation there."""

    async def story(world: World) -> None:
        first, second = (group for group in await split(world, [0, 0], [0, 0]) if group is not None)
        await second.close()
        await asyncio.sleep(0.1)
        courier = world.runtimes[0].courier
        with mock.patch.object(courier, "tell", lambda peer, kind, body: kind is Kind.GOODBYE):
            await first.close()
        await asyncio.sleep(5.0)
        assert [list(runtime.coordinators) for runtime in world.runtimes] == [[WORLD], [WORLD]]

    simulate(story)


def test_after_a_path_changed_nobody_is_told_of_groups_that_it_is_not_in() -> None:
    async def story(world: World) -> None:
        groups = await together(world, lambda comm: comm.new_group([0, 1]))
        pair = [group for group in groups if group is not None]
        await asyncio.gather(*(group.all_reduce(np.ones(3)) for group in pair))
        for work in (pair[0].send(np.ones(3), 1), pair[1].recv(np.zeros(3), 0)):
            await work
        world.fabric.cut((0, 0))
        await asyncio.sleep(0.1)
        await together(world, lambda comm: comm.barrier())
        for member in (0, 1):
            known = world.runtimes[2].courier.outboxes[member]._entered
            assert set(known) <= {WORLD}

    simulate(story, ranks=3)
