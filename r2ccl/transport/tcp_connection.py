"""One authenticated TCP connection: frames out, frames in, without a copy of what is large.

Out: header and payload go to the kernel in one call. What it does not take waits in a queue, as views, and goes out
when the socket is writable, many frames to a call. Of small frames the first in a turn of the loop goes at once, for
somebody may be waiting for just this one; those after it in the same turn wait for its end, and go in one call.

In: between frames we read into a small inbox, which holds whole small frames. Once a header of a large chunk is
parsed, its destination is asked for, and from then on the kernel writes the payload straight there and the 64 bytes
behind it, the next header, into the inbox, again in one call."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable

from r2ccl.protocol.wire import HEADER_BYTES, RAW_KINDS, BadFrame, Header, unpack_header
from r2ccl.transport.frames import WHOLE_BYTES_MAX, Frame, belongs, deliver, drop_taken, gather, landed
from r2ccl.transport.interface import Loss, PathSample, Purpose, Receiver
from r2ccl.transport.joined import Joined
from r2ccl.transport.losses import loss_of
from r2ccl.transport.tcp_info import answer_at_once, sample

#: Largest control frame plus header; see wire.CONTROL_BYTES_MAX.
INBOX_BYTES = HEADER_BYTES + (64 << 10)
#: Reads of one connection in one turn of the loop.
READS_PER_TURN = 2
#: Frames up to this size are joined, until so many bytes wait.
JOIN_BYTES = 4 << 10
JOINED_BYTES_MAX = 64 << 10
#: Bytes after which other connections get their turn.
WRITE_BYTES_PER_TURN = 1 << 20

#: Of a connection that is not open.
_NO_INBOX = memoryview(b"")


class TcpConnection:
    """See :class:`~r2ccl.transport.interface.Connection`."""

    one_sided, posts = False, None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        receiver: Receiver,
        local_nic: int,
        purpose: Purpose,
        joined: Joined | None = None,
    ) -> None:
        self.purpose = purpose
        self.local_nic = local_nic
        self.peer = -1
        self.remote_nic = -1
        self.peer_incarnation = 0
        self.is_open = False
        #: While the connection is still being made: how to give it up.
        self.on_abort: Callable[[], None] | None = None
        self._loop = loop
        self._receiver = receiver
        self._sock: socket.socket | None = None
        self._forget: Callable[[TcpConnection], None] | None = None
        #: Frames that the kernel has not taken completely, oldest first; of the first, ``_taken`` bytes are gone.
        self._queue: deque[Frame] = deque()
        self._taken, self._writing = 0, False
        #: Something went out in this turn of the loop: small frames wait for its end, of so many bytes at the moment,
        #: and that they do is said there (None: every frame goes at once).
        self._is_joining, self._joined_bytes, self._joined = False, 0, joined
        self._sent_in_turn = 0  #: What went out in it at once.
        self._reading_soon = False  #: A further reading is scheduled, whether or not the socket reports anything.
        self._ending = False  #: The end was read, and will be told in the next turn.
        self._inbox = _NO_INBOX  #: Bytes [_start, _end) are unparsed.
        self._start = self._end = 0
        #: The large chunk being received: header, where it goes, how much is there. None: between frames.
        self._header: Header | None = None
        self._target: memoryview | None = None
        self._filled = 0
        self._discarding = False

    def open(self, sock: socket.socket, leftover: bytes, forget: Callable[[TcpConnection], None]) -> None:
        """The handshake is done; ``leftover`` came behind it."""
        self._sock = sock
        self._forget = forget
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self.is_open = True
        self._receiver.established(self)
        if not self.is_open:
            return
        self._loop.add_reader(sock.fileno(), self._readable)
        if leftover:
            self._inbox[: len(leftover)] = leftover
            self._end = len(leftover)
            try:
                self._parse()
            except BadFrame as bad:
                self._lose(Loss.BAD_FRAME, str(bad))
            if self.is_open:
                self._receiver.batch_ended(self)

    # Out.

    def send(self, header: bytes, payload: bytes | memoryview) -> None:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        sock = self._sock
        if sock is None:
            return
        if self._queue or (self._is_joining and len(payload) <= JOIN_BYTES):
            self._queue.append((header, payload))
            if not self._writing:
                self._join(len(header) + len(payload))
            return
        room = WRITE_BYTES_PER_TURN - self._sent_in_turn  # The kernel may take more; others want a turn of the loop.
        if room <= 0:
            self._queue.append((header, payload))
            self._start_writing()
            return
        offered = payload if len(payload) <= room else memoryview(payload)[:room]
        try:
            sent = sock.sendmsg((header, offered)) if len(payload) else sock.send(header)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._fail_soon(error)
            return
        if sent < len(header) + len(payload):
            self._queue.append((header, payload))
            self._taken = sent
            self._start_writing()
        self._went_out(sent)

    def write(self, header: bytes, payload: memoryview, landing: object, offset: int) -> None:
        """TCP has no one-sided writes."""
        raise AssertionError("a TCP connection is not one-sided")

    def withdraw(self, communicator: int, operation: int) -> bool:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        if not self._queue:
            return True
        kept = deque(frame for frame in self._queue if not belongs(frame, communicator, operation))
        first = self._queue[0]
        held = self._taken > 0 and belongs(first, communicator, operation)
        if held:
            kept.appendleft(first)
        elif not kept:
            self._stop_writing()
        self._queue = kept
        return not held

    def _join(self, size: int) -> None:
        assert self._joined is not None
        if not self._joined_bytes:
            self._joined.add(self)
        self._joined_bytes += size
        if self._joined_bytes > JOINED_BYTES_MAX:
            self.flush()

    def _went_out(self, sent: int) -> None:
        """So much of what may go out in this turn."""
        if sent and self._joined is not None:
            self._sent_in_turn += sent
            if not self._is_joining:
                self._is_joining = True
                self._loop.call_soon(self._turn_ended)

    def _turn_ended(self) -> None:
        """Everybody has said what there was to say."""
        self._is_joining = False
        self._sent_in_turn = 0
        self.flush()

    def flush(self) -> None:
        """What was to be joined goes out now."""
        was_joined = self._joined_bytes > 0
        self._forget_joined()
        if self._writing or not was_joined:
            return
        try:
            if not self._write_queue():
                self._start_writing()
        except OSError as error:
            self._fail_soon(error)

    def _start_writing(self) -> None:
        if not self._writing and self._sock is not None:
            self._writing = True
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _stop_writing(self) -> None:
        if self._writing and self._sock is not None:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def _writable(self) -> None:
        try:
            if self._write_queue():
                self._stop_writing()
        except OSError as error:
            self._fail(error)

    def _write_queue(self) -> bool:
        """Hand the kernel what waits, up to a turn's share. Returns whether nothing is left. Raises ``OSError``."""
        budget = WRITE_BYTES_PER_TURN - self._sent_in_turn
        while self._queue and self._sock is not None and budget > 0:
            buffers = gather(self._queue, self._taken, budget)
            try:
                sent = self._sock.sendmsg(buffers)
            except BlockingIOError:
                return False
            budget -= sent
            self._went_out(sent)
            self._taken = drop_taken(self._queue, self._taken + sent)
            if sent < sum(map(len, buffers)):
                return False
        return not self._queue

    # In.

    def discard_incoming(self) -> None:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        if self._target is not None and not self._discarding:
            self._discarding = True
            self._target = memoryview(bytearray(len(self._target)))

    def _readable(self) -> None:
        """Read until the socket is empty, or others should have their turn.

        Until it *says* that it is empty: after a reset uvloop reports no further events, so what we left unread, the
        error itself included, would never be heard of.
        """
        self._reading_soon = False
        for _ in range(READS_PER_TURN):
            sock = self._sock
            if sock is None or self._ending:
                return
            try:
                target = self._target
                if target is None:
                    self._read_inbox(sock)
                else:
                    self._read_target(sock, target)
            except BlockingIOError:
                break
            except OSError as error:
                self._fail(error)
                return
            except BadFrame as bad:
                self._lose(Loss.BAD_FRAME, str(bad))
                return
        else:
            if self.is_open and not self._reading_soon:
                self._reading_soon = True
                self._loop.call_soon(self._readable)
        if self.is_open:
            self._receiver.batch_ended(self)

    def _read_inbox(self, sock: socket.socket) -> None:
        received = sock.recv_into(self._inbox[self._end :])
        if received == 0:
            self._lose(Loss.END_OF_FILE, "the peer closed")
            return
        self._end += received
        self._parse()

    def _read_target(self, sock: socket.socket, target: memoryview) -> None:
        rest = target[self._filled :]
        received = sock.recvmsg_into((rest, self._inbox[:HEADER_BYTES]))[0]
        if received == 0:
            self._lose(Loss.END_OF_FILE, "the peer closed")
        elif received < len(rest):
            self._filled += received
        else:
            self._start, self._end = 0, received - len(rest)
            self._target_filled()
            if self._end == HEADER_BYTES and self.is_open:
                self._parse()

    def _target_filled(self) -> None:
        header, target = self._header, self._target
        assert header is not None
        assert target is not None
        discarding = self._discarding
        self._header = self._target = None
        self._discarding = False
        if discarding:
            return
        landed(self._receiver, self, header, target)

    def _parse(self) -> None:
        """Deliver every frame that is whole in the inbox; start receiving a large one in place."""
        while self._end - self._start >= HEADER_BYTES and self.is_open:
            header = unpack_header(self._inbox, self._start)
            body = self._start + HEADER_BYTES
            size = header.payload_bytes
            if self._end - body >= size:
                self._start = body + size
                deliver(self._receiver, self, header, self._inbox[body : body + size])
            elif header.kind in RAW_KINDS and size > WHOLE_BYTES_MAX:
                self._receive_in_place(header, body)
                return
            else:
                break
        self._compact()

    def _compact(self) -> None:
        if self._start == self._end or not self.is_open:
            self._start = self._end = 0
        elif self._start:
            rest = bytes(self._inbox[self._start : self._end])
            self._inbox[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _receive_in_place(self, header: Header, body: int) -> None:
        target = self._receiver.destination(self, header)
        if not self.is_open:
            return
        assert len(target) == header.payload_bytes
        there = self._end - body
        target[:there] = self._inbox[body : self._end]
        self._header, self._target, self._filled = header, target, there
        self._discarding = False
        self._start = self._end = 0

    # The end.

    def sample(self) -> PathSample:
        """See :class:`~r2ccl.transport.interface.Connection`. Reads the kernel's own account."""
        if self._sock is None:
            return PathSample(0, 0, 0.0, 0.0, True)
        if self.purpose is Purpose.CONTROL:
            answer_at_once(self._sock)
        unsent = sum(len(header) + len(payload) for header, payload in self._queue) - self._taken
        return sample(self._sock, unsent)

    def abort(self) -> None:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        if self.on_abort is not None:
            self.on_abort()
            return
        if self._queue and not self._writing:
            self._sent_in_turn = 0
            # What was said in this turn, a goodbye for instance, would have gone out at once if it had been alone.
            with contextlib.suppress(OSError):
                self._write_queue()
        self._forget_joined()
        sock, self._sock = self._sock, None
        self.is_open = False
        self._queue.clear()
        self._target = self._header = None
        # Whoever still refers to us, a timer for instance, need not keep the memory too.
        self._inbox = _NO_INBOX
        if sock is None:
            return
        self._loop.remove_reader(sock.fileno())
        if self._writing:
            self._writing = False
            self._loop.remove_writer(sock.fileno())
        if self._forget is not None:
            self._forget(self)
        sock.close()

    def _forget_joined(self) -> None:
        if self._joined_bytes and self._joined is not None:
            self._joined.discard(self)
        self._joined_bytes = 0

    def close_in_child(self) -> None:
        """After a fork, in the child: only the descriptor is let go. What waits is the parent's to send."""
        self._forget_joined()
        if self._sock is not None:
            self._sock.close()

    def _fail(self, error: OSError) -> None:
        self._lose(loss_of(error), str(error))

    def _fail_soon(self, error: OSError) -> None:
        if self._sock is not None:
            self._loop.call_soon(self._fail, error)

    def _lose(self, loss: Loss, detail: str) -> None:
        if self.purpose is Purpose.BULK and loss in (Loss.END_OF_FILE, Loss.RESET) and not self._ending:
            # The peer's last word stands on its control connection, which may be read after us in this very turn.
            self._ending = True
            if self._sock is not None:
                self._loop.remove_reader(self._sock.fileno())
            self._stop_writing()
            self._loop.call_soon(self._ended, loss, detail)
            return
        self._ended(loss, detail)

    def _ended(self, loss: Loss, detail: str) -> None:
        if not self.is_open:
            return
        self.abort()
        self._receiver.lost(self, loss, detail)

    def __repr__(self) -> str:
        where = f"nic{self.local_nic}->rank{self.peer}.nic{self.remote_nic} {self.purpose.name.lower()}"
        return f"<TcpConnection {where} {'open' if self.is_open else 'closed'}, {len(self._queue)} queued>"
