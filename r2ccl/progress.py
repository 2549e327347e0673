"""A loop and thread of its own for a job's actors: ``progress="thread"``.

For programs without a loop, and for those that compute while NICs may die: repairs do not wait for the program to come
back to its loop. Calls cross over in the order in which they were made, so operations are numbered in that order; a
crossing costs tens of microseconds, which is why ``progress="loop"`` is the default.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

#: While actors share the interpreter with a thread that computes, they wait this long for their turn: Python's own
#: interval of 5 ms would make every repair as late.
SWITCH_INTERVAL_S = 0.0005
#: At the program's end the thread has this long to stop.
STOP_S = 1.0


class _Thread(threading.Thread):
    """Remembers how often the interpreter switched before there was any like it."""

    interval_before_s: float

    def __init__(self, main: Callable[[], None]) -> None:
        super().__init__(target=main, name="r2ccl", daemon=True)
        others = self.others()
        self.interval_before_s = others[0].interval_before_s if others else sys.getswitchinterval()

    def others(self) -> list[_Thread]:
        """Those that run, of other jobs in this process."""
        return [one for one in threading.enumerate() if isinstance(one, _Thread) and one is not self]


class ProgressThread:
    """The thread. It is a daemon, and ends with the program at the latest."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        #: Guards the order of calls, and whether somebody is to come for them.
        self.lock = threading.Lock()
        self._is_coming = False
        #: Guards that nothing is started on a loop that ends.
        self._door = threading.Lock()
        self._is_stopping = False
        self._has_ended = False
        self._thread = _Thread(self._main)
        self._thread.start()
        sys.setswitchinterval(min(SWITCH_INTERVAL_S, self._thread.interval_before_s))
        self._at_exit = _stopper(weakref.ref(self))
        atexit.register(self._at_exit)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there. It is cancelled if the thread ends before it: of several threads that end a
        communicator at once, one stops the thread."""
        with self._door:
            if not self._has_ended:
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        coroutine.close()
        late: Future[T] = Future()
        late.cancel()
        return late

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function there, after those called before. With ``lock`` held."""
        self._calls.append((function, arguments))
        if not self._is_coming:
            self._is_coming = True
            self.loop.call_soon_threadsafe(self._drain)

    def calls_in_child(self) -> list[tuple[Any, ...]]:
        """After a fork, in the child, which has no such thread: the arguments of the calls that nobody comes for."""
        return [arguments for _, arguments in self._calls]

    @property
    def calls_on_their_way(self) -> int:
        return len(self._calls)

    @property
    def is_current(self) -> bool:
        """Is this the thread?"""
        return threading.current_thread() is self._thread

    def give_up(self, coroutine: Future[Any]) -> None:
        """Cancel what :meth:`run` started, let it end what it has begun, and stop."""
        coroutine.cancel()
        with contextlib.suppress(TimeoutError):  # then it is stopped in the middle
            self.run(_others_ended()).result(STOP_S)
        self.stop()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End the loop and the thread. May be called twice, also at once, and from any thread but this one."""
        atexit.unregister(self._at_exit)
        with self._door:
            is_first, self._is_stopping = not self._is_stopping, True
            if is_first:
                self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout_s)
        if not self._thread.others():
            sys.setswitchinterval(self._thread.interval_before_s)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._door:
                self._has_ended = True
            self.loop.run_until_complete(_all_cancelled())
            self.loop.close()

    def _drain(self) -> None:
        try:
            for _ in range(len(self._calls)):
                function, arguments = self._calls[0]
                try:
                    function(*arguments)
                finally:
                    # Only now: if the process forks meanwhile, the child finds the call and ends it.
                    self._calls.popleft()
        finally:
            with self.lock:
                self._is_coming = bool(self._calls)
                if self._is_coming:
                    self.loop.call_soon(self._drain)


async def _all_cancelled() -> None:
    """End what was started, so that nobody waits for it for ever; also what has not begun, a turn later."""
    for _ in range(2):
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=STOP_S)
    # Whoever waits on another thread hears of it by a callback.
    await asyncio.sleep(0)


async def _others_ended() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _stopper(reference: weakref.ref[ProgressThread]) -> Callable[[], None]:
    def stop() -> None:
        thread = reference()
        if thread is not None:
            thread.stop()

    return stop
