"""What a user holds: a communicator.

    async with r2ccl.connect() as comm:
        await comm.all_reduce(x)

Everything runs on the event loop that ``connect`` was awaited on. Calls number their operation at once and return a
:class:`~r2ccl.actors.work.Work`; several may be in flight, and all ranks must call them in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from r2ccl import buffers
from r2ccl.actors.coordinator import Coordinator
from r2ccl.actors.planning import Plans
from r2ccl.actors.report import stats
from r2ccl.actors.runtime import Runtime
from r2ccl.actors.work import Work
from r2ccl.errors import CommunicatorClosed, UsageError
from r2ccl.ids import WORLD_PARENT, communicator_id
from r2ccl.planner.picture import first_picture
from r2ccl.planner.requests import CollectiveKind
from r2ccl.reduction import Op
from r2ccl.telemetry.counters import Counters
from r2ccl.telemetry.event_log import EventLog
from r2ccl.topology import AddressBook


class Communicator:
    """A group of ranks that call collectives together. Made by :func:`connect`; one loop, one thread.

    Attributes: ``rank`` (this process, 0 <= rank < size), ``size``.

    Every collective numbers itself when it is called, and returns a ``Work`` to await. All ranks call the same
    collectives in the same order with the same element counts, dtypes and ops; a difference raises
    :class:`~r2ccl.errors.CollectiveMismatch` on all. From the call until the ``Work`` is done the tensor is on loan:
    neither read nor write it. After any error but :class:`~r2ccl.errors.UsageError` the contents of unfinished
    operations' tensors are undefined, they belong to the caller again, and the communicator refuses work.
    """

    def __init__(self, runtime: Runtime, coordinator: Coordinator, plans: Plans) -> None:
        self._runtime = runtime
        self._coordinator = coordinator
        self._plans = plans
        self._nothing = buffers.view(np.empty(0, np.uint8), True, "barrier")
        self._in_child = False
        self._when_closed: list[Callable[[], None]] = []
        self.rank = runtime.shared.rank
        self.size = runtime.shared.size

    @property
    def epoch(self) -> int:
        """Version of the agreed picture of the network."""
        return self._plans.epoch

    @property
    def counters(self) -> Counters:
        """What was sent, resent, received, per NIC and peer."""
        return self._runtime.shared.counters

    @property
    def events(self) -> EventLog:
        """State changes: links and NICs going down and up, lanes moving, failures."""
        return self._runtime.shared.events

    def all_reduce(self, x: Any, op: Op = Op.SUM, *, timeout: float | None = None) -> Work:
        """Combine ``x`` of all ranks element by element; the result replaces ``x`` on every rank, the same bits on all.

        ``x``: numpy array, or anything with the buffer protocol or DLPack, contiguous and writable; any integer type,
        bool, float16, float32, float64, bfloat16, and complex numbers with SUM and PRODUCT. ``timeout`` in seconds;
        default: R2CCL_TIMEOUT_SEC, 0 for none.
        Returns a Work whose result is ``x``. Raises :class:`~r2ccl.errors.UsageError` at once, before anything is
        numbered; awaiting the Work raises PeerLost, CollectiveMismatch, CollectiveTimeout or CommunicatorAborted.
        """
        if not isinstance(op, Op):
            raise UsageError(f"all_reduce: op={op!r} is none of {', '.join(Op.__members__)}")
        self._refuse_if_closed()
        buffer = buffers.view(x, True, "all_reduce")
        return self._submit(CollectiveKind.ALL_REDUCE, buffer, op, 0, x, timeout)

    def broadcast(self, x: Any, root: int, *, timeout: float | None = None) -> Work:
        """Copy ``x`` of rank ``root`` into ``x`` of all others. Arguments and errors as :meth:`all_reduce`.

        On ``root`` itself ``x`` is only read, and may be read-only. There the Work ends when those it sends to have
        called too and hold ``x``; up to R2CCL_EAGER_BYTES it ends at once, for ``x`` goes out from a copy, and a
        difference of calls is then raised by the root's next call.
        """
        if type(root) is not int or not 0 <= root < self.size:
            raise UsageError(f"broadcast: root={root!r} is no rank; ranks go from 0 to {self.size - 1}")
        self._refuse_if_closed()
        buffer = buffers.view(x, root != self.rank, "broadcast")
        return self._submit(CollectiveKind.BROADCAST, buffer, None, root, x, timeout)

    def barrier(self, *, timeout: float | None = None) -> Work:
        """Done when every rank has called it. Errors as :meth:`all_reduce`."""
        self._refuse_if_closed()
        return self._submit(CollectiveKind.BARRIER, self._nothing, None, 0, None, timeout)

    def _submit(
        self, kind: CollectiveKind, buffer: buffers.Buffer, op: Op | None, root: int, result: Any, timeout: float | None
    ) -> Work:
        if timeout is None:
            timeout = self._runtime.shared.settings.timeout_s
        elif not _is_positive(timeout):
            raise UsageError(f"{kind.value}: timeout={timeout!r} must be a positive number of seconds, or None")
        else:
            timeout = float(timeout)  # numpy's numbers do not go on the wire
        planned = self._plans.plan(kind, buffer, op, root)
        return self._coordinator.submit(planned, buffer, result, timeout)

    def _refuse_if_closed(self) -> None:
        if self._in_child:
            raise CommunicatorClosed(
                "this process is a fork of the one that owns the communicator: connect() anew here"
            )
        if self._runtime.is_closing:
            raise CommunicatorClosed("the communicator is closed")

    def stats(self) -> dict[str, Any]:
        """Counters, measurements and states, ready for JSON. Numbers only grow, except for what is measured or waits.

        - ``rank``, ``size``, ``epoch``; ``operations``: how many were ``called``, are ``running``, are ``waiting``.
        - ``ccl_retransmit_ratio``: resent bytes / sent bytes, from 0 to 1; also in each of ``nics`` and ``peers``.
        - ``nics``, by ``nic0`` ...: ``device``, ``address``, ``state`` (``up``, ``down``), ``spare``, ``speed_mbit_s``
          (0: unknown), ``mtu_bytes``, and
            - ``bandwidth_bytes_s``: measured, of its fastest lane; None before enough was sent to tell;
            - ``rtt_s``: seconds, the kernel's smoothed estimate, of its shortest link; None while no link is up;
            - ``sent_bytes``, ``sent_chunks``: payloads that went out, those sent again included; ``resent_bytes``,
              ``resent_chunks``: the part that had gone out before; ``received_bytes``, ``received_chunks``: what
              arrived whole; ``duplicate_chunks``: had been there already; ``spoiled_chunks``: wrong checksum;
              ``acks_sent``, ``acks_received``: frames.
        - ``peers``, by ``rank1`` ...: ``state`` (``alive``, ``doubted``, ``cut off``, ``left``, ``gone``), ``links_up``
          (how many), ``bandwidth_bytes_s`` (of all lanes together), ``rtt_s`` and the same counters.
        - ``links``, by ``nic0->rank1.nic0`` ...: ``state`` (``absent``, ``dialling``, ``probation``, ``up``, ``down``),
          ``cause`` of being down, ``flaps`` (losses in a row), ``rtt_s``.
        - ``lanes``, by ``lane0->rank1`` ...: ``link``, ``bandwidth_bytes_s`` (``measured``, or the NIC's nominal one),
          ``round_trip_s`` (seconds from sent to acknowledged), ``window_bytes``, ``outstanding_bytes``.
        - ``counters``: the raw counters as ``total``, ``nics``, ``peers`` and ``links`` (NIC and peer), ``failovers``,
          ``parked_bytes`` (arrived before their operation was called).

        Network figures are those of the process: communicators share its links.
        """
        return stats(self._runtime, self._coordinator, self.rank, self.size, self.epoch)

    def report_carrier(self, nic: int, up: bool) -> None:
        """Tell that a NIC of ours lost or found its carrier, where the system doesn't: for emulated NICs."""
        if not self._runtime.is_closed:
            self._runtime.nic_changed(nic, up, "carrier")

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it ends well within it, not by it
        """Wait for running operations, say goodbye, and end, within ``timeout`` seconds (R2CCL_CLOSE_TIMEOUT).

        Lingers until all others close too, because they may still need answers. Never raises for what peers do; may be
        called twice. Operations that are not done by then fail with :class:`~r2ccl.errors.CommunicatorClosed`.
        """
        if self._in_child or self._runtime.is_closed:
            return
        limit_s = self._runtime.shared.settings.close_timeout_s if timeout is None else timeout
        clock = self._runtime.shared.clock
        started = clock.now()
        await self._coordinator.idle(limit_s)
        try:
            await self._runtime.close(max(0.0, limit_s - (clock.now() - started)))
        finally:
            # Also when it was cancelled, which ends the runtime all the same: nobody else would end what is unfinished.
            if self._runtime.is_closed:
                self._finish_close()

    def abort(self) -> None:
        """End at once, without a word to the others: they see this rank die. Unfinished operations fail here."""
        if not self._in_child:
            self._runtime.abort()
            self._finish_close()

    def _finish_close(self) -> None:
        self._coordinator.failing.close(CommunicatorClosed("the communicator is closed"))
        for callback in self._when_closed:
            callback()
        self._when_closed.clear()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call back once, when the communicator has ended."""
        self._when_closed.append(callback)

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of every descriptor, say nothing, and refuse all calls."""
        self._in_child = True
        for port in self._runtime.ports:
            port.device.close_in_child()

    async def __aenter__(self) -> Communicator:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = "closed" if self._runtime.is_closed else "open"
        return f"<Communicator rank {self.rank} of {self.size}, {state}>"


def _is_positive(number: Any) -> bool:
    return isinstance(number, (int, float, np.number)) and bool(number > 0)


def world(runtime: Runtime) -> Communicator:
    """The communicator of all ranks of a runtime."""
    settings = runtime.shared.settings
    book: AddressBook = runtime.shared.members
    picture = first_picture(book, settings.chunk_bytes, settings.eager_bytes)
    coordinator = runtime.coordinator(communicator_id(WORLD_PARENT, 0, 0))
    return Communicator(runtime, coordinator, Plans(runtime.shared.rank, picture))
