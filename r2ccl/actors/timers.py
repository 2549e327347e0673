"""A rank's timers, kept together so that its end can end them: one that still waits would keep everything that its
callback refers to alive, a closed communicator and the caller's tensors among them.

A limit on what others do is a timer that counts ``while_awake``. After an absence of ours it is due before anything is
read that came meanwhile, and would accuse those who had long answered (decision 17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class Timer:
    """One timer. ``cancel`` may be called at any time, also twice."""

    __slots__ = ("_arguments", "_away_s", "_excused_s", "_function", "_handle", "_loop", "_waiting")

    def __init__(self, waiting: set[Timer], function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._waiting = waiting
        self._function: Callable[..., object] | None = function
        self._arguments = arguments
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: How long we were away altogether; None: that does not matter. Of that, what has been waited for once more.
        self._away_s: Callable[[], float] | None = None
        self._excused_s = 0.0

    def arm(self, loop: asyncio.AbstractEventLoop, delay_s: float, away_s: Callable[[], float] | None = None) -> None:
        """Begin to wait."""
        self._loop, self._away_s = loop, away_s
        self._excused_s = 0.0 if away_s is None else away_s()
        self._waiting.add(self)
        self._handle = loop.call_later(delay_s, self._fire)

    def cancel(self) -> None:
        """It fires no more, and refers to nothing."""
        self._waiting.discard(self)
        self._function, self._arguments, self._away_s = None, (), None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        if self._away_s is not None and (more_s := self._away_s() - self._excused_s) > 0:
            assert self._loop is not None
            self._excused_s += more_s
            self._handle = self._loop.call_later(more_s, self._fire)
            return
        function, arguments = self._function, self._arguments
        self.cancel()
        if function is not None:
            function(*arguments)


class Timers:
    """All timers of one rank that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: set[Timer] = set()
        #: How long this process was away altogether, as far as anybody has noticed.
        self.away_s: Callable[[], float] = lambda: 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def after(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> Timer:
        """Call ``function`` once, ``delay_s`` from now."""
        timer = Timer(self._waiting, function, arguments)
        timer.arm(self._loop, delay_s)
        return timer

    def while_awake(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> Timer:
        """As :meth:`after`, but our own absences meanwhile are waited for once more."""
        timer = Timer(self._waiting, function, arguments)
        timer.arm(self._loop, delay_s, self.away_s)
        return timer

    def cancel_all(self) -> None:
        """Nothing that waits shall happen."""
        for timer in list(self._waiting):
            timer.cancel()
