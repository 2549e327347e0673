"""One connection of the ``faulty`` transport: what it holds back, in both directions, and what it pretends.

Out: frames that a fault holds wait here by reference, as they would in a queue behind a kernel that hears nothing.
In: the connection below goes on receiving, so events wait here with copies of their payloads. A large payload that
begins while we are blocked goes to memory of our own; one whose destination had been asked for before goes on into it,
but that it landed is told later.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from r2ccl.protocol.wire import Header, Kind, Landing, unpack_header
from r2ccl.transport.fault_rules import Corrupt, Delay, Drop
from r2ccl.transport.interface import Connection, Loss, PathSample, Purpose, Receiver

if TYPE_CHECKING:
    from r2ccl.transport.faulty import FaultyDevice

#: What a kernel would have taken over and shown as in flight; the rest of what is held counts as unsent.
KERNEL_BYTES = 256 << 10
#: Sums of floating-point seconds differ in their last digits: what is this near has come.
TIMER_GRAIN_S = 1e-9
_NOTHING = PathSample(in_flight_bytes=0, unsent_bytes=0, silence_s=0.0, rtt_s=0.0, limited=True)


class _Loan(enum.Enum):
    """Our receiver's memory that the connection below writes to."""

    NONE = enum.auto()
    FILLING = enum.auto()
    FILLED = enum.auto()  #: complete, and our receiver does not know yet


@dataclass(slots=True, eq=False)
class _Held:
    """A frame that waits. ``due`` is None while a rule says that the path loses it."""

    header: bytes
    payload: bytes | memoryview
    landing: Landing | None
    offset: int
    due: float | None = None

    @property
    def size(self) -> int:
        return len(self.header) + len(self.payload)


def _flipped(payload: bytes | memoryview) -> memoryview:
    """A copy with one bit changed."""
    copy = bytearray(payload)
    if copy:
        copy[len(copy) // 2] ^= 1
    return memoryview(copy)


class FaultyConnection:
    """See :mod:`r2ccl.transport.faulty`, which makes it."""

    posts = None  #: Rules act on frames that are sent.

    def __init__(self, device: FaultyDevice, receiver: Receiver) -> None:
        self.one_sided = device.one_sided
        self.local_nic = device.nic.index
        self.peer = -1
        self.peer_incarnation = 0
        self.remote_nic = -1
        self.purpose = Purpose.CONTROL
        self._device = device
        self._receiver = receiver
        self._inner: Connection | None = None
        #: Established, open and with nothing in the way: the one thing that is looked at while all is well.
        self._direct = False
        self._opened = False
        self._ended = False
        self._blocked = False
        self._blocked_at = 0.0
        self._sample_then = _NOTHING
        self._held: deque[_Held] = deque()
        #: How much longer the latest frame takes, by rule: a kernel's answer would, too.
        self._delay_s = 0.0
        self._events: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._replaying = False
        self._loan = _Loan.NONE
        self._scratch: memoryview | None = None
        self._dial_timer: asyncio.TimerHandle | None = None
        self._due_timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "ended" if self._ended else "blocked" if self._blocked else "open" if self._opened else "dialling"
        return f"<faulty nic{self.local_nic}->rank{self.peer}.nic{self.remote_nic} {state}, {len(self._held)} held>"

    # How it begins: called by the device.

    def name(self, peer: int, remote_nic: int, purpose: Purpose) -> None:
        self.peer, self.remote_nic, self.purpose = peer, remote_nic, purpose

    def give_up_after(self, seconds: float) -> None:
        self._dial_timer = self._device.loop.call_later(seconds, self._give_up)

    def wrap(self, inner: Connection) -> None:
        self._inner = inner
        self.name(inner.peer, inner.remote_nic, inner.purpose)
        self._blocked = self._device.blocks(self)
        self._blocked_at = self._device.clock.now()

    def faults_changed(self) -> None:
        blocked = self._device.blocks(self)
        if blocked and not self._blocked:
            self._blocked_at = self._device.clock.now()
            self._sample_then = self._below()
        self._blocked = blocked
        for frame in self._held:
            if frame.due is None:
                frame.due = self._judge(frame)
        self._flush()
        if self._events and not blocked:
            self._device.loop.call_soon(self._catch_up)

    def _give_up(self) -> None:
        self.abort()
        self._receiver.lost(self, Loss.UNREACHABLE, "the dial was not answered")

    # What a connection is for.

    def send(self, header: bytes, payload: bytes | memoryview) -> None:
        if self._direct:
            assert self._inner is not None
            self._inner.send(header, payload)
        else:
            self._hold(_Held(header, payload, None, 0))

    def write(self, header: bytes, payload: memoryview, landing: Landing, offset: int) -> None:
        if self._direct:
            assert self._inner is not None
            self._inner.write(header, payload, landing, offset)
        else:
            self._hold(_Held(header, payload, landing, offset))

    def withdraw(self, communicator: int, operation: int) -> bool:
        def belongs(frame: _Held) -> bool:
            header = unpack_header(frame.header)
            return header.kind == Kind.CHUNK and header.communicator == communicator and header.operation >= operation

        self._held = deque(frame for frame in self._held if not belongs(frame))
        self._flush()
        return self._inner is None or self._inner.withdraw(communicator, operation)

    def discard_incoming(self) -> None:
        if self._loan is _Loan.FILLING and self._inner is not None:
            self._inner.discard_incoming()
        self._loan = _Loan.NONE

    def sample(self) -> PathSample:
        held_bytes = sum(frame.size for frame in self._held)
        base, silence_s = self._below(), 0.0
        if self._blocked:
            base = self._sample_then
            silence_s = self._device.clock.now() - self._blocked_at
        in_flight_bytes = base.in_flight_bytes + min(held_bytes, KERNEL_BYTES)
        return dataclasses.replace(
            base,
            in_flight_bytes=in_flight_bytes,
            unsent_bytes=base.unsent_bytes + max(0, held_bytes - KERNEL_BYTES),
            silence_s=base.silence_s + silence_s,
            rtt_s=base.rtt_s + (self._delay_s if self._device.has_rules else 0.0),
            limited=in_flight_bytes == 0 or (base.limited and base.in_flight_bytes > 0),
        )

    def abort(self) -> None:
        if self._ended:
            return
        # One-sided writes that landed are reported first: those that we kept back, then those that the adapter did.
        written = [arguments for deliver, arguments in self._events if deliver == self._deliver_written]
        self._events.clear()
        self._blocked = self._replaying = False
        for arguments in written:
            self._deliver_written(*arguments)
        if self._inner is not None:
            self._inner.abort()
        self._end()

    def _below(self) -> PathSample:
        return self._inner.sample() if self._inner is not None and self._opened else _NOTHING

    def _end(self) -> None:
        self._ended = True
        self._direct = False
        self._held.clear()
        self._events.clear()
        self._loan = _Loan.NONE
        self._scratch = None
        for timer in (self._dial_timer, self._due_timer):
            if timer is not None:
                timer.cancel()
        self._device.forget(self, self._inner)

    # Out.

    def _hold(self, frame: _Held) -> None:
        if self._ended:
            return
        if not self._opened:
            raise ValueError(f"{self!r} is not established: nothing can be sent yet")
        frame.due = self._judge(frame)
        self._held.append(frame)
        self._flush()

    def _judge(self, frame: _Held) -> float | None:
        """When the frame may go on. May change its payload."""
        now = self._device.clock.now()
        if not self._device.has_rules:
            return now
        verdict = self._device.judge(self, unpack_header(frame.header), len(frame.payload))
        if isinstance(verdict, Drop):
            return None
        if isinstance(verdict, Corrupt):
            frame.payload = _flipped(frame.payload)
        self._delay_s = verdict.seconds if isinstance(verdict, Delay) else 0.0
        return now + self._delay_s

    def _flush(self) -> None:
        """Let go on, in order, what may."""
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        while self._held and not self._blocked and not self._ended and self._inner is not None:
            frame = self._held[0]
            if frame.due is None:
                break
            wait_s = frame.due - self._device.clock.now()
            if wait_s > TIMER_GRAIN_S:
                self._due_timer = self._device.loop.call_later(wait_s, self._flush)
                break
            self._held.popleft()
            if frame.landing is None:
                self._inner.send(frame.header, frame.payload)
            else:
                self._inner.write(frame.header, memoryview(frame.payload), frame.landing, frame.offset)
        self._direct = self._opened and not (self._ended or self._blocked or self._held or self._device.has_rules)

    # In: what the connection below says.

    def inner_established(self) -> None:
        self._hear(self._deliver_established)

    def inner_destination(self, header: Header) -> memoryview:
        if self._keeps_back:
            self._scratch = memoryview(bytearray(header.payload_bytes))
            return self._scratch
        self._loan = _Loan.FILLING
        return self._receiver.destination(self, header)

    def inner_landed(self, header: Header) -> None:
        if self._scratch is not None:
            scratch, self._scratch = self._scratch, None
            self._hear(self._deliver_copy, header, scratch)
        elif self._loan is _Loan.FILLING:
            self._loan = _Loan.FILLED
            self._hear(self._deliver_loaned, self._receiver.landed, header)
        else:
            self._hear(self._deliver_written, header)

    def inner_spoiled(self, header: Header) -> None:
        if self._loan is _Loan.FILLING:
            self._loan = _Loan.FILLED
            self._hear(self._deliver_loaned, self._receiver.spoiled, header)
        else:
            self._scratch = None
            self._hear(self._receiver.spoiled, self, header)

    def inner_chunk(self, header: Header, payload: memoryview) -> None:
        if self._keeps_back:
            payload = memoryview(bytes(payload))
        self._hear(self._receiver.chunk, self, header, payload)

    def inner_control(self, header: Header, body: memoryview) -> None:
        if self._keeps_back:
            body = memoryview(bytes(body))
        self._hear(self._receiver.control, self, header, body)

    def inner_batch_ended(self) -> None:
        if not self._keeps_back:
            self._receiver.batch_ended(self)

    def inner_lost(self, loss: Loss, detail: str) -> None:
        self._hear(self._deliver_lost, loss, detail)

    @property
    def _keeps_back(self) -> bool:
        return self._blocked or self._replaying or bool(self._events)

    def _hear(self, deliver: Callable[..., None], *arguments: Any) -> None:
        """Deliver now, or behind what is kept back."""
        if self._keeps_back:
            self._events.append((deliver, arguments))
        else:
            deliver(*arguments)

    def _catch_up(self) -> None:
        """The fault has ended: say all that happened meanwhile, as one batch."""
        told = False
        while self._events and not self._blocked and not self._ended:
            deliver, arguments = self._events.popleft()
            self._replaying = True
            deliver(*arguments)
            self._replaying = False
            told = True
        if told and self._opened and not self._ended:
            self._receiver.batch_ended(self)

    def _deliver_established(self) -> None:
        assert self._inner is not None
        if self._dial_timer is not None:
            self._dial_timer.cancel()
        self.name(self._inner.peer, self._inner.remote_nic, self._inner.purpose)
        self.peer_incarnation = self._inner.peer_incarnation
        self._opened = True
        self._flush()
        self._receiver.established(self)

    def _deliver_copy(self, header: Header, payload: memoryview) -> None:
        self._loan = _Loan.FILLING
        destination = self._receiver.destination(self, header)
        # Inside that call the receiver may have aborted, or given the place to somebody else.
        if self._loan_is(_Loan.FILLING):
            destination[:] = payload
            self._loan = _Loan.NONE
            self._receiver.landed(self, header)

    def _deliver_loaned(self, tell: Callable[[Connection, Header], None], header: Header) -> None:
        if self._loan is _Loan.FILLED:
            self._loan = _Loan.NONE
            tell(self, header)

    def _deliver_written(self, header: Header) -> None:
        self._receiver.landed(self, header)

    def _loan_is(self, state: _Loan) -> bool:
        return self._loan is state

    def _deliver_lost(self, loss: Loss, detail: str) -> None:
        self._end()
        self._receiver.lost(self, loss, detail)
