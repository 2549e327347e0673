"""When the operations of one communicator have taken too long: one timer for all of them.

Most operations have long ended when their limit comes, so a timer each would cost more than the rest of a small one's
call. The one there is fires at the earliest limit that was known when it was armed, finds what is over it, and is armed
for the earliest of what is left. What we were away ourselves does not count towards a limit (decision 17).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from r2ccl.actors.operation import Operation
from r2ccl.actors.shared import Shared
from r2ccl.actors.timers import Timer

#: Sums of seconds differ in their last digits: what is this near has come.
GRAIN_S = 1e-6


class Host(Protocol):
    """A coordinator, as far as it has operations."""

    shared: Shared
    running: dict[int, Operation]
    waiting: deque[Operation]


class Deadlines:
    """``expire`` fails an operation whose limit has come."""

    def __init__(self, host: Host, own_stall_s: Callable[[], float], expire: Callable[[Operation], None]) -> None:
        self._host = host
        self._own_stall_s = own_stall_s
        self._expire = expire
        #: Armed for ``_next_s``; None: nothing is limited.
        self._timer: Timer | None = None
        self._next_s = math.inf

    def watch(self, operation: Operation) -> None:
        """Its limit counts from the call, whether it runs or waits for its turn."""
        left_s = max(0.0, operation.timeout_s - operation.waited_s)
        operation.deadline_s = operation.called_at_s + left_s
        operation.excused_s = operation.stalled_s
        if operation.deadline_s < self._next_s:
            self._wake_at(operation.deadline_s, left_s)

    def end(self) -> None:
        """Nothing is called any more. A timer that went on waiting would keep all that there was."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next_s = None, math.inf

    def _wake_at(self, deadline_s: float, left_s: float) -> None:
        self.end()
        self._next_s = deadline_s
        self._timer = self._host.shared.timers.after(left_s, self._come)

    def _come(self) -> None:
        self._timer, self._next_s = None, math.inf
        now = self._host.shared.clock.now()
        for operation in self._unfinished():
            if (
                operation.deadline_s <= now + GRAIN_S
                and not operation.work.done()
                and not self._put_off(operation, now)
            ):
                self._expire(operation)
        earliest_s = min((operation.deadline_s for operation in self._unfinished()), default=math.inf)
        if earliest_s < self._next_s:
            self._wake_at(earliest_s, max(0.0, earliest_s - now))

    def _unfinished(self) -> list[Operation]:
        return [*self._host.running.values(), *self._host.waiting]

    def _put_off(self, operation: Operation, now: float) -> bool:
        """We were away meanwhile, longer than was counted so far: as long from now on, so that what came while we were
        is read before anybody judges."""
        stalled_s = self._own_stall_s()
        if stalled_s <= operation.excused_s:
            return False
        operation.deadline_s = now + stalled_s - operation.excused_s
        operation.excused_s = stalled_s
        return True
