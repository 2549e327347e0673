"""Measured knocks: how long a far kernel takes to answer a connect from one of our NICs.

The same probe as :mod:`r2ccl.transport.tcp_probe`, for tools that wait for it and want the time. The kernel answers,
also for a process that is stopped; and a port where nobody listens answers as well, with a reset. So neither a listener
nor root is needed, which ICMP would want.

Every socket here is bound to its NIC's address and device, or two NICs in one subnet would share one unseen.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import dataclass

from r2ccl.clock import Clock
from r2ccl.transport.interface import Answer
from r2ccl.transport.sockets import RESET_ON_CLOSE, keep_to_device
from r2ccl.transport.tcp_probe import answer_of

_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


@dataclass(frozen=True, slots=True)
class Knock:
    """What one connect came to. ``seconds`` counts where a kernel answered, be it with a reset."""

    answer: Answer
    seconds: float
    detail: str = ""
    #: There is no way there, or nobody has the address: said by our own kernel or a router.
    no_route: bool = False

    @property
    def answered(self) -> bool:
        """A kernel is there."""
        return self.answer in (Answer.ANSWERED, Answer.REFUSED)


def bound_socket(kind: socket.SocketKind, device: str, host: str, port: int = 0) -> socket.socket:
    """A non-blocking socket that uses that NIC and no other. Loopback needs no device. Raises ``OSError``."""
    sock = socket.socket(socket.AF_INET, kind)
    try:
        sock.setblocking(False)
        keep_to_device(sock, device, host)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


async def knock(device: str, host: str, remote: tuple[str, int], wait_s: float, clock: Clock) -> Knock:
    """Connect from a NIC, and hang up at once with a reset, which leaves nothing behind."""
    loop = asyncio.get_running_loop()
    try:
        sock = bound_socket(socket.SOCK_STREAM, device, host)
    except OSError as error:
        return Knock(Answer.UNTRIED, 0.0, f"{device} ({host}): {error.strerror or error}")
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        started = clock.now()
        try:
            async with asyncio.timeout(wait_s):
                await loop.sock_connect(sock, remote)
        except TimeoutError:
            return Knock(Answer.SILENT, clock.now() - started, f"no answer in {wait_s:g} s")
        except OSError as error:
            return Knock(answer_of(error), clock.now() - started, error.strerror or str(error), is_no_route(error))
        return Knock(Answer.ANSWERED, clock.now() - started)


def is_no_route(error: OSError) -> bool:
    """Was it said that there is no way, rather than nothing at all?"""
    return error.errno in _NO_ROUTE
