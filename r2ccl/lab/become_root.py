"""The program's way through a user namespace: enter one, be root there, become the program.

    python -I become_root.py program arguments...

Run by path with the standard library only, as enter.py. superuser.py decides when.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

CLONE_NEWUSER = 0x10000000


def main(command: list[str]) -> None:
    """Become the program. Returns only by raising."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot make a user namespace: {os.strerror(code)}")
    # Without the right to set groups, or an ordinary user could drop a group that forbids him something.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
