"""Every setting, in one frozen table: its default, unit, and why that number. The only file that reads the environment.

Precedence: argument > environment variable > default. A setting is read once, when a job connects, and passed down.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from r2ccl.errors import ConfigurationError

KIB = 1 << 10
MIB = 1 << 20
#: Smaller chunks are all overhead; larger ones are refused by the wire.
CHUNK_BYTES_LEAST = 64
CHUNK_BYTES_MOST = 4 * MIB
#: What R2CCL_DEBUG may be, and the level of Python's logging that it means.
LOG_LEVELS: Final = {"WARN": 30, "INFO": 20, "TRACE": 10}


def setting(default: Any, variable: str, unit: str, why: str, *, shown: bool = True) -> Any:
    """A row of the table. What is not ``shown`` stays out of ``repr``, and so out of logs."""
    return dataclasses.field(default=default, repr=shown, metadata={"variable": variable, "unit": unit, "why": why})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Times in seconds, sizes in bytes."""

    nics: str = setting(
        "", "R2CCL_NICS", "", "names or addresses of NICs to use, or ^name to leave out; empty: all usable"
    )
    spare_nics: str = setting("", "R2CCL_SPARE_NICS", "", "names of NICs that carry nothing until another is lost")
    nic_speed_mbit_s: int = setting(
        0, "R2CCL_NIC_SPEED", "Mbit/s", "speed of each NIC where the system says none or a wrong one; 0: ask the system"
    )
    node_id: str = setting("", "R2CCL_NODE_ID", "", "overrides what is recognised as one node")
    job: str = setting(
        "", "R2CCL_JOB", "", "name that tells jobs on the same machines apart; empty: made from the rendezvous port"
    )
    secret: str = setting("", "R2CCL_SECRET", "", "the job's shared secret", shown=False)
    secret_file: str = setting("", "R2CCL_SECRET_FILE", "", "file that holds the job's secret")
    insecure: bool = setting(False, "R2CCL_INSECURE", "", "1 admits peers beyond loopback without a secret")
    timeout_s: float = setting(
        0.0, "R2CCL_TIMEOUT_SEC", "s", "limit of every operation; 0: none, a slow peer is no error"
    )
    connect_timeout_s: float = setting(
        60.0, "R2CCL_CONNECT_TIMEOUT", "s", "how long ranks may take to find one another; containers start slowly"
    )
    close_timeout_s: float = setting(
        5.0, "R2CCL_CLOSE_TIMEOUT", "s", "how long close() lingers for peers that still need answers"
    )
    unreachable_after_s: float = setting(
        5.0, "R2CCL_UNREACHABLE_AFTER", "s", "grace time without any path before a peer counts as unreachable"
    )
    chunk_bytes: int = setting(
        256 * KIB,
        "R2CCL_CHUNK_BYTES",
        "bytes",
        "stays in the second-level cache: 1.6 times faster than 1 to 4 MiB chunks",
    )
    eager_bytes: int = setting(
        64 * KIB, "R2CCL_EAGER_BYTES", "bytes", "up to here a send goes out from a copy, which costs less than waiting"
    )
    credit_bytes: int = setting(
        1 * MIB, "R2CCL_CREDIT_BYTES", "bytes", "unsolicited bytes a peer may send; memory bound = peers x this"
    )
    heartbeat_s: float = setting(0.010, "R2CCL_HEARTBEAT", "s", "period of beats on links with unacknowledged chunks")
    idle_beat_s: float = setting(
        1.0, "R2CCL_IDLE_BEAT", "s", "period of beats on idle links: finds a dead one before use"
    )
    silence_s: float = setting(
        0.060,
        "R2CCL_SILENCE",
        "s",
        "bytes in flight and no sign for this long: more than two beats, and than the delayed-ACK bound (44 ms)",
    )
    bulk_silence_s: float = setting(
        0.5,
        "R2CCL_BULK_SILENCE",
        "s",
        "as silence, for bulk alone under green beats: above the kernel's 200 ms re-send timer",
    )
    dial_timeout_s: float = setting(1.0, "R2CCL_DIAL_TIMEOUT", "s", "a connection not made by then is tried again")
    redial_s: float = setting(0.2, "R2CCL_REDIAL", "s", "between attempts to make a lost connection anew")
    quiet_s: float = setting(
        0.25, "R2CCL_QUIET", "s", "how long a returned link must behave before it carries again; doubles with each flap"
    )
    quiet_max_s: float = setting(60.0, "R2CCL_QUIET_MAX", "s", "limit of that doubling: a link is never given up")
    stable_s: float = setting(10.0, "R2CCL_STABLE", "s", "after this long in service a link's flaps are forgotten")
    roll_call_s: float = setting(
        0.25, "R2CCL_ROLL_CALL", "s", "an unfinished operation is announced to all after this, then every second"
    )
    laggard_log_s: float = setting(10.0, "R2CCL_LAGGARD_LOG", "s", "when to log who has not entered an operation")
    running_max: int = setting(64, "R2CCL_RUNNING_MAX", "operations", "run at once; more wait as references")
    waiting_max: int = setting(4096, "R2CCL_WAITING_MAX", "operations", "wait; one more is a UsageError")
    checksum: str = setting("auto", "R2CCL_CHECKSUM", "", "on, off, or auto: on between nodes, off within one")
    debug: str = setting("WARN", "R2CCL_DEBUG", "", "log level: WARN, INFO or TRACE")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not value >= 0:  # of NaN, too
                raise ConfigurationError(f"{field.metadata['variable']}={value} must not be negative")
        if not CHUNK_BYTES_LEAST <= self.chunk_bytes <= CHUNK_BYTES_MOST:
            limits = f"from {CHUNK_BYTES_LEAST} to {CHUNK_BYTES_MOST}"
            raise ConfigurationError(f"R2CCL_CHUNK_BYTES={self.chunk_bytes} must be {limits}")
        if self.debug not in LOG_LEVELS or self.checksum not in ("on", "off", "auto"):
            raise ConfigurationError(
                f"R2CCL_DEBUG={self.debug!r} must be one of {', '.join(LOG_LEVELS)}, "
                f"R2CCL_CHECKSUM={self.checksum!r} one of on, off, auto"
            )

    def replace(self, **changes: Any) -> Settings:
        """A copy with some settings changed. Raises :class:`ConfigurationError` for a name that does not exist."""
        known = {field.name for field in dataclasses.fields(self)}
        for name in changes:
            if name not in known:
                raise ConfigurationError(f"no setting is called {name!r}{_did_you_mean(name, known)}")
            wanted = type(getattr(self, name))
            fits = type(changes[name]) is wanted or (wanted is float and type(changes[name]) is int)
            if not fits:
                raise ConfigurationError(f"{name} must be {wanted.__name__}, not {type(changes[name]).__name__}")
        return dataclasses.replace(self, **changes)


def _did_you_mean(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _parse(text: str, default: Any, variable: str) -> Any:
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}[
                text.lower()
            ]
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
    except (KeyError, ValueError):
        raise ConfigurationError(f"{variable}={text!r} is not a valid {type(default).__name__}") from None
    return text


def environment() -> Mapping[str, str]:
    """The process's environment, for those who are handed it as an argument."""
    return os.environ


def read_settings(environ: Mapping[str, str] | None = None) -> tuple[Settings, list[str]]:
    """Settings from the environment, and warnings about ``R2CCL_*`` names that are no settings."""
    source = environment() if environ is None else environ
    by_variable = {field.metadata["variable"]: field for field in dataclasses.fields(Settings)}
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for name, text in source.items():
        if name in by_variable:
            field = by_variable[name]
            values[field.name] = _parse(text, field.default, name)
        elif name.startswith("R2CCL_"):
            warnings.append(f"{name} is not a setting{_did_you_mean(name, set(by_variable))}")
    return Settings(**values), warnings


def job_secret(settings: Settings) -> bytes:
    """The job's secret: from the argument or variable, else from the file, else empty."""
    if settings.secret:
        return settings.secret.encode(errors="surrogateescape")
    if settings.secret_file:
        try:
            with open(settings.secret_file, "rb") as file:
                secret = file.read().strip()
        except OSError as missing:
            raise ConfigurationError(
                f"R2CCL_SECRET_FILE={settings.secret_file!r} cannot be read: {missing}"
            ) from missing
        if not secret:
            raise ConfigurationError(f"R2CCL_SECRET_FILE={settings.secret_file!r} is empty")
        return secret
    return b""
