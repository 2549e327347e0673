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
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, assert_never

from r2ccl._version import __version__
from r2ccl.actors.report import start_table
from r2ccl.actors.runtime import Runtime
from r2ccl.actors.shared import Shared
from r2ccl.actors.work import Look
from r2ccl.clock import MonotonicClock
from r2ccl.communicator import Communicator, world
from r2ccl.config import LOG_LEVELS, Reading, Settings, environment, job_secret, read_settings, shown_value
from r2ccl.doors import Doors
from r2ccl.errors import ConfigurationError, RendezvousError
from r2ccl.fault_control import Breakable
from r2ccl.figures import log_figures, own_figures, to_announce
from r2ccl.progress import ProgressThread
from r2ccl.rendezvous.launch import Placement, place
from r2ccl.rendezvous.meet import Rendezvous, meet
from r2ccl.rendezvous.meeting import Meeting
from r2ccl.telemetry.counters import Counters
from r2ccl.telemetry.event_log import EventLog
from r2ccl.telemetry.log_output import open_log
from r2ccl.telemetry.strangers import Strangers
from r2ccl.topology import Member, Nic
from r2ccl.transport.interface import Device
from r2ccl.transport.link_events import AddressEvent, LinkEvent, LinkWatcher, link_events_available
from r2ccl.transport.link_statistics import NicErrors
from r2ccl.transport.link_traffic import NicTraffic
from r2ccl.transport.nic_follower import News, NicChanged, NicFollower, NicMoved
from r2ccl.transport.nic_lanes import with_lanes
from r2ccl.transport.nics import Selection, find_nics
from r2ccl.transport.node_identity import node_id
from r2ccl.transport.tcp import Admission

logger = logging.getLogger("r2ccl")

#: Wraps each device as it is opened: how the ``faulty`` transport gets in.
WrapDevice = Callable[[Device], Device]
#: Announces this rank and waits until all have come.
Meet = Callable[[Meeting, Member, Strangers], Awaitable[Rendezvous]]


class Connecting:
    """What :func:`connect` returns: await it, or enter it with ``async with``."""

    def __init__(
        self, start: Callable[[ProgressThread | None], Coroutine[Any, Any, Communicator]], on_a_thread: bool
    ) -> None:
        self._start = start
        self._on_a_thread = on_a_thread
        self._communicator: Communicator | None = None

    def __await__(self) -> Generator[Any, None, Communicator]:
        if self._on_a_thread:
            return self._on_thread().__await__()
        return self._start(None).__await__()

    async def _on_thread(self) -> Communicator:
        thread = ProgressThread()
        connecting = thread.run(self._start(thread))
        try:
            return await asyncio.wrap_future(connecting)
        except BaseException:
            thread.give_up(connecting)
            raise

    def wait(self) -> Communicator:
        """Connect without a loop, on a thread of its own."""
        thread = ProgressThread()
        connecting = thread.run(self._start(thread))
        try:
            return connecting.result()
        except BaseException:
            thread.give_up(connecting)
            raise

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

    ``rank``, ``size`` and ``rendezvous`` (``"tcp://host:port"`` of rank 0) default to what the launcher says: torchrun,
    ``r2ccl run`` (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), mpirun, srun, or a Kubernetes indexed job. ``nics``
    defaults to R2CCL_NICS, ``secret`` to R2CCL_SECRET or R2CCL_SECRET_FILE; ``timeout`` (seconds, for finding one
    another) to R2CCL_CONNECT_TIMEOUT. ``progress`` says where everything runs: on the calling loop (``"loop"``), or on
    a thread of its own (``"thread"``), where repairs do not wait for a program that computes, and calls may come from
    any thread. Further keywords are settings by name, see ``r2ccl.config.Settings``. ``wrap_device`` is for tests.

    Await it, or use it with ``async with``. Raises :class:`~r2ccl.errors.ConfigurationError` at once, and when awaited
    :class:`~r2ccl.errors.RendezvousError` or :class:`~r2ccl.errors.AuthenticationError`; everything is closed then.
    """
    if progress not in ("loop", "thread"):
        raise ConfigurationError(f'progress={progress!r} must be "loop" or "thread"')
    given = {"nics": nics, "secret": secret, "connect_timeout_s": timeout, **settings}
    reading = read_settings(arguments={name: value for name, value in given.items() if value is not None})
    chosen = reading.settings
    close_log = open_log(LOG_LEVELS[chosen.debug], chosen.debug_file)
    try:
        _log_settings(reading)
        placement = place(environment(), rank=rank, size=size, rendezvous=rendezvous)
        logger.info("%s", placement.describe())
    except BaseException:
        close_log()
        raise

    def start(thread: ProgressThread | None) -> Coroutine[Any, Any, Communicator]:
        return _connect_and_log(placement, chosen, wrap_device, close_log, thread, meet)

    return Connecting(start, progress == "thread")


def connect_at(placement: Placement, meet_there: Meet, reading: Reading) -> Connecting:
    """As :func:`connect`, on a thread of its own, for those who have a place of their own to meet at."""
    chosen = reading.settings
    close_log = open_log(LOG_LEVELS[chosen.debug], chosen.debug_file)
    _log_settings(reading)
    logger.info("%s", placement.describe())

    def start(thread: ProgressThread | None) -> Coroutine[Any, Any, Communicator]:
        return _connect_and_log(placement, chosen, None, close_log, thread, meet_there)

    return Connecting(start, on_a_thread=True)


def _log_settings(reading: Reading) -> None:
    """What is no setting, and where those that are no defaults came from."""
    for warning in reading.warnings:
        logger.warning("%s", warning)
    for name, origin in reading.origins.items():
        if origin != "default":
            logger.info("setting %s=%s from %s", name, shown_value(reading.settings, name), origin)


async def _connect_and_log(
    placement: Placement,
    settings: Settings,
    wrap_device: WrapDevice | None,
    close_log: Callable[[], None],
    thread: ProgressThread | None,
    meet_there: Meet,
) -> Communicator:
    """Connect; the log stays open until the communicator has ended."""
    try:
        communicator = await _connect(placement, settings, wrap_device, thread, meet_there)
    except BaseException:
        close_log()
        raise
    communicator.when_closed(close_log)
    return communicator


async def _connect(
    placement: Placement,
    settings: Settings,
    wrap_device: WrapDevice | None,
    thread: ProgressThread | None,
    meet_there: Meet,
) -> Communicator:
    loop = asyncio.get_running_loop()
    figures = own_figures(settings)
    selection = select_nics(placement, settings)
    found = with_lanes(selection.nics, settings.lanes_per_nic)
    meeting = invitation(placement, settings)
    refuse_open_listeners(placement, settings, found, meeting.secret)
    incarnations: dict[int, int] = {}
    events = EventLog(MonotonicClock(), rank=placement.rank)
    strangers = Strangers(loop, events)
    doors = Doors(found, Admission(meeting.identity, incarnations, strangers), loop)
    try:
        announced = doors.reserve()
        member = Member(placement.rank, meeting.incarnation, node_id(settings.node_id), announced)
        # Where NICs are broken on purpose, something has to go over them.
        if settings.shared_memory != "off" and placement.size > 1 and not settings.fault_injection:
            doors.share_memory(member)
        member = dataclasses.replace(member, tuning=to_announce(placement.rank, figures, doors.shares_memory))
        rendezvous = await meet_there(meeting, member, strangers)
    except BaseException:
        doors.close()
        strangers.close()
        raise
    log_figures(placement.rank, figures, rendezvous.book, bool(settings.tuning))
    incarnations.update({other.rank: other.incarnation for other in rendezvous.book})
    opened: list[Device] = [device if wrap_device is None else wrap_device(device) for device in doors.devices]
    breakable = Breakable(meeting.identity, opened, loop, settings) if settings.fault_injection else None
    if breakable is not None:
        opened = [*breakable.devices]
    selection = dataclasses.replace(selection, nics=announced)
    memory = doors.memory_among(sum(other.node == member.node for other in rendezvous.book))
    shared = Shared(
        placement.rank, rendezvous.book, settings, MonotonicClock(), loop, events,
        Counters(strangers=strangers.refused), new_errors=NicErrors().new_errors, new_bytes=NicTraffic().new_bytes,
    )  # fmt: skip
    try:
        parts = (opened, memory, doors.look_for, selection, thread, breakable)
        communicator = await _join(shared, placement, rendezvous, *parts)
    except BaseException:
        strangers.close()
        raise
    communicator.when_closed(strangers.close)
    return communicator


def select_nics(placement: Placement, settings: Settings) -> Selection:
    """The NICs of this rank, as the settings have them."""
    selection = find_nics(
        settings.nics, settings.spare_nics, rendezvous_is_loopback=placement.is_loopback, environ=environment()
    )
    found = selection.nics
    if settings.nic_speed_mbit_s:
        found = tuple(dataclasses.replace(nic, speed_mbit_s=settings.nic_speed_mbit_s) for nic in found)
    return dataclasses.replace(selection, nics=found)


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


def invitation(placement: Placement, settings: Settings) -> Meeting:
    """What this rank goes to the rendezvous with. Each is of a new incarnation."""
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
    shared: Shared,
    placement: Placement,
    rendezvous: Rendezvous,
    devices: list[Device],
    memory: Device | None,
    look: Look,
    selection: Selection,
    thread: ProgressThread | None,
    breakable: Breakable | None,
) -> Communicator:
    settings = shared.settings
    runtime = Runtime(shared, devices, memory)
    runtime.look = look
    communicator = world(runtime, thread, placement.local_rank)
    try:
        runtime.start()
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await runtime.connected()
        except TimeoutError:
            raise RendezvousError(_unconnected(runtime, settings.connect_timeout_s)) from None
        await rendezvous.all_connected()
        runtime.first_dials.follow()
        if breakable is not None:
            breakable.open(environment(), runtime.nic_changed)
            communicator.when_closed(breakable.control.close)
            communicator.when_forked(breakable.control.close_in_child)
    except BaseException:
        communicator.abort()
        raise
    finally:
        await rendezvous.aclose()
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", start_table(runtime, [(out.name, out.reason) for out in selection.left_out]))
    _watch_links(runtime, communicator, selection.nics)
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
        self._follower = NicFollower(nics)
        self.links = LinkWatcher(runtime.shared.loop, self._on_link, self._on_address)

    def _on_link(self, event: LinkEvent) -> None:
        self._tell(self._follower.hear_link(event))

    def _on_address(self, event: AddressEvent) -> None:
        self._tell(self._follower.hear_address(event))

    def _tell(self, news: list[News]) -> None:
        for new in news:
            match new:
                case NicChanged():
                    self._runtime.nic_changed(new.index, new.up, new.cause)
                case NicMoved():
                    self._runtime.nic_moved(new.index, new.host, new.interface_name, new.up)
                case _:
                    assert_never(new)


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
    communicator.when_forked(watch.links.close_in_child)


def _close_in_children(communicator: Communicator) -> None:
    """A fork keeps our sockets open, so peers would not notice our death: the child closes them (decision 18)."""
    reference = weakref.ref(communicator)

    def after_fork() -> None:
        alive = reference()
        if alive is not None:
            alive.close_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=after_fork)
