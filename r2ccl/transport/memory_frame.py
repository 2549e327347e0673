"""A frame, or a one-sided write, that waits in a memory connection with the sender's memory in its hands."""

from __future__ import annotations

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
