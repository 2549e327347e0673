"""What a TCP device does at its limits: garbage behind a handshake, and no descriptor left to accept with."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from r2ccl.transport.interface import Connection, Loss, Purpose
from r2ccl.transport.sockets import ACCEPT_PAUSE_S, Acceptor
from r2ccl.transport.tcp_connection import TcpConnection


class Recorder:
    def __init__(self) -> None:
        self.losses: list[Loss] = []

    def established(self, connection: Connection) -> None:
        """Nothing to do."""

    def lost(self, connection: Connection, loss: Loss, detail: str) -> None:
        self.losses.append(loss)


def test_garbage_right_behind_the_handshake_ends_the_connection() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        recorder = Recorder()
        connection = TcpConnection(asyncio.get_running_loop(), recorder, 0, Purpose.CONTROL)  # type: ignore[arg-type]
        connection.open(ours, b"x" * 64, lambda _: None)
        assert recorder.losses == [Loss.BAD_FRAME]
        assert not connection.is_open
        theirs.close()

    asyncio.run(scenario())


class Loop:
    """Remembers who wants to read, and what is to happen later."""

    def __init__(self) -> None:
        self.readers: set[int] = set()
        self.later: list[tuple[float, Any]] = []

    def add_reader(self, descriptor: int, callback: Any) -> None:
        self.readers.add(descriptor)

    def remove_reader(self, descriptor: int) -> None:
        self.readers.discard(descriptor)

    def call_later(self, delay_s: float, callback: Any) -> None:
        self.later.append((delay_s, callback))


class Exhausted:
    """A listener whose process has no descriptor left."""

    def fileno(self) -> int:
        return 77

    def accept(self) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    def close(self) -> None:
        """Nothing to do."""


def test_a_listener_without_a_descriptor_left_pauses_instead_of_spinning() -> None:
    loop = Loop()
    door = Acceptor(loop, Exhausted(), lambda sock, address: None)  # type: ignore[arg-type]
    door.start()
    assert loop.readers == {77}
    door._look()
    assert loop.readers == set()
    ((delay_s, resume),) = loop.later
    assert delay_s == ACCEPT_PAUSE_S
    resume()
    assert loop.readers == {77}
    door.close()
    resume()
    assert loop.readers == set()
