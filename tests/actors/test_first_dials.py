"""A rank of a large job dials some of its peers first, and the others as those are done."""

from __future__ import annotations

from r2ccl.config import Settings
from r2ccl.protocol.dial_window import DIALS_MAX
from r2ccl.protocol.nic_session import LinkState
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World

RANKS = DIALS_MAX + 3


def states(world: World, rank: int) -> list[LinkState]:
    """Of the links of a rank's only NIC."""
    return [link.session.state for link in world.runtimes[rank].ports[0].links.values()]


def test_all_are_connected_and_only_some_are_dialled_at_once():
    async def scenario() -> None:
        world = World(Shape(RANKS, 1, settings=Settings(backup_paths=0)))
        for runtime in world.runtimes:
            runtime.start()
        # Rank 0 dials all others, the last one dials nobody.
        assert states(world, 0).count(LinkState.DIALLING) == DIALS_MAX
        assert states(world, 0).count(LinkState.ABSENT) == RANKS - 1 - DIALS_MAX
        assert states(world, RANKS - 1).count(LinkState.DIALLING) == 0
        for runtime in world.runtimes:
            await runtime.connected()
        for rank in range(RANKS):
            assert states(world, rank) == [LinkState.UP] * (RANKS - 1)
        for runtime in world.runtimes:
            runtime.abort()

    run(scenario())


def test_a_nic_that_is_dead_at_the_other_end_does_not_keep_others_waiting_for_ever():
    async def scenario() -> None:
        world = World(Shape(RANKS, 2, settings=Settings(backup_paths=0)))
        # Those that rank 0 dials first cannot be reached on their first NIC.
        for rank in range(1, DIALS_MAX + 1):
            world.fabric.silent_drop((rank, 0))
        await world.start()
        beyond = [link for (peer, _), link in world.runtimes[0].ports[0].links.items() if peer > DIALS_MAX]
        assert len(beyond) >= RANKS - 1 - DIALS_MAX
        deadline_s = world.loop.time() + 60.0
        while not all(link.is_up for link in beyond if link.is_rail):
            assert world.loop.time() < deadline_s
            await world.runtimes[0]._next_link(1.0)
        for runtime in world.runtimes:
            runtime.abort()

    run(scenario())
