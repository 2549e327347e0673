"""A Unix socket on its way to becoming a connection through shared memory.

The socket is abstract, so it has no file either, and is found only from within the same network namespace; that it can
be connected to at all shows that both ends run on one kernel. Whoever is at the other end must have our user id, by the
kernel's word, and then the same handshake follows as over TCP. Only when that is done the memory is passed:

    dialler                                     listener
    Hello                           ->
                                    <-          Challenge
    Proof                           ->
                                    <-          Welcome
    offer, with memory and bell     ->          checks and maps the memory
                                    <-          "accepted", with its bell

Every message is one packet. Descriptors that come with a packet of the handshake are dropped by the kernel, because
nobody asks for them there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
from collections.abc import Callable
from typing import Protocol

from r2ccl.protocol.handshake import Dialler, HandshakeRefused, Listener
from r2ccl.protocol.wire import BadFrame
from r2ccl.topology import Endpoint
from r2ccl.transport.interface import Answer, Loss, Purpose, Receiver
from r2ccl.transport.shared_connection import Poller, SharedConnection
from r2ccl.transport.shared_ring import RingReader, RingWriter
from r2ccl.transport.shared_segment import (
    OFFER_BYTES,
    RING_BYTES_LEAST,
    TOKEN_BYTES,
    BadSegment,
    Segment,
    attach,
    create,
)
from r2ccl.transport.sockets import OUR_SHORTAGES, peer_of

#: A stranger must prove itself within this time.
HANDSHAKE_TIMEOUT_S = 5.0
_PACKET_BYTES = 4096
_ACCEPTED = b"accepted"


class Host(Poller, Protocol):
    """What a handshake needs of its device."""

    #: The eventfd by which peers wake us.
    bell: int
    #: Of each direction of bulk connections that we dial.
    bulk_ring_bytes: int

    @property
    def receiver(self) -> Receiver: ...

    def remember(self, user: Handshake | SharedConnection) -> None: ...

    def forget(self, user: Handshake | SharedConnection) -> None: ...

    def half_open(self, change: int) -> None: ...

    def turned_away(self, reason: str, says: str) -> None: ...


def address(endpoint: Endpoint) -> bytes:
    """Of an abstract socket."""
    return b"\0" + endpoint.host.encode()


def new_socket() -> socket.socket:
    """Raises ``OSError``."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    return sock


def loss_of(error: OSError) -> Loss:
    """What an error of a Unix socket means."""
    if error.errno == errno.ECONNREFUSED:
        return Loss.REFUSED
    return Loss.RESET if error.errno in (errno.ECONNRESET, errno.EPIPE) else Loss.UNREACHABLE


def knock(endpoint: Endpoint) -> Answer:
    """Does anybody listen there? The kernel says so at once, and whoever listens finds a stranger who has gone."""
    try:
        with new_socket() as sock:
            sock.connect(address(endpoint))
    except BlockingIOError:
        return Answer.ANSWERED  # so many connect that we would have to wait
    except OSError as error:
        if error.errno in OUR_SHORTAGES:
            return Answer.UNTRIED
        return Answer.REFUSED if error.errno == errno.ECONNREFUSED else Answer.SILENT
    return Answer.ANSWERED


class Handshake:
    """One end of it."""

    def __init__(
        self,
        host: Host,
        loop: asyncio.AbstractEventLoop,
        connection: SharedConnection,
        machine: Dialler | Listener,
    ) -> None:
        self._host = host
        self._loop = loop
        self._connection = connection
        self._machine = machine
        self._dialled = isinstance(machine, Dialler)
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: The memory that this end, the dialler, has offered.
        self._offered: Segment | None = None
        self._ended = False
        connection.on_abort = self.abort

    def connect(self, endpoint: Endpoint) -> None:
        """Begin to dial."""
        assert isinstance(self._machine, Dialler)
        try:
            self._hold(new_socket())
            assert self._sock is not None
            self._sock.connect(address(endpoint))
        except OSError as error:  # also one that would have to wait: so many connect there
            self._fail_soon(loss_of(error), str(error))
            return
        self._begin()
        self._say(self._machine.start())

    def accepted(self, sock: socket.socket) -> None:
        """Ask a stranger who it is."""
        self._host.half_open(+1)
        self._hold(sock)
        self._begin()

    def _begin(self) -> None:
        assert self._sock is not None
        if peer_of(self._sock)[1] != os.geteuid():
            self._fail_soon(Loss.NOT_ADMITTED, "a process of another user is at the other end")
            return
        self._timer = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self._fail, Loss.UNREACHABLE, "no answer in time")
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def abort(self) -> None:
        """Close the socket without a word to the receiver."""
        if not self._ended:
            sock = self._let_go()
            if sock is not None:
                sock.close()

    def close_in_child(self) -> None:
        """After a fork, in the child."""
        self._offered = None
        if self._sock is not None:
            self._sock.close()

    def _hold(self, sock: socket.socket) -> None:
        self._sock = sock
        self._host.remember(self)

    def _let_go(self) -> socket.socket | None:
        self._ended = True
        self._connection.on_abort = None
        sock, self._sock = self._sock, None
        self._offered = None
        if self._timer is not None:
            self._timer.cancel()
        if sock is None:
            return None
        self._loop.remove_reader(sock.fileno())
        if not self._dialled:
            self._host.half_open(-1)
        self._host.forget(self)
        return sock

    def _fail_soon(self, loss: Loss, detail: str) -> None:
        """``dial`` never reports before it has returned."""
        self._loop.call_soon(self._fail, loss, detail)

    def _fail(self, loss: Loss, detail: str) -> None:
        if self._ended:
            return
        self.abort()
        if self._dialled:
            self._host.receiver.lost(self._connection, loss, detail)

    def _say(self, packet: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """A few packets on a fresh socket always fit its buffer."""
        if self._sock is None or not packet:
            return
        try:
            socket.send_fds(self._sock, [packet], descriptors)
        except OSError as error:
            self._fail_soon(loss_of(error), str(error))

    def _readable(self) -> None:
        while not self._ended:
            assert self._sock is not None
            descriptors: list[int] = []
            try:
                if self._machine.done:
                    packet, descriptors, _, _ = socket.recv_fds(self._sock, _PACKET_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
                else:
                    packet = self._sock.recv(_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._fail(loss_of(error), str(error))
                return
            if packet:
                self._hear(packet, descriptors)
            else:
                _close(descriptors)
                self._fail(Loss.RESET, "ended during the handshake")

    def _hear(self, packet: bytes, descriptors: list[int]) -> None:
        if not self._machine.done:
            self._shake(packet)
            return
        try:
            if self._dialled:
                self._accepted(packet, descriptors)
            else:
                self._accept(packet, descriptors)
        except (BadSegment, BadFrame, OSError) as bad:
            self._fail(Loss.UNREACHABLE, f"no shared memory: {bad}")
        finally:
            _close(descriptors)

    def _shake(self, packet: bytes) -> None:
        try:
            answer = self._machine.receive_data(packet)
        except HandshakeRefused as refused:
            if not refused.by_peer:
                self._host.turned_away(refused.reason, refused.sentence)
            self._say(refused.farewell)
            self._fail(Loss.NOT_ADMITTED, str(refused))
            return
        self._say(answer)
        if self._machine.done and self._dialled and not self._ended:
            self._offer()

    def _offer(self) -> None:
        try:
            is_bulk = Purpose(self._machine.peer.purpose) is Purpose.BULK
            each = self._host.bulk_ring_bytes if is_bulk else RING_BYTES_LEAST
            segment, memory, words = create(each, secrets.token_bytes(TOKEN_BYTES))
        except OSError as error:
            self._fail(Loss.UNREACHABLE, f"no shared memory: {error}")
            return
        self._offered = segment
        self._say(words, (memory, self._host.bell))
        os.close(memory)

    def _accept(self, packet: bytes, descriptors: list[int]) -> None:
        if len(descriptors) != 2 or len(packet) != OFFER_BYTES:
            raise BadSegment("an offer without memory")
        memory, bell = descriptors
        segment = attach(memory, packet)
        descriptors.remove(bell)
        self._say(_ACCEPTED, (self._host.bell,))
        self._open(RingReader(segment.first, bell), RingWriter(segment.second, bell), bell)

    def _accepted(self, packet: bytes, descriptors: list[int]) -> None:
        segment = self._offered
        if segment is None or packet != _ACCEPTED or len(descriptors) != 1:
            raise BadSegment("an offer that was not accepted")
        bell = descriptors.pop()
        self._open(RingReader(segment.second, bell), RingWriter(segment.first, bell), bell)

    def _open(self, reader: RingReader, writer: RingWriter, bell: int) -> None:
        connection, peer = self._connection, self._machine.peer
        sock = self._let_go()
        assert sock is not None
        connection.peer, connection.remote_nic = peer.rank, peer.nic
        connection.peer_incarnation = peer.incarnation
        connection.purpose = Purpose(peer.purpose)
        self._host.remember(connection)
        connection.open(sock, reader, writer, bell, self._host)


class SharedProbe:
    """See :class:`~r2ccl.transport.interface.Probe`. The answer is known at once, and told in the next turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint, heard: Callable[[Answer], None]) -> None:
        self._telling: asyncio.Handle | None = loop.call_soon(heard, knock(endpoint))

    def abort(self) -> None:
        """See :class:`~r2ccl.transport.interface.Probe`."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()
