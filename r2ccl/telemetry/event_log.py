"""What happened, in order: one line per change of state, kept for a while and told to ``logging``.

Machines do not log. The actors record what their machines decided, here, with the same fields that ``comm.stats()``
and every view show. The log is bounded and drops its oldest events: a diary, not a queue. Numbers (``sequence``) go up
by one for each event, so a reader that comes back too late sees from the numbers how many it missed.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from r2ccl.clock import Clock

#: About a minute of a link that flaps as fast as quiet times allow, on eight NICs; some 300 KB.
CAPACITY = 1024

_LOGGER = logging.getLogger("r2ccl")


def _spell(value: object) -> str:
    """A value as one word; quoted if it would not read as one (spaces, line breaks, quotes, nothing at all)."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    plain = text.isprintable() and text and not any(c in ' "=' for c in text)
    return text if plain else json.dumps(text)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. As text: ``nic=nic1 UP->DOWN cause=carrier op=412``."""

    #: 1 for the first event of a log, then one more each.
    sequence: int
    #: By the log's clock: differences mean something, within this process.
    time_s: float
    name: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        """The name, unless a field of that name says it; then the fields, of which ``change`` goes without its key."""
        words = [] if self.name in self.fields else [self.name]
        for key, value in self.fields.items():
            words.append(_spell(value) if key == "change" else f"{key}={_spell(value)}")
        return " ".join(words)

    def as_json(self) -> dict[str, object]:
        """As a plain dict, ready for JSON; values that JSON does not know become text."""
        fields = {
            key: value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
            for key, value in self.fields.items()
        }
        return {"sequence": self.sequence, "time_s": self.time_s, "name": self.name, "fields": fields}


class EventLog:
    """The latest events of one rank."""

    def __init__(self, clock: Clock, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"a log of {capacity} events keeps nothing")
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=capacity)
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<EventLog {len(self._events)} of {self._sequence} events>"

    @property
    def last_sequence(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._sequence

    def record(self, name: str, /, *, level: int = logging.INFO, **fields: object) -> Event:
        """Keep an event and log it, as one line, to the logger ``r2ccl``.

        Call it once per change of state, never per chunk. ``logging.WARNING`` is for what an operator should see.
        """
        self._sequence += 1
        event = Event(self._sequence, self._clock.now(), name, MappingProxyType(fields))
        self._events.append(event)
        _LOGGER.log(level, "%s", event)
        return event

    def since(self, sequence: int) -> list[Event]:
        """The events kept that are newer than ``sequence``, oldest first. ``since(0)``: all that are kept."""
        newer = min(self._sequence - sequence, len(self._events))
        return list(islice(self._events, len(self._events) - newer, None)) if newer > 0 else []
