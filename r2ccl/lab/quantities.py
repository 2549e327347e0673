"""Rates, shares and times as people write them on the lab's command line, within what a lab can do. Pure.

How they are written is the same for all commands: see protocol/fault_kinds.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from r2ccl.errors import UsageError
from r2ccl.protocol import fault_kinds

#: Slower, no packet passes; faster, no machine emulates it.
RATE_MBIT_S_MIN, RATE_MBIT_S_MAX = 0.1, 100_000.0
TIME_S_MAX: Final = 86_400.0


def rate_mbit_s(text: str) -> float:
    """``2gbit``, ``500mbit``, ``2.5 Gbit/s``. Raises :class:`UsageError`."""
    rate = _read(fault_kinds.rate, text) / 1e6
    if not RATE_MBIT_S_MIN <= rate <= RATE_MBIT_S_MAX:
        raise UsageError(f"{text!r} is no rate of {RATE_MBIT_S_MIN:g} to {RATE_MBIT_S_MAX:g} Mbit/s, such as 2gbit")
    return rate


def share(text: str) -> float:
    """``5%``, or ``0.05``. Raises :class:`UsageError`."""
    found = _read(fault_kinds.share, text)
    if not 0 < found <= 1:
        raise UsageError(f"{text!r} is no share of the packets, such as 5%")
    return found


def time_s(text: str) -> float:
    """``10s``, ``500ms``, ``2m``; a bare number is seconds. Raises :class:`UsageError`."""
    found = _read(fault_kinds.duration, text)
    if found > TIME_S_MAX:
        raise UsageError(f"{text!r} is no time of up to a day, such as 10s")
    return found


def rate_text(mbit_s: float) -> str:
    """As :func:`rate_mbit_s` reads it."""
    return f"{mbit_s / 1e3:g}gbit" if mbit_s >= 1e3 else f"{mbit_s:g}mbit"


def _read(reader: Callable[[str], float], text: str) -> float:
    try:
        return reader(text)
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
