"""Rates, shares and times as people write them on a command line. Pure."""

from __future__ import annotations

import math
import re
from types import MappingProxyType
from typing import Final

from r2ccl.errors import UsageError

_RATES_MBIT_S: Final = MappingProxyType({"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3, "": 1.0})
_TIMES_S: Final = MappingProxyType({"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0})
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z%]*)")

#: Slower, no packet passes; faster, no machine emulates it.
RATE_MBIT_S_MIN, RATE_MBIT_S_MAX = 0.1, 100_000.0
TIME_S_MAX = 86_400.0


def rate_mbit_s(text: str) -> float:
    """``2gbit``, ``500mbit``, ``2.5 Gbit/s``; a bare number is Mbit/s. Raises :class:`UsageError`."""
    number, unit = _split(text.lower().removesuffix("/s").removesuffix("ps"))
    rate = number * _RATES_MBIT_S.get(unit, math.nan)
    if not RATE_MBIT_S_MIN <= rate <= RATE_MBIT_S_MAX:
        raise UsageError(f"{text!r} is no rate of {RATE_MBIT_S_MIN:g} to {RATE_MBIT_S_MAX:g} Mbit/s, such as 2gbit")
    return rate


def share(text: str) -> float:
    """``5%``, or ``0.05``. Raises :class:`UsageError`."""
    number, unit = _split(text)
    found = number / 100 if unit == "%" else number if unit == "" else math.nan
    if not 0 < found <= 1:
        raise UsageError(f"{text!r} is no share of the packets, such as 5%")
    return found


def time_s(text: str) -> float:
    """``10s``, ``500ms``, ``2m``; a bare number is seconds. Raises :class:`UsageError`."""
    number, unit = _split(text.lower())
    found = number * _TIMES_S.get(unit, math.nan)
    if not 0 < found <= TIME_S_MAX:
        raise UsageError(f"{text!r} is no time of up to a day, such as 10s")
    return found


def rate_text(mbit_s: float) -> str:
    """As :func:`rate_mbit_s` reads it."""
    return f"{mbit_s / 1e3:g}gbit" if mbit_s >= 1e3 else f"{mbit_s:g}mbit"


def _split(text: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    return (float(found[1]), found[2]) if found is not None else (math.nan, "")
