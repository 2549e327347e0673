"""Small objects to all ranks: packed with msgpack, told by two broadcasts, one of the length and one of the bytes.

Only the root knows the length when the call is made, so the second broadcast cannot have a number of the
communicator's own: other calls may come between. Objects therefore travel in a communicator of their own with the same
members, one after the other. Nothing is ever pickled; lengths are checked before memory is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]
import numpy as np

from r2ccl import calls
from r2ccl.actors.work import Work
from r2ccl.calls import Asked
from r2ccl.errors import CollectiveMismatch, UsageError
from r2ccl.planner.requests import CollectiveKind

OBJECT_BYTES_MAX = 16 << 20

#: Submits a call on the loop's thread: (call, limit in seconds or 0, who is told of its end).
SubmitHere = Callable[[Asked, float, Callable[[Work], None]], None]


def pack_object(obj: Any) -> bytes:
    """Raises :class:`~r2ccl.errors.UsageError` for what msgpack does not know, or what is too large."""
    try:
        packed: bytes = msgpack.packb(obj)
    except (TypeError, ValueError, OverflowError) as unknown:
        raise UsageError(
            f"broadcast_object: {unknown}; it carries None, bools, numbers, str, bytes, lists and dicts of them"
        ) from unknown
    if len(packed) > OBJECT_BYTES_MAX:
        raise UsageError(
            f"broadcast_object: {len(packed)} bytes are over the limit of {OBJECT_BYTES_MAX}; broadcast an array"
        )
    return packed


class ObjectBroadcasts:
    """One communicator's objects, in the order of the calls."""

    def __init__(self, rank: int, submit: SubmitHere) -> None:
        self._rank = rank
        self._submit = submit
        self._calls: deque[tuple[bytes | None, int, Work, float]] = deque()

    def start(self, packed: bytes | None, root: int, work: Work, limit_s: float) -> None:
        """Broadcast one object, after those before it."""
        self._calls.append((packed, root, work, limit_s))
        if len(self._calls) == 1:
            self._tell_length()

    def _tell_length(self) -> None:
        packed, root, _, limit_s = self._calls[0]
        length = np.array([0 if packed is None else len(packed)], np.uint64)
        self._broadcast(length, root, limit_s, lambda: self._tell_bytes(int(length[0])))

    def _tell_bytes(self, length: int) -> None:
        packed, root, work, limit_s = self._calls[0]
        if length > OBJECT_BYTES_MAX:
            self._end(CollectiveMismatch(work.operation, {root: f"broadcast_object of {length} bytes"}))
            return
        room = np.empty(length, np.uint8) if packed is None else np.frombuffer(packed, np.uint8)
        self._broadcast(room, root, limit_s, lambda: self._arrived(room))

    def _arrived(self, room: np.ndarray[Any, Any]) -> None:
        self._calls[0][2].returns(msgpack.unpackb(room.data, strict_map_key=False))
        self._end(None)

    def _broadcast(self, x: np.ndarray[Any, Any], root: int, limit_s: float, then: Callable[[], None]) -> None:
        def ended(part: Work) -> None:
            part.hush()
            if part.error is None:
                then()
            else:
                self._end(part.error)

        asked = calls.in_place(CollectiveKind.BROADCAST, x, None, root, root != self._rank)
        self._submit(asked, limit_s, ended)

    def _end(self, error: BaseException | None) -> None:
        _, _, work, _ = self._calls.popleft()
        work.finish(error)
        if self._calls:
            self._tell_length()
