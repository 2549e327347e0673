"""Frames that did not fit into a ring at once: they wait as views, and go in piece by piece as there is room."""

from __future__ import annotations

from collections import deque

from r2ccl.protocol.wire import HEADER_BYTES
from r2ccl.transport.frames import Frame, belongs
from r2ccl.transport.shared_ring import RingWriter


class RingQueue:
    """Of one ring."""

    __slots__ = ("_taken", "frames")

    def __init__(self) -> None:
        #: Frames that are not in the ring completely, oldest first; of the first, the header and ``_taken`` bytes are,
        #: unless ``_taken`` is -1.
        self.frames: deque[Frame] = deque()
        self._taken = -1

    def append(self, header: bytes, payload: bytes | memoryview) -> None:
        """Behind all others."""
        self.frames.append((header, payload))

    def clear(self) -> None:
        """Nothing more goes out."""
        self.frames.clear()

    def unsent(self) -> int:
        """Bytes that wait."""
        waiting = sum(len(header) + len(payload) for header, payload in self.frames)
        return waiting - HEADER_BYTES - self._taken if self._taken >= 0 else waiting

    def withdraw(self, communicator: int, operation: int) -> bool:
        """See :class:`~r2ccl.transport.interface.Connection`."""
        if not self.frames:
            return True
        first = self.frames[0]
        kept = deque(frame for frame in self.frames if not belongs(frame, communicator, operation))
        held = self._taken >= 0 and belongs(first, communicator, operation)
        if held:
            kept.appendleft(first)
        self.frames = kept
        return not held

    def pump(self, writer: RingWriter) -> bool:
        """Put into the ring what fits. Returns whether anything did. Raises :class:`BadFrame`."""
        before, frames = writer.head, self.frames
        while frames:
            header, payload = frames[0]
            room = writer.capacity - writer.unread()
            if self._taken < 0:
                if not len(payload) and room >= HEADER_BYTES:
                    writer.put_whole(header, payload)
                    frames.popleft()
                    continue
                if room < 2 * HEADER_BYTES:
                    break
                writer.put_header(header)
                self._taken = 0
                room -= HEADER_BYTES
            taken, self._taken = self._taken, writer.put(payload, self._taken, room)
            if self._taken == len(payload):
                frames.popleft()
                self._taken = -1
            elif self._taken == taken:
                break
        if writer.head == before:
            return False
        writer.announce()
        return True
