"""Starting a lab's daemon: take its name, start it, wait until it is up or says why not."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, Final

from r2ccl.errors import UsageError
from r2ccl.lab import can_create_namespaces, control, registry
from r2ccl.lab.control import LabReport
from r2ccl.lab.daemon import DaemonOptions
from r2ccl.lab.routers import LEAVES_MAX, WAYS_MAX
from r2ccl.lab.superuser import may_become_superuser, through_user_namespace

#: Wires of a lab; each takes the kernel some 10 ms to make, and a line in the report.
NICS_MAX: Final = 1024
NICS_DEFAULT: Final = 2
SPINES_DEFAULT: Final = 2
START_TIMEOUT_S: Final = 60.0
START_TIMEOUT_S_PER_NIC: Final = 0.5


def layout(hosts: int, nics: int | None, *, routed: bool, leaf_spine: bool, spines: int) -> tuple[int, int]:
    """(NICs per host, spines), 0 spines if there is no fabric of leaves. Raises :class:`UsageError`."""
    if routed and leaf_spine:
        raise UsageError("--routed joins the rails by a router, --leaf-spine has none: take one of them")
    if leaf_spine and nics not in (None, 1):
        raise UsageError("with --leaf-spine a host has one NIC and its paths lie behind it: leave --nics out")
    count = nics if nics is not None else 1 if leaf_spine else NICS_DEFAULT
    if hosts < 1 or count < 1 or hosts * count > NICS_MAX:
        raise UsageError(f"{hosts} hosts with {count} NICs: a lab has at least one, and up to {NICS_MAX} NICs in all")
    if leaf_spine and (not 1 <= spines <= WAYS_MAX or hosts > LEAVES_MAX):
        raise UsageError(f"1 to {WAYS_MAX} spines join up to {LEAVES_MAX} hosts")
    return count, spines if leaf_spine else 0


def bring_up(name: str, hosts: int, nics: int, rate_mbit_s: float, *, router: bool, ways: int) -> LabReport:
    """A new lab, up. Raises :class:`UsageError`; then nothing is left of it."""
    prefix = _way_to_namespaces()
    registry.names()  # what dead labs left
    lock = registry.claim(name)
    directory = registry.home() / name
    try:
        daemon, hear = _start(prefix, lock, directory, DaemonOptions(name, hosts, nics, rate_mbit_s, router, ways))
        with hear:
            _wait_until_up(daemon, hear, START_TIMEOUT_S + hosts * nics * START_TIMEOUT_S_PER_NIC, directory)
    finally:
        # From now on the daemon alone keeps the lock: if it is dead, the name is free and its directory is removed.
        os.close(lock)
        registry.names()
    # It is not a child to be waited for: it outlives us.
    daemon.returncode = 0
    return registry.report(name)


def _start(
    prefix: list[str], lock: int, directory: Path, options: DaemonOptions
) -> tuple[subprocess.Popen[bytes], BinaryIO]:
    """The daemon, and what it says first. It inherits the lock, and nothing else of ours."""
    hear, tell = os.pipe()
    ear = os.fdopen(hear, "rb", buffering=0)
    try:
        with (directory / registry.LOG).open("wb") as log:
            daemon = subprocess.Popen(
                [*prefix, "-m", "r2ccl.lab.daemon", str(tell), str(directory), options.as_argument()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(tell, lock), start_new_session=True,
            )  # fmt: skip
    except BaseException:
        ear.close()
        raise
    finally:
        os.close(tell)
    return daemon, ear


def _way_to_namespaces() -> list[str]:
    """What starts an interpreter that may make them: root's own, or one in a user namespace."""
    possible, reason = can_create_namespaces()
    if possible:
        return [sys.executable]
    if may_become_superuser():
        return through_user_namespace([sys.executable])
    raise UsageError(f"{reason}; a lab needs root, or a kernel that lets users make namespaces")


def _wait_until_up(daemon: subprocess.Popen[bytes], hear: BinaryIO, timeout_s: float, directory: Path) -> None:
    ready, _, _ = select.select([hear], [], [], timeout_s)
    said = hear.read(control.REQUEST_BYTES_MAX) if ready else b""
    if said:
        control.parse_answer(said)
        return
    log = directory / registry.LOG
    last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    daemon.kill()
    daemon.wait()
    raise UsageError(f"the lab did not come up{': ' + last[0] if last else f' within {timeout_s:g} s'}")
