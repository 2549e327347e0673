"""One knock on the memory transport's fabric: a packet there, a packet back, and a limit to the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from r2ccl.transport.interface import Answer

#: Calls when the process runs; see ``memory.Process``.
Run = Callable[..., None]


class MemoryProbe:
    """See :class:`~r2ccl.transport.interface.Probe`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Run,
        heard: Callable[[Answer], None],
        open_probes: dict[MemoryProbe, None],
    ) -> None:
        self._loop = loop
        self._run = run
        self._heard: Callable[[Answer], None] | None = heard
        self._open_probes = open_probes
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, wait_s: float) -> None:
        """Begin; what the process sees first counts, and a frozen one sees things in the order in which they came."""
        self._open_probes[self] = None
        self._timer = self._loop.call_later(wait_s, self._run, self._tell, Answer.SILENT)

    def answered(self, answer: Answer) -> None:
        """The packet is back."""
        self._run(self._tell, answer)

    def abort(self) -> None:
        """See :class:`~r2ccl.transport.interface.Probe`."""
        self._heard = None
        self._open_probes.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, answer: Answer) -> None:
        heard = self._heard
        self.abort()
        if heard is not None:
            heard(answer)
