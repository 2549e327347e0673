"""Large chunks that go through no ring: the writer lends them, and the reader copies them from where they lie.

That is one copy instead of two, and none by the writer. In the ring stands a slip, which names an address in the
writer's process, and then the chunk's header; both are there until the reader has all of the chunk.

**A chunk can be taken back at any moment**, since its memory is the caller's again when its operation fails
(ARCHITECTURE.md, decision 7), and the reader may be in the middle of it. So the writer wipes the slip's address before
the memory may change, and the reader looks at it again when it has copied: is it still there, so was all that was
copied. That relies on the order of stores that the rings rely on (``shared_ring``). What was taken back, or whose
process is gone, counts as spoiled: it is asked for again, which who failed or is dead does not answer. So does what
the kernel reads for nobody, such as a device's memory. What was sent before is not lent, or that would have no end.

Lent is what the sender keeps until it is acknowledged or taken back, chunks from the caller's memory. What would be
lent twice, and still is when its operation has ended, is a duplicate: it is thrown away, whatever it has become. Who
drops a connection without a word, or ends the interpreter, takes everything back before its memory goes. A process that
is killed cannot; its memory goes with it, and after the last copy of a chunk the reader asks for the secret (below)
once more, because the process's number may be another's by then.

Whether the reader may read our memory only it can tell. So the writer leaves a secret's address beside the ring, and
the secret; who could read it there says so.
"""

from __future__ import annotations

import os
import struct
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Final

from r2ccl.protocol.wire import HEADER_BYTES, MAGIC, BadFrame, Flag, Header, Kind, unpack_header
from r2ccl.transport.cross_memory import address_of, read_from
from r2ccl.transport.frames import belongs
from r2ccl.transport.shared_ring import RingReader, RingWriter

#: Larger chunks are lent. Up to here they may be of lockstep, which reduces from where they lie in the ring.
LENT_ABOVE_BYTES: Final = 1 << 20
#: Copied between two looks at other things.
BORROWED_PIECE_BYTES: Final = 1 << 20
#: A slip and the header.
LOAN_BYTES: Final = 2 * HEADER_BYTES

#: Like a header, but of no kind and with a magic of its own; the address, then nothing.
_SLIP: Final = struct.Struct("<HBBIQ48x")
_SLIP_MAGIC: Final = MAGIC + 1
_SECRET: Final = struct.Struct("=QQ")


#: Where it ends in the ring, the word there with its address, the chunk's header.
_Loan = tuple[int, int, bytes]


def _forget_read(loans: deque[_Loan], writer: RingWriter) -> None:
    """Where those were something else may stand by now."""
    tail = writer.tail_seen()
    while loans and loans[0][0] <= tail:
        loans.popleft()


def _wipe(loans: Iterable[_Loan], words: memoryview, writer: RingWriter) -> None:
    for _, word, _ in loans:
        words[word] = 0
    writer.fence()  # large copies are made by stores that keep no order


def _take_back_what_is_left(pid: int, loans: deque[_Loan], words: memoryview, writer: RingWriter) -> None:
    """The owner is no more, or the interpreter ends; but not its child's, which has the same ring."""
    if loans and os.getpid() == pid:
        _forget_read(loans, writer)
        _wipe(loans, words, writer)


class Loans:
    """The writer's side of one ring."""

    __slots__ = ("__weakref__", "_lent", "_secret", "_words", "_writer")

    def __init__(self, writer: RingWriter) -> None:
        self._writer = writer
        self._words = writer.data.cast("Q")
        #: What the reader may not have.
        self._lent: deque[_Loan] = deque()
        self._secret = os.urandom(_SECRET.size)
        writer.offer(address_of(self._secret), _SECRET.unpack(self._secret))
        weakref.finalize(self, _take_back_what_is_left, os.getpid(), self._lent, self._words, writer)

    def takes(self, header: bytes, payload: bytes | memoryview, room: int) -> bool:
        """Is it to be lent?"""
        return (
            len(payload) > LENT_ABOVE_BYTES
            and isinstance(payload, memoryview)
            and header[2] == Kind.CHUNK
            and not header[3] & Flag.RESENT  # it may lie where nobody else can read
            and room >= LOAN_BYTES
            and self._writer.is_accepted()
        )

    def lend(self, header: bytes, payload: bytes | memoryview) -> None:
        """Put a slip and the header into the ring, in which there is room."""
        writer = self._writer
        word = (writer.head & (writer.capacity - 1)) // 8 + 1
        writer.put_header(_SLIP.pack(_SLIP_MAGIC, 0, 0, 0, address_of(payload)))
        writer.put_whole(header, b"")
        _forget_read(self._lent, writer)
        self._lent.append((writer.head, word, header))

    def take_back(self, communicator: int, operation: int) -> None:
        """The memory of the communicator's operations from this one on is read no more."""
        _forget_read(self._lent, self._writer)
        mine = [loan for loan in self._lent if belongs((loan[2], b""), communicator, operation)]
        _wipe(mine, self._words, self._writer)
        for loan in mine:
            self._lent.remove(loan)

    def take_all_back(self) -> None:
        """Nothing of ours is read any more."""
        _forget_read(self._lent, self._writer)
        _wipe(self._lent, self._words, self._writer)
        self._lent.clear()


class Borrower:
    """The reader's side of one ring. ``pid`` is the writer's process, as the kernel names it to us."""

    __slots__ = ("_address", "_can_read", "_pid", "_reader", "_secret", "_word", "_words")

    def __init__(self, reader: RingReader, pid: int) -> None:
        self._reader = reader
        self._pid = pid
        self._words = reader.data.cast("Q")
        #: Of the loan that is being read: the word with its address, and the address.
        self._word = self._address = 0
        #: Where it lies in the writer's process, and what it is.
        self._secret = reader.offered()
        self._can_read = self._is_the_writer()
        if self._can_read:
            reader.accept()

    def _is_the_writer(self) -> bool:
        """Does the process of that number know the secret?"""
        address, secret = self._secret
        found = bytearray(_SECRET.size)
        return bool(address) and read_from(self._pid, address, memoryview(found)) and _SECRET.unpack(found) == secret

    def begin(self) -> Header:
        """A slip is the next in the ring: the header of what is lent. Raises :class:`BadFrame`."""
        reader = self._reader
        if reader.readable() < LOAN_BYTES:
            raise BadFrame("a slip without a header")
        slip = reader.view(0, HEADER_BYTES)
        magic, _, _, _, self._address = _SLIP.unpack(slip)
        if magic != _SLIP_MAGIC or not self._can_read:
            raise BadFrame("neither a header nor a slip")
        self._word = (reader.tail & (reader.capacity - 1)) // 8 + 1
        header = unpack_header(reader.view(HEADER_BYTES, HEADER_BYTES))
        if header.kind != Kind.CHUNK or header.payload_bytes <= LENT_ABOVE_BYTES:
            raise BadFrame(f"a frame of kind {header.kind} and {header.payload_bytes} bytes is lent")
        return header

    def copy(self, target: memoryview, offset: int, *, is_last: bool) -> bool:
        """Of what is lent, the bytes from ``offset`` on. False: it was taken back, its process has gone, or the kernel
        reads that memory for nobody, such as a device's: then nothing more is to be lent. True for the last of them is
        so for all."""
        address = self._address
        if not address:
            return False
        was_read = read_from(self._pid, address + offset, target) and (not is_last or self._is_the_writer())
        is_lent = self._words[self._word] == address
        if is_lent and not was_read:
            self._reader.decline()
        return was_read and is_lent
