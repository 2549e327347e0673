"""What the memory transport models of one-sided hardware beyond the laws: how writes tear, and what a loss leaves."""

from __future__ import annotations

import asyncio

from r2ccl.sim.loop import run
from r2ccl.transport.interface import Loss
from r2ccl.transport.memory_path import Model
from tests.transport.harness import LARGE, chunk_header, landing_of, pattern
from tests.transport.memory_lab import MIB, in_virtual_time, lab


@in_virtual_time
async def test_a_write_that_is_not_complete_shows_as_torn_memory() -> None:
    world = lab(one_sided=True)
    _, other, here, _ = await world.pair()
    memory = bytearray(MIB)
    key = other.device.register(memoryview(memory)).key
    payload = b"\xff" * MIB
    here.write(chunk_header(payload), memoryview(payload), landing_of(key, MIB), 0)
    await world.until_true(lambda: memory[0] == 0xFF)
    assert memory[-1] == 0
    assert other.hears.of("landed") == []
    await world.until(lambda: bool(other.hears.of("landed")))
    assert memory == payload


@in_virtual_time
async def test_a_write_reads_its_source_as_late_as_at_delivery() -> None:
    world = lab(one_sided=True)
    _, other, here, _ = await world.pair()
    target, source = bytearray(MIB), bytearray(MIB)
    key = other.device.register(memoryview(target)).key
    here.write(chunk_header(source), memoryview(source), landing_of(key, MIB), 0)
    await asyncio.sleep(0)
    source[:] = b"\xff" * MIB
    await world.until(lambda: bool(other.hears.of("spoiled")))
    assert target == source


@in_virtual_time
async def test_writes_land_in_the_memory_of_a_frozen_process_which_hears_of_them_later() -> None:
    world = lab(one_sided=True)
    one, other, here, _ = await world.pair()
    memory = bytearray(LARGE)
    key = other.device.register(memoryview(memory)).key
    world.fabric.freeze(1)
    here.write(chunk_header(pattern(LARGE)), memoryview(pattern(LARGE)), landing_of(key, LARGE), 0)
    await asyncio.sleep(10)
    assert memory == pattern(LARGE)
    assert one.hears.of("lost") == other.hears.of("landed") == []
    world.fabric.thaw(1)
    await world.until(lambda: bool(other.hears.of("landed")))


def test_what_was_on_the_wire_at_a_loss_may_or_may_not_have_landed() -> None:
    async def landed_bytes(seed: int) -> int:
        world = lab(one_sided=True, seed=seed)
        one, other, here, _ = await world.pair()
        memory = bytearray(MIB)
        key = other.device.register(memoryview(memory)).key
        payload = b"\xff" * MIB
        here.write(chunk_header(payload), memoryview(payload), landing_of(key, MIB), 0)
        await world.until_true(lambda: memory[0] == 0xFF)
        world.fabric.cut((0, 0))
        await world.until(lambda: bool(one.hears.of("lost")))
        assert one.hears.of("lost")[0].loss is Loss.FLUSHED
        return memory.count(0xFF)

    outcomes = [run(landed_bytes(seed)) for seed in range(20)]
    assert len(set(outcomes)) > 1
    assert outcomes == [run(landed_bytes(seed)) for seed in range(20)]


@in_virtual_time
async def test_abort_reports_what_has_landed_first() -> None:
    world = lab(one_sided=True, model=Model(completion_delay_s=0.3))
    _, other, here, there = await world.pair()
    memory = bytearray(100)
    key = other.device.register(memoryview(memory)).key
    here.write(chunk_header(b"x" * 10), memoryview(b"x" * 10), landing_of(key, 100), 0)
    await world.until_true(lambda: memory[:10] == b"x" * 10)
    await asyncio.sleep(0.01)
    assert other.hears.of("landed") == []
    there.abort()
    assert [event.kind for event in other.hears.events[-2:]] == ["landed", "batch_ended"]


@in_virtual_time
async def test_a_flap_shorter_than_the_adapters_patience_loses_nothing() -> None:
    world = lab(one_sided=True)
    one, other, here, _ = await world.pair()
    memory = bytearray(MIB)
    key = other.device.register(memoryview(memory)).key
    here.write(chunk_header(pattern(MIB)), memoryview(pattern(MIB)), landing_of(key, MIB), 0)
    await asyncio.sleep(3e-3)
    world.fabric.silent_drop((0, 0))
    await asyncio.sleep(0.1)
    world.fabric.restore((0, 0))
    await world.until(lambda: bool(other.hears.of("landed")))
    assert memory == pattern(MIB)
    assert one.hears.of("lost") == []


@in_virtual_time
async def test_a_write_of_a_single_byte_can_be_spoiled_too() -> None:
    world = lab(one_sided=True, model=Model(small_bytes=0))
    _, other, here, _ = await world.pair()
    memory = bytearray(1)
    key = other.device.register(memoryview(memory)).key
    world.fabric.corrupt(lambda *_: True)
    here.write(chunk_header(b"\xff"), memoryview(b"\xff"), landing_of(key, 1), 0)
    await world.until(lambda: bool(other.hears.of("spoiled")))
    assert memory != b"\xff"
