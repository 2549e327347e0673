"""What happened, in order: one line per change of state, kept for a while and told to ``logging``.

A change of state is an event with a field ``change``, such as ``UP->DOWN``. Its line says what changed, from what to
what, why, and when in the life of the job: under which epoch and during which operation.

Machines do not log. The actors record what their machines decided, here, with the same fields that ``comm.stats()``
and every view show. The log is bounded and drops its oldest events: a diary, not a queue. Numbers (``sequence``) go up
by one for each event, so a reader that comes back too late sees from the numbers how many it missed.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
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
    """One thing that happened. As text: ``nic=nic1 UP->DOWN cause=carrier epoch=7 op=412``."""

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


def _no_moment() -> Mapping[str, object]:
    return {}


class EventLog:
    """The latest events of one rank. ``rank`` is put in front of each line that goes to ``logging``."""

    def __init__(self, clock: Clock, capacity: int = CAPACITY, *, rank: int | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"a log of {capacity} events keeps nothing")
        #: When in the life of the job we are: ``epoch`` and ``op``. Whoever runs the operations says so.
        self.moment: Callable[[], Mapping[str, object]] = _no_moment
        self._clock = clock
        self._prefix = "" if rank is None else f"rank {rank} "
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

        Call it once per change of state, never per chunk. ``logging.WARNING`` is for losses and what else an operator
        should see. A ``change`` is given the moment that it happened in.
        """
        self._sequence += 1
        event = Event(self._sequence, self._clock.now(), name, MappingProxyType(self._at_this_moment(fields)))
        self._events.append(event)
        _LOGGER.log(level, "%s%s", self._prefix, event)
        return event

    def trace(self, name: str, /, **fields: object) -> None:
        """Log a smaller step, which is not kept, where the log is open that far (R2CCL_DEBUG=TRACE)."""
        if _LOGGER.isEnabledFor(logging.DEBUG):
            event = Event(self._sequence, self._clock.now(), name, MappingProxyType(self._at_this_moment(fields)))
            _LOGGER.debug("%s%s", self._prefix, event)

    def _at_this_moment(self, fields: dict[str, object]) -> dict[str, object]:
        """A change says when, after what changed and why; details come last."""
        if "change" not in fields:
            return fields
        leading = list(fields)[: 1 + list(fields).index("cause" if "cause" in fields else "change")]
        return {name: fields[name] for name in leading} | dict(self.moment()) | fields

    def since(self, sequence: int) -> list[Event]:
        """The events kept that are newer than ``sequence``, oldest first. ``since(0)``: all that are kept."""
        newer = min(self._sequence - sequence, len(self._events))
        return list(islice(self._events, len(self._events) - newer, None)) if newer > 0 else []
