"""What every communicator has besides its calls: who takes part, how a call reaches the actors, and how it ends.

Actors run on one thread. With ``progress="loop"`` that is the caller's, and a call goes to its coordinator directly.
With ``progress="thread"`` it crosses over: checked and planned on the caller's thread, numbered on the other, in the
order in which the calls were made.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self

import numpy as np

from r2ccl.actors.coordinator import Coordinator
from r2ccl.actors.departing import messages_arrived
from r2ccl.actors.report import stats
from r2ccl.actors.runtime import Runtime
from r2ccl.actors.work import Work
from r2ccl.calls import Asked, Ranks
from r2ccl.errors import CommunicatorClosed, R2cclError, UsageError
from r2ccl.ids import WORLD
from r2ccl.progress import ProgressThread
from r2ccl.reduction import Op
from r2ccl.telemetry.counters import Counters
from r2ccl.telemetry.event_log import EventLog
from r2ccl.vocabulary import TAG_MAX


class Handle:
    """The part of a communicator that does not depend on what is called."""

    def __init__(
        self,
        runtime: Runtime,
        number: int,
        members: tuple[int, ...],
        thread: ProgressThread | None = None,
        local_rank: int | None = None,
    ) -> None:
        shared = runtime.shared
        self._runtime = runtime
        self._thread = thread
        self._coordinator = runtime.coordinator(number, members)
        self._channels = runtime.communicators.channels(self._coordinator)
        self.members = members
        self.rank = members.index(shared.rank)
        self.size = len(members)
        self._who = Ranks(self.rank, self.size)
        self._epochs = runtime.communicators.epochs(self._coordinator, members)
        #: Its end is that of this rank's part in the job.
        self._ends_job = number == WORLD
        #: Communicators that nobody but this one knows.
        self._hidden: list[int] = []
        self._local_rank = local_rank
        self._is_closed = False
        self._when_closed: list[Callable[[], None]] = []
        self._when_forked: list[Callable[[], None]] = []

    # Who we are.

    @property
    def epoch(self) -> int:
        """Version of the agreed picture of the network."""
        return self._epochs.newest.epoch

    @property
    def node(self) -> str:
        """Name of this rank's node: ranks of one node share a network namespace and a /dev/shm."""
        return self._runtime.shared.members[self.members[self.rank]].node

    @property
    def nodes(self) -> tuple[str, ...]:
        """Name of the node of each rank."""
        return tuple(self._runtime.shared.members[member].node for member in self.members)

    @property
    def local_rank(self) -> int:
        """Index among the ranks of this communicator on this node; of the job's, what the launcher says, if it does."""
        if self._local_rank is not None:
            return self._local_rank
        return self.nodes[: self.rank].count(self.node)

    @property
    def counters(self) -> Counters:
        """What was sent, resent, received, per NIC and peer."""
        return self._runtime.shared.counters

    @property
    def events(self) -> EventLog:
        """State changes: links and NICs going down and up, lanes moving, failures."""
        return self._runtime.shared.events

    @property
    def failure(self) -> R2cclError | None:
        """Why it refuses work; None while it works."""
        return self._coordinator.failing.error

    # The way of a call.

    def _submit(self, asked: Asked, timeout: float | None, on_end: Callable[[Work], None] | None = None) -> Work:
        shared = self._runtime.shared
        limit_s = shared.settings.timeout_s
        if timeout is not None:
            limit_s = self._limit_s(asked.name or asked.call.kind.value, timeout)
        planned = self._epochs.newest.plan(asked.call)
        work = Work(planned.call, asked.result, shared.thread, on_end)
        if self._thread is None and threading.get_ident() == shared.thread:
            if not self._coordinator.submit(planned, asked.arrays, work, limit_s):
                work.look_with(self._runtime.look)
        else:
            self._cross(work, self._coordinator.submit, planned, asked.arrays, work, limit_s)
        return work

    def _submit_here(self, asked: Asked, limit_s: float, on_end: Callable[[Work], None]) -> None:
        """On the loop's thread. What cannot be submitted ends at once."""
        planned = self._epochs.newest.plan(asked.call)
        work = Work(planned.call, asked.result, self._runtime.shared.thread, on_end)
        _or_end(work, self._coordinator.submit, planned, asked.arrays, work, limit_s)

    def _cross(self, work: Work, called: Callable[..., object], *arguments: Any, even_if_failed: bool = False) -> None:
        """Call ``called`` on the loop's thread, in the order of calls. Raises what already stands against it."""
        if self._thread is not None:
            with self._thread.lock:
                if not even_if_failed:
                    self._coordinator.refuse(self._thread.calls_on_their_way)
                self._thread.call(_or_end, work, called, *arguments)
        elif threading.get_ident() != self._runtime.shared.thread:
            raise UsageError(
                f'{work.call}: called from another thread than that of its loop; connect(progress="thread") allows that'
            )
        else:
            if not even_if_failed:
                self._coordinator.refuse()
            called(*arguments)

    # Checks.

    def _refuse_if_closed(self) -> None:
        if self._in_child:
            raise CommunicatorClosed(
                "this process is a fork of the one that owns the communicator: connect() anew here"
            )
        if self._runtime.is_closing or self._is_closed:
            raise CommunicatorClosed("the communicator is closed")

    def _check_op(self, name: str, op: Op) -> None:
        if not isinstance(op, Op):
            raise UsageError(f"{name}: op={op!r} is none of {', '.join(Op.__members__)}")
        self._refuse_if_closed()

    def _check_root(self, name: str, root: int) -> None:
        if type(root) is not int or not 0 <= root < self.size:
            raise UsageError(f"{name}: root={root!r} is no rank; ranks go from 0 to {self.size - 1}")
        self._refuse_if_closed()

    def _peer(self, name: str, rank: int, tag: int) -> int:
        if type(rank) is not int or not 0 <= rank < self.size or rank == self.rank:
            raise UsageError(f"{name}: {rank!r} is no other rank; ranks go from 0 to {self.size - 1}")
        self._check_tag(name, tag)
        return self.members[rank]

    def _check_tag(self, name: str, tag: int) -> None:
        if type(tag) is not int or not 0 <= tag <= TAG_MAX:
            raise UsageError(f"{name}: tag={tag!r} must be from 0 to {TAG_MAX}")
        self._refuse_if_closed()

    def _limit_s(self, name: str, timeout: float | None) -> float:
        if timeout is None:
            return self._runtime.shared.settings.timeout_s
        if not _is_positive(timeout):
            raise UsageError(f"{name}: timeout={timeout!r} must be a positive number of seconds, or None")
        return float(timeout)  # numpy's numbers do not go on the wire

    # Looking inside.

    def stats(self) -> dict[str, Any]:
        """Counters, measurements and states, ready for JSON. Numbers only grow, except for what is measured or waits.

        - ``rank``, ``size``, ``epoch``; ``operations``: how many were ``called``, are ``running``, are ``waiting``.
        - ``agreement``: None, or what keeps the members from the next ``epoch``: ``stage``, whose answers are
          ``missing`` (told where they are awaited, at the lowest rank), and from which operation on calls are
          ``held_from`` until it is known (None: none is).
        - ``plans``: for the latest 16 kinds of calls planned in this epoch, in words, which algorithm, and why.
        - ``ccl_retransmit_ratio``: resent bytes / sent bytes, from 0 to 1; also in each of ``nics`` and ``peers``.
        - ``nics``, by ``nic0`` ...: ``device``, ``shares_device_with`` (other lanes over it), ``address``, ``state``
          (``up``, ``down``), ``spare``, ``speed_mbit_s`` (0: unknown), ``mtu_bytes``, and
            - ``bandwidth_bytes_s``: measured, of its fastest lane; None before enough was sent to tell;
            - ``rtt_s``: seconds, the kernel's smoothed estimate, of its shortest link; None while no link is up;
            - ``sent_bytes``, ``sent_chunks``: payloads that went out, those sent again included; ``resent_bytes``,
              ``resent_chunks``: the part that had gone out before; ``received_bytes``, ``received_chunks``: what
              arrived whole; ``duplicate_chunks``: had been there already; ``spoiled_chunks``: wrong checksum,
              or, of ``memory``, taken back by who failed; ``acks_sent``, ``acks_received``: frames.
        - ``peers``, by ``rank1`` ...: ``state`` (``alive``, ``doubted``, ``cut off``, ``left``, ``gone``), ``links_up``
          (how many), ``bandwidth_bytes_s`` (of all lanes together), ``rtt_s`` and the same counters.
        - ``links``, by ``nic0->rank1.nic0`` ...: ``state`` (``absent``, ``dialling``, ``probation``, ``up``, ``down``),
          ``cause`` of being down, ``flaps`` (losses in a row), ``rtt_s``, ``backup`` (across rails: there may be no
          route); ``suspicion`` (``clear``, ``suspect``) and the ``evidence`` that stands against it: its ``kind``,
          ``since_s`` (by the clock of ``events``) and what it ``says``; ``route``: ``shadow`` while new chunks avoid
          it because it became slow, else ``home``.
        - ``lanes``, by ``lane0->rank1`` ...: ``link``, ``bandwidth_bytes_s`` (``measured``, or the NIC's nominal one),
          ``round_trip_s`` (seconds from sent to acknowledged), ``window_bytes``, ``outstanding_bytes``.
        - ``incidents``, the latest 64, newest last: what was lost together, and whose fault it was. ``number``;
          ``cause`` of the first loss; ``links``, at most 16 of ``links_total``; ``nic`` and ``peer`` if all have the
          same; ``first_evidence_s`` and ``started`` (out of service), by the clock of ``events``; from the first
          evidence on ``repaired_after_s`` (the last lane has another link) and ``verdict_after_s``, None until then and
          where no lane was on it; ``verdict`` and its ``evidence``, in words.
        - ``counters``: the raw counters as ``total``, ``nics``, ``peers`` and ``links`` (NIC and peer), ``failovers``,
          ``parked_bytes`` (arrived before their operation was called), ``relayed_bytes`` (carried for others) and
          ``relay_dropped_frames`` (that there was no room for). What others carried is the NIC ``relay``.
          ``strangers``: how many were turned away at our listeners, by reason (SECURITY.md).

        Network figures are those of the process: communicators share its links.
        """
        return stats(self._runtime, self._coordinator, self.rank, self.size, self._epochs)

    def report_carrier(self, nic: int, up: bool) -> None:
        """Tell that a NIC of ours lost or found its carrier, where the system doesn't: for emulated NICs."""
        if not self._runtime.is_closed:
            self._runtime.nic_changed(nic, up, "carrier")

    # The end.

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it ends well within it, not by it
        """Wait for running operations, say goodbye, and end, within ``timeout`` seconds (R2CCL_CLOSE_TIMEOUT).

        Lingers until all others close too, because they may still need answers. Never raises for what peers do; may be
        called twice. Operations that are not done by then fail with :class:`~r2ccl.errors.CommunicatorClosed`. Closing
        the job's communicator ends all that were made from it; closing one of those ends only it.
        """
        if self._in_child or self._runtime.is_closed:
            return
        if self._thread is None or self._thread.is_current:
            await self._close(timeout)
            return
        try:
            await asyncio.wrap_future(self._thread.run(self._close(timeout)))
        except BaseException:
            if self._ends_job:
                self.abort()
            raise
        self._stop_thread()

    def close_and_wait(self, timeout: float | None = None) -> None:
        """As :meth:`close`, for threads without a loop; only with ``progress="thread"``."""
        if self._thread is None:
            raise UsageError("close_and_wait: the communicator is a loop's, whose thread must not wait: await close()")
        if self._in_child or self._runtime.is_closed:
            return
        with contextlib.suppress(CancelledError):  # another thread has ended it meanwhile
            self._thread.run(self._close(timeout)).result()
        self._stop_thread()

    async def _close(self, timeout: float | None) -> None:  # noqa: ASYNC109 - see close()
        limit_s = self._runtime.shared.settings.close_timeout_s if timeout is None else timeout
        clock = self._runtime.shared.clock
        deadline_s = clock.now() + limit_s
        if self._is_closed:
            return
        for coordinator in self._own_coordinators():
            await coordinator.idle(max(0.0, deadline_s - clock.now()))
        channels = self._runtime.communicators.channel_numbers() if self._ends_job else self._channels.numbers()
        courier, loop = self._runtime.courier, self._runtime.shared.loop
        await messages_arrived(courier, loop, channels, max(0.0, deadline_s - clock.now()))
        if self._is_closed:
            return  # by another call meanwhile
        if not self._ends_job:
            for coordinator in self._own_coordinators():
                coordinator.leave()
            numbers = [coordinator.communicator for coordinator in self._own_coordinators()]
            self._finish_close()
            self._runtime.communicators.retire(numbers)
            return
        try:
            await self._runtime.close(max(0.0, deadline_s - clock.now()))
        finally:
            # Also when it was cancelled, which ends the runtime all the same: nobody else would end what is unfinished.
            if self._runtime.is_closed:
                self._finish_close()

    def abort(self) -> None:
        """End at once, without a word to the others: they see this rank die. Unfinished operations fail here, of this
        communicator and of all others of the job."""
        if self._in_child:
            return
        if self._thread is None or self._thread.is_current:
            self._abort()
            return
        if not self._runtime.is_closed:
            with contextlib.suppress(CancelledError):  # another thread has ended it meanwhile
                self._thread.run(_called(self._abort)).result()
        self._stop_thread()

    def abort_alone(self, why: str) -> None:
        """Fail this communicator on all members, and no other: what is unfinished ends with
        :class:`~r2ccl.errors.CommunicatorAborted`, and it refuses work."""
        if self._in_child or self._runtime.is_closed or self._is_closed:
            return
        if self._thread is None or self._thread.is_current:
            self._abort_alone(why)
        else:
            with contextlib.suppress(CancelledError):  # another thread has ended all meanwhile
                self._thread.run(_called(self._abort_alone, why)).result()

    def _abort_alone(self, why: str) -> None:
        if not self._is_closed:
            failing = self._coordinator.failing
            failing.fail(failing.first_unfinished(), "aborted", why, ())

    def _abort(self) -> None:
        if self._runtime.is_closed:
            return
        self._runtime.abort()
        self._finish_close()

    def _finish_close(self) -> None:
        self._is_closed = True
        error = CommunicatorClosed("the communicator is closed")
        for coordinator in self._own_coordinators():
            coordinator.failing.close(error, goes_on=not self._runtime.is_closed)
            self._runtime.communicators.leave_shrinking(coordinator.communicator, error)
        for callback in self._when_closed:
            callback()
        self._when_closed.clear()

    def _stop_thread(self) -> None:
        if self._thread is not None and self._runtime.is_closed:
            self._thread.stop()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call back once, when the communicator has ended."""
        self._when_closed.append(callback)

    def when_forked(self, callback: Callable[[], None]) -> None:
        """Call back in a forked child."""
        self._when_forked.append(callback)

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of every descriptor, say nothing, and refuse all calls."""
        self._runtime.is_in_child = True
        for port in self._runtime.all_ports:
            port.device.close_in_child()
        for callback in self._when_forked:
            callback()
        error = CommunicatorClosed("this process is a fork of the one that owns the communicator")
        error.in_child = True
        self._runtime.communicators.close_in_child(error)
        for work, *_ in () if self._thread is None else self._thread.calls_in_child():
            if not work.done():
                work.finish(error)

    @property
    def _in_child(self) -> bool:
        """Is this a fork of the process that connected?"""
        return self._runtime.is_in_child

    def _own_coordinators(self) -> list[Coordinator]:
        """Those that end with this communicator: the job's ends them all."""
        if self._ends_job or self._runtime.is_closed:
            return list(self._runtime.coordinators.values())
        numbers = [*self._hidden, *self._channels.numbers()]
        return [self._coordinator, *(self._runtime.coordinators[number] for number in numbers)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = "closed" if self._runtime.is_closed or self._is_closed else "open"
        return f"<{type(self).__name__} rank {self.rank} of {self.size}, {state}>"


def _is_positive(number: Any) -> bool:
    return isinstance(number, (int, float, np.number)) and not isinstance(number, bool) and bool(0 < number < math.inf)


def _or_end(work: Work, function: Callable[..., object], *arguments: Any) -> None:
    """What a call raises when it has crossed over ends its Work instead."""
    try:
        function(*arguments)
    except R2cclError as error:
        work.finish(error)


async def _called(function: Callable[..., None], *arguments: Any) -> None:
    function(*arguments)
