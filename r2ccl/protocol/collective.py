"""One operation's part on one rank: which chunk may be sent, which arrived chunk may be applied, and when it is over.

The machine executes a :class:`~r2ccl.schedule.ir.Program` chunk by chunk. It knows neither bytes nor time nor NICs; the
coordinator moves what it says may move, and reports back. Waits come in two forms, decided once from the program: if a
send waits for a receive of exactly the same segments, chunk i follows chunk i (a *stream*), otherwise it follows the
whole receive (a *gate*). Receives wait for receives in the same two ways, so that reductions keep the schedule's order.

An operation is over when every receive is applied and every send that needs it is settled: acknowledged by its target,
or gone out from a copy (ARCHITECTURE.md, decision 6).

    handle                      may release
    start                       sends (and receives, for chunks that came early) that wait for nothing
    arrived(receive, chunk)     -> True: apply it now; False: hold it, it comes back from a later ``applied``
    applied(receive, chunk)     sends and held receives that waited for it
    settled(send)               nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from r2ccl.schedule.ir import Program, Receive, Send

#: (index of a send or receive in the program, chunk)
Piece = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Waits:
    """A program's waits, turned round: who follows each receive. Made once per plan and shared by its operations."""

    program: Program
    chunk_elements: int
    send_chunks: tuple[int, ...]
    receive_chunks: tuple[int, ...]
    #: Per send or receive: how many gates it waits for, and the receive it streams behind (-1: none).
    send_gates: tuple[int, ...]
    send_stream: tuple[int, ...]
    receive_gates: tuple[int, ...]
    receive_stream: tuple[int, ...]
    #: Per receive: who follows it, by gate or stream.
    gated_sends: tuple[tuple[int, ...], ...]
    gated_receives: tuple[tuple[int, ...], ...]
    streamed_sends: tuple[tuple[int, ...], ...]
    streamed_receives: tuple[tuple[int, ...], ...]
    #: Chunks of sends that need an acknowledgement.
    acks_needed: int
    #: (step, source) -> index of the receive.
    receive_index: dict[tuple[int, int], int]
    #: Chunks of all receives.
    chunks_due: int
    #: The chunks that may be sent at once.
    first_pieces: tuple[Piece, ...]
    #: One chunk goes and one comes, and neither waits.
    is_exchange: bool

    def chunk_range(self, start: int, stop: int, chunk: int) -> tuple[int, int]:
        """The elements of a transfer's chunk."""
        first = start + chunk * self.chunk_elements
        return first, min(first + self.chunk_elements, stop)


def chunks_of(start: int, stop: int, chunk_elements: int) -> int:
    """How many chunks a segment has. An empty transfer is one empty chunk: a message all the same."""
    return max(1, -(-(stop - start) // chunk_elements))


def prepare(program: Program, chunk_elements: int) -> Waits:
    """Turn a program's ``after`` lists round."""
    assert chunk_elements > 0
    receives = program.receives

    def split(part: Send | Receive) -> tuple[int, list[int]]:
        stream = next((r for r in part.after if receives[r].segments == part.segments), -1)
        return stream, [r for r in part.after if r != stream]

    def chunks(part: Send | Receive) -> int:
        return 1 if part.also else chunks_of(part.start, part.stop, chunk_elements)

    send_waits = [split(send) for send in program.sends]
    receive_waits = [split(receive) for receive in receives]
    send_chunks = tuple(chunks(send) for send in program.sends)

    def gated(waits: list[tuple[int, list[int]]]) -> tuple[tuple[int, ...], ...]:
        return _turned_round([gates for _, gates in waits], len(receives))

    def streamed(waits: list[tuple[int, list[int]]]) -> tuple[tuple[int, ...], ...]:
        return _turned_round([[stream] * (stream >= 0) for stream, _ in waits], len(receives))

    return Waits(
        program=program,
        chunk_elements=chunk_elements,
        send_chunks=send_chunks,
        receive_chunks=tuple(chunks(receive) for receive in receives),
        send_gates=tuple(len(gates) for _, gates in send_waits),
        send_stream=tuple(stream for stream, _ in send_waits),
        receive_gates=tuple(len(gates) for _, gates in receive_waits),
        receive_stream=tuple(stream for stream, _ in receive_waits),
        gated_sends=gated(send_waits),
        gated_receives=gated(receive_waits),
        streamed_sends=streamed(send_waits),
        streamed_receives=streamed(receive_waits),
        acks_needed=sum(n for n, s in zip(send_chunks, program.sends, strict=True) if s.needs_ack),
        receive_index={(r.step, r.source): index for index, r in enumerate(receives)},
        chunks_due=sum(chunks(receive) for receive in receives),
        first_pieces=tuple(
            (index, chunk)
            for index, (stream, gates) in enumerate(send_waits)
            if stream < 0 and not gates
            for chunk in range(send_chunks[index])
        ),
        is_exchange=send_chunks == (1,)
        and [chunks(receive) for receive in receives] == [1]
        and [*send_waits, *receive_waits] == [(-1, []), (-1, [])],
    )


def _turned_round(waits: list[list[int]], receives: int) -> tuple[tuple[int, ...], ...]:
    """From whom each waits for to who waits for each."""
    followers: list[list[int]] = [[] for _ in range(receives)]
    for index, awaited in enumerate(waits):
        for receive in awaited:
            followers[receive].append(index)
    return tuple(map(tuple, followers))


class _Counting:
    """What is left of an operation, and what it begins with, whatever waits for what."""

    __slots__ = ("acks_left", "chunks_left", "waits")

    def __init__(self, waits: Waits) -> None:
        self.waits = waits
        #: Chunks of all receives not yet applied.
        self.chunks_left = waits.chunks_due
        #: Chunks of sends that need it and are not settled.
        self.acks_left = waits.acks_needed

    @property
    def is_complete(self) -> bool:
        return self.chunks_left == 0 and self.acks_left == 0

    def start(self) -> Sequence[Piece]:
        """The chunks that may be sent at once."""
        return self.waits.first_pieces

    def settled(self, send: int) -> None:
        """A chunk of this send was acknowledged, or went out from a copy."""
        if self.waits.program.sends[send].needs_ack:
            self.acks_left -= 1
            assert self.acks_left >= 0, "more chunks settled than were sent"


class ExchangeMachine(_Counting):
    """The machine of an operation that is one chunk there and one back, neither waiting for the other: all that
    :class:`CollectiveMachine` decides of such a one, known beforehand. Small all-reduces of two ranks are nothing else.
    """

    __slots__ = ()

    def arrived(self, receive: int, chunk: int) -> bool:
        """It may be applied."""
        return self.may_apply(receive, chunk)

    def applied(self, receive: int, chunk: int) -> tuple[list[Piece], list[Piece]]:
        """Nothing waited for it."""
        assert self.chunks_left == 1, f"chunk {chunk} of receive {receive} was applied twice"
        self.chunks_left = 0
        return [], []

    def is_received(self, receive: int) -> bool:
        """Has it been applied?"""
        return receive == 0 and self.chunks_left == 0

    def may_apply(self, receive: int, chunk: int) -> bool:
        """There is no other."""
        return receive == 0 and chunk == 0


def begin(waits: Waits) -> Machine:
    """The machine of an operation that starts."""
    return ExchangeMachine(waits) if waits.is_exchange else CollectiveMachine(waits)


class CollectiveMachine(_Counting):
    """One operation on one rank. See the module's docstring for its life."""

    __slots__ = (
        "_applied",
        "_held",
        "_receive_gates",
        "_receive_left",
        "_send_gates",
    )

    def __init__(self, waits: Waits) -> None:
        super().__init__(waits)
        self._send_gates = list(waits.send_gates)
        self._receive_gates = list(waits.receive_gates)
        #: Per receive: chunks not yet applied.
        self._receive_left = list(waits.receive_chunks)
        #: Per receive: bit i is set when chunk i is applied.
        self._applied = [0] * len(self._receive_left)
        #: Arrived, but not yet allowed to be applied.
        self._held: set[Piece] = set()

    def arrived(self, receive: int, chunk: int) -> bool:
        """May the chunk be applied now? If not, the machine keeps its name and hands it back when it may."""
        if self.may_apply(receive, chunk):
            return True
        self._held.add((receive, chunk))
        return False

    def applied(self, receive: int, chunk: int) -> tuple[list[Piece], list[Piece]]:
        """The chunk is in the buffer now. Returns the sends and the held receives that it releases."""
        bit = 1 << chunk
        assert not self._applied[receive] & bit, f"chunk {chunk} of receive {receive} was applied twice"
        self._applied[receive] |= bit
        self._receive_left[receive] -= 1
        self.chunks_left -= 1
        waits = self.waits
        sends = [(send, chunk) for send in waits.streamed_sends[receive] if self._send_gates[send] == 0]
        candidates = [(other, chunk) for other in waits.streamed_receives[receive]]
        if self._receive_left[receive] == 0:
            self._open_gates(receive, sends, candidates)
        if not candidates or not self._held:
            return sends, []
        released = [piece for piece in candidates if piece in self._held and self.may_apply(*piece)]
        self._held.difference_update(released)
        return sends, released

    def is_received(self, receive: int) -> bool:
        """Has all of it been applied?"""
        return self._receive_left[receive] == 0

    def may_apply(self, receive: int, chunk: int) -> bool:
        """Has everything been applied that this chunk waits for?"""
        if self._receive_gates[receive]:
            return False
        stream = self.waits.receive_stream[receive]
        return stream < 0 or bool(self._applied[stream] >> chunk & 1)

    def _open_gates(self, receive: int, sends: list[Piece], candidates: list[Piece]) -> None:
        waits = self.waits
        for send in waits.gated_sends[receive]:
            self._send_gates[send] -= 1
            if self._send_gates[send] == 0:
                stream = waits.send_stream[send]
                ready = -1 if stream < 0 else self._applied[stream]
                sends.extend((send, chunk) for chunk in range(waits.send_chunks[send]) if ready >> chunk & 1)
        for other in waits.gated_receives[receive]:
            self._receive_gates[other] -= 1
            if self._receive_gates[other] == 0:
                candidates.extend((other, chunk) for chunk in range(waits.receive_chunks[other]))


Machine = CollectiveMachine | ExchangeMachine
