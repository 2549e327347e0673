"""Which packets pass between two NICs unfragmented: UDP datagrams of chosen sizes, and who answers them.

A probe goes out with "don't fragment" set and the kernel's own idea of the path left aside (IP_PMTUDISC_PROBE), so that
a size is really tried. The answer is small, whatever the size, so that it gets back even where large packets vanish,
and nobody gains by sending probes in another's name.

Both are signed with the job's secret, bound to job, size and a nonce; what is not is dropped unanswered. A replayed
probe earns its sender the small answer that it has heard before. No state is kept.

    probe    magic, nonce, size, signature, zeros up to the size
    answer   the same without zeros, and signed as an answer
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import secrets
import socket
import struct
import sys
from dataclasses import dataclass

from r2ccl.transport.tcp_knock import bound_socket

#: IPv4 and UDP headers, which a packet's size includes.
HEADER_BYTES = 28
# From linux/in.h.
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_MAGIC = b"r2cclmtu"
_NONCE_BYTES = _SIGNATURE_BYTES = 16
_HEAD = struct.Struct(f">8s{_NONCE_BYTES}sI")
_DATAGRAM_BYTES_MAX = 65535
#: Datagrams answered in one turn of the loop; more follow on the next.
_ANSWERS_PER_TURN = 32
_RECEIVE_BUFFER_BYTES = 1 << 20
#: Each size is tried so often, and each answer waited for so long: a packet is lost now and then, a path that drops
#: sizes drops all.
WAITS_S = (0.2, 0.4, 0.8)


def probe_key(secret: bytes, job: str) -> bytes:
    """What probes of a job are signed with."""
    return hmac.digest(secret, b"r2ccl mtu probe\0" + job.encode(), hashlib.sha256)


def pack_probe(key: bytes, nonce: bytes, packet_bytes: int) -> bytes:
    """A probe that makes a packet of that size."""
    head = _HEAD.pack(_MAGIC, nonce, packet_bytes)
    return (head + _signature(key, b"probe", head)).ljust(packet_bytes - HEADER_BYTES, b"\0")


def answer_to(key: bytes, datagram: bytes) -> bytes | None:
    """What to say to a datagram; None: nothing, it is no probe of the job."""
    head = _read(key, b"probe", datagram)
    if head is None or _HEAD.unpack(head)[2] != len(datagram) + HEADER_BYTES:
        return None
    return head + _signature(key, b"answer", head)


def answers(key: bytes, datagram: bytes, nonce: bytes, packet_bytes: int) -> bool:
    """Is that the answer to this probe?"""
    head = _read(key, b"answer", datagram)
    return head is not None and _HEAD.unpack(head)[1:] == (nonce, packet_bytes)


def _read(key: bytes, label: bytes, datagram: bytes) -> bytes | None:
    head, signature = datagram[: _HEAD.size], datagram[_HEAD.size : _HEAD.size + _SIGNATURE_BYTES]
    if len(signature) != _SIGNATURE_BYTES or not head.startswith(_MAGIC):
        return None
    return head if hmac.compare_digest(signature, _signature(key, label, head)) else None


def _signature(key: bytes, label: bytes, head: bytes) -> bytes:
    return hmac.digest(key, label + b"\0" + head, hashlib.sha256)[:_SIGNATURE_BYTES]


class MtuResponder:
    """Answers probes at one NIC."""

    def __init__(self, sock: socket.socket, key: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        self._key = key
        self._loop = loop
        #: Datagrams that were none of the job's.
        self.refused = 0
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        loop.add_reader(sock.fileno(), self._readable)

    def close(self) -> None:
        """Answer no more."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _readable(self) -> None:
        for _ in range(_ANSWERS_PER_TURN):
            try:
                datagram, sender = self._sock.recvfrom(_DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                # Word of an answer that could not be delivered: whoever wanted it asks again.
                continue
            answer = answer_to(self._key, datagram)
            if answer is None:
                self.refused += 1
                continue
            # An answer that does not get out is one that the network lost.
            with contextlib.suppress(OSError):
                self._sock.sendto(answer, sender)


@dataclass(frozen=True, slots=True)
class Passage:
    """What became of a packet of some size. ``told``: we heard that it was too large."""

    passed: bool
    told: bool = False


class MtuProber:
    """Tries sizes from one NIC to one other. Use as a context."""

    def __init__(self, device: str, host: str, remote: tuple[str, int], interface_mtu_bytes: int, key: bytes) -> None:
        self._sock = bound_socket(socket.SOCK_DGRAM, device, host)
        self._key = key
        self._interface_mtu_bytes = interface_mtu_bytes
        try:
            if sys.platform == "linux":
                self._sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            self._sock.connect(remote)
        except OSError:
            self._sock.close()
            raise

    def __enter__(self) -> MtuProber:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    async def passes(self, packet_bytes: int) -> Passage:
        """Try one size, several times before it counts as lost."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        datagram = pack_probe(self._key, nonce, packet_bytes)
        for wait_s in WAITS_S:
            try:
                self._sock.send(datagram)
                async with asyncio.timeout(wait_s):
                    await self._answer(nonce, packet_bytes)
                return Passage(True)
            except TimeoutError:
                continue
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    # A size that the interface allows can only have been refused by the network.
                    return Passage(False, told=packet_bytes <= self._interface_mtu_bytes)
                # Nobody listens, or there is no way: said at once, so wait before it is tried again.
                await asyncio.sleep(wait_s)
        return Passage(False)

    async def _answer(self, nonce: bytes, packet_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        while not answers(self._key, await loop.sock_recv(self._sock, _DATAGRAM_BYTES_MAX), nonce, packet_bytes):
            continue
