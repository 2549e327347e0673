"""Laws of taking back and ending: withdraw, discard, abort, dials that fail, samples, closing."""

from __future__ import annotations

import asyncio

from r2ccl.protocol.wire import Kind, pack_control
from r2ccl.topology import Nic
from r2ccl.transport.interface import Connection, Loss, Purpose
from tests.transport.harness import (
    COMMUNICATOR,
    HUGE,
    LARGE,
    Recorder,
    Side,
    World,
    chunk_header,
    is_held,
    pattern,
    spoiled_header,
)


async def withdrawn_frames_do_not_arrive_and_the_others_do(world: World) -> None:
    _, other, here, _ = await world.pair()
    payload = pattern(1 << 20)
    here.send(chunk_header(b"early", 0, operation=1), b"early")
    for number in range(1, 17):
        here.send(chunk_header(payload, number, operation=2 + number % 2), payload)
    here.send(chunk_header(b"foreign", 17, operation=9, communicator=5), b"foreign")
    here.send(*pack_control(Kind.BEAT, 0, 1, []))
    here.withdraw(COMMUNICATOR, 2)
    here.send(chunk_header(b"late", 18, operation=1), b"late")
    await world.until(lambda: 18 in other.hears.chunk_numbers())
    arrived = other.hears.chunk_numbers()
    taken = arrived[1:-2]
    assert (arrived[0], arrived[-2:]) == (0, [17, 18])
    assert len(other.hears.of("control")) == 1
    assert taken == list(range(1, len(taken) + 1)), "only what the transport had begun may still arrive"
    assert len(taken) < 16


async def memory_of_frames_that_were_withdrawn_in_full_is_not_held(world: World) -> None:
    _, _, here, _ = await world.pair()
    ahead = bytes(1 << 20)
    for number in range(12):
        here.send(chunk_header(ahead, number, operation=1), ahead)
    memory = bytearray(pattern(LARGE))
    here.send(chunk_header(memory, 12, operation=2), memoryview(memory))
    assert is_held(memory)
    assert here.withdraw(COMMUNICATOR, 2)
    assert not is_held(memory)


async def what_withdraw_cannot_give_back_abort_does(world: World) -> None:
    _, _, here, _ = await world.pair()
    memories = [bytearray(HUGE) for _ in range(6)]
    for number, memory in enumerate(memories):
        here.send(chunk_header(memory, number), memoryview(memory))
    await world.until_true(lambda: here.sample().unsent_bytes < 6 * HUGE)
    assert not here.withdraw(COMMUNICATOR, 1), "a frame of which part is on its way cannot be withdrawn"
    assert sum(map(is_held, memories)) == 1
    here.abort()
    assert not any(map(is_held, memories))


async def a_frame_that_loses_its_destination_is_thrown_away_and_the_stream_goes_on(world: World) -> None:
    _, other, here, there = await world.pair()
    loop = asyncio.get_running_loop()
    memory = bytearray(HUGE)
    other.hears.places[0] = memoryview(memory)

    def give_to_somebody_else(connection: Connection) -> None:
        connection.discard_incoming()
        other.hears.places.clear()
        assert not is_held(memory)
        memory[:] = b"\xee" * HUGE

    def soon(connection: Connection) -> None:
        del other.hears.reactions["destination"]
        loop.call_soon(give_to_somebody_else, connection)

    other.hears.reactions["destination"] = soon
    payload = pattern(HUGE, 3)
    here.send(chunk_header(payload, 0), payload)
    here.send(chunk_header(pattern(LARGE, 4), 1), pattern(LARGE, 4))
    here.send(chunk_header(b"small", 2), b"small")
    await world.until(lambda: bool(other.hears.of("chunk")))
    assert other.hears.chunk_numbers(there) == [1, 2]
    assert other.hears.payloads() == [pattern(LARGE, 4), b"small"]
    assert memory == b"\xee" * HUGE


async def discarding_when_nothing_is_being_received_does_nothing(world: World) -> None:
    _, other, here, there = await world.pair()
    there.discard_incoming()
    for number, size in enumerate((10, LARGE)):
        here.send(chunk_header(pattern(size), number), pattern(size))
    await world.until(lambda: len(other.hears.payloads()) == 2)
    there.discard_incoming()
    here.send(chunk_header(pattern(LARGE), 2), pattern(LARGE))
    await world.until(lambda: len(other.hears.payloads()) == 3)


async def an_aborted_connection_holds_no_view_and_the_peer_hears_of_it(world: World) -> None:
    one, other, here, there = await world.pair()
    memory = bytearray(1 << 20)
    for number in range(12):
        here.send(chunk_header(memory, number), memoryview(memory))
    assert is_held(memory)
    here.abort()
    assert not is_held(memory)
    here.abort()
    here.send(chunk_header(b"x"), b"x")
    await world.until(lambda: bool(other.hears.of("lost")))
    assert other.hears.of("lost")[0].connection is there
    assert other.hears.of("lost")[0].loss in (Loss.RESET, Loss.END_OF_FILE)
    assert one.hears.of("lost") == []
    assert here.sample().in_flight_bytes == 0


async def a_receiver_that_aborts_gets_its_destination_back_untouched_from_then_on(world: World) -> None:
    one, other, here, there = await world.pair()
    memory = bytearray(HUGE)
    other.hears.places[0] = memoryview(memory)
    loop = asyncio.get_running_loop()

    def leave() -> None:
        there.abort()
        other.hears.places.clear()
        assert not is_held(memory)
        memory[:] = b"\xee" * HUGE

    other.hears.reactions["destination"] = lambda _: (loop.call_soon(leave), None)[1]
    payload = pattern(HUGE)
    here.send(chunk_header(payload, 0), payload)
    await world.until(lambda: bool(one.hears.of("lost")))
    assert one.hears.of("lost")[0].loss in (Loss.RESET, Loss.END_OF_FILE)
    assert other.hears.of("landed", "lost") == []
    assert memory == b"\xee" * HUGE


async def a_connection_may_be_aborted_from_within_any_event(world: World) -> None:
    one = world.side(0)
    for rank, kind in enumerate(("established", "control", "chunk", "destination", "landed", "spoiled"), start=1):
        other = world.side(rank)
        other.hears.reactions[kind] = lambda connection: connection.abort()
        dialled = world.dial(one, other)
        await world.until(lambda dialled=dialled: bool(one.hears.of("established", connection=dialled)))  # type: ignore[misc]
        for _ in range(3):
            dialled.send(*pack_control(Kind.BEAT, 0, rank, []))
            dialled.send(chunk_header(b"x", 0), b"x")
            dialled.send(chunk_header(pattern(LARGE), 1), pattern(LARGE))
            dialled.send(spoiled_header(pattern(LARGE), 2), pattern(LARGE))
        await world.until(lambda dialled=dialled: bool(one.hears.of("lost", connection=dialled)))  # type: ignore[misc]
        assert len(other.hears.of(kind)) == 1
        assert other.hears.events[-1].kind == kind, "an aborted connection has no more events"


async def nobody_listening_means_refused(world: World) -> None:
    one, other = world.side(0), world.side(1)
    other.device.close()
    dialled = world.dial(one, other)
    assert one.hears.events == []
    await world.until(lambda: bool(one.hears.of("lost")))
    assert [(event.connection, event.loss) for event in one.hears.of("lost")] == [(dialled, Loss.REFUSED)]


async def the_endpoint_that_was_reserved_is_the_one_that_is_listened_at(world: World) -> None:
    device = world.open_device(1, Nic(0, "nic0", world.address(1, 0)))
    reserved = device.reserve()
    hears = Recorder(world.news)
    assert device.listen(hears) == reserved
    try:
        await world.connect(world.side(0), Side(1, device, reserved, hears))
    finally:
        device.close()


async def somebody_else_listening_means_not_admitted(world: World) -> None:
    one, other = world.side(0), world.side(1)
    one.device.dial(2, 0, other.endpoint, Purpose.CONTROL)
    await world.until(lambda: bool(one.hears.of("lost")))
    assert [event.loss for event in one.hears.of("lost")] == [Loss.NOT_ADMITTED]
    assert other.hears.of("established") == []


async def a_dial_that_is_aborted_at_once_is_never_heard_of_again(world: World) -> None:
    one, other = world.side(0), world.side(1)
    world.dial(one, other).abort()
    await world.connect(one, other)
    assert len(one.hears.of("established")) == 1
    assert one.hears.of("lost") == []


async def many_connections_keep_their_frames_apart(world: World) -> None:
    one, other = world.side(0), world.side(1)
    ends = [await world.connect(*((one, other) if number % 2 else (other, one))) for number in range(20)]
    for number, (near, far) in enumerate(ends):
        for part in range(5):
            payload = pattern(1 + 7000 * part, number)
            near.send(chunk_header(payload, number * 10 + part), payload)
            far.send(chunk_header(payload, number * 10 + part), payload)
    await world.until(lambda: len(one.hears.payloads()) == len(other.hears.payloads()) == 100)
    for number, (near, far) in enumerate(ends):
        expected = [pattern(1 + 7000 * part, number) for part in range(5)]
        for connection in (near, far):
            assert one.hears.payloads(connection) + other.hears.payloads(connection) == expected


async def an_idle_connection_accuses_nobody(world: World) -> None:
    _, other, here, there = await world.pair()
    here.send(chunk_header(b"x"), b"x")
    await world.until(lambda: bool(other.hears.of("chunk")))
    there.send(chunk_header(b"y"), b"y")
    await world.until_true(lambda: there.sample().in_flight_bytes + there.sample().unsent_bytes == 0)
    sample = there.sample()
    assert sample.limited
    assert sample.rtt_s >= 0


async def an_account_tells_what_went_out_what_was_answered_and_how_long_that_took(world: World) -> None:
    _, other, here, there = await world.pair()
    await world.until_true(lambda: here.sample().in_flight_bytes + there.sample().in_flight_bytes == 0)
    assert 0 < here.sample().rtt_weight <= 1
    before, receivers = here.sample(), there.sample()
    payload = pattern(LARGE)
    for number in range(4):
        here.send(chunk_header(payload, number), payload)
    await world.until(lambda: len(other.hears.payloads()) == 4)
    await world.until_true(lambda: here.sample().in_flight_bytes + here.sample().unsent_bytes == 0)
    after = here.sample()
    assert after.acked_bytes - before.acked_bytes >= 4 * LARGE
    assert after.acked_bytes - before.acked_bytes < 5 * LARGE
    assert after.sent_segments > before.sent_segments
    sent = after.sent_segments - before.sent_segments
    resent = after.resent_segments - before.resent_segments
    assert after.answered_segments - before.answered_segments <= sent <= LARGE
    assert after.answered_segments - before.answered_segments >= sent - resent
    assert after.rtt_s > 0
    assert there.sample().acked_bytes - receivers.acked_bytes < LARGE


async def what_was_not_taken_over_counts_as_unsent(world: World) -> None:
    _, other, here, _ = await world.pair()
    payload = pattern(HUGE)
    for number in range(8):
        here.send(chunk_header(payload, number), payload)
    assert here.sample().unsent_bytes > 8 * HUGE // 2
    await world.until(lambda: len(other.hears.payloads()) == 8)
    assert here.sample().unsent_bytes == 0


async def a_closed_device_ends_its_connections_and_refuses_new_ones(world: World) -> None:
    one, other, here, there = await world.pair()
    more, _ = await world.connect(other, one, Purpose.CONTROL)
    other.device.close()
    await world.until(lambda: len(one.hears.of("lost")) == 2)
    assert other.hears.of("lost") == []
    there.send(chunk_header(b"x"), b"x")
    more.send(chunk_header(b"x"), b"x")
    dialled = world.dial(one, other)
    await world.until(lambda: bool(one.hears.of("lost", connection=dialled)))
    assert one.hears.of("chunk") == []
    here.abort()


async def registered_memory_is_given_back_as_it_was(world: World) -> None:
    one = world.side(0)
    memory = bytearray(pattern(LARGE))
    region = one.device.register(memoryview(memory))
    assert region.memory == memory
    assert one.device.register(memoryview(bytearray(8))).key != region.key
    one.device.deregister(region)
    assert memory == pattern(LARGE)
