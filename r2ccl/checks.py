"""Fields of what a peer or a stranger sent.

They are checked, never converted: ``bytes(10**12)`` would allocate what was asked for, and what a text or a float would
make of itself is nobody's announcement.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def unsigned(value: Any, bits: int = 64) -> int:
    """A field that is a number. Raises ``ValueError``."""
    if type(value) is not int or value < 0 or value >> bits:
        raise ValueError(f"{value!r:.40} is no unsigned number of {bits} bits")
    return value


def exactly(kind: type[T], value: Any) -> T:
    """A field of one kind, and of no subclass. Raises ``TypeError``."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is no {kind.__name__}")
    return value
