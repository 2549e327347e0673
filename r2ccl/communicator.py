"""What a user holds: a communicator, and ``connect`` which makes it. The composition root for real life.

    async with r2ccl.connect() as comm:
        await comm.all_reduce(x)

Everything runs on the event loop that ``connect`` was awaited on. Calls number their operation at once and return a
:class:`~r2ccl.actors.work.Work`; several may be in flight, and all ranks must call them in the same order.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import weakref
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

import numpy as np

from r2ccl import buffers
from r2ccl._version import __version__
from r2ccl.actors.coordinator import Coordinator
from r2ccl.actors.planning import Plans
from r2ccl.actors.runtime import Runtime
from r2ccl.actors.shared import Shared
from r2ccl.actors.work import Work
from r2ccl.clock import MonotonicClock
from r2ccl.config import Settings, environment, job_secret, read_settings
from r2ccl.errors import CommunicatorClosed, ConfigurationError, RendezvousError, UsageError
from r2ccl.ids import WORLD_PARENT, communicator_id
from r2ccl.planner.picture import first_picture
from r2ccl.planner.requests import CollectiveKind
from r2ccl.reduction import Op
from r2ccl.rendezvous.launch import Placement, place
from r2ccl.rendezvous.meet import Rendezvous, meet
from r2ccl.rendezvous.meeting import Meeting
from r2ccl.telemetry.counters import Counters
from r2ccl.telemetry.event_log import EventLog
from r2ccl.topology import AddressBook, Member, Nic
from r2ccl.transport.interface import Device
from r2ccl.transport.link_events import AddressEvent, LinkEvent, LinkWatcher, link_events_available
from r2ccl.transport.nics import find_nics
from r2ccl.transport.node_identity import node_id
from r2ccl.transport.tcp import Admission, TcpDevice

logger = logging.getLogger("r2ccl")

#: Wraps each device as it is opened: how the ``faulty`` transport gets in.
WrapDevice = Callable[[Device], Device]


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
        bool, float16, float32, float64, bfloat16. ``timeout`` in seconds; default: R2CCL_TIMEOUT_SEC, 0 for none.
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

        On ``root`` itself ``x`` is only read, and may be read-only.
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
        elif not timeout > 0:
            raise UsageError(f"{kind.value}: timeout={timeout!r} must be a positive number of seconds, or None")
        planned = self._plans.plan(kind, buffer, op, root)
        return self._coordinator.submit(planned, buffer, result, timeout)

    def _refuse_if_closed(self) -> None:
        if self._in_child:
            raise CommunicatorClosed(
                "this process is a fork of the one that owns the communicator: connect() anew here"
            )
        if self._runtime.is_closed:
            raise CommunicatorClosed("the communicator is closed")

    def stats(self) -> dict[str, Any]:
        """Counters and states, JSON-able: per NIC and peer bytes, chunks, resent, duplicates; links; operations."""
        courier = self._runtime.courier
        links = {
            str(link.id): {"state": link.session.state.value, "flaps": link.session.flaps, "cause": link.session.cause}
            for port in self._runtime.ports
            for link in port.links.values()
        }
        lanes = {
            f"lane{lane.index}->rank{lane.peer}": {
                "link": str(lane.link.id) if lane.link is not None else None,
                "bandwidth_bytes_s": lane.bandwidth,
                "round_trip_s": lane.round_trip_s,
                "window_bytes": lane.window_bytes,
                "outstanding_bytes": lane.outstanding_bytes,
            }
            for lanes in courier.lanes.values()
            for lane in lanes
        }
        return {
            "rank": self.rank,
            "size": self.size,
            "epoch": self.epoch,
            "operations": {
                "called": self._coordinator.next_operation,
                "running": len(self._coordinator.running),
                "waiting": len(self._coordinator.waiting),
            },
            "counters": self.counters.snapshot(),
            "links": links,
            "lanes": lanes,
        }

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
        await self._runtime.close(max(0.0, limit_s - (clock.now() - started)))
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
            if isinstance(port.device, TcpDevice):
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


class Connecting:
    """What :func:`connect` returns: await it, or enter it with ``async with``."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._communicator: Communicator | None = None

    def __await__(self) -> Generator[Any, None, Communicator]:
        return self._start().__await__()  # type: ignore[no-any-return]

    async def __aenter__(self) -> Communicator:
        self._communicator = await self
        return self._communicator

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._communicator is not None
        await self._communicator.__aexit__(kind, error, trace)


def connect(
    *,
    rank: int | None = None,
    size: int | None = None,
    rendezvous: str | None = None,
    nics: str | None = None,
    secret: str | None = None,
    timeout: float | None = None,
    progress: str = "loop",
    wrap_device: WrapDevice | None = None,
    **settings: Any,
) -> Connecting:
    """Find the other ranks, connect to all of them, and return the communicator of all ranks.

    ``rank``, ``size`` and ``rendezvous`` (``"tcp://host:port"`` of rank 0) default to RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT of the environment; ``nics`` to R2CCL_NICS, ``secret`` to R2CCL_SECRET or R2CCL_SECRET_FILE; ``timeout``
    (seconds, for finding one another) to R2CCL_CONNECT_TIMEOUT. ``progress`` is ``"loop"``: everything runs on the
    calling loop. Further keywords are settings by name, see ``r2ccl.config.Settings``. ``wrap_device`` is for tests.

    Await it, or use it with ``async with``. Raises :class:`~r2ccl.errors.ConfigurationError` at once, and when awaited
    :class:`~r2ccl.errors.RendezvousError` or :class:`~r2ccl.errors.AuthenticationError`; everything is closed then.
    """
    if progress != "loop":
        raise ConfigurationError(f'progress={progress!r}: only "loop" is supported')
    read, warnings = read_settings()
    for warning in warnings:
        logger.warning("%s", warning)
    given = {"nics": nics, "secret": secret, "connect_timeout_s": timeout, **settings}
    chosen = read.replace(**{name: value for name, value in given.items() if value is not None})
    placement = place(environment(), rank=rank, size=size, rendezvous=rendezvous)
    return Connecting(lambda: _connect(placement, chosen, wrap_device))


async def _connect(placement: Placement, settings: Settings, wrap_device: WrapDevice | None) -> Communicator:
    loop = asyncio.get_running_loop()
    found = find_nics(
        settings.nics, settings.spare_nics, rendezvous_is_loopback=placement.is_loopback, environ=environment()
    )
    meeting = _meeting(placement, settings)
    incarnations: dict[int, int] = {}
    admission = Admission(meeting.identity, incarnations)
    devices = [TcpDevice(nic, admission, loop) for nic in found]
    try:
        announced = tuple(
            dataclasses.replace(nic, endpoint=device.reserve()) for nic, device in zip(found, devices, strict=True)
        )
        member = Member(placement.rank, meeting.incarnation, node_id(settings.node_id), announced)
        rendezvous = await meet(meeting, member)
    except BaseException:
        for device in devices:
            device.close()
        raise
    incarnations.update({other.rank: other.incarnation for other in rendezvous.book})
    opened: list[Device] = [device if wrap_device is None else wrap_device(device) for device in devices]
    return await _join(settings, placement, rendezvous, opened, announced)


def _meeting(placement: Placement, settings: Settings) -> Meeting:
    return Meeting(
        rank=placement.rank,
        size=placement.size,
        host=placement.host,
        port=placement.port,
        secret=job_secret(settings),
        job=placement.job_name(settings.job),
        incarnation=secrets.randbits(64),
        package_version=__version__,
        timeout_s=settings.connect_timeout_s,
        insecure=settings.insecure,
    )


async def _join(
    settings: Settings, placement: Placement, rendezvous: Rendezvous, devices: list[Device], nics: tuple[Nic, ...]
) -> Communicator:
    clock = MonotonicClock()
    loop = asyncio.get_running_loop()
    shared = Shared(placement.rank, rendezvous.book, settings, clock, loop, EventLog(clock))
    runtime = Runtime(shared, devices)
    communicator = world(runtime)
    try:
        runtime.start()
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await runtime.connected()
        except TimeoutError:
            raise RendezvousError(_unconnected(runtime, settings.connect_timeout_s)) from None
        await rendezvous.all_connected()
    except BaseException:
        communicator.abort()
        raise
    finally:
        await rendezvous.aclose()
    _watch_links(runtime, communicator, nics)
    _close_in_children(communicator)
    return communicator


def _unconnected(runtime: Runtime, timeout_s: float) -> str:
    missing = [peer for peer in runtime.shared.peers if not runtime.has_path(peer)]
    where = "; ".join(
        f"rank {peer} at {', '.join(str(nic.endpoint) for nic in runtime.shared.members[peer].nics)}"
        for peer in missing
    )
    return f"no NIC of ours reached {where} within {timeout_s:g} s: check that the NICs are on one network (R2CCL_NICS)"


def world(runtime: Runtime) -> Communicator:
    """The communicator of all ranks of a runtime."""
    settings = runtime.shared.settings
    book: AddressBook = runtime.shared.members
    picture = first_picture(book, settings.chunk_bytes, settings.eager_bytes)
    coordinator = runtime.coordinator(communicator_id(WORLD_PARENT, 0, 0))
    return Communicator(runtime, coordinator, Plans(runtime.shared.rank, picture))


def _watch_links(runtime: Runtime, communicator: Communicator, nics: tuple[Nic, ...]) -> None:
    """Hear of carriers from the kernel, where it tells."""
    if not link_events_available():
        return
    by_name: dict[str, list[int]] = {}
    by_host = {nic.endpoint.host: nic.index for nic in nics}
    for nic in nics:
        by_name.setdefault(nic.name, []).append(nic.index)

    def on_link(event: LinkEvent) -> None:
        for index in by_name.get(event.interface_name, ()):
            runtime.nic_changed(index, event.up and not event.removed, "removed" if event.removed else "carrier")

    def on_address(event: AddressEvent) -> None:
        if event.host in by_host and event.removed:
            runtime.nic_changed(by_host[event.host], False, "address")

    watcher = LinkWatcher(runtime.shared.loop, on_link, on_address)
    try:
        watcher.open()
    except OSError as error:
        logger.warning("no link events (%s): lost NICs are found by silence alone", error)
        return
    communicator.when_closed(watcher.close)


def _close_in_children(communicator: Communicator) -> None:
    """A fork keeps our sockets open, so peers would not notice our death: the child closes them (decision 18)."""
    reference = weakref.ref(communicator)

    def after_fork() -> None:
        alive = reference()
        if alive is not None:
            alive.close_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=after_fork)
