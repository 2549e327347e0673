"""What a collective call returns: something to await, that outlives being cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from typing import Any

logger = logging.getLogger("r2ccl")


class Work:
    """An operation under way. ``await work`` returns the caller's tensor, or raises what the operation failed with.

    It may be awaited any number of times. Cancelling an await stops the waiting, never the operation: peers count on
    it, and the buffer stays on loan until it ends. A failed Work that nobody awaited is logged once."""

    __slots__ = ("__weakref__", "_awaited", "_done", "_error", "_loop", "_result", "_waiters", "call", "operation")

    def __init__(self, loop: asyncio.AbstractEventLoop, operation: int, call: str, result: Any) -> None:
        self.operation = operation
        self.call = call
        self._loop = loop
        self._result = result
        self._error: BaseException | None = None
        self._done = False
        self._awaited = False
        self._waiters: list[asyncio.Future[None]] = []

    def done(self) -> bool:
        """Is it over, well or not?"""
        return self._done

    def exception(self) -> BaseException | None:
        """What it failed with; None while it is under way or if it ended well."""
        self._awaited = self._awaited or self._done
        return self._error

    def __await__(self) -> Generator[Any, None, Any]:
        self._awaited = True
        if not self._done:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                yield from waiter
            finally:
                if not self._done:
                    self._waiters.remove(waiter)
                    self._awaited = bool(self._waiters)
        if self._error is not None:
            raise self._error
        return self._result

    def finish(self, error: BaseException | None) -> None:
        """The operation is over. Called once, by its coordinator."""
        assert not self._done, f"operation {self.operation} ended twice"
        self._done = True
        self._error = error
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def __del__(self) -> None:
        if self._error is not None and not self._awaited:
            logger.error("op=%d call=%s failed, and nobody awaited it: %s", self.operation, self.call, self._error)

    def __repr__(self) -> str:
        state = "under way" if not self._done else "failed" if self._error is not None else "done"
        return f"<Work {self.operation} {self.call} {state}>"
