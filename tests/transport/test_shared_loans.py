"""Chunks that are lent: what is copied from the writer's process is right, or counts as spoiled."""

from __future__ import annotations

import os
import struct
from functools import partial

import pytest

from r2ccl.protocol.wire import MAGIC, Flag, Kind, pack_control, pack_header
from r2ccl.transport import cross_memory, shared_loans
from r2ccl.transport.cross_memory import address_of, read_from
from r2ccl.transport.interface import Connection, Loss
from r2ccl.transport.shared_connection import SharedConnection
from r2ccl.transport.shared_loans import BORROWED_PIECE_BYTES, LENT_ABOVE_BYTES
from tests.transport.harness import LARGE, Side, World, chunk_header, pattern, spoiled_header
from tests.transport.test_shared_memory import exit_code, play

SIZE = 3 * BORROWED_PIECE_BYTES + 64 + 5


def _slip(address: int) -> bytes:
    return struct.pack("<HBBIQ48x", MAGIC + 1, 0, 0, 0, address)


async def _lenders(world: World) -> tuple[SharedConnection, Side]:
    """The writer, and the reader's side, which has seen that it can borrow."""
    _, other, here, _ = await world.pair()
    assert isinstance(here, SharedConnection)
    first = memoryview(pattern(LARGE))
    here.send(chunk_header(first, 0), first)
    await world.until(lambda: len(other.hears.payloads()) == 1)
    return here, other


def _in_ring(connection: Connection) -> int:
    return connection.sample().in_flight_bytes + connection.sample().unsent_bytes


def test_a_large_chunk_is_read_from_where_it_lies() -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        chunks = [bytearray(pattern(size, size)) for size in (SIZE, LENT_ABOVE_BYTES + 1, SIZE)]
        for number, chunk in enumerate(chunks, 1):
            here.send(chunk_header(chunk, number), memoryview(chunk))
        assert _in_ring(here) == 3 * shared_loans.LOAN_BYTES
        small = pattern(100)
        here.send(chunk_header(small, 9), small)
        await world.until(lambda: len(other.hears.payloads()) == 5)
        assert other.hears.payloads()[1:] == [*map(bytes, chunks), small]
        assert _in_ring(here) == 0

    play(story)


def test_what_goes_out_from_copies_or_is_not_large_is_not_lent() -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        copy = pattern(SIZE)
        here.send(chunk_header(copy, 1), copy)
        assert _in_ring(here) > SIZE
        await world.until(lambda: len(other.hears.payloads()) == 2)
        small = memoryview(pattern(LENT_ABOVE_BYTES))
        here.send(chunk_header(small, 2), small)
        assert _in_ring(here) > LENT_ABOVE_BYTES
        await world.until(lambda: len(other.hears.payloads()) == 3)

    play(story)


def test_where_the_kernel_forbids_it_everything_goes_through_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_loans, "read_from", lambda *_: False)

    async def story(world: World) -> None:
        here, other = await _lenders(world)
        chunk = pattern(SIZE)
        here.send(chunk_header(chunk, 1), memoryview(chunk))
        assert _in_ring(here) > SIZE
        await world.until(lambda: len(other.hears.payloads()) == 2)
        assert other.hears.payloads()[1] == chunk

    play(story)


def test_what_is_taken_back_before_it_was_read_counts_as_spoiled_and_nothing_else_does() -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        mine, others = bytearray(pattern(SIZE)), bytearray(pattern(SIZE, 1))
        here.send(chunk_header(others, 1, operation=4), memoryview(others))
        here.send(chunk_header(mine, 2, operation=5), memoryview(mine))
        here.send(chunk_header(others, 3, operation=5, communicator=3), memoryview(others))
        assert here.withdraw(77, 5)
        mine[:] = bytes(SIZE)
        await world.until(lambda: len(other.hears.payloads()) == 3 and bool(other.hears.of("spoiled")))
        assert [event.header.chunk for event in other.hears.of("spoiled") if event.header] == [2]
        assert other.hears.payloads()[1:] == [bytes(others)] * 2
        assert not other.hears.of("lost")

    play(story)


@pytest.mark.parametrize("piece", [1, 2, 3, 4])
@pytest.mark.parametrize("aborts", [False, True])
def test_what_is_taken_back_while_it_is_read_counts_as_spoiled(
    monkeypatch: pytest.MonkeyPatch, piece: int, aborts: bool
) -> None:
    """Just before the copy of each piece the writer has its memory back, and changes it."""

    async def story(world: World) -> None:
        here, other = await _lenders(world)
        mine, copies = bytearray(pattern(SIZE)), 0

        def read(pid: int, address: int, target: memoryview) -> bool:
            nonlocal copies
            copies += len(target) > shared_loans._SECRET.size
            if copies == piece and len(target) > shared_loans._SECRET.size:
                if aborts:
                    here.abort()
                else:
                    assert here.withdraw(77, 1)
                mine[:] = bytes(SIZE)
            return read_from(pid, address, target)

        monkeypatch.setattr(shared_loans, "read_from", read)
        here.send(chunk_header(mine, 1), memoryview(mine))
        await world.until(lambda: bool(other.hears.of("spoiled")))
        assert copies == piece
        assert len(other.hears.payloads()) == 1
        if aborts:
            await world.until(lambda: bool(other.hears.of("lost")))
            assert other.hears.of("lost")[0].loss is Loss.END_OF_FILE
        else:
            again = pattern(SIZE, 7)
            here.send(chunk_header(again, 5, operation=2), memoryview(again))
            await world.until(lambda: len(other.hears.payloads()) == 2)
            assert other.hears.payloads()[1] == again

    play(story)


def test_what_was_read_from_a_process_that_has_another_ones_number_counts_as_spoiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer was killed, and the reader had been stopped for long."""

    async def story(world: World) -> None:
        here, other = await _lenders(world)

        def read(pid: int, address: int, target: memoryview) -> bool:
            target[:] = bytes(len(target))
            return True

        monkeypatch.setattr(shared_loans, "read_from", read)
        chunk = pattern(SIZE)
        here.send(chunk_header(chunk, 1), memoryview(chunk))
        await world.until(lambda: bool(other.hears.of("spoiled")))
        assert len(other.hears.payloads()) == 1
        here.send(chunk_header(chunk, 2), memoryview(chunk))
        assert _in_ring(here) > SIZE

    play(story)


def _drop_in_a_child(connection: SharedConnection) -> None:
    child = os.fork()
    if child == 0:
        connection._loans = None
        os._exit(0)
    assert exit_code(child) == 0


@pytest.mark.parametrize("in_a_child", [False, True])
def test_who_is_dropped_without_a_word_takes_back_what_it_lent_but_not_its_parents(in_a_child: bool) -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        chunk = pattern(SIZE)
        here.send(chunk_header(chunk, 1), memoryview(chunk))
        if in_a_child:
            _drop_in_a_child(here)
            await world.until(lambda: len(other.hears.payloads()) == 2)
            assert other.hears.payloads()[1] == chunk
        else:
            here._loans = None
            await world.until(lambda: bool(other.hears.of("spoiled")))
            assert len(other.hears.payloads()) == 1

    play(story)


@pytest.mark.parametrize("drops", [False, True])
def test_what_was_read_is_not_taken_back_and_its_room_in_the_ring_is_left_alone(drops: bool) -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        chunk = pattern(SIZE)
        here.send(chunk_header(chunk, 1), memoryview(chunk))
        await world.until(lambda: len(other.hears.payloads()) == 2)
        filling = [pattern(LARGE, seed) for seed in range(20)]  # more than the ring holds, over the slip
        for number, fill in enumerate(filling, 2):
            here.send(chunk_header(fill, number, operation=2), fill)
        if drops:
            here._loans = None
        else:
            assert here.withdraw(77, 7)
            assert here._loans is not None
            here._loans.take_all_back()
        await world.until(lambda: len(other.hears.payloads()) == 22)
        assert other.hears.payloads()[2:] == filling

    play(story)


def test_a_wrong_checksum_of_what_is_lent_is_noticed() -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        chunk = pattern(SIZE)
        here.send(spoiled_header(chunk, 1), memoryview(chunk))
        await world.until(lambda: bool(other.hears.of("spoiled")))

    play(story)


@pytest.mark.parametrize("address", [0, 8, (1 << 64) - 8])
def test_a_slip_that_names_no_memory_costs_that_chunk(address: int) -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        writer = here._writer
        assert writer is not None
        chunk = pattern(SIZE)
        writer.put_header(_slip(address))
        writer.put_whole(chunk_header(chunk, 1), b"")
        small = pattern(100)
        here.send(chunk_header(small, 2), small)
        await world.until(lambda: len(other.hears.payloads()) == 2)
        assert len(other.hears.of("spoiled")) == 1

    play(story)


async def _ends_with(here: Connection, other: Side, world: World, *frames: bytes) -> None:
    """These, in the ring, end the connection."""
    assert isinstance(here, SharedConnection)
    assert here._writer is not None
    for frame in frames[:-1]:
        here._writer.put_header(frame)
    here._writer.put_whole(frames[-1], b"")
    here._writer.announce()
    await world.until(lambda: bool(other.hears.of("lost")))
    assert other.hears.of("lost")[0].loss is Loss.BAD_FRAME


@pytest.mark.parametrize("slip", [bytes(64), _slip(4096)])
def test_what_is_no_slip_or_comes_alone_or_uninvited_ends_the_connection(slip: bytes) -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        await _ends_with(here, other, world, slip)

    async def uninvited(world: World) -> None:
        _, other, here, _ = await world.pair()
        await _ends_with(here, other, world, slip, chunk_header(pattern(SIZE), 1))

    play(story)
    play(uninvited)


def test_memory_of_a_process_that_is_gone_or_was_never_there_cannot_be_read() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    target = memoryview(bytearray(64))
    source = pattern(64)
    for pid in (child, 0, -1):
        assert not read_from(pid, address_of(source), target)
    assert read_from(os.getpid(), address_of(source), target)
    assert bytes(target) == source
    assert not read_from(os.getpid(), 16, target)


def test_what_is_small_or_no_chunk_is_not_to_be_lent() -> None:
    async def story(world: World, header: bytes) -> None:
        here, other = await _lenders(world)
        await _ends_with(here, other, world, _slip(4096), header)

    for header in (chunk_header(pattern(100), 1), pack_control(Kind.GOODBYE, 0, 1, [1])[0]):
        play(partial(story, header=header))


def test_memory_that_the_kernel_reads_for_nobody_is_sent_again_by_the_ring_and_then_nothing_is_lent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        chunk = pattern(SIZE)
        monkeypatch.setattr(shared_loans, "read_from", lambda *_: False)
        here.send(chunk_header(chunk, 1), memoryview(chunk))
        await world.until(lambda: bool(other.hears.of("spoiled")))
        assert here._writer is not None
        assert not here._writer.is_accepted()
        for number in (2, 3):
            here.send(chunk_header(chunk, number), memoryview(chunk))
        await world.until(lambda: len(other.hears.payloads()) == 3)
        assert other.hears.payloads()[1:] == [chunk] * 2

    play(story)


def test_what_was_sent_before_is_not_lent() -> None:
    async def story(world: World) -> None:
        here, other = await _lenders(world)
        chunk = pattern(SIZE)
        header = pack_header(Kind.CHUNK, Flag.RESENT, SIZE, 77, 1, chunk=1)
        here.send(header, memoryview(chunk))
        assert _in_ring(here) > SIZE
        await world.until(lambda: len(other.hears.payloads()) == 2)
        assert other.hears.payloads()[1] == chunk

    play(story)


def test_who_asks_whether_others_may_read_its_memory_is_told_what_they_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_memory, "read_from", lambda pid, address, target: False)
    assert not cross_memory.others_may_read()
    monkeypatch.undo()
    assert cross_memory.others_may_read()
    monkeypatch.setattr(cross_memory, "_READ", None)
    assert not cross_memory.others_may_read()
