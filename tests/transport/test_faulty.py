"""The faulty wrapper beyond the laws of all transports: its rules, its guards, and what it pretends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from r2ccl.protocol.wire import Kind, pack_control
from r2ccl.sim.loop import SimClock, run
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport import fault_rules
from r2ccl.transport.fault_rules import DROP, PASS, Delay
from r2ccl.transport.faulty import FaultyDevice
from r2ccl.transport.interface import Loss, Purpose
from r2ccl.transport.memory import Fabric
from tests.transport.harness import Recorder, Side, World, chunk_header, is_held, landing_of, pattern

LARGE = 256 << 10


class Lab(World):
    """Rank 0 is wrapped, the others are not."""

    carrier: list[tuple[int, bool]]
    faults: FaultyDevice


def lab(one_sided: bool = False) -> Lab:
    loop = asyncio.get_running_loop()
    fabric = Fabric(loop)
    carrier: list[tuple[int, bool]] = []

    def open_device(rank: int, nic: Nic) -> Any:
        device = fabric.device(nic, rank, one_sided=one_sided)
        if rank:
            return device
        made.faults = FaultyDevice(device, loop, SimClock(loop), lambda nic, up: carrier.append((nic, up)))
        return made.faults

    made = Lab(open_device, lambda rank, nic: Endpoint("memory", f"rank{rank}.nic{nic}", 0))
    made.carrier = carrier
    return made


def now() -> float:
    return asyncio.get_running_loop().time()


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def on_the_virtual_loop() -> None:
        run(test())

    on_the_virtual_loop.__name__ = test.__name__
    return on_the_virtual_loop


async def arrival_s(world: World, side: Side, count: int) -> float:
    began = now()
    await world.until(lambda: len(side.hears.payloads()) >= count)
    return now() - began


@in_virtual_time
async def test_a_cut_and_its_mending_are_told_as_carrier_events() -> None:
    world = lab()
    await world.pair()
    with world.faults.cut():
        await asyncio.sleep(0)
        assert world.carrier == [(0, False)]
    await asyncio.sleep(0)
    assert world.carrier == [(0, False), (0, True)]


@in_virtual_time
async def test_two_cuts_overlap_as_one() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    first, second = world.faults.cut(), world.faults.cut()
    here.send(chunk_header(b"x"), b"x")
    first.remove()
    first.remove()
    await asyncio.sleep(1)
    assert other.hears.payloads() == []
    second.remove()
    await world.until(lambda: other.hears.payloads() == [b"x"])
    assert world.carrier == [(0, False), (0, True)]


@in_virtual_time
async def test_a_cut_holds_both_directions_and_every_kind_of_event() -> None:
    world = lab()
    one, other, here, there = await world.pair()
    guard = world.faults.cut()
    heard = list(one.hears.events)
    for connection in (here, there):
        connection.send(chunk_header(b"small"), b"small")
        connection.send(chunk_header(pattern(LARGE), 1), pattern(LARGE))
        connection.send(*pack_control(Kind.BEAT, 0, 1, []))
    await asyncio.sleep(1)
    assert one.hears.events == heard
    assert other.hears.of("chunk", "landed", "control") == []
    guard.remove()
    await world.until(lambda: bool(one.hears.of("control")) and bool(other.hears.of("control")))
    assert one.hears.payloads() == other.hears.payloads() == [b"small", pattern(LARGE)]
    await world.until(lambda: one.hears.events[-1].kind == "batch_ended")


@in_virtual_time
async def test_the_end_of_the_peer_is_not_heard_through_a_cut() -> None:
    world = lab()
    one, _, here, there = await world.pair()
    guard = world.faults.cut()
    there.send(chunk_header(b"last words"), b"last words")
    await asyncio.sleep(0.1)
    there.abort()
    await asyncio.sleep(1)
    assert one.hears.of("lost") == []
    guard.remove()
    await world.until(lambda: bool(one.hears.of("lost", connection=here)))
    assert one.hears.payloads() == [b"last words"]


@in_virtual_time
async def test_a_payload_that_is_arriving_when_the_cut_comes_is_told_after_it() -> None:
    world = lab()
    one, _, _, there = await world.pair()
    there.send(chunk_header(pattern(LARGE)), pattern(LARGE))
    await world.until(lambda: bool(one.hears.of("destination")))
    guard = world.faults.cut()
    await asyncio.sleep(1)
    assert one.hears.of("landed") == []
    guard.remove()
    await world.until(lambda: bool(one.hears.of("landed")))
    assert one.hears.payloads() == [pattern(LARGE)]
    assert len(one.hears.of("destination")) == 1


@pytest.mark.parametrize("wait_s", [0.0, 1.0], ids=["while it arrives", "when it has arrived"])
def test_a_payload_that_is_discarded_during_a_cut_is_never_told(wait_s: float) -> None:
    async def main() -> None:
        world = lab()
        one, _, here, there = await world.pair()
        there.send(chunk_header(pattern(LARGE)), pattern(LARGE))
        await world.until(lambda: bool(one.hears.of("destination")))
        guard = world.faults.cut()
        await asyncio.sleep(wait_s)
        here.discard_incoming()
        there.send(chunk_header(b"next", 1), b"next")
        await asyncio.sleep(1)
        guard.remove()
        await world.until(lambda: bool(one.hears.of("chunk")))
        assert one.hears.payloads() == [b"next"]

    run(main())


@in_virtual_time
async def test_frames_that_a_cut_holds_can_be_withdrawn_and_are_let_go_by_abort() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    guard = world.faults.cut()
    memories = [bytearray(LARGE), bytearray(LARGE)]
    for operation, memory in enumerate(memories, start=1):
        here.send(chunk_header(memory, operation, operation), memoryview(memory))
    assert here.withdraw(77, 2)
    assert [is_held(memory) for memory in memories] == [True, False]
    here.abort()
    assert not is_held(memories[0])
    guard.remove()
    await asyncio.sleep(1)
    assert other.hears.payloads() == []


@in_virtual_time
async def test_what_is_held_shows_first_as_in_flight_and_then_as_unsent() -> None:
    world = lab()
    _, _, here, _ = await world.pair()
    world.faults.cut()
    for number in range(4):
        here.send(chunk_header(pattern(LARGE), number), pattern(LARGE))
    await asyncio.sleep(2)
    sample = here.sample()
    assert sample.in_flight_bytes >= LARGE
    assert sample.unsent_bytes >= 2 * LARGE
    assert sample.silence_s >= 2
    assert not sample.limited


@in_virtual_time
async def test_a_silence_covers_only_the_connections_that_it_names() -> None:
    world = lab()
    one, other, third = world.side(0), world.side(1), world.side(2)
    dead, _ = await world.connect(one, other)
    alive, _ = await world.connect(one, third)
    world.faults.silence(lambda connection: connection.peer == 1)
    for connection in (dead, alive):
        connection.send(chunk_header(b"x"), b"x")
    await asyncio.sleep(1)
    assert (other.hears.payloads(), third.hears.payloads()) == ([], [b"x"])
    assert world.carrier == []


@in_virtual_time
async def test_who_dials_into_a_cut_is_heard_of_when_it_ends() -> None:
    world = lab()
    one, other = world.side(0), world.side(1)
    guard = world.faults.cut()
    world.dial(other, one)
    await asyncio.sleep(0.5)
    assert one.hears.events == []
    guard.remove()
    await world.until(lambda: bool(one.hears.of("established")))
    assert one.hears.of("established")[0].connection.peer == 1


@in_virtual_time
async def test_a_dial_that_is_on_its_way_when_the_cut_comes_is_unreachable() -> None:
    world = lab()
    one, other = world.side(0), world.side(1)
    dialled = world.dial(one, other)
    world.faults.cut()
    await world.until(lambda: bool(one.hears.of("lost")))
    assert [(e.connection, e.loss) for e in one.hears.of("lost")] == [(dialled, Loss.UNREACHABLE)]
    await world.until(lambda: bool(other.hears.of("lost")))


@in_virtual_time
async def test_a_dial_into_a_cut_can_be_aborted() -> None:
    world = lab()
    one, other = world.side(0), world.side(1)
    world.faults.cut()
    one.device.dial(1, 0, other.endpoint, Purpose.BULK).abort()
    await asyncio.sleep(10)
    assert one.hears.events == []


@in_virtual_time
async def test_the_first_rule_that_does_not_let_pass_decides() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    world.faults.install(lambda _: PASS)
    world.faults.install(lambda _: Delay(0.5))
    world.faults.install(lambda _: DROP)
    here.send(chunk_header(b"x"), b"x")
    assert await arrival_s(world, other, 1) == pytest.approx(0.5, rel=0.01)


@in_virtual_time
async def test_a_delay_keeps_the_order_and_lets_frames_travel_together() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    guard = world.faults.install(fault_rules.delay(0.2))
    for number in range(3):
        here.send(chunk_header(b"slow", number), b"slow")
    guard.remove()
    here.send(chunk_header(b"fast", 3), b"fast")
    assert await arrival_s(world, other, 4) == pytest.approx(0.2, rel=0.01)
    assert other.hears.chunk_numbers() == [0, 1, 2, 3]


@in_virtual_time
async def test_an_answer_takes_as_much_longer_as_the_latest_frame_was_delayed() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    here.send(chunk_header(b"fast"), b"fast")
    await arrival_s(world, other, 1)
    usual_s = here.sample().rtt_s
    guard = world.faults.install(fault_rules.delay(0.2))
    assert here.sample().rtt_s == usual_s
    here.send(chunk_header(b"slow", 1), b"slow")
    assert here.sample().rtt_s == pytest.approx(usual_s + 0.2)
    guard.remove()
    assert here.sample().rtt_s == usual_s


@in_virtual_time
async def test_a_rate_paces_all_frames_together() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    world.faults.install(fault_rules.rate(1e6))
    for number in range(4):
        here.send(chunk_header(pattern(LARGE), number), pattern(LARGE))
    assert await arrival_s(world, other, 4) == pytest.approx(4 * LARGE / 1e6, rel=0.01)


@in_virtual_time
async def test_a_corrupted_payload_is_spoiled_and_the_senders_memory_is_not() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    world.faults.install(fault_rules.corrupt_chunk(2))
    memory = bytearray(pattern(LARGE))
    for number in range(3):
        here.send(chunk_header(memory, number), memoryview(memory))
    await world.until(lambda: other.hears.chunk_numbers() == [0, 2])
    assert len(other.hears.of("spoiled")) == 1
    assert memory == pattern(LARGE)


@in_virtual_time
async def test_a_dropped_frame_holds_up_all_behind_it_until_its_rule_is_gone() -> None:
    world = lab()
    _, other, here, _ = await world.pair()
    guard = world.faults.install(lambda passage: DROP if passage.header.chunk == 1 else PASS)
    for number in range(3):
        here.send(chunk_header(b"x", number), b"x")
    await asyncio.sleep(5)
    assert other.hears.chunk_numbers() == [0]
    assert here.sample().in_flight_bytes > 0
    assert not here.sample().limited
    assert here.sample().silence_s > 4
    guard.remove()
    await world.until(lambda: other.hears.chunk_numbers() == [0, 1, 2])


@in_virtual_time
async def test_writes_are_held_and_what_landed_before_the_abort_is_told() -> None:
    world = lab(one_sided=True)
    one, other, here, there = await world.pair()
    memory, theirs = bytearray(100), bytearray(100)
    key = one.device.register(memoryview(memory)).key
    far_key = other.device.register(memoryview(theirs)).key
    world.faults.cut()
    there.write(chunk_header(b"in"), memoryview(b"in"), landing_of(key, 100), 0)
    here.write(chunk_header(b"out"), memoryview(b"out"), landing_of(far_key, 100), 0)
    await asyncio.sleep(1)
    assert (bytes(memory[:2]), bytes(theirs[:3])) == (b"in", bytes(3))
    assert one.hears.of("landed") == []
    here.abort()
    assert len(one.hears.of("landed")) == 1


@in_virtual_time
async def test_a_healthy_connection_passes_frames_straight_through() -> None:
    world = lab()
    _, _, here, _ = await world.pair()
    guard = world.faults.install(fault_rules.delay(1))
    guard.remove()
    memory = bytearray(10)
    here.send(chunk_header(memory), memoryview(memory))
    assert repr(here) == "<faulty nic0->rank1.nic0 open, 0 held>"


def test_a_device_that_does_not_listen_has_nobody_to_tell_about_a_dial() -> None:
    async def main() -> None:
        world = lab()
        device = world.open_device(0, Nic(0, "nic0", world.address(0, 0)))
        with pytest.raises(ValueError, match="must listen"):
            device.dial(1, 0, Endpoint("memory", "rank1.nic0", 1), Purpose.BULK)
        assert Recorder(world.news).events == []

    run(main())
