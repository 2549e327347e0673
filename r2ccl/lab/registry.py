"""Which labs are up, and how to talk to them.

Each lab has a directory of its user's own (mode 0700) that bears its name and holds its daemon's socket (mode 0600) and
log. The daemon keeps a lock on that directory as long as it lives, from before it is born: whoever makes a lab takes
the lock and hands it down. So a directory that can be locked belongs to nobody any more, whatever its daemon died of,
and is removed by whoever comes by. There is no list of labs that could be wrong.

Names must differ, addresses need not: each lab has namespaces of its own, and none sees another's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from r2ccl import config
from r2ccl.errors import UsageError
from r2ccl.lab import control, rails
from r2ccl.lab.control import LabReport, Request
from r2ccl.lab.leftovers import sweep
from r2ccl.lab.where import Where
from r2ccl.transport.sockets import peer_of

#: Where labs' directories are, if not in the usual place. Handed down to programs in a lab, which may be another user
#: there. Leading underscore: not a setting of the library.
DIRECTORY_VARIABLE: Final = "_R2CCL_LABS"
#: The lab that a program is in, so that it need not be named there.
NAME_VARIABLE: Final = "_R2CCL_LAB_NAME"
NAME_DEFAULT: Final = "lab"
NAME_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,29}")
SOCKET: Final = "control"
LOG: Final = "log"
#: The kernel's limit for the path of a socket.
SOCKET_PATH_BYTES_MAX: Final = 107
#: The daemon answers in milliseconds; a machine that is overloaded takes longer.
ANSWER_TIMEOUT_S: Final = 60.0
DOWN_TIMEOUT_S: Final = 30.0


def home() -> Path:
    """The directory of this user's labs, made if it is not there. Raises :class:`UsageError` if it is another's."""
    named = config.environment().get(DIRECTORY_VARIABLE)
    user = os.geteuid()
    usual = Path("/run") if user == 0 and os.access("/run", os.W_OK) else Path(tempfile.gettempdir())
    directory = Path(named) if named else usual / f"r2ccl-labs-{user}"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or stat.S_IMODE(found.st_mode) & 0o077:
        raise UsageError(f"{directory} is not a directory that only you may enter: remove it, or have it removed")
    return directory


def checked_name(name: str) -> str:
    """The same. Raises :class:`UsageError`."""
    if NAME_PATTERN.fullmatch(name) is None:
        raise UsageError(f"{name!r} is no name for a lab: up to 30 small letters, digits and dashes")
    path = os.fsencode(home() / name / SOCKET)
    if len(path) > SOCKET_PATH_BYTES_MAX:
        raise UsageError(f"{os.fsdecode(path)} is too long for a socket: take a shorter name")
    return name


def claim(name: str) -> int:
    """Make a lab's directory and lock it; the lock is the descriptor. Raises :class:`UsageError` if that lab is up."""
    directory = home() / checked_name(name)
    while True:
        _remove_if_stale(directory)
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            raise UsageError(f"a lab {name!r} is up: r2ccl lab down --name {name}, or take another name") from None
        lock = _lock(directory)
        if lock is not None:
            return lock
        # Somebody came by between the two and took it for a dead lab's.


def release(name: str, lock: int) -> None:
    """Remove a directory that we have the lock of."""
    shutil.rmtree(home() / name)
    os.close(lock)


def names() -> list[str]:
    """The labs that are up, not those that are just being made.

    What dead ones left is removed first: directories, and programs that outlived them.
    """
    found = []
    for directory in sorted(home().iterdir()):
        is_lab = NAME_PATTERN.fullmatch(directory.name) is not None and not _remove_if_stale(directory)
        if is_lab and (directory / SOCKET).exists():
            found.append(directory.name)
    sweep()
    return found


def chosen(name: str | None) -> str:
    """The lab that is meant: the one named, the one that we are in, or the only one. Raises :class:`UsageError`."""
    up = names()
    name = name or config.environment().get(NAME_VARIABLE)
    if name is not None:
        if name not in up:
            raise UsageError(f"no lab {name!r} is up; {_what_is(up)}")
        return name
    if len(up) != 1:
        raise UsageError(f"say which with --name: {', '.join(up)}" if up else _what_is(up))
    return up[0]


def _what_is(up: list[str]) -> str:
    return f"there are {', '.join(up)}" if up else "none is up: r2ccl lab up"


class Line:
    """A connection to a lab's daemon. Use it as a context."""

    def __init__(self, name: str) -> None:
        """Raises :class:`UsageError` if nobody is there."""
        self.name = name
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.settimeout(ANSWER_TIMEOUT_S)
            self.socket.connect(str(home() / checked_name(name) / SOCKET))
            self.pid, user = peer_of(self.socket)
            if user != os.geteuid():
                raise UsageError(f"the lab {name!r} is another user's")
        except OSError as nobody:
            self.socket.close()
            raise UsageError(f"the lab {name!r} does not answer ({nobody.strerror}): r2ccl lab status") from nobody
        except UsageError:
            self.socket.close()
            raise

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: Request) -> dict[str, Any]:
        """What was done. Raises :class:`UsageError`."""
        try:
            self.socket.sendall(control.request_line(request))
            with self.socket.makefile("rb") as lines:
                answer = lines.readline(control.ANSWER_BYTES_MAX)
        except OSError as lost:
            raise UsageError(f"the lab {self.name!r} does not answer ({lost})") from lost
        if not answer.endswith(b"\n"):
            raise UsageError(f"the lab {self.name!r} is gone")
        return control.parse_answer(answer)


def ask(name: str, request: Request) -> dict[str, Any]:
    """One question, one answer. Raises :class:`UsageError`."""
    with Line(name) as line:
        return line.ask(request)


def report(name: str) -> LabReport:
    """How a lab is. Raises :class:`UsageError`."""
    return LabReport.parse(ask(name, control.Status()))


def reports() -> list[LabReport]:
    """Of all labs that are up."""
    found = []
    for name in names():
        with _unless_it_went(name):
            found.append(report(name))
    return found


def take_all_down() -> list[str]:
    """End all labs; returns which."""
    taken = names()
    for name in taken:
        with _unless_it_went(name):
            take_down(name)
    return taken


@contextlib.contextmanager
def _unless_it_went(name: str) -> Iterator[None]:
    """A lab that goes down while it is spoken to is no error where all are meant."""
    try:
        yield
    except UsageError:
        if name in names():
            raise


def take_down(name: str) -> None:
    """End a lab; returns when its daemon is gone. One that does not end is killed. Raises :class:`UsageError`."""
    with Line(name) as line, _process(line.pid) as process:
        try:
            line.ask(control.Down())
        finally:
            if not select.select([process], [], [], DOWN_TIMEOUT_S)[0]:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [], DOWN_TIMEOUT_S)
    names()


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int]:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError as gone:
        raise UsageError("the lab went down by itself just now") from gone
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def host_number(text: str) -> int:
    """``h1`` or ``1``. Raises :class:`UsageError`."""
    return _number(text, "h", "host")


def nic_number(text: str) -> int:
    """``nic1`` or ``1``. Raises :class:`UsageError`."""
    return _number(text, "nic", "NIC")


def where(name: str, host: str, nic: str) -> tuple[Where, tuple[str, ...]]:
    """The interface of a NIC in its host, for faults, and those of the lab's own that stand there. Raises
    :class:`UsageError`."""
    lab = report(chosen(name))
    number, nic_index = host_number(host), nic_number(nic)
    if number >= len(lab.hosts):
        raise UsageError(f"the lab {name!r} has no h{number}; the last one is h{len(lab.hosts) - 1}")
    found = lab.hosts[number]
    if nic_index >= len(found.nics):
        raise UsageError(f"h{number} has no nic{nic_index}; the last one is nic{len(found.nics) - 1}")
    return Where(found.network, rails.interface(nic_index)), found.nics[nic_index].faults


def _number(text: str, prefix: str, what: str) -> int:
    digits = text.removeprefix(prefix)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 4):
        raise UsageError(f"{text!r} is no {what}, such as {prefix}1")
    return int(digits)


def _remove_if_stale(directory: Path) -> bool:
    """Whether there is no such lab (any more)."""
    lock = _lock(directory)
    if lock is None:
        return not directory.exists()
    # Under the lock: who claims it meanwhile sees that the directory is gone and makes a new one.
    shutil.rmtree(directory)
    os.close(lock)
    return True


def _lock(directory: Path) -> int | None:
    """None: there is no such directory, or somebody lives in it."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(directory)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
