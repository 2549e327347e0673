"""Ending what a lab may have left behind.

Namespaces and interfaces go by themselves, and so do the programs that the lab started. What those programs forked in
their turn (a data loader's workers) does not, and it would keep its namespace alive. So every program of a lab carries
a mark in its environment, which its children inherit: the lab's process id, when that process started (a process id
alone is used again some day), and a serial number, for one process may run several labs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Leading underscore: not a setting of the library.
MARK_VARIABLE = "_R2CCL_LAB"


@dataclass(frozen=True, slots=True)
class Mark:
    """Whose a process is."""

    owner: int
    owner_started: str
    serial: str

    @classmethod
    def new(cls) -> Mark:
        """A mark for a new lab of this process."""
        return cls(os.getpid(), _started(os.getpid()), secrets.token_hex(4))

    @classmethod
    def parse(cls, text: str) -> Mark:
        """The inverse of ``str``. Raises ``ValueError``."""
        owner, started, serial = text.split("-")
        return cls(int(owner), started, serial)

    def __str__(self) -> str:
        return f"{self.owner}-{self.owner_started}-{self.serial}"

    @property
    def owner_is_gone(self) -> bool:
        """Whether the lab's process has ended."""
        return _started(self.owner) != self.owner_started


def sweep() -> list[int]:
    """Kill the processes of labs whose own process is gone; returns their ids. Others' labs are left alone."""
    return _kill_where(lambda mark, pid: mark.owner_is_gone and _is_numbered_as_we_are(pid))


def kill_marked(mark: Mark) -> list[int]:
    """Kill every process of one lab; returns their ids."""
    return _kill_where(lambda other, _: other == mark)


def _kill_where(condition: Callable[[Mark, int], bool]) -> list[int]:
    killed = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _kill_if(int(entry.name), condition):
            killed.append(int(entry.name))
    return killed


def _kill_if(pid: int, condition: Callable[[Mark, int], bool]) -> bool:
    try:
        # Held before the mark is read, so that the signal cannot hit a later process of the same number.
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        mark = _mark_of(pid)
        if mark is None or not condition(mark, pid):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def _mark_of(pid: int) -> Mark | None:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or not ours
        return None
    prefix = f"{MARK_VARIABLE}=".encode()
    for entry in environ.split(b"\0"):
        if entry.startswith(prefix):
            # Anybody may write anything into the environment of his own processes.
            with contextlib.suppress(ValueError):
                return Mark.parse(entry[len(prefix) :].decode())
    return None


def _is_numbered_as_we_are(pid: int) -> bool:
    """In a container's lab the owner's number means another process, or none, to us outside."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty if there is none, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The name in parentheses may contain anything; state is the first field after it, the start the twentieth.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
