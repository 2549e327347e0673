"""One host of a ring of plain streams, the measure for what the network gives: TCP, one per rail, or MPTCP over all.

    python -m r2ccl.cli.faults_streams OPTIONS      (JSON, see StreamOptions)

Each host sends to the next as fast as it goes, for ever, and reads from the previous. Its reports are those of the
demo's ranks (see demo_worker), so that the same parent reads them; an "arrival" is what one call read, and there are
neither operations nor events. ``stop`` on standard input ends it, and so does the end of that.

A stream of TCP is bound to its rail and dies with it. MPTCP has one connection, and its kernel moves what that carries
between the rails for which it was given endpoints.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
from dataclasses import asdict, dataclass
from typing import Final

from r2ccl.cli.bench_mptcp import IPPROTO_MPTCP, fell_back
from r2ccl.clock import MonotonicClock

PORT: Final = 29600
SAMPLE_S: Final = 0.05
CONNECT_TIMEOUT_S: Final = 10.0
PIECE_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """One argument, as JSON."""

    report_descriptor: int
    #: Our address and the next host's, on each rail.
    rails: tuple[tuple[str, str], ...]
    multipath: bool

    def as_argument(self) -> str:
        """The inverse of :meth:`parse`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> StreamOptions:
        """From the command line."""
        read = json.loads(argument)
        return cls(read["report_descriptor"], tuple((own, other) for own, other in read["rails"]), read["multipath"])

    @property
    def protocol(self) -> int:
        return IPPROTO_MPTCP if self.multipath else socket.IPPROTO_TCP

    @property
    def dialled(self) -> tuple[tuple[str, str], ...]:
        """MPTCP finds the other rails itself."""
        return self.rails[:1] if self.multipath else self.rails


class Streams:
    """All streams of this host."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._selector = selectors.DefaultSelector()
        self._to_send = memoryview(bytes(PIECE_BYTES))
        self._read_into = memoryview(bytearray(4 * PIECE_BYTES))
        self._arrivals: list[tuple[float, int, int]] = []
        self._connections: list[socket.socket] = []

    def connect(self) -> None:
        """To the next on each rail, and from the previous. Raises :class:`OSError`."""
        # On all addresses: whoever joins a connection of MPTCP comes to another than it began at.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, self._options.protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", PORT))
            listener.listen()
            listener.settimeout(CONNECT_TIMEOUT_S)
            for rail, (own, other) in enumerate(self._options.dialled):
                self._add(self._dial(own, other), selectors.EVENT_WRITE, rail)
            for _ in self._options.dialled:
                connection, _ = listener.accept()
                self._add(connection, selectors.EVENT_READ, self._rail_of(connection))
        if self._options.multipath and fell_back(self._connections[0]):
            raise OSError("the connection fell back to TCP")

    def _dial(self, own: str, other: str) -> socket.socket:
        deadline = MonotonicClock.now() + CONNECT_TIMEOUT_S
        while True:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, self._options.protocol)
            connection.bind((own, 0))
            try:
                connection.connect((other, PORT))
            except ConnectionRefusedError:
                connection.close()
                if MonotonicClock.now() > deadline:
                    raise
                self._selector.select(0.02)
            else:
                return connection

    def _rail_of(self, connection: socket.socket) -> int:
        address = connection.getsockname()[0]
        return next(rail for rail, (own, _) in enumerate(self._options.rails) if own == address)

    def _add(self, connection: socket.socket, event: int, rail: int) -> None:
        connection.setblocking(False)
        self._connections.append(connection)
        self._selector.register(connection, event, rail)

    def run(self) -> None:
        """Until told to stop."""
        self._report({"kind": "ready"})
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        next_sample_s = MonotonicClock.now()
        while True:
            for key, _ in self._selector.select(SAMPLE_S):
                if key.fileobj is sys.stdin:
                    self._sample()
                    self._report({"kind": "done"})
                    return
                assert isinstance(key.fileobj, socket.socket)
                self._move(key.fileobj, key.events, key.data)
            if (now := MonotonicClock.now()) >= next_sample_s:
                next_sample_s = now + SAMPLE_S
                self._sample()

    def _move(self, connection: socket.socket, event: int, rail: int) -> None:
        """A stream that its kernel gave up is over: nobody repairs it."""
        moved = 0
        try:
            if event == selectors.EVENT_WRITE:
                moved = connection.send(self._to_send)
            else:
                moved = connection.recv_into(self._read_into)
                self._arrivals.append((MonotonicClock.now(), rail, moved))
        except BlockingIOError:
            return
        except OSError:
            moved = 0
        if moved == 0:
            self._selector.unregister(connection)
            connection.close()

    def _sample(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        self._report(
            {
                "kind": "sample", "time_s": MonotonicClock.now(), "arrivals": arrivals, "completions": [],
                "wrong_elements": 0, "events": [], "counters": {"total": {"resent_bytes": 0}, "nics": {}},
            }
        )  # fmt: skip

    def _report(self, what: dict[str, object]) -> None:
        line = json.dumps(what).encode() + b"\n"
        while line:
            line = line[os.write(self._options.report_descriptor, line) :]

    def close(self) -> None:
        """All."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.close()
        self._selector.close()


def main() -> None:
    """The program."""
    streams = Streams(StreamOptions.parse(sys.argv[1]))
    try:
        streams.connect()
        streams.run()
    finally:
        streams.close()


if __name__ == "__main__":
    main()
