"""Every transport, alone and under the ``faulty`` wrapper, keeps every law that binds it."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
import uvloop

from r2ccl.clock import Clock, MonotonicClock
from r2ccl.protocol.handshake import Identity
from r2ccl.sim.loop import SimClock
from r2ccl.sim.loop import run as run_in_virtual_time
from r2ccl.topology import Endpoint, Nic
from r2ccl.transport.faulty import FaultyDevice
from r2ccl.transport.interface import Device
from r2ccl.transport.memory import Fabric
from r2ccl.transport.memory_path import Model
from r2ccl.transport.shared_memory import SharedMemoryDevice
from r2ccl.transport.tcp import Admission, TcpDevice
from tests.transport.conformance import LAWS
from tests.transport.harness import Law, Side, Transport, World, run_law, run_on

OpenDevice = Callable[[int, Nic], Device]
RANKS = 8


class SetClock:
    """A clock that a test moves, so that silence can be measured on real sockets without waiting for it."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> float:
        return MonotonicClock.now() + self._ahead_s

    async def move_on(self, seconds: float) -> None:
        self._ahead_s += seconds
        await asyncio.sleep(0)


def memory_world(one_sided: bool, shares_memory: bool = False) -> World:
    model = Model(completion_delay_s=1e-3 if shares_memory else 10e-6)
    fabric = Fabric(asyncio.get_running_loop(), random.Random(7).random, model)

    def sever(side: Side) -> Callable[[], None]:
        fabric.silent_drop((side.rank, side.nic))
        return lambda: fabric.restore((side.rank, side.nic))

    return World(
        open_device=lambda rank, nic: fabric.device(nic, rank, 1000 + rank, one_sided, shares_memory),
        address=lambda rank, nic: Endpoint("memory", f"rank{rank}.nic{nic}", 0),
        sever=sever,
    )


def tcp_world() -> World:
    loop = asyncio.get_running_loop()

    def open_device(rank: int, nic: Nic) -> Device:
        identity = Identity("job", b"secret", rank, 1000 + rank, "0")
        return TcpDevice(nic, Admission(identity, {peer: 1000 + peer for peer in range(RANKS)}), loop)

    return World(open_device=open_device, address=lambda rank, nic: Endpoint("inet", f"127.0.{nic}.{rank + 1}", 0))


def shared_memory_world(may_spin: bool) -> World:
    loop = asyncio.get_running_loop()
    mark = secrets.token_hex(8)

    def open_device(rank: int, nic: Nic) -> Device:
        identity = Identity("job", b"secret", rank, 1000 + rank, "0")
        admission = Admission(identity, {peer: 1000 + peer for peer in range(RANKS)})
        return SharedMemoryDevice(nic, admission, loop, may_spin)

    return World(open_device=open_device, address=lambda rank, nic: Endpoint("shared", f"r2ccl-{mark}-{rank}.{nic}", 0))


def under_faults(
    world: World, clock: Clock, pass_time: Callable[[float], Awaitable[None]], dial_timeout_s: float
) -> World:
    """The same world with every device wrapped. Paths are severed by the wrapper of one end."""
    loop = asyncio.get_running_loop()
    open_below = world.open_device
    wrapped: dict[tuple[int, int], FaultyDevice] = {}

    def open_device(rank: int, nic: Nic) -> Device:
        wrapped[rank, nic.index] = FaultyDevice(open_below(rank, nic), loop, clock, dial_timeout_s=dial_timeout_s)
        return wrapped[rank, nic.index]

    world.open_device = open_device
    world.sever = lambda side: wrapped[side.rank, side.nic].silence().remove
    world.pass_time = pass_time
    return world


def faulty_memory_world(one_sided: bool) -> World:
    clock = SimClock(asyncio.get_running_loop())
    return under_faults(memory_world(one_sided), clock, asyncio.sleep, dial_timeout_s=1.0)


def faulty_tcp_world() -> World:
    clock = SetClock()
    # Real time: a busy machine may be away for longer than a dial takes.
    return under_faults(tcp_world(), clock, clock.move_on, dial_timeout_s=1.0)


def faulty_shared_memory_world() -> World:
    clock = SetClock()
    return under_faults(shared_memory_world(True), clock, clock.move_on, dial_timeout_s=0.05)


TRANSPORTS: Final = (
    Transport("memory", run_in_virtual_time, lambda: memory_world(False), severable=True),
    Transport("memory-rdma", run_in_virtual_time, lambda: memory_world(True), True, severable=True, flushes=True),
    Transport("memory-of-a-node", run_in_virtual_time, lambda: memory_world(False, True), severable=True, posts=True),
    Transport("memory-real-time", run_on(asyncio.new_event_loop), lambda: memory_world(False)),
    Transport("faulty-memory", run_in_virtual_time, lambda: faulty_memory_world(False), severable=True),
    Transport("faulty-memory-rdma", run_in_virtual_time, lambda: faulty_memory_world(True), True, severable=True),
    Transport("tcp-asyncio", run_on(asyncio.new_event_loop), tcp_world),
    Transport("tcp-uvloop", run_on(uvloop.new_event_loop), tcp_world),
    Transport("shared-memory-asyncio", run_on(asyncio.new_event_loop), lambda: shared_memory_world(True), posts=True),
    Transport("shared-memory-uvloop", run_on(uvloop.new_event_loop), lambda: shared_memory_world(True), posts=True),
    Transport("shared-memory-parking", run_on(asyncio.new_event_loop), lambda: shared_memory_world(False), posts=True),
    Transport("faulty-shared-memory", run_on(uvloop.new_event_loop), faulty_shared_memory_world, severable=True),
    Transport("faulty-tcp-asyncio", run_on(asyncio.new_event_loop), faulty_tcp_world, severable=True),
    Transport("faulty-tcp-uvloop", run_on(uvloop.new_event_loop), faulty_tcp_world, severable=True),
)


@pytest.mark.parametrize(
    ("transport", "law"),
    [
        pytest.param(transport, law, id=f"{transport.name}-{law.name}")
        for transport in TRANSPORTS
        for law in LAWS
        if law.binds(transport)
    ],
)
def test_a_transport_keeps_the_law(transport: Transport, law: Law) -> None:
    run_law(transport, law)
