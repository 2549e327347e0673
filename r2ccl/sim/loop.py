"""An asyncio loop whose time is a number.

Whenever nothing is ready to run, a usual loop sleeps until its next timer. This one moves its clock there instead, so
an hour takes as long as the callbacks in it, and the same program takes the same steps every time. If nothing is ready
and no timer is set, no one can ever wake the program: that is a :class:`Deadlock`, raised at once, where a real
program would hang.

Consequences: there are no real sockets and no executor threads inside; whatever needs one is handed in as a parameter.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from r2ccl.clock import Clock

Result = TypeVar("Result")


#: Turns of a loop in which its time does not move. The largest worlds need some thousands; a timer that is set anew
#: for "now" needs infinitely many, and would hang in real time while the virtual clock stands still.
TURNS_PER_INSTANT_MAX = 200_000


class Deadlock(RuntimeError):
    """Every task waits and no timer is set, or time stands still. The loop must not be used any further but closed."""


class _VirtualSelector(selectors.BaseSelector):
    """Moves ``now`` on by as much as it was asked to wait. Files may register; none is ever ready."""

    def __init__(self, turns_per_instant_max: int) -> None:
        self.now = 0.0
        self._turns_per_instant_max = turns_per_instant_max
        self._turns = 0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, descriptor, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set")
        before = self.now
        self.now += max(0.0, timeout)
        self._turns = 0 if self.now > before else self._turns + 1
        if self._turns > self._turns_per_instant_max:
            self._turns = 0  # so that the loop can still be closed
            raise Deadlock(f"time has not moved for {self._turns_per_instant_max} turns of the loop")
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class SimLoop(asyncio.SelectorEventLoop):
    """The loop of a simulated world. Many may exist in one process, each with its own time, which starts at 0."""

    def __init__(self, turns_per_instant_max: int = TURNS_PER_INSTANT_MAX) -> None:
        self._virtual = _VirtualSelector(turns_per_instant_max)
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


class SimClock(Clock):
    """The clock of everything that lives on one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run ``main`` on a fresh :class:`SimLoop`.

    An exception in a callback is raised here, in place of the loop's habit of logging it: a world with a broken actor
    must not pass for a healthy one. It ends the run, and goes before any :class:`Deadlock`.
    """
    failures: list[BaseException] = []

    def remember(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context.get("exception") or RuntimeError(context["message"]))
        loop.stop()  # what waits for what was broken would wait for ever, and the world's timers tick on

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(remember)
        try:
            result = runner.run(main)
        except RuntimeError as ended:
            if failures:
                raise failures[0] from ended
            if not isinstance(ended, Deadlock):
                raise
            waiting = sorted(task.get_name() for task in asyncio.all_tasks(loop))
            raise Deadlock(f"at {loop.time():.6f} s: {ended}; waiting: {', '.join(waiting)}") from ended
    if failures:
        raise failures[0]
    return result
