"""A rank's process on the memory transport's fabric: it runs, is stopped, or is dead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Process:
    """One rank's process, as its kernel sees it."""

    def __init__(self) -> None:
        self.alive = True
        self.frozen = False
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def run(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call now, or when the process runs again; never if it is dead."""
        if self.frozen:
            self._waiting.append((callback, arguments))
        elif self.alive:
            callback(*arguments)

    def thaw(self) -> None:
        self.frozen = False
        while self._waiting and not self.frozen:
            callback, arguments = self._waiting.popleft()
            if self.alive:
                callback(*arguments)
