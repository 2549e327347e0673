"""Small objects to all ranks: packed with msgpack, told by two broadcasts, one of the length and one of the bytes.

Only the root knows the length when the call is made, so the second broadcast cannot have a number of the
communicator's own: other calls may come between. Objects therefore travel in a communicator of their own with the same
members, one after the other. Nothing is ever pickled; lengths are checked before memory is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]
import numpy as np

from r2ccl import calls
from r2ccl.actors.work import Work
from r2ccl.calls import Asked
from r2ccl.errors import CollectiveMismatch, UsageError
from r2ccl.planner.requests import CollectiveKind

OBJECT_BYTES_MAX = 16 << 20
#: What is left of a limit that is over when the object's turn comes: 0 would be none.
LIMIT_S_MIN = 1e-3

#: Submits a call on the loop's thread: (call, limit in seconds or 0, who is told of its end).
SubmitHere = Callable[[Asked, float, Callable[[Work], None]], None]


def pack_object(obj: Any) -> bytes:
    """Raises :class:`~r2ccl.errors.UsageError` for what msgpack does not know, or what is too large."""
    try:
        packed: bytes = msgpack.packb(obj)
        if len(packed) <= OBJECT_BYTES_MAX:
            # What is fit to send is not always fit to be received: a tuple, which arrives as a list, is no key there.
            unpack_object(packed)
    except (TypeError, ValueError, OverflowError) as unknown:
        raise UsageError(
            f"broadcast_object: {unknown}; it carries None, bools, numbers, str, bytes, lists and dicts of them"
        ) from unknown
    if len(packed) > OBJECT_BYTES_MAX:
        raise UsageError(
            f"broadcast_object: {len(packed)} bytes are over the limit of {OBJECT_BYTES_MAX}; broadcast an array"
        )
    return packed


def unpack_object(packed: bytes | memoryview) -> Any:
    """What :func:`pack_object` packed."""
    return msgpack.unpackb(packed, strict_map_key=False)


@dataclass(slots=True)
class _Call:
    packed: bytes | None
    root: int
    work: Work
    limit_s: float
    #: When it was called: what it waited for its turn counts.
    called_at_s: float
    has_begun: bool = False


class ObjectBroadcasts:
    """One communicator's objects, in the order of the calls."""

    def __init__(self, rank: int, submit: SubmitHere, now: Callable[[], float], waiting_max: int) -> None:
        self._rank = rank
        self._submit = submit
        self._now = now
        self._waiting_max = waiting_max
        self._calls: deque[_Call] = deque()
        self._is_beginning = False

    def start(self, packed: bytes | None, root: int, work: Work, limit_s: float) -> None:
        """Broadcast one object, after those before it."""
        if len(self._calls) >= self._waiting_max:
            raise UsageError(f"{len(self._calls)} objects are under way: await some of them before calling more")
        self._calls.append(_Call(packed, root, work, limit_s, self._now()))
        self._begin()

    def _begin(self) -> None:
        # What is begun may end at once and bring us here again: thousands may wait, so only the first call goes on.
        if self._is_beginning:
            return
        self._is_beginning = True
        try:
            while self._calls and not self._calls[0].has_begun:
                self._calls[0].has_begun = True
                self._tell_length(self._calls[0])
        finally:
            self._is_beginning = False

    def _tell_length(self, call: _Call) -> None:
        length = np.array([0 if call.packed is None else len(call.packed)], np.uint64)
        self._broadcast(length, call, lambda: self._tell_bytes(call, int(length[0])))

    def _tell_bytes(self, call: _Call, length: int) -> None:
        if length > OBJECT_BYTES_MAX:
            self._end(CollectiveMismatch(call.work.operation, {call.root: f"broadcast_object of {length} bytes"}))
            return
        room = np.empty(length, np.uint8) if call.packed is None else np.frombuffer(call.packed, np.uint8)
        self._broadcast(room, call, lambda: self._arrived(call, room))

    def _arrived(self, call: _Call, room: np.ndarray[Any, Any]) -> None:
        call.work.returns(unpack_object(room.data))
        self._end(None)

    def _broadcast(self, x: np.ndarray[Any, Any], call: _Call, then: Callable[[], None]) -> None:
        def ended(part: Work) -> None:
            part.hush()
            if part.error is None:
                then()
            else:
                self._end(part.error)

        limit_s = call.limit_s
        if limit_s:
            limit_s = max(limit_s - (self._now() - call.called_at_s), LIMIT_S_MIN)
        asked = calls.in_place(CollectiveKind.BROADCAST, x, None, call.root, call.root != self._rank)
        self._submit(asked, limit_s, ended)

    def _end(self, error: BaseException | None) -> None:
        self._calls.popleft().work.finish(error)
        self._begin()
