"""What connections that move a stream of frames do alike: tcp's and shared memory's."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Final

from r2ccl.protocol.wire import HEADER_BYTES, RAW_KINDS, BadFrame, Flag, Header, Kind, checksum
from r2ccl.transport.interface import Connection, Receiver

#: Chunks up to this size are delivered whole from where they came in; larger ones are received in place.
WHOLE_BYTES_MAX: Final = 16 << 10

#: Header and payload, as they wait to go out.
Frame = tuple[bytes, bytes | memoryview]

#: Buffers handed to one system call.
GATHER_MAX: Final = 256

_NAME: Final = struct.Struct("<QQ")
_NAME_AT: Final = 8
_KIND_AT: Final = 2
_CHECKSUMMED: Final = Flag.CHECKSUMMED


def belongs(frame: Frame, communicator: int, operation: int) -> bool:
    """Is it a chunk of this operation of the communicator, or of a later one?"""
    header = frame[0]
    if header[_KIND_AT] != Kind.CHUNK:
        return False
    whose, number = _NAME.unpack_from(header, _NAME_AT)
    return bool(whose == communicator and number >= operation)


def gather(queue: Iterable[Frame], taken: int, most_bytes: int) -> list[bytes | memoryview]:
    """What waits, for one call, up to about so many bytes; of the first frame ``taken`` are gone. A call takes as long
    as the kernel needs for all of it, and more on loopback, where a peer that reads meanwhile makes room for ever."""
    buffers: list[bytes | memoryview] = []
    left = most_bytes + taken
    for header, payload in queue:
        if len(buffers) >= GATHER_MAX or left <= 0:
            break
        buffers.append(header)
        left -= len(header)
        if 0 < left < len(payload):
            payload = memoryview(payload)[:left]
        if len(payload) and left > 0:
            buffers.append(payload)
        left -= len(payload)
    if taken >= HEADER_BYTES:
        del buffers[0]
        taken -= HEADER_BYTES
    if taken:
        buffers[0] = memoryview(buffers[0])[taken:]
    return buffers


def drop_taken(queue: deque[Frame], taken: int) -> int:
    """Drop the frames that are gone with the first so many bytes. Returns how many of these are of the next."""
    while queue and taken >= (size := len(queue[0][0]) + len(queue[0][1])):
        taken -= size
        queue.popleft()
    return taken


def deliver(receiver: Receiver, connection: Connection, header: Header, payload: memoryview) -> None:
    """Hand on a frame that is here as a whole. Raises :class:`BadFrame` for a control frame that was altered."""
    if header.flags & _CHECKSUMMED and checksum(payload) != header.checksum:
        if header.kind not in RAW_KINDS:
            raise BadFrame("a control frame fails its checksum")
        receiver.spoiled(connection, header)
    elif header.kind in RAW_KINDS:
        receiver.chunk(connection, header, payload)
    else:
        receiver.control(connection, header, payload)


def landed(receiver: Receiver, connection: Connection, header: Header, target: memoryview) -> None:
    """Tell of a large chunk that was received in place."""
    if header.flags & _CHECKSUMMED and checksum(target) != header.checksum:
        receiver.spoiled(connection, header)
    else:
        receiver.landed(connection, header)
