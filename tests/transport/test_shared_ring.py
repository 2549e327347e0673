"""The rings of shared memory: what goes in comes out, and nobody sleeps over news."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator

import pytest

from r2ccl.protocol.wire import BadFrame, Kind, pack_header
from r2ccl.transport.shared_ring import ALIGNMENT, CONTROL_BYTES, RingReader, RingWriter, padded
from r2ccl.transport.shared_segment import (
    RING_BYTES_LEAST,
    RING_BYTES_MOST,
    TOKEN_BYTES,
    BadSegment,
    attach,
    bulk_ring_bytes,
    create,
)
from tests.transport.harness import pattern

CAPACITY = 1 << 12
HEAD, TAIL = 0, 16
HEADER = b"h" * ALIGNMENT
TOKEN = bytes(range(TOKEN_BYTES))


class Ends:
    """Both ends of a ring, and the bell of each."""

    def __init__(self) -> None:
        memory = memoryview(bytearray(CONTROL_BYTES + CAPACITY))
        self.writers_bell, self.readers_bell = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2))
        self.writer = RingWriter(memory, self.readers_bell)
        self.reader = RingReader(memory, self.writers_bell)

    def take(self, size: int) -> bytes:
        """The next bytes, with what pads them."""
        target = memoryview(bytearray(size))
        self.reader.copy_to(target)
        self.reader.advance(padded(size))
        return bytes(target)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    os.close(made.writers_bell)
    os.close(made.readers_bell)


def rings(bell: int) -> int:
    """How often a bell was rung since it was last asked."""
    try:
        return os.eventfd_read(bell)
    except BlockingIOError:
        return 0


def test_frames_of_all_sizes_come_out_as_they_went_in_however_they_wrap(ends: Ends) -> None:
    rng = random.Random(5)
    for number in range(400):
        payload = pattern(rng.randrange(CAPACITY - ALIGNMENT), number)
        ends.writer.put_whole(HEADER, payload)
        assert ends.take(ALIGNMENT) == HEADER
        assert ends.reader.readable() == padded(len(payload))
        assert bytes(ends.reader.view(0, len(payload))) == payload
        assert ends.take(len(payload)) == payload


def test_a_payload_larger_than_the_ring_goes_through_in_pieces(ends: Ends) -> None:
    payload = pattern(5 * CAPACITY + 77)
    ends.writer.put_header(HEADER)
    assert not ends.reader.has_news(), "a header is published with the first of its payload"
    taken = ends.writer.put(payload, 0, CAPACITY - ALIGNMENT)
    assert ends.take(ALIGNMENT) == HEADER
    arrived = b""
    while len(arrived) < len(payload):
        arrived += ends.take(min(ends.reader.readable(), len(payload) - len(arrived)))
        taken = ends.writer.put(payload, taken, CAPACITY - ends.writer.unread())
    assert arrived == payload
    assert ends.reader.readable() == 0
    assert ends.writer.head % ALIGNMENT == 0


def test_the_end_of_a_payload_waits_for_room_for_what_pads_it(ends: Ends) -> None:
    assert ends.writer.put(bytes(65), 0, 64) == 64
    assert ends.writer.put(bytes(65), 64, 0) == 64
    assert ends.writer.put(bytes(65), 64, 64) == 65


def test_posted_frames_of_all_sizes_are_found_however_they_wrap(ends: Ends) -> None:
    rng = random.Random(5)
    for number in range(2000):
        payload = pattern(rng.choice((0, 1, 64, 1000, CAPACITY // 2, CAPACITY - ALIGNMENT)), number)
        header = pack_header(Kind.CHUNK, 0, len(payload), 1, number)
        assert not ends.writer.lacks(ALIGNMENT + padded(len(payload)))
        ends.writer.post(header, memoryview(payload), ("whose", number))
        frame = ends.reader.whole_frame()
        assert frame is not None
        assert (frame[0].operation, bytes(frame[1])) == (number, payload)
        ends.reader.pass_over(ALIGNMENT + padded(len(payload)))
    assert ends.writer.left() == []


def test_a_posted_frame_of_which_a_part_was_read_is_not_overwritten(ends: Ends) -> None:
    """Its reader may end before it has read the rest, and then all of it is wanted again."""
    first, second = pattern(CAPACITY // 2, 1), pattern(CAPACITY // 4, 2)
    ends.writer.post(HEADER, memoryview(first), ("whose", 1))
    ends.writer.post(HEADER, memoryview(second), ("whose", 2))
    ends.take(ALIGNMENT)
    ends.take(len(first) - ALIGNMENT)
    assert ends.writer.lacks(CAPACITY // 2)
    assert [(note, payload) for note, payload in ends.writer.left()] == [(("whose", 1), first), (("whose", 2), second)]
    assert not ends.writer.lacks(CAPACITY // 2)


def test_what_the_reader_says_cannot_be_and_what_was_posted_is_there_all_the_same(ends: Ends) -> None:
    payload = pattern(100)
    ends.writer.post(HEADER, memoryview(payload), ("whose", 1))
    ends.writer.words[TAIL] = 3
    assert ends.writer.left() == [(("whose", 1), payload)]


def test_a_reader_that_looks_by_itself_is_not_rung_for(ends: Ends) -> None:
    ends.writer.put_whole(HEADER, b"x")
    ends.writer.announce()
    assert rings(ends.readers_bell) == 0


def test_a_reader_that_sleeps_is_rung_for_once(ends: Ends) -> None:
    assert ends.reader.park()
    for _ in range(3):
        ends.writer.put_whole(HEADER, b"x")
        ends.writer.announce()
    assert rings(ends.readers_bell) == 1


def test_a_reader_that_woke_by_itself_is_not_rung_for(ends: Ends) -> None:
    assert ends.reader.park()
    ends.reader.unpark()
    ends.writer.put_whole(HEADER, b"x")
    ends.writer.announce()
    assert rings(ends.readers_bell) == 0


def test_a_reader_for_whom_there_is_news_does_not_sleep(ends: Ends) -> None:
    ends.writer.put_whole(HEADER, b"x")
    assert not ends.reader.park()
    ends.writer.announce()
    assert rings(ends.readers_bell) == 0


def test_a_writer_that_waits_is_rung_for_when_half_of_the_ring_is_free(ends: Ends) -> None:
    ends.writer.put(bytes(CAPACITY), 0, CAPACITY)
    ends.writer.wait_for_room()
    ends.reader.advance(CAPACITY // 2 - ALIGNMENT)
    ends.reader.give_room()
    assert rings(ends.writers_bell) == 0
    ends.reader.advance(ALIGNMENT)
    ends.reader.give_room()
    ends.reader.give_room()
    assert rings(ends.writers_bell) == 1


def test_a_writer_that_waits_no_more_is_not_rung_for(ends: Ends) -> None:
    ends.writer.wait_for_room()
    ends.writer.stop_waiting()
    ends.reader.give_room()
    assert rings(ends.writers_bell) == 0


@pytest.mark.parametrize("head", [CAPACITY + ALIGNMENT, (1 << 64) - ALIGNMENT, ALIGNMENT + 1])
def test_a_head_that_cannot_be_is_a_bad_frame(head: int, ends: Ends) -> None:
    ends.reader.words[HEAD] = head
    with pytest.raises(BadFrame, match="to be read"):
        ends.reader.readable()


@pytest.mark.parametrize("tail", [2 * ALIGNMENT, (1 << 64) - ALIGNMENT, 1])
def test_a_tail_that_cannot_be_is_a_bad_frame(tail: int, ends: Ends) -> None:
    ends.writer.put_whole(HEADER, b"")
    ends.writer.words[TAIL] = tail
    with pytest.raises(BadFrame, match="are unread"):
        ends.writer.unread()


def test_who_attaches_sees_the_memory_that_was_made() -> None:
    made, descriptor, offer = create(RING_BYTES_LEAST, TOKEN)
    try:
        attached = attach(descriptor, offer)
    finally:
        os.close(descriptor)
    assert len(made.first) == len(made.second) == CONTROL_BYTES + RING_BYTES_LEAST
    made.first[7], attached.second[9] = 1, 2
    assert (attached.first[7], made.second[9], made.first[9]) == (1, 2, 0)


def test_memory_without_the_token_is_refused() -> None:
    _, descriptor, offer = create(RING_BYTES_LEAST, TOKEN)
    try:
        with pytest.raises(BadSegment, match="token"):
            attach(descriptor, bytes(TOKEN_BYTES) + offer[TOKEN_BYTES:])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("each", [0, RING_BYTES_LEAST // 2, RING_BYTES_LEAST + 4096, 2 * RING_BYTES_MOST])
def test_rings_of_a_size_that_none_of_ours_has_are_refused(each: int) -> None:
    with pytest.raises(BadSegment, match="rings of"):
        attach(-1, TOKEN + each.to_bytes(8, "little"))


def test_many_neighbours_have_smaller_rings() -> None:
    assert [bulk_ring_bytes(ranks) >> 10 for ranks in (2, 8, 17, 18, 64, 4096)] == [2048, 2048, 2048, 1024, 512, 256]


@pytest.mark.parametrize("words", [b"", b"x" * 7])
def test_an_offer_of_another_length_is_refused(words: bytes) -> None:
    with pytest.raises(BadSegment, match="an offer of"):
        attach(-1, words)


def test_memory_that_its_maker_could_take_away_is_refused() -> None:
    _, sealed, offer = create(RING_BYTES_LEAST, TOKEN)
    size = os.fstat(sealed).st_size
    os.close(sealed)
    descriptor = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, TOKEN, 0)
        with pytest.raises(BadSegment, match="can change"):
            attach(descriptor, offer)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        attach(descriptor, offer)
    finally:
        os.close(descriptor)


def test_what_is_no_memory_is_refused() -> None:
    _, sealed, offer = create(RING_BYTES_LEAST, TOKEN)
    os.close(sealed)
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            attach(reading, offer)
    finally:
        os.close(reading)
        os.close(writing)
