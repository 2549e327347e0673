"""What a call returns: something to await or to wait for, that outlives being cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

from r2ccl.errors import UsageError

logger = logging.getLogger("r2ccl")

#: Longer than this a lock does not wait: three years.
WAIT_S_MAX = 1e8

#: Send what waits; deliver what has arrived, for a few microseconds or until what it is given says that it is over.
Look = Callable[[Callable[[], bool]], None]


class Work:
    """An operation under way. ``await work`` returns its result, or raises what the operation failed with.

    It may be awaited any number of times, from any event loop; :meth:`wait` does the same for programs without one.
    Cancelling an await stops the waiting, never the operation: peers count on it, and the buffer stays on loan until
    it ends. A failed Work that nobody asked is logged once.

    Attributes: ``call`` (in words), ``operation`` (its number in the communicator; -1 before it has one), ``source``
    (of a receive: whose message it got, known in the end; else None).
    """

    __slots__ = (
        "__weakref__",
        "_awaited",
        "_callbacks",
        "_done",
        "_error",
        "_gives_way",
        "_look",
        "_on_end",
        "_result",
        "_sleepers",
        "_thread",
        "_waiters",
        "call",
        "operation",
        "source",
    )

    def __init__(self, call: str, result: Any, thread: int, on_end: Callable[[Work], None] | None = None) -> None:
        self.operation = -1
        self.source: int | None = None
        self.call = call
        self._result = result
        #: The thread that ends it.
        self._thread = thread
        self._error: BaseException | None = None
        self._done = False
        self._awaited = False
        #: Awaits, with the thread of their loop.
        self._waiters: list[tuple[asyncio.Future[None], int]] = []
        #: Of threads that wait: each has locked one, and its release wakes it. An Event would cost ten times as much.
        self._sleepers: list[threading.Lock] = []
        #: Each is called by whoever takes it out.
        self._callbacks: list[Callable[[], None]] = []
        #: Called once, before anybody else hears that it is over.
        self._on_end = on_end
        #: Sends what waits to be sent, and looks briefly for the news that may end it, before its loop has a turn.
        self._look: Look | None = None
        #: Whoever awaits it lets the loop have a turn first, though it is over.
        self._gives_way = False

    def look_with(self, look: Look | None) -> None:
        """Whoever awaits it on its own thread looks for news first, and sleeps only if there is none soon. Also if it
        has ended, and after the sleep: who goes on with what it holds may compute, and what was said must not wait."""
        self._look = look

    def done(self) -> bool:
        """Is it over, well or not?"""
        return self._done

    def exception(self) -> BaseException | None:
        """What it failed with; None while it is under way or if it ended well."""
        self._awaited = self._awaited or self._done
        return self._error

    def __await__(self) -> Generator[Any, None, Any]:
        self._awaited = True
        look = self._look if threading.get_ident() == self._thread else None
        if look is not None:
            look(self.done)
        if self._gives_way:
            self._gives_way = False
            yield
        if not self._done:
            waiter = asyncio.get_running_loop().create_future()
            entry = (waiter, threading.get_ident())
            self._waiters.append(entry)
            # It may have ended on its own thread before the waiter was there to be told.
            if not self.done():
                try:
                    yield from waiter
                finally:
                    if not self._done:
                        # Unless its own thread ends it in this very moment, and has taken the waiters.
                        with contextlib.suppress(ValueError):
                            self._waiters.remove(entry)
                        self._awaited = bool(self._waiters)
                if look is not None:
                    # What was said since it ended waits for a turn's end that comes after ours.
                    look(self.done)
        return self._outcome()

    def wait(self, timeout: float | None = None) -> Any:
        """As ``await``, but blocks the calling thread; at most ``timeout`` seconds, then raises ``TimeoutError``, which
        ends the waiting and not the operation.

        Raises :class:`~r2ccl.errors.UsageError` on the thread of the loop that would have to end it.
        """
        if not self._done:
            if threading.get_ident() == self._thread:
                raise UsageError(f"{self.call}: wait() would block the loop that carries the operation: await it")
            sleeper = threading.Lock()
            sleeper.acquire()
            self._sleepers.append(sleeper)
            # It may have ended before the lock was there to be released.
            if not self.done() and not sleeper.acquire(
                timeout=-1 if timeout is None else min(max(0.0, timeout), WAIT_S_MAX)
            ):
                self._sleepers.remove(sleeper)
                raise TimeoutError(f"{self.call}: still under way after {timeout:g} s")
        self._awaited = True
        return self._outcome()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back once when it is over: on the thread that ends it, which must not be kept, or here and now if it has
        ended. Asking :meth:`exception` is then up to who is called. What it raises goes to that thread's loop, whose
        exception handler logs it, as with asyncio's own callbacks."""
        self._callbacks.append(callback)
        # It may have ended before the callback was there to be called.
        if self._done:
            self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return  # the other thread took the last one
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - it is the caller's, and may raise anything
                self._report(error)
            except BaseException:  # such as SystemExit
                self._call_back()
                raise

    def _report(self, error: Exception) -> None:
        message = f"what was to be called back when {self.call} was over raised"
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            logger.error(message, exc_info=error)
        else:
            loop.call_exception_handler({"message": message, "exception": error})

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error.with_traceback(None)  # else it would grow with everyone who asks
        return self._result

    # For those who carry it out, on its thread.

    @property
    def error(self) -> BaseException | None:
        """What it failed with, for who is told of its end."""
        return self._error

    def give_way(self) -> None:
        """It was over when the call returned, as were many before it: its loop had no turn meanwhile."""
        self._gives_way = True

    def hush(self) -> None:
        """Somebody else tells of its failure."""
        self._awaited = True

    def returns(self, result: Any) -> None:
        """What awaiting it returns, known at its end."""
        self._result = result

    def finish(self, error: BaseException | None) -> None:
        """It is over. Called once."""
        assert not self._done, f"{self} ended twice"
        self._error = error
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(self)
        # From here on whoever comes sees that it is over. Others may be leaving: their lists are read in one go.
        self._done = True
        if not self._sleepers and not self._waiters and not self._callbacks:
            return
        for sleeper in tuple(self._sleepers):
            sleeper.release()
        waiters, self._waiters = self._waiters, []
        for waiter, thread in tuple(waiters):
            if thread == self._thread:
                _wake(waiter)
            else:
                _wake_elsewhere(waiter)
        # Last: what a callback raises must leave nobody waiting.
        self._call_back()

    def __del__(self) -> None:
        # A fork has a copy of every Work that was under way, and whoever awaits it is the parent.
        in_child = getattr(self._error, "in_child", False)
        if self._error is not None and not self._awaited and not in_child:
            logger.error("op=%d call=%s failed, and nobody awaited it: %s", self.operation, self.call, self._error)

    def __repr__(self) -> str:
        state = "under way" if not self._done else "failed" if self._error is not None else "done"
        return f"<Work {self.operation} {self.call} {state}>"


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _wake_elsewhere(waiter: asyncio.Future[None]) -> None:
    loop = waiter.get_loop()
    if not loop.is_closed():
        try:
            loop.call_soon_threadsafe(_wake, waiter)
        except RuntimeError:
            # Closed in this very moment: whoever awaited there is gone with it.
            assert loop.is_closed()
