"""What a TCP connection makes of the bytes behind the handshake: the same frames however they are cut into reads, and
of whatever else comes a loss, and no memory for what was only announced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from r2ccl.protocol.wire import (
    CHUNK_BYTES_MAX,
    HEADER_BYTES,
    RAW_KINDS,
    Flag,
    Header,
    Kind,
    checksum,
    pack_control,
    pack_header,
    unpack_body,
)
from r2ccl.transport.frames import WHOLE_BYTES_MAX
from r2ccl.transport.interface import Connection, Loss, Purpose
from r2ccl.transport.tcp_connection import INBOX_BYTES, TcpConnection
from tests.strangers import SPEECHES, arrivals, every_split, frames, mutated, peak_bytes, with_check


class Loop:
    """Remembers what is to be done soon."""

    def __init__(self) -> None:
        self.soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def add_reader(self, descriptor: int, callback: Callable[[], None]) -> None:
        """The test says when there is something to read."""

    def remove_reader(self, descriptor: int) -> None:
        """See ``add_reader``."""

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def run(self) -> None:
        while self.soon:
            callback, arguments = self.soon.popleft()
            callback(*arguments)


class Socket:
    """Gives the pieces, each to reads of its own."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = deque(piece for piece in pieces if piece)
        self.is_closed = False

    def fileno(self) -> int:
        return 3

    def recv_into(self, buffer: memoryview) -> int:
        return self.recvmsg_into([buffer])[0]

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int]:
        if not self.pieces:
            raise BlockingIOError
        piece = self.pieces.popleft()
        taken = 0
        for buffer in buffers:
            size = min(len(buffer), len(piece) - taken)
            buffer[:size] = piece[taken : taken + size]
            taken += size
        assert taken, "a read without room would be taken for the end"
        if taken < len(piece):
            self.pieces.appendleft(piece[taken:])
        return (taken,)

    def close(self) -> None:
        self.is_closed = True


class Listening:
    """A receiver that reads control bodies, as real ones do, and remembers everything."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any, bytes]] = []
        self.losses: list[Loss] = []
        self._target = bytearray()

    def established(self, connection: Connection) -> None:
        """Nothing to do."""

    def destination(self, connection: Connection, header: Header) -> memoryview:
        assert header.kind in RAW_KINDS
        assert WHOLE_BYTES_MAX < header.payload_bytes <= CHUNK_BYTES_MAX + HEADER_BYTES
        self._target = bytearray(header.payload_bytes)
        return memoryview(self._target)

    def landed(self, connection: Connection, header: Header) -> None:
        self.heard.append(("chunk", header, bytes(self._target)))

    def chunk(self, connection: Connection, header: Header, payload: memoryview) -> None:
        self.heard.append(("chunk", header, bytes(payload)))

    def spoiled(self, connection: Connection, header: Header) -> None:
        self.heard.append(("spoiled", header, b""))

    def control(self, connection: Connection, header: Header, body: memoryview) -> None:
        unpack_body(body)
        self.heard.append(("control", header, bytes(body)))

    def batch_ended(self, connection: Connection) -> None:
        """Nothing to do."""

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        self.losses.append(loss)


def deliver(pieces: Sequence[bytes], leftover: bytes = b"") -> tuple[Listening, TcpConnection, Socket]:
    loop, listening, sock = Loop(), Listening(), Socket(pieces)
    connection = TcpConnection(loop, listening, 0, Purpose.BULK)  # type: ignore[arg-type]
    connection.open(sock, leftover, lambda _: None)  # type: ignore[arg-type]
    while sock.pieces and connection.is_open:
        connection._readable()
        loop.run()
        assert len(connection._inbox) in (0, INBOX_BYTES)
    loop.run()
    return listening, connection, sock


def chunk(payload: bytes, number: int) -> bytes:
    flags = Flag.CHECKSUMMED
    return pack_header(Kind.CHUNK, flags, len(payload), 7, number, payload_checksum=checksum(payload)) + payload


def valid_stream() -> tuple[bytes, list[bytes]]:
    control = pack_control(Kind.ACK, 0, 1, [1, 2, [], 3])
    payloads = [b"", b"small", bytes(range(256)) * 80, b"behind"]
    stream = chunk(payloads[0], 0) + control[0] + control[1] + chunk(payloads[1], 1)
    stream += chunk(payloads[2], 2) + chunk(payloads[3], 3)
    return stream, [payloads[0], control[1], payloads[1], payloads[2], payloads[3]]


STREAM, PAYLOADS = valid_stream()


def test_the_stream_is_read_whole_whichever_way_its_small_part_is_cut() -> None:
    small = chunk(b"one", 1) + b"".join(pack_control(Kind.BEAT, 0, 1, [])) + chunk(b"two", 2)
    for pieces in every_split(small):
        listening, connection, _ = deliver(pieces)
        assert [payload for _, _, payload in listening.heard] == [b"one", b"\x90", b"two"]
        assert connection.is_open


@given(arrivals(STREAM), st.booleans())
def test_the_same_frames_come_of_any_pieces(pieces: list[bytes], first_came_with_the_handshake: bool) -> None:
    leftover = b"".join(pieces)[:3000] if first_came_with_the_handshake else b""
    rest = pieces if not leftover else [STREAM[len(leftover) :]]
    listening, connection, _ = deliver(rest, leftover)
    assert [payload for _, _, payload in listening.heard] == PAYLOADS
    assert connection.is_open
    assert not listening.losses


@given(st.data())
@settings(max_examples=300)
def test_of_a_changed_stream_come_right_frames_up_to_the_change_and_then_at_most_a_loss(data: st.DataObject) -> None:
    changed = data.draw(mutated(STREAM))
    pairs = enumerate(zip(changed, STREAM, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), min(len(changed), len(STREAM)))
    listening, connection, sock = deliver(data.draw(arrivals(changed)))
    assert listening.losses in ([], [Loss.BAD_FRAME])
    assert sock.is_closed is bool(listening.losses) is not connection.is_open
    whole, end = 0, 0
    for payload in PAYLOADS:
        end += HEADER_BYTES + len(payload)
        whole += end <= same
    assert [payload for _, _, payload in listening.heard[:whole]] == PAYLOADS[:whole]
    # What is said to be whole and right has a right checksum.
    for kind, header, payload in listening.heard:
        if kind != "spoiled" and header.flags & Flag.CHECKSUMMED:
            assert checksum(payload) == header.checksum


@pytest.mark.parametrize("speech", [name for name in SPEECHES if len(SPEECHES[name]) >= HEADER_BYTES])
def test_other_protocols_are_no_frames(speech: str) -> None:
    listening, connection, sock = deliver([SPEECHES[speech]])
    assert listening.losses == [Loss.BAD_FRAME]
    assert sock.is_closed
    assert not connection.is_open


@given(st.data())
@settings(max_examples=60)
def test_frames_that_only_a_member_can_send_are_heard_or_end_the_connection(data: st.DataObject) -> None:
    said = data.draw(st.lists(frames(7, 1, 0), max_size=5))
    listening, _, _ = deliver(data.draw(arrivals(b"".join(header + payload for header, payload in said))))
    assert listening.losses in ([], [Loss.BAD_FRAME])
    if not listening.losses:
        assert len(listening.heard) == len(said)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("size", [CHUNK_BYTES_MAX + HEADER_BYTES + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_giant_length_costs_the_connection_and_no_memory(kind: Kind, size: int) -> None:
    listened: list[Listening] = []
    header = pack_header(kind, 0, size)
    peak = peak_bytes(lambda: listened.append(deliver([header + b"x" * 100])[0]))
    assert listened[0].losses == [Loss.BAD_FRAME]
    assert peak < 2 * INBOX_BYTES


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_a_header_with_any_fields_and_a_right_check_is_a_frame_or_a_loss(noise: bytes) -> None:
    listening, _, _ = deliver([with_check(b"\xc2\x52" + noise[2:])])
    assert listening.losses in ([], [Loss.BAD_FRAME])


def test_a_control_frame_whose_body_was_changed_costs_the_connection() -> None:
    header, body = pack_control(Kind.ACK, 0, 1, [1, 2, [], 3])
    listening, _, _ = deliver([header + b"\x94\x01\x02\x90\x04"])
    assert len(body) == 5
    assert listening.losses == [Loss.BAD_FRAME]
    assert not listening.heard


def test_a_truncated_stream_is_waited_for_and_ends_with_what_was_whole() -> None:
    for cut in (1, 10, HEADER_BYTES, len(STREAM) // 2):
        listening, connection, _ = deliver([STREAM[:-cut]])
        assert [payload for _, _, payload in listening.heard] == PAYLOADS[: len(listening.heard)]
        assert connection.is_open
