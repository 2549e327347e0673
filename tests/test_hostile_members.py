"""A member that knows the secret and sends what it likes: it may end its connections and the job's operations, which
raise what they always raise, but never breaks an actor, and what it makes others keep has a bound."""

from __future__ import annotations

import asyncio
import contextlib

import msgpack  # type: ignore[import-untyped, unused-ignore]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.actors.communicators import EARLY_MAX
from r2ccl.errors import R2cclError
from r2ccl.ids import WORLD
from r2ccl.protocol.wire import RAW_KINDS, Flag, Kind, checksum, pack_header
from r2ccl.sim.world import World
from tests.simulated import simulate
from tests.strangers import frames

Frame = tuple[bytes, bytes]

#: Bodies that fit no kind, or almost one.
WRONG_BODIES: list[object] = [
    {}, None, [], [None], ["x"], [-1], [1.5], [[]], [True], [b""], *([(1 << 64) - 1] * count for count in range(1, 10)),
    *([-1] * count for count in range(2, 10)), *([0] * count + [None] for count in range(2, 9)),
    *([0, 0, "x"] + [[]] * count for count in range(4)), *([0, number] for number in range(12)),
]  # fmt: skip


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


async def link_is_up(world: World) -> None:
    """A connection that was ended is made anew, and a link has to prove itself for a while."""
    async with asyncio.timeout(600):
        while not world.runtimes[1].courier.links_up(0):  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in RAW_KINDS])
def test_control_frames_of_wrong_types_and_lengths_end_their_connection_at_most(kind: Kind) -> None:
    async def story(world: World) -> None:
        for body in WRONG_BODIES:
            if kind is Kind.GOODBYE and isinstance(body, list) and len(body) == 3:
                continue  # taken at its word: who is gone gets no link any more
            await link_is_up(world)
            packed = msgpack.packb(body)
            header = pack_header(
                kind, Flag.CHECKSUMMED, len(packed), source=1, target=0, payload_checksum=checksum(packed)
            )
            send(world, [(False, (header, packed))])
            await asyncio.sleep(0.01)
        assert not world.runtimes[0].is_closed
        await barrier(world, 0)

    simulate(story)
