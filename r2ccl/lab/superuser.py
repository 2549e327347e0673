"""Becoming root without being root: a user namespace in which this user is root, where the kernel permits that.

A process with threads cannot enter a user namespace, and ours may have some already (numpy starts them). So the program
starts anew through become_root.py, which enters one and becomes the program again. It owns whatever namespaces it makes
there, with their interfaces; towards the rest of the machine it is the same user with the same rights as before.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from r2ccl import config
from r2ccl.lab import become_root

#: In the environment of a program that already went this way, so that it is gone once only.
MARK_VARIABLE = "_R2CCL_SUPERUSER"


def may_become_superuser() -> bool:
    """Whether it is worth trying: not root, not tried yet, and a child that tries it succeeds."""
    if os.geteuid() == 0 or MARK_VARIABLE in config.environment():
        return False
    return subprocess.run(through_user_namespace(["true"]), capture_output=True, check=False).returncode == 0


def exec_as_superuser(argv: Sequence[str]) -> NoReturn:
    """Start this program anew as root of a user namespace."""
    os.execve(sys.executable, through_user_namespace(argv), {**config.environment(), MARK_VARIABLE: "1"})


def through_user_namespace(argv: Sequence[str]) -> list[str]:
    """The command line that runs a program as root of a user namespace."""
    return [sys.executable, "-I", str(Path(become_root.__file__)), *argv]
