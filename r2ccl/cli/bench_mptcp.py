"""Plain sockets with the kernel's Multipath TCP, as a baseline for bandwidth: sendrecv and a ring of all_reduce.

This is no library to compare with but what the kernel alone can do: no failure is detected beyond what MPTCP does, no
call is checked, nothing is pipelined within a step of the ring. On loopback there is one subflow per connection unless
the system's path manager has endpoints (``ip mptcp endpoint``). A connection that fell back to TCP is refused: it would
not be what the column says.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from r2ccl.cli.bench_collectives import Shape
from r2ccl.cli.bench_data import Array, Buffers
from r2ccl.cli.bench_turns import Control, Hello, PeerOptions, Unsupported, serve

#: Linux's numbers, which Python does not name.
IPPROTO_MPTCP: Final = 262
SOL_MPTCP: Final = 284
MPTCP_INFO: Final = 1
#: Where ``mptcpi_flags`` lie, and their bit for a fallback.
_INFO_BYTES: Final = 12
_FLAGS_AT: Final = 8
_FALLBACK: Final = 1
_TOKEN_BYTES: Final = 16
_MEET_TIMEOUT_S: Final = 30.0

UFUNCS: Final = MappingProxyType({"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum})


class Ring:
    """One rank: a connection to the next, one from the previous."""

    def __init__(self, rank: int, ranks: int, to_next: socket.socket, from_previous: socket.socket) -> None:
        self.rank, self.ranks = rank, ranks
        self._to_next, self._from_previous = to_next, from_previous
        for one in (to_next, from_previous):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)

    def barrier(self) -> None:
        """A byte goes round twice: after the first round somebody knows that all are there, after the second all."""
        for _ in range(2):
            if self.rank == 0:
                self._exchange(b"b", bytearray(0))
                self._exchange(b"", bytearray(1))
            else:
                self._exchange(b"", bytearray(1))
                self._exchange(b"b", bytearray(0))

    def prepare(self, shape: Shape, buffers: Buffers) -> Callable[[], Any]:
        """See bench_turns.Library."""
        x, out = buffers.x, buffers.out
        assert x is not None
        assert out is not None
        if shape.collective == "sendrecv":
            return lambda: self._exchange(_bytes(x), _bytes(out))
        if shape.collective != "all_reduce":
            raise Unsupported(f"there is no {shape.collective} here, only all_reduce and sendrecv")
        if shape.op not in UFUNCS:
            raise Unsupported(f"there is no {shape.op} here, only {', '.join(UFUNCS)}")
        scratch = np.empty(-(-x.size // self.ranks), x.dtype)
        return lambda: self._all_reduce(x, UFUNCS[shape.op], scratch)

    def _all_reduce(self, x: Array, ufunc: np.ufunc, scratch: Array) -> None:
        segments = np.array_split(x, self.ranks)
        for step in range(self.ranks - 1):
            sent = segments[(self.rank - step) % self.ranks]
            target = segments[(self.rank - step - 1) % self.ranks]
            self._exchange(_bytes(sent), _bytes(scratch[: target.size]))
            ufunc(target, scratch[: target.size], out=target)
        for step in range(self.ranks - 1):
            sent = segments[(self.rank + 1 - step) % self.ranks]
            self._exchange(_bytes(sent), _bytes(segments[(self.rank - step) % self.ranks]))

    def _exchange(self, to_send: Any, to_receive: Any) -> None:
        """Send to the next and receive from the previous, both at once, or two ranks would wait for each other."""
        unsent, missing = memoryview(to_send), memoryview(to_receive)
        while unsent or missing:
            writers = [self._to_next] if unsent else []
            readers = [self._from_previous] if missing else []
            readable, writable, _ = select.select(readers, writers, [])
            if writable:
                unsent = unsent[self._to_next.send(unsent) :]
            if readable:
                received = self._from_previous.recv_into(missing)
                if received == 0:
                    raise ConnectionResetError("the previous rank is gone")
                missing = missing[received:]


def _bytes(array: Array) -> memoryview:
    return array.view(np.uint8).data


def is_available() -> bool:
    """Whether the kernel makes such sockets."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
    except OSError:
        return False
    return True


def fell_back(connection: socket.socket) -> bool:
    """Whether this is plain TCP after all; a kernel that does not say is taken to say so."""
    try:
        told = connection.getsockopt(SOL_MPTCP, MPTCP_INFO, 256)
    except OSError:
        return True
    return len(told) < _INFO_BYTES or bool(int.from_bytes(told[_FLAGS_AT:_INFO_BYTES], sys.byteorder) & _FALLBACK)


def listen() -> socket.socket:
    """On loopback, at a port of the system's choice."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


def meet(listener: socket.socket, next_port: int, token: bytes) -> tuple[socket.socket, socket.socket]:
    """Dial the next, and accept the previous: whoever knows the token."""
    to_next = socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)
    to_next.connect(("127.0.0.1", next_port))
    to_next.sendall(token)
    listener.settimeout(_MEET_TIMEOUT_S)
    while True:
        from_previous, _ = listener.accept()
        from_previous.settimeout(_MEET_TIMEOUT_S)
        if secrets.compare_digest(from_previous.recv(_TOKEN_BYTES, socket.MSG_WAITALL), token):
            return to_next, from_previous
        from_previous.close()


def main(argument: str) -> None:
    """One rank from begin to end."""
    options = PeerOptions.parse(argument)
    assert options.rank is not None
    with Control(options.control) as control:
        if not is_available():
            control.refuse(options.rank, "this kernel makes no MPTCP sockets (Linux 5.6 or later, net.mptcp.enabled=1)")
            return
        with listen() as listener:
            hello = Hello(options.rank, os.getpid(), "plain sockets", listener.getsockname()[1])
            *everybody, last = control.introduce(hello)
            next_port = everybody[(options.rank + 1) % options.ranks]["port"]
            to_next, from_previous = meet(listener, next_port, bytes.fromhex(last["token"]))
        with to_next, from_previous:
            ring = Ring(options.rank, options.ranks, to_next, from_previous)
            ring.barrier()
            if fell_back(to_next):
                raise SystemExit("the connection fell back to TCP")
            serve(ring, control)
