"""Faults within a running job: finds the control ports of its ranks on this machine, and asks them.

A fault lives in the rank and ends with our connection, so no watchdog is needed: the rank is it. Ranks are found by
the names of their sockets and proven by the handshake; sockets of processes that are gone are passed over.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2ccl._version import __version__
from r2ccl.errors import AuthenticationError, ConfigurationError, UsageError
from r2ccl.fault_control import directories, make_private, reachable, remove_dead, socket_name
from r2ccl.protocol import fault_control as protocol
from r2ccl.protocol.handshake import NONCE_BYTES, Dialler, HandshakeRefused, Identity, Purpose, Target
from r2ccl.protocol.handshake_messages import printable
from r2ccl.transport.sockets import peer_of

#: A rank whose loop is kept busy by its program answers late.
ANSWER_S = 30.0
_TARGET = re.compile(r"job:(?P<job>.+?)(?:/(?P<rank>\d+)(?:/(?:nic)?(?P<nic>\d+))?)?")
_SOCKET = re.compile(r".*\.rank(?P<rank>\d+)\.(?P<pid>\d+)\.sock")


@dataclass(frozen=True, slots=True)
class JobTarget:
    """``job:NAME[/RANK[/NIC]]``; None: all that are on this machine."""

    job: str
    rank: int | None
    nic: int | None

    @classmethod
    def parse(cls, text: str) -> JobTarget:
        """Raises :class:`UsageError`."""
        found = _TARGET.fullmatch(text)
        if not found:
            raise UsageError(f"{text!r} is no job; write job:NAME, job:NAME/RANK or job:NAME/RANK/NIC")
        rank, nic = found["rank"], found["nic"]
        return cls(found["job"], None if rank is None else int(rank), None if nic is None else int(nic))


class RankLink:
    """A connection to one rank's control port, both ends proven. Raises :class:`AuthenticationError` or ``OSError``."""

    def __init__(self, path: Path, job: str, rank: int, secret: bytes) -> None:
        self.rank = rank
        self._buffer = bytearray()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._sock.settimeout(ANSWER_S)
            with reachable(path) as address:
                self._sock.connect(address)
            self.pid, _ = peer_of(self._sock)
            self._prove(job, secret)
        except BaseException:
            self._sock.close()
            raise

    def _prove(self, job: str, secret: bytes) -> None:
        identity = Identity(job, secret, self.rank, secrets.randbits(64), __version__)
        machine = Dialler(identity, 0, Target(self.rank, 0), Purpose.FAULTS, secrets.token_bytes(NONCE_BYTES))
        self._sock.sendall(machine.start())
        while not machine.done:
            try:
                if answer := machine.receive_data(self._receive()):
                    self._sock.sendall(answer)
            except HandshakeRefused as refused:
                if refused.farewell:
                    self._sock.sendall(refused.farewell)
                raise
        self._buffer += machine.leftover

    def fileno(self) -> int:
        """Readable when the rank is gone, or has an answer."""
        return self._sock.fileno()

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises :class:`UsageError` if it is a no, ``OSError`` if the rank is gone."""
        self._sock.sendall(protocol.pack(message))
        while (answer := protocol.cut(self._buffer)) is None:
            self._buffer += self._receive()
        if answer.get("ok") is not True:
            raise UsageError(f"rank {self.rank} refuses: {printable(str(answer.get('error')))}")
        return answer

    def _receive(self) -> bytes:
        data = self._sock.recv(1 << 16)
        if not data:
            raise ConnectionResetError(f"rank {self.rank} closed the connection")
        return data

    def close(self) -> None:
        """The rank undoes what was asked for by it."""
        self._sock.close()


def find(target: JobTarget, secret: bytes, environ: Mapping[str, str]) -> list[RankLink]:
    """Connections to the ranks that are meant. Raises :class:`UsageError` if there are none, or two of a number."""
    links: list[RankLink] = []
    problems: list[str] = []
    refused: list[HandshakeRefused] = []
    for path in _sockets(target, environ):
        named = _SOCKET.fullmatch(path.name)
        if named is None:
            continue
        try:
            links.append(RankLink(path, target.job, int(named["rank"]), secret))
        except HandshakeRefused as refusal:
            refused.append(refusal)
        except (FileNotFoundError, ConnectionRefusedError):
            continue  # its process is gone
        except OSError as error:
            problems.append(f"rank {named['rank']} (process {named['pid']}): {error}")
    if links:
        return _one_of_each(links, target)
    if refused:
        raise AuthenticationError(f"{refused[0]}; fault-inject takes the secret from R2CCL_SECRET or R2CCL_SECRET_FILE")
    if problems:
        raise UsageError("; ".join(problems))
    raise UsageError(_nobody(target, environ))


def _one_of_each(links: list[RankLink], target: JobTarget) -> list[RankLink]:
    if len({link.rank for link in links}) == len(links):
        return sorted(links, key=lambda link: link.rank)
    for link in links:
        link.close()
    raise UsageError(f"two jobs on this machine are called {target.job!r}; give them names (R2CCL_JOB)")


def _sockets(target: JobTarget, environ: Mapping[str, str]) -> list[Path]:
    rank = "*" if target.rank is None else target.rank
    found = []
    for directory in directories(environ):
        if directory.is_dir():
            make_private(directory)
            remove_dead(directory)
            found += sorted(directory.glob(socket_name(target.job, rank, "*")))
    return found


def _nobody(target: JobTarget, environ: Mapping[str, str]) -> str:
    others = set()
    for directory in directories(environ):
        others |= {path.name.partition(".rank")[0] for path in directory.glob("*.sock")}
    which = f"job {target.job!r}" if target.rank is None else f"rank {target.rank} of job {target.job!r}"
    seen = f"; control ports of others here: {', '.join(sorted(others))}" if others else ""
    return (
        f"no control port of {which} on this machine: start its ranks with R2CCL_FAULT_INJECTION=1, as this user, and "
        f"run this on the rank's host with the same R2CCL_JOB{seen}"
    )


def check(target: JobTarget, links: Sequence[RankLink]) -> None:
    """A NIC is of one rank. Raises :class:`ConfigurationError`."""
    if target.nic is not None and len(links) != 1:
        raise ConfigurationError("a NIC is named with its rank: job:NAME/RANK/NIC")
