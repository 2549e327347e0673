"""Connections of which small frames wait to go out together, at the end of the loop's turn at the latest.

Whoever is given control before that may compute for long, and its peers would wait for what it has said. So the turn's
end is not all that sends them on their way: whoever awaits an operation flushes first.
"""

from __future__ import annotations

from typing import Protocol


class Joining(Protocol):
    """A connection that joins frames."""

    def flush(self) -> None:
        """Let what waits go out."""


class Joined:
    """Of all devices of one rank."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        #: All and only connections of which something waits, in the order in which it began to.
        self._waiting: dict[Joining, None] = {}

    def add(self, connection: Joining) -> None:
        """Something of it waits from now on."""
        self._waiting[connection] = None

    def discard(self, connection: Joining) -> None:
        """Nothing of it waits any more."""
        self._waiting.pop(connection, None)

    def flush(self) -> None:
        """Let all of it go out."""
        while self._waiting:
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            connection.flush()
