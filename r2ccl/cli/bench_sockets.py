"""What the kernel alone does with as many bytes: the floor that libraries are compared with, and the wires' limit.

    python -m r2ccl.cli.bench_sockets OPTIONS      (JSON, see SocketOptions)

A rank that takes its turns as a library does, but moves the bytes of an all-reduce without reducing anything, as many
as each rank must send and receive at the least, 2(n-1)/n of the size:

* ``exchange``: to the next rank and from the previous over plain TCP, one operation after the other. It sleeps while it
  waits, as event loops do; who spins instead hears of small messages sooner, and pays for it in processor time.
* ``streams``: the same without a stop between operations, over one connection for each NIC. What the wires carry.
* ``mptcp``: the same over one connection of the kernel's Multipath TCP.
* ``memcpy``: from one array to another by numpy, in all ranks at once.

With a ticker, a thread moves the bytes and the ticker has a loop of its own, as with the progress thread: what is left
of a loop's punctuality where the cores are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from r2ccl.cli.bench_collectives import COLLECTIVES
from r2ccl.cli.bench_mptcp import IPPROTO_MPTCP, fell_back
from r2ccl.cli.bench_turns import Answer, Control, Hello, Turn, tick, timed
from r2ccl.clock import MonotonicClock
from r2ccl.progress import SWITCH_INTERVAL_S

Mode = Literal["exchange", "streams", "mptcp", "memcpy"]
LOOPBACK: Final = "127.0.0.1"
#: Streams write and read through memory that stays in the cache.
PIECE_BYTES: Final = 1 << 20
MEET_TIMEOUT_S: Final = 30.0
_TOKEN_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """One argument, as JSON."""

    control: str
    rank: int
    ranks: int
    mode: Mode
    #: Of each rank, the addresses of its NICs.
    addresses: tuple[tuple[str, ...], ...]

    def as_argument(self) -> str:
        """The inverse of :meth:`parse`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> SocketOptions:
        """From the command line."""
        read = json.loads(argument)
        return cls(**{**read, "addresses": tuple(tuple(nics) for nics in read["addresses"])})

    @property
    def protocol(self) -> int:
        return IPPROTO_MPTCP if self.mode == "mptcp" else socket.IPPROTO_TCP

    @property
    def wires(self) -> int:
        """Connections to the next rank. MPTCP finds the other NICs itself."""
        return len(self.addresses[self.rank]) if self.mode == "streams" else 1


def bus_bytes(turn: Turn, ranks: int) -> int:
    """What each rank must send, and receive, in an all-reduce of this size."""
    size = turn.count * np.dtype(turn.dtype).itemsize
    return max(1, int(size * COLLECTIVES["all_reduce"].bus_factor(ranks)))


def shares(total: int, wires: int) -> list[int]:
    """As even as can be."""
    return [total // wires + (wire < total % wires) for wire in range(wires)]


class Wires:
    """One rank's connections: to the next, from the previous."""

    def __init__(self, to_next: Sequence[socket.socket], from_previous: Sequence[socket.socket]) -> None:
        self.to_next, self.from_previous = list(to_next), list(from_previous)
        for one in (*self.to_next, *self.from_previous):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)

    def exchange(self, total: int, source: memoryview, sink: memoryview) -> None:
        """Send and receive so many bytes, both at once. Memory that is shorter is gone through again and again."""
        unsent = dict(zip(self.to_next, shares(total, len(self.to_next)), strict=True))
        missing = dict(zip(self.from_previous, shares(total, len(self.from_previous)), strict=True))
        writers, readers = [one for one in unsent if unsent[one]], [one for one in missing if missing[one]]
        while writers or readers:
            for one in writers:
                with contextlib.suppress(BlockingIOError):
                    unsent[one] -= one.send(_at(source, unsent[one]))
            for one in readers:
                with contextlib.suppress(BlockingIOError):
                    received = one.recv_into(_at(sink, missing[one]))
                    if received == 0:
                        raise ConnectionResetError("the previous rank is gone")
                    missing[one] -= received
            writers, readers = [one for one in writers if unsent[one]], [one for one in readers if missing[one]]
            if writers or readers:
                select.select(readers, writers, [])

    def barrier(self, ranks: int) -> None:
        """After n-1 rounds each has heard of all."""
        for _ in range(ranks - 1):
            self.exchange(len(self.to_next), memoryview(b"b" * len(self.to_next)), memoryview(bytearray(16)))

    def close(self) -> None:
        """All."""
        for one in (*self.to_next, *self.from_previous):
            one.close()


def _at(memory: memoryview, left: int) -> memoryview:
    """What comes next, when so much is left: the end of the memory is reached when nothing is."""
    start = -left % len(memory)
    return memory[start : start + left]


@contextlib.contextmanager
def listening(options: SocketOptions) -> Iterator[socket.socket]:
    """At a port of the system's choice; on all addresses where NICs have different ones."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, options.protocol) as listener:
        own = options.addresses[options.rank]
        listener.bind((LOOPBACK if own == (LOOPBACK,) else "", 0))
        listener.listen(options.wires)
        yield listener


def meet(options: SocketOptions, listener: socket.socket, port: int, token: bytes) -> Wires:
    """Dial the next on each NIC, and accept the previous: whoever knows the token. Raises :class:`OSError`."""
    own, following = options.addresses[options.rank], options.addresses[(options.rank + 1) % options.ranks]
    to_next = []
    for wire in range(options.wires):
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, options.protocol)
        one.bind((own[wire], 0))
        one.connect((following[wire], port))
        one.sendall(token)
        to_next.append(one)
    from_previous: list[socket.socket] = []
    listener.settimeout(MEET_TIMEOUT_S)
    while len(from_previous) < options.wires:
        one, _ = listener.accept()
        one.settimeout(MEET_TIMEOUT_S)
        if secrets.compare_digest(one.recv(_TOKEN_BYTES, socket.MSG_WAITALL), token):
            from_previous.append(one)
        else:
            one.close()
    return Wires(to_next, from_previous)


def play(options: SocketOptions, wires: Wires, turn: Turn) -> Answer:
    """One turn. Nothing is reduced, so nothing is checked."""
    if turn.collective != "all_reduce":
        return Answer(error=f"its bytes are those of all_reduce, not of {turn.collective}")
    size = bus_bytes(turn, options.ranks)
    if options.mode in ("streams", "mptcp"):
        return _play_stream(options, wires, turn, size)
    # Written to, both: of zeros that nobody wrote all pages are one, which stays in the cache.
    x, out = np.full(size, 1, np.uint8), np.full(size, 2, np.uint8)
    source, sink = x.data, out.data

    def operation() -> None:
        if options.mode == "memcpy":
            np.copyto(out, x)
        else:
            wires.exchange(size, source, sink)

    for _ in range(turn.warmup):
        operation()
    wires.barrier(options.ranks)
    if turn.tick_s:
        return asyncio.run(_beside_ticker(operation, turn))
    return timed(operation, turn.iterations)


async def _beside_ticker(operation: Callable[[], None], turn: Turn) -> Answer:
    """On a thread of its own, that the loop has nothing to do but to tick."""
    gaps_s: list[float] = []
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        async with asyncio.TaskGroup() as group:
            ticker = group.create_task(tick(turn.tick_s, gaps_s))
            answer = await asyncio.to_thread(timed, operation, turn.iterations)
            ticker.cancel()
    finally:
        sys.setswitchinterval(interval_s)
    return replace(answer, gaps_s=gaps_s)


def _play_stream(options: SocketOptions, wires: Wires, turn: Turn, size: int) -> Answer:
    source, sink = memoryview(bytes(PIECE_BYTES)), memoryview(bytearray(PIECE_BYTES))
    if turn.warmup:
        wires.exchange(turn.warmup * size, source, sink)
    wires.barrier(options.ranks)
    started_s, cpu_before_s = MonotonicClock.now(), time.process_time()
    wires.exchange(turn.iterations * size, source, sink)
    each_s = (MonotonicClock.now() - started_s) / turn.iterations
    cpu_s = time.process_time() - cpu_before_s
    starts_s = [started_s + number * each_s for number in range(turn.iterations)]
    return Answer(starts_s, [each_s] * turn.iterations, cpu_s=cpu_s)


def main(argument: str) -> None:
    """One rank from begin to end."""
    options = SocketOptions.parse(argument)
    with Control(options.control) as control, contextlib.ExitStack() as ending:
        try:
            listener = ending.enter_context(listening(options))
        except OSError as refused:
            control.refuse(options.rank, f"no socket of {options.mode} ({refused})")
            return
        hello = Hello(options.rank, os.getpid(), options.mode, listener.getsockname()[1])
        everybody: list[dict[str, Any]] = control.introduce(hello)
        port = everybody[(options.rank + 1) % options.ranks]["port"]
        wires = meet(options, listener, port, bytes.fromhex(everybody[-1]["token"]))
        ending.callback(wires.close)
        wires.barrier(options.ranks)
        if options.mode == "mptcp" and any(fell_back(one) for one in wires.to_next):
            raise SystemExit("the connection fell back to TCP")
        for turn in control.turns():
            control.answer(play(options, wires, turn))


if __name__ == "__main__":
    main(sys.argv[1])
