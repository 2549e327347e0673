"""What happened in a world, as one number and the last few lines.

Two runs of one seed must take the same steps. Keeping all steps would cost more than the world itself, so each line
goes into a running hash and is then forgotten, but for the latest of each rank: those are the story that a failing seed
tells.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

from r2ccl.clock import Clock
from r2ccl.telemetry.event_log import Event, EventLog

#: Lines kept per rank: a failover with two links takes about ten.
STORY_LINES = 24
#: A world with more lines than this runs in circles; one of the swarm's has some ten thousand.
LINES_MAX = 3_000_000


class TooLong(RuntimeError):
    """A world recorded more than any world has reason to."""


class History:
    """A running hash of (virtual time, rank, line), in bounded memory. ``echo`` is handed every line that is told."""

    def __init__(self, clock: Clock, echo: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._echo = echo
        self._hash = hashlib.blake2b(digest_size=16)
        self._stories: dict[int, deque[str]] = {}
        self.lines = 0

    def note(self, rank: int, line: str) -> None:
        """Something small, such as a chunk that arrived: hashed, and forgotten."""
        self.lines += 1
        if self.lines > LINES_MAX:
            raise TooLong(f"more than {LINES_MAX} lines; the last: rank {rank} {line}")
        self._hash.update(f"{self._clock.now()!r} {rank} {line}\n".encode())

    def tell(self, rank: int, line: str) -> None:
        """Something that belongs to the story. Rank -1 is the world's own."""
        self.note(rank, line)
        self._stories.setdefault(rank, deque(maxlen=STORY_LINES)).append(f"{self._clock.now():11.6f}  {line}")
        if self._echo is not None:
            self._echo(f"{self._clock.now():11.6f}  {_who(rank)}  {line}")

    @property
    def digest(self) -> str:
        """Equal for equal histories."""
        return self._hash.hexdigest()

    def story(self) -> str:
        """The latest lines of every rank."""
        parts = []
        for rank, lines in sorted(self._stories.items()):
            parts.append(f"{_who(rank)}, the last {len(lines)} events:")
            parts.extend(f"  {line}" for line in lines)
        return "\n".join(parts)


def _who(rank: int) -> str:
    return f"rank {rank}" if rank >= 0 else "world "


class ToldLog(EventLog):
    """A rank's event log whose every event is told to a history."""

    def __init__(self, clock: Clock, rank: int, history: History) -> None:
        super().__init__(clock)
        self._rank = rank
        self._history = history

    def record(self, name: str, /, *, level: int = 20, **fields: object) -> Event:
        """See :class:`~r2ccl.telemetry.event_log.EventLog`."""
        event = super().record(name, level=level, **fields)
        self._history.tell(self._rank, str(event))
        return event
