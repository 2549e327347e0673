"""No turn of the loop is spent on one connection's bytes, however much the kernel would take."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from r2ccl.protocol.wire import HEADER_BYTES
from r2ccl.transport.frames import GATHER_MAX, gather
from r2ccl.transport.interface import Purpose
from r2ccl.transport.joined import Joined
from r2ccl.transport.tcp_connection import WRITE_BYTES_PER_TURN, TcpConnection
from tests.transport.test_tcp_joining import Nobody

frames = st.lists(st.tuples(st.just(b"h" * HEADER_BYTES), st.binary(max_size=300)), min_size=1, max_size=9)


@given(frames, st.data())
def test_what_is_gathered_is_the_beginning_of_what_waits_and_not_much_more_than_was_asked_for(
    queue: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    taken = data.draw(st.integers(0, HEADER_BYTES + len(queue[0][1]) - 1))
    most_bytes = data.draw(st.integers(1, 2000))
    waiting = b"".join(header + payload for header, payload in queue)[taken:]
    gathered = b"".join(bytes(buffer) for buffer in gather(queue, taken, most_bytes))
    assert waiting.startswith(gathered)
    assert min(most_bytes, len(waiting)) <= len(gathered) <= most_bytes + HEADER_BYTES


def test_of_very_many_frames_so_many_are_gathered_as_a_call_takes() -> None:
    assert len(gather([(b"h" * HEADER_BYTES, b"")] * (2 * GATHER_MAX), 0, 1 << 20)) == GATHER_MAX


class Insatiable:
    """A socket over which a peer reads as fast as we write."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.said = b""

    def send(self, data: bytes) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Any) -> int:
        whole = b"".join(bytes(buffer) for buffer in buffers)
        self.taken.append(len(whole))
        self.said += whole
        return len(whole)

    def fileno(self) -> int:
        return 5

    def close(self) -> None:
        """Nothing to do."""

    def shutdown(self, how: int) -> None:
        """Nothing to do."""


class Turns:
    """A loop of which each turn is asked for."""

    def __init__(self) -> None:
        self.soon: list[Any] = []
        self.writer: Any = None

    def call_soon(self, callback: Any, *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def add_reader(self, *asked: object) -> None:
        """Nothing to do."""

    remove_reader = add_reader

    def add_writer(self, descriptor: int, callback: Any) -> None:
        del descriptor
        self.writer = callback

    def remove_writer(self, descriptor: int) -> None:
        del descriptor
        self.writer = None

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback, arguments in soon:
            callback(*arguments)
        if self.writer is not None:
            self.writer()


def test_however_much_the_kernel_takes_a_turn_ends_after_a_share_and_all_goes_out_in_order() -> None:
    loop, sock = Turns(), Insatiable()
    connection = TcpConnection(loop, Nobody(), 0, Purpose.BULK, Joined())  # type: ignore[arg-type]
    connection.open(sock, b"", lambda _: None)  # type: ignore[arg-type]
    size = WRITE_BYTES_PER_TURN * 3 // 4
    said = [(bytes([number]) * HEADER_BYTES, bytes([number]) * size) for number in range(8)]
    for header, payload in said:
        connection.send(header, payload)
    whole = b"".join(header + payload for header, payload in said)
    before = 0
    turns = 0
    while len(sock.said) < len(whole):
        assert len(sock.said) - before <= WRITE_BYTES_PER_TURN + HEADER_BYTES + size
        before = len(sock.said)
        loop.turn()
        turns += 1
        assert turns < 20
    assert sock.said == whole
    assert turns >= 4
    assert max(sock.taken) <= WRITE_BYTES_PER_TURN + HEADER_BYTES
    # And in a later turn a frame goes out at once again.
    loop.turn()
    connection.send(*said[0])
    assert sock.said == whole + b"".join(said[0])
