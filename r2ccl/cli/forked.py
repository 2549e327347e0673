"""The launcher's side of a nursery: ranks that are forked and not started, and their ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence

import msgpack  # type: ignore[import-untyped, unused-ignore]

from r2ccl.cli import nursery

_GONE = "the process that forks the ranks is gone"


class Forked:
    """A rank, as far as it is known here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        """Its exit code, negative for a signal's number."""
        return await self.ended


class Nursery:
    """Started once, and closed when all is over."""

    def __init__(self, tied: Sequence[str], environ: Mapping[str, str]) -> None:
        """``tied``: what a command begins with so that it ends with us."""
        self._sock, theirs = socket.socketpair()
        command = [*tied, sys.executable, "-P", "-m", nursery.__name__, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=dict(environ),
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self._heard = bytearray()
        self._asked: deque[asyncio.Future[Forked]] = deque()
        self._alive: dict[int, Forked] = {}
        self._turn = asyncio.Lock()
        asyncio.get_running_loop().add_reader(self._sock, self._hear)

    async def fork(self, argv: Sequence[str], environ: Mapping[str, str], out: int, err: int) -> Forked:
        """A rank that runs this script. Raises ``OSError``."""
        async with self._turn:
            born: asyncio.Future[Forked] = asyncio.get_running_loop().create_future()
            self._asked.append(born)
            try:
                nursery.ask(self._sock, list(argv), dict(environ), out, err)
            except OSError:
                self._asked.remove(born)
                raise
            return await born

    def close(self) -> None:
        """All is over."""
        if self._sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
        self._process.wait()

    def _hear(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._gone()
            return
        self._heard += data
        while len(self._heard) >= 4 and len(self._heard) >= (end := 4 + int.from_bytes(self._heard[:4], "little")):
            pid, status = msgpack.unpackb(bytes(self._heard[4:end]))
            del self._heard[:end]
            if status is None:
                self._alive[pid] = Forked(pid)
                self._asked.popleft().set_result(self._alive[pid])
            else:
                self._alive.pop(pid).ended.set_result(os.waitstatus_to_exitcode(status))

    def _gone(self) -> None:
        """With it the kernel ends all that it forked."""
        asyncio.get_running_loop().remove_reader(self._sock)
        for born in self._asked:
            born.set_exception(OSError(_GONE))
        self._asked.clear()
        for forked in self._alive.values():
            forked.ended.set_result(-signal.SIGKILL)
        self._alive.clear()
