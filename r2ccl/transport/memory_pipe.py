"""One direction of a memory connection: from the sender's kernel (or adapter) to the receiver's.

This is what TCP promises, and reliable RDMA too: segments arrive in order and once, or not at all; what was lost on a
dead path goes out again when the path is back; the receiver's window stops the sender. Acknowledgements come from the
far kernel, not from the process behind it, so a stopped process looks alive until its window is full.

A sender that has nothing out and may not go on asks now and then whether the window is open again: the answer may have
been lost.

Resending goes back to the first unacknowledged segment; the receiver drops what it has. It starts when the receiver
reports a gap, or some time after the path returned. There is no timer while a path is dead: a world in which nothing
else can happen then ends as a deadlock instead of ticking for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from r2ccl.protocol.wire import Landing
from r2ccl.transport.interface import Loss
from r2ccl.transport.memory_path import Model, Path


class Mark:
    """A segment without content."""


#: The handshake's last word: whom the acceptor hears it from is connected.
HELLO = Mark()
#: The sender's process is gone and said all that it had to say.
FIN = Mark()


@dataclass(slots=True)
class Stream:
    """Bytes of frames, copied from the sender's memory when the kernel took them."""

    data: bytes


@dataclass(slots=True, eq=False)
class WritePiece:
    """Part of a one-sided write. ``data`` is a view of the sender's memory, read when the piece arrives."""

    landing: Landing
    offset: int
    data: memoryview | bytes

    def freeze(self) -> None:
        """The piece is on the wire and its memory goes back to the owner: keep what it says now."""
        self.data = bytes(self.data)


@dataclass(slots=True)
class Notification:
    """A one-sided write has landed in full: the header that its sender gave it."""

    header: bytes
    landing: Landing
    offset: int


Content = Mark | Stream | WritePiece | Notification


@dataclass(slots=True, eq=False)
class Segment:
    """What is acknowledged as one. ``start`` counts bytes of all kinds, ``stream_end`` those that need a window."""

    content: Content
    start: int
    size: int
    stream_end: int
    #: When it went out; None: not yet, or more than once, and then nobody knows which of them was answered.
    sent_at: float | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """The far end's connection is no more."""

    loss: Loss
    detail: str


@dataclass(frozen=True, slots=True)
class _Flight:
    """Something on its way, and under which count of losses and as which transmission it set out."""

    cargo: Segment | Reset
    losses: int
    number: int


@dataclass(frozen=True, slots=True)
class _KernelAck:
    """All below ``expected`` is there; the sender may go to ``edge``; ``gap``: ``number`` came too early."""

    expected: int
    edge: int
    gap: bool
    number: int
    losses: int


class End(Protocol):
    """What a pipe needs of the connections at its two ends."""

    @property
    def gone(self) -> bool: ...
    def heard(self) -> None: ...
    def pump(self) -> None: ...
    def accept(self, segment: Segment) -> None: ...
    def reset_arrived(self, reset: Reset) -> None: ...
    def refuse(self) -> None: ...


@dataclass(slots=True)
class _Sending:
    """The sender's kernel."""

    #: All and only segments not acknowledged, oldest first.
    segments: deque[Segment] = field(default_factory=deque)
    #: How many of them are out, counted from the last time that sending went back to the first.
    out: int = 0
    held_bytes: int = 0
    pushed: int = 0
    stream_pushed: int = 0
    highest: int = 0
    acknowledged: int = 0
    edge: int = 0
    departing: bool = False
    #: Number of the last transmission, and of the last one before sending went back.
    number: int = 0
    went_back_at: int = 0
    resent: int = 0
    #: Segments that were acknowledged, and how long the latest answer took.
    answered: int = 0
    rtt_s: float = 0.0
    #: When something was last acknowledged, or began to wait for it.
    progress_at: float = 0.0
    #: It asked whether the window is open, and has no answer yet.
    probing: bool = False
    #: How long after the answer it asks again.
    probe_after_s: float = 0.0


class Pipe:
    """One direction of a connection."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, model: Model, out: Path, back: Path, lands_anyway: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._model = model
        self._out = out
        self._back = back
        #: Whether what was on the wire when the path died arrived all the same: in doubt on one-sided hardware.
        self._lands_anyway = lands_anyway
        self._source: End
        self._target: End
        self._sending = _Sending(edge=model.window_bytes, rtt_s=out.latency_s + back.latency_s)
        self._in_transit: deque[_Flight] = deque()
        self._acks_in_transit: deque[_KernelAck] = deque()
        self._arrives_at = 0.0
        self._ack_arrives_at = 0.0
        self._expected = 0
        self.consumed = 0  #: Bytes of streams that the reading process has taken: shared memory tells it at once.
        self._announced_edge = model.window_bytes
        self._resend: asyncio.TimerHandle | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._closed = False

    def join(self, source: End, target: End) -> None:
        self._source = source
        self._target = target
        self._out.join(self)
        self._back.join(self)

    # The sender's side.

    @property
    def room_bytes(self) -> int:
        return self._model.socket_buffer_bytes - self._sending.held_bytes

    @property
    def in_flight_bytes(self) -> int:
        return max(0, self._sending.highest - self._sending.acknowledged)

    @property
    def unsent_bytes(self) -> int:
        return self._sending.pushed - max(self._sending.highest, self._sending.acknowledged)

    @property
    def resent_segments(self) -> int:
        return self._sending.resent

    @property
    def progress_at(self) -> float:
        return self._sending.progress_at

    @property
    def sent_segments(self) -> int:
        return self._sending.number

    @property
    def answered_segments(self) -> int:
        return self._sending.answered

    @property
    def acked_bytes(self) -> int:
        return self._sending.acknowledged

    @property
    def probing(self) -> bool:
        """The far end's kernel owes an answer to whether its window is open."""
        return self._sending.probing

    @property
    def rtt_s(self) -> float:
        """Of the latest answer, with the queues that it met."""
        return self._sending.rtt_s

    @property
    def contents(self) -> list[Content]:
        """What is not acknowledged."""
        return [segment.content for segment in self._sending.segments]

    def push(self, content: Content, size: int) -> None:
        sending = self._sending
        if isinstance(content, Stream):
            sending.stream_pushed += size
        sending.segments.append(Segment(content, sending.pushed, size, sending.stream_pushed))
        sending.pushed += size
        sending.held_bytes += size
        self._transmit()

    def _transmit(self) -> None:
        sending = self._sending
        if self._closed or sending.departing or sending.out == len(sending.segments):
            return
        segment = sending.segments[sending.out]
        if segment.stream_end > sending.edge:
            self._wait_for_window()
            return
        sending.probe_after_s = 0.0
        now = self._loop.time()
        if self.in_flight_bytes == 0:
            sending.progress_at = now
        sending.out += 1
        sending.number += 1
        segment.sent_at = now if segment.start >= sending.highest else None
        sending.highest = max(sending.highest, segment.start + segment.size)
        departed, arrived = self._out.reserve(segment.size, now)
        sending.departing = True
        self._loop.call_at(departed, self._departed)
        if self._out.alive:
            self._launch(segment, arrived)

    def _wait_for_window(self) -> None:
        sending = self._sending
        if self.in_flight_bytes or sending.probing or self._probe is not None:
            return
        sending.probe_after_s = 2 * sending.probe_after_s or self._model.resend_after_s
        self._probe = self._loop.call_later(sending.probe_after_s, self._ask_for_window)

    def _ask_for_window(self) -> None:
        self._probe = None
        sending = self._sending
        if sending.segments and not sending.out and sending.segments[0].stream_end > sending.edge:
            sending.probing = True
            if self._out.alive:
                self._answer_probe()

    def _answer_probe(self) -> None:
        if self._target.gone:
            self._target.refuse()
        else:
            self._acknowledge(gap=False, number=0)

    def _departed(self) -> None:
        self._sending.departing = False
        self._transmit()

    def _launch(self, cargo: Segment | Reset, arrived: float) -> None:
        self._arrives_at = max(self._arrives_at, arrived)
        self._in_transit.append(_Flight(cargo, self._out.losses, self._sending.number))
        self._loop.call_at(self._arrives_at, self._arrive)

    def _ack_arrive(self) -> None:
        ack = self._acks_in_transit.popleft()
        if ack.losses != self._back.losses or self._closed:
            return
        sending = self._sending
        self._source.heard()
        sending.probing = False
        sending.edge = max(sending.edge, ack.edge)
        if ack.expected > sending.acknowledged:
            sending.acknowledged = ack.expected
            sending.progress_at = self._loop.time()
            while sending.segments and sending.segments[0].start < ack.expected:
                self._release(sending.segments.popleft())
        elif ack.gap and ack.number > sending.went_back_at:
            self._go_back()
        if self._source.gone and not sending.segments:
            self.close()
            return
        self._transmit()
        self._source.pump()

    def _release(self, segment: Segment) -> None:
        sending = self._sending
        sending.held_bytes -= segment.size
        sending.answered += 1
        if segment.sent_at is not None:
            sending.rtt_s = self._loop.time() - segment.sent_at
        sending.out = max(0, sending.out - 1)
        if isinstance(segment.content, WritePiece):
            segment.content.data = b""  # a duplicate on its way is dropped by its place; it must hold no view

    def _go_back(self) -> None:
        sending = self._sending
        sending.went_back_at = sending.number
        sending.resent += sending.out
        sending.out = 0
        self._transmit()

    def path_returned(self) -> None:
        """Either path of the two is back: after a while the sender's kernel tries again, or asks for the window."""
        if self._resend is None and not self._closed:
            self._resend = self._loop.call_later(self._model.resend_after_s, self._try_again)

    def _try_again(self) -> None:
        self._resend = None
        if self.in_flight_bytes > 0:
            self._go_back()
        elif self._sending.segments and self._out.alive:
            self._answer_probe()

    def reset(self, reset: Reset) -> None:
        """Tell the far end that there is no connection any more, if the path lives, and stop."""
        if self._out.alive:
            self._launch(reset, self._loop.time() + self._out.latency_s)
        self.close()

    def close(self) -> None:
        """Send nothing more. What is on the wire stays there, with the bytes that it has at this moment."""
        self._closed = True
        for flight in self._in_transit:
            if isinstance(flight.cargo, Segment) and isinstance(flight.cargo.content, WritePiece):
                flight.cargo.content.freeze()
        self._sending.segments.clear()
        self._sending.out = 0
        for timer in (self._resend, self._probe):
            if timer is not None:
                timer.cancel()
        self._resend = self._probe = None
        self._out.leave(self)
        self._back.leave(self)

    # The receiver's side.

    def _arrive(self) -> None:
        flight = self._in_transit.popleft()
        if flight.losses != self._out.losses and not self._lands_anyway():
            return
        if isinstance(flight.cargo, Reset):
            self._target.reset_arrived(flight.cargo)
            return
        if self._target.gone:
            self._target.refuse()
            return
        self._target.heard()
        if flight.cargo.start != self._expected:
            self._acknowledge(gap=flight.cargo.start > self._expected, number=flight.number)
            return
        self._expected += flight.cargo.size
        self._target.accept(flight.cargo)
        if not self._target.gone:
            self._acknowledge(gap=False, number=flight.number)

    def consume(self, stream_bytes: int) -> None:
        """The process has read this much; a window that was nearly closed is announced open."""
        self.consumed += stream_bytes
        if self._announced_edge - self.consumed < self._model.window_bytes // 2:
            self._acknowledge(gap=False, number=0)

    def _acknowledge(self, gap: bool, number: int) -> None:
        edge = self.consumed + self._model.window_bytes
        self._announced_edge = edge
        if not self._back.alive:
            return
        self._ack_arrives_at = max(self._ack_arrives_at, self._loop.time() + self._back.latency_s)
        self._acks_in_transit.append(_KernelAck(self._expected, edge, gap, number, self._back.losses))
        self._loop.call_at(self._ack_arrives_at, self._ack_arrive)
