"""Messages of a rank to itself.

``isend`` and ``irecv`` allow them, pipelines use them, and the core, whose messages are operations between two ranks,
does not have them. The n-th send with a tag meets the n-th receive with that tag, whichever comes first.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from torch import Tensor

from r2ccl.actors.work import Work as CoreWork
from r2ccl.errors import CollectiveMismatch, UsageError

#: Of each tag, sends without a receive or receives without a send: more wait for nothing that will come.
WAITING_MAX = 4096


class OwnMessages:
    """Those of one group."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        #: By tag; of a tag only sends or only receives wait.
        self._sends: dict[int, deque[tuple[Tensor, CoreWork]]] = {}
        self._receives: dict[int, deque[tuple[Tensor, CoreWork]]] = {}

    def send(self, tensor: Tensor, tag: int) -> CoreWork:
        """Done at once: a copy goes."""
        with self._lock:
            return self._meet(self._sends, self._receives, tag, tensor.detach().clone(), "send", self._deliver)

    def receive(self, tensor: Tensor, tag: int) -> CoreWork:
        """Done when something was sent."""
        with self._lock:
            return self._meet(
                self._receives, self._sends, tag, tensor, "recv", lambda sent, received: self._deliver(received, sent)
            )

    def end(self, error: BaseException) -> None:
        """The group has ended: what waits will not come."""
        with self._lock:
            waiting = [work for queue in self._receives.values() for _, work in queue]
            self._sends.clear()
            self._receives.clear()
        for work in waiting:
            work.finish(error)

    def _meet(
        self,
        mine: dict[int, deque[tuple[Tensor, CoreWork]]],
        theirs: dict[int, deque[tuple[Tensor, CoreWork]]],
        tag: int,
        tensor: Tensor,
        name: str,
        deliver: Callable[[tuple[Tensor, CoreWork], tuple[Tensor, CoreWork]], None],
    ) -> CoreWork:
        # No thread is bound to end it, so any may wait for it.
        work = CoreWork(f"{name}({tensor.dtype}[{tensor.numel()}], rank={self._rank}, tag={tag})", tensor, -1)
        entry = (tensor, work)
        if theirs.get(tag):
            deliver(entry, theirs[tag].popleft())
        else:
            waiting = mine.setdefault(tag, deque())
            if len(waiting) >= WAITING_MAX:
                raise UsageError(f"{name}: {len(waiting)} messages of this rank to itself wait for their other half")
            waiting.append(entry)
            if name == "send":
                work.finish(None)
        return work

    def _deliver(self, sent: tuple[Tensor, CoreWork], received: tuple[Tensor, CoreWork]) -> None:
        (message, sending), (room, receiving) = sent, received
        receiving.source = self._rank
        error = None
        if message.numel() != room.numel() or message.dtype != room.dtype:
            calls = f"{sending.call}, and {receiving.call}"
            error = CollectiveMismatch(-1, {self._rank: calls})
        else:
            room.detach().copy_(message.view(room.shape))
        if not sending.done():
            sending.finish(None)
        receiving.finish(error)
