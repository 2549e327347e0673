"""A port for ranks to meet at, for whoever starts them and does not listen on it.

Seconds pass from when it is found free until rank 0 listens on it. Meanwhile the system gives ports of its ephemeral
range to whoever wants any, and where rank 0 can't take another one (torch's store can't) the other ranks wait for it in
vain. So it is none of that range.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: Below it are ports of services that people know.
_FIRST = 16384
#: Where the system does not say where its ephemeral range begins: the usual one's beginning.
_USUAL_END = 32768
_TRIES = 256


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of ``host``'s that is free now, and that nobody is given who did not ask for it; of the ephemeral
    range where that leaves no other."""
    end = _ephemeral_begins()
    for _ in range(_TRIES if end > _FIRST else 0):
        port = _FIRST + secrets.randbelow(end - _FIRST)
        if _is_free(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _ephemeral_begins() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_END
