"""Strangers at the ports of a running job: a process that opens connections as fast as it can, and people who look in.

They come from addresses of their own in 127/8, or from those of the ranks.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

Address = tuple[str, int]

#: Connects as fast as it can, keeps the latest so many connections open, and says now and then how many it made.
_FLOOD = """
import collections, socket, sys
sources, kept_max, places = sys.argv[1].split(","), int(sys.argv[2]), [p.split(":") for p in sys.argv[3:]]
kept, made = collections.deque(), 0
while True:
    for host, port in places:
        sock = socket.socket()
        sock.settimeout(1)
        try:
            sock.bind((sources[made % len(sources)], 0))
            sock.connect((host, int(port)))
        except OSError:
            sock.close()
            continue
        kept.append(sock)
        made += 1
        if len(kept) > kept_max:
            kept.popleft().close()
        if made % 100 == 0:
            print(made, flush=True)
"""


class Flood:
    """A process that floods."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.made = 0

    def wait_for(self, count: int) -> None:
        """Until it has made so many connections in all."""
        assert self._process.stdout is not None
        while self.made < count:
            self.made = int(self._process.stdout.readline())


@contextlib.contextmanager
def flood(places: Sequence[Address], sources: Sequence[str], kept: int) -> Iterator[Flood]:
    """Half-open connections to these places, until the block ends."""
    argv = [sys.executable, "-c", _FLOOD, ",".join(sources), str(kept), *(f"{host}:{port}" for host, port in places)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Flood(process)
        finally:
            process.kill()


def connect(place: Address, source: str) -> socket.socket:
    return socket.create_connection(place, timeout=20.0, source_address=(source, 0))


def scan(place: Address, source: str, reset: bool) -> None:
    """As a port scanner: connect, and close or reset at once."""
    with connect(place, source) as sock:
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def say(place: Address, source: str, speech: bytes) -> bytes:
    """Say something, and hear until the other side hangs up."""
    heard = b""
    with connect(place, source) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(speech)
        while piece := sock.recv(4096):
            heard += piece
    return heard


def drip(place: Address, source: str, period_s: float, limit_s: float) -> float:
    """A byte now and then, each of which might begin a message, until the other side hangs up; how long that took."""
    began_s = time.monotonic()
    with connect(place, source) as sock, contextlib.suppress(ConnectionError):
        sock.settimeout(period_s)
        for byte in b"\x02\x00" + bytes(600):
            sock.sendall(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                if not sock.recv(1):
                    break
            if time.monotonic() - began_s > limit_s:
                raise AssertionError(f"still there after {limit_s:g} s")
    return time.monotonic() - began_s
