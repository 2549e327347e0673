"""The agreement on the picture of the network when something else goes wrong at the same time, or somebody lies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from r2ccl.errors import CommunicatorClosed, PeerLost
from r2ccl.protocol.agreement_messages import (
    NUMBER_MAX,
    Agreed,
    Ballot,
    Commit,
    Message,
    No,
    Propose,
    Report,
    State,
)
from r2ccl.protocol.wire import BadFrame, Kind
from r2ccl.sim.world import World
from tests.actors.test_epochs import epochs, reduce_for, reduce_once, run_with
from tests.simulated import simulate, together

SLOWER = Agreed(1, 0, (b"", b"", b"\x70\x70"))


def agreement_of(world: World, rank: int) -> Any:
    agreement = world.communicators[rank]._epochs._agreement
    assert agreement is not None
    return agreement


def bad_frames(world: World) -> list[tuple[int, Any]]:
    """Ranks and their links that ended because of one."""
    return [
        (one.rank, event.fields["link"])
        for one in world.communicators
        for event in one.events.since(0)
        if event.name == "link" and event.fields.get("cause") == "bad frame"
    ]


def promise(world: World, ranks: tuple[int, ...], agreed: Agreed = SLOWER) -> None:
    """These ranks heard a proposal of rank 0, and said yes."""
    for rank in ranks:
        world.communicators[rank]._epochs.heard(0, Propose(Ballot(1, 0), agreed, fresh=True).body())


def dies(world: World) -> None:
    world.fabric.kill(0)


def is_cut_off(world: World) -> None:
    for nic in (0, 1):
        world.fabric.cut((0, nic))


@pytest.mark.parametrize("goes", [dies, is_cut_off])
def test_an_operation_held_by_a_promise_to_a_rank_that_is_lost_fails_with_the_others(
    goes: Callable[[World], None],
) -> None:
    async def story(world: World) -> None:
        promise(world, (1, 2))
        works = [one.all_reduce(np.ones(10)) for one in world.communicators[1:] for _ in range(3)]
        assert world.communicators[1].stats()["operations"] == {"called": 3, "running": 0, "waiting": 3}
        await asyncio.sleep(0.02)
        goes(world)
        await asyncio.sleep(world.shape.settings.unreachable_after_s + 3.0)
        for work in works:
            with pytest.raises(PeerLost) as lost:
                await work
            assert lost.value.ranks == (0,)
        shrunk = [one.shrink() for one in world.communicators[1:]]
        if goes is dies:
            for new in [await work for work in shrunk]:
                assert new.recovery.completed_by_any == 0
        for one in world.communicators:
            one.abort()

    simulate(story, ranks=3)


def test_what_is_held_counts_as_unfinished_when_its_communicator_is_shrunk() -> None:
    async def story(world: World) -> None:
        await reduce_once(world)
        promise(world, (1,), Agreed(1, 1, SLOWER.picture))
        work = world.communicators[1].all_reduce(np.ones(10))
        assert world.communicators[1]._coordinator.failing.give_up() == 1
        with pytest.raises(CommunicatorClosed):
            await work
        for one in world.communicators:
            one.abort()

    simulate(story, ranks=3)


def test_a_nic_that_flaps_before_a_far_operation_leaves_no_plans_behind() -> None:
    async def story(world: World) -> None:
        one = world.communicators[1]
        for epoch in range(1, 51):
            report = bytes([0, 0x70 + epoch % 2])
            one._epochs.heard(0, Commit(Agreed(epoch, 100, (b"", b"", report))).body())
        assert one.epoch == 50
        assert sorted(one._epochs._plans) == [0, 50]
        assert agreement_of(world, 1).epochs == [0, 50]
        for each in world.communicators:
            each.abort()

    simulate(story, ranks=3)


def test_a_nic_that_falls_to_a_fraction_and_recovers_is_measured_with_the_smaller_chunks_too() -> None:
    async def story(world: World) -> None:
        seen = []
        for bandwidth in (60e6, 8e6, 60e6):
            world.fabric.port((1, 0)).bandwidth_bytes_s = bandwidth
            await reduce_for(world, 3.0, 1_000_000, pause_s=0.0)
            assert len(set(epochs(world))) == 1
            seen.append(world.communicators[0]._epochs.newest._picture.slowest_nic_bytes_s)
        assert seen[0] == pytest.approx(60e6, rel=0.25)
        assert seen[1] < 30e6
        assert seen[2] == pytest.approx(60e6, rel=0.25)
        sizes = {lane.chunk_bytes for lanes in world.runtimes[1].courier.lanes.values() for lane in lanes}
        assert sizes == {world.communicators[0]._epochs.chunk_bytes}

    run_with(story, bandwidth_bytes_s=60e6)


def test_lanes_count_the_whole_chunks_of_the_communicator_that_cuts_the_smallest() -> None:
    async def story(world: World) -> None:
        groups = await together(world, lambda one: one.new_group([1, 2] if one.rank else [0]))
        slow, slower = bytes([0x67, 0x67]), bytes([0x63, 0x63])
        before = world.communicators[1]._epochs.chunk_bytes
        groups[1]._epochs.heard(2, Commit(Agreed(1, 0, (slow, b""))).body())
        world.communicators[1]._epochs.heard(0, Commit(Agreed(1, 0, (b"", slower, b""))).body())
        assert world.communicators[1]._epochs.chunk_bytes < groups[1]._epochs.chunk_bytes < before
        lanes = world.runtimes[1].courier.lanes
        for peer in (0, 2):
            assert {lane.chunk_bytes for lane in lanes[peer]} == {world.communicators[1]._epochs.chunk_bytes}
        for each in world.communicators:
            each.abort()

    simulate(story, ranks=3)


def test_a_member_that_left_before_it_made_the_communicator_is_not_waited_for() -> None:
    async def story(world: World) -> None:
        await world.communicators[0].close(0.1)
        await asyncio.sleep(1.0)
        group = await world.communicators[1].new_group([0, 1, 2])
        await asyncio.sleep(0.1)
        assert agreement_of(world, 1)._proposer.alive == [1, 2]
        assert group._epochs._agreement is not None
        assert group._epochs._agreement._proposer.alive == [1, 2]

    simulate(story, ranks=3)


def test_a_rank_that_left_a_communicator_still_tells_what_became_of_a_proposal() -> None:
    async def story(world: World) -> None:
        promise(world, (1,))
        world.communicators[0]._epochs._agreement._voter.commit(SLOWER)  # type: ignore[union-attr]
        world.communicators[0]._coordinator.failing.give_up()
        work = world.communicators[1].all_reduce(np.ones(10))
        await asyncio.sleep(0.5)
        assert world.communicators[1].epoch == 1
        assert world.communicators[1].stats()["operations"]["running"] == 1
        for one in world.communicators:
            one.abort()
        with pytest.raises(CommunicatorClosed):
            await work

    simulate(story, ranks=3)


@pytest.mark.parametrize(
    "message",
    [
        Commit(Agreed(1, 0, (b"", b"", b"x"))),
        Propose(Ballot(NUMBER_MAX + 1, 0), SLOWER, fresh=True),
        No(Ballot(1, 1), Ballot(1 << 63, 0), 0),
        State(Ballot(1, 1), 0, 1 << 63, 0, None),
        Report(1, b"x" * 1025),
    ],
)
def test_what_no_member_says_ends_the_connection_and_nothing_else(message: Message) -> None:
    async def story(world: World) -> None:
        await reduce_once(world)
        with pytest.raises(BadFrame):
            world.communicators[1]._epochs.heard(0, message.body())
        liar = world.runtimes[0]
        liar.courier.tell(1, Kind.AGREEMENT, [world.communicators[1]._coordinator.communicator, *message.body()])
        await reduce_for(world, 2.0)
        assert bad_frames(world) == [(1, "nic0->rank0.nic0")]
        assert epochs(world) == [0, 0, 0]

    simulate(story, ranks=3)


def test_the_highest_numbers_break_no_frame_of_ours() -> None:
    async def story(world: World) -> None:
        one = world.communicators[0]
        one._epochs.heard(1, No(Ballot(1, 0), Ballot(NUMBER_MAX, 1), NUMBER_MAX).body())
        one._epochs.gone(2, (1 << 64) - 1)
        one._epochs.report(b"\x70\x70")
        await reduce_for(world, 2.0)
        assert epochs(world)[0] == 0
        assert bad_frames(world) == []

    simulate(story, ranks=3)


def test_an_epoch_that_begins_at_the_last_number_there_is_breaks_nothing() -> None:
    async def story(world: World) -> None:
        for one in world.communicators[:2]:
            one._epochs.gone(2, (1 << 64) - 1)
        world.communicators[0]._epochs.report(b"\x70\x70")
        await asyncio.sleep(1.0)
        assert [one.epoch for one in world.communicators[:2]] == [1, 1]
        assert agreement_of(world, 1).committed.first_operation == NUMBER_MAX
        assert bad_frames(world) == []
        await reduce_once(world)

    simulate(story, ranks=3)
