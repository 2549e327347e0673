"""The echo that lets a link in again.

It fills packets of any usual size (jumbo frames have 9,000 bytes), there and back: a path that swallows large packets
alone, as between NICs of unlike MTU, would pass for a good one by small frames, and stall with the next chunk.
"""

from __future__ import annotations

from typing import Any, Final

from r2ccl.checks import exactly, unsigned
from r2ccl.protocol.wire import Kind, pack_control, read_body

ECHO_BYTES: Final = 10 << 10


def pack_echo(kind: Kind, source: int, target: int, incident: int) -> tuple[bytes, bytes]:
    """Header and body of an echo or its answer. ``incident``: how often its sender took the link out of service."""
    return pack_control(kind, source, target, [incident, bytes(ECHO_BYTES)])


def read_echo(body: list[Any]) -> int:
    """How often its sender has taken the link out of service. Raises :class:`BadFrame`."""

    def make(incident: Any, filling: Any) -> int:
        exactly(bytes, filling)
        return unsigned(incident)

    return read_body(body, make)
