"""Several calls as one: many small arrays cost hardly more than one of their total size.

Calls of one kind, dtype, op and root are fused, in the order in which they were made: their arrays are packed into one
operation, and its result is unpacked into them. Ranks must make the same calls in a batch, as they must outside. How
long each is ready to wait is its own affair: what is fused has the shortest limit of its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from r2ccl.actors.work import Work
from r2ccl.calls import Asked, fused, refuse_shared
from r2ccl.errors import R2cclError, UsageError
from r2ccl.reduction import Op

#: Larger arrays go on their own: packing would cost them more than it saves.
FUSED_ARRAY_BYTES_MAX = 1 << 20
#: A fused operation has at most so many bytes, so that the next is under way while it runs.
FUSED_BYTES_MAX = 4 << 20

#: Submits a call at once, with its limit and who is told of its end.
Submit = Callable[[Asked, float | None, Callable[[Work], None] | None], Work]
#: A call, its limit in seconds (0: none), and what its caller holds.
_Call = tuple[Asked, float, Work]


class Batch:
    """Made by :meth:`~r2ccl.communicator.Communicator.batch`. Calls return a Work each; nothing is sent before the end
    of the ``with`` block. With ``async with`` the block also ends when all are done."""

    def __init__(
        self,
        all_reduce: Callable[[Any, Op], Asked],
        broadcast: Callable[[Any, int], Asked],
        to_batch: Callable[[Asked, float | None], tuple[Work, float]],
        submit: Submit,
    ) -> None:
        self._all_reduce = all_reduce
        self._broadcast = broadcast
        self._to_batch = to_batch
        self._submit = submit
        self._calls: list[_Call] = []
        self._is_over = False

    def all_reduce(self, x: Any, op: Op = Op.SUM, *, timeout: float | None = None) -> Work:
        """As :meth:`~r2ccl.communicator.Communicator.all_reduce`."""
        return self._add(self._all_reduce(x, op), timeout)

    def broadcast(self, x: Any, root: int, *, timeout: float | None = None) -> Work:
        """As :meth:`~r2ccl.communicator.Communicator.broadcast`."""
        return self._add(self._broadcast(x, root), timeout)

    def _add(self, asked: Asked, timeout: float | None) -> Work:
        if self._is_over:
            raise UsageError("the batch was sent: make another")
        work, limit_s = self._to_batch(asked, timeout)
        self._calls.append((asked, limit_s, work))
        return work

    def _send(self) -> None:
        self._is_over = True
        try:
            refuse_shared([asked for asked, _, _ in self._calls])
        except UsageError as error:
            self._end([work for _, _, work in self._calls], error)
            raise
        groups = [together for alike in _alike(self._calls) for together in _in_bounds(alike)]
        for index, together in enumerate(groups):
            try:
                self._send_together(together)
            except R2cclError as error:
                self._end([work for unsent in groups[index:] for _, _, work in unsent], error)
                raise

    def _leave(self) -> None:
        """The block was left by an exception: nothing is sent."""
        self._is_over = True
        self._end([work for _, _, work in self._calls], UsageError("the batch was not sent: its block was left early"))

    @staticmethod
    def _end(works: Sequence[Work], error: R2cclError) -> None:
        for work in works:
            work.hush()  # the block's end tells of it
            work.finish(error)

    def _send_together(self, together: Sequence[_Call]) -> None:
        works = [work for _, _, work in together]
        limit_s = min((limit_s for _, limit_s, _ in together if limit_s), default=None)

        def end(whole: Work) -> None:
            for work in works:
                work.operation = whole.operation
                work.finish(whole.error)

        asked = together[0][0] if len(together) == 1 else fused([one for one, _, _ in together])
        self._submit(asked, limit_s, end).hush()

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._send()
        else:
            self._leave()

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._send()
            for _, _, work in self._calls:
                await work
        else:
            self._leave()


def _alike(calls: Sequence[_Call]) -> list[list[_Call]]:
    groups: dict[tuple[Any, ...], list[_Call]] = {}
    for one in calls:
        call = one[0].call
        groups.setdefault((call.kind, call.dtype_name, call.op, call.root), []).append(one)
    return list(groups.values())


def _in_bounds(calls: Sequence[_Call]) -> list[list[_Call]]:
    groups: list[list[_Call]] = []
    room = 0
    for one in calls:
        size = one[0].call.elements * one[0].call.dtype.itemsize
        if size > FUSED_ARRAY_BYTES_MAX:
            groups.append([one])
            room = 0
        elif size > room or not groups:
            groups.append([one])
            room = FUSED_BYTES_MAX - size
        else:
            groups[-1].append(one)
            room -= size
    return groups
