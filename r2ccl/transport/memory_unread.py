"""What lies in the memory that two ranks share, and its reader's loop has not seen: for who looks there first."""

from __future__ import annotations

from collections import deque

from r2ccl.protocol.wire import HEADER_BYTES, Header, peek_header
from r2ccl.transport.interface import Note
from r2ccl.transport.memory_pipe import Pipe, Segment, Stream


def first_frame(unread: deque[Segment]) -> tuple[Header, memoryview] | None:
    """The oldest frame, if it is there as a whole. What is unread begins with one."""
    content = unread[0].content if unread else None
    if not isinstance(content, Stream) or len(content.data) < HEADER_BYTES:
        return None
    header = peek_header(memoryview(content.data), 0)
    payload = memoryview(content.data)[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    return (header, payload) if len(payload) == header.payload_bytes else None


def take_first(unread: deque[Segment], size: int) -> int:
    """So many bytes have been read. Returns their number."""
    content = unread[0].content
    assert isinstance(content, Stream)
    content.data = content.data[size:]
    if not content.data:
        unread.popleft()
    return size


class Unread:
    """What one end posted, and the other has not read, as far as it was not asked for."""

    def __init__(self) -> None:
        #: Where each ends in all that was said, its note and its payload.
        self._posted: list[tuple[int, Note, bytes]] = []

    def posted(self, note: Note, payload: bytes, said_bytes: int, out: Pipe) -> None:
        """It ends after so many bytes."""
        self._let_go(out)
        self._posted.append((said_bytes, note, payload))

    def left(self, owner: object, out: Pipe) -> list[tuple[Note, bytes]]:
        """Of one owner, oldest first."""
        self._let_go(out)
        mine = [(note, payload) for _, note, payload in self._posted if note[0] is owner]
        self._posted = [one for one in self._posted if one[1][0] is not owner]
        return mine

    def _let_go(self, out: Pipe) -> None:
        self._posted = [one for one in self._posted if one[0] > out.consumed]
