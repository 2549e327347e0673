"""What must not be broken by accident: the way on which the person who breaks things came here.

An interface that carries the default route, or the connection of the SSH session that this command runs in, is refused
with the way out; so is loopback, which programs of this machine talk over, and a process that this command lives by.
``--force`` overrules all of it. Other network namespaces are not looked at: nobody's way leads through them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from r2ccl.errors import UsageError
from r2ccl.lab import fault_undo
from r2ccl.lab.fault_undo import Record, Signal
from r2ccl.lab.interface_state import InterfaceState
from r2ccl.lab.kernel_faults import Step
from r2ccl.protocol.fault_kinds import Kind

#: SSH says "client port server port".
SSH_VARIABLE = "SSH_CONNECTION"
_SSH_FIELDS = 4


def refuse_interface(state: InterfaceState, ssh_address: str | None) -> None:
    """Raises :class:`UsageError` if the person's own way here leads over the interface."""
    way_out = (
        "choose another NIC, try it where nothing can be lost (r2ccl lab, or a job started with "
        "R2CCL_FAULT_INJECTION=1), or say --force"
    )
    if state.name == "lo":
        raise UsageError(f"lo is what the programs of this machine talk to one another over; {way_out}")
    if ssh_address is not None and ssh_address in state.own:
        raise UsageError(f"{state.name} carries the connection of your SSH session ({ssh_address}); {way_out}")
    if state.carries_default_route:
        raise UsageError(f"{state.name} carries the default route: this machine might be cut off; {way_out}")


def refuse_overlap(steps: Iterable[Step], interface: str, network: str, in_force: Iterable[Record]) -> None:
    """Two faults that each put a qdisc back would put back each other's. Raises :class:`UsageError`."""
    mine = f"dev {interface} root"
    if not any(mine in step.do.shown for step in steps):
        return
    for record in in_force:
        if record.network == network and any(mine in operation.shown for operation in record.undo):
            raise UsageError(
                f"{record.title} is in force, and replaced the qdisc of {interface}: wait for its end, or "
                f"r2ccl fault-inject undo {record.identity}"
            )


def ssh_address(environ: Mapping[str, str], ancestors: Iterator[Mapping[str, str]]) -> str | None:
    """This machine's address of the SSH session, if it is one. sudo takes the variable away, the shell before it has
    it still."""
    for variables in (environ, *ancestors):
        fields = variables.get(SSH_VARIABLE, "").split()
        if len(fields) == _SSH_FIELDS:
            return fields[2].removeprefix("::ffff:").partition("%")[0]
    return None


def ancestors(pid: int | None = None) -> Iterator[int]:
    """The processes that this one was started by, nearest first."""
    current = os.getppid() if pid is None else pid
    while current > 0:
        yield current
        try:
            stat = Path(f"/proc/{current}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        current = int(stat.rpartition(")")[2].split()[1])


def environments(pids: Iterator[int]) -> Iterator[Mapping[str, str]]:
    """What each of these processes was started with, as far as we may see it."""
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
        yield dict(entry.partition("=")[::2] for entry in text.split("\0") if "=" in entry)


def plan_process(kind: Kind, pid: int, *, force: bool) -> tuple[Step, ...]:
    """What stops or kills a process. Raises :class:`UsageError` if there is none, or we live by it."""
    started = fault_undo.started(pid)
    if not started:
        raise UsageError(f"there is no process {pid}")
    if not force and pid in (1, os.getpid(), *ancestors()):
        raise UsageError(f"process {pid} is one that this command lives by: without it nobody undoes; or say --force")
    if kind is Kind.KILL:
        return (Step(Signal(f"kill -KILL {pid}", pid, started, signal.SIGKILL), ()),)
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    if state in "Tt":
        raise UsageError(f"process {pid} is stopped already, by somebody else: kill -CONT {pid}")
    stop = Signal(f"kill -STOP {pid}", pid, started, signal.SIGSTOP)
    return (Step(stop, (Signal(f"kill -CONT {pid}", pid, started, signal.SIGCONT),)),)
