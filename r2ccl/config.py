"""Every setting, in one frozen table: its default, unit, and why that number. The only file that reads the environment.

Precedence: argument > environment variable > file > default. A setting is read once, when a job connects, and passed
down. Of files one is read: the one that R2CCL_CONFIG names, else ./r2ccl.toml, else ~/.config/r2ccl.toml. Its keys are
the names of the settings, at the top level, in the units of the table. Where each value came from is kept, because
"who said so" is the first question about a setting that surprises.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from r2ccl.errors import ConfigurationError

KIB = 1 << 10
MIB = 1 << 20
#: Smaller chunks are all overhead; larger ones are refused by the wire.
CHUNK_BYTES_LEAST = 64
CHUNK_BYTES_MOST = 4 * MIB
#: A network that has more ways than this is found whole by a few of them.
LANES_PER_NIC_MOST = 16
#: What R2CCL_DEBUG may be, and the level of Python's logging that it means.
LOG_LEVELS: Final = {"WARN": 30, "INFO": 20, "TRACE": 10}
#: Names the file of settings; no setting itself, for a file cannot say where it is.
FILE_VARIABLE: Final = "R2CCL_CONFIG"
FILE_NAME: Final = "r2ccl.toml"
#: Where a value came from: the first word of each origin, first come first served.
PRECEDENCE: Final = ("argument", "environment", "file", "default")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


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
    lanes_per_nic: int = setting(
        0,
        "R2CCL_LANES_PER_NIC",
        "lanes",
        "over one NIC, each with ports of its own, so that a network with several ways spreads them; "
        "0: 2 for a host's only NIC, else 1",
    )
    node_id: str = setting("", "R2CCL_NODE_ID", "", "overrides what is recognised as one node")
    shared_memory: str = setting(
        "auto", "R2CCL_SHARED_MEMORY", "", "auto: ranks of one node use it before any NIC, where it works; off: never"
    )
    hierarchy: str = setting(
        "auto",
        "R2CCL_HIERARCHY",
        "",
        "auto: where it should be faster, ranks of one node reduce and share among themselves what then crosses NICs "
        "once; on: wherever there is a schedule for it; off: never",
    )
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
        "largest chunk over a network; on a slow NIC less, and between ranks of one machine up to eight times as much",
    )
    eager_bytes: int = setting(
        64 * KIB,
        "R2CCL_EAGER_BYTES",
        "bytes",
        "up to here a send goes out from a copy, which costs less than waiting; on one machine some of 4 times as much",
    )
    tuning: str = setting(
        "",
        "R2CCL_TUNING",
        "",
        "file of `r2ccl tune` with what messages cost; empty: the one in the user's cache; off: none. Rank 0's holds",
    )
    algorithms: str = setting(
        "",
        "R2CCL_ALGORITHMS",
        "",
        "use these where they are allowed, such as all_reduce=ring,broadcast=chain; empty: what should be fastest",
    )
    credit_bytes: int = setting(
        1 * MIB, "R2CCL_CREDIT_BYTES", "bytes", "unsolicited bytes a peer may send (4 x on one machine): memory bound"
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
    evidence_s: float = setting(
        1.0, "R2CCL_EVIDENCE", "s", "between two looks at each link's latency, share, resent ratio and interface errors"
    )
    evidence_sigmas: float = setting(
        3.0, "R2CCL_EVIDENCE_SIGMAS", "sigmas", "robust, above a path's own usual: over this a sample speaks against it"
    )
    evidence_window: int = setting(
        5, "R2CCL_EVIDENCE_WINDOW", "samples", "are judged together: so many looks find a fault"
    )
    evidence_confirmations: int = setting(
        3, "R2CCL_EVIDENCE_CONFIRMATIONS", "samples", "of those must agree, more on spiky paths; 1 alarms all the time"
    )
    latency_excess: float = setting(
        0.25, "R2CCL_LATENCY_EXCESS", "", "above the usual by a smaller share a latency accuses nobody, however steady"
    )
    latency_excess_s: float = setting(
        0.0002, "R2CCL_LATENCY_EXCESS_SEC", "s", "nor one by less than this: wake-ups on a busy host cost as much"
    )
    others_share: float = setting(
        0.1, "R2CCL_OTHERS_SHARE", "", "where a NIC carried more than this part for others, late answers accuse nobody"
    )
    share_least: float = setting(
        0.5, "R2CCL_SHARE_LEAST", "", "who carries more than this part of its usual share of the traffic is not accused"
    )
    resent_excess: float = setting(
        0.005, "R2CCL_RESENT_EXCESS", "", "resent / sent above the path's own usual by less accuses nobody"
    )
    hold_down_s: float = setting(
        10.0, "R2CCL_HOLD_DOWN", "s", "so long a slow link must be clean to carry again; doubles when it repeats"
    )
    hold_down_max_s: float = setting(300.0, "R2CCL_HOLD_DOWN_MAX", "s", "limit of that doubling")
    relearn_s: float = setting(
        1800.0, "R2CCL_RELEARN", "s", "what lasts so long without a quiet time is what is usual from then on"
    )
    switch_refill_s: float = setting(
        60.0, "R2CCL_SWITCH_REFILL", "s", "until a rank may leave one more slow link: if all are slow, none is better"
    )
    switch_burst: int = setting(4, "R2CCL_SWITCH_BURST", "switches", "saved up at most: half the NICs of a big host")
    hedge_share: float = setting(0.1, "R2CCL_HEDGE_SHARE", "", "share of the bytes sent that may go out twice")
    hedge_burst_bytes: int = setting(4 * MIB, "R2CCL_HEDGE_BURST", "bytes", "hedging budget that can be saved up")
    hedge_pause_s: float = setting(0.005, "R2CCL_HEDGE_PAUSE", "s", "between two rounds of hedging")
    hedge_pause_max_s: float = setting(1.0, "R2CCL_HEDGE_PAUSE_MAX", "s", "limit of that doubling")
    dial_timeout_s: float = setting(1.0, "R2CCL_DIAL_TIMEOUT", "s", "a connection not made by then is tried again")
    redial_s: float = setting(0.2, "R2CCL_REDIAL", "s", "between attempts to make a lost connection anew")
    quiet_s: float = setting(
        0.05,
        "R2CCL_QUIET",
        "s",
        "how long a returned link must behave before it carries again; doubles with each flap that comes soon after. "
        "Of two NICs, one that is gone for 0.1 s twice a second costs 16 % of the throughput; with 0.25, half of it",
    )
    quiet_max_s: float = setting(60.0, "R2CCL_QUIET_MAX", "s", "limit of that doubling: a link is never given up")
    stable_s: float = setting(10.0, "R2CCL_STABLE", "s", "after this long in service a link's flaps are forgotten")
    backup_paths: int = setting(
        2,
        "R2CCL_BACKUP_PATHS",
        "links",
        "links across rails kept ready per peer, as far as there are routes: with two, the loss of any NIC leaves one",
    )
    relay_queue_bytes: int = setting(
        16 * MIB,
        "R2CCL_RELAY_QUEUE",
        "bytes",
        "a rank that relays drops what comes while this much waits for the peer; memory bound = peers x this",
    )
    relay_patience_s: float = setting(
        0.2, "R2CCL_RELAY_PATIENCE", "s", "nothing came through a relay for this long: others are asked for the peer"
    )
    roll_call_s: float = setting(
        0.25, "R2CCL_ROLL_CALL", "s", "an unfinished operation is announced to all after this, then every second"
    )
    laggard_log_s: float = setting(10.0, "R2CCL_LAGGARD_LOG", "s", "when to log who has not entered an operation")
    running_max: int = setting(64, "R2CCL_RUNNING_MAX", "operations", "run at once; more wait as references")
    waiting_max: int = setting(4096, "R2CCL_WAITING_MAX", "operations", "wait; one more is a UsageError")
    fault_injection: bool = setting(
        False,
        "R2CCL_FAULT_INJECTION",
        "",
        "1: its control port takes faults (fault-inject); memory is not shared",
    )
    checksum: str = setting("auto", "R2CCL_CHECKSUM", "", "on, off, or auto: on between nodes, off within one")
    debug: str = setting("WARN", "R2CCL_DEBUG", "", "log level: WARN, INFO or TRACE")
    debug_file: str = setting(
        "", "R2CCL_DEBUG_FILE", "", "file that takes the log instead of standard error; %h: host, %p: process id"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not value >= 0:  # of NaN, too
                raise ConfigurationError(f"{field.metadata['variable']}={value} must not be negative")
        if self.lanes_per_nic > LANES_PER_NIC_MOST:
            raise ConfigurationError(f"R2CCL_LANES_PER_NIC={self.lanes_per_nic} must be at most {LANES_PER_NIC_MOST}")
        if not CHUNK_BYTES_LEAST <= self.chunk_bytes <= CHUNK_BYTES_MOST:
            limits = f"from {CHUNK_BYTES_LEAST} to {CHUNK_BYTES_MOST}"
            raise ConfigurationError(f"R2CCL_CHUNK_BYTES={self.chunk_bytes} must be {limits}")
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{_BY_NAME[name].metadata['variable']}=0 must be positive")
        if self.share_least > 1:
            raise ConfigurationError(f"R2CCL_SHARE_LEAST={self.share_least:g} must be at most 1")
        _refuse_other_words(self)

    def replace(self, **changes: Any) -> Settings:
        """A copy with some settings changed. Raises :class:`ConfigurationError` for a name that does not exist."""
        for name, value in changes.items():
            if name not in _BY_NAME:
                raise ConfigurationError(f"no setting is called {name!r}{_did_you_mean(name, _BY_NAME)}")
            _refuse_wrong_type(name, name, value)
        return dataclasses.replace(self, **changes)


_BY_NAME: Final[Mapping[str, dataclasses.Field[Any]]] = MappingProxyType(
    {field.name: field for field in dataclasses.fields(Settings)}
)
#: Nought is no period, no number of samples, and no share.
POSITIVE: Final = (
    "evidence_s", "evidence_sigmas", "evidence_window", "evidence_confirmations", "share_least", "switch_refill_s",
)  # fmt: skip
#: Settings that are one of a few words.
WORDS: Final = {
    "shared_memory": ("auto", "off"), "hierarchy": ("auto", "on", "off"), "checksum": ("on", "off", "auto"),
    "debug": tuple(LOG_LEVELS),
}  # fmt: skip
_BY_VARIABLE: Final[Mapping[str, dataclasses.Field[Any]]] = MappingProxyType(
    {field.metadata["variable"]: field for field in _BY_NAME.values()}
)


def _refuse_other_words(settings: Settings) -> None:
    for name, words in WORDS.items():
        value = getattr(settings, name)
        if value not in words:
            variable = _BY_NAME[name].metadata["variable"]
            raise ConfigurationError(f"{variable}={value!r} must be one of {', '.join(words)}")


def _refuse_wrong_type(called: str, name: str, value: Any) -> None:
    wanted = type(_BY_NAME[name].default)
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        raise ConfigurationError(f"{called} must be {wanted.__name__}, not {type(value).__name__}")


def _did_you_mean(name: str, known: Mapping[str, Any]) -> str:
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


def replace_environment(variables: Mapping[str, str]) -> None:
    """Become a process that was started with this environment."""
    os.environ.clear()
    os.environ.update(variables)


class Reading(NamedTuple):
    """What :func:`read_settings` found."""

    settings: Settings
    #: For the log: names that are no settings, secrets that others can read.
    warnings: list[str]
    #: Name of each setting -> ``argument``, ``environment R2CCL_...``, ``file PATH`` or ``default``.
    origins: Mapping[str, str]
    #: The file that was read, or None.
    file: Path | None


def read_settings(
    environ: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] = _NOTHING,
    directory: Path = Path(),
) -> Reading:
    """All settings, each from the first that has it: arguments (by name), environment, file, default.

    ``directory`` is where ./r2ccl.toml is looked for; the home directory is HOME of ``environ``. Raises
    :class:`ConfigurationError`, which names the argument, the variable, or the file and its key.
    """
    source = environment() if environ is None else environ
    file = _find_file(source, directory)
    warnings: list[str] = []
    values: dict[str, Any] = {}
    origins = dict.fromkeys(_BY_NAME, "default")
    if file is not None:
        values = _read_file(file, warnings)
        origins |= dict.fromkeys(values, f"file {file}")
    for variable, text in source.items():
        if variable in _BY_VARIABLE:
            field = _BY_VARIABLE[variable]
            values[field.name] = _parse(text, field.default, variable)
            origins[field.name] = f"environment {variable}"
        elif variable.startswith("R2CCL_") and variable != FILE_VARIABLE:
            near = _did_you_mean(variable, {**_BY_VARIABLE, FILE_VARIABLE: None})
            warnings.append(f"{variable} is not a setting{near}")
    settings = Settings(**values).replace(**arguments)
    origins |= dict.fromkeys(arguments, "argument")
    if settings.secret and settings.secret_file and _rank(origins["secret_file"]) < _rank(origins["secret"]):
        # What is said nearer to the program holds: the secret in this file, not the one that a file of settings has.
        settings = settings.replace(secret="")
        origins["secret"] = origins["secret_file"]
    return Reading(settings, warnings, MappingProxyType(origins), file)


def _rank(origin: str) -> int:
    return PRECEDENCE.index(origin.partition(" ")[0])


def _find_file(environ: Mapping[str, str], directory: Path) -> Path | None:
    named = environ.get(FILE_VARIABLE, "")
    if named:
        return Path(named)
    candidates = [directory / FILE_NAME]
    if environ.get("HOME"):
        candidates.append(Path(environ["HOME"]) / ".config" / FILE_NAME)
    # A home that we may not look into has no file for us; Path.exists() would raise.
    return next((path for path in candidates if os.path.exists(path)), None)


def _read_file(path: Path, warnings: list[str]) -> dict[str, Any]:
    """The settings in a file, each of them checked also where something else goes before it."""
    import tomllib  # most ranks have no file, and need no parser

    try:
        with path.open("rb") as file:
            values = tomllib.load(file)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as unreadable:
        raise ConfigurationError(f"{path}: the file of settings cannot be read: {unreadable.strerror}") from unreadable
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as broken:
        raise ConfigurationError(f"{path}: this is not TOML: {broken}") from broken
    for key, value in values.items():
        if key not in _BY_NAME:
            # A variable's name where the setting's belongs is nearer to what was meant than any name that looks alike.
            meant = _BY_VARIABLE[key].name if key in _BY_VARIABLE else key
            raise ConfigurationError(f"{path}: {key!r} is not a setting{_did_you_mean(meant, _BY_NAME)}")
        _refuse_wrong_type(f"{path}: {key}", key, value)
        try:
            Settings(**{key: value})
        except ConfigurationError as wrong:
            raise ConfigurationError(f"{path}: {key}: {wrong}") from wrong
    if values.get("secret") and mode & (stat.S_IRGRP | stat.S_IROTH):
        warnings.append(f"{path} holds the job's secret, and others can read it: chmod 600 {path}")
    return values


def shown_value(settings: Settings, name: str) -> str:
    """A setting's value for a person: as one would write it into the variable; never the secret."""
    value = getattr(settings, name)
    if not _BY_NAME[name].repr:
        return "set" if value else "not set"
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


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
