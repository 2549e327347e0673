"""The first moments of a rank that ``r2ccl run`` started: tie its life to the launcher's, then become the script.

Run as a file, in an isolated interpreter that imports almost nothing, with the launcher's process id and the command as
arguments. The kernel is asked to kill this process when the launcher dies, however it dies; that wish outlives the
``exec``. Only Linux can do this; elsewhere a launcher that is killed with SIGKILL leaves its ranks behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: What shells answer for a command that cannot be run.
_CANNOT_RUN = 127


def die_with(parent: int) -> bool:
    """The kernel kills this process when its parent ends. False: it has ended before the kernel heard our wish."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def become(launcher: int, command: list[str]) -> None:
    """Replace this process by the command; returns only if that fails."""
    if not die_with(launcher):
        return
    try:
        os.execvp(command[0], command)
    except OSError as failure:
        print(f"r2ccl run: cannot run {command[0]!r}: {failure.strerror}", file=sys.stderr)


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
    sys.exit(_CANNOT_RUN)
