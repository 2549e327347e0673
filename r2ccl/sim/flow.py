"""How long a schedule takes on an ideal network, chunk by chunk, for thousands of ranks: no bytes, no actors, no
frames.

The same collective machine that moves bytes in real life says which chunks may go and which may be applied; what is
left out is everything else. A rank sends one chunk after another and receives one after another, each taking its bytes
times beta; a message takes alpha on the way, of which its sender is busy for the overhead; a received chunk is reduced
by a core that does one thing at a time, at gamma a byte. So it finds what the formulas of ``planner.cost`` take for
granted: that nobody waits for a third, that no rank is sent more at once than it can take, that chunks do overlap.

A step's time is when the last of its transfers is applied on any rank.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from r2ccl.planner.cost import Wires
from r2ccl.protocol.collective import CollectiveMachine, Piece, Waits, prepare
from r2ccl.schedule.ir import Program, Receive, Send


@dataclass(frozen=True, slots=True)
class Timing:
    """What became of a schedule."""

    #: When the last rank has all its chunks. Acknowledgements are not waited for.
    seconds: float
    #: By step: when its last transfer was applied.
    steps_s: tuple[float, ...]
    #: By step: the most bytes that a rank sends or receives in it.
    step_bytes: tuple[int, ...]
    #: The most chunks that waited at a rank, arrived and not to be applied yet.
    held_chunks_max: int


class _What(enum.Enum):
    REACHES = enum.auto()  #: its first byte is at the target's port
    ARRIVED = enum.auto()  #: its last byte, too
    REDUCED = enum.auto()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One chunk at its receiver."""

    rank: int
    receive: int
    chunk: int
    size_bytes: int


class _Rank:
    __slots__ = ("held", "machine", "receiving_free_s", "reducing_free_s", "sending_free_s")

    def __init__(self, waits: Waits) -> None:
        self.machine = CollectiveMachine(waits)
        self.sending_free_s = 0.0
        self.receiving_free_s = 0.0
        self.reducing_free_s = 0.0
        self.held = 0


class _Flow:
    def __init__(self, programs: Sequence[Program], item_bytes: int, wires: Wires, chunk_s: float) -> None:
        chunk_elements = max(1, wires.chunk_bytes // item_bytes)
        self._item_bytes = item_bytes
        self._wires = wires
        self._chunk_s = chunk_s
        self._ranks = [_Rank(prepare(program, chunk_elements)) for program in programs]
        #: When, in which order of equals, what becomes of which chunk.
        self._events: list[tuple[float, int, _What, _Chunk]] = []
        self._order = 0
        self.steps_s: dict[int, float] = {}
        self.held_chunks_max = 0

    def run(self) -> float:
        now = 0.0
        for rank, one in enumerate(self._ranks):
            self._send(rank, one.machine.start(), now)
        while self._events:
            now, _, what, chunk = heapq.heappop(self._events)
            match what:
                case _What.REACHES:
                    self._reaches(chunk, now)
                case _What.ARRIVED:
                    self._arrived(chunk, now)
                case _What.REDUCED:
                    self._applied(chunk, now)
                case _:
                    assert_never(what)
        unfinished = [rank for rank, one in enumerate(self._ranks) if one.machine.chunks_left]
        if unfinished:
            raise RuntimeError(f"{len(unfinished)} ranks wait for ever, rank {unfinished[0]} among them")
        return now

    def _send(self, rank: int, pieces: Sequence[Piece], now: float) -> None:
        one, wires = self._ranks[rank], self._wires
        for index, chunk in pieces:
            send = one.machine.waits.program.sends[index]
            size_bytes = self._size_bytes(one.machine.waits, send, chunk)
            busy_s = wires.busy_s if chunk == 0 else self._chunk_s
            began_s = max(now, one.sending_free_s) + busy_s
            one.sending_free_s = began_s + size_bytes * wires.beta_s_per_byte
            receive = self._ranks[send.target].machine.waits.receive_index[send.step, rank]
            arriving = _Chunk(send.target, receive, chunk, size_bytes)
            self._at(began_s + wires.alpha_s - wires.busy_s, _What.REACHES, arriving)

    def _size_bytes(self, waits: Waits, part: Send | Receive, chunk: int) -> int:
        if part.also:
            return sum(stop - start for start, stop in part.segments) * self._item_bytes
        first, last = waits.chunk_range(part.start, part.stop, chunk)
        return (last - first) * self._item_bytes

    def _at(self, when_s: float, what: _What, chunk: _Chunk) -> None:
        self._order += 1
        heapq.heappush(self._events, (when_s, self._order, what, chunk))

    def _reaches(self, chunk: _Chunk, now: float) -> None:
        one = self._ranks[chunk.rank]
        one.receiving_free_s = max(now, one.receiving_free_s) + chunk.size_bytes * self._wires.beta_s_per_byte
        self._at(one.receiving_free_s, _What.ARRIVED, chunk)

    def _arrived(self, chunk: _Chunk, now: float) -> None:
        one = self._ranks[chunk.rank]
        if one.machine.arrived(chunk.receive, chunk.chunk):
            self._apply(chunk, now)
            return
        one.held += 1
        self.held_chunks_max = max(self.held_chunks_max, one.held)

    def _apply(self, chunk: _Chunk, now: float) -> None:
        one = self._ranks[chunk.rank]
        if one.machine.waits.program.receives[chunk.receive].reduce:
            one.reducing_free_s = max(now, one.reducing_free_s) + chunk.size_bytes * self._wires.gamma_s_per_byte
            self._at(one.reducing_free_s, _What.REDUCED, chunk)
        else:
            self._applied(chunk, now)

    def _applied(self, chunk: _Chunk, now: float) -> None:
        machine = self._ranks[chunk.rank].machine
        receives = machine.waits.program.receives
        step = receives[chunk.receive].step
        self.steps_s[step] = max(now, self.steps_s.get(step, 0.0))
        sends, released = machine.applied(chunk.receive, chunk.chunk)
        self._send(chunk.rank, sends, now)
        self._ranks[chunk.rank].held -= len(released)
        for receive, piece in released:
            size_bytes = self._size_bytes(machine.waits, receives[receive], piece)
            self._apply(_Chunk(chunk.rank, receive, piece, size_bytes), now)


def flow(programs: Sequence[Program], item_bytes: int, wires: Wires, chunk_s: float = 0.0) -> Timing:
    """The time of a schedule whose ranks all begin at once. ``chunk_s``: how long a sender is busy with each further
    chunk of a message, which the formulas neglect. Raises ``RuntimeError`` if it never ends."""
    running = _Flow(programs, item_bytes, wires, chunk_s)
    seconds = running.run()
    steps = sorted(running.steps_s)
    most = {step: 0 for step in steps}
    for program in programs:
        for parts in (program.sends, program.receives):
            moved: dict[int, int] = {}
            for part in parts:
                size = sum(stop - start for start, stop in part.segments) * item_bytes
                moved[part.step] = moved.get(part.step, 0) + size
            for step, size in moved.items():
                most[step] = max(most[step], size)
    return Timing(
        seconds, tuple(running.steps_s[step] for step in steps), tuple(most[step] for step in steps),
        running.held_chunks_max,
    )  # fmt: skip
