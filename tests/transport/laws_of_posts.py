"""Laws of the short way through shared memory: what is posted is a frame like any other, and is found sooner."""

from __future__ import annotations

import asyncio

from r2ccl.protocol.wire import BadFrame, Header, Kind, pack_control
from r2ccl.transport.interface import Connection, Posts
from tests.transport.harness import HUGE, LARGE, SMALL, World, chunk_header, pattern

NOTE = ("whose",)


def short_way(connection: Connection) -> Posts:
    posts = connection.posts
    assert posts is not None
    return posts


async def found(world: World, posts: Posts) -> tuple[Header, memoryview]:
    """The oldest frame, before the loop reads it: at once, or when it has had the time to arrive."""
    async with asyncio.timeout(5.0):
        while (frame := posts.next_frame(True)) is None:
            await world.pass_time(10e-6)
    return frame


async def what_was_posted_is_found_before_the_loop_looks_and_comes_no_other_way(world: World) -> None:
    _, other, here, there = await world.pair()
    for number, size in enumerate((0, 1, 900, SMALL)):
        payload = pattern(size, number)
        assert short_way(here).post(chunk_header(payload, number), memoryview(payload), NOTE)
        header, seen = await found(world, short_way(there))
        assert (header.kind, header.chunk, bytes(seen)) == (Kind.CHUNK, number, payload)
        short_way(there).take((header, seen))
    here.send(*pack_control(Kind.ACK, 0, 1, [1]))
    await world.until(lambda: bool(other.hears.of("control")))
    assert other.hears.payloads() == []


async def what_nobody_takes_comes_like_any_other_in_its_place(world: World) -> None:
    _, other, here, there = await world.pair()
    for number in range(6):
        payload = pattern(100 * number, number)
        if number % 2:
            here.send(chunk_header(payload, number), payload)
        else:
            await world.until_true(
                lambda number=number, payload=payload: short_way(here).post(  # type: ignore[misc]
                    chunk_header(payload, number), memoryview(payload), NOTE
                )
            )
    header, _ = await found(world, short_way(there))
    assert header.chunk == 0
    await world.until(lambda: len(other.hears.payloads()) == 6)
    assert other.hears.chunk_numbers() == list(range(6))


async def the_first_is_taken_and_the_loop_reads_the_second(world: World) -> None:
    _, other, here, there = await world.pair()
    first, second = pattern(10, 1), pattern(20, 2)
    assert short_way(here).post(chunk_header(first, 1), memoryview(first), NOTE)
    frame = await found(world, short_way(there))
    here.send(chunk_header(second, 2), second)
    short_way(there).take(frame)
    await world.until(lambda: bool(other.hears.payloads()))
    assert other.hears.payloads() == [second]


async def nothing_is_posted_before_what_waits(world: World) -> None:
    _, other, here, _ = await world.pair()
    large, small = pattern(HUGE), pattern(10)
    here.send(chunk_header(large, 0), large)
    assert not short_way(here).post(chunk_header(small, 1), memoryview(small), NOTE)
    await world.until(lambda: bool(other.hears.payloads()))
    await world.until_true(lambda: short_way(here).post(chunk_header(small, 1), memoryview(small), NOTE))
    await world.until(lambda: len(other.hears.payloads()) == 2)
    assert other.hears.chunk_numbers() == [0, 1]


async def a_frame_of_which_a_part_is_missing_is_not_found(world: World) -> None:
    _, other, here, there = await world.pair()
    large = pattern(HUGE)
    here.send(chunk_header(large, 0), large)
    assert short_way(there).next_frame(False) is None
    await world.until(lambda: bool(other.hears.payloads()))


async def nothing_is_found_or_posted_once_the_connection_has_ended(world: World) -> None:
    _, other, here, there = await world.pair()
    posts, theirs = short_way(here), short_way(there)
    here.abort()
    assert here.posts is None
    assert not posts.post(chunk_header(b"x"), memoryview(b"x"), NOTE)
    assert posts.next_frame(True) is None
    await world.until(lambda: bool(other.hears.of("lost")))
    assert there.posts is None
    assert theirs.next_frame(True) is None


async def what_was_posted_and_not_read_is_given_out_once_to_whom_it_belongs(world: World) -> None:
    _, other, here, there = await world.pair()
    mine, yours = object(), object()
    frames = [(pattern(900, number), (yours if number == 1 else mine, number)) for number in range(3)]
    for number, (payload, note) in enumerate(frames):
        await world.until_true(
            lambda number=number, payload=payload, note=note: short_way(here).post(  # type: ignore[misc]
                chunk_header(payload, number), memoryview(payload), note
            )
        )
        if number == 0:
            short_way(there).take(await found(world, short_way(there)))
    posts = short_way(here)
    assert posts.left(mine) == [(frames[2][1], frames[2][0])]
    assert posts.left(mine) == []
    await world.until(lambda: len(other.hears.payloads()) == 2)
    assert posts.left(yours) == []


async def what_was_posted_and_not_read_is_left_when_the_connection_has_ended(world: World) -> None:
    _, other, here, _ = await world.pair()
    payload = pattern(LARGE)
    posts, note = short_way(here), (here, 1)
    other.hears.reactions["destination"] = lambda there: there.abort()
    assert posts.post(chunk_header(payload), memoryview(payload), note)
    await world.until(lambda: here.posts is None)
    assert posts.left(object()) == []
    assert posts.left(here) == [(note, payload)]
    assert posts.left(here) == []


async def what_was_posted_and_is_refused_when_it_has_landed_is_left(world: World) -> None:
    """Nobody has it: who reads it says so by ending the connection."""
    await _refused(world, LARGE, "landed")


async def what_was_posted_and_is_refused_in_the_ring_is_left(world: World) -> None:
    await _refused(world, SMALL // 2, "chunk")


async def _refused(world: World, size: int, where: str) -> None:
    def refuse(_: Connection) -> None:
        raise BadFrame("so it was said")

    _, other, here, _ = await world.pair()
    payload, posts, note = pattern(size), short_way(here), (here, 1)
    other.hears.reactions[where] = refuse
    assert posts.post(chunk_header(payload), memoryview(payload), note)
    await world.until(lambda: here.posts is None)
    assert posts.left(here) == [(note, payload)]
