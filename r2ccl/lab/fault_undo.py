"""What a fault does to the machine, as data; how it is done and undone; and the watchdog that undoes it for the dead.

An operation is netlink messages, a script for nft, or a signal; each shows the command that would do the same. Undoing
is safe to repeat, and safe where the doing never happened: what is there already, or gone already, is forgiven. So the
whole undo of a fault is written down *before* anything is done, and whoever is left alive carries it out:

    the command ends, is interrupted, or fails half-way      it undoes, then says "done" to the watchdog
    the command is killed, or hangs beyond the deadline      the watchdog undoes: its pipe ended, or time is up
    the watchdog is killed                                   the command sees its pipe end, and undoes
    the emulated host goes, with its lab                     nothing is left to undo: both end
    both are killed at once                                  the record on disk is left, for ``fault-inject undo``

    python -I fault_undo.py        the watchdog; run by path, with the standard library only, to start in no time

It reads one line of JSON, the :class:`Record`, and then words: ``done`` (nothing to do), ``stay`` (the end of the
command is no reason to undo, the deadline still is). It has a session of its own and ignores what a terminal sends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000
#: Netlink: its header, and the flags that all of our requests carry (REQUEST, ACK).
HEADER = struct.Struct("=IHHII")
REQUEST_ACK = 0x5
NLMSG_ERROR = 2
ANSWER_BYTES = 1 << 16
NFT_TIMEOUT_S = 20.0
#: A route may need another one first: so many rounds until all are back.
ROUNDS = 4
NOT_YET = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EINVAL)
_PLAIN_FIELDS = ("identity", "title", "namespace", "network", "deadline", "file")
#: The command undoes on its own first; the watchdog is for when it does not.
GRACE_S = 1.0
#: A fault that stays may be undone by hand, which takes its record away: how often the watchdog looks.
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Netlink:
    """Messages (type, flags, body), each acknowledged. ``forgiven`` errors mean that it is so already."""

    shown: str
    messages: tuple[tuple[int, int, bytes], ...]
    forgiven: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Nft:
    """A script for nft, one transaction."""

    shown: str
    script: str


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal to a process, if it still is the one that started then."""

    shown: str
    pid: int
    started: str
    number: int


Operation = Netlink | Nft | Signal


@dataclass(frozen=True, slots=True)
class Record:
    """All that is needed to undo a fault. ``network``: which boot and namespace it is in, so that no other is touched;
    ``deadline``: of CLOCK_BOOTTIME; ``file``: holds this record until then."""

    identity: str
    title: str
    namespace: str | None
    network: str
    undo: tuple[Operation, ...]
    deadline: float | None
    file: str

    def dump(self) -> str:
        """One line."""
        fields = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        return json.dumps({**fields, "undo": [_dump(operation) for operation in self.undo]})

    @classmethod
    def load(cls, line: str) -> Record:
        """The inverse of :meth:`dump`. Raises ``ValueError``, ``KeyError`` or ``TypeError``."""
        fields = json.loads(line)
        undo = tuple(_load(operation) for operation in fields.pop("undo"))
        return cls(undo=undo, **fields)


def _dump(operation: Operation) -> dict[str, Any]:
    match operation:
        case Netlink():
            messages = [(kind, flags, body.hex()) for kind, flags, body in operation.messages]
            return {"netlink": messages, "forgiven": operation.forgiven, "shown": operation.shown}
        case Nft():
            return {"nft": operation.script, "shown": operation.shown}
        case Signal():
            return {"signal": (operation.pid, operation.started, operation.number), "shown": operation.shown}


def _load(fields: dict[str, Any]) -> Operation:
    shown = str(fields["shown"])
    if "netlink" in fields:
        messages = tuple((int(kind), int(flags), bytes.fromhex(body)) for kind, flags, body in fields["netlink"])
        return Netlink(shown, messages, tuple(map(int, fields["forgiven"])))
    if "nft" in fields:
        return Nft(shown, str(fields["nft"]))
    pid, started, number = fields["signal"]
    return Signal(shown, int(pid), str(started), int(number))


def now() -> float:
    """Goes on while the machine sleeps, and is the same for all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def this_network() -> str:
    """Of the calling thread: its namespace, in this boot of the machine."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/thread-self/ns/net')}"


def perform(operation: Operation) -> None:
    """Do it, in the network namespace of the calling thread. Raises ``OSError``."""
    match operation:
        case Netlink():
            _talk(operation)
        case Nft():
            _nft(operation)
        case Signal():
            _send(operation)


def undo_all(operations: tuple[Operation, ...]) -> list[str]:
    """All of them in order, whatever becomes of one; returns what went wrong."""
    wrong = []
    for operation in operations:
        try:
            perform(operation)
        except OSError as error:
            wrong.append(f"{operation.shown}: {error.strerror or error}")
    return wrong


def _talk(operation: Netlink) -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        left = list(operation.messages)
        code = 0
        for _ in range(ROUNDS):
            again = []
            for message in left:
                refused = _ask(kernel, message)
                if refused and refused not in operation.forgiven:
                    code = refused
                    again.append(message)
            if not again or (len(again) == len(left) and code not in NOT_YET) or len(operation.messages) == 1:
                left = again
                break
            left = again
    if left:
        raise OSError(code, os.strerror(code))


def _ask(kernel: socket.socket, message: tuple[int, int, bytes]) -> int:
    """Send one message; returns the error code of the answer, 0 for none."""
    kind, flags, body = message
    kernel.send(HEADER.pack(HEADER.size + len(body), kind, flags | REQUEST_ACK, 1, 0) + body)
    while True:
        answer = kernel.recv(ANSWER_BYTES)
        if HEADER.unpack_from(answer)[1] == NLMSG_ERROR:
            return -int(struct.unpack_from("=i", answer, HEADER.size)[0])


def _nft(operation: Nft) -> None:
    command = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if command is None:
        raise OSError(errno.ENOENT, "this fault needs nftables: apt-get install nftables")
    try:
        done = subprocess.run(
            [command, "-f", "-"],
            input=operation.script.encode(), capture_output=True, check=False, timeout=NFT_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise OSError(errno.ETIMEDOUT, "nft does not come to an end") from late
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise OSError(errno.EINVAL, f"nft refused it: {said}")


def started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty if there is none, or it is only waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _send(operation: Signal) -> None:
    """Through a descriptor of the process, so that no other can get its number in between."""
    try:
        process = os.pidfd_open(operation.pid)
    except ProcessLookupError:
        return
    try:
        if started(operation.pid) == operation.started:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, operation.number)
    finally:
        os.close(process)


def enter(namespace: str) -> None:
    """Move the calling thread into a network namespace. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot enter {namespace}: {os.strerror(code)}")
    finally:
        os.close(descriptor)


def carry_out(record: Record) -> list[str]:
    """Undo a recorded fault, in this thread's namespace, and take the record off the disk if all went well."""
    wrong = undo_all(record.undo)
    if not wrong:
        Path(record.file).unlink(missing_ok=True)
    return wrong


def main() -> None:
    """The watchdog: hear the record, say ready, wait, undo if nobody else did."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    record = Record.load(sys.stdin.readline())
    if record.namespace is not None:
        enter(record.namespace)
    print("ready", flush=True)  # noqa: T201
    with _owner_of(record.namespace) as owner:
        why = _wait(record, owner)
    if why is None:
        return
    wrong = carry_out(record)
    outcome = (
        f"NOT all undone: {'; '.join(wrong)}; try: r2ccl fault-inject undo {record.identity}" if wrong else "undone"
    )
    try:
        print(outcome, flush=True)  # noqa: T201
    except BrokenPipeError:
        _silence(1)  # or the interpreter would try again at its end, and complain
    print(f"r2ccl: {record.title}: {why}: {outcome}", file=sys.stderr)  # noqa: T201


def _wait(record: Record, owner: int | None) -> str | None:
    """Until there is something to undo; returns why. None: all is done, or gone."""
    words = b""
    while True:
        left_s = None if record.deadline is None else max(0.0, record.deadline + GRACE_S - now())
        readable, _, _ = select.select([0] if owner is None else [0, owner], [], [], left_s)
        if not readable:
            return "its time is over"
        if owner in readable:
            Path(record.file).unlink(missing_ok=True)
            return None
        piece = os.read(0, 256)
        words += piece
        if b"done\n" in words:
            return None
        if b"stay\n" in words:
            return _stay(record, owner)
        if not piece:
            return "the command is gone"


def _stay(record: Record, owner: int | None) -> str | None:
    """The same, once the end of the command is no reason. Whoever undoes it by hand takes its record away."""
    if record.deadline is None:
        return None
    _silence(1, 2)
    while Path(record.file).exists():
        left_s = record.deadline - now()
        if left_s <= 0:
            return "its time is over"
        if select.select([] if owner is None else [owner], [], [], min(left_s, LOOK_S))[0]:
            Path(record.file).unlink(missing_ok=True)
    return None


def _silence(*descriptors: int) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(silence, descriptor)
    os.close(silence)


def is_gone(record: Record) -> bool:
    """Whether the machine has started anew since, or the network namespace has ended: nothing is left to undo."""
    boot = this_network().split()[0]
    return record.network.split()[0] != boot or not (record.namespace is None or Path(record.namespace).exists())


@contextlib.contextmanager
def _owner_of(namespace: str | None) -> Iterator[int | None]:
    """A descriptor that can be read when the process is gone by whose path the namespace was found, if by one."""
    found = re.match(r"/proc/(\d+)/", namespace or "")
    if found is None:
        yield None
        return
    try:
        owner = os.pidfd_open(int(found[1]))
    except ProcessLookupError:
        yield None
        return
    try:
        yield owner
    finally:
        os.close(owner)


if __name__ == "__main__":
    main()
