"""A rank's timers, kept together so that its end can end them: one that still waits would keep everything that its
callback refers to alive, a closed communicator and the caller's tensors among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Timer:
    """One timer. ``cancel`` may be called at any time, also twice."""

    __slots__ = ("_arguments", "_function", "_handle", "_waiting")

    def __init__(self, waiting: set[Timer], function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._waiting = waiting
        self._function: Callable[..., object] | None = function
        self._arguments = arguments
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        """Begin to wait."""
        self._waiting.add(self)
        self._handle = loop.call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """It fires no more, and refers to nothing."""
        self._waiting.discard(self)
        self._function, self._arguments = None, ()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        function, arguments = self._function, self._arguments
        self.cancel()
        if function is not None:
            function(*arguments)


class Timers:
    """All timers of one rank that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: set[Timer] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def after(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> Timer:
        """Call ``function`` once, ``delay_s`` from now."""
        timer = Timer(self._waiting, function, arguments)
        timer.arm(self._loop, delay_s)
        return timer

    def cancel_all(self) -> None:
        """Nothing that waits shall happen."""
        for timer in list(self._waiting):
            timer.cancel()
