"""What devices, probes and doors share about plain sockets: how a listener accepts, how a socket keeps to a NIC, and
which errors are our own shortage."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

#: Ours to run out of: no word about the network.
OUR_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: For SO_LINGER: closing leaves nothing behind here, and resets over there.
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
#: Most connections accepted in one turn of the loop.
ACCEPTS_PER_TURN: Final = 16
#: When descriptors ran out, nobody is accepted for this long.
ACCEPT_PAUSE_S: Final = 0.2
#: The kernel's ``struct ucred``: process, user, group.
_CREDENTIALS: Final = struct.Struct("3i")


def keep_to_device(sock: socket.socket, device: str, host: str) -> None:
    """The socket uses this NIC and no other, or two NICs in one subnet would share one unseen (decision 21). Loopback
    needs no device. Raises ``OSError``."""
    if device and not host.startswith("127.") and hasattr(socket, "SO_BINDTODEVICE"):
        # Old kernels allow it to root only. The bound source address alone is right where routes are.
        with contextlib.suppress(PermissionError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """(process, user) at the other end of a Unix socket, as the kernel knows it and names it to us."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(user)


class Acceptor:
    """A listening socket, ours from now on, and whom to tell who came: (socket, which does not block; address)."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        accepted: Callable[[socket.socket, Any], None],
    ) -> None:
        self._loop = loop
        self._listener: socket.socket | None = listener
        self._accepted = accepted

    def start(self) -> None:
        """Let in from now on; who connected before has waited."""
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._look)

    def close(self) -> None:
        """Nobody is let in any more. May be called twice."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def close_in_child(self) -> None:
        """After a fork, in the child: without the parent's loop."""
        if self._listener is not None:
            self._listener.close()

    def _look(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._listener is None:
                return
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # The stranger was gone before we looked, or descriptors ran out: neither is the listener's end.
                if error.errno in OUR_SHORTAGES:
                    self._pause()
                    return
                continue
            sock.setblocking(False)
            self._accepted(sock, address)

    def _pause(self) -> None:
        """Who knocks goes on knocking: without a pause the loop would do nothing else."""
        assert self._listener is not None
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self.start)
