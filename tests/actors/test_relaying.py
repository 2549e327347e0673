"""Worlds in which two ranks have no direct link left: others carry what they say, and nobody notices but the log."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from r2ccl.errors import PeerLost
from r2ccl.ids import RELAY_NIC
from r2ccl.protocol.nic_session import LinkState
from r2ccl.protocol.wire import Kind
from r2ccl.sim.world import World
from tests.actors.relayed_worlds import (
    BYTES,
    all_reduce,
    carried,
    carrier,
    part,
    relayed,
    relayed_world,
)


@pytest.mark.parametrize("one_sided", [False, True], ids=["frames", "one-sided"])
def test_two_ranks_that_lost_different_nics_are_joined_by_a_third(one_sided: bool) -> None:
    async def story(world: World) -> None:
        await part(world)
        assert [relayed(world, *pair).is_up for pair in ((0, 1), (1, 0))] == [True, True]  # type: ignore[union-attr]
        assert carried(world)[:2] == [0, 0]
        assert carried(world)[2] > 100_000
        before = carried(world)[2]
        await all_reduce(world)
        assert carried(world)[2] - before > BYTES
        assert world.runtimes[0].relays.way_to(1) is None

    relayed_world(story, one_sided=one_sided)


@pytest.mark.parametrize("wait_s", [0.0, 3.0], ids=["at once", "after a while"])
def test_ranks_that_are_joined_by_a_third_part_without_waiting_for_the_grace_time(wait_s: float) -> None:
    async def story(world: World) -> None:
        await part(world)
        await asyncio.sleep(wait_s)
        began = asyncio.get_running_loop().time()
        await world.close()
        assert asyncio.get_running_loop().time() - began < 1.0

    relayed_world(story, closes=False)


@pytest.mark.parametrize("one_sided", [False, True], ids=["frames", "one-sided"])
@pytest.mark.parametrize("nic", [(0, 0), (1, 1)])
def test_with_the_first_direct_link_lanes_go_back_and_the_relayed_link_is_dismissed(
    nic: tuple[int, int], one_sided: bool
) -> None:
    async def story(world: World) -> None:
        await part(world)
        running = asyncio.gather(*(all_reduce(world) for _ in range(40)))
        await asyncio.sleep(0.01)
        world.fabric.restore(nic)
        await running
        await asyncio.sleep(2.0)
        for rank, peer in ((0, 1), (1, 0)):
            link = relayed(world, rank, peer)
            assert link is not None
            assert link.session.state is LinkState.DOWN
            bound = [lane.link.id.is_relayed for lane in world.runtimes[rank].courier.lanes[peer] if lane.link]
            assert bound == [False]
        before = carried(world)
        await all_reduce(world)
        await asyncio.sleep(2.0)
        assert carried(world) == before

    relayed_world(story, one_sided=one_sided)


def test_a_small_operation_and_a_message_go_by_a_relay_too() -> None:
    async def story(world: World) -> None:
        await part(world)
        await all_reduce(world, 8)
        received = np.zeros(1000, np.uint8)
        sent = np.arange(1000, dtype=np.uint32).astype(np.uint8)
        await asyncio.gather(world.communicators[0].send(sent, 1), world.communicators[1].recv(received, 0))
        assert received.tolist() == sent.tolist()

    relayed_world(story)


def test_the_end_that_does_not_dial_asks_the_other_to() -> None:
    """Rank 1 knows that its NIC is gone, rank 0, who dials, does not: nothing is in flight."""

    async def story(world: World) -> None:
        world.fabric.cut((0, 0))
        await asyncio.sleep(1.5)
        assert relayed(world, 1, 0) is None
        world.fabric.cut((1, 1))
        await asyncio.sleep(0.01)
        assert relayed(world, 1, 0).is_up  # type: ignore[union-attr]

    relayed_world(story)


def test_what_a_relay_may_still_hold_is_fenced_before_hardware_writes_it_elsewhere() -> None:
    async def story(world: World) -> None:
        await part(world)
        running = asyncio.ensure_future(all_reduce(world))
        courier = world.runtimes[0].courier
        await asyncio.sleep(0.004)
        assert any(lane.outstanding for lane in courier.lanes[1])
        world.runtimes[0]._relay_port.dismiss(1, "not needed")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (1, RELAY_NIC, RELAY_NIC) in courier._unfenced
        await running
        assert not courier._unfenced

    relayed_world(story, one_sided=True)


def test_a_peer_that_does_not_know_yet_hears_by_the_relay_which_links_are_lost() -> None:
    async def story(world: World) -> None:
        world.fabric.cut((0, 0))
        await asyncio.sleep(1.2 - world.clock.now() % 1.0)
        world.fabric.silent_drop_link((0, 1), (1, 1))
        sent, received = np.ones(1000, np.uint8), np.zeros(1000, np.uint8)
        sending = world.communicators[0].send(sent, 1)
        await asyncio.sleep(0.15)
        link = world.runtimes[1].ports[1].links[0, 1]
        assert (link.session.state, link.session.cause) == (LinkState.DOWN, "rank 0 gave it up")
        await asyncio.gather(sending, world.communicators[1].recv(received, 0))
        assert received.tolist() == sent.tolist()

    relayed_world(story)


@pytest.mark.parametrize("one_sided", [False, True], ids=["frames", "one-sided"])
def test_when_the_relay_loses_a_leg_another_rank_takes_over(one_sided: bool) -> None:
    async def story(world: World) -> None:
        await part(world)
        first = carrier(world, 0, 1)
        running = asyncio.ensure_future(all_reduce(world))
        await asyncio.sleep(0.004)
        world.fabric.silent_drop_link((first, 0), (1, 0))
        await running
        assert carrier(world, 0, 1) == carrier(world, 1, 0) == 5 - first

    relayed_world(story, ranks=4, one_sided=one_sided)


def test_a_leg_that_goes_silent_is_found_by_those_who_use_it_and_not_by_the_next_idle_beat() -> None:
    async def story(world: World) -> None:
        await part(world)
        group = [await communicator.new_group([0, 1]) for communicator in world.communicators[:2]]
        x = np.ones(1 << 18, np.float32), np.ones(1 << 18, np.float32)
        # Between two beats of idle links, which would find it out, too.
        await asyncio.sleep(1.2 - world.clock.now() % 1.0)
        began_s = world.clock.now()
        world.fabric.silent_drop_link((carrier(world, 0, 1), 0), (1, 0))
        await asyncio.gather(*(member.all_reduce(part) for member, part in zip(group, x, strict=True)))
        assert world.clock.now() - began_s < 0.4

    relayed_world(story, ranks=4, relay_patience_s=100.0)


def test_a_relay_that_stands_still_is_left_for_one_that_does_not() -> None:
    async def story(world: World) -> None:
        await part(world)
        first = carrier(world, 0, 1)
        world.fabric.freeze(first)
        running = asyncio.ensure_future(all_reduce(world, 1 << 10))
        await asyncio.sleep(2.0)
        assert carrier(world, 0, 1) == carrier(world, 1, 0) == 5 - first
        world.fabric.thaw(first)
        await running
        assert carrier(world, 0, 1) == 5 - first, "what it said late is nothing to anybody"

    relayed_world(story, ranks=4)


def test_a_peer_that_stands_still_behind_a_relay_is_not_accused() -> None:
    async def story(world: World) -> None:
        await part(world)
        circuits = [list(runtime.relays.device.circuits.values()) for runtime in world.runtimes]
        running = asyncio.ensure_future(all_reduce(world))
        await asyncio.sleep(0.004)
        world.fabric.freeze(1)
        await asyncio.sleep(30.0)
        assert [list(runtime.relays.device.circuits.values()) for runtime in world.runtimes] == circuits
        world.fabric.thaw(1)
        await running

    relayed_world(story, ranks=4)


def test_when_the_only_relay_dies_the_others_are_unreachable_after_the_grace_time_and_not_before() -> None:
    async def story(world: World) -> None:
        await part(world)
        group = [communicator.new_group([0, 1]) for communicator in world.communicators[:2]]
        members = [await made for made in group]
        x = [np.ones(1 << 18, np.float32) for _ in range(2)]
        works = [member.all_reduce(part) for member, part in zip(members, x, strict=True)]
        died_s = world.clock.now()
        world.fabric.kill(2)
        for work in works:
            with pytest.raises(PeerLost, match="unreachable"):
                await work
            assert 5.0 <= world.clock.now() - died_s < 5.5
        for communicator in world.communicators[:2]:
            await communicator.close()

    relayed_world(story, closes=False)


def test_when_a_relay_is_full_the_operation_ends_well_all_the_same() -> None:
    async def story(world: World) -> None:
        world.fabric.path((2, 0), (1, 0)).bandwidth_bytes_s = 20e6
        await part(world)
        await all_reduce(world)
        assert world.runtimes[2].shared.counters.relay_dropped_frames > 0
        counted = world.runtimes[1].shared.counters.snapshot()["nics"]["relay"]
        assert counted["spoiled_chunks"] == 0, "nobody spoiled anything"
        events = [event for event in world.runtimes[0].shared.events.since(0) if event.name == "relayed"]
        assert len(events) == 1, "nothing ended"

    relayed_world(story, relay_queue_bytes=0)


def test_spoiled_chunks_are_asked_for_again_through_a_relay() -> None:
    async def story(world: World) -> None:
        await part(world)
        number = itertools.count()
        undo = world.fabric.corrupt(
            lambda source, target, header: (
                header.kind == Kind.RELAYED and header.payload_bytes > 10_000 and next(number) % 5 == 0
            )
        )
        await all_reduce(world)
        undo()
        assert next(number) > 5

    relayed_world(story)


def test_many_pairs_are_relayed_at_once() -> None:
    async def story(world: World) -> None:
        running = asyncio.ensure_future(all_reduce(world))
        await asyncio.sleep(0.001)
        for rank in (0, 2, 4):
            world.fabric.cut((rank, 0))
        for rank in (1, 3):
            world.fabric.cut((rank, 1))
        await running
        await all_reduce(world)
        assert carried(world)[:5] == [0] * 5
        assert carried(world)[5] > 0
        await all_reduce(world)

    relayed_world(story, ranks=6)


def test_with_two_ranks_there_is_nobody_to_ask() -> None:
    async def story(world: World) -> None:
        assert world.runtimes[0].all_ports == world.runtimes[0].ports

    relayed_world(story, ranks=2)
