"""Running programs in a lab: all ranks of a job, or one program on one host.

Programs are children of this command, not of the lab's daemon, so that terminal, signals and exit codes are what they
always are. The command keeps a connection to the daemon open. If the daemon dies, the programs are ended here; if this
command dies, the kernel kills its children, and the daemon what those have left.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from r2ccl.cli.launcher import (
    NOT_HANDED_DOWN,
    RANKS_MAX,
    SIGNAL_EXIT_BASE,
    as_program,
    attend,
    has_end,
    known_to_the_shell,
)
from r2ccl.config import environment
from r2ccl.errors import UsageError
from r2ccl.lab import enter_host, registry
from r2ccl.lab.control import Enter, Entrance, HostReport
from r2ccl.lab.leftovers import MARK_VARIABLE, Mark, kill_marked

#: The lab went down under a program, or could not be entered.
LAB_IS_GONE: Final = 126
#: Of a command's line, for ``lab status``.
WHAT_CHARACTERS_MAX: Final = 200
#: With no program named.
SHELL: Final = "/bin/sh"
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT)


def way_in(host: HostReport, command: Sequence[str]) -> tuple[str, ...]:
    """The command as a child of this process that runs on the host."""
    helper = str(Path(enter_host.__file__))
    return (sys.executable, "-I", "-S", helper, str(os.getpid()), *host.namespaces, "--", *command)


def host_variables(entrance: Entrance, name: str) -> dict[str, str]:
    """What every program in a lab finds in its environment."""
    nics = entrance.report.hosts[0].nics
    return {
        "R2CCL_NICS": ",".join(nic.name for nic in nics),
        # A veth says 10 Gbit/s, whatever is shaped.
        "R2CCL_NIC_SPEED": str(max(1, round(entrance.report.rate_mbit_s))),
        MARK_VARIABLE: entrance.mark,
        registry.NAME_VARIABLE: name,
        registry.DIRECTORY_VARIABLE: str(registry.home()),
    }


@dataclass(frozen=True, slots=True)
class LabJob:
    """What all ranks of one job in a lab share. Ranks go host by host."""

    command: tuple[str, ...]
    ranks_per_host: int
    entrance: Entrance
    lab: str
    name: str
    secret: str = field(repr=False)

    @property
    def ranks(self) -> int:
        return len(self.entrance.report.hosts) * self.ranks_per_host

    def program(self, rank: int) -> tuple[str, ...]:
        """What is started as this rank."""
        return way_in(self.entrance.report.hosts[rank // self.ranks_per_host], self.command)

    @property
    def script(self) -> tuple[str, ...]:
        """Ranks are started within their hosts, each by itself."""
        return ()

    def variables(self, rank: int) -> dict[str, str]:
        """What one rank finds in its environment."""
        return {
            **host_variables(self.entrance, self.lab),
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(rank % self.ranks_per_host),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_host),
            "MASTER_ADDR": self.entrance.report.hosts[0].name,  # by whichever NIC is whole
            "MASTER_PORT": str(self.entrance.port),
            "R2CCL_JOB": self.name,
            "R2CCL_SECRET": self.secret,
            "PYTHONUNBUFFERED": "1",
        }

    def environment(self, inherited: Mapping[str, str], rank: int) -> dict[str, str]:
        """All that one rank finds in its environment."""
        return {**without_job(inherited), **self.variables(rank)}


def without_job(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment less what means other NICs or another secret."""
    return {name: value for name, value in inherited.items() if name not in NOT_HANDED_DOWN}


def new_lab_job(command: Sequence[str], ranks_per_host: int, entrance: Entrance, lab: str) -> LabJob:
    """With a name and a secret of its own. Raises :class:`UsageError`."""
    if not command:
        raise UsageError("no program to run; for example: r2ccl lab run -- python train.py")
    job = LabJob(
        as_program(list(command)), ranks_per_host, entrance, lab, f"run-{secrets.token_hex(8)}", secrets.token_hex(32)
    )
    if not 1 <= job.ranks <= RANKS_MAX:
        raise UsageError(f"{job.ranks} ranks: there may be 1 to {RANKS_MAX}")
    return job


def run_ranks(lab: str, command: Sequence[str], ranks_per_host: int) -> int:
    """All ranks of a job; returns the exit code to end with. Raises :class:`UsageError`."""
    with registry.Line(lab) as line, entered(line, f"on all hosts: {' '.join(command)}") as entrance:
        inherited = environment()
        job = known_to_the_shell(new_lab_job(command, ranks_per_host, entrance, lab), inherited)
        return attend(job, inherited, lifeline=line.socket, title="r2ccl lab run")


def run_on_host(lab: str, host: str, command: Sequence[str]) -> int:
    """One program, or a shell, with our terminal; returns its exit code. Raises :class:`UsageError`."""
    number = registry.host_number(host)
    program = as_program(list(command)) if command else (environment().get("SHELL", SHELL),)
    with registry.Line(lab) as line, entered(line, f"on h{number}: {' '.join(program)}") as entrance:
        hosts = entrance.report.hosts
        if number >= len(hosts):
            raise UsageError(f"there is no h{number}; the last one is h{len(hosts) - 1}")
        environ = {**without_job(environment()), **host_variables(entrance, lab)}
        with _SignalsForChild() as signals:
            child = subprocess.Popen(way_in(hosts[number], program), env=environ)
            signals.child = child
            return _wait(child, line.socket)


@contextmanager
def entered(line: registry.Line, what: str) -> Iterator[Entrance]:
    """Afterwards nothing is left of what was started, whatever it forked."""
    entrance = Entrance.parse(line.ask(Enter(what[:WHAT_CHARACTERS_MAX])))
    try:
        yield entrance
    finally:
        kill_marked(Mark.parse(entrance.mark))


def _wait(child: subprocess.Popen[bytes], lifeline: socket.socket) -> int:
    process = os.pidfd_open(child.pid)
    try:
        select.select([process, lifeline.fileno()], [], [])
    finally:
        os.close(process)
    # A lab that goes down hangs up first and kills then, so who is first to be noticed says nothing.
    if has_end(lifeline) and child.poll() in (None, -signal.SIGKILL):
        child.kill()
        child.wait()
        print("r2ccl lab run: the lab is gone", file=sys.stderr)
        return LAB_IS_GONE
    code = child.wait()
    return code if code >= 0 else SIGNAL_EXIT_BASE - code


class _SignalsForChild:
    """Signals that would end us are for the program: those of a terminal reach it anyway, others are passed on."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _SignalsForChild:
        for number in _PASSED_ON:
            self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _: object) -> None:
        by_terminal = number in (signal.SIGINT, signal.SIGQUIT) and _has_terminal()
        if self.child is not None and not by_terminal:
            self.child.send_signal(number)


def _has_terminal() -> bool:
    """Whether a terminal sends its signals to our group, which the program is in, too."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
