"""A member that knows the secret and sends what it likes: it may end its connections and the job's operations, which
raise what they always raise, but never breaks an actor, and what it makes others keep has a bound."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.actors.communicators import EARLY_MAX
from r2ccl.errors import R2cclError
from r2ccl.ids import WORLD
from r2ccl.sim.world import World
from tests.simulated import simulate
from tests.strangers import frames

Frame = tuple[bytes, bytes]


def send(world: World, sayings: list[tuple[bool, Frame]]) -> None:
    """Rank 1 says these to rank 0, each on a control or a bulk connection."""
    for on_bulk, (header, payload) in sayings:
        links = world.runtimes[1].courier.links_up(0)
        connection = None if not links else links[0].bulk if on_bulk else links[0].control
        if connection is not None:
            connection.send(header, payload)


async def barrier(world: World, rank: int) -> None:
    """It may fail: a member can fail it in many ways, and these are told from bugs by their class."""
    with contextlib.suppress(R2cclError):
        await world.communicators[rank].barrier(timeout=5.0)


@pytest.mark.parametrize("ranks", [2, 3])
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_whatever_a_member_sends_no_actor_breaks(ranks: int, data: st.DataObject) -> None:
    sayings = data.draw(st.lists(st.tuples(st.booleans(), frames(WORLD, 1, 0)), min_size=1, max_size=8))

    async def story(world: World) -> None:
        send(world, sayings)
        await asyncio.sleep(0.05)
        await asyncio.gather(*(barrier(world, rank) for rank in range(ranks)))
        send(world, sayings)
        await asyncio.sleep(0.5)
        assert len(world.runtimes[0].communicators._early) <= EARLY_MAX
        assert len(world.runtimes[0].coordinators) <= 2 * len(sayings) + 1

    simulate(story, ranks=ranks)
