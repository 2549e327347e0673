"""A socket on its way to becoming a connection: it is dialled or accepted, and both ends prove who they are.

Until that is done the other end is a stranger, also where we dialled: who does not prove itself gets nothing but a
sentence, is counted and let go.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from typing import TYPE_CHECKING

from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Listener
from r2ccl.telemetry.strangers import LEFT, SLOW
from r2ccl.transport.interface import Loss
from r2ccl.transport.interface import Purpose as WirePurpose
from r2ccl.transport.losses import loss_of
from r2ccl.transport.tcp_connection import TcpConnection

if TYPE_CHECKING:
    from r2ccl.transport.tcp import TcpDevice

#: A stranger must prove itself within this time.
HANDSHAKE_TIMEOUT_S = 5.0
#: Bytes of a handshake read at once; what belongs to frames is handed on.
HANDSHAKE_READ_BYTES = 4096
#: Linux: TCP_DELACK_MAX_US. Keeps a healthy path whose reader sleeps from looking silent for 44 ms.
_TCP_DELACK_MAX_US = 46
DELAYED_ACK_US = 8000
#: Linux: TCP_RTO_MIN_US, the least that the kernel waits before it sends again what nobody asked it for, as is so when
#: the last of what was said was lost, or was lost again. Its own 200 ms are for answers that a peer keeps back for 40;
#: ours keeps them for 8. With 200 ms a lost frame of acknowledgements held up a whole ring: of two NICs one that loses
#: 2 % of its packets left nothing arriving for 210 ms, and with 30 for 40 (``r2ccl faults loss``). It is added to the
#: round trip that was measured, so it need not know how long the path is.
_TCP_RTO_MIN_US = 45
RESEND_AFTER_US = 30_000


def tune(sock: socket.socket) -> None:
    """Options of every socket of ours."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        for option, value in ((_TCP_DELACK_MAX_US, DELAYED_ACK_US), (_TCP_RTO_MIN_US, RESEND_AFTER_US)):
            try:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            except OSError as error:
                # Kernels before 6.17 do not know both; health can do without, by the silence limit and by holes.
                if error.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
                    raise


class TcpHandshake:
    """A socket on its way to becoming a connection."""

    def __init__(self, device: TcpDevice, connection: TcpConnection, machine: Dialler | Listener) -> None:
        self._device = device
        self._connection = connection
        self._machine = machine
        self._loop = device.loop
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._dialled = isinstance(machine, Dialler)
        #: The address at the other end.
        self._host = "?"
        self._ended = False
        connection.on_abort = self.abort

    def connect(self, sock: socket.socket, local: tuple[str, int], remote: tuple[str, int]) -> None:
        """Begin to dial."""
        self._host = remote[0]
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

    def accepted(self, sock: socket.socket, host: str) -> None:
        """Ask a stranger who it is."""
        self._host = host
        self._hold(sock)
        says = f"no proof in {HANDSHAKE_TIMEOUT_S:g} s"
        self._timer = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self.turn_away, SLOW, says)
        self._loop.add_reader(sock.fileno(), self._readable)

    def turn_away(self, reason: str, says: str) -> None:
        """Whoever connected is not let in."""
        if not self._ended:
            self._device.turned_away(reason, self._host, says)
            self.abort()

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
        self._device.waiting.gone(self)
        self._device.forget(self)
        return sock

    def _fail(self, loss: Loss, detail: str) -> None:
        if self._ended:
            return
        self.abort()
        self._connection.is_open = False
        if self._dialled:
            assert self._device.receiver is not None
            self._device.receiver.lost(self._connection, loss, detail)

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
                self._left(loss_of(error), str(error))
                return
            if not data:
                self._left(Loss.RESET, "ended during the handshake")
                return
            self._hear(data)

    def _left(self, loss: Loss, detail: str) -> None:
        if not self._dialled:
            self._device.turned_away(LEFT, self._host, detail)
        self._fail(loss, detail)

    def _hear(self, data: bytes) -> None:
        try:
            answer = self._machine.receive_data(data)
        except HandshakeRefused as refused:
            if not refused.by_peer:
                self._device.turned_away(refused.reason, self._host, refused.sentence)
            self._say(refused.farewell)
            self._fail(Loss.NOT_ADMITTED, str(refused))
            return
        self._say(answer)
        if self._ended:
            return
        if self._machine.done:
            self._admit()
        elif isinstance(self._machine, Listener) and self._machine.greeted:
            self._device.waiting.greeted(self)

    def _admit(self) -> None:
        connection, peer = self._connection, self._machine.peer
        sock = self._let_go()
        assert sock is not None
        connection.peer, connection.remote_nic = peer.rank, peer.nic
        connection.peer_incarnation = peer.incarnation
        connection.purpose = WirePurpose(peer.purpose)
        self._device.remember(connection)
        connection.open(sock, self._machine.leftover, self._device.forget)
