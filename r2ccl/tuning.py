"""What a message costs here, as ``r2ccl tune`` measured it: the figures that plans are made from, and their file.

A message of m bytes takes alpha + m beta, and keeps its sender busy for an overhead; delta is what a byte costs that
has left the cache before it goes on. These depend on the *wire*: memory that ranks of one node share, TCP over
loopback, or a network. Reducing (gamma) is what a rank does by itself. (``planner.cost`` has the formulas.) Figures of
a wire that was not measured are missing, and the planner's defaults hold for it.

The file is JSON. It is the one that R2CCL_TUNING names, else ``$XDG_CACHE_HOME/r2ccl/tuning.json`` (``~/.cache`` where
that is not set), if it is there; R2CCL_TUNING=off reads none. A file that cannot be right stops ``connect`` before
anything is sent, since figures that are taken half would give plans that nobody measured.

All ranks have to plan from identical figures. So only rank 0's count: it announces them when the ranks meet, and every
rank finds them in the book of addresses (``topology.Member.tuning``). A job that lasts keeps those it began with.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from r2ccl.checks import exactly
from r2ccl.errors import ConfigurationError

#: R2CCL_TUNING: read no file.
OFF: Final = "off"
FORMAT: Final = 1
#: What no machine does, and no measurement that succeeded says. Beyond these a file is of something else.
SECONDS_LIMITS: Final = (1e-8, 10.0)
SECONDS_PER_BYTE_LIMITS: Final = (1e-13, 1e-3)
#: A whole file is below 1 KiB; nobody's gigabyte is read because a variable names it.
FILE_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class WireCost:
    """Of one kind of wire, between two ranks, over all the NICs that they have."""

    #: From a message's send to its use at the receiver, without its bytes.
    alpha_s: float
    beta_s_per_byte: float
    #: How long a rank is busy with one more message while others are on their way.
    overhead_s: float
    #: A byte that has left the cache before it goes on: what halving-doubling pays, and the ring does not.
    delta_s_per_byte: float

    def __post_init__(self) -> None:
        _check("alpha_s", self.alpha_s, SECONDS_LIMITS)
        _check("overhead_s", self.overhead_s, SECONDS_LIMITS)
        _check("delta_s_per_byte", self.delta_s_per_byte, SECONDS_PER_BYTE_LIMITS)
        _check("beta_s_per_byte", self.beta_s_per_byte, SECONDS_PER_BYTE_LIMITS)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Figures of one machine. None: that wire was not measured."""

    #: Reducing a received byte.
    gamma_s_per_byte: float
    shared_memory: WireCost | None = None
    loopback: WireCost | None = None
    network: WireCost | None = None

    def __post_init__(self) -> None:
        _check("gamma_s_per_byte", self.gamma_s_per_byte, SECONDS_PER_BYTE_LIMITS)

    def wires(self) -> dict[str, WireCost]:
        """Those that were measured, by name."""
        found = {name: getattr(self, name) for name in WIRES}
        return {name: cost for name, cost in found.items() if cost is not None}

    def without_shared_memory(self) -> Tuning:
        """For a job whose ranks share none."""
        return dataclasses.replace(self, shared_memory=None)

    def as_numbers(self) -> list[float]:
        """For an announcement: nought stands for what was not measured."""
        numbers = [self.gamma_s_per_byte]
        for name in WIRES:
            cost: WireCost | None = getattr(self, name)
            numbers += NOT_MEASURED if cost is None else dataclasses.astuple(cost)
        return numbers

    @classmethod
    def from_numbers(cls, numbers: Sequence[Any]) -> Tuning:
        """The inverse of :meth:`as_numbers`. Raises ``ValueError`` or ``TypeError`` on anything else."""
        if len(numbers) != NUMBERS:
            raise ValueError(f"{len(numbers)} figures of a tuning, not {NUMBERS}")
        figures = [exactly(float, number) for number in numbers]
        each = len(NOT_MEASURED)
        of_wires = {wire: figures[1 + each * place :][:each] for place, wire in enumerate(WIRES)}
        costs = {wire: WireCost(*cost) for wire, cost in of_wires.items() if cost != [*NOT_MEASURED]}
        return cls(figures[0], **costs)


#: Kinds of wires, the fastest first: fields of :class:`Tuning`, keys in the file.
WIRES: Final = ("shared_memory", "loopback", "network")
NOT_MEASURED: Final = (0.0, 0.0, 0.0, 0.0)
NUMBERS: Final = 1 + len(NOT_MEASURED) * len(WIRES)


def _check(name: str, value: float, limits: tuple[float, float]) -> None:
    least, most = limits
    if not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} = {value!r:.40} is not from {least:g} to {most:g}")


@dataclass(frozen=True, slots=True)
class TuningFile:
    """A file that was read."""

    path: Path
    tuning: Tuning
    #: Where and on what it was measured, for a person.
    measured: str


def default_path(environ: Mapping[str, str]) -> Path | None:
    """Where the file is when R2CCL_TUNING names none. None: this user has no home."""
    cache = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # the specification: others are to be ignored
        home = environ.get("HOME", "")
        if not home:
            return None
        cache = os.path.join(home, ".cache")
    return Path(cache) / "r2ccl" / "tuning.json"


def find_tuning(named: str, environ: Mapping[str, str]) -> TuningFile | None:
    """The file that holds, if any. ``named``: R2CCL_TUNING. Raises :class:`ConfigurationError`."""
    if named == OFF:
        return None
    if named:
        return read_tuning(Path(named))
    path = default_path(environ)
    # A home that we may not look into has no file for us; Path.exists() would raise.
    return read_tuning(path) if path is not None and os.path.exists(path) else None


def read_tuning(path: Path) -> TuningFile:
    """Raises :class:`ConfigurationError`, with the way out."""
    import json  # most ranks have no file, and need no parser

    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as unreadable:
        raise ConfigurationError(
            f"{path}: the tuning cannot be read: {unreadable.strerror}; {_WAY_OUT}"
        ) from unreadable
    try:
        if len(text) > FILE_BYTES_MAX:
            raise ValueError(f"it is longer than {FILE_BYTES_MAX} bytes")
        return TuningFile(path, *_parse(json.loads(text)))
    except (KeyError, TypeError, ValueError, RecursionError) as bad:
        said = f"{bad.args[0]!r} is missing" if isinstance(bad, KeyError) else str(bad)
        raise ConfigurationError(f"{path}: this is no tuning: {said}; {_WAY_OUT}") from bad


_WAY_OUT: Final = "measure anew with `r2ccl tune`, name another file in R2CCL_TUNING, or set R2CCL_TUNING=off"


def _parse(found: Any) -> tuple[Tuning, str]:
    fields = exactly(dict, found)
    if (version := fields["format"]) != FORMAT:
        raise ValueError(f"its format is {version!r:.40}, this r2ccl reads {FORMAT}")
    wires = exactly(dict, fields["wires"])
    if unknown := sorted(set(wires) - set(WIRES)):
        raise ValueError(f"no kind of wire is called {unknown[0]!r:.40}")
    names = [field.name for field in dataclasses.fields(WireCost)]
    costs = {wire: WireCost(*(_figure(cost, name) for name in names)) for wire, cost in wires.items()}
    tuning = Tuning(_figure(fields, "gamma_s_per_byte"), **costs)
    return tuning, exactly(str, fields["measured"])


def _figure(fields: Any, name: str) -> float:
    value = exactly(dict, fields)[name]
    return float(value) if type(value) is int else exactly(float, value)


def write_tuning(path: Path, tuning: Tuning, measured: str) -> None:
    """Replace the file as a whole, or leave it. Raises ``OSError``."""
    import json

    fields = {
        "format": FORMAT,
        "measured": measured,
        "gamma_s_per_byte": tuning.gamma_s_per_byte,
        "wires": {name: dataclasses.asdict(cost) for name, cost in tuning.wires().items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        new.write_text(json.dumps(fields, indent=2) + "\n")
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
