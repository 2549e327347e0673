"""r2ccl for programs without an event loop: the same calls, which wait.

    import r2ccl.blocking

    with r2ccl.blocking.connect() as comm:
        comm.all_reduce(x)

Everything runs on a thread of its own (``progress="thread"``), so NICs are repaired while the program computes. A call
returns what awaiting its Work would, or raises that. To have several in flight, call them on
:attr:`Communicator.futures`, which returns the Work, and ``wait()`` for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from r2ccl import bootstrap
from r2ccl.actors.work import Work
from r2ccl.batch import Batch
from r2ccl.communicator import Communicator as AsyncCommunicator
from r2ccl.reduction import Op
from r2ccl.telemetry.counters import Counters
from r2ccl.telemetry.event_log import EventLog
from r2ccl.vocabulary import ANY


def connect(**arguments: Any) -> Communicator:
    """As :func:`r2ccl.connect`, and waits. Takes the same arguments but ``progress``."""
    return Communicator(bootstrap.connect(**arguments, progress="thread").wait())


class Communicator:
    """As :class:`r2ccl.Communicator`; every method waits. May be used from any thread."""

    def __init__(self, futures: AsyncCommunicator) -> None:
        #: The same communicator, whose calls return a Work.
        self.futures = futures

    @property
    def rank(self) -> int:
        return self.futures.rank

    @property
    def size(self) -> int:
        return self.futures.size

    @property
    def members(self) -> tuple[int, ...]:
        return self.futures.members

    @property
    def local_rank(self) -> int:
        return self.futures.local_rank

    @property
    def node(self) -> str:
        return self.futures.node

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.futures.nodes

    @property
    def epoch(self) -> int:
        return self.futures.epoch

    @property
    def counters(self) -> Counters:
        return self.futures.counters

    @property
    def events(self) -> EventLog:
        return self.futures.events

    def stats(self) -> dict[str, Any]:
        """See :meth:`r2ccl.Communicator.stats`."""
        return self.futures.stats()

    def all_reduce(self, x: Any, op: Op = Op.SUM, *, timeout: float | None = None) -> Any:
        """See :meth:`r2ccl.Communicator.all_reduce`."""
        return self.futures.all_reduce(x, op, timeout=timeout).wait()

    def broadcast(self, x: Any, root: int, *, timeout: float | None = None) -> Any:
        """See :meth:`r2ccl.Communicator.broadcast`."""
        return self.futures.broadcast(x, root, timeout=timeout).wait()

    def reduce(self, x: Any, root: int, op: Op = Op.SUM, *, timeout: float | None = None) -> Any:
        """See :meth:`r2ccl.Communicator.reduce`."""
        return self.futures.reduce(x, root, op, timeout=timeout).wait()

    def all_gather(self, x: Any, *, timeout: float | None = None) -> Any:
        """See :meth:`r2ccl.Communicator.all_gather`."""
        return self.futures.all_gather(x, timeout=timeout).wait()

    def all_gather_into(self, out: Any, x: Any, *, timeout: float | None = None) -> Any:
        """See :meth:`r2ccl.Communicator.all_gather_into`."""
        return self.futures.all_gather_into(out, x, timeout=timeout).wait()

    def reduce_scatter(self, out: Any, x: Any, op: Op = Op.SUM, *, timeout: float | None = None) -> Any:
        """See :meth:`r2ccl.Communicator.reduce_scatter`."""
        return self.futures.reduce_scatter(out, x, op, timeout=timeout).wait()

    def gather(self, x: Any, root: int, out: Any = None, *, timeout: float | None = None) -> Any:
        """See :meth:`r2ccl.Communicator.gather`."""
        return self.futures.gather(x, root, out, timeout=timeout).wait()

    def scatter(self, out: Any, xs: Any, root: int, *, timeout: float | None = None) -> Any:
        """See :meth:`r2ccl.Communicator.scatter`."""
        return self.futures.scatter(out, xs, root, timeout=timeout).wait()

    def all_to_all(
        self,
        out: Any,
        x: Any,
        out_counts: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """See :meth:`r2ccl.Communicator.all_to_all`."""
        return self.futures.all_to_all(out, x, out_counts, counts, timeout=timeout).wait()

    def barrier(self, *, timeout: float | None = None) -> None:
        """See :meth:`r2ccl.Communicator.barrier`."""
        self.futures.barrier(timeout=timeout).wait()

    def broadcast_object(self, obj: Any, root: int, *, timeout: float | None = None) -> Any:
        """See :meth:`r2ccl.Communicator.broadcast_object`."""
        return self.futures.broadcast_object(obj, root, timeout=timeout).wait()

    def send(self, x: Any, target: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """See :meth:`r2ccl.Communicator.send`."""
        self.futures.send(x, target, tag, timeout=timeout).wait()

    def recv(self, x: Any, source: int = ANY, tag: int = 0, *, timeout: float | None = None) -> int:
        """See :meth:`r2ccl.Communicator.recv`. Returns the rank that sent it."""
        work = self.futures.recv(x, source, tag, timeout=timeout)
        work.wait()
        assert work.source is not None
        return work.source

    def batch(self) -> WaitingBatch:
        """See :meth:`r2ccl.Communicator.batch`. The end of the ``with`` block waits for all."""
        return WaitingBatch(self.futures.batch())

    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Communicator | None:
        """See :meth:`r2ccl.Communicator.split`."""
        return _waiting(self.futures.split(color, key, timeout=timeout))

    def new_group(self, ranks: Sequence[int]) -> Communicator | None:
        """See :meth:`r2ccl.Communicator.new_group`."""
        return _waiting(self.futures.new_group(ranks))

    def shrink(self, *, timeout: float | None = None) -> Communicator:
        """See :meth:`r2ccl.Communicator.shrink`."""
        return Communicator(self.futures.shrink(timeout=timeout).wait())

    def close(self, timeout: float | None = None) -> None:
        """See :meth:`r2ccl.Communicator.close`."""
        self.futures.close_and_wait(timeout)

    def abort(self) -> None:
        """See :meth:`r2ccl.Communicator.abort`."""
        self.futures.abort()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call back once, when the communicator has ended."""
        self.futures.when_closed(callback)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        return f"<blocking {self.futures!r}>"


class WaitingBatch:
    """A batch whose end waits for all its calls."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._works: list[Work] = []

    def all_reduce(self, x: Any, op: Op = Op.SUM, *, timeout: float | None = None) -> None:
        """See :meth:`r2ccl.Communicator.all_reduce`."""
        self._works.append(self._batch.all_reduce(x, op, timeout=timeout))

    def broadcast(self, x: Any, root: int, *, timeout: float | None = None) -> None:
        """See :meth:`r2ccl.Communicator.broadcast`."""
        self._works.append(self._batch.broadcast(x, root, timeout=timeout))

    def __enter__(self) -> WaitingBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batch.__exit__(kind, error, trace)
        if kind is None:
            for work in self._works:
                work.wait()


def _waiting(work: Work) -> Communicator | None:
    made = work.wait()
    return None if made is None else Communicator(made)
