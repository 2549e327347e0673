"""The way into a host of a lab that another process holds, taken by each program before it becomes itself.

    python -I -S enter_host.py OWNER NAMESPACE... -- program arguments...

The namespaces are paths under /proc, in the order in which they are to be entered; a user namespace that we are in
already is left out. The program is killed with its parent: the wish is spoken last, because entering a user namespace
takes it back. The working directory stays what it was called.

Run by path with the standard library only, as enter.py.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
#: What shells answer for a command that cannot be run.
CANNOT_RUN = 127
LAB_IS_GONE = 126


def main(arguments: list[str]) -> None:
    """Become the program. Returns only by raising."""
    if "--" not in arguments[1:-1]:
        raise SystemExit("usage: enter_host.py OWNER NAMESPACE... -- program arguments...")
    dashes = arguments.index("--")
    owner, namespaces, command = int(arguments[0]), arguments[1:dashes], arguments[dashes + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    enter(libc, namespaces)
    _check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != owner:
        return
    try:
        os.execvp(command[0], command)
    except OSError as failure:
        sys.stderr.write(f"r2ccl lab run: cannot run {command[0]!r}: {failure.strerror}\n")
        sys.exit(CANNOT_RUN)


def enter(libc: ctypes.CDLL, namespaces: list[str]) -> None:
    """All of them, opened before the first is entered: afterwards their paths may mean nothing."""
    directory = os.getcwd()
    descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in namespaces if not _is_ours(path)]
    for descriptor in descriptors:
        _check(libc.setns(descriptor, 0), "entering the host")
    os.chdir(directory)


def _is_ours(path: str) -> bool:
    return os.readlink(path) == os.readlink(f"/proc/self/ns/{os.path.basename(path)}")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as refused:
        sys.stderr.write(f"r2ccl lab run: {refused.strerror or refused}; is the lab still up?\n")
        sys.exit(LAB_IS_GONE)
