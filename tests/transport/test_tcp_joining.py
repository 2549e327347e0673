"""Small frames of one turn of the loop go out in one call, in order, and none is lost when the connection ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from r2ccl.actors.work import Work
from r2ccl.protocol.wire import HEADER_BYTES, Kind, pack_header, unpack_header
from r2ccl.transport.frames import GATHER_MAX
from r2ccl.transport.interface import Purpose
from r2ccl.transport.joined import Joined
from r2ccl.transport.tcp_connection import JOIN_BYTES, JOINED_BYTES_MAX, TcpConnection


class CountingSocket:
    """A socket that counts what it is given to send."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.calls = 0

    def send(self, data: bytes) -> int:
        self.calls += 1
        return self._sock.send(data)

    def sendmsg(self, buffers: Any) -> int:
        self.calls += 1
        return self._sock.sendmsg(buffers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Nobody:
    """A receiver of which nothing is asked."""

    def established(self, connection: object) -> None:
        """Nothing to do."""

    batch_ended = established

    def lost(self, *told: object) -> None:
        """Nothing to do."""


Story = Callable[[TcpConnection, CountingSocket, socket.socket], Awaitable[None]]


def play(story: Story, joined: Joined | None = None) -> None:
    joined = Joined() if joined is None else joined

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        counting = CountingSocket(ours)
        connection = TcpConnection(asyncio.get_running_loop(), Nobody(), 0, Purpose.BULK, joined)  # type: ignore[arg-type]
        connection.open(counting, b"", lambda _: None)  # type: ignore[arg-type]
        try:
            await story(connection, counting, theirs)
        finally:
            connection.abort()
            theirs.close()

    asyncio.run(main())


def say(connection: TcpConnection, number: int, size: int = 4) -> None:
    payload = bytes([number % 251]) * size
    connection.send(pack_header(Kind.CHUNK, 0, size, operation=number), payload)


def heard(sock: socket.socket) -> list[tuple[int, int, int]]:
    """Number, size and first byte of each frame that has come."""
    told = b""
    while True:
        try:
            more = sock.recv(1 << 20)
        except BlockingIOError:
            break
        if not more:
            break
        told += more
    frames, at = [], 0
    while at < len(told):
        header = unpack_header(told, at)
        at += HEADER_BYTES
        frames.append((header.operation, header.payload_bytes, told[at] if header.payload_bytes else -1))
        at += header.payload_bytes
    return frames


def frames(count: int, size: int = 4) -> list[tuple[int, int, int]]:
    return [(number, size, number % 251 if size else -1) for number in range(count)]


def test_the_first_frame_of_a_turn_goes_at_once_and_the_others_in_one_call_at_its_end() -> None:
    async def story(connection: TcpConnection, sock: CountingSocket, peer: socket.socket) -> None:
        for number in range(64):
            say(connection, number)
        assert sock.calls == 1
        assert heard(peer) == frames(64)[:1]
        await asyncio.sleep(0)
        assert sock.calls == 2
        assert heard(peer) == frames(64)[1:]

    play(story)


def test_a_frame_alone_in_its_turn_never_waits() -> None:
    async def story(connection: TcpConnection, sock: CountingSocket, peer: socket.socket) -> None:
        for number in range(5):
            say(connection, number)
            assert heard(peer) == [(number, 4, number)]
            await asyncio.sleep(0)
        assert sock.calls == 5

    play(story)


def test_a_large_frame_does_not_wait_and_overtakes_nothing() -> None:
    async def story(connection: TcpConnection, sock: CountingSocket, peer: socket.socket) -> None:
        say(connection, 0)
        say(connection, 1, JOIN_BYTES + 1)
        assert sock.calls == 2
        say(connection, 2)
        say(connection, 3, JOIN_BYTES + 1)
        await asyncio.sleep(0)
        sizes = [4, JOIN_BYTES + 1, 4, JOIN_BYTES + 1]
        assert [(number, size) for number, size, _ in heard(peer)] == list(enumerate(sizes))

    play(story)


def test_what_waits_for_the_end_of_a_turn_is_bounded() -> None:
    async def story(connection: TcpConnection, sock: CountingSocket, peer: socket.socket) -> None:
        count = 3 * JOINED_BYTES_MAX // (JOIN_BYTES + HEADER_BYTES)
        for number in range(count):
            say(connection, number, JOIN_BYTES)
        assert connection.sample().unsent_bytes <= JOINED_BYTES_MAX + JOIN_BYTES + HEADER_BYTES
        got: list[tuple[int, int, int]] = []
        while len(got) < count:
            got += heard(peer)
            await asyncio.sleep(0)
        assert got == frames(count, JOIN_BYTES)

    play(story)


def test_more_frames_than_one_call_takes_go_in_as_few_as_they_need() -> None:
    async def story(connection: TcpConnection, sock: CountingSocket, peer: socket.socket) -> None:
        for number in range(3 * GATHER_MAX + 1):
            say(connection, number, 0)
        await asyncio.sleep(0)
        assert sock.calls == 4
        assert heard(peer) == frames(3 * GATHER_MAX + 1, 0)

    play(story)


def test_the_last_words_of_a_turn_are_said_though_the_connection_is_ended_in_it() -> None:
    async def story(connection: TcpConnection, sock: CountingSocket, peer: socket.socket) -> None:
        for number in range(3):
            say(connection, number)
        connection.abort()
        assert heard(peer) == frames(3)

    play(story)


def test_what_is_withdrawn_in_the_turn_is_never_said() -> None:
    async def story(connection: TcpConnection, sock: CountingSocket, peer: socket.socket) -> None:
        for number in range(4):
            say(connection, number)
        assert connection.withdraw(0, 2)
        await asyncio.sleep(0)
        assert heard(peer) == frames(2)

    play(story)


def test_whoever_awaits_has_it_sent_before_the_turn_ends_and_nothing_is_remembered() -> None:
    joined = Joined()

    async def story(connection: TcpConnection, sock: CountingSocket, peer: socket.socket) -> None:
        for number in range(3):
            say(connection, number)
        joined.flush()
        assert heard(peer) == frames(3)
        assert sock.calls == 2
        assert not joined._waiting
        say(connection, 3)
        connection.abort()
        assert not joined._waiting

    play(story, joined)


def test_who_is_woken_by_the_end_of_an_operation_has_what_was_said_since_on_its_way() -> None:
    joined = Joined()

    async def story(connection: TcpConnection, sock: CountingSocket, peer: socket.socket) -> None:
        work = Work("barrier()", None, threading.get_ident())
        work.look_with(lambda _: joined.flush())

        def news() -> None:
            work.finish(None)
            for number in range(3):
                say(connection, number)

        asyncio.get_running_loop().call_soon(news)
        await work
        # From here on the caller may compute, and the turn's end is after that.
        assert heard(peer) == frames(3)

    play(story, joined)
