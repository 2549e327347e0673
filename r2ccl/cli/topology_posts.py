"""What ``r2ccl topology-check`` has at each NIC: a door where peers prove who they are, and an answerer of MTU probes.

Both are at one port, bound to the NIC's address and device, so that what is seen by them is seen of this NIC. A peer
that was let in either hangs up (it wanted to know who is here) or sends as fast as it can for a while, and is told how
much arrived, and in what time.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import struct

from r2ccl.cli.topology_wire import Door
from r2ccl.clock import Clock
from r2ccl.errors import ConfigurationError
from r2ccl.protocol.handshake import Identity, Listener, Purpose
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.mtu_probe import MtuResponder
from r2ccl.transport.tcp_knock import bound_socket

#: What a receiver of bulk answers: bytes, and seconds from the first to the last.
RECEIPT = struct.Struct(">Qd")
#: Longer than any measurement that is asked for.
STREAM_S_MAX = 60.0
_PORTS_TRIED = 32
_READ_BYTES = 1 << 20


class Post:
    """One NIC of ours."""

    def __init__(
        self, nic: Nic, identity: Identity, incarnations: dict[int, int], probe_key: bytes, clock: Clock
    ) -> None:
        self.nic = nic
        self._clock = clock
        tcp, udp = _two_sockets_at_one_port(nic)
        self.endpoint = Endpoint("inet", nic.endpoint.host, tcp.getsockname()[1])
        self._door = Door(
            tcp,
            lambda: Listener(identity, nic.index, secrets.token_bytes(32), (Purpose.PROBE, Purpose.BULK), incarnations),
            self._serve,
        )
        self._responder = MtuResponder(udp, probe_key, asyncio.get_running_loop())

    async def attend(self) -> None:
        """Let peers in, until cancelled."""
        await self._door.attend()

    def close(self) -> None:
        """Close both."""
        self._door.close()
        self._responder.close()

    async def _serve(self, sock: socket.socket, machine: Listener) -> None:
        if machine.peer.purpose is not Purpose.BULK:
            return
        loop, buffer = asyncio.get_running_loop(), bytearray(_READ_BYTES)
        received, first_s, last_s = 0, 0.0, 0.0
        try:
            async with asyncio.timeout(STREAM_S_MAX):
                # What the first read brings was on its way before we looked: it starts the watch and is not counted.
                if await loop.sock_recv_into(sock, buffer):
                    first_s = last_s = self._clock.now()
                    while count := await loop.sock_recv_into(sock, buffer):
                        received, last_s = received + count, self._clock.now()
                await loop.sock_sendall(sock, RECEIPT.pack(received, last_s - first_s))
        except TimeoutError:
            # Whoever sends for so long does not measure.
            return


def _two_sockets_at_one_port(nic: Nic) -> tuple[socket.socket, socket.socket]:
    """TCP and UDP. Raises :class:`ConfigurationError`."""
    host = nic.endpoint.host
    for _ in range(_PORTS_TRIED):
        try:
            tcp = bound_socket(socket.SOCK_STREAM, nic.name, host)
        except OSError as refused:
            raise ConfigurationError(f"{nic.name} ({host}) cannot be listened on: {refused}") from refused
        try:
            return tcp, bound_socket(socket.SOCK_DGRAM, nic.name, host, tcp.getsockname()[1])
        except OSError as taken:
            tcp.close()
            if taken.errno != errno.EADDRINUSE:
                raise ConfigurationError(f"{nic.name} ({host}) cannot be listened on: {taken}") from taken
    raise ConfigurationError(f"{nic.name} ({host}) has no port that is free for TCP and UDP")
