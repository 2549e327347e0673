"""Laws of frames: who is connected, what arrives, in which order, and whom it is told to."""

from __future__ import annotations

from r2ccl.protocol.relay import Word, pack_relayed
from r2ccl.protocol.wire import RELAYED_BYTES_MAX, Kind, pack_control, pack_header
from r2ccl.transport.interface import Loss, Purpose
from tests.transport.harness import (
    COMMUNICATOR,
    HUGE,
    KIB,
    LARGE,
    SMALL,
    World,
    chunk_header,
    numbers,
    pattern,
    spoiled_header,
)


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


async def relayed_frames_of_every_size_come_as_chunks_do_on_connections_of_both_purposes(world: World) -> None:
    one, other = world.side(0), world.side(1)
    sizes = [0, 64, SMALL, SMALL + 1, 64 * KIB + 64, LARGE, RELAYED_BYTES_MAX]
    payloads = [pattern(size, number) for number, size in enumerate(sizes)]
    for purpose in (Purpose.CONTROL, Purpose.BULK):
        here, there = await world.connect(one, other, purpose)
        for number, payload in enumerate(payloads):
            # A purpose is where a chunk's number is, by which places are told apart here.
            header = pack_relayed(Word.FRAME, 0, 1, 9, number=7, purpose=number, payload_bytes=len(payload))
            here.send(header, payload)
            here.send(*pack_control(Kind.BEAT, 0, 1, []))
        beats = (number + 1) * (1 + (purpose is Purpose.BULK))
        await world.until(lambda wanted=beats: len(other.hears.of("control")) == wanted)  # type: ignore[misc]
        assert other.hears.payloads(there) == payloads
        assert numbers(other.hears.of("chunk", connection=there))[:3] == [0, 1, 2]
        assert numbers(other.hears.of("destination", connection=there))[-2:] == [5, 6]


async def a_relayed_frame_is_withdrawn_with_no_operation(world: World) -> None:
    _, other, here, _ = await world.pair()
    for number in range(8):
        header = pack_relayed(Word.FRAME, 0, 1, COMMUNICATOR, purpose=number, payload_bytes=LARGE)
        here.send(header, pattern(LARGE, number))
    assert here.withdraw(COMMUNICATOR, 0)
    await world.until(lambda: len(other.hears.of("landed")) == 8)


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
