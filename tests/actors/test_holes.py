"""A link whose packets get lost: what stands still on it goes by the others, and it stays in service."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from r2ccl.actors.link import Link
from r2ccl.protocol.wire import Kind, unpack_header
from r2ccl.sim.loop import run
from r2ccl.sim.world import Shape, World
from r2ccl.transport.interface import Connection, PathSample
from tests.simulated import simulate, together

ELEMENTS = 1 << 20


def link_of(world: World, rank: int, nic: int) -> Link:
    links = world.runtimes[rank].courier.links_up(1 - rank)
    return next(link for link in links if link.id.local_nic == nic)


@contextmanager
def accounts(connection: Connection, change: Callable[[PathSample], PathSample]) -> Iterator[None]:
    """Its kernel says something else meanwhile."""
    honest = connection.sample
    connection.sample = lambda: change(honest())  # type: ignore[method-assign]
    try:
        yield
    finally:
        connection.sample = honest  # type: ignore[method-assign]


def waits(sample: PathSample) -> PathSample:
    """The last of what was said is not acknowledged."""
    return dataclasses.replace(sample, in_flight_bytes=64, acked_bytes=7, limited=False)


def lost(sample: PathSample) -> PathSample:
    """It is taken for lost."""
    return dataclasses.replace(waits(sample), missing_segments=1)


@contextmanager
def frames(connection: Connection) -> Iterator[list[Kind]]:
    """Kinds of what is said on it."""
    said: list[Kind] = []
    send = connection.send

    def tapped(header: bytes, payload: Any) -> None:
        said.append(Kind(unpack_header(header).kind))
        send(header, payload)

    connection.send = tapped  # type: ignore[method-assign]
    try:
        yield said
    finally:
        connection.send = send  # type: ignore[method-assign]


def beats(said: list[Kind]) -> int:
    return said.count(Kind.BEAT)


def test_while_the_last_word_is_not_answered_another_is_said_each_heartbeat() -> None:
    async def story(world: World) -> None:
        link = link_of(world, 0, 0)
        assert link.control is not None
        link.watched = True
        with frames(link.control) as said:
            await asyncio.sleep(0.1)
            assert beats(said) == 0, "nothing is on its way"
            with accounts(link.control, waits):
                link.watched = True
                world.runtimes[0].health.look_closely()
                await asyncio.sleep(0.1)
                assert 5 <= beats(said) <= 10
                assert world.runtimes[0].courier.path(1) is link, "to wait for an answer is no hole"
            await asyncio.sleep(0.02)
            before = beats(said)
            await asyncio.sleep(0.5)
            assert beats(said) == before
        assert link.is_up

    simulate(story)


def test_words_held_up_by_a_hole_are_said_again_by_another_link_and_new_ones_go_there() -> None:
    async def story(world: World) -> None:
        courier = world.runtimes[0].courier
        link, other = link_of(world, 0, 0), link_of(world, 0, 1)
        assert link.control is not None
        assert other.control is not None
        assert courier.path(1) is link
        with frames(other.control) as said, accounts(link.control, lost):
            link.watched = True
            world.runtimes[0].health.look_closely()
            await asyncio.sleep(0.05)
            assert courier.path(1) is other
            assert said.count(Kind.NOTICE) == 1, "what stands still is said again when that began, and only then"
            assert Kind.ACK in said
            assert all(lane.is_diverted is False for lane in courier.lanes[1]), "bulk gets through"
        await asyncio.sleep(0.05)
        assert courier.path(1) is link
        assert link.is_up

    simulate(story)


async def reduce_behind_a_hole(world: World) -> int:
    """An all-reduce whose chunks stand still on a link of rank 0's. Returns what was hedged."""
    link = link_of(world, 0, 0)
    courier = world.runtimes[0].courier
    lane = link.lane
    assert lane is not None
    assert link.bulk is not None
    world.fabric.path((0, 0), (1, 0)).bandwidth_bytes_s = 2e6
    world.fabric.path((0, 1), (1, 1)).bandwidth_bytes_s = 4e7
    arrays = [np.arange(ELEMENTS, dtype=np.int64) + rank for rank in range(2)]
    reduction = asyncio.ensure_future(together(world, lambda comm: comm.all_reduce(arrays[comm.rank])))
    await asyncio.sleep(0.002)
    with accounts(link.bulk, lost):
        assert lane.outstanding
        assert courier.outboxes[1].waiting, "what waits would leave twins no room"
        await asyncio.sleep(0.03)
        assert lane.is_diverted
        assert courier.path(1) is link, "control gets through"
        assert courier.outboxes[1].waiting
        assert lane.outstanding
        assert next(iter(lane.outstanding)).twin is not None, "the oldest goes first"
        hedged = courier.hedger.hedged_bytes
        await reduction
    for array in arrays:
        np.testing.assert_array_equal(array, 2 * np.arange(ELEMENTS, dtype=np.int64) + 1)
    await asyncio.sleep(0.1)
    assert not lane.is_diverted
    assert link.is_up
    return hedged


def test_chunks_held_up_by_a_hole_also_go_out_elsewhere_before_those_that_wait() -> None:
    async def story(world: World) -> None:
        assert await reduce_behind_a_hole(world) > 0

    simulate(story)


def test_a_link_that_is_lost_with_a_hole_comes_back_without_it() -> None:
    async def story(world: World) -> None:
        link = link_of(world, 0, 0)
        assert link.control is not None
        with accounts(link.control, lost):
            link.watched = True
            world.runtimes[0].health.look_closely()
            await asyncio.sleep(0.05)
            assert link.holds_up
            world.fabric.cut((0, 0))
            await asyncio.sleep(0.05)
            assert not link.is_up
            assert not link.is_suspected
        world.fabric.restore((0, 0))
        await asyncio.sleep(2.0)
        assert link.is_up
        assert world.runtimes[0].courier.path(1) is link

    simulate(story)


def test_a_hole_behind_which_nobody_waits_any_more_is_watched_until_it_is_filled() -> None:
    async def story(world: World) -> None:
        await asyncio.sleep(0.3)
        link = link_of(world, 0, 0)
        assert link.lane is not None
        link.bulk_holes.is_held_up = link.lane.is_diverted = True
        assert not link.lane.outstanding
        assert not link.watched
        world.runtimes[0].health.look_closely()
        await asyncio.sleep(0.1)
        assert not link.is_suspected
        assert not link.lane.is_diverted

    simulate(story)


def run_on_one_node(story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World(Shape(one_node=True))
        await world.start()
        await story(world)
        await world.close()

    run(main())


def test_memory_that_its_peer_does_not_read_is_not_asked_again() -> None:
    async def story(world: World) -> None:
        link = next(iter(world.runtimes[0].courier.links_up(1)))
        assert link.id.is_shared
        assert link.control is not None
        with frames(link.control) as said, accounts(link.control, waits):
            link.watched = True
            world.runtimes[0].health.look_closely()
            await asyncio.sleep(0.1)
            assert beats(said) == 0

    run_on_one_node(story)


def test_what_is_void_diverts_no_lane() -> None:
    async def story(world: World) -> None:
        link = link_of(world, 0, 0)
        assert link.lane is not None
        link.bulk_holes.is_held_up = True
        link.route()
        assert link.lane.is_diverted
        link.void()
        assert not link.lane.is_diverted

    simulate(story)
