"""Authenticated connections of ``r2ccl topology-check``: the handshake of every job, then short messages.

Nothing that a stranger sends gets further than the handshake. A message is a length and a msgpack list, checked against
a limit before anything is allocated, as at the rendezvous.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]

from r2ccl.errors import RendezvousError
from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Listener
from r2ccl.rendezvous.messages import LENGTH_BYTES, MessageCutter
from r2ccl.transport.sockets import ACCEPT_PAUSE_S

#: A stranger must prove itself within this time, and so must a host that is busy with a job.
HANDSHAKE_TIMEOUT_S = 10.0
#: Strangers at one door at a time; one more is turned away.
HALF_OPEN_MAX = 256
_BACKLOG = 1024
_READ_BYTES = 64 << 10
#: A rank with 64 NICs in a job of a thousand tells of four million pairs; that is more than is asked for here.
MESSAGE_BYTES_MAX = 64 << 20


class Ended(RendezvousError):
    """The other end hung up, or said what makes no sense. State: the connection is useless."""


async def prove(sock: socket.socket, machine: Dialler | Listener) -> bytes:
    """Carry a handshake through; returns bytes that came behind it.

    Raises :class:`HandshakeRefused`, ``OSError`` or ``TimeoutError``; the caller closes the socket.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
        if isinstance(machine, Dialler):
            await loop.sock_sendall(sock, machine.start())
        try:
            while not machine.done:
                data = await loop.sock_recv(sock, _READ_BYTES)
                if not data:
                    raise ConnectionResetError("ended during the handshake")
                answer = machine.receive_data(data)
                if answer:
                    await loop.sock_sendall(sock, answer)
        except HandshakeRefused as refused:
            # Who is refused and no longer listens is refused all the same.
            with contextlib.suppress(OSError):
                await loop.sock_sendall(sock, refused.farewell)
            raise
    return machine.leftover


class Messages:
    """Messages over a connection that is proven."""

    def __init__(self, sock: socket.socket, leftover: bytes) -> None:
        self._sock = sock
        self._cutter = MessageCutter(MESSAGE_BYTES_MAX)
        self._bodies = self._cutter.cut(leftover)

    async def send(self, message: list[Any]) -> None:
        """Raises :class:`Ended`."""
        body: bytes = msgpack.packb(message)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._sock, len(body).to_bytes(LENGTH_BYTES, "big") + body)
        except OSError as lost:
            raise Ended(f"the connection broke: {lost}") from lost

    async def receive(self) -> list[Any]:
        """The next one. Raises :class:`Ended`. The deadline is the caller's."""
        loop = asyncio.get_running_loop()
        try:
            while not self._bodies:
                data = await loop.sock_recv(self._sock, _READ_BYTES)
                if not data:
                    raise Ended("it left")
                self._bodies += self._cutter.cut(data)
            message = msgpack.unpackb(self._bodies.pop(0))
        except OSError as lost:
            raise Ended(f"the connection broke: {lost}") from lost
        except (ValueError, msgpack.UnpackException) as bad:
            raise Ended(f"it sent nonsense: {bad}") from bad
        if not isinstance(message, list):
            raise Ended("it sent nonsense: no list")
        return message

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


class Door:
    """A listening socket: whoever comes has to prove itself, then is served."""

    def __init__(
        self,
        listener: socket.socket,
        machine: Callable[[], Listener],
        serve: Callable[[socket.socket, Listener], Awaitable[None]],
    ) -> None:
        self._listener = listener
        self._machine = machine
        self._serve = serve
        self._half_open = 0
        #: Who came and could not prove to be of the job.
        self.refused = 0
        listener.listen(_BACKLOG)

    async def attend(self) -> None:
        """Let in until cancelled; guests who are still here are sent away then."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    sock, _ = await loop.sock_accept(self._listener)
                except OSError:
                    # The stranger was gone before we looked, or descriptors ran out: neither is the door's end.
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                    continue
                sock.setblocking(False)
                if self._half_open >= HALF_OPEN_MAX:
                    sock.close()
                    continue
                self._half_open += 1
                group.create_task(self._admit(sock))

    def close(self) -> None:
        """Nobody is let in any more."""
        self._listener.close()

    async def _admit(self, sock: socket.socket) -> None:
        machine = self._machine()
        try:
            with sock:
                try:
                    await prove(sock, machine)
                except (HandshakeRefused, OSError, TimeoutError):
                    # A knock that only asks the kernel ends here as well; it is no stranger, and no harm.
                    self.refused += 1
                    return
                finally:
                    self._half_open -= 1
                await self._serve(sock, machine)
        except OSError:
            # The guest went away in the middle; it knows.
            return
