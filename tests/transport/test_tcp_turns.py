"""No turn of the loop is spent on one connection's bytes, however much the kernel would take."""

from __future__ import annotations

from typing import Any

import pytest
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


TINY, PART, WHOLE = 64, WRITE_BYTES_PER_TURN * 3 // 4, 2 * WRITE_BYTES_PER_TURN


@pytest.mark.parametrize(
    "sizes", [[PART] * 8, [WHOLE] * 3, [TINY, WRITE_BYTES_PER_TURN // 2] * 10, [WHOLE, TINY, PART]]
)
def test_however_much_the_kernel_takes_a_turn_ends_after_a_share_and_all_goes_out_in_order(sizes: list[int]) -> None:
    loop, sock = Turns(), Insatiable()
    connection = TcpConnection(loop, Nobody(), 0, Purpose.BULK, Joined())  # type: ignore[arg-type]
    connection.open(sock, b"", lambda _: None)  # type: ignore[arg-type]
    said = [(bytes([number]) * HEADER_BYTES, bytes([number]) * size) for number, size in enumerate(sizes)]
    for header, payload in said:
        connection.send(header, payload)
    whole = b"".join(header + payload for header, payload in said)
    before, turns = 0, 0
    while len(sock.said) < len(whole):
        # What is joined to the last of a turn goes with it.
        assert len(sock.said) - before <= WRITE_BYTES_PER_TURN + 2 * HEADER_BYTES
        before = len(sock.said)
        loop.turn()
        turns += 1
        assert turns < 20
    assert sock.said == whole
    assert turns >= len(whole) // WRITE_BYTES_PER_TURN - 1
    # And in a later turn a frame goes out at once again.
    loop.turn()
    connection.send(b"h" * HEADER_BYTES, b"again")
    assert sock.said == whole + b"h" * HEADER_BYTES + b"again"


def test_the_last_word_goes_out_also_in_a_turn_that_is_used_up() -> None:
    loop, sock = Turns(), Insatiable()
    connection = TcpConnection(loop, Nobody(), 0, Purpose.CONTROL, Joined())  # type: ignore[arg-type]
    connection.open(sock, b"", lambda _: None)  # type: ignore[arg-type]
    connection.send(b"h" * HEADER_BYTES, bytes(WRITE_BYTES_PER_TURN - HEADER_BYTES))
    connection.send(b"g" * HEADER_BYTES, b"goodbye")
    connection.abort()
    assert sock.said.endswith(b"goodbye")
