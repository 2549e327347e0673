"""Rows as aligned plain lines: the same on a terminal, in a pipe, and in a log of many hosts."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """One line for the heads and one for each row."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (heads, *rows)
    ]


def mbit_s(speed_mbit_s: float) -> str:
    """For a person; 0 is what the system does not say."""
    return f"{speed_mbit_s:.0f} Mbit/s" if speed_mbit_s else "unknown"


def milliseconds(seconds: float) -> str:
    """For a person: microseconds matter on a local network."""
    return f"{seconds * 1e3:.3f} ms"
