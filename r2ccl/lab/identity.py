"""What makes a namespace look like a host: a name of its own, and files that say who the others are.

The thread that lives in the host's network namespace leaves the machine's UTS and mount namespaces, too. There the host
is called h0, h1 ..., its /sys shows its own interfaces, and /etc/hosts names all hosts of the lab. /etc/resolv.conf is
empty: no name server can be reached, so that a name that nobody has fails at once and not after ten seconds.

The files are mounted over the machine's and deleted at once where they were written: a mount keeps what it shows.
"""

from __future__ import annotations

import ctypes
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from r2ccl.lab import rails

if TYPE_CHECKING:
    from r2ccl.lab.hosts import Lab

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19
RESOLV_CONF = "# An emulated host reaches no name server.\n"


def host_name(host: int) -> str:
    """A host's name."""
    return f"h{host}"


def hosts_file(hosts: int, nics: int) -> str:
    """/etc/hosts of every host. A host's name is each of its NICs, the first one first; ``h1-nic1`` is that NIC."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    for host in range(hosts):
        for nic in range(nics):
            name = host_name(host)
            lines.append(f"{rails.address(host, nic)} {name} {name}-{rails.interface(nic)}")
    return "\n".join(lines) + "\n"


def become_hosts(lab: Lab, directory: Path) -> None:
    """Give every host of an open lab its identity. The directory is for files that are gone when this returns.

    Raises ``OSError``.
    """
    text = hosts_file(lab.hosts, lab.nics)
    for host in range(lab.hosts):
        lab.call(host, _become_host, host_name(host), text, directory)


def namespace_paths(lab: Lab, host: int) -> tuple[str, ...]:
    """The host's namespaces as other processes find them, in the order in which they are to be entered."""
    thread = lab.call(host, threading.get_native_id)
    return tuple(thread_path(thread, kind) for kind in ("user", "net", "uts", "mnt"))


def thread_path(thread: int, kind: str) -> str:
    """A namespace of one of our threads."""
    return f"/proc/{os.getpid()}/task/{thread}/ns/{kind}"


def _become_host(name: str, hosts_text: str, directory: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS), f"leaving the machine's mounts and name for {name}")
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "keeping mounts to ourselves")
    _check(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None), "mounting /sys")
    socket.sethostname(name)
    for target, text in (("/etc/hosts", hosts_text), ("/etc/resolv.conf", RESOLV_CONF)):
        if Path(target).exists():
            _show_instead(libc, target, text, directory)


def _show_instead(libc: ctypes.CDLL, target: str, text: str, directory: Path) -> None:
    descriptor, path = tempfile.mkstemp(dir=directory)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        _check(libc.mount(path.encode(), target.encode(), None, MS_BIND, None), f"mounting {target}")
    finally:
        os.unlink(path)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
