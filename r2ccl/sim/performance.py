"""Makes a scenario's calls on a communicator, with memory that tells whether its loan was kept.

Every array lies between guards. What was only to be read must be unchanged in the end. The moment that a call is over,
well or not, its arrays are rewritten: a byte that is still read afterwards goes wrong at its receiver, and one that is
still written is found when the world ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, cast

import msgpack  # type: ignore[import-untyped, unused-ignore]
import numpy as np

from r2ccl.actors.work import Work
from r2ccl.communicator import Communicator
from r2ccl.reduction import Op
from r2ccl.sim.calls import Call, Kind, Message, blocks_of, parts_of
from r2ccl.sim.truth import Array
from r2ccl.vocabulary import ANY

GUARD_ELEMENTS = 5
GUARD_BYTE, REWRITTEN_BYTE = 0xA5, 0x5A

#: From what the Work returns to the array that this rank ended with; None: it gets nothing.
Result = Callable[[Any], Array | None]


class Room:
    """An array on loan to a call, and what lies around it."""

    def __init__(self, values: Array, is_read_only: bool = False) -> None:
        self._bytes = np.full((len(values) + 2 * GUARD_ELEMENTS) * values.itemsize, GUARD_BYTE, np.uint8)
        whole = self._bytes.view(values.dtype)
        self.array: Array = whole[GUARD_ELEMENTS : GUARD_ELEMENTS + len(values)]
        self.array[:] = values
        self._unchanged = self._bytes.copy() if is_read_only else None
        self._guard = GUARD_ELEMENTS * values.itemsize

    def complaint(self) -> str:
        """What is wrong with how it was treated, at the end of the call."""
        if self._unchanged is not None and not np.array_equal(self._bytes, self._unchanged):
            return "an array that is only read was changed"
        around = (self._bytes[: self._guard], self._bytes[-self._guard :])
        if any(np.any(guard != GUARD_BYTE) for guard in around):
            return "memory around an array was written"
        return ""

    def rewrite(self) -> None:
        """It is the caller's again."""
        self._unchanged = None
        self._bytes.fill(REWRITTEN_BYTE)

    @property
    def is_as_rewritten(self) -> bool:
        """Has nobody written to it since?"""
        return not np.any(self._bytes != REWRITTEN_BYTE)


@dataclass(slots=True, eq=False)
class Started:
    """A call under way on one rank, or a part of one that has a Work of its own."""

    call: Call
    work: Work
    rooms: tuple[Room, ...]
    result: Result
    #: Which part of a batch or round.
    index: int = 0
    #: Of a round: the message that this side receives.
    receives: Message | None = None


class _Limited:
    """A communicator, or a batch of one, each call of which has a limit."""

    def __init__(self, handle: Any, timeout_s: float) -> None:
        self._handle = handle
        self._timeout_s = timeout_s
        self.rank, self.size = getattr(handle, "rank", None), getattr(handle, "size", None)

    @contextmanager
    def batch(self) -> Iterator[_Limited]:
        with self._handle.batch() as batch:
            yield _Limited(batch, self._timeout_s)

    def __getattr__(self, name: str) -> Any:
        return functools.partial(getattr(self._handle, name), timeout=self._timeout_s)


def nothing(_: Any) -> None:
    """The rank gets nothing."""


def start(handle: Communicator, call: Call, given: Callable[[Call, int], Array]) -> list[Started]:
    """Make a call. ``given``: the payload of a call, and of which part of it. Raises what the communicator raises."""
    if call.timeout_s is not None:
        handle = cast(Communicator, _Limited(handle, call.timeout_s))
    match call.kind:
        case Kind.BATCH:
            return _batch(handle, call, given)
        case Kind.MESSAGES:
            return list(_messages(handle, call, given))
        case Kind.SPLIT:
            return [Started(call, handle.split(call.colors[handle.rank], call.keys[handle.rank]), (), nothing)]
        case Kind.BARRIER:
            return [Started(call, handle.barrier(), (), nothing)]
        case Kind.BROADCAST_OBJECT:
            thing = (
                msgpack.unpackb(given(call, 0).tobytes(), strict_map_key=False) if handle.rank == call.root else None
            )
            return [Started(call, handle.broadcast_object(thing, call.root), (), _packed)]
        case Kind.ALL_REDUCE | Kind.BROADCAST | Kind.REDUCE:
            return [_one_array(handle, call, given(call, 0))]
        case _:
            return [_parts(handle, call, given(call, 0))]


def _packed(thing: Any) -> Array:
    return np.frombuffer(msgpack.packb(thing), np.uint8)


def _one_array(handle: Any, call: Call, mine: Array) -> Started:
    """``handle``: a communicator, or its batch."""
    rank = getattr(handle, "rank", None)
    if call.kind is Kind.ALL_REDUCE:
        room = Room(mine)
        return Started(call, handle.all_reduce(room.array, call.op), (room,), lambda _: room.array)
    if call.kind is Kind.BROADCAST:
        room = Room(mine, is_read_only=rank == call.root)
        return Started(call, handle.broadcast(room.array, call.root), (room,), lambda _: room.array)
    room = Room(mine, is_read_only=rank != call.root)
    work = handle.reduce(room.array, call.root, call.op)
    return Started(call, work, (room,), (lambda _: room.array) if rank == call.root else nothing)


def _parts(handle: Communicator, call: Call, mine: Array) -> Started:
    rank, ranks = handle.rank, handle.size
    match call.kind:
        case Kind.ALL_GATHER:
            x = Room(mine, is_read_only=True)
            return Started(call, handle.all_gather(x.array), (x,), np.concatenate)
        case Kind.GATHER:
            x = Room(mine, is_read_only=True)
            result: Result = np.concatenate if rank == call.root else nothing
            return Started(call, handle.gather(x.array, call.root), (x,), result)
        case Kind.SCATTER:
            out, x = Room(np.zeros(call.count, call.dtype)), Room(mine, is_read_only=True)
            work = handle.scatter(out.array, x.array if rank == call.root else None, call.root)
            return Started(call, work, (out, x), lambda _: out.array)
        case Kind.ALL_TO_ALL:
            return _all_to_all(handle, call, mine)
        case Kind.ALL_GATHER_INTO:
            return _all_gather_into(handle, call, mine)
        case _:
            assert call.kind is Kind.REDUCE_SCATTER
            parts, whole = _whole(call, mine, ranks, is_read_only=not call.in_place)
            own = _own_part(call, parts, rank, ranks)
            if call.in_place:
                return Started(call, handle.reduce_scatter(own, whole, _op(call)), parts, lambda _: own)
            out = Room(np.zeros(len(own), call.dtype))
            return Started(call, handle.reduce_scatter(out.array, whole, _op(call)), (*parts, out), lambda _: out.array)


def _op(call: Call) -> Op:
    assert call.op is not None
    return call.op


def _all_to_all(handle: Communicator, call: Call, mine: Array) -> Started:
    rank, blocks = handle.rank, blocks_of(call, handle.size)
    out_counts = [row[rank] for row in blocks]
    out, x = Room(np.zeros(sum(out_counts), call.dtype)), Room(mine, is_read_only=True)
    if call.blocks:
        work = handle.all_to_all(out.array, x.array, out_counts, blocks[rank])
    else:
        work = handle.all_to_all(out.array, x.array)
    return Started(call, work, (out, x), lambda _: out.array)


def _all_gather_into(handle: Communicator, call: Call, mine: Array) -> Started:
    parts = parts_of(call, handle.size)
    outs, whole = _whole(call, np.zeros(sum(parts), call.dtype), handle.size)
    own = _own_part(call, outs, handle.rank, handle.size)
    rooms = outs
    if call.in_place:
        own[:] = mine
    else:
        rooms = (*outs, Room(mine, is_read_only=True))
        own = rooms[-1].array
    work = handle.all_gather_into(whole, own)
    return Started(call, work, rooms, lambda _: np.concatenate([room.array for room in outs]))


def _whole(call: Call, values: Array, ranks: int, is_read_only: bool = False) -> tuple[tuple[Room, ...], Any]:
    """All parts, as one array, or as a list of them where the call names their lengths."""
    if not call.parts:
        room = Room(values, is_read_only)
        return (room,), room.array
    bounds = pairwise(accumulate(call.parts, initial=0))
    rooms = tuple(Room(values[start:stop], is_read_only) for start, stop in bounds)
    return rooms, [room.array for room in rooms]


def _own_part(call: Call, whole: tuple[Room, ...], rank: int, ranks: int) -> Array:
    if call.parts:
        return whole[rank].array
    parts = parts_of(call, ranks)
    return whole[0].array[sum(parts[:rank]) : sum(parts[: rank + 1])]


def _batch(handle: Communicator, call: Call, given: Callable[[Call, int], Array]) -> list[Started]:
    with handle.batch() as batch:
        started = [_one_array(batch, inner, given(inner, index)) for index, inner in enumerate(call.calls)]
    for index, one in enumerate(started):
        one.index = index
    return started


def _messages(handle: Communicator, call: Call, given: Callable[[Call, int], Array]) -> Iterator[Started]:
    for index, is_receive in call.orders[handle.rank]:
        message = call.messages[index]
        if is_receive:
            room = Room(np.zeros(message.count, message.dtype))
            work = handle.recv(room.array, ANY if message.from_any else message.source, message.tag)
            yield Started(call, work, (room,), lambda x: x, index, message)
        else:
            room = Room(given(call, index), is_read_only=True)
            yield Started(call, handle.send(room.array, message.target, message.tag), (room,), nothing, index)
