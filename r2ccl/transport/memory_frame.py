"""A frame, or a one-sided write, that waits in a memory connection with the sender's memory in its hands."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from r2ccl.protocol.wire import Kind, Landing, unpack_header


@dataclass(slots=True, eq=False)
class Frame:
    """A frame of which the kernel does not have every byte yet."""

    header: bytes
    payload: memoryview
    #: None: an ordinary frame. Else a one-sided write to ``offset`` within this landing.
    landing: Landing | None = None
    offset: int = 0
    begun: bool = False
    done: int = 0
    flip_a_bit: bool = False

    def belongs_to(self, communicator: int, operation: int) -> bool:
        header = unpack_header(self.header)
        return header.kind == Kind.CHUNK and header.communicator == communicator and header.operation >= operation


def byte_view(memory: bytes | memoryview) -> memoryview:
    """The memory as a flat view of bytes."""
    view = memoryview(memory)
    if view.nbytes == 0:
        return memoryview(b"")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def copy_piece(queue: deque[Frame], limit: int, small_bytes: int) -> bytes:
    """The next bytes of the stream, up to a limit. A large payload never goes out in one piece."""
    piece = bytearray()
    while queue and len(piece) < limit and queue[0].landing is None:
        frame = queue[0]
        take = min(len(frame.payload) - frame.done, limit - len(piece))
        if not frame.begun:
            piece += frame.header
            frame.begun = True
            if len(frame.payload) > small_bytes:
                take = min(take, len(frame.payload) // 2)
        piece += frame.payload[frame.done : frame.done + take]
        if frame.flip_a_bit and take:
            piece[-1] ^= 1
            frame.flip_a_bit = False
        frame.done += take
        if frame.done < len(frame.payload):
            break
        queue.popleft()
    return bytes(piece)
