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
import os
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Identity, Listener, Purpose, Target
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.interface import Answer, Loss, Receiver, Region
from r2ccl.transport.interface import Purpose as WirePurpose
from r2ccl.transport.tcp_connection import TcpConnection, loss_of
from r2ccl.transport.tcp_probe import TcpProbe

#: Connections accepted and not yet authenticated, per device. A stranger who opens more is turned away.
HALF_OPEN_MAX = 256
#: A stranger must prove itself within this time.
HANDSHAKE_TIMEOUT_S = 5.0
#: Most connections accepted in one turn of the loop.
ACCEPTS_PER_TURN = 16
#: When descriptors ran out, nobody is accepted for this long.
ACCEPT_PAUSE_S = 0.2
#: Bytes of a handshake read at once; what belongs to frames is handed on.
HANDSHAKE_READ_BYTES = 4096
#: Linux: TCP_DELACK_MAX_US. Keeps a healthy path whose reader sleeps from looking silent for 44 ms.
_TCP_DELACK_MAX_US = 46
DELAYED_ACK_US = 8000


@dataclass(frozen=True, slots=True)
class Admission:
    """Who we are, and whom the job admitted: rank -> incarnation."""

    identity: Identity
    incarnations: dict[int, int]


class TcpDevice:
    """One NIC, opened for TCP."""

    one_sided = False

    def __init__(self, nic: Nic, admission: Admission, loop: asyncio.AbstractEventLoop) -> None:
        self.nic = nic
        self._admission = admission
        self._loop = loop
        self._listener: socket.socket | None = None
        self._endpoint: Endpoint | None = None
        self._receiver: Receiver | None = None
        #: All and only connections, handshakes and probes that hold a socket.
        self._open: set[TcpConnection | _Handshake | TcpProbe] = set()
        self._half_open = 0
        self._regions = 0
        #: Handshakes that failed, for counters.
        self.refused = 0

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
        self._listener = listener
        host, port = listener.getsockname()[:2]
        self._endpoint = Endpoint(self.nic.endpoint.family, host, port)
        return self._endpoint

    def listen(self, receiver: Receiver) -> Endpoint:
        """See :class:`~r2ccl.transport.interface.Device`."""
        self._receiver = receiver
        if self._listener is None:
            self.reserve()
        assert self._listener is not None
        self._loop.add_reader(self._listener.fileno(), self._acceptable)
        assert self._endpoint is not None
        return self._endpoint

    def move(self, host: str, interface_name: str) -> Endpoint:
        """See :class:`~r2ccl.transport.interface.Device`. Connections from the old address are left to end."""
        assert self._receiver is not None, "a device listens before it moves"
        assert self._endpoint is not None
        self._stop_listening()
        # The same port, if it is free: a peer that hears nothing of a new one may still find us.
        at = dataclasses.replace(self._endpoint, host=host)
        self.nic = dataclasses.replace(self.nic, name=interface_name, endpoint=at)
        try:
            return self.listen(self._receiver)
        except OSError as taken:
            if taken.errno != errno.EADDRINUSE:
                raise
        self.nic = dataclasses.replace(self.nic, endpoint=dataclasses.replace(at, port=0))
        return self.listen(self._receiver)

    def dial(self, peer: int, remote_nic: int, endpoint: Endpoint, purpose: WirePurpose) -> TcpConnection:
        """See :class:`~r2ccl.transport.interface.Device`."""
        assert self._receiver is not None, "a device listens before it dials"
        connection = TcpConnection(self._loop, self._receiver, self.nic.index, WirePurpose(purpose))
        connection.peer, connection.remote_nic = peer, remote_nic
        target = Target(peer, remote_nic, self._admission.incarnations.get(peer))
        machine = Dialler(self._admission.identity, self.nic.index, target, purpose, secrets.token_bytes(32))
        handshake = _Handshake(self, connection, machine)
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
        probe = TcpProbe(self._loop, heard, self.forget)
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
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of every socket without a word to anybody, and without the parent's
        loop."""
        if self._listener is not None:
            self._listener.close()
        for user in self._open:
            user.close_in_child()

    def forget(self, user: TcpConnection | _Handshake | TcpProbe) -> None:
        """The user's socket is closed."""
        self._open.discard(user)

    def remember(self, user: TcpConnection | _Handshake | TcpProbe) -> None:
        """The user holds a socket from now on."""
        self._open.add(user)

    def half_open(self, change: int) -> None:
        """Counts strangers that are being asked who they are."""
        self._half_open += change

    def _socket(self) -> socket.socket:
        family = socket.AF_INET6 if self.nic.endpoint.family == "inet6" else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        tune(sock)
        if not self.nic.endpoint.host.startswith("127.") and hasattr(socket, "SO_BINDTODEVICE"):
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.nic.name.encode())
            except PermissionError:
                # Old kernels allow it to root only. The bound source address alone is right where routes are.
                return sock
            except OSError:
                sock.close()
                raise
        return sock

    def _acceptable(self) -> None:
        assert self._listener is not None
        assert self._receiver is not None
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # The stranger was gone before we looked, or descriptors ran out: neither is the listener's end.
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause()
                    return
                continue
            if self._half_open >= HALF_OPEN_MAX:
                sock.close()
                continue
            sock.setblocking(False)
            tune(sock)
            machine = Listener(
                self._admission.identity,
                self.nic.index,
                secrets.token_bytes(32),
                (Purpose.CONTROL, Purpose.BULK, Purpose.PROBE),
                self._admission.incarnations,
            )
            connection = TcpConnection(self._loop, self._receiver, self.nic.index, WirePurpose.CONTROL)
            _Handshake(self, connection, machine).accepted(sock)

    def _pause(self) -> None:
        """Who knocks goes on knocking: without a pause the loop would do nothing else."""
        assert self._listener is not None
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._acceptable)


def tune(sock: socket.socket) -> None:
    """Options of every socket of ours."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        try:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_DELACK_MAX_US, DELAYED_ACK_US)
        except OSError as error:
            # Kernels before 6.17 do not know it: the silence limit is chosen so that health can do without.
            if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
                raise


class _Handshake:
    """A socket on its way to becoming a connection."""

    def __init__(self, device: TcpDevice, connection: TcpConnection, machine: Dialler | Listener) -> None:
        self._device = device
        self._connection = connection
        self._machine = machine
        self._loop = device._loop
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._dialled = isinstance(machine, Dialler)
        self._ended = False
        connection.on_abort = self.abort

    def connect(self, sock: socket.socket, local: tuple[str, int], remote: tuple[str, int]) -> None:
        """Begin to dial."""
        self._hold(sock)
        try:
            sock.bind(local)
            code = sock.connect_ex(remote)
        except OSError as error:
            self.fail_soon(loss_of(error), str(error))
            return
        if code not in (0, errno.EINPROGRESS):
            refused = OSError(code, os.strerror(code))
            self.fail_soon(loss_of(refused), str(refused))
            return
        self._loop.add_writer(sock.fileno(), self._connected)

    def accepted(self, sock: socket.socket) -> None:
        """Ask a stranger who it is."""
        self._device.half_open(+1)
        self._hold(sock)
        self._timer = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self.abort)
        self._loop.add_reader(sock.fileno(), self._readable)

    def fail_soon(self, loss: Loss, detail: str) -> None:
        """``dial`` never reports before it has returned."""
        self._loop.call_soon(self._fail, loss, detail)

    def abort(self) -> None:
        """Close the socket without a word to the receiver."""
        if self._ended:
            return
        sock = self._let_go()
        if sock is not None:
            sock.close()

    def close_in_child(self) -> None:
        """See :meth:`TcpDevice.close_in_child`."""
        if self._sock is not None:
            self._sock.close()

    def _hold(self, sock: socket.socket) -> None:
        self._sock = sock
        self._device.remember(self)

    def _let_go(self) -> socket.socket | None:
        self._ended = True
        self._connection.on_abort = None
        sock, self._sock = self._sock, None
        if sock is None:
            return None
        self._loop.remove_reader(sock.fileno())
        self._loop.remove_writer(sock.fileno())
        if self._timer is not None:
            self._timer.cancel()
        if not self._dialled:
            self._device.half_open(-1)
        self._device.forget(self)
        return sock

    def _fail(self, loss: Loss, detail: str) -> None:
        if self._ended:
            return
        self.abort()
        self._connection.is_open = False
        if self._dialled:
            assert self._device._receiver is not None
            self._device._receiver.lost(self._connection, loss, detail)

    def _connected(self) -> None:
        assert self._sock is not None
        self._loop.remove_writer(self._sock.fileno())
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            error = OSError(code, os.strerror(code))
            self._fail(loss_of(error), str(error))
            return
        assert isinstance(self._machine, Dialler)
        self._loop.add_reader(self._sock.fileno(), self._readable)
        self._say(self._machine.start())

    def _say(self, data: bytes) -> None:
        """A few hundred bytes on a fresh socket always fit its buffer."""
        assert self._sock is not None
        try:
            if data and self._sock.send(data) != len(data):
                self._fail(Loss.NOT_ADMITTED, "the handshake did not fit the socket")
        except OSError as error:
            self._fail(loss_of(error), str(error))

    def _readable(self) -> None:
        """Read until the socket says that it is empty: see TcpConnection."""
        while not self._ended:
            assert self._sock is not None
            try:
                data = self._sock.recv(HANDSHAKE_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._fail(loss_of(error), str(error))
                return
            if not data:
                self._fail(Loss.RESET, "ended during the handshake")
                return
            self._hear(data)

    def _hear(self, data: bytes) -> None:
        try:
            answer = self._machine.receive_data(data)
        except HandshakeRefused as refused:
            self._device.refused += 1
            self._say(refused.farewell)
            self._fail(Loss.NOT_ADMITTED, str(refused))
            return
        self._say(answer)
        if self._machine.done and not self._ended:
            self._admit()

    def _admit(self) -> None:
        connection, peer = self._connection, self._machine.peer
        sock = self._let_go()
        assert sock is not None
        connection.peer, connection.remote_nic = peer.rank, peer.nic
        connection.peer_incarnation = peer.incarnation
        connection.purpose = WirePurpose(peer.purpose)
        self._device.remember(connection)
        connection.open(sock, self._machine.leftover, self._device.forget)
