"""One operation on one rank, with everything that executing it needs at hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from r2ccl.actors.work import Work
from r2ccl.buffers import Buffer
from r2ccl.protocol.collective import Machine, Piece, Waits
from r2ccl.protocol.wire import Landing
from r2ccl.reduction import Finish, Reducer
from r2ccl.transport.interface import Device, Region

#: (first, last + 1)
Span = tuple[int, int]
#: One of the operation's arrays, and where in it.
Placed = tuple[int, Span]


@dataclass(frozen=True, slots=True)
class Planned:
    """What operations of equal call share: made once, kept in the coordinator's cache."""

    call: str
    fingerprint: int
    waits: Waits
    reduce: Reducer | None
    finish: Finish | None
    #: Per send and receive of the program, per chunk: its bytes in its array. Worked out once: it is asked for twice
    #: per chunk, and took a tenth of the time of a chunk.
    send_spans: tuple[tuple[Span, ...], ...]
    receive_spans: tuple[tuple[Span, ...], ...]
    #: Per send and receive: which array that is.
    send_arrays: tuple[int, ...]
    receive_arrays: tuple[int, ...]
    #: Per send and receive: its pieces in bytes, if it has several; they travel as one chunk.
    send_pieces: tuple[tuple[Placed, ...], ...]
    receive_pieces: tuple[tuple[Placed, ...], ...]
    #: Per receive: the own operand's array, and how many elements further on than the result it lies there; None: it is
    #: what the result replaces.
    operands: tuple[tuple[int, int] | None, ...]
    #: What is copied before anything else, and after everything: from and to, in elements.
    first: tuple[tuple[Placed, Placed], ...]
    last: tuple[tuple[Placed, Placed], ...]
    #: Elements of work memory, the last of the operation's arrays.
    work_elements: int
    #: Where the result lies in the end, in elements.
    results: tuple[Placed, ...]
    #: Per send and receive: the fingerprint of its chunks.
    send_marks: tuple[int, ...]
    receive_marks: tuple[int, ...]
    #: Per send: it goes out from a copy, which ends the need for its buffer at once (decision 6).
    copied: tuple[bool, ...]
    #: Bytes of every chunk but a transfer's last.
    chunk_bytes: int
    #: Ranks that this rank sends to.
    targets: tuple[int, ...]
    #: The most that goes out from a copy.
    eager_bytes: int
    #: Sources that send more than that, and must hear that we have entered.
    bulky_sources: tuple[int, ...]
    reason: str
    #: Of the picture that it was planned from.
    epoch: int = 0
    #: What was called, to plan it anew from a later picture; None: a message, which depends on none.
    asked: Any = None
    #: Of a message: its tag.
    step: int = 0
    #: What ranks must have in common besides the call, to plan alike.
    under: str = ""
    #: Sources of which only they and we know how much they send: to write it they must hear of its place, small or not.
    uneven_sources: tuple[int, ...] = ()
    #: What there is to know of it if it is small and simple enough for the short way (``actors.express``).
    exchange: Exchange | None = None
    #: What this rank does one after the other, if it is small and simple enough for lockstep (``actors.lockstep``).
    moves: tuple[Move, ...] = ()
    #: To whom something goes of them, and from whom nothing comes.
    unheard: frozenset[int] = frozenset()


class Move(NamedTuple):
    """One chunk that goes or comes, all of a transfer."""

    is_send: bool
    #: Its index in the program's sends or receives.
    part: int
    peer: int
    step: int
    fingerprint: int
    #: Where it lies, in bytes.
    array: int
    start: int
    stop: int
    #: What comes is part of the result, which has something of every rank: all have entered.
    is_final: bool


class Exchange(NamedTuple):
    """An operation that is one small chunk to a peer, from a copy, and one of its back."""

    peer: int
    #: Our chunk, and where it lies in our array.
    send_step: int
    send_mark: int
    send_array: int
    send_start: int
    send_stop: int
    #: It goes out from a copy, but it must be acknowledged unless such a copy may outlive its operation.
    needs_ack: bool
    #: The peer's.
    step: int
    mark: int
    size: int


class Operation:
    """A numbered call. ``machine`` is None until it runs.

    Most operations are over before they need more than a call has, so the rest is set when it is needed.
    """

    machine: Machine | None = None
    #: Its place among all operations of this rank, by when they started.
    turn = 0
    #: How long it had been called before it had a number.
    waited_s = 0.0
    #: Pieces that arrived before they may be applied, with their bytes (None: in place already).
    held: dict[Piece, Scratch | None] | None = None
    #: Registered memory, where the transport writes one-sided.
    landings: Landings | None = None
    #: When it was last announced to all; never, at first.
    announced_at_s = -math.inf
    laggards_logged = False
    #: Transfers still to come of each bulky source; None: of all.
    transfers_left: dict[int, int] | None = None
    #: Peers that we asked to say when they are in it.
    asked: frozenset[int] = frozenset()
    #: When it fails if it has not ended; put off by our own absences, of which so much has been counted.
    deadline_s = math.inf
    excused_s = 0.0

    def __init__(
        self, number: int, planned: Planned, arrays: tuple[Buffer, ...], work: Work, timeout_s: float, owner: Any
    ) -> None:
        self.number = number
        self.planned = planned
        #: The caller's, and work memory from when it runs.
        self.arrays = arrays
        self.work = work
        #: In seconds, counted from the call; 0: none.
        self.timeout_s = timeout_s
        self.owner = owner
        #: When it was called, and our own absence so far, for the time-out to subtract.
        self.called_at_s = self.stalled_s = 0.0

    def hearers(self, one_sided: bool) -> tuple[int, ...]:
        """Whom to tell that this rank has entered."""
        planned = self.planned
        return planned.uneven_sources or planned.bulky_sources if one_sided else planned.bulky_sources

    def prepare(self) -> None:
        """It runs from now on: work memory, and initial values where they are not where they are read."""
        planned = self.planned
        if planned.work_elements:
            like = self.arrays[0]
            self.arrays = (
                *self.arrays,
                Buffer(np.empty(planned.work_elements, like.array.dtype), like.dtype_name, None),
            )
        self._copy(planned.first)

    def received_all(self, receive: int) -> int:
        """All of a transfer is there. The bulky source of which nothing more is to come now; -1: none."""
        planned = self.planned
        source = planned.waits.program.receives[receive].source
        if source not in planned.bulky_sources:
            return -1
        left = self.transfers_left
        if left is None:
            left = self.transfers_left = Counter(one.source for one in planned.waits.program.receives)
        left[source] -= 1
        return -1 if left[source] else source

    def hold(self, receive: int, chunk: int, scratch: Scratch | None) -> None:
        """A piece arrived before its turn."""
        if self.held is None:
            self.held = {}
        self.held[receive, chunk] = scratch

    def apply(self, receive: int, chunk: int, data: np.ndarray[Any, Any]) -> None:
        """Copy or reduce a chunk's bytes to where they belong."""
        planned = self.planned
        start, stop = planned.receive_spans[receive][chunk]
        program = planned.waits.program.receives[receive]
        target = self.arrays[planned.receive_arrays[receive]]
        if program.reduce:
            self._reduce(receive, start, stop, data)
        elif planned.receive_pieces[receive]:
            self._scatter(receive, data.data[: stop - start])
        else:
            target.bytes[start:stop] = data.data[: stop - start]

    def take(self, receive: int, payload: memoryview) -> None:
        """As :meth:`apply`, for a transfer's only chunk, in memory that is not ours."""
        planned = self.planned
        if not payload:
            return  # what is empty may be read-only
        start, stop = planned.receive_spans[receive][0]
        if planned.waits.program.receives[receive].reduce:
            self._reduce(receive, start, stop, payload)
        else:
            self.arrays[planned.receive_arrays[receive]].bytes[start:stop] = payload

    def _reduce(self, receive: int, start: int, stop: int, data: np.ndarray[Any, Any] | memoryview) -> None:
        """The bytes ``start`` to ``stop`` of what is received into, from the front of ``data``."""
        planned = self.planned
        assert planned.reduce is not None
        target, operand = self.arrays[planned.receive_arrays[receive]], planned.operands[receive]
        first, last = start // target.item_bytes, stop // target.item_bytes
        destination = target.array if last - first == target.count else target.array[first:last]
        received = np.frombuffer(data, destination.dtype, last - first)
        own = None
        if operand is not None:
            array, shift = operand
            own = self.arrays[array].array[first + shift : last + shift]
        planned.reduce(destination, received, planned.waits.program.receives[receive].received_first, own)

    def _scatter(self, receive: int, payload: memoryview) -> None:
        """A message of several pieces."""
        for array, (start, stop) in self.planned.receive_pieces[receive]:
            self.arrays[array].bytes[start:stop] = payload[: stop - start]
            payload = payload[stop - start :]

    def finish(self) -> None:
        """Nothing more is sent or received: the result goes where it belongs."""
        planned = self.planned
        self._copy(planned.last)
        if planned.finish is not None:
            for array, (start, stop) in planned.results:
                planned.finish(self.arrays[array].array[start:stop])

    def _copy(self, copies: tuple[tuple[Placed, Placed], ...]) -> None:
        for (source, (first, last)), (target, (start, stop)) in copies:
            self.arrays[target].array[start:stop] = self.arrays[source].array[first:last]

    def parcel_settled(self, parcel: Any) -> None:
        """The courier says that a chunk of ours was acknowledged."""
        self.owner.parcel_settled(self, parcel)

    def target_died(self, parcel: Any) -> None:
        """Nobody will acknowledge a chunk of ours. That ends only what has something to receive: of an operation that
        sends and no more, acknowledgements are all that tells its end."""
        if self.planned.waits.chunks_due:
            self.owner.parcel_settled(self, parcel)


@dataclass(frozen=True, slots=True)
class Landings:
    """Where an operation's transfers may be written, and the memory for those that are to be reduced."""

    #: Per receive of the program.
    places: tuple[Landing, ...]
    #: One for each device: what to deregister.
    regions: tuple[tuple[Device, Region], ...]
    #: Per receive: the bytes where it lands, before they are reduced; None: it lands in the user's buffer.
    to_reduce: tuple[npt.NDArray[np.uint8] | None, ...]
    sources: tuple[int, ...]

    def from_source(self, source: int) -> tuple[Landing, ...]:
        """The places of one source's transfers."""
        return tuple(place for place, owner in zip(self.places, self.sources, strict=True) if owner == source)


class Scratch:
    """A piece of memory for one chunk, from a pool: the array and a view of its bytes."""

    __slots__ = ("array", "view")

    def __init__(self, size: int) -> None:
        self.array: npt.NDArray[np.uint8] = np.empty(size, np.uint8)
        self.view = self.array.data


class ScratchPool:
    """Cache-hot memory for chunks that can't be received in place. Keeps a few; more are made and let go as needed."""

    __slots__ = ("_free", "_keep", "size", "taken")

    def __init__(self, size: int, keep: int) -> None:
        self.size = size
        self._keep = keep
        self._free: list[Scratch] = []
        #: How many are out: bounded by connections (one chunk each) plus chunks held for their turn.
        self.taken = 0

    def take(self, size: int) -> Scratch:
        """At least ``size`` bytes."""
        self.taken += 1
        if size > self.size:
            return Scratch(size)
        return self._free.pop() if self._free else Scratch(self.size)

    def give(self, scratch: Scratch) -> None:
        """Nobody writes to it any more."""
        self.taken -= 1
        if len(scratch.array) == self.size and len(self._free) < self._keep:
            self._free.append(scratch)
