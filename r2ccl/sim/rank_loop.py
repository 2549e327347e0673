"""The loop as one simulated rank sees it: nothing of the rank runs while its process is stopped, or after it died.

The fabric stops what a rank hears; this stops what it set out to do by itself. Otherwise a frozen rank would go on
sending beats, and a dead one would go on judging its peers.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from r2ccl.transport.memory_process import Process


class RankLoop:
    """As much of a loop as actors use."""

    def __init__(self, loop: asyncio.AbstractEventLoop, process: Process) -> None:
        self._loop = loop
        self._process = process

    def time(self) -> float:
        return self._loop.time()

    def create_future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def call_soon(
        self, callback: Callable[..., object], *arguments: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        def fire() -> None:
            self._process.run(go)

        def go() -> None:
            if not handle.cancelled():
                callback(*arguments)

        handle = self._loop.call_soon(fire, context=context)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *arguments: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._loop.time() + delay, callback, *arguments, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *arguments: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        def fire() -> None:
            self._process.run(go)

        def go() -> None:
            if not handle.cancelled():
                callback(*arguments)

        handle = self._loop.call_at(when, fire, context=context)
        return handle
