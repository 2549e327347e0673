"""Laws that bind one-sided transports: writes, their notifications, and the fence when a connection ends."""

from __future__ import annotations

from r2ccl.protocol.wire import Kind, pack_control
from r2ccl.transport.interface import Loss
from tests.transport.harness import (
    COMMUNICATOR,
    LARGE,
    World,
    chunk_header,
    is_held,
    landing_of,
    numbers,
    pattern,
    spoiled_header,
)


async def a_write_lands_in_registered_memory_and_is_told_in_order(world: World) -> None:
    _, other, here, there = await world.pair()
    memory = bytearray(3 * LARGE)
    key = other.device.register(memoryview(memory)).key
    first, second = pattern(LARGE, 1), pattern(1, 2)
    here.write(chunk_header(first, 0), memoryview(first), landing_of(key, LARGE, offset=LARGE), 0)
    here.send(chunk_header(b"between", 1), b"between")
    here.write(chunk_header(second, 2), memoryview(second), landing_of(key, LARGE, offset=2 * LARGE), 5)
    here.write(chunk_header(b"", 3), memoryview(b""), landing_of(key, LARGE), 0)
    here.send(*pack_control(Kind.BEAT, 0, 1, []))
    await world.until(lambda: bool(other.hears.of("control")))
    told = other.hears.of("landed", "chunk", "control", connection=there)
    assert [event.kind for event in told] == ["landed", "chunk", "landed", "landed", "control"]
    assert numbers(told)[:4] == [0, 1, 2, 3]
    assert other.hears.of("destination") == []
    assert memory == bytes(LARGE) + first + bytes(5) + second + bytes(LARGE - 6)


async def several_completions_come_in_one_batch(world: World) -> None:
    _, other, here, there = await world.pair()
    key = other.device.register(memoryview(bytearray(1000))).key
    before = len(other.hears.of("batch_ended"))
    for number in range(50):
        here.write(chunk_header(b"0123456789", number), memoryview(b"0123456789"), landing_of(key, 1000), number * 10)
    await world.until(lambda: len(other.hears.of("landed")) == 50 and other.hears.events[-1].kind == "batch_ended")
    assert numbers(other.hears.of("landed", connection=there)) == list(range(50))
    assert len(other.hears.of("batch_ended")) - before < 50


async def a_write_that_fails_its_checksum_is_told_as_spoiled(world: World) -> None:
    _, other, here, _ = await world.pair()
    key = other.device.register(memoryview(bytearray(LARGE))).key
    payload = pattern(LARGE)
    here.write(spoiled_header(payload, 4), memoryview(payload), landing_of(key, LARGE), 0)
    here.send(chunk_header(b"on"), b"on")
    await world.until(lambda: bool(other.hears.of("chunk")))
    assert numbers(other.hears.of("spoiled")) == [4]
    assert other.hears.of("landed") == []


async def memory_of_a_write_is_held_until_it_has_landed(world: World) -> None:
    _, other, here, there = await world.pair()
    key = other.device.register(memoryview(bytearray(LARGE))).key
    memory = bytearray(pattern(LARGE))
    here.write(chunk_header(memory), memoryview(memory), landing_of(key, LARGE), 0)
    assert is_held(memory)
    await world.until(lambda: bool(other.hears.of("landed")))
    there.send(chunk_header(b"seen"), b"seen")
    await world.pass_time(0.01)
    assert not is_held(memory)
    assert here.withdraw(COMMUNICATOR, 1)


async def a_write_to_deregistered_memory_ends_the_connection_at_both_ends(world: World) -> None:
    one, other, here, there = await world.pair()
    memory = bytearray(LARGE)
    region = other.device.register(memoryview(memory))
    key = region.key
    other.device.deregister(region)
    del region
    payload = pattern(LARGE)
    here.write(chunk_header(payload), memoryview(payload), landing_of(key, LARGE), 0)
    await world.until(lambda: bool(one.hears.of("lost")) and bool(other.hears.of("lost")))
    assert one.hears.of("lost")[0].loss is Loss.FLUSHED
    assert other.hears.of("lost")[0].connection is there
    assert memory == bytes(LARGE)
    assert not is_held(memory)


async def a_write_beyond_its_region_ends_the_connection(world: World) -> None:
    one, other, here, _ = await world.pair()
    memory = bytearray(100)
    key = other.device.register(memoryview(memory)).key
    here.write(chunk_header(b"x" * 60), memoryview(b"x" * 60), landing_of(key, 60, offset=50), 0)
    await world.until(lambda: bool(one.hears.of("lost")) and bool(other.hears.of("lost")))
    assert memory == bytes(100)


async def once_the_target_has_aborted_no_byte_is_written_to_its_memory(world: World) -> None:
    one, other, here, there = await world.pair()
    memory = bytearray(8 * LARGE)
    key = other.device.register(memoryview(memory)).key
    payload = pattern(LARGE)
    for number in range(8):
        here.write(chunk_header(payload, number), memoryview(payload), landing_of(key, 8 * LARGE), number * LARGE)
    await world.until(lambda: len(other.hears.of("landed")) == 2)
    there.abort()
    told = len(other.hears.of("landed"))
    complete = [memory[at : at + LARGE] == payload for at in range(0, len(memory), LARGE)]
    assert sum(complete) <= told + 1, "what had landed and was notified is reported before abort returns"
    memory[:] = b"\xee" * len(memory)
    await world.until(lambda: bool(one.hears.of("lost")))
    await world.pass_time(0.5)
    assert memory == b"\xee" * len(memory)
    assert other.hears.of("lost") == []


async def once_the_source_has_aborted_its_memory_is_not_read(world: World) -> None:
    _, other, here, _ = await world.pair()
    target = bytearray(8 * LARGE)
    key = other.device.register(memoryview(target)).key
    memory = bytearray(pattern(8 * LARGE))
    here.write(chunk_header(memory), memoryview(memory), landing_of(key, 8 * LARGE), 0)
    await world.until_true(lambda: target[0:1000] == memory[0:1000])
    here.abort()
    assert not is_held(memory)
    memory[:] = b"\xee" * len(memory)
    await world.until(lambda: bool(other.hears.of("lost")))
    assert other.hears.of("landed") == []
    assert b"\xee" * 300 not in target


async def a_dead_path_flushes_what_was_in_flight(world: World) -> None:
    one, other, here, _ = await world.pair()
    memory, source = bytearray(8 * LARGE), bytearray(8 * LARGE)
    key = other.device.register(memoryview(memory)).key
    assert world.sever is not None
    world.sever(one)
    here.write(chunk_header(source), memoryview(source), landing_of(key, 8 * LARGE), 0)
    await world.until(lambda: bool(one.hears.of("lost")))
    assert [(event.connection, event.loss) for event in one.hears.of("lost")] == [(here, Loss.FLUSHED)]
    assert not is_held(source)
    assert other.hears.of("landed") == []
