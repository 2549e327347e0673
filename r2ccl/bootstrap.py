"""How ranks become a job: ``connect``, the composition root for real life.

It finds the NICs, opens them, meets the other ranks, puts the actors together, and waits until everybody reaches
everybody. After that nothing depends on the place where they met.
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

from r2ccl._version import __version__
from r2ccl.actors.runtime import Runtime
from r2ccl.actors.shared import Shared
from r2ccl.clock import MonotonicClock
from r2ccl.communicator import Communicator, world
from r2ccl.config import LOG_LEVELS, Settings, environment, job_secret, read_settings
from r2ccl.errors import ConfigurationError, RendezvousError
from r2ccl.rendezvous.launch import Placement, place
from r2ccl.rendezvous.meet import Rendezvous, meet
from r2ccl.rendezvous.meeting import Meeting
from r2ccl.telemetry.event_log import EventLog
from r2ccl.topology import Member, Nic
from r2ccl.transport.interface import Device
from r2ccl.transport.link_events import AddressEvent, LinkEvent, LinkWatcher, link_events_available
from r2ccl.transport.nics import find_nics
from r2ccl.transport.node_identity import node_id
from r2ccl.transport.tcp import Admission, TcpDevice

logger = logging.getLogger("r2ccl")

#: Wraps each device as it is opened: how the ``faulty`` transport gets in.
WrapDevice = Callable[[Device], Device]


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
    given = {"nics": nics, "secret": secret, "connect_timeout_s": timeout, **settings}
    chosen = read.replace(**{name: value for name, value in given.items() if value is not None})
    _log(chosen.debug)
    for warning in warnings:
        logger.warning("%s", warning)
    placement = place(environment(), rank=rank, size=size, rendezvous=rendezvous)
    return Connecting(lambda: _connect(placement, chosen, wrap_device))


def _log(level: str) -> None:
    """R2CCL_DEBUG beyond the default: our log goes to standard error, unless the program has handlers of its own."""
    if level == "WARN":
        return
    logger.setLevel(LOG_LEVELS[level])
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(name)s %(message)s"))
        logger.addHandler(handler)


async def _connect(placement: Placement, settings: Settings, wrap_device: WrapDevice | None) -> Communicator:
    loop = asyncio.get_running_loop()
    found = find_nics(
        settings.nics, settings.spare_nics, rendezvous_is_loopback=placement.is_loopback, environ=environment()
    )
    if settings.nic_speed_mbit_s:
        found = tuple(dataclasses.replace(nic, speed_mbit_s=settings.nic_speed_mbit_s) for nic in found)
    meeting = _meeting(placement, settings)
    refuse_open_listeners(placement, settings, found, meeting.secret)
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


def refuse_open_listeners(placement: Placement, settings: Settings, nics: tuple[Nic, ...], secret: bytes) -> None:
    """Without a secret nobody beyond this machine may even find somebody listening."""
    if secret or settings.insecure or placement.size == 1:
        return
    beyond = [f"{nic.name} ({nic.endpoint.host})" for nic in nics if not nic.endpoint.host.startswith("127.")]
    if beyond:
        raise ConfigurationError(
            f"{', '.join(beyond)} can be reached from other hosts, and the job has no secret: give all ranks the same "
            "R2CCL_SECRET or R2CCL_SECRET_FILE, or set R2CCL_INSECURE=1 on all of them if the network is trusted"
        )


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


class _NicWatch:
    """Turns what the kernel tells of links and addresses into news of our NICs."""

    def __init__(self, runtime: Runtime, nics: tuple[Nic, ...]) -> None:
        self._runtime = runtime
        self._nics = nics
        self._by_host = {nic.endpoint.host: nic.index for nic in nics}
        #: NICs whose address is gone. One of them that gets another is the same NIC (decision 20).
        self._homeless: set[int] = set()
        self.links = LinkWatcher(runtime.shared.loop, self._on_link, self._on_address)

    def _on_link(self, event: LinkEvent) -> None:
        for nic in self._nics:
            if nic.name == event.interface_name and nic.index not in self._homeless:
                up = event.up and not event.removed
                self._runtime.nic_changed(nic.index, up, "removed" if event.removed else "carrier")

    def _on_address(self, event: AddressEvent) -> None:
        index = self._by_host.get(event.host)
        if index is None:
            if not event.removed:
                self._new_address(event)
        elif event.removed:
            self._homeless.add(index)
            self._runtime.nic_changed(index, False, "address")
        elif index in self._homeless:
            self._homeless.discard(index)
            link = self.links.link(self._nics[index].name)
            self._runtime.nic_changed(index, link is not None and link.up, "address")

    def _new_address(self, event: AddressEvent) -> None:
        for nic in self._nics:
            link = self.links.link(nic.name)
            if nic.index in self._homeless and link is not None and link.interface_index == event.interface_index:
                self._homeless.discard(nic.index)
                self._by_host = {host: index for host, index in self._by_host.items() if index != nic.index}
                self._by_host[event.host] = nic.index
                self._runtime.nic_moved(nic.index, event.host)
                return


def _watch_links(runtime: Runtime, communicator: Communicator, nics: tuple[Nic, ...]) -> None:
    """Hear of carriers and addresses from the kernel, where it tells."""
    if not link_events_available():
        return
    watch = _NicWatch(runtime, nics)
    try:
        watch.links.open()
    except OSError as error:
        logger.warning("no link events (%s): lost NICs are found by silence alone", error)
        return
    communicator.when_closed(watch.links.close)


def _close_in_children(communicator: Communicator) -> None:
    """A fork keeps our sockets open, so peers would not notice our death: the child closes them (decision 18)."""
    reference = weakref.ref(communicator)

    def after_fork() -> None:
        alive = reference()
        if alive is not None:
            alive.close_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=after_fork)
