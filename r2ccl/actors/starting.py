"""Sends what an operation may send at once, so much in each turn of the loop.

An all-reduce of 1 GiB between two ranks may send 2,048 chunks when it starts. To make and queue all of them took 8 to
10 ms of processor time in one turn, in which a server's other work waits. Nobody needs them so soon: a lane holds some
dozens. So what is more than a slice waits for the next turn, and the one after, until all are queued or the operation
is over. Others may start meanwhile, and what arrives releases later steps' sends: no order among chunks is promised,
and lanes take the oldest operation's first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

from r2ccl.actors.operation import Operation
from r2ccl.actors.shared import Shared
from r2ccl.protocol.collective import Piece

#: Chunks in one turn: about a millisecond, and more than all lanes of a host with 8 NICs hold.
SLICE_CHUNKS: Final = 256


class Host(Protocol):
    """A coordinator, as far as it starts operations."""

    shared: Shared
    running: dict[int, Operation]


class Starting:
    """One communicator's. What waits is bounded by the operations that run."""

    def __init__(self, host: Host, send: Callable[[Operation, Piece], None]) -> None:
        self._host = host
        self._send = send
        #: Oldest first; each has chunks left, or had when it was put here.
        self._unsent: deque[tuple[Operation, Iterator[Piece]]] = deque()
        self._is_coming = False

    def begin(self, operation: Operation, pieces: Sequence[Piece]) -> None:
        """The operation runs from now on, and these may be sent."""
        for piece in pieces[:SLICE_CHUNKS]:
            self._send(operation, piece)
        if len(pieces) > SLICE_CHUNKS:
            self._unsent.append((operation, islice(iter(pieces), SLICE_CHUNKS, None)))
            self._come_again()

    def _come_again(self) -> None:
        if not self._is_coming:
            self._is_coming = True
            self._host.shared.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """One more slice, of the oldest operation that still runs."""
        self._is_coming = False
        while self._unsent:
            operation, pieces = self._unsent[0]
            sent = 0
            if self._host.running.get(operation.number) is operation:
                for piece in islice(pieces, SLICE_CHUNKS):
                    self._send(operation, piece)
                    sent += 1
            if sent < SLICE_CHUNKS:
                self._unsent.popleft()
            if sent:
                break
        if self._unsent:
            self._come_again()
