"""Shared memory between the ranks of a node: a link that lanes take before any other, and leave when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from r2ccl.actors.first_dials import LATE_LINKS_S, PACE_S
from r2ccl.actors.report import start_table
from r2ccl.actors.runtime import Runtime
from r2ccl.communicator import Communicator
from r2ccl.communicator import world as communicator_of_all
from r2ccl.config import Settings
from r2ccl.errors import PeerLost
from r2ccl.ids import SHARED_NIC
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World

ELEMENTS = 1 << 18


def on_one_node(story: Callable[[World], Awaitable[None]], ranks: int = 2, nics: int = 2) -> None:
    async def main() -> None:
        world = World(Shape(ranks, nics, one_node=True, settings=Settings(backup_paths=0)))
        await world.start()
        await story(world)
        await world.close()

    run(main())


async def sum_up(world: World, count: int = ELEMENTS) -> None:
    """An all-reduce whose result is checked on every rank."""

    async def call(communicator: Communicator, rank: int) -> None:
        values = np.arange(count, dtype=np.float32) % 1000 + rank
        await communicator.all_reduce(values)
        expected = (np.arange(count, dtype=np.float32) % 1000) * world.shape.ranks + sum(range(world.shape.ranks))
        assert np.array_equal(values, expected)

    await asyncio.gather(*(call(communicator, rank) for rank, communicator in enumerate(world.communicators)))


def bound(world: World, rank: int, peer: int) -> set[int]:
    """By what the lanes to a peer leave: indices of NICs."""
    return {lane.link.id.local_nic for lane in world.runtimes[rank].courier.lanes[peer] if lane.link is not None}


def carried(world: World, rank: int) -> dict[str, int]:
    """Bytes that a rank has sent, by NIC."""
    counted = world.communicators[rank].stats()["counters"]["nics"]
    return {nic: row["sent_bytes"] for nic, row in counted.items() if row["sent_bytes"]}


def by_nics(world: World, rank: int) -> int:
    return sum(sent for nic, sent in carried(world, rank).items() if nic != "memory")


def cut(world: World) -> Callable[[], None]:
    world.fabric.silent_drop_link((0, SHARED_NIC), (1, SHARED_NIC))
    return lambda: world.fabric.restore_link((0, SHARED_NIC), (1, SHARED_NIC))


def test_between_neighbours_all_chunks_go_by_memory() -> None:
    async def story(world: World) -> None:
        assert SHARED_NIC in bound(world, 0, 1)
        await sum_up(world)
        await asyncio.sleep(3.0)
        await sum_up(world)
        assert set(carried(world, 0)) == set(carried(world, 1)) == {"memory"}

    on_one_node(story)


def test_ranks_of_other_nodes_share_no_memory() -> None:
    async def main() -> None:
        world = World(Shape(2, 2))
        await world.start()
        await sum_up(world)
        assert set(carried(world, 0)) == {"nic0", "nic1"}
        assert world.runtimes[0].sharing.ports == []
        await world.close()

    run(main())


def test_control_goes_by_memory() -> None:
    async def story(world: World) -> None:
        link = world.runtimes[0].courier.path(1)
        assert link is not None
        assert link.id.is_shared
        assert str(link.id) == "memory->rank1"

    on_one_node(story)


def test_when_the_memory_is_lost_in_mid_operation_nics_carry_the_rest_and_it_is_taken_again_when_it_is_back() -> None:
    async def story(world: World) -> None:
        running = asyncio.ensure_future(sum_up(world, 1 << 22))
        await asyncio.sleep(0.0005)
        mend = cut(world)
        await running
        assert carried(world, 0)["memory"] > 0
        assert by_nics(world, 0) > 0
        assert SHARED_NIC not in bound(world, 0, 1) | bound(world, 1, 0)
        mend()
        await asyncio.sleep(60.0)
        assert SHARED_NIC in bound(world, 0, 1) & bound(world, 1, 0)
        before, before_by_nics = carried(world, 0), by_nics(world, 0)
        await sum_up(world)
        assert carried(world, 0)["memory"] > before["memory"]
        assert by_nics(world, 0) == before_by_nics

    on_one_node(story)


def test_ranks_whose_nics_are_all_lost_go_on_through_memory() -> None:
    async def story(world: World) -> None:
        for nic in range(2):
            world.fabric.cut((0, nic))
        await asyncio.sleep(1.0)
        await sum_up(world)
        assert {link.id.local_nic for link in world.runtimes[0].courier.links_up(1)} == {SHARED_NIC}

    on_one_node(story)


def test_no_incident_is_made_of_lost_memory() -> None:
    async def story(world: World) -> None:
        mend = cut(world)
        await sum_up(world)
        await asyncio.sleep(1.0)
        assert [world.communicators[rank].stats()["incidents"] for rank in range(2)] == [[], []]
        mend()

    on_one_node(story)


def test_a_dead_neighbour_is_noticed_at_once() -> None:
    async def story(world: World) -> None:
        world.fabric.kill(1)
        began_s = world.clock.now()
        values = np.ones(8, np.float32)
        with pytest.raises(PeerLost) as lost:
            await world.communicators[0].all_reduce(values)
        assert (lost.value.ranks, lost.value.cause) == ((1,), "dead")
        assert world.clock.now() - began_s < 0.5
        world.communicators[0].abort()

    async def main() -> None:
        world = World(Shape(2, 1, one_node=True, settings=Settings(backup_paths=0)))
        await world.start()
        await story(world)

    run(main())


def test_the_table_at_the_start_says_with_whom_memory_is_shared() -> None:
    async def story(world: World) -> None:
        assert "memory shared with ranks: 1, 2" in start_table(world.runtimes[0], [])

    on_one_node(story, ranks=3)


def test_three_neighbours_add_up_through_memory() -> None:
    async def story(world: World) -> None:
        await sum_up(world)
        assert all(set(carried(world, rank)) == {"memory"} for rank in range(3))

    on_one_node(story, ranks=3, nics=1)


def test_scratch_memory_fits_the_chunks_of_groups_on_one_machine_too() -> None:
    async def story(world: World) -> None:
        (pool,) = {runtime.communicators._pool for runtime in world.runtimes[:1]}
        assert pool.size == 8 * world.shape.settings.chunk_bytes

    on_one_node(story)


def by_nic(world: World, rank: int, peer: int) -> set[int]:
    """NICs of ours that links in service to a peer leave by."""
    return {link.id.local_nic for link in world.runtimes[rank].courier.links_up(peer)} - {SHARED_NIC}


def shares_none(world: World, rank: int) -> None:
    """The rank was started with R2CCL_SHARED_MEMORY=off."""
    runtime = world.runtimes[rank]
    world.runtimes[rank] = Runtime(runtime.shared, [port.device for port in runtime.ports])
    world.communicators[rank] = communicator_of_all(world.runtimes[rank])


def test_links_by_nics_are_dialled_once_the_job_is_connected_and_nobody_waits_for_them() -> None:
    async def main() -> None:
        world = World(Shape(3, 2, one_node=True, settings=Settings(backup_paths=0)))
        for runtime in world.runtimes:
            runtime.start()
            assert not any(link.dials for port in runtime.ports for link in port.links.values())
        await asyncio.gather(*(runtime.connected() for runtime in world.runtimes))
        for runtime in world.runtimes:
            assert not any(link.dials for port in runtime.ports for link in port.links.values())
            runtime.first_dials.follow()
        for rank in range(3):
            assert all(SHARED_NIC in bound(world, rank, peer) for peer in world.runtimes[rank].shared.peers)
        await asyncio.sleep(4 * PACE_S)
        for rank in range(3):
            assert all(by_nic(world, rank, peer) == {0, 1} for peer in world.runtimes[rank].shared.peers)
        await sum_up(world)
        assert set(carried(world, 0)) == {"memory"}
        await world.close()

    run(main())


def test_ranks_that_share_no_memory_after_all_meet_by_their_nics() -> None:
    async def main() -> None:
        world = World(Shape(3, 2, one_node=True, settings=Settings(backup_paths=0)))
        world.fabric.silent_drop_link((0, SHARED_NIC), (1, SHARED_NIC))
        began_s = world.loop.time()
        await world.start()
        assert world.loop.time() - began_s < 3 * LATE_LINKS_S
        assert all((by_nic(world, 0, 1), by_nic(world, 1, 0)))
        assert SHARED_NIC in bound(world, 0, 2) & bound(world, 1, 2)
        await sum_up(world)
        assert by_nics(world, 0) > 0
        await world.close()

    run(main())


def test_memory_that_is_lost_before_a_nic_was_dialled_is_replaced_by_one() -> None:
    async def story(world: World) -> None:
        assert not by_nic(world, 0, 1)
        restore = cut(world)
        await sum_up(world)
        assert by_nic(world, 0, 1) == by_nic(world, 1, 0) == {0, 1}
        restore()

    on_one_node(story)


def test_who_shares_no_memory_with_one_rank_is_not_kept_waiting_by_what_others_dial_meanwhile() -> None:
    async def main() -> None:
        world = World(Shape(24, 1, one_node=True, settings=Settings(backup_paths=0)))
        world.fabric.silent_drop_link((22, SHARED_NIC), (23, SHARED_NIC))
        for runtime in world.runtimes:
            runtime.start()

        async def connect(rank: int) -> float:
            await world.runtimes[rank].connected()
            world.runtimes[rank].first_dials.follow()
            return world.loop.time()

        began_s = world.loop.time()
        ended_s = await asyncio.gather(*map(connect, range(24)))
        assert max(ended_s) - began_s < 1.5 * LATE_LINKS_S
        await world.close()

    run(main())


@pytest.mark.parametrize("off_on_one", [False, True])
def test_where_no_memory_is_shared_after_all_a_spare_that_is_up_first_carries_nothing(off_on_one: bool) -> None:
    async def main() -> None:
        world = World(Shape(2, 1, spares=1, one_node=True, settings=Settings(backup_paths=0)))
        for one, other in ((0, 1), (1, 0)):
            world.fabric.path((one, 0), (other, 0)).latency_s = 5e-3
        if off_on_one:
            shares_none(world, 1)
        else:
            world.fabric.silent_drop_link((0, SHARED_NIC), (1, SHARED_NIC))
        await world.start()
        await sum_up(world)
        assert bound(world, 0, 1) == bound(world, 1, 0) == {0}
        await world.close()

    run(main())


def test_a_nic_that_was_lost_before_it_was_dialled_is_dialled_when_it_is_back() -> None:
    async def main() -> None:
        world = World(Shape(2, 2, one_node=True, settings=Settings(backup_paths=0)))
        for runtime in world.runtimes:
            runtime.start()
        world.fabric.cut((0, 0))
        await asyncio.gather(*(runtime.connected() for runtime in world.runtimes))
        for runtime in world.runtimes:
            runtime.first_dials.follow()
        await asyncio.sleep(5.0)
        down = world.runtimes[0].ports[0].links[1, 0]
        assert not down.dials
        assert by_nic(world, 0, 1) == {1}
        world.fabric.restore((0, 0))
        await asyncio.sleep(2.0)
        assert by_nic(world, 0, 1) == by_nic(world, 1, 0) == {0, 1}
        await world.close()

    run(main())
