"""One knock by TCP: a connect that the far kernel completes or refuses, and that is reset at once.

No handshake of ours follows. A process that is stopped or computes completes none, but its kernel takes connections for
it until the listener's queue is full; so a NIC that answers is told from one that does not, whoever sleeps behind it.
The reset leaves nothing behind here, and over there a stranger who was gone before anybody looked.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

from r2ccl.transport.interface import Answer
from r2ccl.transport.sockets import OUR_SHORTAGES, RESET_ON_CLOSE


def answer_of(error: OSError) -> Answer:
    """What a failed connect says."""
    if error.errno == errno.ECONNREFUSED:
        return Answer.REFUSED
    return Answer.UNTRIED if error.errno in OUR_SHORTAGES else Answer.SILENT


class TcpProbe:
    """See :class:`~r2ccl.transport.interface.Probe`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, heard: Callable[[Answer], None], forget: Callable[[TcpProbe], None]
    ) -> None:
        self._loop = loop
        self._heard: Callable[[Answer], None] | None = heard
        self._forget = forget
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connect(self, sock: socket.socket, local: tuple[str, int], remote: tuple[str, int], wait_s: float) -> None:
        """Knock. The socket is the probe's from now on."""
        self._sock = sock
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            sock.bind(local)
            code = sock.connect_ex(remote)
        except OSError as error:
            self.fail_soon(error)
            return
        if code not in (0, errno.EINPROGRESS):
            self.fail_soon(OSError(code, os.strerror(code)))
            return
        self._loop.add_writer(sock.fileno(), self._look)
        self._timer = self._loop.call_later(wait_s, self._look)

    def fail_soon(self, error: OSError) -> None:
        """An answer never comes before ``reach`` has returned."""
        self._loop.call_soon(self._tell, answer_of(error))

    def abort(self) -> None:
        """See :class:`~r2ccl.transport.interface.Probe`."""
        self._heard = None
        sock, self._sock = self._sock, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if sock is not None:
            self._loop.remove_writer(sock.fileno())
            sock.close()
            self._forget(self)

    def close_in_child(self) -> None:
        """After a fork, in the child. Nothing is reset: that takes the last close, and the parent has it open, too."""
        if self._sock is not None:
            self._sock.close()

    def _look(self) -> None:
        """The socket has news, or time is up. A loop that was away may run its timers before it looks at sockets, so
        the socket is asked in both cases."""
        assert self._sock is not None
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._tell(answer_of(OSError(code, os.strerror(code))))
            return
        try:
            self._sock.getpeername()
        except OSError:
            self._tell(Answer.SILENT)
            return
        self._tell(Answer.ANSWERED)

    def _tell(self, answer: Answer) -> None:
        heard = self._heard
        self.abort()
        if heard is not None:
            heard(answer)
