"""Laws that bind transports whose paths can be severed without a word."""

from __future__ import annotations

from r2ccl.transport.interface import Loss
from tests.transport.harness import (
    LARGE,
    World,
    chunk_header,
    is_held,
    pattern,
)


async def a_dial_over_a_dead_path_ends_as_unreachable(world: World) -> None:
    one, other = world.side(0), world.side(1)
    assert world.sever is not None
    world.sever(one)
    dialled = world.dial(one, other)
    await world.until(lambda: bool(one.hears.of("lost")))
    assert [(event.connection, event.loss) for event in one.hears.of("lost")] == [(dialled, Loss.UNREACHABLE)]
    assert other.hears.of("established") == []


async def a_dead_path_shows_as_bytes_in_flight_and_growing_silence(world: World) -> None:
    one, other, here, _ = await world.pair()
    assert world.sever is not None
    world.sever(one)
    before = here.sample()
    here.send(chunk_header(pattern(1000)), pattern(1000))
    await world.pass_time(0.01)
    early = here.sample()
    await world.pass_time(0.05)
    late = here.sample()
    assert early.in_flight_bytes >= 1000 > before.in_flight_bytes
    assert not late.limited
    assert late.silence_s >= early.silence_s + 0.04
    assert other.hears.payloads() == []
    assert one.hears.of("lost") == []


async def a_path_that_comes_back_in_time_has_lost_nothing(world: World) -> None:
    one, other, here, there = await world.pair()
    assert world.sever is not None
    payloads = [pattern((50, LARGE)[number % 2], number) for number in range(10)]
    for number in range(0, 5):
        here.send(chunk_header(payloads[number], number), payloads[number])
        there.send(chunk_header(payloads[number], number), payloads[number])
    await world.pass_time(0.0001)
    mend = world.sever(one)
    for number in range(5, 10):
        here.send(chunk_header(payloads[number], number), payloads[number])
        there.send(chunk_header(payloads[number], number), payloads[number])
    await world.pass_time(0.02)
    assert len(other.hears.payloads()) < 10
    mend()
    await world.until(lambda: len(one.hears.payloads()) == len(other.hears.payloads()) == 10)
    assert one.hears.payloads() == other.hears.payloads() == payloads


async def abort_gives_memory_back_on_a_dead_path_too(world: World) -> None:
    one, other, here, _ = await world.pair()
    assert world.sever is not None
    mend = world.sever(one)
    memory = bytearray(1 << 20)
    for number in range(4):
        here.send(chunk_header(memory, number), memoryview(memory))
    await world.pass_time(0.01)
    here.abort()
    assert not is_held(memory)
    mend()
    fresh, _ = await world.connect(one, other)
    fresh.send(chunk_header(b"anew"), b"anew")
    await world.until(lambda: bool(other.hears.of("chunk")))
    assert other.hears.payloads() == [b"anew"]
