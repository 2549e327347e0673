"""A connection of the memory transport: one end, two pipes.

In TCP's manner, frames wait here by reference until the kernel takes a copy of their next bytes; a frame of which part
has been copied still holds its view, and the rest of it is read later. In RDMA's manner, a one-sided write is never
copied: the pieces on the wire are views of the sender's memory, read when they arrive and written straight into the
registered memory at the other end, while neither process looks. Both are as dangerous as the real thing, which is
why they are modelled so.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from r2ccl.protocol.wire import HEADER_BYTES, BadFrame, Flag, Header, Landing, checksum, unpack_header
from r2ccl.transport.interface import Loss, Note, PathSample, Purpose, Receiver
from r2ccl.transport.memory_frame import Frame, byte_view, copy_piece
from r2ccl.transport.memory_path import Model
from r2ccl.transport.memory_pipe import FIN, HELLO, Notification, Pipe, Reset, Segment, Stream, WritePiece
from r2ccl.transport.memory_reader import FrameReader
from r2ccl.transport.memory_unread import Unread, first_frame, take_first

if TYPE_CHECKING:
    from r2ccl.transport.memory import MemoryDevice


#: Sums of floating-point seconds differ in their last digits: what is this near has come.
TIMER_GRAIN_S = 1e-9


class _Phase(enum.Enum):
    DIALLING = enum.auto()
    ACCEPTED = enum.auto()  #: the other end may be open already; we hear of it with its HELLO
    OPEN = enum.auto()
    ENDED = enum.auto()


class MemoryConnection:
    """One end of a connection. Made by :class:`~r2ccl.transport.memory.MemoryDevice`."""

    def __init__(self, device: MemoryDevice, peer: int, remote_nic: int, purpose: Purpose, receiver: Receiver) -> None:
        self.purpose = purpose
        self.peer = peer
        self.peer_incarnation = 0
        self.local_nic = device.nic.index
        self.remote_nic = remote_nic
        self.one_sided = device.one_sided
        self._device = device
        self._model: Model = device.fabric.model
        self._loop: asyncio.AbstractEventLoop = device.fabric.loop
        self._process = device.process
        self._receiver = receiver
        self._phase = _Phase.DIALLING
        self._out: Pipe | None = None
        self._in: Pipe | None = None
        self._reader = FrameReader(self, receiver, self._model.small_bytes)
        #: Frames and writes with bytes that the kernel does not have; only the first may be begun.
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        #: Of all frames so far; and what was posted.
        self._said_bytes = 0
        self._unread = Unread()
        #: Writes of which every piece is with the adapter, and some piece may not have landed.
        self._posted: deque[Frame] = deque()
        #: What the kernel keeps for the process.
        self._inbox: deque[Segment] = deque()
        self._draining = False
        self._pump_soon = False
        self._drain_soon = False
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        ends = f"{self._device.rank}.{self.local_nic}->{self.peer}.{self.remote_nic}"
        return f"<memory {ends} {self.purpose.name.lower()} {self._phase.name}>"

    # What a connection is for.

    def send(self, header: bytes, payload: bytes | memoryview) -> None:
        self._enqueue(Frame(header, byte_view(payload)))

    def write(self, header: bytes, payload: memoryview, landing: Landing, offset: int) -> None:
        if not self.one_sided:
            raise ValueError("this connection has no one-sided writes")
        if offset + payload.nbytes > landing.length:
            raise ValueError(f"{payload.nbytes} bytes at {offset} do not fit a landing of {landing.length}")
        self._enqueue(Frame(header, byte_view(payload), landing, offset))

    @property
    def posts(self) -> MemoryConnection | None:
        return self if self._device.shares_memory and self._phase is _Phase.OPEN else None

    def post(self, header: bytes, payload: memoryview, note: Note) -> bool:
        if self.posts is None or self._queue:
            return False
        assert self._out is not None
        self.send(header, bytes(payload))
        self._unread.posted(note, bytes(payload), self._said_bytes, self._out)
        return True

    def left(self, owner: object) -> list[tuple[Note, bytes]]:
        return [] if self._out is None else self._unread.left(owner, self._out)

    def next_frame(self, patiently: bool) -> tuple[Header, memoryview] | None:
        """See :class:`~r2ccl.transport.interface.Posts`. Time passes for those only who return to the loop."""
        if self.posts is None or self._draining or not self._reader.is_between_frames:
            return None
        return first_frame(self._inbox)

    def take(self, frame: tuple[Header, memoryview]) -> None:
        assert self._in is not None
        self._in.consume(take_first(self._inbox, HEADER_BYTES + len(frame[1])))

    def withdraw(self, communicator: int, operation: int) -> bool:
        kept: deque[Frame] = deque()
        clean = not any(write.belongs_to(communicator, operation) for write in self._posted)
        for frame in self._queue:
            if not frame.belongs_to(communicator, operation):
                kept.append(frame)
            elif frame.begun:
                kept.append(frame)
                clean = False
            else:
                self._queued_bytes -= len(frame.header) + len(frame.payload)
        self._queue = kept
        return clean

    def discard_incoming(self) -> None:
        self._reader.discard()

    def sample(self) -> PathSample:
        if self._out is None or self.gone:
            return PathSample(0, 0, self._loop.time() - self._heard_at, 0.0, limited=True)
        return PathSample(
            in_flight_bytes=self._out.in_flight_bytes,
            unsent_bytes=self._out.unsent_bytes + self._queued_bytes,
            silence_s=self._loop.time() - self._heard_at,
            rtt_s=self._out.rtt_s,
            limited=self._out.in_flight_bytes == 0,
            resent_segments=self._out.resent_segments,
            sent_segments=self._out.sent_segments,
            answered_segments=self._out.answered_segments,
            acked_bytes=self._out.acked_bytes,
            probing=self._out.probing,
        )

    def abort(self) -> None:
        if self._phase is _Phase.ENDED:
            return
        if self.one_sided and not self._process.frozen:
            self._report_landed()
            if self.gone:
                return
        self._end(Reset(Loss.RESET, "the peer aborted"))

    # How it begins: called by the device.

    def awaits(self, timeout_s: float, ran_out: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(timeout_s, self._process.run, ran_out)

    def attach(self, out: Pipe, into: Pipe, peer_incarnation: int) -> None:
        self._out = out
        self._in = into
        self.peer_incarnation = peer_incarnation
        self._phase = _Phase.ACCEPTED

    def open(self) -> None:
        """The dialling end knows that it is connected; its first word tells the other end."""
        assert self._out is not None
        self._out.push(HELLO, 1)
        self._established()
        if not self.gone:
            self._receiver.batch_ended(self)
            self.pump()

    def _established(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._phase = _Phase.OPEN
        self._heard_at = self._loop.time()
        self._receiver.established(self)

    # How it ends.

    @property
    def gone(self) -> bool:
        return self._phase is _Phase.ENDED

    def fail(self, loss: Loss, detail: str) -> None:
        """It ended without our asking."""
        if self.gone:
            return
        self._end(None if loss in (Loss.RESET, Loss.REFUSED) else Reset(Loss.RESET, detail))
        self._receiver.lost(self, loss, detail)

    def die(self) -> None:
        """Our process is gone: the kernel says so for it, after all that it had taken over."""
        if self.gone:
            return
        polite = self._phase is _Phase.OPEN and not self.one_sided and not self._inbox
        if polite and self._out is not None:
            self._out.push(FIN, 1)
            self._end(None, keep_sending=True)
        else:
            self._end(Reset(Loss.RESET, "the peer's process is gone"))

    def _end(self, word: Reset | None, keep_sending: bool = False) -> None:
        self._phase = _Phase.ENDED
        self._queue.clear()
        self._posted.clear()
        self._queued_bytes = 0
        self._inbox.clear()
        self._reader.let_go()
        for timer in (self._timer, self._flush_timer):
            if timer is not None:
                timer.cancel()
        self._device.forget(self)
        if self._out is not None and not keep_sending:
            if word is None:
                self._out.close()
            else:
                self._out.reset(word)

    # Sending.

    def _enqueue(self, frame: Frame) -> None:
        if self.gone:
            return
        if self._out is None:
            # A socket that is still connecting has nowhere to put a frame. Losing it would show as a hang: say it now.
            raise ValueError(f"{self!r} is not established: nothing can be sent yet")
        frame.flip_a_bit = len(frame.payload) > 0 and self._device.corrupts(self, frame.header)
        self._queue.append(frame)
        self._queued_bytes += len(frame.header) + len(frame.payload)
        self._said_bytes += len(frame.header) + len(frame.payload)
        if not self._pump_soon:
            self._pump_soon = True
            self._loop.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pump_soon = False
        self.pump()

    def pump(self) -> None:
        """Let the kernel take over as much as it has room for. An adapter goes on while its process is stopped."""
        self._let_go_of_landed()
        if self._phase is not _Phase.OPEN or self._out is None or (self._process.frozen and not self.one_sided):
            return
        while self._queue and self._out.room_bytes > 0:
            if self._queue[0].landing is not None:
                self._post_piece(self._queue[0], self._queue[0].landing, self._out)
            else:
                piece = copy_piece(self._queue, self._model.piece_bytes, self._model.small_bytes)
                self._queued_bytes -= len(piece)
                self._out.push(Stream(piece), len(piece))
        if self.one_sided and self._flush_timer is None and self._out.in_flight_bytes:
            self._flush_timer = self._loop.call_later(self._model.flush_after_s, self._check_flush)

    def _post_piece(self, frame: Frame, landing: Landing, out: Pipe) -> None:
        """Hand the adapter the next piece of a one-sided write, or the notification that follows the last."""
        remaining = len(frame.payload) - frame.done
        if remaining:
            take = min(remaining, self._model.piece_bytes)
            if not frame.begun and len(frame.payload) > self._model.small_bytes:
                take = min(take, len(frame.payload) // 2)
            data: memoryview | bytes = frame.payload[frame.done : frame.done + take]
            if frame.flip_a_bit and take:
                data = bytes([data[0] ^ 1]) + bytes(data[1:])
                frame.flip_a_bit = False
            piece = WritePiece(landing, frame.offset + frame.done, data)
            frame.begun = True
            frame.done += take
            self._queued_bytes -= take
            out.push(piece, take)
            return
        self._queue.popleft()
        self._posted.append(frame)
        self._queued_bytes -= len(frame.header)
        out.push(Notification(frame.header, landing, frame.offset), len(frame.header))

    def _let_go_of_landed(self) -> None:
        """Writes end in order, each with its notification: as many are open as there are notifications on their way."""
        if self._posted and self._out is not None:
            open_writes = sum(isinstance(content, Notification) for content in self._out.contents)
            while len(self._posted) > open_writes:
                self._posted.popleft()

    def _check_flush(self) -> None:
        self._flush_timer = None
        if self._out is None or self.gone or not self._out.in_flight_bytes:
            return
        left_s = self._out.progress_at + self._model.flush_after_s - self._loop.time()
        if left_s > TIMER_GRAIN_S:
            self._flush_timer = self._loop.call_later(left_s, self._check_flush)
        else:
            self._process.run(self._flush)

    def _flush(self) -> None:
        self._report_landed()
        self.fail(Loss.FLUSHED, "no acknowledgement from the far adapter")

    # Receiving: called by the pipes.

    def heard(self) -> None:
        self._heard_at = self._loop.time()

    def refuse(self) -> None:
        """Something came for a connection that is no more."""
        if self._out is not None:
            self._out.reset(Reset(Loss.RESET, "the peer has no such connection"))

    def reset_arrived(self, reset: Reset) -> None:
        if self.gone and self._out is not None:
            self._out.close()
        else:
            self._process.run(self._fail_after_inbox, reset)

    def accept(self, segment: Segment) -> None:
        """The kernel has a segment. A one-sided piece is written here and now, whatever the process does."""
        if isinstance(segment.content, WritePiece):
            piece = segment.content
            place = self._device.place(piece.landing, piece.offset, len(piece.data))
            if place is None:
                self._access_error()
            else:
                place[:] = piece.data
            return
        self._inbox.append(segment)
        if not self.one_sided and not self._device.shares_memory:
            self._process.run(self._drain)
        elif not self._drain_soon:
            self._drain_soon = True
            self._loop.call_later(self._model.completion_delay_s, self._process.run, self._drain)

    def _access_error(self) -> None:
        """A write to memory that is not registered ends the connection at both ends."""
        detail = "a one-sided write to memory that is not registered"
        self._end(Reset(Loss.FLUSHED, detail))
        self._process.run(self._receiver.lost, self, Loss.RESET, detail)

    def _fail_after_inbox(self, reset: Reset) -> None:
        self._drain()
        self.fail(reset.loss, reset.detail)

    def _drain(self) -> None:
        """The process reads what its kernel has. Called again from within, it leaves that to the outer call."""
        self._drain_soon = False
        if self._draining or self.gone or not self._inbox:
            return
        self._draining = True
        try:
            while self._inbox:
                self._take(self._inbox.popleft())
        except BadFrame as bad:
            self.fail(Loss.BAD_FRAME, str(bad))
        finally:
            self._draining = False
        if self._phase is _Phase.OPEN:
            self._receiver.batch_ended(self)

    def _take(self, segment: Segment) -> None:
        content = segment.content
        if isinstance(content, Stream):
            assert self._in is not None
            self._reader.feed(content.data)  # before it counts as read: it may be refused
            self._in.consume(len(content.data))
        elif isinstance(content, Notification):
            self._landed(content)
        elif content is HELLO:
            self._established()
            if not self.gone:
                self.pump()
        elif content is FIN:
            self._receiver.batch_ended(self)
            self.fail(Loss.END_OF_FILE, "the peer's process ended the connection")

    def _landed(self, notification: Notification) -> None:
        header = unpack_header(notification.header)
        place = self._device.place(notification.landing, notification.offset, header.payload_bytes)
        if place is None:
            self._access_error()
        elif header.flags & Flag.CHECKSUMMED and checksum(place) != header.checksum:
            self._receiver.spoiled(self, header)
        else:
            self._receiver.landed(self, header)

    def _report_landed(self) -> None:
        """Say what one-sided writes have landed and were not told yet, before the connection is gone."""
        told = False
        while self._inbox:
            content = self._inbox.popleft().content
            if isinstance(content, Notification):
                self._landed(content)
                told = True
        if told and not self.gone:
            self._receiver.batch_ended(self)
