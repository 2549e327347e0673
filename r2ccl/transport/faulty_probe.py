"""One knock through a device with faults: while a fault covers its way, nothing comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from r2ccl.topology import Endpoint
from r2ccl.transport.interface import Answer, Device, Probe


class FaultyProbe:
    """See :class:`~r2ccl.transport.interface.Probe`."""

    def __init__(
        self, is_blocked: Callable[[], bool], heard: Callable[[Answer], None], open_probes: dict[FaultyProbe, None]
    ) -> None:
        self._is_blocked = is_blocked
        self._heard: Callable[[Answer], None] | None = heard
        self._open_probes = open_probes
        open_probes[self] = None
        self._inner: Probe | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(
        self, device: Device, loop: asyncio.AbstractEventLoop, where: tuple[int, int, Endpoint], wait_s: float
    ) -> None:
        """Knock. A fault that comes later swallows the answer."""
        if self._is_blocked():
            self._timer = loop.call_later(wait_s, self._tell, Answer.SILENT)
        else:
            self._inner = device.reach(*where, wait_s, self._inner_heard)

    def abort(self) -> None:
        """See :class:`~r2ccl.transport.interface.Probe`."""
        self._heard = None
        self._open_probes.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._inner is not None:
            self._inner.abort()
            self._inner = None

    def _inner_heard(self, answer: Answer) -> None:
        self._tell(Answer.SILENT if self._is_blocked() else answer)

    def _tell(self, answer: Answer) -> None:
        heard = self._heard
        self.abort()
        if heard is not None:
            heard(answer)
