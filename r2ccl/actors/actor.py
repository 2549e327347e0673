"""The smallest honest actor: a bounded mailbox, and a handler that runs to its end.

``tell`` puts a message into the mailbox and sees to it that the mailbox is drained on a later turn of the loop. Nothing
awaits inside a handler, so no state changes under it. What a handler raises goes to the supervisor; the mailbox, with
what is still in it, survives and is handed to the successor.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from typing import Any

from r2ccl.errors import R2cclError


class Full(enum.Enum):
    """What a mailbox does when it is full."""

    DROP_OLDEST = "drop oldest"  #: samples
    REFUSE = "refuse"  #: control: more than the bound is a bug, and is told so


class MailboxFull(R2cclError):
    """A control mailbox overflowed: a bug. The message was not taken."""


class Mailbox:
    """Messages waiting for an actor. Outlives the actor across restarts."""

    __slots__ = ("capacity", "full", "messages")

    def __init__(self, capacity: int, full: Full) -> None:
        self.capacity = capacity
        self.full = full
        self.messages: deque[Any] = deque()

    def put(self, message: Any) -> None:
        """Raises :class:`MailboxFull` when full and the policy is to refuse."""
        if len(self.messages) >= self.capacity:
            if self.full is Full.REFUSE:
                raise MailboxFull(f"a mailbox of {self.capacity} messages is full; not taken: {message}")
            self.messages.popleft()
        self.messages.append(message)


class Actor:
    """Base of all actors. Subclasses write ``handle``."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, mailbox: Mailbox) -> None:
        self.name = name
        self.mailbox = mailbox
        self.is_running = False
        #: Called with what a handler raised.
        self.on_failure: Callable[[Actor, Exception], None] | None = None
        self._loop = loop
        self._scheduled = False

    def start(self) -> None:
        """Begin to handle messages, those already waiting first."""
        self.is_running = True
        self._schedule()

    def stop(self) -> None:
        """Handle nothing more. The mailbox keeps what it has."""
        self.is_running = False

    def tell(self, message: Any) -> None:
        """Leave a message. Returns at once."""
        self.mailbox.put(message)
        self._schedule()

    def handle(self, message: Any) -> None:
        """Deal with one message. Must not block."""
        raise AssertionError(f"{type(self).__name__} has no handler")

    def _schedule(self) -> None:
        if self.is_running and not self._scheduled and self.mailbox.messages:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        messages = self.mailbox.messages
        for _ in range(len(messages)):
            if not self.is_running:
                return
            message = messages.popleft()
            try:
                self.handle(message)
            except Exception as failure:
                self.stop()
                if self.on_failure is None:
                    raise
                self.on_failure(self, failure)
                return
        self._schedule()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopped"
        return f"<{type(self).__name__} {self.name} {state}, {len(self.mailbox.messages)} waiting>"
