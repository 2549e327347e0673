"""Who restarts whom, as a table.

A child that raised is replaced by a new one from its recipe, which inherits the mailbox. More restarts than the
intensity allows within the period mean that restarting does not help: the supervisor gives up and says so upward,
instead of looping. A *move*, a transport actor's planned restart on another NIC, is no failure and is not counted
(decision 5)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from r2ccl.actors.actor import Actor
from r2ccl.clock import Clock

logger = logging.getLogger("r2ccl")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A row of the table. ``create(predecessor)`` makes the child; the predecessor is None the first time."""

    name: str
    create: Callable[[Any], Actor]
    restarts_max: int = 3
    period_s: float = 10.0


class Supervisor:
    """Starts children in the table's order, stops them in reverse, restarts what failed."""

    def __init__(self, clock: Clock, escalate: Callable[[str, Exception], None]) -> None:
        self._clock = clock
        self._escalate = escalate
        self._specs: dict[str, ChildSpec] = {}
        self._children: dict[str, Actor] = {}
        self._restarts: dict[str, deque[float]] = {}

    def add(self, spec: ChildSpec) -> Actor:
        """Start a child."""
        self._specs[spec.name] = spec
        self._restarts[spec.name] = deque(maxlen=spec.restarts_max + 1)
        return self._create(spec, None)

    def child(self, name: str) -> Any:
        """The child that currently bears the name."""
        return self._children[name]

    def move(self, name: str) -> Actor:
        """A planned restart: the child is replaced, its mailbox goes on. Not counted."""
        predecessor = self._children[name]
        predecessor.stop()
        return self._create(self._specs[name], predecessor)

    def remove(self, name: str) -> None:
        """Stop a child for good, and forget it."""
        self._children.pop(name).stop()
        del self._specs[name], self._restarts[name]

    def stop(self) -> None:
        """Stop all children, last started first."""
        for name in reversed(list(self._children)):
            self._children[name].stop()

    def _create(self, spec: ChildSpec, predecessor: Actor | None) -> Actor:
        child = spec.create(predecessor)
        child.on_failure = self._failed
        self._children[spec.name] = child
        child.start()
        return child

    def _failed(self, child: Actor, failure: Exception) -> None:
        now = self._clock.now()
        spec = self._specs[child.name]
        restarts = self._restarts[child.name]
        restarts.append(now)
        recent = sum(1 for at in restarts if now - at <= spec.period_s)
        if recent > spec.restarts_max:
            logger.error("actor=%s gave up after %d restarts", child.name, spec.restarts_max, exc_info=failure)
            self._escalate(child.name, failure)
            return
        logger.error("actor=%s failed, restarting (%d of %d)", child.name, recent, spec.restarts_max, exc_info=failure)
        self._create(spec, child)
