"""Where the demo's ranks live and how their NICs are cut: emulated hosts if this machine lets us, else loopback."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

from r2ccl import config
from r2ccl.cli.demo_faults import Fault
from r2ccl.clock import MonotonicClock
from r2ccl.rendezvous.free_port import free_port

if TYPE_CHECKING:
    from r2ccl.lab import Lab

Process = subprocess.Popen[Any]


class Starter(Protocol):
    """Whoever starts ranks."""

    def start(self, rank: int, argv: Sequence[str], descriptors: Sequence[int]) -> Process:
        """Start a rank with pipes for its standard input and errors."""


class Stage(Starter, Protocol):
    """The place."""

    #: ``namespaces`` or ``loopback``, as the JSON object calls it.
    emulation: str
    #: What the ranks are told to emulate themselves; 0: nothing.
    emulate_mbit_s: float

    def cut(self, rank: int, nic: int) -> float:
        """Cut a NIC; returns when, on the monotonic clock."""

    def restore(self, rank: int, nic: int) -> float:
        """Give it back; returns when."""


@contextmanager
def namespaces(ranks: int, nics: int, spares: int, rate_mbit_s: float, fault: Fault) -> Iterator[Stage]:
    """Each rank on a host of its own with real interfaces."""
    from r2ccl.lab import Lab  # not at the top: only Linux has it

    with Lab(hosts=ranks, nics=nics, rate_mbit_s=rate_mbit_s, name="demo") as lab:
        yield _Namespaces(lab, spares, fault)


class _Namespaces:
    emulation = "namespaces"
    emulate_mbit_s = 0.0

    def __init__(self, lab: Lab, spares: int, fault: Fault) -> None:
        self._lab = lab
        self._spares = spares
        self._cut, self._restore = (
            (lab.link_down, lab.link_up) if fault == "link-down" else (lab.silent_drop, lab.undrop)
        )

    def start(self, rank: int, argv: Sequence[str], descriptors: Sequence[int]) -> Process:
        environ = self._lab.environment(rank, self._spares)
        return self._lab.popen(rank, argv, environ, **pipes(descriptors))

    def cut(self, rank: int, nic: int) -> float:
        return self._cut(rank, nic)

    def restore(self, rank: int, nic: int) -> float:
        return self._restore(rank, nic)


@contextmanager
def loopback(ranks: int, nics: int, spares: int, rate_mbit_s: float) -> Iterator[Stage]:
    """All ranks on this host, each NIC a loopback address, rates and cuts made by the ranks themselves."""
    stage = _Loopback(ranks, nics, spares, rate_mbit_s)
    try:
        yield stage
    finally:
        stage.close()


class _Loopback:
    emulation = "loopback"

    def __init__(self, ranks: int, nics: int, spares: int, rate_mbit_s: float) -> None:
        self.emulate_mbit_s = rate_mbit_s
        self._ranks = ranks
        self._nics = nics
        self._spares = spares
        self._secret = secrets.token_hex(16)
        self._port = free_port()
        self._children: dict[int, Process] = {}

    def start(self, rank: int, argv: Sequence[str], descriptors: Sequence[int]) -> Process:
        environ = {**config.environment(), **self._environment(rank)}
        self._children[rank] = subprocess.Popen(argv, env=environ, **pipes(descriptors))
        return self._children[rank]

    def cut(self, rank: int, nic: int) -> float:
        return self._command_all(f"cut {rank} {nic}\n")

    def restore(self, rank: int, nic: int) -> float:
        return self._command_all(f"restore {rank} {nic}\n")

    def close(self) -> None:
        """End all ranks."""
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()

    def _command_all(self, line: str) -> float:
        """To both ends of every path: a wire that is cut is so for the ranks at its other end, too."""
        now = MonotonicClock.now()
        for child in self._children.values():
            tell(child, line)
        return now

    def _environment(self, rank: int) -> Mapping[str, str]:
        # Elsewhere than on Linux 127.0.0.1 is the only loopback address; NICs then differ in their ports.
        linux = sys.platform == "linux"
        addresses = [f"127.0.{nic + 1}.{rank + 1}" if linux else "127.0.0.1" for nic in range(self._nics)]
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self._ranks),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port),
            "R2CCL_NICS": ",".join(addresses),
            "R2CCL_SPARE_NICS": ",".join(addresses[self._nics - self._spares :]),
            "R2CCL_SECRET": self._secret,
            # Else they would notice that they share a node, and use its memory and no NIC.
            "R2CCL_NODE_ID": f"demo-{rank}",
        }


def tell(process: Process, line: str) -> None:
    """Write a command to a rank."""
    commands: IO[bytes] | None = process.stdin
    assert commands is not None
    try:
        commands.write(line.encode())
    except BrokenPipeError:
        # The rank is gone. Its exit status says so to whoever waits for it, and more clearly.
        return


def rank_program(module: str, argument: str) -> list[str]:
    """How a rank is started, found wherever this very package was."""
    return [sys.executable, "-m", module, argument]


def pipes(descriptors: Sequence[int]) -> dict[str, Any]:
    """What a rank is started with, for ``subprocess.Popen``: pipes, and what else it inherits."""
    return {
        "bufsize": 0,
        "stdin": subprocess.PIPE,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "pass_fds": tuple(descriptors),
        # Ctrl-C is for the parent, which ends its ranks in order.
        "start_new_session": True,
    }


def close_pipes(process: Process) -> None:
    """Close our ends."""
    for stream in (process.stdin, process.stderr):
        if stream is not None:
            stream.close()


def new_report_pipe() -> tuple[int, int]:
    """(end to read, end to inherit)."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    return read_end, write_end
