"""The process that is a lab between two commands: it holds the namespaces, and answers on a Unix socket.

    python -m r2ccl.lab.daemon DESCRIPTOR DIRECTORY OPTIONS      (JSON, see DaemonOptions)

It says on the descriptor that the lab is up, or why not, as a line of an answer. The directory is the lab's (see
registry.py), made and locked by whoever started us; we remove it.

One thread takes requests one after the other; each is done in milliseconds. A namespace of a lab has no name: it ends
with its last thread and program, so that even ``kill -9`` of this process leaves none. Programs are started by the
commands and not by us, each with a connection that stays open meanwhile. Who dies first is noticed by the other: when
the command is gone, we kill what its programs have left; when we are gone, the command kills them.

The socket is in a directory that only its user may enter, and the kernel says who connects: nobody else is answered.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pyroute2.netlink.exceptions import NetlinkError

from r2ccl.clock import MonotonicClock
from r2ccl.errors import R2cclError, UsageError
from r2ccl.lab import control, identity, rails, registry
from r2ccl.lab.control import Break, Down, Enter, Entrance, Heal, HostReport, LabReport, NicReport, Request, Status
from r2ccl.lab.hosts import Lab
from r2ccl.lab.leftovers import Mark, kill_marked
from r2ccl.lab.quantities import TIME_S_MAX
from r2ccl.lab.standing_faults import Standing, StandingFaults
from r2ccl.protocol.handshake_messages import printable
from r2ccl.rendezvous.free_port import free_port
from r2ccl.transport.sockets import peer_of

#: Each program that runs has one.
CONNECTIONS_MAX: Final = 256
#: Whoever does not take an answer for so long is hung up on.
SEND_TIMEOUT_S: Final = 10.0
WHAT_CHARACTERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """One argument, as JSON."""

    name: str
    hosts: int
    nics: int
    rate_mbit_s: float
    router: bool
    ways: int

    def as_argument(self) -> str:
        """The inverse of :meth:`parse`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, argument: str) -> DaemonOptions:
        return cls(**json.loads(argument))


@dataclass(slots=True)
class Caller:
    """One connection."""

    socket: socket.socket
    unread: bytes = b""
    #: Of the programs that live as long as it, and what they are.
    mark: Mark | None = None
    what: str = ""


class Daemon:
    """An open lab and those who talk to it."""

    def __init__(self, name: str, lab: Lab, listener: socket.socket) -> None:
        self._name = name
        self._lab = lab
        self._faults = StandingFaults(lab)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._callers: dict[int, Caller] = {}
        self._ends = False

    def serve(self, alarm: socket.socket) -> None:
        """Until told to end, by a request or by a byte on the alarm."""
        self._selector.register(alarm, selectors.EVENT_READ)
        while not self._ends:
            due_s = self._faults.next_due_s()
            timeout_s = None if due_s is None else max(0.0, due_s - MonotonicClock.now())
            for key, _ in self._selector.select(timeout_s):
                if key.fileobj is alarm:
                    self._ends = True
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._hear(self._callers[key.fd])
            self._heal_due()

    def close(self) -> None:
        """Hang up on all, and kill what they have started."""
        for caller in list(self._callers.values()):
            self._hang_up(caller)
        self._selector.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(SEND_TIMEOUT_S)
        _, user = peer_of(connection)
        if user != os.geteuid() or len(self._callers) >= CONNECTIONS_MAX:
            connection.close()
            return
        self._callers[connection.fileno()] = Caller(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hang_up(self, caller: Caller) -> None:
        self._selector.unregister(caller.socket)
        del self._callers[caller.socket.fileno()]
        caller.socket.close()
        if caller.mark is not None:
            kill_marked(caller.mark)

    def _hear(self, caller: Caller) -> None:
        try:
            heard = caller.socket.recv(control.REQUEST_BYTES_MAX)
        except OSError:
            heard = b""
        *lines, caller.unread = (caller.unread + heard).split(b"\n")
        if not heard or len(caller.unread) > control.REQUEST_BYTES_MAX:
            self._hang_up(caller)
            return
        try:
            for line in lines:
                caller.socket.sendall(self._answer(caller, line))
        except OSError:
            self._hang_up(caller)

    def _answer(self, caller: Caller, line: bytes) -> bytes:
        try:
            return control.answer_line(self._do(caller, control.parse_request(line)))
        except R2cclError as refused:
            return control.refusal_line(str(refused))
        except (OSError, NetlinkError) as failed:
            return control.refusal_line(f"the kernel refuses: {failed.args[-1]}")

    def _do(self, caller: Caller, request: Request) -> Mapping[str, Any]:
        match request:
            case Status():
                return self._report().as_json()
            case Enter(what):
                if caller.mark is None:
                    caller.mark = Mark.new()
                caller.what = printable(what[:WHAT_CHARACTERS_MAX])
                return Entrance(self._report(), str(caller.mark), self._lab.call(0, free_port, "")).as_json()
            case Break():
                self._check_nic(request.host, request.nic)
                self._faults.put(
                    Standing(request.kind, request.host, request.nic, request.amount, _end_of(request.for_s))
                )
                return {}
            case Heal(host, nic):
                self._check_nic(host or 0, nic or 0)
                now = MonotonicClock.now()
                healed = self._faults.heal(host, nic)
                return {"healed": [f"h{one.host} nic{one.nic}: {one.text(now)}" for one in healed]}
            case Down():
                self._ends = True
                return {}

    def _heal_due(self) -> None:
        try:
            self._faults.heal_due(MonotonicClock.now())
        except (R2cclError, OSError, NetlinkError) as failed:
            sys.stderr.write(f"a fault could not be undone: {failed}\n")  # that is the lab's log

    def _check_nic(self, host: int, nic: int) -> None:
        if not 0 <= host < self._lab.hosts or not 0 <= nic < self._lab.nics:
            last = f"h{self._lab.hosts - 1} and nic{self._lab.nics - 1}"
            raise UsageError(f"there is no h{host} nic{nic} here; the last ones are {last}")

    def _report(self) -> LabReport:
        lab = self._lab
        layout = "routed" if lab.router else f"leaf-spine, {lab.ways} spines" if lab.ways else "rails"
        hosts = tuple(self._host(host) for host in range(lab.hosts))
        programs = tuple(caller.what for caller in self._callers.values() if caller.mark is not None)
        switch = identity.thread_path(lab.call_switch(threading.get_native_id), "net")
        return LabReport(self._name, os.getpid(), layout, lab.rate_mbit_s, hosts, switch, programs)

    def _host(self, host: int) -> HostReport:
        nics = tuple(self._nic(host, nic) for nic in range(self._lab.nics))
        paths = identity.namespace_paths(self._lab, host)
        return HostReport(identity.host_name(host), paths, nics)

    def _nic(self, host: int, nic: int) -> NicReport:
        lab, now = self._lab, MonotonicClock.now()
        standing = self._faults.on(host, nic)
        rate = next((one.amount for one in standing if one.kind == "rate" and one.amount), lab.rate_mbit_s)
        faults = tuple(one.text(now) for one in standing)
        link = lab.link(host, nic)
        return NicReport(rails.interface(nic), lab.address(host, nic), rate, link.carrier, link.state, faults)


def _end_of(for_s: float | None) -> float | None:
    if for_s is None:
        return None
    if not 0 < for_s <= TIME_S_MAX:
        raise UsageError("a fault lasts for up to a day")
    return MonotonicClock.now() + for_s


def _listen(directory: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = directory / registry.SOCKET
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(CONNECTIONS_MAX)
    return listener


@contextlib.contextmanager
def _alarm() -> Iterator[socket.socket]:
    """A socket that has something to read once we are asked to end."""
    waker, alarm = socket.socketpair()
    waker.setblocking(False)
    with waker, alarm:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        yield alarm


def run(options: DaemonOptions, directory: Path, ready: int) -> None:
    """From begin to end."""
    try:
        _hold(options, directory, ready)
    except BrokenPipeError:
        return  # nobody heard that the lab is up: then it is none
    except (R2cclError, OSError, NetlinkError) as refused:
        with contextlib.suppress(OSError):
            os.write(ready, control.refusal_line(str(refused)))
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _hold(options: DaemonOptions, directory: Path, ready: int) -> None:
    shape = (options.hosts, options.nics, options.rate_mbit_s, options.name)
    with _alarm() as alarm, Lab(*shape, router=options.router, ways=options.ways) as lab:
        identity.become_hosts(lab, directory)
        with _listen(directory) as listener, contextlib.closing(Daemon(options.name, lab, listener)) as daemon:
            os.write(ready, control.answer_line({"pid": os.getpid()}))
            os.close(ready)
            daemon.serve(alarm)


def main() -> None:
    """The program."""
    ready, directory, options = sys.argv[1:]
    os.chdir("/")
    run(DaemonOptions.parse(options), Path(directory), int(ready))


if __name__ == "__main__":
    main()
