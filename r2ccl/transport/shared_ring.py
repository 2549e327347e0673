"""One direction of a connection through shared memory: a ring of bytes with one writer and one reader.

    offset    0  head     bytes ever written          only the writer stores it
            128  tail     bytes ever read             only the reader stores it
            256  parked   the reader sleeps           the reader sets it; the writer clears it and rings
            384  waiting  the writer wants room       the writer sets it; the reader clears it and rings
            512  offer    where a secret of the writer's lies in its process, and the secret (``shared_loans``)
            640  accepted the reader has read it there, so it can be lent what lies there
           4096  the bytes; their number is a power of two

Who is about to ring may be held up between seeing that the other sleeps, and saying that it was rung for. Meanwhile the
other may have woken, and lain down again. So a bell may be about nothing, and yet have taken back that its hearer
sleeps: whoever hears one says so anew (``is_asleep``). Without that a wake-up was lost about once in 20,000 frames.

Each word has two cache lines of its own. Frames begin at multiples of 64, so a header never wraps. A bell is the other
process's eventfd; it is rung only for one that said it sleeps, so two that are busy exchange no system call.

What this relies on, and why it runs on x86-64 only: CPython stores and loads an item of a memoryview of format "Q" as
one move of 8 aligned bytes; x86 lets other cores see stores in the order in which they were made, so who sees the head
sees the bytes before it, and who sees the tail may overwrite what was read. The one order that x86 does not keep is a
store followed by a load of something else, which is how two ends would miss each other: one publishes and then looks
whether the other sleeps, the other says that it sleeps and then looks for news. Between the two stands a locked
instruction, that of trying a lock, which is a full barrier there.

The other end is an authenticated process of the job, yet what it stores is checked: a head or tail that cannot be ends
the connection.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
from collections import deque
from typing import Final

from r2ccl.protocol.wire import HEADER_BYTES, BadFrame, Header, peek_header
from r2ccl.transport.interface import Note

#: Where a ring's bytes begin.
CONTROL_BYTES: Final = 4096
#: Frames begin at multiples of this.
ALIGNMENT: Final = 64
#: Bytes copied between two stores of the head or tail: the other end copies the one while this copies the next.
PIECE_BYTES: Final = 256 << 10

_HEAD: Final = 0
_TAIL: Final = 16
_PARKED: Final = 32
_WAITING: Final = 48
_OFFER: Final = 64
_ACCEPTED: Final = 80


def rings_work_here() -> bool:
    """Is this a machine whose order of stores the rings rely on, and a system that has what they are made of?"""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64") and sys.maxsize > 1 << 32
    return is_x86 and sys.platform == "linux" and hasattr(os, "eventfd") and hasattr(os, "memfd_create")


def padded(size: int) -> int:
    """The size with what is left free behind it, so that the next frame is aligned."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def _span(data: memoryview, where: int, size: int) -> memoryview:
    """``size`` bytes of a ring: where they lie, or, if they wrap, a copy."""
    at, capacity = where & (len(data) - 1), len(data)
    if at + size <= capacity:
        return data[at : at + size]
    return memoryview(b"".join((data[at:], data[: at + size - capacity])))


#: A frame that was posted: where it begins and ends, the size of its payload, its note.
_Posted = tuple[int, int, int, Note]


class _Ring:
    """What both ends have in common."""

    __slots__ = ("_barrier", "_bell", "capacity", "data", "words")

    def __init__(self, memory: memoryview, bell: int) -> None:
        self.words = memory[:CONTROL_BYTES].cast("Q")
        self.data = memory[CONTROL_BYTES:]
        self.capacity = len(self.data)
        assert self.capacity & (self.capacity - 1) == 0, "a ring's size is a power of two"
        self._barrier = threading.Lock()
        self._bell = bell

    def fence(self) -> None:
        """Nothing below is done before everything above is seen by the other end."""
        self._barrier.acquire(blocking=False)
        self._barrier.release()

    def _ring_bell(self, word: int) -> None:
        self.words[word] = 0
        os.eventfd_write(self._bell, 1)


class RingWriter(_Ring):
    """The writer's end."""

    __slots__ = ("_posted", "head")

    def __init__(self, memory: memoryview, bell: int) -> None:
        super().__init__(memory, bell)
        self.head = 0
        #: What was posted and the reader has not taken as a whole, oldest first.
        self._posted: deque[_Posted] = deque()

    def unread(self) -> int:
        """Bytes that must not be overwritten: those that the reader has not taken, and those it has taken of a posted
        frame of which it lacks the rest. Raises :class:`BadFrame` if what it says cannot be."""
        tail, posted = self.words[_TAIL], self._posted
        unread = self.head - tail
        if not 0 <= unread <= self.capacity or unread % ALIGNMENT:
            raise BadFrame(f"a ring of {self.capacity} bytes of which {unread} are unread")
        while posted and posted[0][1] <= tail:
            posted.popleft()
        return self.head - posted[0][0] if posted and posted[0][0] < tail else unread

    def tail_seen(self) -> int:
        """How far the reader says it is, whether or not that can be."""
        return self.words[_TAIL]

    def put_whole(self, header: bytes, payload: bytes | memoryview) -> None:
        """Write and publish a frame that the caller knows to fit."""
        size = len(payload)
        at = self.head & (self.capacity - 1)
        self.data[at : at + ALIGNMENT] = header
        if size:
            self._copy(self.head + ALIGNMENT, payload)
        self._publish(self.head + ALIGNMENT + padded(size))

    def lacks(self, size: int) -> bool:
        """Is there no room for so many bytes? Raises :class:`BadFrame` if what the reader says cannot be."""
        return size > self.capacity - self.unread()

    def post(self, header: bytes, payload: memoryview, note: Note) -> None:
        """Write and publish a frame for which there is room, and wake the reader, if it sleeps. As :meth:`put_whole`
        and :meth:`announce`, in one step; and it is not overwritten before the reader has taken it as a whole."""
        head, size = self.head, len(payload)
        at, end = head & (self.capacity - 1), head + ALIGNMENT + padded(size)
        begin = at + ALIGNMENT
        data, words = self.data, self.words
        data[at:begin] = header
        if begin + size > self.capacity:
            self._copy(head + ALIGNMENT, payload)
        elif size:
            data[begin : begin + size] = payload
        self._posted.append((head, end, size, note))
        self.head = words[_HEAD] = end
        self._barrier.acquire(blocking=False)  # the fence, without a call
        self._barrier.release()
        if words[_PARKED]:
            self._ring_bell(_PARKED)

    def left(self, owner: object = None) -> list[tuple[Note, bytes]]:
        """Notes and payloads of an owner's (None: all) posted frames that the reader has not taken as a whole. Each is
        given out once."""
        with contextlib.suppress(BadFrame):
            self.unread()
        mine: list[_Posted] = []
        posted, self._posted = self._posted, deque()
        for one in posted:
            (mine if owner is None or one[3][0] is owner else self._posted).append(one)
        return [(note, bytes(_span(self.data, begin + ALIGNMENT, size))) for begin, _, size, note in mine]

    def offer(self, address: int, secret: tuple[int, int]) -> None:
        """Here the reader can try whether it can read the writer's memory."""
        self.words[_OFFER + 1], self.words[_OFFER + 2] = secret
        self.words[_OFFER] = address

    def is_accepted(self) -> bool:
        """Can the reader read our memory?"""
        return self.words[_ACCEPTED] != 0

    def put_header(self, header: bytes) -> None:
        """Write a header that fits, to be published with the first of its payload."""
        at = self.head & (self.capacity - 1)
        self.data[at : at + ALIGNMENT] = header
        self.head += ALIGNMENT

    def put(self, payload: bytes | memoryview, taken: int, room: int) -> int:
        """Write and publish a payload of which ``taken`` bytes are written, as far as there is room, which comes in
        multiples of the alignment. Returns how many are written then."""
        size = len(payload)
        view = memoryview(payload)
        while taken < size and room:
            piece = min(PIECE_BYTES, size - taken, room)
            self._copy(self.head, view[taken : taken + piece])
            taken += piece
            room -= padded(piece)
            self._publish(self.head + padded(piece))
        return taken

    def _copy(self, where: int, payload: bytes | memoryview) -> None:
        at, size = where & (self.capacity - 1), len(payload)
        first = self.capacity - at
        if size <= first:
            self.data[at : at + size] = payload
        else:
            view = memoryview(payload)
            self.data[at:] = view[:first]
            self.data[: size - first] = view[first:]

    def _publish(self, head: int) -> None:
        self.head = head
        self.words[_HEAD] = head

    def announce(self) -> None:
        """Something was published: wake the reader, if it sleeps."""
        self.fence()
        if self.words[_PARKED]:
            self._ring_bell(_PARKED)

    def wait_for_room(self) -> None:
        """The reader is to ring when it has made room. What it made meanwhile is to be looked at after this."""
        self.words[_WAITING] = 1
        self.fence()

    def stop_waiting(self) -> None:
        """Room is no longer wanted."""
        self.words[_WAITING] = 0


class RingReader(_Ring):
    """The reader's end."""

    __slots__ = ("seen", "tail")

    def __init__(self, memory: memoryview, bell: int) -> None:
        super().__init__(memory, bell)
        self.tail = 0
        #: The head that was looked at last. What is there may be less than a whole frame: then the rest is news.
        self.seen = 0

    def has_news(self) -> bool:
        """Is there anything that was not looked at?"""
        return self.words[_HEAD] != self.seen

    def readable(self) -> int:
        """Bytes to read. Raises :class:`BadFrame` if what the writer says cannot be."""
        self.seen = self.words[_HEAD]
        readable = self.seen - self.tail
        if not 0 <= readable <= self.capacity or readable % ALIGNMENT:
            raise BadFrame(f"a ring of {self.capacity} bytes of which {readable} are to be read")
        return readable

    def is_empty(self) -> bool:
        """Is nothing there that was not read? What was looked at and left counts as there."""
        return self.words[_HEAD] == self.tail

    def view(self, offset: int, size: int) -> memoryview:
        """``size`` bytes at ``offset`` behind the tail: where they lie, or, if they wrap, a copy."""
        return _span(self.data, self.tail + offset, size)

    def whole_frame(self) -> tuple[Header, memoryview] | None:
        """The next frame, its header unchecked, if all of it is there. What is seen here is not counted as looked at:
        it is still news to whoever reads."""
        tail, capacity, data = self.tail, self.capacity, self.data
        readable = self.words[_HEAD] - tail
        if not HEADER_BYTES <= readable <= capacity:
            return None
        at = tail & (capacity - 1)
        header = peek_header(data, at)
        begin, size = at + HEADER_BYTES, header.payload_bytes
        if HEADER_BYTES + size > readable:
            return None
        return header, data[begin : begin + size] if begin + size <= capacity else _span(data, begin, size)

    def offered(self) -> tuple[int, tuple[int, int]]:
        """What the writer offered to read: an address (0: nothing), and what lies there."""
        words = self.words
        return words[_OFFER], (words[_OFFER + 1], words[_OFFER + 2])

    def accept(self) -> None:
        """It could be read."""
        self.words[_ACCEPTED] = 1

    def decline(self) -> None:
        """It can be read no more."""
        self.words[_ACCEPTED] = 0

    def pass_over(self, size: int) -> None:
        """A frame was used where it lies: its room is free. As :meth:`advance` and :meth:`give_room`."""
        self.tail = tail = self.tail + size
        words = self.words
        words[_TAIL] = tail
        self._barrier.acquire(blocking=False)  # the fence, without a call
        self._barrier.release()
        if words[_HEAD] == tail:
            self.seen = tail
        if words[_WAITING]:
            self.give_room()

    def copy_to(self, target: memoryview) -> None:
        """The next bytes, as many as ``target`` has."""
        at, size = self.tail & (self.capacity - 1), len(target)
        first = self.capacity - at
        if size <= first:
            target[:] = self.data[at : at + size]
        else:
            target[:first] = self.data[at:]
            target[first:] = self.data[: size - first]

    def advance(self, size: int) -> None:
        """So many bytes were read, and may be overwritten."""
        self.tail += size
        self.words[_TAIL] = self.tail

    def give_room(self) -> None:
        """Room was made: wake the writer, if it waits and there is enough that it is worth it."""
        self.fence()
        if self.words[_WAITING] and self.words[_HEAD] - self.tail <= self.capacity // 2:
            self._ring_bell(_WAITING)

    def park(self) -> bool:
        """The writer is to ring from now on. False: there is news, so nobody sleeps."""
        self.words[_PARKED] = 1
        self.fence()
        if self.has_news():
            self.words[_PARKED] = 0
            return False
        return True

    def is_asleep(self) -> bool:
        """Does the writer, if it writes, ring?"""
        return self.words[_PARKED] != 0

    def unpark(self) -> None:
        """The reader looks by itself from now on."""
        self.words[_PARKED] = 0
