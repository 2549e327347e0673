"""What many ranks say, line by line, on two streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import BinaryIO

#: A line without an end is printed in pieces of this size.
_LINE_BYTES_MAX = 64 << 10


class Console:
    """Whole lines of many ranks on two streams."""

    def __init__(self, out: BinaryIO, err: BinaryIO, title: str) -> None:
        self.out = out
        self.err = err
        self._title = title

    def say(self, sentence: str) -> None:
        # Who cannot hear us is told by the exit code.
        with contextlib.suppress(OSError):
            self.write(self.err, f"{self._title}: {sentence}\n".encode())

    @staticmethod
    def write(stream: BinaryIO, line: bytes) -> None:
        stream.write(line)
        stream.flush()


class Voice(asyncio.Protocol):
    """One stream of one rank, line by line.

    A pipe of our own and not asyncio's: that one may count a process as running until its pipes are closed, which
    children that it left behind hold open.
    """

    def __init__(self, rank: int, stream: BinaryIO, deaf: Callable[[], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._prefix = f"[{rank}] ".encode()
        self._stream = stream
        self._deaf = deaf
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None

    async def open(self) -> int:
        """The end of the pipe that the rank writes to; the caller closes it."""
        ear, mouth = os.pipe()
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self, os.fdopen(ear, "rb", 0))
        return mouth

    def close(self) -> None:
        """Stop listening; ``ended`` follows."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) >= _LINE_BYTES_MAX:
            lines.append(self._rest)
            self._rest = b""
        self._write(lines)

    def connection_lost(self, exc: Exception | None) -> None:
        self._write([self._rest] if self._rest else [])
        self.ended.set_result(None)

    def _write(self, lines: list[bytes]) -> None:
        try:
            Console.write(self._stream, b"".join(self._prefix + line + b"\n" for line in lines))
        except OSError:
            self._deaf()
