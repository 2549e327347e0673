"""Where a process learns which rank it is and where the others meet.

Arguments go before RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun and our own ``r2ccl run`` set them, and
those before what other launchers say in words of their own (see launchers.py). Nothing is guessed: a job in which one
process believes to be alone ends in a wrong gradient, not in an error, so what is missing or contradicts itself is
named.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from r2ccl.errors import ConfigurationError
from r2ccl.rendezvous.launchers import Launched, hint, launched_by, number

_HOW = (
    "start the script with `r2ccl run -n 4 script.py`, torchrun, mpirun or srun, set the variables, "
    'or pass rank=, size= and rendezvous="tcp://host:port"'
)
_PORT_MAX = 65535
#: Names of jobs in the handshake are shorter than 129 bytes.
_JOB_ID_CHARACTERS_MAX = 100
_ARGUMENTS = "arguments"
_ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Placement:
    """Which rank this process is, of how many, and where they meet."""

    rank: int
    size: int
    #: Index among the ranks on this machine, where the launcher says.
    local_rank: int | None
    host: str
    port: int
    #: Who said the rank and the size, for the log: ``arguments``, ``environment``, ``mpirun``, or two of them.
    source: str
    #: Who said where to meet, for the log.
    met_by: str = ""
    #: The launcher's name for the job, if the launcher made it.
    job_id: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether the meeting place says that all ranks are on this machine."""
        return self.size == 1 or is_loopback_host(self.host)

    def job_name(self, setting: str) -> str:
        """The job's name: ``R2CCL_JOB``, or else the launcher's name for it, or else made from the port.

        All ranks are told the same port, while one may know the host by name and another by address. Two jobs whose
        ranges of ports overlap then tell each other apart even without names.
        """
        if setting or not self.job_id:
            return setting or f"port-{self.port}"
        if self.job_id.isascii() and len(self.job_id) <= _JOB_ID_CHARACTERS_MAX:
            return f"job-{self.job_id}"
        return f"job-{hashlib.sha256(self.job_id.encode(errors='replace')).hexdigest()}"

    def describe(self) -> str:
        """One line for the log: who we are, where we meet, and who said so."""
        local = "" if self.local_rank is None else f" local_rank={self.local_rank}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = f"tcp://{host}:{self.port} ({self.met_by})" if self.port else "none needed"
        return f"placement: rank={self.rank} size={self.size}{local} ({self.source}) rendezvous={where}"


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
    """Put arguments, environment and launcher together, in this order. Raises :class:`ConfigurationError`."""
    for name, argument in (("rank", rank), ("size", size), ("local_rank", local_rank)):
        if argument is not None and type(argument) is not int:
            raise ConfigurationError(f"{name}={argument!r} must be an int, not {type(argument).__name__}")
    who = _who(environ, rank, size)
    host, port, met_by = _meeting_place(environ, rendezvous, who)
    if local_rank is None:
        local_rank = number(environ, "LOCAL_RANK")
    if local_rank is None and who.launched is not None:
        local_rank = who.launched.local_rank
    job_id = "" if who.launched is None else who.launched.job_id
    return Placement(who.rank, who.size, local_rank, host, port, who.source, met_by, job_id)


@dataclass(frozen=True, slots=True)
class _Who:
    rank: int
    size: int
    source: str
    #: What the launcher says, if the rank is from it. What it says of the job then holds for all ranks alike, which
    #: could not be said if some were placed by it and others by an argument that happens to agree.
    launched: Launched | None


def _who(environ: Mapping[str, str], rank: int | None, size: int | None) -> _Who:
    ranks = [(rank, _ARGUMENTS), (number(environ, "RANK"), _ENVIRONMENT)]
    sizes = [(size, _ARGUMENTS), (number(environ, "WORLD_SIZE"), _ENVIRONMENT)]
    launched = None
    if _first(ranks) is None or _first(sizes) is None:
        # Not asked earlier: what others left in the environment of a process that knows who it is says nothing.
        launched = launched_by(environ)
    if launched is not None:
        ranks.append((launched.rank, launched.launcher))
        sizes.append((launched.size, launched.launcher))
    chosen_rank, chosen_size = _first(ranks), _first(sizes)
    if chosen_rank is None or chosen_size is None:
        named = (("RANK (rank=)", chosen_rank), ("WORLD_SIZE (size=)", chosen_size))
        absent = " and ".join(name for name, value in named if value is None)
        raise ConfigurationError(f"missing: {absent}{hint(environ)}; {_HOW}. A job of one is rank=0, size=1")
    (of_rank, rank_by), (of_size, size_by) = chosen_rank, chosen_size
    if launched is not None and rank_by != launched.launcher:
        launched = None
    if launched is not None and launched.size not in (None, of_size):
        raise ConfigurationError(
            f"the size is {of_size} ({size_by}), but {rank_by}, which says that this is rank {of_rank}, started "
            f"{launched.size} ranks: say neither, or both the rank and the size"
        )
    if of_size < 1 or not 0 <= of_rank < of_size:
        raise ConfigurationError(f"rank {of_rank} of {of_size} is impossible: ranks go from 0 to size - 1")
    return _Who(of_rank, of_size, rank_by if rank_by == size_by else f"{rank_by} and {size_by}", launched)


def _first(said: list[tuple[int | None, str]]) -> tuple[int, str] | None:
    """The first value that anybody said, and who."""
    return next(((value, source) for value, source in said if value is not None), None)


def _meeting_place(environ: Mapping[str, str], rendezvous: str | None, who: _Who) -> tuple[str, int, str]:
    """Host, port, and who said so."""
    if rendezvous is not None:
        return *_parse_url(rendezvous), "rendezvous="
    host, port = environ.get("MASTER_ADDR", "").strip(), number(environ, "MASTER_PORT")
    host_by, port_by = "MASTER_ADDR", "MASTER_PORT"
    if who.size == 1 and not (host and port is not None):
        return "127.0.0.1", 0, ""
    obstacles = []
    if who.launched is not None:
        if not host:
            host, host_by = who.launched.host, who.launched.launcher
            obstacles += [] if host else [who.launched.no_host]
        if port is None:
            port, port_by = who.launched.port, f"job id {who.launched.job_id}"
            obstacles += [] if port else [f"{who.launched.launcher} gives the job no name from which to make a port"]
    if host and port is not None:
        return host, _checked_port(port, f"MASTER_PORT={port}"), f"{host_by}, {port_by}"
    absent = [name for name, there in (("MASTER_ADDR", host), ("MASTER_PORT", port is not None)) if not there]
    why = "".join(f"; {obstacle}" for obstacle in obstacles)
    raise ConfigurationError(f"missing: {' and '.join(absent)}, the address at which rank 0 is reached{why}; {_HOW}")


def _parse_url(rendezvous: str) -> tuple[str, int]:
    form = 'is not of the form "tcp://host:port"'
    if not isinstance(rendezvous, str):
        raise ConfigurationError(f"rendezvous={rendezvous!r} {form}")
    if "@" in rendezvous:
        # Not shown: what stands before the sign may be a password, and errors end up in logs.
        raise ConfigurationError(
            f"rendezvous= {form}: it has an @, and there is no user and no password to give; the job's secret goes "
            "into R2CCL_SECRET_FILE or R2CCL_SECRET"
        )
    wrong = f"rendezvous={rendezvous!r} {form}"
    try:
        parts = urlsplit(rendezvous)
        port = parts.port
    except ValueError as bad:
        raise ConfigurationError(f"{wrong}: {bad}") from bad
    if (
        parts.scheme != "tcp"
        or not parts.hostname
        or port is None
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
    ):
        raise ConfigurationError(wrong)
    return parts.hostname, _checked_port(port, wrong)


def _checked_port(port: int, what: str) -> int:
    if not 0 < port <= _PORT_MAX:
        raise ConfigurationError(f"{what}: a port is between 1 and {_PORT_MAX}")
    return port
