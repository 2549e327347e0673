"""Executes schedules chunk by chunk in any order that they allow, as unkindly as the contract permits.

What a real run may do, this does whenever the random generator says so: ranks enter late; a chunk's bytes are read when
it is first sent and again at the very moment when it arrives, as if it had been resent; and a rank that may leave hands
its buffer back to a user who scribbles over it at once.

Ranks work in place, or keep what they had at first and what they receive in different memory. Then a read takes each
element from where the rank's own waits, all that the rank knows, say that it is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from r2ccl.schedule.ir import Program, Receive, Send
from r2ccl.schedule.semantics import Collective

#: Two columns: a plain sum, and a hash which depends on order and grouping of all operands.
Values = NDArray[np.uint64]

#: The positions of a chunk.
Positions = NDArray[np.int64]

_LEFT, _RIGHT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


class ExecutionError(AssertionError):
    """The execution went wrong."""


def reduction(left: Values, right: Values) -> Values:
    result = left + right
    result[:, 1] = left[:, 1] * _LEFT + (right[:, 1] ^ (right[:, 1] >> np.uint64(29))) * _RIGHT
    return result


def positions_of(part: Send | Receive) -> Positions:
    return np.concatenate([np.arange(start, stop) for start, stop in part.segments])


class OwnWaits:
    """What a rank knows by its own waits: which elements a send or receive finds received."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known: dict[tuple[int, ...], NDArray[np.bool_]] = {}
        self.ever_received = self._covered(set(range(len(program.receives))))

    def received(self, part: Send | Receive) -> NDArray[np.bool_]:
        """By position: whether a receive of it is among what the send or receive waits for, itself or by others."""
        if part.after not in self.known:
            awaited: set[int] = set()
            more = set(part.after)
            while more:
                awaited |= more
                more = {index for receive in more for index in self.program.receives[receive].after} - awaited
            self.known[part.after] = self._covered(awaited)
        return self.known[part.after]

    def _covered(self, receives: set[int]) -> NDArray[np.bool_]:
        covered = np.zeros(self.program.count, np.bool_)
        for index in receives:
            covered[positions_of(self.program.receives[index])] = True
        return covered


@dataclass(slots=True)
class SentChunk:
    payload: Values
    begun: bool
    arrived: bool = False


class World:
    """All ranks of one schedule on their way through it."""

    def __init__(
        self,
        programs: Sequence[Program],
        collective: Collective,
        chunk_elements: int,
        generator: random.Random,
        in_place: bool = True,
    ) -> None:
        self.programs = programs
        self.collective = collective
        self.chunk_elements = chunk_elements
        self.generator = generator
        rng = np.random.default_rng(generator.randrange(1 << 32))
        shape = (len(programs), collective.count, 2)
        self.initial: Values = rng.integers(0, 1 << 63, size=shape, dtype=np.uint64)
        #: What ranks have received; in place, also what they had at first.
        self.buffers = [self.initial[rank].copy() for rank in range(len(programs))]
        #: What ranks had at first.
        self.inputs = self.buffers
        if not in_place:
            self.inputs = [self.initial[rank].copy() for rank in range(len(programs))]
            for buffer in self.buffers:
                buffer[:] = np.uint64(0xBAD)
        self.own_waits = [OwnWaits(program) for program in programs]
        self.applied: list[list[set[int]]] = [[set() for _ in program.receives] for program in programs]
        self.sent: dict[tuple[int, int, int], SentChunk] = {}
        self.entered: set[int] = set()
        self.results: dict[int, Values] = {}
        self.receive_index = {
            (receive.step, receive.source, program.rank): index
            for program in programs
            for index, receive in enumerate(program.receives)
        }

    def run(self) -> None:
        """Until nothing can happen any more. Raises :class:`ExecutionError` if that is not the end, or a wrong one."""
        while True:
            events = [*self._entries(), *self._beginnings(), *self._arrivals(), *self._leavings()]
            if not events:
                break
            kind, rank, index, chunk = self.generator.choice(events)
            if kind == "enter":
                self.entered.add(rank)
                self._make_copies(rank)
            elif kind == "begin":
                self._begin(rank, index, chunk)
            elif kind == "arrive":
                self._arrive(rank, index, chunk)
            else:
                self._leave(rank)
        if len(self.results) < len(self.programs):
            raise ExecutionError(f"stuck: only ranks {sorted(self.results)} are through")
        if not all(sent.arrived for sent in self.sent.values()):
            raise ExecutionError("all left, and something is still on its way")
        self._verify()

    def _chunks(self, part: Send | Receive) -> range:
        return range(1 if part.also else max(1, -(-(part.stop - part.start) // self.chunk_elements)))

    def _positions(self, part: Send | Receive, chunk: int) -> Positions:
        if part.also:
            return positions_of(part)
        start = part.start + chunk * self.chunk_elements
        return np.arange(start, min(start + self.chunk_elements, part.stop))

    def _read(self, rank: int, part: Send | Receive, chunk: int) -> Values:
        """What the rank has where a send reads, or a receive its own operand."""
        positions = self._positions(part, chunk)
        received = self.own_waits[rank].received(part)[positions]
        values: Values = self.inputs[rank][positions]
        values[received] = self.buffers[rank][positions[received]]
        return values

    def _may_go(self, rank: int, part: Send | Receive, chunk: int) -> bool:
        for index in part.after:
            receive, applied = self.programs[rank].receives[index], self.applied[rank][index]
            if receive.segments == part.segments:
                if chunk not in applied:
                    return False
            elif len(applied) < len(self._chunks(receive)):
                return False
        return True

    def _entries(self) -> list[tuple[str, int, int, int]]:
        return [("enter", rank, 0, 0) for rank in range(len(self.programs)) if rank not in self.entered]

    def _beginnings(self) -> list[tuple[str, int, int, int]]:
        return [
            ("begin", rank, index, chunk)
            for rank in sorted(self.entered)
            for index, send in enumerate(self.programs[rank].sends)
            for chunk in self._chunks(send)
            if self._can_begin(rank, index, send, chunk)
        ]

    def _can_begin(self, rank: int, index: int, send: Send, chunk: int) -> bool:
        sent = self.sent.get((rank, index, chunk))
        return not sent.begun if sent else self._may_go(rank, send, chunk)

    def _arrivals(self) -> list[tuple[str, int, int, int]]:
        arrivals = []
        for (rank, index, chunk), sent in self.sent.items():
            send = self.programs[rank].sends[index]
            if not sent.begun or sent.arrived or send.target not in self.entered:
                continue
            receive = self.programs[send.target].receives[self.receive_index[send.step, rank, send.target]]
            if self._may_go(send.target, receive, chunk):
                arrivals.append(("arrive", rank, index, chunk))
        return arrivals

    def _leavings(self) -> list[tuple[str, int, int, int]]:
        return [("leave", rank, 0, 0) for rank in sorted(self.entered - self.results.keys()) if self._may_leave(rank)]

    def _may_leave(self, rank: int) -> bool:
        program = self.programs[rank]
        for receive, applied in zip(program.receives, self.applied[rank], strict=True):
            if len(applied) < len(self._chunks(receive)):
                return False
        # A copy can be acknowledged at leisure.
        return program.sends_from_copies or all(
            (rank, index, chunk) in self.sent and self.sent[rank, index, chunk].arrived
            for index, send in enumerate(program.sends)
            if send.needs_ack
            for chunk in self._chunks(send)
        )

    def _make_copies(self, rank: int) -> None:
        """In the same instant in which a send gets ready, if it goes out from a copy."""
        program = self.programs[rank]
        if program.sends_from_copies:
            for index, send in enumerate(program.sends):
                for chunk in self._chunks(send):
                    if (rank, index, chunk) not in self.sent and self._may_go(rank, send, chunk):
                        self.sent[rank, index, chunk] = SentChunk(self._read(rank, send, chunk), begun=False)

    def _begin(self, rank: int, index: int, chunk: int) -> None:
        if self.programs[rank].sends_from_copies:
            self.sent[rank, index, chunk].begun = True
        else:
            payload = self._read(rank, self.programs[rank].sends[index], chunk)
            self.sent[rank, index, chunk] = SentChunk(payload, begun=True)

    def _arrive(self, rank: int, index: int, chunk: int) -> None:
        send, sent = self.programs[rank].sends[index], self.sent[rank, index, chunk]
        from_buffer = not self.programs[rank].sends_from_copies
        if from_buffer and not np.array_equal(self._read(rank, send, chunk), sent.payload):
            raise ExecutionError(f"rank {rank}, step {send.step}: resent with other bytes than it was sent with")
        receive_index = self.receive_index[send.step, rank, send.target]
        receive = self.programs[send.target].receives[receive_index]
        result = sent.payload
        if receive.reduce:
            own = self._read(send.target, receive, chunk)
            result = reduction(result, own) if receive.received_first else reduction(own, result)
        self.buffers[send.target][self._positions(receive, chunk)] = result
        sent.arrived = True
        self.applied[send.target][receive_index].add(chunk)
        self._make_copies(send.target)

    def _leave(self, rank: int) -> None:
        for hearing in self.collective.hearings:
            if hearing.rank == rank:
                missing = [r for r in range(len(self.programs)) if hearing.entered >> r & 1 and r not in self.entered]
                if missing:
                    raise ExecutionError(f"rank {rank} leaves before {missing} have entered")
        ever = self.own_waits[rank].ever_received
        self.results[rank] = np.where(ever[:, None], self.buffers[rank], self.inputs[rank])
        self.buffers[rank][:] = self.inputs[rank][:] = np.uint64(0xDEAD)

    def _verify(self) -> None:
        agreed: dict[tuple[int, int, int], Values] = {}
        for expected in self.collective.expectations:
            result = self.results[expected.rank][expected.start : expected.stop]
            contributors = [rank for rank in range(len(self.programs)) if expected.contributors >> rank & 1]
            right = self.initial[contributors, expected.start : expected.stop, 0].sum(axis=0, dtype=np.uint64)
            if not np.array_equal(result[:, 0], right):
                raise ExecutionError(f"rank {expected.rank} has a wrong result")
            same = agreed.setdefault((expected.start, expected.stop, expected.contributors), result)
            if not np.array_equal(result, same):
                raise ExecutionError(f"rank {expected.rank} reduced in another order")
