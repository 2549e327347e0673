"""Where a process learns which rank it is and where the others meet: arguments, else the launcher's environment.

The variables are the ones that torchrun, mpirun wrappers and our own ``r2ccl run`` set. Nothing is guessed: a job in
which one process believes to be alone ends in a wrong gradient, not in an error, so what is missing is named.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from r2ccl.errors import ConfigurationError

_HOW = (
    "start the script with `r2ccl run -n 4 script.py` or torchrun, set the variables, "
    'or pass rank=, size= and rendezvous="tcp://host:port"'
)
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class Placement:
    """Which rank this process is, of how many, and where they meet."""

    rank: int
    size: int
    #: Index among the ranks on this machine, where the launcher says.
    local_rank: int | None
    host: str
    port: int
    #: For the log: ``arguments``, ``environment`` or ``arguments and environment``.
    source: str

    @property
    def is_loopback(self) -> bool:
        """Whether the meeting place says that all ranks are on this machine."""
        return self.size == 1 or is_loopback_host(self.host)

    def job_name(self, setting: str) -> str:
        """The job's name: ``R2CCL_JOB``, or else made from the port.

        All ranks are told the same port, while one may know the host by name and another by address. Two jobs whose
        ranges of ports overlap then tell each other apart even without names.
        """
        return setting or f"port-{self.port}"


def is_loopback_host(host: str) -> bool:
    """Whether a host means "this machine" to everyone who reads it.

    A machine's own name may resolve to 127.0.1.1 on that machine (Debian does that), and to its real address
    elsewhere, so what a name resolves to proves nothing; only literal addresses and ``localhost`` count.
    """
    if host.lower() == "localhost" or host.lower().endswith((".localhost", "localhost.localdomain")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def place(
    environ: Mapping[str, str],
    *,
    rank: int | None = None,
    size: int | None = None,
    local_rank: int | None = None,
    rendezvous: str | None = None,
) -> Placement:
    """Put arguments and environment together, arguments first. Raises :class:`ConfigurationError`."""
    ranks = (_number(environ, "RANK", rank), _number(environ, "WORLD_SIZE", size))
    absent = [name for name, value in zip(("RANK (rank=)", "WORLD_SIZE (size=)"), ranks, strict=True) if value is None]
    if ranks[0] is None or ranks[1] is None:
        raise ConfigurationError(f"missing: {' and '.join(absent)}; {_HOW}. A job of one is rank=0, size=1")
    chosen_rank, chosen_size = ranks[0], ranks[1]
    if chosen_size < 1 or not 0 <= chosen_rank < chosen_size:
        raise ConfigurationError(f"rank {chosen_rank} of {chosen_size} is impossible: ranks go from 0 to size - 1")
    host, port = _meeting_place(environ, rendezvous, needed=chosen_size > 1)
    given = [rank is not None, size is not None, rendezvous is not None or chosen_size == 1]
    source = (
        "arguments" if all(given) else "arguments and environment" if any(given[:2]) or rendezvous else "environment"
    )
    return Placement(chosen_rank, chosen_size, _number(environ, "LOCAL_RANK", local_rank), host, port, source)


def _number(environ: Mapping[str, str], variable: str, argument: int | None) -> int | None:
    if argument is not None:
        if type(argument) is not int:
            raise ConfigurationError(f"{variable.lower()}={argument!r} must be an int, not {type(argument).__name__}")
        return argument
    text = environ.get(variable, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{variable}={text!r} is not a number") from None


def _meeting_place(environ: Mapping[str, str], rendezvous: str | None, needed: bool) -> tuple[str, int]:
    if rendezvous is not None:
        return _parse_url(rendezvous)
    host, port = environ.get("MASTER_ADDR", "").strip(), _number(environ, "MASTER_PORT", None)
    if host and port is not None:
        return host, _checked_port(port, f"MASTER_PORT={port}")
    if not needed:
        return "127.0.0.1", 0
    absent = [name for name, there in (("MASTER_ADDR", host), ("MASTER_PORT", port is not None)) if not there]
    raise ConfigurationError(f"missing: {' and '.join(absent)}, the address at which rank 0 is reached; {_HOW}")


def _parse_url(rendezvous: str) -> tuple[str, int]:
    wrong = f'rendezvous={rendezvous!r} is not of the form "tcp://host:port"'
    if not isinstance(rendezvous, str):
        raise ConfigurationError(wrong)
    try:
        parts = urlsplit(rendezvous)
        port = parts.port
    except ValueError as bad:
        raise ConfigurationError(f"{wrong}: {bad}") from bad
    if parts.scheme != "tcp" or not parts.hostname or port is None or parts.path not in ("", "/"):
        raise ConfigurationError(wrong)
    return parts.hostname, _checked_port(port, wrong)


def _checked_port(port: int, what: str) -> int:
    if not 0 < port <= _PORT_MAX:
        raise ConfigurationError(f"{what}: a port is between 1 and {_PORT_MAX}")
    return port
