"""What a call of torch's returns, and how its end reaches whoever waits for it.

``wait()`` blocks on the core's Work and raises its error, with all it has to say. A torch Future is another matter:
with an exception set, or with None as its value, DDP's reducer crashes the process. So a Future from here always
completes by a callback of its own, which returns the tensors or raises: then its ``wait()`` is a RuntimeError with our
text, and DDP raises it, too.

What users attach to a Future runs where it is completed, and may take long or wait for another operation, as PowerSGD's
does. That must not be the thread that the actors run on, so there are others for it (:class:`Callbacks`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from r2ccl.actors.work import Work as CoreWork
from r2ccl.clock import MonotonicClock
from r2ccl.errors import R2cclError
from r2ccl.torch_backend.dynamo import not_compiled
from r2ccl.torch_backend.tensors import Loan

#: A callback that waits keeps a thread, and what it waits for needs one, too. DDP has a callback or two for each of its
#: buckets, of which a large model has a hundred.
CALLBACK_THREADS_MAX = 256
#: In torch's own words: no limit but the operation's.
NO_TIMEOUT = timedelta(0)


class Callbacks:
    """Threads that complete Futures: as many as there are callbacks that block, mostly one. Daemons, so that one that
    waits for what never ends does not keep the process from ending."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        #: Calls that no thread has taken yet, and threads that wait for one.
        self._pending = 0
        self._idle = 0
        self._threads = 0

    def run(self, call: Callable[[], object]) -> None:
        """Call it on one of the threads."""
        with self._lock:
            self._pending += 1
            self._calls.put(call)
            if self._pending > self._idle and self._threads < CALLBACK_THREADS_MAX:
                self._threads += 1
                self._idle += 1
                threading.Thread(target=self._main, name="r2ccl callbacks", daemon=True).start()

    def stop(self) -> None:
        """Let the threads end when they have done what they were given."""
        with self._lock:
            threads, self._threads = self._threads, 0
            for _ in range(threads):
                self._calls.put(None)

    def _main(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._lock:
                self._pending -= 1
                self._idle -= 1
            call()
            del call  # not until the next one comes: it holds tensors
            with self._lock:
                self._idle += 1


@not_compiled
class Work(torch.distributed.Work):  # type: ignore[misc, unused-ignore]
    """One call: some operations of the core, done when all are. It may be waited for from any thread, and awaited."""

    def __init__(
        self,
        parts: Sequence[CoreWork],
        loan: Loan,
        tensors: list[Tensor],
        callbacks: Callbacks,
        explained: Callable[[BaseException, CoreWork], BaseException],
    ) -> None:
        super().__init__()
        self._parts = parts
        self._loan = loan
        self._tensors = tensors
        self._callbacks = callbacks
        self._explained = explained
        self._lock = threading.Lock()
        self._is_settled = False
        self._error: BaseException | None = None
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until it is done, and raise what it failed with. ``timeout`` ends the waiting with ``TimeoutError``, and
        not the call; zero, as torch has it, means no such limit."""
        limit_s = timeout.total_seconds() if timeout else 0.0
        clock = MonotonicClock()
        deadline_s = clock.now() + limit_s
        for part in self._parts:
            try:
                part.wait(max(0.0, deadline_s - clock.now()) if limit_s > 0 else None)
            except R2cclError:
                if not part.done():
                    raise  # it must not be waited for here
        self._raise_failure()
        return True

    def synchronize(self) -> None:
        """As :meth:`wait`: on the CPU there is no stream to order."""
        self.wait()

    def __await__(self) -> Generator[Any, None, list[Tensor]]:
        for part in self._parts:
            try:
                yield from part.__await__()
            except R2cclError:
                if not part.done():
                    raise
        self._raise_failure()
        return self._tensors

    def is_completed(self) -> bool:
        """Is it over, well or not? If so, the results are where they belong."""
        if not all(part.done() for part in self._parts):
            return False
        self._settle()
        return True

    def is_success(self) -> bool:
        """Did it end well?"""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What it failed with; None while it is under way."""
        return self._error if self.is_completed() else None

    def result(self) -> list[Tensor]:
        """Its tensors, once it is done."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Of a receive: whose message it got."""
        self.wait()
        source = self._parts[0].source if self._parts else None
        return -1 if source is None else source

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A Future of its tensors. It is completed on a thread of its own, and so are callbacks attached to it run."""
        with self._lock:
            if self._future is not None:
                return self._future
            begun: torch.futures.Future[None] = torch.futures.Future()
            self._future = begun.then(self._outcome)
        self.when_done(lambda: self._callbacks.run(lambda: begun.set_result(None)))
        return self._future

    def _outcome(self, _: object) -> list[Tensor]:
        self._raise_failure()
        return self._tensors

    def when_done(self, then: Callable[[], None]) -> None:
        """Call back once when all has ended, on the thread that ends it, which must not be kept."""
        left = len(self._parts)
        if not left:
            then()
            return
        lock = threading.Lock()

        def one_less() -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = not left
            if is_last:
                then()

        for part in self._parts:
            part.when_done(one_less)

    def _raise_failure(self) -> None:
        self._settle()
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _settle(self) -> None:
        """All has ended: give back what was on loan. Whoever looks first does so, and the others wait for it."""
        with self._lock:
            if self._is_settled:
                return
            failed = [part for part in self._parts if part.exception() is not None]
            if failed:
                error = failed[0].exception()
                assert error is not None
                self._error = self._explained(error, failed[0])
            else:
                self._loan.give_back()
            self._is_settled = True

    def __repr__(self) -> str:
        state = "under way" if not all(part.done() for part in self._parts) else "over"
        return f"<Work of {', '.join(part.call for part in self._parts) or 'nothing'}: {state}>"
