"""One authenticated connection through shared memory: frames out, frames in.

Out: a frame is copied from the sender's memory straight into the ring, piece by piece. What does not fit waits in a
queue, as views, until the reader has made room.

In: a small frame is delivered where it lies in the ring. The payload of a large chunk is copied from the ring into the
destination that was asked for. That is one copy less than TCP's, and no system call. Of a very large one only a slip
is in the ring, and it is copied from where it lies in the writer's process, if the kernel lets us (``shared_loans``).

Whether the peer lives is told by the Unix socket that the memory was passed over: it ends when the peer's process does,
however it ends. What the peer had published before is still read. Memory is never silent, loses nothing and answers at
once, so an account of it accuses nobody.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Protocol

from r2ccl.protocol.wire import HEADER_BYTES, RAW_KINDS, BadFrame, Header, unpack_header
from r2ccl.transport.frames import WHOLE_BYTES_MAX, deliver, landed
from r2ccl.transport.interface import Loss, Note, PathSample, Purpose, Receiver
from r2ccl.transport.shared_account import sample
from r2ccl.transport.shared_loans import BORROWED_PIECE_BYTES, LOAN_BYTES, Borrower, Loans
from r2ccl.transport.shared_queue import RingQueue
from r2ccl.transport.shared_ring import PIECE_BYTES, RingReader, RingWriter, padded
from r2ccl.transport.shared_spin import SpinBudget
from r2ccl.transport.sockets import peer_of

#: Copied from one peer's process in one turn of the loop.
BORROWED_BYTES_PER_TURN = 2 << 20
#: Read from one connection in one turn of the loop, so that acknowledgements and the caller's timers have theirs.
READ_BYTES_PER_TURN = 512 << 10


class Poller(Protocol):
    """Who looks at the rings: the device."""

    spin: SpinBudget

    def is_busy(self, connection: SharedConnection) -> None:
        """Look at its rings in the next turns of the loop."""

    def wait_while(self, lacks: Callable[[], bool]) -> bool:
        """Look at a ring while it lacks something, for as long as it may pay. Returns whether it came."""

    def forget(self, user: SharedConnection) -> None:
        """It holds no memory and no descriptor any more."""


class SharedConnection:
    """See :class:`~r2ccl.transport.interface.Connection`."""

    one_sided = False

    def __init__(self, loop: asyncio.AbstractEventLoop, receiver: Receiver, local_nic: int, purpose: Purpose) -> None:
        self.purpose = purpose
        self.local_nic = local_nic
        self.peer = -1
        self.remote_nic = -1
        self.peer_incarnation = 0
        self.is_open = False
        #: While the connection is still being made: how to give it up.
        self.on_abort: Callable[[], None] | None = None
        #: The device looks at its rings by itself: nobody needs to ring.
        self.is_hot = False
        self._loop = loop
        self._receiver = receiver
        self._poller: Poller | None = None
        self._sock: socket.socket | None = None
        #: The peer's eventfd.
        self._bell = -1
        self.reader: RingReader | None = None
        self._writer: RingWriter | None = None
        self._queue = RingQueue()
        self._loans: Loans | None = None
        #: Made when the first large chunk comes.
        self._borrower: Borrower | None = None
        #: The large chunk being received: is it lent, header, where it goes (None: nowhere), how much was read.
        self._is_lent = False
        self._header: Header | None = None
        self._target: memoryview | None = None
        self._filled = 0
        self._is_reading = False
        #: When it has ended: what was posted, not read, and not asked for yet.
        self._left: list[tuple[Note, bytes]] = []
        #: How the peer ended: told when the ring is empty.
        self._ending: tuple[Loss, str] | None = None

    def open(self, sock: socket.socket, reader: RingReader, writer: RingWriter, bell: int, poller: Poller) -> None:
        """The handshake is done, and memory is shared. ``bell`` is the peer's eventfd, ours from now on."""
        self._sock, self._bell, self._poller = sock, bell, poller
        self.reader, self._writer, self._loans = reader, writer, Loans(writer)
        self.is_open = True
        self._loop.add_reader(sock.fileno(), self._peer_spoke)
        self._receiver.established(self)
        if self.is_open:
            poller.is_busy(self)

    # Out.

    def send(self, header: bytes, payload: bytes | memoryview) -> None:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        writer, loans = self._writer, self._loans
        if writer is None or loans is None:
            return
        if self._queue.frames:
            self._queue.append(header, payload)
            return
        try:
            room = writer.capacity - writer.unread()
        except BadFrame as bad:
            self._loop.call_soon(self._ended, Loss.BAD_FRAME, str(bad))
            return
        needed = HEADER_BYTES + padded(len(payload))
        if needed <= room and needed <= PIECE_BYTES:
            writer.put_whole(header, payload)
            writer.announce()
        elif loans.takes(header, payload, room):
            loans.lend(header, payload)
            writer.announce()
        else:
            self._queue.append(header, payload)
            self._queue.pump(writer)
        poller = self._poller
        assert poller is not None
        if not self.is_hot and (self._queue.frames or poller.spin.enabled):
            # What is sent is answered, mostly soon.
            poller.is_busy(self)

    @property
    def posts(self) -> SharedConnection | None:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        return self if self.is_open else None

    def post(self, header: bytes, payload: memoryview, note: Note) -> bool:
        """See :class:`~r2ccl.transport.interface.Posts`."""
        writer, poller = self._writer, self._poller
        if writer is None or poller is None or self._queue.frames:
            return False
        try:
            room = padded(len(payload)) + HEADER_BYTES
            if writer.lacks(room) and not (room <= writer.capacity and poller.wait_while(lambda: writer.lacks(room))):
                return False
            writer.post(header, payload, note)
        except BadFrame:
            return False  # the next to send says so
        if not self.is_hot:
            # Whoever posts looks for what is posted in return, and need not be rung for.
            poller.is_busy(self)
        return True

    def left(self, owner: object) -> list[tuple[Note, bytes]]:
        """See :class:`~r2ccl.transport.interface.Posts`."""
        if self._writer is not None:
            return self._writer.left(owner)
        mine = [one for one in self._left if one[0][0] is owner]
        self._left = [one for one in self._left if one[0][0] is not owner]
        return mine

    def write(self, header: bytes, payload: memoryview, landing: object, offset: int) -> None:
        """The memory that is shared is the rings' alone: there are no one-sided writes."""
        raise AssertionError("a connection through shared memory is not one-sided")

    def withdraw(self, communicator: int, operation: int) -> bool:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        if self._loans is not None:
            self._loans.take_back(communicator, operation)
        return self._queue.withdraw(communicator, operation)

    def pump(self) -> bool:
        """Put into the ring what fits of what waits. Returns whether anything did. Raises :class:`BadFrame`."""
        return bool(self._queue.frames) and self._writer is not None and self._queue.pump(self._writer)

    def may_have_been_rung_for(self) -> bool:
        """Is there anything to read, does anything wait to be written, or was it taken back that we sleep?"""
        reader = self.reader
        return bool(self._queue.frames) or (reader is not None and (reader.has_news() or not reader.is_asleep()))

    def unpark(self) -> None:
        """The device looks at the rings from now on: nobody needs to ring."""
        self.is_hot = True
        assert self.reader is not None
        assert self._writer is not None
        self.reader.unpark()
        self._writer.stop_waiting()

    def park(self) -> bool:
        """The device looks no more: the peer is to ring. False: there is something to do after all. Raises
        :class:`BadFrame`."""
        assert self.reader is not None
        assert self._writer is not None
        if self._queue.frames:
            self._writer.wait_for_room()
            if self._queue.pump(self._writer):
                return False
        self.is_hot = not self.reader.park()
        return not self.is_hot

    # In.

    def discard_incoming(self) -> None:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        self._target = None

    def read(self) -> bool:
        """Deliver what there is, up to a turn's share. Returns whether there was anything.

        What is delivered may call back: whoever comes here meanwhile would be given the same frame once more."""
        reader = self.reader
        if reader is None or self._is_reading or not reader.has_news():
            return False
        began, borrowed, self._is_reading = reader.tail, 0, True
        try:
            while self.is_open:
                borrowed += BORROWED_PIECE_BYTES if self._is_lent else 0
                if not (self._read_header(reader) if self._header is None else self._read_payload(reader)):
                    break
                if reader.tail - began >= READ_BYTES_PER_TURN or borrowed >= BORROWED_BYTES_PER_TURN:
                    reader.seen = reader.tail  # what is left is news to the next turn
                    break
        except BadFrame as bad:
            self._ended(Loss.BAD_FRAME, str(bad))
        finally:
            self._is_reading = False
        if self.is_open:
            reader.give_room()
            self._receiver.batch_ended(self)
        return True

    def _read_header(self, reader: RingReader) -> bool:
        """The next frame: delivered if it is small. Returns whether there may be more."""
        readable = reader.readable()
        if readable < HEADER_BYTES:
            return False
        frame, borrower = reader.view(0, HEADER_BYTES), self._borrower
        lent_to = borrower if frame[2] == 0 else None  # a header's kind is not 0
        header = unpack_header(frame) if lent_to is None else lent_to.begin()
        size = header.payload_bytes
        if size > WHOLE_BYTES_MAX and header.kind in RAW_KINDS:
            target = self._receiver.destination(self, header)
            if self.is_open:
                assert len(target) == size
                self._header, self._target, self._filled, self._is_lent = header, target, 0, lent_to is not None
                if lent_to is None:
                    reader.advance(HEADER_BYTES)
                if borrower is None and self._sock is not None:
                    self._borrower = Borrower(reader, peer_of(self._sock)[0])
            return True
        whole = HEADER_BYTES + padded(size)
        if whole > readable:
            return False
        deliver(self._receiver, self, header, reader.view(HEADER_BYTES, size))
        reader.advance(whole)
        return True

    def _read_payload(self, reader: RingReader) -> bool:
        """More of the large chunk. Returns whether there may be more."""
        header = self._header
        assert header is not None
        left = header.payload_bytes - self._filled
        if self._is_lent:
            return self._borrow(reader, header, min(left, BORROWED_PIECE_BYTES))
        size = min(left, reader.readable(), PIECE_BYTES)
        if size <= 0:
            return False
        if self._target is not None:
            reader.copy_to(self._target[self._filled : self._filled + size])
        self._filled += size
        if size == left:
            self._landed(header)  # before it counts as read: it may be refused
        reader.advance(padded(size))
        return True

    def _borrow(self, reader: RingReader, header: Header, size: int) -> bool:
        assert self._borrower is not None
        begin, end = self._filled, self._filled + size
        is_last = end == header.payload_bytes
        if self._target is not None and not self._borrower.copy(self._target[begin:end], begin, is_last=is_last):
            self._header = self._target = None
            self._is_lent = False
            self._receiver.spoiled(self, header)
            reader.advance(LOAN_BYTES)
            return True
        self._filled = end
        if is_last:
            self._landed(header)  # before it counts as read: it may be refused
            reader.advance(LOAN_BYTES)
        return True

    def _landed(self, header: Header) -> None:
        target = self._target
        self._header = self._target = None
        self._is_lent = False
        if target is None:
            return
        landed(self._receiver, self, header, target)

    def next_frame(self, patiently: bool) -> tuple[Header, memoryview] | None:
        """See :class:`~r2ccl.transport.interface.Posts`."""
        reader = self.reader
        if reader is None or self._is_reading or self._header is not None:
            return None
        if reader.is_empty():
            assert self._poller is not None
            if not patiently or not self._poller.wait_while(reader.is_empty):
                return None
        return reader.whole_frame()

    def take(self, frame: tuple[Header, memoryview]) -> None:
        """See :class:`~r2ccl.transport.interface.Posts`."""
        assert self.reader is not None
        self.reader.pass_over(HEADER_BYTES + padded(len(frame[1])))

    # The end.

    def sample(self) -> PathSample:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        if self._writer is None:
            return PathSample(0, 0, 0.0, 0.0, True)
        return sample(self._writer, self._queue.unsent())

    def abort(self) -> None:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        if self.on_abort is not None:
            self.on_abort()
            return
        sock, self._sock = self._sock, None
        self.is_open = False
        self._queue.clear()
        self._target = self._header = None
        if self._writer is not None:
            self._left = self._writer.left()
        if self._loans is not None:
            self._loans.take_all_back()
        self._loans = self._borrower = None
        # The memory is unmapped when the last view of it is gone, one that somebody is being shown included.
        self.reader = self._writer = None
        if sock is None:
            return
        self._loop.remove_reader(sock.fileno())
        sock.close()
        os.close(self._bell)
        assert self._poller is not None
        self._poller.forget(self)

    def close_in_child(self) -> None:
        """After a fork, in the child: descriptors and memory are let go."""
        self.reader = self._writer = self._loans = self._borrower = None
        if self._sock is not None:
            self._sock.close()
            os.close(self._bell)

    def _peer_spoke(self) -> None:
        """On the socket nothing is said any more: it ends."""
        assert self._sock is not None
        try:
            said = self._sock.recv(1)
        except BlockingIOError:
            return
        except OSError as error:
            self._ending = (Loss.RESET, str(error))
        else:
            if said:
                self._ended(Loss.BAD_FRAME, "the peer spoke where nothing is to be said")
                return
            self._ending = (Loss.END_OF_FILE, "the peer closed")
        self._loop.remove_reader(self._sock.fileno())
        # In the next turn, so that the peer's other connections are known to have ended, too: its last word stands on
        # its control connection.
        self._loop.call_soon(self._read_the_rest, self.purpose is Purpose.BULK)

    def _read_the_rest(self, once_more: bool) -> None:
        """What the peer had published is read before its end is told."""
        if not self.is_open or self._ending is None:
            return
        if self.read():
            self._loop.call_soon(self._read_the_rest, once_more)
        elif once_more:
            self._loop.call_soon(self._read_the_rest, False)
        else:
            self._ended(*self._ending)

    def _ended(self, loss: Loss, detail: str) -> None:
        if not self.is_open:
            return
        self.abort()
        self._receiver.lost(self, loss, detail)

    def fail(self, bad: BadFrame) -> None:
        """What the peer stored cannot be."""
        self._ended(Loss.BAD_FRAME, str(bad))

    def __repr__(self) -> str:
        where = f"nic{self.local_nic}->rank{self.peer}.nic{self.remote_nic} {self.purpose.name.lower()}"
        return f"<SharedConnection {where} {'open' if self.is_open else 'closed'}, {len(self._queue.frames)} queued>"
