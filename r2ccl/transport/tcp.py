"""TCP on plain non-blocking sockets: a device listens and dials, its connections move frames.

Sockets rather than asyncio's transports, for three reasons that were measured or needed: a view is in our hands until
the kernel took its last byte, so a buffer can be got back (decision 7); header and payload go out in one system call
and come in with the next header in one; and a turn of the loop reads at most twice from a connection, where libuv
would read 32 times while acknowledgements and the application's timers wait.

Every socket is bound to its NIC's address and, where permitted, to its device: two NICs in one subnet would otherwise
silently share one (decision 21).
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from r2ccl.ids import nic_name
from r2ccl.protocol.doorkeeper import Doorkeeper
from r2ccl.protocol.handshake import NONCE_BYTES, Dialler, Identity, Listener, Purpose, Target
from r2ccl.telemetry.strangers import CROWDED, Strangers
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Answer, Loss, Receiver, Region
from r2ccl.transport.interface import Purpose as WirePurpose
from r2ccl.transport.joined import Joined
from r2ccl.transport.losses import loss_of
from r2ccl.transport.sockets import Acceptor, keep_to_device
from r2ccl.transport.tcp_connection import TcpConnection
from r2ccl.transport.tcp_handshake import TcpHandshake, tune
from r2ccl.transport.tcp_probe import TcpProbe

#: Connections accepted and not yet authenticated, per device. Of more some have to go: see ``protocol.doorkeeper``.
HALF_OPEN_MAX = 256


@dataclass(frozen=True, slots=True)
class Admission:
    """Who we are, and whom the job admitted: rank -> incarnation."""

    identity: Identity
    incarnations: dict[int, int]
    #: Where those are counted who were not admitted. None: nowhere.
    strangers: Strangers | None = None

    def dialler(self, nic: int, peer: int, remote_nic: int, purpose: WirePurpose) -> Dialler:
        """For a connection from a NIC of ours to a peer's."""
        target = Target(peer, remote_nic, self.incarnations.get(peer))
        return Dialler(self.identity, nic, target, purpose, secrets.token_bytes(NONCE_BYTES))

    def listener(self, nic: int) -> Listener:
        """For whoever connects to a NIC of ours."""
        purposes = (Purpose.CONTROL, Purpose.BULK, Purpose.PROBE)
        return Listener(self.identity, nic, secrets.token_bytes(NONCE_BYTES), purposes, self.incarnations)

    def turned_away(self, nic: int, reason: str, by: str, says: str) -> None:
        """Somebody who connected to a NIC of ours was not admitted."""
        if self.strangers is not None:
            self.strangers.refuse(reason, nic_name(nic), by, says)


class TcpDevice:
    """One NIC, opened for TCP."""

    one_sided = False

    def __init__(
        self, nic: Nic, admission: Admission, loop: asyncio.AbstractEventLoop, joined: Joined | None = None
    ) -> None:
        self.nic = nic
        self.loop = loop
        self._joined = Joined() if joined is None else joined
        #: Who connected and is not admitted yet.
        self.waiting: Doorkeeper[TcpHandshake] = Doorkeeper(HALF_OPEN_MAX)
        self._admission = admission
        self._door: Acceptor | None = None
        self._endpoint: Endpoint | None = None
        self.receiver: Receiver | None = None
        #: All and only connections, handshakes and probes that hold a socket.
        self._open: set[TcpConnection | TcpHandshake | TcpProbe] = set()
        self._regions = 0

    def reserve(self) -> Endpoint:
        """Bind, so that the endpoint can be announced. Who connects waits, unanswered, until ``listen``.

        The port is the NIC's, or any if that is 0. Raises ``OSError``.
        """
        listener = self._socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.nic.endpoint.host, self.nic.endpoint.port))
            listener.listen(HALF_OPEN_MAX)
        except OSError:
            listener.close()
            raise
        self._door = Acceptor(self.loop, listener, self._accepted)
        host, port = listener.getsockname()[:2]
        self._endpoint = Endpoint(self.nic.endpoint.family, host, port)
        return self._endpoint

    def listen(self, receiver: Receiver) -> Endpoint:
        """See :class:`~r2ccl.transport.interface.Device`."""
        self.receiver = receiver
        if self._door is None:
            self.reserve()
        assert self._door is not None
        self._door.start()
        assert self._endpoint is not None
        return self._endpoint

    def move(self, host: str, interface_name: str) -> Endpoint:
        """See :class:`~r2ccl.transport.interface.Device`. Connections from the old address are left to end."""
        assert self.receiver is not None, "a device listens before it moves"
        assert self._endpoint is not None
        self._stop_listening()
        # The same port, if it is free: a peer that hears nothing of a new one may still find us.
        at = dataclasses.replace(self._endpoint, host=host)
        self.nic = dataclasses.replace(self.nic, name=interface_name, endpoint=at)
        try:
            return self.listen(self.receiver)
        except OSError as taken:
            if taken.errno != errno.EADDRINUSE:
                raise
        self.nic = dataclasses.replace(self.nic, endpoint=dataclasses.replace(at, port=0))
        return self.listen(self.receiver)

    def dial(self, peer: int, remote_nic: int, endpoint: Endpoint, purpose: WirePurpose) -> TcpConnection:
        """See :class:`~r2ccl.transport.interface.Device`."""
        assert self.receiver is not None, "a device listens before it dials"
        connection = TcpConnection(self.loop, self.receiver, self.nic.index, WirePurpose(purpose), self._joined)
        connection.peer, connection.remote_nic = peer, remote_nic
        machine = self._admission.dialler(self.nic.index, peer, remote_nic, purpose)
        handshake = TcpHandshake(self, connection, machine)
        if endpoint.family != self.nic.endpoint.family:
            handshake.fail_soon(Loss.UNREACHABLE, f"{endpoint} is of another family than {self.nic.name}")
            return connection
        try:
            sock = self._socket()
        except OSError as error:
            handshake.fail_soon(loss_of(error), str(error))
            return connection
        handshake.connect(sock, (self.nic.endpoint.host, 0), (endpoint.host, endpoint.port))
        return connection

    def reach(
        self, peer: int, remote_nic: int, endpoint: Endpoint, wait_s: float, heard: Callable[[Answer], None]
    ) -> TcpProbe:
        """See :class:`~r2ccl.transport.interface.Device`. The kernel that answers is all that is asked for."""
        del peer, remote_nic  # the endpoint says it all
        probe = TcpProbe(self.loop, heard, self.forget)
        if endpoint.family != self.nic.endpoint.family:
            probe.fail_soon(OSError(errno.EAFNOSUPPORT, "another family"))
            return probe
        try:
            sock = self._socket()
        except OSError as error:
            probe.fail_soon(error)
            return probe
        self.remember(probe)
        probe.connect(sock, (self.nic.endpoint.host, 0), (endpoint.host, endpoint.port), wait_s)
        return probe

    def register(self, memory: memoryview) -> Region:
        """TCP needs no registration: any memory will do."""
        self._regions += 1
        return Region(self._regions, memory)

    def deregister(self, region: Region) -> None:
        """Nothing to undo."""

    def close(self) -> None:
        """See :class:`~r2ccl.transport.interface.Device`."""
        self._stop_listening()
        for user in list(self._open):
            user.abort()

    def _stop_listening(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of every socket without a word to anybody, and without the parent's
        loop."""
        if self._door is not None:
            self._door.close_in_child()
        for user in self._open:
            user.close_in_child()

    def forget(self, user: TcpConnection | TcpHandshake | TcpProbe) -> None:
        """The user's socket is closed."""
        self._open.discard(user)

    def remember(self, user: TcpConnection | TcpHandshake | TcpProbe) -> None:
        """The user holds a socket from now on."""
        self._open.add(user)

    def turned_away(self, reason: str, by: str, says: str) -> None:
        """Somebody at the other end of a socket of ours was not admitted."""
        self._admission.turned_away(self.nic.index, reason, by, says)

    def _socket(self) -> socket.socket:
        family = socket.AF_INET6 if self.nic.endpoint.family == "inet6" else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        tune(sock)
        try:
            keep_to_device(sock, self.nic.name, self.nic.endpoint.host)
        except OSError:
            sock.close()
            raise
        return sock

    def _accepted(self, sock: socket.socket, address: tuple[str, int]) -> None:
        assert self.receiver is not None
        tune(sock)
        host = address[0]
        connection = TcpConnection(self.loop, self.receiver, self.nic.index, WirePurpose.CONTROL, self._joined)
        newcomer = TcpHandshake(self, connection, self._admission.listener(self.nic.index))
        newcomer.accepted(sock, host)
        leaves = self.waiting.came(newcomer, host)
        if leaves is not None:
            leaves.turn_away(CROWDED, f"more than {HALF_OPEN_MAX} wait")
