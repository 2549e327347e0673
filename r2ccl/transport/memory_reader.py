"""From the bytes that a memory connection's process reads to the calls of its receiver.

Small payloads are collected and handed over whole; for a large one the header asks for a destination, and the payload
goes there piece by piece, as a kernel would write it. The reader holds the destination only until the payload is
complete, discarded, or the connection has ended.
"""

from __future__ import annotations

from typing import Protocol

from r2ccl.protocol.wire import HEADER_BYTES, RAW_KINDS, BadFrame, Flag, Header, checksum, unpack_header
from r2ccl.transport.interface import Connection, Receiver


class Reading(Connection, Protocol):
    """The connection that a reader reads for."""

    @property
    def gone(self) -> bool: ...


class FrameReader:
    """Finds frames in a stream of bytes. Raises :class:`BadFrame`; then the connection must end."""

    def __init__(self, connection: Reading, receiver: Receiver, small_bytes: int) -> None:
        self._connection = connection
        self._receiver = receiver
        self._small_bytes = small_bytes
        #: The frame that is being received, once its header is complete.
        self._header: Header | None = None
        #: The part of a header, or of a small payload, that has arrived.
        self._collected = bytearray()
        #: Where a large payload goes; None while it is collected or thrown away.
        self._destination: memoryview | None = None
        self._discarding = False
        self._received = 0

    def feed(self, data: bytes) -> None:
        """Take in the next bytes and call the receiver for what is complete. Stops when the connection is gone."""
        position = 0
        while not self._connection.gone:
            if self._header is None:
                wanted = HEADER_BYTES - len(self._collected)
                part = data[position : position + wanted]
                position += len(part)
                self._collected += part
                if len(part) < wanted:
                    return
                self._begin(unpack_header(self._collected))
                continue
            wanted = self._header.payload_bytes - self._received
            available = min(wanted, len(data) - position)
            self._take(memoryview(data)[position : position + available])
            position += available
            if available < wanted:
                return
            self._finish(self._header)

    @property
    def is_between_frames(self) -> bool:
        return self._header is None and not self._collected

    def discard(self) -> None:
        if self._destination is not None:
            self._destination = None
            self._discarding = True

    def let_go(self) -> None:
        self._destination = None

    def _begin(self, header: Header) -> None:
        self._collected.clear()
        self._header = header
        self._received = 0
        self._discarding = False
        if header.kind in RAW_KINDS and header.payload_bytes > self._small_bytes:
            destination = self._receiver.destination(self._connection, header)
            if destination.nbytes != header.payload_bytes:
                raise ValueError(f"a destination of {destination.nbytes} bytes for a payload of {header.payload_bytes}")
            if not self._connection.gone:
                self._destination = destination

    def _take(self, part: memoryview) -> None:
        if self._destination is not None:
            self._destination[self._received : self._received + len(part)] = part
        elif not self._discarding:
            self._collected += part
        self._received += len(part)

    def _finish(self, header: Header) -> None:
        destination, payload = self._destination, bytes(self._collected)
        self._header = None
        self._destination = None
        self._collected.clear()
        if self._discarding:
            self._discarding = False
            return
        right = not header.flags & Flag.CHECKSUMMED or checksum(destination or payload) == header.checksum
        if header.kind not in RAW_KINDS:
            if not right:
                raise BadFrame("the body of a control frame fails its checksum")
            self._receiver.control(self._connection, header, memoryview(payload))
        elif not right:
            self._receiver.spoiled(self._connection, header)
        elif destination is not None:
            self._receiver.landed(self._connection, header)
        else:
            self._receiver.chunk(self._connection, header, memoryview(payload))
