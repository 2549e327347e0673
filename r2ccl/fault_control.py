"""The control port of a rank that may be broken on purpose: a Unix socket, and what is asked for on it, done.

Only with ``R2CCL_FAULT_INJECTION=1`` there is one. The rank's devices are then wrapped in ``FaultyDevice``, and here is
what puts faults into them. What is asked, and by whom it may be, is decided in protocol.fault_control; this file
accepts, reads, answers, keeps time, and undoes:

    a fault ends     at its time (``for_s``), with the connection that asked for it, at "undo", or with the rank

The socket is in a directory of the user's own (0700), its name says job, rank and process, and it is 0600; whoever
gets there must still know the job's secret. Connections are bounded in number, in time until they are admitted, and in
what they may send at once; faults in number.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, assert_never

from r2ccl.clock import MonotonicClock
from r2ccl.config import Settings
from r2ccl.errors import ConfigurationError
from r2ccl.protocol import fault_control as protocol
from r2ccl.protocol.fault_control import Asked, Effect, End, FaultSession, Inject, Send, Status, Undo
from r2ccl.protocol.fault_kinds import Kind, Request
from r2ccl.protocol.handshake import NONCE_BYTES, Identity
from r2ccl.transport import fault_rules
from r2ccl.transport.fault_rules import Guard
from r2ccl.transport.faulty import FaultyDevice
from r2ccl.transport.interface import Device
from r2ccl.transport.sockets import Acceptor

logger = logging.getLogger("r2ccl")

#: A person, a script or two; one more is closed at once.
CONNECTIONS_MAX = 8
#: Faults in force at once.
FAULTS_MAX = 64
#: From accept to admission.
HANDSHAKE_S = 5.0
READ_BYTES = 8192
#: What fits into one answer.
SHOWN_MAX = 32
TITLE_CHARACTERS_MAX = 100
#: The kernel takes no more.
SOCKET_PATH_BYTES_MAX = 107
#: Of a job's name these many go into its socket's, the hash tells the rest apart.
_NAME_CHARACTERS = 24


def directories(environ: Mapping[str, str]) -> list[Path]:
    """Where control sockets and records of faults may be; the first is where they are made."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    own = Path(f"/tmp/r2ccl-{os.geteuid()}")
    return [Path(runtime) / "r2ccl", own] if runtime and Path(runtime).is_dir() else [own]


def make_private(directory: Path) -> None:
    """Make the directory, or see that it is ours alone. Raises :class:`ConfigurationError` if it is not."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise ConfigurationError(f"{directory} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"{directory} must be a directory that only user {os.geteuid()} can enter (chmod 700), and is not; "
            "set XDG_RUNTIME_DIR to one that is"
        )


def socket_name(job: str, rank: int | str, pid: int | str) -> str:
    """The file name of a rank's control socket; ``rank`` and ``pid`` may be ``*``."""
    shown = re.sub(r"[^A-Za-z0-9_-]", "_", job)[:_NAME_CHARACTERS]
    digest = hashlib.sha256(job.encode(errors="replace")).hexdigest()[:8]
    return f"{shown}.{digest}.rank{rank}.{pid}.sock"


def remove_dead(directory: Path) -> None:
    """Remove the sockets that processes left which were killed: nobody listens, and nobody of that number is there."""
    for path in directory.glob("*.sock"):
        pid = path.name.removesuffix(".sock").rpartition(".")[2]
        if not pid.isdecimal() or Path(f"/proc/{pid}").exists():
            continue
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        with socket.socket(socket.AF_UNIX, kind) as knock, reachable(path) as address:
            if knock.connect_ex(address) == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """The path, or where it is too long for a Unix socket another way to the same place."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


@dataclass(eq=False, slots=True)
class _InForce:
    """A fault, and how to end it."""

    title: str
    owner: _Connection | None
    guards: list[Guard] = field(default_factory=list)
    #: Of its end, and of a flap's next phase.
    end_timer: asyncio.TimerHandle | None = None
    turn_timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        for timer in (self.end_timer, self.turn_timer):
            if timer is not None:
                timer.cancel()
        self.lift()

    def lift(self) -> None:
        """Let everything pass; a flap may fall again."""
        for guard in self.guards:
            guard.remove()
        self.guards.clear()


class FaultControl:
    """One rank's. All on the loop's thread."""

    def __init__(
        self, identity: Identity, devices: Sequence[FaultyDevice], loop: asyncio.AbstractEventLoop, rng: Random
    ) -> None:
        self.path: Path | None = None
        self._identity = identity
        self._devices = devices
        self._loop = loop
        self._rng = rng
        self._door: Acceptor | None = None
        self._connections: set[_Connection] = set()
        self._in_force: list[_InForce] = []
        #: Connections that were refused, for any reason.
        self.refused = 0

    def open(self, directory: Path) -> None:
        """Listen. Raises :class:`ConfigurationError` where that is not possible."""
        make_private(directory)
        remove_dead(directory)
        path = directory / socket_name(self._identity.job, self._identity.rank, os.getpid())
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            path.unlink(missing_ok=True)
            with reachable(path) as address:
                listener.bind(address)
            path.chmod(0o600)
            listener.listen(CONNECTIONS_MAX)
        except OSError as error:
            listener.close()
            raise ConfigurationError(f"the control port {path} cannot be opened: {error}") from error
        self.path, self._door = path, Acceptor(self._loop, listener, self._accepted)
        self._door.start()
        logger.warning("R2CCL_FAULT_INJECTION=1: faults may be put into this rank by way of %s", path)

    def close(self) -> None:
        """Stop listening, and end every fault. May be called twice."""
        if self._door is not None:
            self._door.close()
            self._door = None
            assert self.path is not None
            self.path.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.close()
        self._end_where(lambda _: True)

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of the sockets, without the parent's loop."""
        if self._door is not None:
            self._door.close_in_child()
            self._door = None
        for connection in self._connections:
            connection.sock.close()

    @property
    def in_force(self) -> list[str]:
        """What faults there are, in words."""
        return [fault.title for fault in self._in_force]

    # Connections.

    def _accepted(self, sock: socket.socket, _: object) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            self.refuse(f"{CONNECTIONS_MAX} connections are open already")
            sock.close()
            return
        self._connections.add(_Connection(self, sock, self._loop, self._identity))

    def refuse(self, why: str) -> None:
        """One line in the log."""
        self.refused += 1
        logger.warning("the control port refused somebody: %s", why)

    def forget(self, connection: _Connection) -> None:
        """It is closed, and what it asked for ends."""
        self._connections.discard(connection)
        self._end_where(lambda fault: fault.owner is connection)

    # What is asked.

    def answer(self, asked: Asked, connection: _Connection) -> dict[str, Any]:
        """Do it, and say what came of it."""
        match asked:
            case Status():
                nics = [
                    {"nic": f"nic{device.nic.index}", "device": device.nic.name, "address": device.nic.endpoint.host}
                    for device in self._devices
                ]
                return {
                    "ok": True,
                    "rank": self._identity.rank,
                    "nics": nics[:SHOWN_MAX],
                    "faults": [title[:TITLE_CHARACTERS_MAX] for title in self.in_force[:SHOWN_MAX]],
                }
            case Inject():
                return self._inject(asked, connection)
            case Undo():
                owner = None if asked.stay else connection
                return {"ok": True, "undone": self._end_where(lambda fault: fault.owner is owner)}
            case _:
                assert_never(asked)

    def _inject(self, asked: Inject, connection: _Connection) -> dict[str, Any]:
        devices = [device for device in self._devices if asked.nic in (None, device.nic.index)]
        if not devices:
            known = ", ".join(f"nic{device.nic.index}" for device in self._devices)
            return {"ok": False, "error": f"rank {self._identity.rank} has no nic{asked.nic}; it has {known}"}
        if len(self._in_force) >= FAULTS_MAX:
            return {"ok": False, "error": f"{FAULTS_MAX} faults are in force already"}
        nics = ", ".join(f"nic{device.nic.index}" for device in devices)
        title = f"{asked.request} on {nics} of rank {self._identity.rank}"
        fault = _InForce(title, None if asked.stay else connection)
        self._in_force.append(fault)
        if asked.for_s is not None:
            fault.end_timer = self._loop.call_later(asked.for_s, self._end_where, lambda other: other is fault)
        if asked.request.phases:
            self._turn(fault, devices, asked.request, self._states(asked.request))
        else:
            fault.guards += [guard for device in devices for guard in self._put(device, asked.request)]
        logger.warning("fault put in force: %s", title)
        return {"ok": True, "fault": title}

    def _put(self, device: FaultyDevice, request: Request) -> list[Guard]:
        match request.kind:
            case Kind.LINK_DOWN:
                return [device.cut()]
            case Kind.SILENT_DROP:
                return [device.silence()]
            case Kind.LOSS:
                return [device.install(fault_rules.lose(request.value, self._rng))]
            case Kind.RATE:
                return [device.install(fault_rules.rate(request.value / 8))]
            case Kind.DELAY:
                return [device.install(fault_rules.delay(request.value))]
            case Kind.CORRUPT:
                return [device.install(fault_rules.corrupt(request.value, self._rng))]
            case _:
                raise AssertionError(f"{request.kind} is refused where requests are read")

    @staticmethod
    def _states(request: Request) -> Iterator[tuple[bool, float]]:
        for _ in range(request.times):
            for phase in request.phases:
                yield phase.down, phase.seconds

    def _turn(
        self, fault: _InForce, devices: Sequence[FaultyDevice], request: Request, states: Iterator[tuple[bool, float]]
    ) -> None:
        """The next phase of a flap, and the timer of the one after it."""
        down, seconds = next(states, (False, 0.0))
        if not seconds:
            self._end_where(lambda other: other is fault)
            return
        if down and not fault.guards:
            once = Request(request.flapping)
            fault.guards += [guard for device in devices for guard in self._put(device, once)]
        elif not down:
            fault.lift()
        fault.turn_timer = self._loop.call_later(seconds, self._turn, fault, devices, request, states)

    def _end_where(self, condition: Callable[[_InForce], bool]) -> int:
        ending = [fault for fault in self._in_force if condition(fault)]
        self._in_force = [fault for fault in self._in_force if fault not in ending]
        for fault in ending:
            fault.end()
            logger.warning("fault undone: %s", fault.title)
        return len(ending)


class Breakable:
    """A rank's devices, wrapped so that they can be broken, and its control port."""

    def __init__(
        self, identity: Identity, devices: Sequence[Device], loop: asyncio.AbstractEventLoop, settings: Settings
    ) -> None:
        self._on_carrier: Callable[[int, bool, str], None] | None = None
        patience = settings.dial_timeout_s
        clock = MonotonicClock()
        self.devices = [FaultyDevice(device, loop, clock, self._carrier_changed, patience) for device in devices]
        self.control = FaultControl(identity, self.devices, loop, Random(secrets.randbits(64)))

    def open(self, environ: Mapping[str, str], on_carrier: Callable[[int, bool, str], None]) -> None:
        """Take requests; carriers that are cut and mended are told to ``on_carrier``. Raises
        :class:`ConfigurationError`."""
        self._on_carrier = on_carrier
        self.control.open(directories(environ)[0])

    def _carrier_changed(self, nic: int, up: bool) -> None:
        if self._on_carrier is not None:
            self._on_carrier(nic, up, "fault-inject")


class _Connection:
    """One accepted connection."""

    def __init__(
        self, control: FaultControl, sock: socket.socket, loop: asyncio.AbstractEventLoop, identity: Identity
    ) -> None:
        self.sock = sock
        self._control = control
        self._loop = loop
        self._session = FaultSession(identity, secrets.token_bytes(NONCE_BYTES))
        self._deadline = loop.call_later(HANDSHAKE_S, self._too_late)
        loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if not self._session.admitted:
                self._control.refuse("it left before it was admitted")
            self.close()
            return
        for effect in self._session.receive_data(data):
            if self.sock.fileno() != -1:
                self._do(effect)
        if self._session.admitted:
            self._deadline.cancel()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect.data)
            case End():
                self._control.refuse(effect.refused)
                self.close()
            case Status() | Inject() | Undo():
                self._send(protocol.pack(self._control.answer(effect, self)))
            case _:
                assert_never(effect)

    def _send(self, data: bytes) -> None:
        """Answers are small: a socket that cannot take one is nobody's who reads."""
        sent = 0
        with contextlib.suppress(OSError):
            sent = self.sock.send(data)
        if sent != len(data):
            self.close()

    def _too_late(self) -> None:
        self._control.refuse(f"it did not prove itself within {HANDSHAKE_S:g} s")
        self.close()

    def close(self) -> None:
        """And all its faults end. May be called twice."""
        self._deadline.cancel()
        with contextlib.suppress(OSError, ValueError):
            self._loop.remove_reader(self.sock)
        self.sock.close()
        self._control.forget(self)
