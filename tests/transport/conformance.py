"""The laws that every transport keeps, so that actors proved on one may run on all.

Each law is a coroutine over a :class:`World` of the transport; its name is the law. Laws for one-sided transports, and
those that need a path to be severed, bind only transports that can do it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from r2ccl.protocol.wire import Kind, pack_control, pack_header
from r2ccl.transport.interface import Connection, Loss, Purpose
from tests.transport.harness import (
    COMMUNICATOR,
    Check,
    Law,
    World,
    chunk_header,
    is_held,
    landing_of,
    numbers,
    pattern,
    spoiled_header,
)

KIB = 1 << 10
SMALL = 16 * KIB
LARGE = 256 * KIB
HUGE = 4 << 20


async def both_ends_hear_who_is_at_the_other(world: World) -> None:
    one, other = world.side(0, 1), world.side(1, 2)
    for purpose in Purpose:
        here, there = await world.connect(one, other, purpose)
        assert (here.peer, here.local_nic, here.remote_nic, here.purpose) == (1, 1, 2, purpose)
        assert (there.peer, there.local_nic, there.remote_nic, there.purpose) == (0, 2, 1, purpose)
        assert (here.peer_incarnation, there.peer_incarnation) == (1001, 1000)
        assert here.one_sided is there.one_sided is one.device.one_sided


async def established_never_comes_before_dial_returned(world: World) -> None:
    one, other = world.side(0), world.side(1)
    dialled = world.dial(one, other)
    assert one.hears.events == []
    await world.until(lambda: bool(one.hears.of("established")))
    assert one.hears.of("established")[0].connection is dialled


async def frames_arrive_in_the_order_they_were_sent(world: World) -> None:
    _, other, here, there = await world.pair()
    sizes = [(0, 7, 900, SMALL, SMALL + 1, 100_001)[number % 6] for number in range(60)]
    for number, size in enumerate(sizes):
        payload = pattern(size, number)
        here.send(chunk_header(payload, number), payload)
        here.send(*pack_control(Kind.ACK, 0, 1, [number]))
    await world.until(lambda: len(other.hears.of("control")) == 60)
    arrived = other.hears.of("chunk", "landed", "control", connection=there)
    assert [event.kind == "control" for event in arrived] == [False, True] * 60
    assert other.hears.payloads() == [pattern(size, number) for number, size in enumerate(sizes)]


async def payloads_of_every_size_arrive_whole_both_ways(world: World) -> None:
    one, other, here, there = await world.pair()
    sizes = [0, 1, 3, 4095, SMALL - 1, SMALL, SMALL + 1, 64 * KIB, LARGE - 1, LARGE, LARGE + 1, 1 << 20, HUGE]
    for number, size in enumerate(sizes):
        payload = pattern(size, number)
        here.send(chunk_header(payload, number), memoryview(payload))
        there.send(chunk_header(payload, number), payload)
    await world.until(lambda: len(one.hears.payloads()) == len(other.hears.payloads()) == len(sizes))
    expected = [pattern(size, number) for number, size in enumerate(sizes)]
    assert one.hears.payloads() == expected
    assert other.hears.payloads() == expected


async def a_control_frame_keeps_its_header_and_body(world: World) -> None:
    _, other, here, _ = await world.pair()
    header, body = pack_control(Kind.NOTICE, 0, 1, ["x" * 60_000])
    here.send(header, body)
    here.send(*pack_control(Kind.BEAT, 0, 1, []))
    await world.until(lambda: len(other.hears.of("control")) == 2)
    notice, beat = other.hears.of("control")
    assert notice.header is not None
    assert beat.header is not None
    assert (notice.header.kind, notice.header.source, notice.header.target) == (Kind.NOTICE, 0, 1)
    assert notice.payload == body
    assert beat.header.kind == Kind.BEAT


async def a_small_chunk_comes_whole_without_asking_for_a_destination(world: World) -> None:
    _, other, here, _ = await world.pair()
    for number, size in enumerate((0, 1, 1000, SMALL)):
        here.send(chunk_header(pattern(size), number), pattern(size))
    await world.until(lambda: len(other.hears.of("chunk")) == 4)
    assert other.hears.of("destination", "landed") == []


async def a_large_chunk_asks_once_where_to_and_lands_there(world: World) -> None:
    _, other, here, there = await world.pair()
    place = memoryview(bytearray(LARGE))
    other.hears.places[5] = place
    payload = pattern(LARGE)
    here.send(chunk_header(payload, 5), payload)
    await world.until(lambda: bool(other.hears.of("landed")))
    asked, landed = other.hears.of("destination", "landed", connection=there)
    assert (asked.kind, landed.kind) == ("destination", "landed")
    assert asked.header == landed.header
    assert place == payload


async def after_the_last_event_of_a_turn_the_batch_ends(world: World) -> None:
    _, other, here, there = await world.pair()
    for number in range(30):
        here.send(chunk_header(b"x", number), b"x")
    await world.until(lambda: len(other.hears.of("chunk")) == 30 and other.hears.events[-1].kind == "batch_ended")
    kinds = [event.kind for event in other.hears.events if event.connection is there]
    assert kinds[-1] == "batch_ended"
    assert not any(pair == ("batch_ended", "batch_ended") for pair in zip(kinds, kinds[1:], strict=False))


async def a_payload_that_fails_its_checksum_costs_only_that_chunk(world: World) -> None:
    _, other, here, there = await world.pair()
    for number, size in enumerate((100, LARGE)):
        here.send(spoiled_header(pattern(size), number), pattern(size))
    here.send(chunk_header(b"fine", 2), b"fine")
    await world.until(lambda: bool(other.hears.of("chunk")))
    assert numbers(other.hears.of("spoiled", connection=there)) == [0, 1]
    assert other.hears.payloads() == [b"fine"]
    assert other.hears.of("lost") == []


async def a_payload_without_checksum_is_taken_as_it_comes(world: World) -> None:
    _, other, here, _ = await world.pair()
    here.send(pack_header(Kind.CHUNK, 0, LARGE, COMMUNICATOR, 1, payload_checksum=1), pattern(LARGE))
    await world.until(lambda: bool(other.hears.of("landed")))
    assert other.hears.payloads() == [pattern(LARGE)]


async def a_header_that_fails_its_check_ends_the_connection(world: World) -> None:
    one, other, here, there = await world.pair()
    here.send(chunk_header(b"good"), b"good")
    here.send(b"\x00" * 64, b"")
    here.send(chunk_header(b"never"), b"never")
    await world.until(lambda: bool(other.hears.of("lost")) and bool(one.hears.of("lost")))
    assert [event.loss for event in other.hears.of("lost", connection=there)] == [Loss.BAD_FRAME]
    assert one.hears.of("lost")[0].connection is here
    assert other.hears.payloads() == [b"good"]


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


# Laws of paths that can be severed.


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


# Laws of one-sided transports.


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


# Laws of one-sided transports whose paths can be severed.


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


def _laws(*checks: Check, one_sided: bool = False, severable: bool = False, flushes: bool = False) -> list[Law]:
    return [Law(check, one_sided, severable, flushes) for check in checks]


LAWS: Final = tuple(
    _laws(
        both_ends_hear_who_is_at_the_other,
        established_never_comes_before_dial_returned,
        frames_arrive_in_the_order_they_were_sent,
        payloads_of_every_size_arrive_whole_both_ways,
        a_control_frame_keeps_its_header_and_body,
        a_small_chunk_comes_whole_without_asking_for_a_destination,
        a_large_chunk_asks_once_where_to_and_lands_there,
        after_the_last_event_of_a_turn_the_batch_ends,
        a_payload_that_fails_its_checksum_costs_only_that_chunk,
        a_payload_without_checksum_is_taken_as_it_comes,
        a_header_that_fails_its_check_ends_the_connection,
        withdrawn_frames_do_not_arrive_and_the_others_do,
        memory_of_frames_that_were_withdrawn_in_full_is_not_held,
        what_withdraw_cannot_give_back_abort_does,
        a_frame_that_loses_its_destination_is_thrown_away_and_the_stream_goes_on,
        discarding_when_nothing_is_being_received_does_nothing,
        an_aborted_connection_holds_no_view_and_the_peer_hears_of_it,
        a_receiver_that_aborts_gets_its_destination_back_untouched_from_then_on,
        a_connection_may_be_aborted_from_within_any_event,
        nobody_listening_means_refused,
        somebody_else_listening_means_not_admitted,
        a_dial_that_is_aborted_at_once_is_never_heard_of_again,
        many_connections_keep_their_frames_apart,
        an_idle_connection_accuses_nobody,
        what_was_not_taken_over_counts_as_unsent,
        a_closed_device_ends_its_connections_and_refuses_new_ones,
        registered_memory_is_given_back_as_it_was,
    )
    + _laws(
        a_dial_over_a_dead_path_ends_as_unreachable,
        a_dead_path_shows_as_bytes_in_flight_and_growing_silence,
        a_path_that_comes_back_in_time_has_lost_nothing,
        abort_gives_memory_back_on_a_dead_path_too,
        severable=True,
    )
    + _laws(
        a_write_lands_in_registered_memory_and_is_told_in_order,
        several_completions_come_in_one_batch,
        a_write_that_fails_its_checksum_is_told_as_spoiled,
        memory_of_a_write_is_held_until_it_has_landed,
        a_write_to_deregistered_memory_ends_the_connection_at_both_ends,
        a_write_beyond_its_region_ends_the_connection,
        once_the_target_has_aborted_no_byte_is_written_to_its_memory,
        once_the_source_has_aborted_its_memory_is_not_read,
        one_sided=True,
    )
    + _laws(a_dead_path_flushes_what_was_in_flight, severable=True, flushes=True)
)
