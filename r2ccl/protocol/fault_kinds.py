"""The faults that can be asked for: their names, and what their values mean. Pure.

A :class:`Request` is a fault without a place: a kind and its numbers, all checked. The command line writes one, a
running job's control port reads one that somebody sent, and both mean the same by it. What is out of its range is a
``ValueError`` whose text says what would do.

    value of     as in           is
    loss         5%  0.05        a share of packets or frames, above 0, up to 1
    corrupt      1%  0.001       the same
    rate         100mbit 2gbit   bit/s, as tc writes them
    delay        5ms             a time
    flap         a pattern       phases "0.1s down, 0.4s up" and how often, as one list of times
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from typing import Final

#: No fault takes longer than this without being asked for again, no phase of a pattern either.
SECONDS_MAX: Final = 7 * 86400.0
#: A delay that lasts longer is silence.
DELAY_MAX_S: Final = 60.0
#: Phases of one turn of a pattern, and turns.
PHASES_MAX: Final = 64
TIMES_MAX: Final = 100_000
RATE_BITS_S_MIN: Final = 8_000.0
RATE_BITS_S_MAX: Final = 1e12

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_DURATION = re.compile(_NUMBER + r"\s*(us|ms|s|m|h)?")
_RATE = re.compile(_NUMBER + r"\s*(k|m|g)?bit(?:/s|ps)?", re.IGNORECASE)
_SHARE = re.compile(_NUMBER + r"\s*(%)?")
_PHASE = re.compile(r"(.+?)\s+(up|down)")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BITS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


class Kind(enum.StrEnum):
    """What can be done."""

    LINK_DOWN = "link-down"
    SILENT_DROP = "silent-drop"
    LOSS = "loss"
    RATE = "rate"
    DELAY = "delay"
    CORRUPT = "corrupt"
    FLAP = "flap"
    STOP = "stop"
    KILL = "kill"


class Direction(enum.StrEnum):
    """Of a NIC's traffic."""

    IN = "in"
    OUT = "out"
    BOTH = "both"


#: What a process suffers, not a NIC.
OF_PROCESSES: Final = (Kind.STOP, Kind.KILL)
#: What replaces an interface's qdisc.
OF_QUEUES: Final = (Kind.RATE, Kind.DELAY)
#: What has a value, and what that looks like.
VALUES: Final = {Kind.LOSS: "5%", Kind.RATE: "100mbit", Kind.DELAY: "5ms", Kind.CORRUPT: "0.1%"}
#: What a flap may switch on and off.
FLAPPING: Final = (Kind.LINK_DOWN, Kind.SILENT_DROP)
#: What may be limited to one direction.
DIRECTED: Final = (Kind.SILENT_DROP, Kind.LOSS, Kind.RATE, Kind.CORRUPT, Kind.FLAP)


@dataclass(frozen=True, slots=True)
class Phase:
    """Down or up, for so long."""

    down: bool
    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:g}s {'down' if self.down else 'up'}"


@dataclass(frozen=True, slots=True)
class Request:
    """One fault. ``value``: a share, bit/s or seconds, by kind; ``phases`` and ``times`` are a flap's."""

    kind: Kind
    value: float = 0.0
    direction: Direction = Direction.BOTH
    phases: tuple[Phase, ...] = ()
    times: int = 1
    flapping: Kind = Kind.LINK_DOWN

    def __post_init__(self) -> None:
        _check_value(self.kind, self.value)
        if self.direction is not Direction.BOTH and self.kind not in DIRECTED:
            raise ValueError(f"{self.kind} knows no direction; {', '.join(DIRECTED)} do")
        if (self.kind is Kind.FLAP) != bool(self.phases):
            raise ValueError('a flap, and nothing else, needs a pattern such as "0.1s down, 0.4s up"')
        if not 1 <= self.times <= TIMES_MAX or len(self.phases) > PHASES_MAX:
            raise ValueError(f"a pattern has up to {PHASES_MAX} phases and up to {TIMES_MAX} turns")
        if any(not 0 < phase.seconds <= SECONDS_MAX for phase in self.phases):
            raise ValueError(f"a phase lasts more than nothing and at most {SECONDS_MAX:g} s")
        if self.phases and not any(phase.down for phase in self.phases):
            raise ValueError("a pattern that is never down is no fault")
        if self.flapping not in FLAPPING:
            raise ValueError(f"a flap switches {' or '.join(FLAPPING)} on and off, not {self.flapping}")

    @property
    def seconds(self) -> float | None:
        """How long it takes by itself; None: until it is undone."""
        return self.times * sum(phase.seconds for phase in self.phases) if self.phases else None

    def __str__(self) -> str:
        words = [str(self.kind)]
        if self.kind in (Kind.LOSS, Kind.CORRUPT):
            words.append(f"{self.value * 100:g}%")
        elif self.kind is Kind.RATE:
            words.append(f"{self.value / 1e6:g}mbit")
        elif self.kind is Kind.DELAY:
            words.append(f"{self.value * 1e3:g}ms")
        elif self.kind is Kind.FLAP:
            words.append(f"of {self.flapping}, {', '.join(map(str, self.phases))}, {self.times} times")
        if self.direction is not Direction.BOTH:
            words.append(f"({self.direction} only)")
        return " ".join(words)


def _check_value(kind: Kind, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{kind} {value} is no number to go by")
    if kind in (Kind.LOSS, Kind.CORRUPT):
        if not 0 < value <= 1:
            raise ValueError(f"{kind} needs a share above 0 and up to 100%, not {value * 100:g}%")
    elif kind is Kind.RATE:
        if not RATE_BITS_S_MIN <= value <= RATE_BITS_S_MAX:
            raise ValueError("rate needs one from 8kbit to 1000gbit, such as 100mbit")
    elif kind is Kind.DELAY:
        if not 0 < value <= DELAY_MAX_S:
            raise ValueError(f"delay needs a time up to {DELAY_MAX_S:g}s, such as 5ms")
    elif value:
        raise ValueError(f"{kind} takes no value")


def duration(text: str) -> float:
    """Seconds of ``10s``, ``5ms``, ``2m``, ``1h`` or a plain number of seconds. Raises ``ValueError``."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _SECONDS[found[2] or "s"] if found else 0.0
    if not 0 < seconds <= SECONDS_MAX:
        raise ValueError(f"{text!r} is no time between 1us and 7 days; write 10s, 5ms, 2m or 1h")
    return seconds


def share(text: str) -> float:
    """Of ``5%`` or ``0.05``. Raises ``ValueError``."""
    found = _SHARE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no share; write 5% or 0.05")
    return float(found[1]) / (100 if found[2] else 1)


def rate(text: str) -> float:
    """bit/s of ``100mbit``, ``2gbit``, ``64kbit``. Raises ``ValueError``."""
    found = _RATE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no rate; write 100mbit, 2gbit or 64kbit (bits, not bytes, a second)")
    return float(found[1]) * _BITS[(found[2] or "").lower()]


def pattern(text: str) -> tuple[Phase, ...]:
    """The phases of ``0.1s down, 0.4s up``. Raises ``ValueError``."""
    phases = []
    for part in text.split(","):
        found = _PHASE.fullmatch(part.strip())
        if not found:
            raise ValueError(f'{part.strip()!r} is no phase of a pattern; write "0.1s down, 0.4s up"')
        phases.append(Phase(found[2] == "down", duration(found[1])))
    return tuple(phases)


def request(
    kind: Kind,
    value: str | None = None,
    *,
    direction: Direction | None = None,
    flap_pattern: str | None = None,
    times: int = 1,
    flapping: Kind | None = None,
) -> Request:
    """From what a person wrote. Raises ``ValueError``."""
    if (value is None) == (kind in VALUES):
        raise ValueError(
            f"{kind} needs a value, such as {VALUES[kind]}" if value is None else f"{kind} takes no value: {value!r}"
        )
    readers = {Kind.LOSS: share, Kind.CORRUPT: share, Kind.RATE: rate, Kind.DELAY: duration}
    number = readers[kind](value) if value is not None else 0.0
    phases = pattern(flap_pattern) if flap_pattern is not None else ()
    if kind is not Kind.FLAP and times != 1:
        raise ValueError(f"only a flap is repeated: {kind} takes no number of times")
    if kind is not Kind.FLAP and flapping is not None:
        raise ValueError(f"only a flap is made with another fault: leave out --with {flapping}")
    return Request(kind, number, direction or Direction.BOTH, phases, times, flapping or Kind.LINK_DOWN)
