"""What lies in the memory that two ranks share, and its reader's loop has not seen: for who looks there first."""

from __future__ import annotations

from collections import deque

from r2ccl.protocol.wire import HEADER_BYTES, Header, peek_header
from r2ccl.transport.memory_pipe import Segment, Stream


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
